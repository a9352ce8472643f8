"""Lists of edges on a CUDA device.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..internals.internals import core, sums_alone_up_to
from .capi import Rank
from .cuda_cases import assert_close, assert_equal, both
from .programs import graph, run
from .sequences import check_sequences
from .test_ghosts import WANT
from .test_program import two_layers

# -- edges by sender ------------------------------------------------------------------------------


def check_rest(found: dict[str, Any], num_local: int, num_types: int) -> None:
    """Check all arrays that follow from rows, senders and types."""
    f = {
        name: np.array(value, dtype=int)
        for name, value in found.items()
        if name not in ("divided", "ranges", "pairs", "milliseconds", "positions")
    }
    nodes = len(f["types"])
    sender, types, row_ptr = f["sender"].astype(int), f["types"], f["row_ptr"]
    receiver = np.repeat(np.arange(num_local), np.diff(row_ptr))
    np.testing.assert_array_equal(f["receiver"], receiver)
    np.testing.assert_array_equal(f["sender_type"], types[sender])
    np.testing.assert_array_equal(f["receiver_type"], types[receiver])
    pairs = np.unique(types[receiver] * num_types + types[sender])
    np.testing.assert_array_equal(np.array(found["pairs"]).T @ [num_types, 1], pairs)
    np.testing.assert_array_equal(f["by_sender"], np.argsort(sender, kind="stable"))
    begins = np.searchsorted(np.sort(sender), np.arange(nodes + 1))
    np.testing.assert_array_equal(f["sender_ptr"], begins)
    order = [np.argsort(types[:num_local], kind="stable")]
    order.append(num_local + np.argsort(types[num_local:], kind="stable"))
    np.testing.assert_array_equal(f["by_type"], np.concatenate(order))
    for name, begin, part in (
        ("local_type_first", 0, types[:num_local]),
        ("ghost_type_first", num_local, types[num_local:]),
    ):
        counts = np.bincount(part, minlength=num_types)
        np.testing.assert_array_equal(f[name], begin + np.concatenate([[0], np.cumsum(counts)]))

    covered = 0
    for first_receiver, receivers, first, count in found["divided"]:
        assert first_receiver == covered
        covered += receivers
        assert (row_ptr[first_receiver], row_ptr[covered]) == (first, first + count)
    assert covered == num_local
    check_ranges(found)


def check_ranges(found: dict[str, Any]) -> list[int]:
    """Check that ranges cover all receivers and divide no part; return their numbers of parts."""
    ends = [begin + count for begin, count, _, _ in found["divided"]]
    row_ptr, receiver, counts = found["row_ptr"], 0, []
    for range_ in found["ranges"]:
        (first, count), (first_edge, edges) = range_["receivers"], range_["edges"]
        assert first == receiver
        receiver += count
        assert (first_edge, edges) == (row_ptr[first], row_ptr[receiver] - row_ptr[first])
        counts.append(sum(first < end <= receiver for end in ends))
        assert receiver in ends or not ends
    assert receiver == len(row_ptr) - 1
    return counts


@pytest.mark.parametrize(
    ("local", "nodes", "edges", "most"),
    [(0, 0, 0, 50), (3, 7, 0, 50), (0, 4, 0, 50), (40, 55, 900, 70), (9, 700, 9000, 2000),
     (300, 300, 5000, 8192), (2000, 2000, 2100, 7), (300, 300, 8191, 9000), (300, 300, 8192, 9000),
     (300, 300, 8193, 9000)],
)  # fmt: skip
def test_given_edges(local: int, nodes: int, edges: int, most: int, rng: Any) -> None:
    lists = core.CudaLists(4.0, 0.5, num_types=3, range_edges=most)
    types = rng.integers(3, size=nodes).astype(np.int32)
    receiver = rng.integers(max(local, 1), size=edges).astype(np.int32)
    receiver[receiver == 1] = 0
    sender = rng.integers(max(nodes, 1), size=edges).astype(np.int32)
    found = lists.take(local, types, sender, receiver)
    assert found["num_edges"] == edges
    order = np.argsort(receiver, kind="stable")
    np.testing.assert_array_equal(found["sender"], sender[order])
    np.testing.assert_array_equal(found["types"], types)
    assert edges == 0 or len(found["divided"]) > 1 or edges < most
    check_rest(found, local, 3)


# -- neighbours -----------------------------------------------------------------------------------


def edges_of(found: dict[str, Any], cell: Any, nodes: int) -> tuple[Any, Any]:
    """Return (receiver, sender) of each edge in the caller's numbering, and its vector."""
    node, code = np.array(found["node"], int), np.array(found["image"], int)
    cells = np.stack([code >> 20, code >> 10 & 1023, code & 1023], 1) - 512
    at = np.array(found["positions"]).reshape(nodes, 3)
    sender, receiver = np.array(found["sender"], int), np.array(found["receiver"], int)
    vectors = at[receiver] - at[sender] + cells @ cell
    return np.stack([node[receiver], node[sender]], 1), vectors


