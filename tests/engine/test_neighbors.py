"""The engine's neighbour list: against brute force and ASE, and independent of skin and threads."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from time import perf_counter

import hypothesis.strategies as st
import numpy as np
import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list
from hypothesis import example, given, settings

from mdcg import _core

from ..processes import printed_by
from .cells import CELLS, PBC

R_MAX = 3.7
CSRC = Path(__file__).resolve().parents[2] / "csrc"


def rows_of(near: _core.NeighborList) -> np.ndarray:
    """Return edges as rows (receiver, sender, cell shift)."""
    return np.column_stack([near.receiver, near.sender, near.cell_shifts()])


def within(near: _core.NeighborList, positions: np.ndarray, cutoff: float) -> np.ndarray:
    """Return the rows that are shorter than the cutoff, in order."""
    vectors = positions[near.receiver] - positions[near.sender] + near.shifts
    return rows_of(near)[np.einsum("ij,ij->i", vectors, vectors) < cutoff**2]


def expected(
    positions: np.ndarray, cell: np.ndarray, periodic: np.ndarray, cutoff: float
) -> np.ndarray:
    """Return the rows that ASE finds, whose vectors go from i to j."""
    used = np.where(periodic[:, None], cell, 0.0)
    atoms = Atoms(numbers=np.ones(len(positions)), positions=positions, cell=used, pbc=periodic)
    if not periodic.all():
        atoms.cell = atoms.cell.complete()
    i, j, shifts = neighbor_list("ijS", atoms, cutoff)
    rows = np.column_stack([j, i, shifts])
    return rows[np.lexsort(rows.T[::-1])]


@pytest.mark.parametrize("skin", [0.0, 0.6])
@pytest.mark.parametrize("pbc", PBC, ids=str)
@pytest.mark.parametrize("shape", CELLS)
def test_edges_are_those_of_ase(
    shape: str, pbc: tuple[int, ...], skin: float, rng: np.random.Generator
) -> None:
    cell, periodic = CELLS[shape], np.array(pbc, dtype=bool)
    positions = rng.uniform(-3.0, 9.0, (14, 3))
    near = _core.NeighborList(R_MAX, skin)
    assert near.update(positions, cell, periodic) == "edges"
    rows = rows_of(near)
    order = np.lexsort(rows.T[::-1])
    np.testing.assert_array_equal(order, np.arange(len(rows)), "not by receiver, sender, cell")
    found = within(near, positions, R_MAX)
    np.testing.assert_array_equal(found, expected(positions, cell, periodic, R_MAX))
    used = np.where(periodic[:, None], cell, 0.0)
    np.testing.assert_allclose(near.shifts, near.cell_shifts() @ used, atol=1e-12)
    np.testing.assert_array_equal(
        near.row_ptr, np.concatenate([[0], np.cumsum(np.bincount(near.receiver, minlength=14))])
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_systems(seed: int) -> None:
    """Lists equal ASE's for random cells, periodicities, densities and numbers of atoms."""
    rng = np.random.default_rng(seed)
    cell = rng.normal(size=(3, 3)) * rng.uniform(2.0, 12.0, (3, 1))
    while abs(np.linalg.det(cell)) < 0.05 * np.prod(np.linalg.norm(cell, axis=1)):
        cell = rng.normal(size=(3, 3)) * rng.uniform(2.0, 12.0, (3, 1))
    periodic = rng.random(3) < 0.6
    cutoff = rng.uniform(1.0, 5.0)
    positions = rng.uniform(-1.5, 2.5, (int(rng.integers(1, 60)), 3)) @ cell
    near = _core.NeighborList(cutoff, rng.choice([0.0, 0.4]))
    near.update(positions, cell, periodic, 2)
    np.testing.assert_array_equal(
        within(near, positions, cutoff), expected(positions, cell, periodic, cutoff)
    )


def by_hand(
    positions: np.ndarray, cell: np.ndarray, periodic: np.ndarray, cutoff: float, most: float
) -> np.ndarray | None:
    """Return the rows, from a test of every possible image; None if these are too many."""
    inverse = np.linalg.inv(cell)
    wraps = np.where(periodic, np.floor(positions @ inverse), 0.0)
    wrapped = positions - wraps @ cell
    steps = np.where(periodic, np.ceil(cutoff * np.linalg.norm(inverse, axis=0)), 0.0) + periodic
    if len(positions) ** 2 * np.prod(2 * steps + 1) > most:
        return None
    images = np.stack(np.meshgrid(*(np.arange(-s, s + 1) for s in steps)), -1).reshape(-1, 3)
    rows = []
    for image in images:
        vectors = wrapped[:, None] - wrapped + image @ cell
        near = np.einsum("rsk,rsk->rs", vectors, vectors) < cutoff**2
        if not image.any():
            np.fill_diagonal(near, False)
        receiver, sender = np.nonzero(near)
        rows.append(np.column_stack([receiver, sender, image + wraps[sender] - wraps[receiver]]))
    found = np.concatenate(rows).astype(int)
    return found[np.lexsort(found.T[::-1])]