def expected_edges(
    positions: Any, cell: Any, periodic: Any, cutoff: float, skin: float
) -> tuple[Any, Any]:
    near = _core.NeighborList(cutoff, skin)
    near.update(positions, cell, periodic)
    vectors = positions[near.receiver] - positions[near.sender] + near.shifts
    return np.stack([near.receiver, near.sender], 1), vectors


def compare(found: Any, expected: Any, reach: float) -> None:
    """Compare sets of edges. Edges as long as the reach may be in either."""
    sets = []
    for ends, vectors in (found, expected):
        length = np.linalg.norm(vectors, axis=1)
        assert (length < reach + 2e-6).all()
        inside = length < reach - 1e-9
        rows = np.concatenate([ends[inside], np.round(vectors[inside] / 1e-5)], 1)
        sets.append(rows[np.lexsort(rows.T[::-1])])
    assert sets[0].shape == sets[1].shape
    # Rows are sorted by ends and rounded vectors, so rounding may swap neighbouring rows.
    np.testing.assert_array_equal(sets[0][:, :2], sets[1][:, :2])
    np.testing.assert_allclose(sets[0], sets[1], rtol=0, atol=1.01)


@pytest.mark.parametrize("seed", range(24))
def test_edges_are_those_of_the_host(seed: int) -> None:
    """Lists of a device equal those of the host for random cells, periodicities and densities."""
    rng = np.random.default_rng(seed)
    cell = rng.normal(size=(3, 3)) * rng.uniform(2.0, 9.0, (3, 1))
    while abs(np.linalg.det(cell)) < 0.05 * np.prod(np.linalg.norm(cell, axis=1)):
        cell = rng.normal(size=(3, 3)) * rng.uniform(2.0, 9.0, (3, 1))
    periodic = rng.random(3) < (0.6 if seed > 3 else 1.0)
    cutoff, skin = rng.uniform(1.0, 5.0), rng.choice([0.0, 0.4])
    nodes = int(rng.integers(1, 60))
    positions = rng.uniform(-1.5, 2.5, (nodes, 3)) @ cell
    types = rng.integers(3, size=nodes).astype(np.int32)
    lists = core.CudaLists(cutoff, skin, num_types=3, range_edges=100)
    found = lists.make(positions, types, cell, periodic)
    assert found is not None
    used = np.where(periodic[:, None], cell, 0.0)
    want = expected_edges(positions, cell, periodic, cutoff, skin)
    compare(edges_of(found, used, nodes), want, cutoff + skin)
    assert sorted(found["node"]) == list(range(nodes))
    np.testing.assert_array_equal(found["types"], types[found["node"]])
    check_rest(found, nodes, 3)
    again = lists.make(positions, types, cell, periodic)
    for name, value in found.items():
        assert name == "milliseconds" or again[name] == value, f"{name} differs"


def test_systems_of_many_bins(rng: Any) -> None:
    """Lists are complete for systems with many bins, and for bins with many atoms."""
    cell = np.array([[21.0, 0, 0], [3, 24, 0], [-2, 4, 19]])
    positions = rng.uniform(0.0, 1.0, (600, 3)) @ cell
    positions[:70] = rng.uniform(0.0, 1.0, (70, 3))  # more than 32 in one bin
    types = np.zeros(600, np.int32)
    lists = core.CudaLists(2.5, 0.5)
    for periodic in ((True, True, True), (True, False, True), (False, False, False)):
        found = lists.make(positions, types, cell, periodic)
        used = np.where(np.array(periodic)[:, None], cell, 0.0)
        want = expected_edges(positions, cell, periodic, 2.5, 0.5)
        compare(edges_of(found, used, 600), want, 3.0)
        # nodes with consecutive numbers are close in space
        at = np.array(found["positions"]).reshape(-1, 3)
        steps = np.linalg.norm(np.diff(at, axis=0), axis=1)
        assert np.median(steps) < 6.0