LENGTHS = st.tuples(*[st.floats(-1.5, 5.0).map(lambda power: 10.0**power)] * 3)  # Å


# An endless loop in C++ lets no signal handler run: this method ends the process.
@pytest.mark.timeout(120, method="thread")
@settings(max_examples=300)
@given(
    atoms=st.integers(0, 60),
    lengths=LENGTHS | st.tuples(*[st.floats(10.0, 300.0)] * 3),
    tilts=st.tuples(*[st.floats(-4.0, 4.0)] * 3),
    periodic=st.tuples(*[st.booleans()] * 3),
    cutoff=st.floats(0.5, 7.0),
    seed=st.integers(0, 9),
)
@example(259, (168.0,) * 3, (0.0,) * 3, (True,) * 3, 4.5, 0)
@example(26, (30.82, 16.94, 167.49), (0.0,) * 3, (True,) * 3, 4.5, 0)
@example(1, (0.02,) * 3, (0.0,) * 3, (True,) * 3, 4.5, 0)
@example(300, (1.0,) * 3, (0.0,) * 3, (True,) * 3, 5.0, 0)
@example(6000, (1.0,) * 3, (0.0,) * 3, (True,) * 3, 5.0, 0)
def test_sparse_flat_skewed_and_huge_cells(atoms, lengths, tilts, periodic, cutoff, seed) -> None:
    """Each cell gives a complete list within seconds, or an error; `tilts` are in lengths."""
    rng = np.random.default_rng(seed)
    cell = np.diag(lengths)
    cell[1, 0], cell[2, 0], cell[2, 1] = np.multiply(tilts, np.array(lengths)[[0, 0, 1]])
    positions = rng.uniform(-1.0, 2.0, (atoms, 3)) @ cell
    positions[: atoms // 3] = positions[atoms - atoms // 3 :] + rng.normal(size=(atoms // 3, 3))
    near, repeats = _core.NeighborList(cutoff, 0.5), np.array(periodic)
    start, sentence = perf_counter(), ""
    try:
        near.update(positions, cell, periodic)
    except _core.GeometryError as error:
        sentence = str(error)
    assert perf_counter() - start < 20.0
    steps = (cutoff + 0.51) * np.linalg.norm(np.linalg.inv(cell), axis=0)[repeats]
    if sentence:
        assert atoms * np.prod(2 * steps + 1) > 5e4 or steps.max() > 510
        assert "periodic images" in sentence
    elif (wanted := by_hand(positions, cell, repeats, cutoff, 3e6)) is not None:
        np.testing.assert_array_equal(within(near, positions, cutoff), wanted)


def test_symmetric_and_equal_for_any_number_of_threads(rng: np.random.Generator) -> None:
    positions, cell = rng.uniform(0.0, 26.0, (1800, 3)), np.diag([26.0, 25.0, 27.0])
    lists = []
    for threads in (1, 2, 5):
        near = _core.NeighborList(5.0, 0.3)
        near.update(positions, cell, [True, True, True], threads)
        lists.append((rows_of(near), near.shifts))
    for rows, shifts in lists[1:]:
        np.testing.assert_array_equal(rows, lists[0][0])
        assert shifts.tobytes() == lists[0][1].tobytes()
    rows = lists[0][0]
    back = np.column_stack([rows[:, 1], rows[:, 0], -rows[:, 2:]])
    np.testing.assert_array_equal(back[np.lexsort(back.T[::-1])], rows)


def test_result_does_not_depend_on_skin_or_history(rng: np.random.Generator) -> None:
    cell, positions = CELLS["triclinic"], rng.uniform(0.0, 8.0, (20, 3))
    lists = [_core.NeighborList(R_MAX, skin) for skin in (0.0, 0.3, 2.0)]
    for _ in range(60):
        positions = positions + rng.normal(scale=0.02, size=positions.shape)
        found = []
        for near in lists:
            near.update(positions, cell, [True, True, True])
            found.append(within(near, positions, R_MAX))
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])
    builds = [near.num_builds for near in lists]
    assert builds[0] == 60
    assert builds[0] > builds[1] > builds[2] >= 1