def test_sums_in_several_launches(rng: Any) -> None:
    """Prefix sums over several tiles, the last one partly filled, give the same lists."""
    cell = 19.0 * np.eye(3)
    positions = rng.uniform(0.0, 1.0, (1201, 3)) @ cell
    types = rng.integers(3, size=1201).astype(np.int32)
    found = []
    for most in (1 << 30, 0):
        with sums_alone_up_to(most):
            lists = core.CudaLists(3.7, 0.5, num_types=3, pairs=True)
            found.append(lists.make(positions, types, cell, (True,) * 3))
    assert len(found[0]["sender"]) > 3 * 16384
    assert found[0].keys() == found[1].keys()
    for name in found[0].keys() - {"milliseconds", "address"}:
        assert found[0][name] == found[1][name], f"{name} differs"
    want = expected_edges(positions, cell, [True] * 3, 3.7, 0.5)
    compare(edges_of(found[1], cell, 1201), want, 4.2)


def test_open_systems_and_no_cell(rng: Any) -> None:
    lists = core.CudaLists(3.0, 0.5)
    for nodes in (1, 2, 30):
        positions = rng.normal(scale=3.0, size=(nodes, 3))
        found = lists.make(positions, np.zeros(nodes, np.int32))
        want = expected_edges(positions, None, [False] * 3, 3.0, 0.5)
        compare(edges_of(found, np.zeros((3, 3)), nodes), want, 3.5)
        check_rest(found, nodes, 1)
    flat = np.zeros((9, 3))  # no extent, and hardly any
    flat[:, 0] = np.arange(9) * 1.3
    flat[:, 1] = np.arange(9) * 1e-13
    found = lists.make(flat, np.zeros(9, np.int32))
    want = expected_edges(flat, None, [False] * 3, 3.0, 0.5)
    compare(edges_of(found, np.zeros((3, 3)), 9), want, 3.5)


def test_what_the_host_serves_better(rng: Any) -> None:
    lists = core.CudaLists(3.0, 0.5)
    positions = rng.normal(scale=3.0, size=(20, 3))
    positions[0, 1] = 5e6
    assert lists.make(positions, np.zeros(20, np.int32)) is None