def test_list_is_kept_while_the_cell_changes_little(rng: np.random.Generator) -> None:
    """Small changes of the cell update shifts and keep the edges, of which none is missing."""
    cell = CELLS["triclinic"] * 1.5
    positions = rng.uniform(0.0, 1.0, (60, 3)) @ cell
    near = _core.NeighborList(R_MAX, 0.2)
    near.update(positions, cell, [True, True, True])
    changes = []
    for step in range(1, 60):
        strain = np.eye(3) + 0.002 * step * np.array([[1, 0.3, 0], [0.2, -1, 0], [0.1, 0, 0.6]])
        now, there = cell @ strain, positions @ strain
        changes.append(near.update(there, now, [True, True, True]))
        np.testing.assert_array_equal(
            within(near, there, R_MAX), expected(there, now, np.array([True] * 3), R_MAX)
        )
        np.testing.assert_allclose(near.shifts, near.cell_shifts() @ now, atol=1e-12)
    assert changes[0] == "shifts"
    assert 1 <= changes.count("edges") < 10


def test_rebuilds_only_when_it_must() -> None:
    cell, pbc = np.diag([9.0, 9.0, 9.0]), [True, True, True]
    positions = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    near = _core.NeighborList(3.0, 0.5)
    near.update(positions, cell, pbc)
    moved = positions + np.array([[0.1, 0.1, 0.1], [0.0, 0.0, 0.0], [0.0, 0.2, 0.0]])
    assert near.update(moved, cell, pbc) == "none"
    moved = positions + np.array([[0.26, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert near.update(moved, cell, pbc) == "edges", "an atom moved by more than skin / 2"
    assert near.update(moved, cell * 1.001, pbc) == "shifts"
    assert near.update(positions, cell * 1.001, [True, True, False]) == "edges"
    assert near.update(positions[:2], cell * 1.001, [True, True, False]) == "edges"
    near.reset()
    assert near.update(positions[:2], cell * 1.001, [True, True, False]) == "edges"
    assert (near.num_builds, near.num_updates) == (5, 7)


def test_no_atoms_one_atom_and_no_cell() -> None:
    near = _core.NeighborList(4.0, 0.5)
    near.update(np.zeros((0, 3)), None, [False] * 3)
    assert near.row_ptr.tolist() == [0]
    near.update(np.zeros((1, 3)), None, [False] * 3)
    assert near.num_edges == 0
    near.update(np.zeros((1, 3)), np.diag([3.0, 9.0, 9.0]), [True] * 3)
    assert near.cell_shifts().tolist() == [[-1, 0, 0], [1, 0, 0]]


def test_rows_of_open_directions_may_hold_anything(rng: np.random.Generator) -> None:
    positions = rng.uniform(0.0, 6.0, (10, 3))
    wanted = None
    for third in ([0.0, 0.0, 9.0], [0.0, 0.0, 0.0], [8.0, 7.0, 0.0], [np.nan] * 3):
        near = _core.NeighborList(R_MAX, 0.5)
        cell = np.array([[8.0, 0.0, 0.0], [1.0, 7.0, 0.0], third])
        near.update(positions, cell, [True, True, False])
        wanted = rows_of(near) if wanted is None else wanted
        np.testing.assert_array_equal(rows_of(near), wanted)
        assert np.isfinite(near.shifts).all()


def test_atoms_that_flew_off_cost_nothing(rng: np.random.Generator) -> None:
    positions = np.concatenate(
        [rng.uniform(0.0, 6.0, (8, 3)), [[1.0, 2e6, 5e7], [1.0, 2e6, 5e7 + 1]]]
    )
    for pbc in PBC[1:]:
        periodic, cell = np.array(pbc, dtype=bool), np.diag([6.5, 7.0, 7.5])
        near, rest = _core.NeighborList(R_MAX, 0.4), _core.NeighborList(R_MAX, 0.4)
        near.update(positions, cell, periodic)
        rest.update(positions[:8], cell, periodic)
        rows = rows_of(near)
        of_the_rest = rows[(rows[:, 0] < 8) & (rows[:, 1] < 8)]
        np.testing.assert_array_equal(of_the_rest, rows_of(rest))
        assert ((rows[:, 0] >= 8) & (rows[:, 1] >= 8)).sum() >= 2


@pytest.mark.parametrize(
    ("positions", "cell", "pbc", "message"),
    [
        ([[0, 0, 0], [np.nan, 0, 0]], np.eye(3) * 9, (1, 1, 1), "1 of 2 atoms .* atom 1 at"),
        ([[0, 0, np.inf]], np.eye(3) * 9, (0, 0, 0), "no usable position"),
        ([[0, 0, 1e9]], np.eye(3) * 9, (0, 0, 0), "finite numbers below 1e"),
        ([[0, 0, 0]], np.zeros((3, 3)), (1, 0, 1), "periodic along ac, where its cell vector"),
        ([[0, 0, 0]], [[5, 0, 0], [0, 5, 0], [5, 5, 0]], (1, 1, 1), "lie in one plane"),
        ([[0, 0, 0]], [[5, 0, 0], [5, 0, 0], [0, 0, 1]], (1, 1, 0), "one plane or on one line"),
        ([[0, 0, 0]], [[5, 0, 0], [0, np.inf, 0], [0, 0, 5]], (1, 1, 1), "not finite"),
        ([[0, 0, 9e7]], np.diag([5, 5, 0.01]), (1, 1, 1), "wrap positions first"),
        ([[0, 0, 0]], np.diag([5, 5, 0.001]), (1, 1, 1), "planes of the cell are .* repeat"),
    ],
)
def test_unusable_geometry(
    positions: list[list[float]], cell: np.ndarray, pbc: tuple[int, ...], message: str
) -> None:
    near = _core.NeighborList(R_MAX, 0.5)
    with pytest.raises(_core.GeometryError, match=message):
        near.update(
            np.array(positions, dtype=float), np.array(cell, dtype=float), list(map(bool, pbc))
        )


STATIC_LIBRARY = r"""
#include <cstring>
#include "engine/neighbors/verlet_skin.hpp"
extern "C" __attribute__((visibility("default"))) void refuse(
    const double* position, const double* cell, const bool* periodic, char* sentence) {
    try {
        mdcg::VerletSkin(3.7, 0.5).needs_rebuild(1, position, cell, periodic);
    } catch (const mdcg::GeometryError& error) {
        std::strncpy(sentence, error.what(), 999);
    }
}
"""
STATIC_CALLS = """
import ctypes, json, sys, torch
sentence, library = ctypes.create_string_buffer(1000), ctypes.CDLL(sys.argv[1])
for position, cell in (json.loads(text) for text in sys.argv[2:]):
    library.refuse((ctypes.c_double * 3)(*position), (ctypes.c_double * 9)(*cell),
                   (ctypes.c_bool * 3)(1, 1, 1), sentence)
    print(sentence.value.decode())
"""


def test_messages_where_libstdcxx_is_linked_statically(tmp_path: Path) -> None:
    """Error messages print numbers if libstdc++ is linked statically, beside torch's."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    (tmp_path / "refuse.cpp").write_text(STATIC_LIBRARY)
    sources = [tmp_path / "refuse.cpp", CSRC / "core" / "text.cpp"]
    sources += [
        CSRC / "engine/neighbors" / name for name in ("verlet_skin.cpp", "geometry_check.cpp")
    ]
    options = ["-std=c++17", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden"]
    library = tmp_path / "refuse.so"
    static = ["-static-libstdc++", "-static-libgcc"]
    built = [compiler, *options, *static, f"-I{CSRC}", *map(str, sources)]
    subprocess.run([*built, "-o", str(library)], check=True)
    cell = [5, 0, 0, 0, 5.25, 0, 0, 0, 5]
    infinite = [5, 0, 0, 0, np.inf, 0, 0, 0, 5]
    cases = [([0, 0.5, np.nan], cell), ([1.5, 0, 1.25e9], cell), ([0, 0, 0], infinite)]
    said = printed_by(STATIC_CALLS, library, *map(json.dumps, cases))
    shown = ["[0, 0.5, nan]", "[1.5, 0, 1.25e+09]", "[[5, 0, 0], [0, inf, 0], [0, 0, 5]]"]
    for line, numbers in zip(said.splitlines(), shown, strict=True):
        assert numbers in line


@pytest.mark.parametrize(("cutoff", "skin"), [(0.0, 0.5), (-1.0, 0.5), (np.nan, 0.5), (3.0, -0.1)])
def test_unusable_lengths(cutoff: float, skin: float) -> None:
    with pytest.raises(ValueError, match="expected finite lengths"):
        _core.NeighborList(cutoff, skin)