@pytest.mark.parametrize(
    ("nodes", "lengths"), [(259, [168.0] * 3), (26, [30.82, 16.94, 167.49]), (40, [9.0, 9.0, 4e3])]
)
def test_sparse_systems(nodes: int, lengths: list[float], rng: Any) -> None:
    lists, cell = core.CudaLists(4.5, 0.5), np.diag(lengths)
    positions = rng.uniform(0.0, 1.0, (nodes, 3)) @ cell
    positions[nodes // 2 :] = positions[: nodes - nodes // 2] + 1.2
    found = lists.make(positions, np.zeros(nodes, np.int32), cell, (True, True, True))
    assert found["num_edges"] >= nodes - 1
    want = expected_edges(positions, cell, [True] * 3, 4.5, 0.5)
    compare(edges_of(found, cell, nodes), want, 5.0)


@pytest.mark.parametrize(
    ("nodes", "cell", "sentence"),
    [
        (1, np.diag([50.0, 50.0, 0.0065]), "planes of the cell are 50, 50, 0.0065 Å apart"),
        (1, np.diag([0.02] * 3), "would have 4.32e.07 periodic images within 3.5 Å"),
        (400, np.diag([0.9] * 3), "atom [0-9]+ has [0-9]+ neighbours within 3.5 Å"),
    ],
)
def test_too_many_neighbours(nodes: int, cell: Any, sentence: str, rng: Any) -> None:
    lists, positions = core.CudaLists(3.0, 0.5), rng.uniform(0.0, 0.9, (nodes, 3))
    types = np.zeros(nodes, np.int32)
    with pytest.raises(_core.GeometryError, match=sentence):
        lists.make(positions, types, cell, (True, True, True))
    found = lists.make(positions[:1], types[:1], None, (False,) * 3)
    assert found["bytes"] < 2**20  # edges of the refused list had no memory


def test_lists_that_fit_keep_their_place(rng: Any) -> None:
    lists = core.CudaLists(3.0, 0.5)
    cell, types = np.diag([11.0, 12.0, 13.0]), np.zeros(150, np.int32)
    addresses, counts = set(), set()
    for scale in (1.0, 1.001, 0.999, 1.0005):
        positions = np.random.default_rng(3).uniform(0, 1, (150, 3)) @ cell
        found = lists.make(positions, types, cell * scale, (True, True, True), arrays=False)
        addresses.add(found["address"])
        counts.add(found["num_edges"])
    assert len(counts) > 1
    assert len(addresses) == 1


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_runs_with_changing_cells(tmp_path: Path, dtype: str, rng: Any) -> None:
    """Results equal the CPU's in a run in which the list, cell and types change."""
    cpu, cuda = both(two_layers(dtype).package(), tmp_path / "p.mdcg")
    cell = np.array([[5.5, 0, 0], [1.0, 6.0, 0], [-0.5, 0.7, 5.8]])
    positions = rng.uniform(0, 1, (24, 3)) @ cell + rng.integers(-2, 3, (24, 3)) @ cell
    types = rng.integers(3, size=24).astype(np.int32)
    built = []
    for step in range(9):
        if step == 4:  # a new list
            positions = positions + rng.normal(scale=0.3, size=positions.shape)
        if step == 6:
            types = types[::-1].copy()
        if step > 6:
            cell = cell * 1.002
        positions = positions + rng.normal(scale=0.01, size=positions.shape)
        wanted = {"cell": cell, "periodic": (True, step < 8, True), "virial": True}
        assert_close(
            cuda.evaluate(positions, types, **wanted),
            cpu.evaluate(positions, types, **wanted),
            dtype,
        )
        built.append(json.loads(cuda.report())["neighbor_lists_built"])
    assert built == [1, 1, 1, 1, 2, 2, 3, 3, 4]
    assert json.loads(cuda.report())["replays"] >= 4


def test_given_edges_and_own_lists_by_turns(tmp_path: Path) -> None:
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(30, box=5.0)
    want = run(cpu, g)
    edges = (g["sender"], g["receiver"], np.zeros((len(g["sender"]), 3)))
    for _ in range(2):
        own = cuda.evaluate(g["positions"], g["types"])
        assert_close(own, cpu.evaluate(g["positions"], g["types"]), "float64")
        assert_close(
            cuda.evaluate(g["positions"], g["types"], edges=edges, same_edges=True), want, "float64"
        )
        assert_close(
            cuda.evaluate(g["positions"], g["types"], edges=edges, same_edges=True), want, "float64"
        )


def test_calls_in_any_order(tmp_path: Path) -> None:
    both(two_layers().package(), tmp_path / "p.mdcg")
    check_sequences(str(tmp_path / "p.mdcg"), "cuda", "auto", examples=12)


def test_lists_of_the_host_on_a_device(tmp_path: Path) -> None:
    """A list with an atom far away, which the host makes, is kept, and steps are replayed."""
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(20, box=4.5)
    g["positions"][0] += (0, 3e6, 0)
    for _ in range(4):
        found = cuda.evaluate(g["positions"], g["types"], virial=True)
        assert_close(found, cpu.evaluate(g["positions"], g["types"], virial=True), "float64")
    report = json.loads(cuda.report())
    assert (report["neighbor_lists_built"], report["replays"]) == (1, 3)


def test_wrong_cells_and_types_leave_the_model_usable(tmp_path: Path) -> None:
    _, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(20, box=4.5)
    box = {"cell": 6.0 * np.eye(3), "periodic": (True, True, True)}
    want = cuda.evaluate(g["positions"], g["types"], **box)
    flat = {"cell": np.diag([6.0, 6.0, 0.0]), "periodic": (True, True, True)}
    away, twice = g["positions"].copy(), g["positions"].copy()
    away[3, 1] = np.nan
    twice[4] = twice[7] + (6.0, 0, 0)
    for positions, types, where, sentence in (
        (away, g["types"], box, "no usable position"),
        (g["positions"], g["types"], flat, "cell vector is zero"),
        (g["positions"], g["types"] + 7, box, "expected 0 to 2"),
        (twice, g["types"], box, "at the same place, expected a distance"),
    ):
        with pytest.raises(_core.EngineError, match=sentence):
            cuda.evaluate(positions, types, **where)
        assert_equal(cuda.evaluate(g["positions"], g["types"], **box), want)


# -- copies of nodes -------------------------------------------------------------------------------


def with_copies(positions: Any, types: Any, cell: Any, reach: float, skin: float) -> dict[str, Any]:
    """Return a periodic system as an open one, with all images that edges may reach."""
    steps = np.array([s for s in np.ndindex(5, 5, 5) if s != (2, 2, 2)]) - 2
    shifts = np.concatenate([np.zeros((1, 3)), steps @ cell])
    node, image = np.divmod(np.arange(len(positions) * len(steps)), len(steps))
    image += 1
    at = positions[node] - shifts[image]
    low, high = positions.min(axis=0) - reach - 0.01, positions.max(axis=0) + reach + 0.01
    near = ((at > low) & (at < high)).all(axis=1)
    none = np.zeros(0, np.int32)
    return {
        "positions": positions,
        "types": types,
        "sender": none,
        "receiver": none,
        "copy_node": node[near],
        "copy_image": image[near],
        "image_shifts": shifts,
        "steps": steps,
        "skin": skin,
    }


def test_copies_of_nodes(tmp_path: Path, rng: Any) -> None:
    """Results with periodic images from the host are right while atoms, box and types change."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(two_layers().package(), path)
    cell = np.array([[6.5, 0, 0], [1.0, 7.0, 0], [-0.5, 0.7, 6.8]])
    positions = rng.uniform(0, 1, (24, 3)) @ cell
    types = rng.integers(3, size=24).astype(np.int32)
    nodes = np.arange(24)
    rank = Rank(str(path), nodes, nodes[:0], device="cuda", kernels="auto")
    reach = cpu.r_max + 0.6
    g = with_copies(positions, types, cell, reach, 0.6)
    built = []
    for step in range(8):
        if step in (3, 6):
            positions = positions + rng.normal(scale=0.3, size=positions.shape)
            g = with_copies(positions, types, cell, reach, 0.6)
        if step == 4:
            cell = cell * 1.004
            positions = positions * 1.004
            g["image_shifts"] = np.concatenate([np.zeros((1, 3)), g["steps"] @ cell])
        if step == 5:
            types = types[::-1].copy()
            g["types"] = types
        positions = positions + rng.uniform(-0.02, 0.02, positions.shape)
        g["positions"] = positions
        got = rank.evaluate(g, None, WANT, same_edges=step not in (0, 3, 6))
        want = cpu.evaluate(
            positions, types, cell=cell, periodic=(True,) * 3, virial=True, virials=True
        )
        assert_close(got, {name: want[name] for name in got}, "float64")
        built.append(rank.report()["neighbor_lists_built"])
    assert built == [1, 1, 1, 2, 2, 3, 4, 4]
    assert rank.report()["replays"] >= 2
    rank.close()


def test_copies_far_away(tmp_path: Path) -> None:
    """A sparse system with images from the host, which has no cell, is evaluated on the device."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(two_layers().package(), path)
    g = graph(20, box=4.5)
    g["positions"][0] += (0, 3e6, 0)
    g |= {"sender": g["sender"][:0], "receiver": g["receiver"][:0], "skin": 0.5}
    g |= {"copy_node": [3], "copy_image": [1], "image_shifts": np.array([[0.0] * 3, [1e7, 0, 0]])}
    nodes = np.arange(20)
    rank = Rank(str(path), nodes, nodes[:0], device="cuda", kernels="auto")
    want = cpu.evaluate(g["positions"], g["types"], virial=True, virials=True)
    for same in (False, True):
        got = rank.evaluate(g, None, WANT, same_edges=same)
        assert_close(got, {name: want[name] for name in got}, "float64")
    rank.close()


def test_wrong_copies(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    both(two_layers().package(), path)
    g = graph(20, box=4.5)
    g |= {"sender": g["sender"][:0], "receiver": g["receiver"][:0], "skin": 0.5}
    g |= {"copy_node": [3], "copy_image": [1], "image_shifts": np.array([[0.0] * 3, [9.0, 0, 0]])}
    nodes = np.arange(20)
    rank = Rank(str(path), nodes, nodes[:0], device="cuda", kernels="auto")
    want = rank.evaluate(g, None, WANT)
    away = g["positions"].copy()
    away[3, 1] = np.nan
    for changes, sentence in (
        ({"copy_node": [20]}, "copy_node.0. is 20, expected 0 <= copy_node < 20"),
        ({"copy_image": [2]}, "copy_image.0. is 2, expected 0 <= copy_image < 2"),
        ({"image_shifts": np.ones((2, 3))}, "first row of image_shifts is not zeros"),
        ({"positions": away}, "the first is atom 3 at"),
        ({"image_shifts": np.array([[0.0] * 3, [1e9, 0, 0]])}, "the first is atom 3 at"),
        ({"types": g["types"] + 7}, "expected 0 to 2"),
        ({"cell": 9 * np.eye(3)}, "copies of nodes and a cell are given"),
        ({"skin": np.nan}, "skin is .*, expected a finite length"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            rank.evaluate(g | changes, None, WANT)
        assert_equal(rank.evaluate(g, None, WANT, same_edges=True), want)
    with pytest.raises(RuntimeError, match="20 nodes and 2 copies, but mdcg_system"):
        rank.evaluate(g | {"copy_node": [3, 3], "copy_image": [1, 1]}, None, WANT, same_edges=True)
    rank.close()
    alone = Rank(str(path), nodes, nodes[:0])
    with pytest.raises(RuntimeError, match=r"devices alone make edges: give them, or use device"):
        alone.evaluate(g, None, WANT)
    alone.close()
