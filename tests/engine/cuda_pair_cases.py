"""Backward passes on a CUDA device that evaluate an edge together with its reverse.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..internals.internals import core, ranges_of
from .cuda_device import Device, program, structure
from .cuda_list_cases import check_ranges
from .cuda_models import check_short_edges, compare_models, open_both, passes
from .test_conv_layer import R_MAX, Model, System, two_layers

LIMIT = {"float64": 1e-11, "float32": 1e-5}
POINTER, LONG, INT = ctypes.c_uint64, ctypes.c_longlong, ctypes.c_int


class Listed:
    """A model whose `where` gives it a list, or a periodic cell of which it makes a list."""

    def __init__(self, model: Any, **where: Any) -> None:
        self.model, self.where = model, where

    def evaluate(self, positions: Any, types: Any, edges: Any, virial: bool) -> dict[str, Any]:
        found: dict[str, Any] = self.model.evaluate(positions, types, virial=virial, **self.where)
        return found


def compare(
    path: str, size: float, counts: tuple[int, int, int], rng: Any, limit: float = 0.0
) -> None:
    """Compare results for atoms near the points of a grid; `size` of the cell is in cutoffs."""
    cpu, cuda = open_both(path)
    cell = size * R_MAX * np.eye(3)
    cell[1, 0] = 0.1 * R_MAX
    grid = np.stack(np.meshgrid(*[np.arange(n) / n for n in counts]), -1).reshape(-1, 3)
    rng.shuffle(grid)  # results are in this order, and nodes of lists in another one
    positions = (grid + rng.uniform(-0.1, 0.1, grid.shape) / np.array(counts)) @ cell
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(positions, cell, [True] * 3)
    types = rng.integers(2, size=len(grid)).astype(np.int32)
    s = System(positions, types, near.sender, near.receiver, near.shifts)
    for where in ({"edges": near}, {"cell": cell, "periodic": [True] * 3}):
        compare_models(cpu, Listed(cuda, **where), s, limit or LIMIT[cuda.dtype])
    names = [kernel["name"] for kernel in json.loads(cuda.report())["kernels"]]
    assert any("conv_table_backward" in name for name in names)
    assert not any("radial_forward" in name for name in names)


def layers(dtype: str = "float64", by_pair: bool = False, table: bool = True) -> Model:
    """Return two layers: scalars with two channels per lane, vectors that leave lanes idle."""
    model = Model(dtype=dtype, by_pair=by_pair, table=table)
    x = model.linear(model.conv(None, "4x0e", 2, "4x0e+4x1o+4x2e"), "70x0e+33x1o")
    x = model.linear(model.conv(x, "70x0e+33x1o", 2, "70x0e+33x0e+33x1o+70x1o+33x2e"), "8x0e+8x1o")
    model.energy(model.conv(x, "8x0e+8x1o", 1, "8x0e+8x1o+8x0e+8x1o"))
    return model


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("size", "counts"), [(0.8, (2, 2, 1)), (1.7, (3, 2, 3)), (2.4, (2, 5, 2)), (3.0, (5, 5, 4))]
)
def test_edges_with_reverses(
    tmp_path: Path, dtype: str, size: float, counts: Any, rng: Any
) -> None:
    """Results agree for small cells, in which pairs of nodes have several edges."""
    path = layers(dtype).write(tmp_path)
    assert {"table_forward", "table_backward"} <= passes(path)
    compare(path, size, counts, rng)


@pytest.mark.parametrize("edges", [8, 150, 400])
def test_ranges(tmp_path: Path, edges: int, rng: Any) -> None:
    """Results agree with one range of edges, and with several that alternate two buffers."""
    with ranges_of(edges):
        compare(layers().write(tmp_path), 2.4, (4, 3, 2), rng)


def test_short_edges_in_ranges(tmp_path: Path) -> None:
    """Short edges are contained in tables, also if lists are divided into ranges."""
    (tmp_path / "exact").mkdir()
    exact = _core.Model(layers(table=False).write(tmp_path / "exact"), kernels="generic")
    with ranges_of(20):
        cuda = _core.Model(layers().write(tmp_path), device="cuda")
        check_short_edges(exact, cuda, 1 / 20, nodes=40, edges=400)


def test_weights_that_differ_by_direction(tmp_path: Path, rng: Any) -> None:
    """Edges and reverses may have different weights, here by cutoffs per pair of types."""
    compare(layers(by_pair=True).write(tmp_path), 1.7, (3, 2, 2), rng)


def test_more_channels_than_shared_memory_has_room_for(tmp_path: Path, rng: Any) -> None:
    model = Model(dtype="float32", table=True)
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "1024x0e+4x1o")
    model.energy(model.conv(x, "1024x0e+4x1o", 1, "1024x0e+1024x1o+4x0e+4x1o"))
    compare(model.write(tmp_path), 1.1, (2, 2, 1), rng, limit=1e-4)


def test_other_shifts_of_the_same_edges(tmp_path: Path, rng: Any) -> None:
    """After other shifts for the edges of a list, edges are no longer paired with reverses."""
    cpu, cuda = open_both(layers().write(tmp_path))
    cell = 1.7 * R_MAX * np.eye(3)
    positions = rng.uniform(size=(8, 3)) @ cell
    types = rng.integers(2, size=8).astype(np.int32)
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(positions, cell, [True] * 3)
    cuda.evaluate(positions, types, edges=near, virial=True)
    shifts = near.shifts + rng.uniform(0.1, 0.2, size=near.shifts.shape)
    edges = (near.sender, near.receiver, shifts)
    want = cpu.evaluate(positions, types, edges, True)
    found = cuda.evaluate(positions, types, edges=edges, same_edges=True)
    error = np.abs(found["forces"] - want["forces"]).max()
    assert error < 1e-11 * np.abs(want["forces"]).max()


def test_pairs_that_leave_the_cutoff_and_come_back(tmp_path: Path, rng: Any) -> None:
    """Captured steps of a list with a skin ignore the rows of pairs beyond the cutoff."""
    path = layers().write(tmp_path)
    cell = 6 * R_MAX * np.eye(3)
    pairs = cell[0, 0] * np.stack(np.meshgrid([0.0, 0.5], [0.0, 0.5], [0.25], indexing="ij"), -1)
    first = pairs.reshape(-1, 3)
    types = rng.integers(2, size=3 * len(first)).astype(np.int32)
    moved = _core.Model(path, device="cuda", skin=0.8 * R_MAX)
    for part in (0.7, 1.3, 0.75, 1.3, 1.35, 0.7, 1.3):
        half = 0.5 * part * R_MAX * np.array([1.0, 0.0, 0.0])
        third = first - half + 0.6 * R_MAX * np.array([0.0, 1.0, 0.0])  # stays near the first
        positions = np.concatenate([first - half, third, first + half])
        where = {"cell": cell, "periodic": [True] * 3, "virial": True}
        found = moved.evaluate(positions, types, **where)
        want = _core.Model(path, device="cuda").evaluate(positions, types, **where)
        assert np.any(want["forces"][-len(first) :]) == (part < 1)
        for name in ("forces", "virial"):
            np.testing.assert_allclose(found[name], want[name], rtol=0, atol=1e-11)
    assert json.loads(moved.report())["neighbor_lists_built"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("by_type", [False, True])
def test_edges_in_order_of_length(by_type: bool, dtype: str, rng: Any) -> None:
    """Edges of a receiver are sorted by length, unless there are more than 256."""
    device = Device()
    counts = np.array([0, 1, 3, 4, 5, 31, 32, 33, 253, 255, 256, 257, 300])
    row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    edges, local = int(row_ptr[-1]), len(counts)
    given = rng.uniform(0.3, 1.2, size=edges) * R_MAX
    given[row_ptr[8] :] = rng.uniform(0.3, 0.99, size=edges - row_ptr[8]) * R_MAX
    given[row_ptr[8] : row_ptr[8] + 40] = R_MAX * (0.5 + 1e-7 * np.arange(40)[::-1])
    given[row_ptr[8] + 40 : row_ptr[8] + 50] = np.nextafter(R_MAX, 0)
    positions = np.zeros((local + edges, 3))
    positions[local:, 2] = -given
    sender = np.arange(local, local + edges, dtype=np.int32)
    integers = np.full(edges, -1, np.int32)
    arrays = {name: device.upload(integers) for name in ("active", "by_length")}
    num_active = device.upload(np.zeros(local, np.int32))
    fields = {"num_local": (LONG, local), "row_ptr": (POINTER, device.upload(row_ptr))}
    fields["sender"] = (POINTER, device.upload(sender))
    fields |= dict.fromkeys(("shift", "image", "table"), (POINTER, 0))
    fields |= {"packed": (LONG, 0), "positions": (POINTER, device.upload(positions))}
    fields["unit"] = (POINTER, device.upload(np.zeros((edges, 3), dtype)))
    fields["length"] = (POINTER, device.upload(np.zeros(edges)))
    fields |= {name: (POINTER, address) for name, address in arrays.items()}
    types = rng.integers(300, size=edges).astype(np.int32)
    fields["sender_type"] = (POINTER, device.upload(types) if by_type else 0)
    fields |= {"num_active": (POINTER, num_active)}
    fields["failures"] = (POINTER, device.upload(np.zeros(2, np.int32)))
    fields |= {"r_max": (ctypes.c_double, R_MAX), "sign": (ctypes.c_double, 1.0)}
    fields["group"] = (LONG, 0)
    pointers = ("by_group", "pair_row", "active_pairs", "live_pair_row", "num_pairs", "live_rows")
    fields |= dict.fromkeys(pointers, (POINTER, 0))
    device.launch(
        program(dtype, "geometry.cuh"), "geometry", -(-local // 8), 256, structure(**fields)
    )
    lived = device.download(num_active, np.zeros(local, np.int32))
    found = {name: device.download(address, integers) for name, address in arrays.items()}
    for r, (first, end) in enumerate(pairwise(row_ptr)):
        alive = first + np.flatnonzero(given[first:end] < R_MAX)
        active, sorted_ = (
            found[name][first : first + lived[r]] for name in ("active", "by_length")
        )
        np.testing.assert_array_equal(active, alive)
        if len(alive) > 256:
            np.testing.assert_array_equal(sorted_, alive)
        np.testing.assert_array_equal(np.sort(sorted_), alive)
        if len(alive) > 256:
            continue
        of_types = [sorted_]
        if by_type:
            order = types % 128
            assert (np.diff(order[sorted_]) >= 0).all()
            of_types = [sorted_[order[sorted_] == each] for each in range(128)]
        for each in of_types:
            assert (np.diff(given[each]) > -(2.0**-16) * R_MAX).all()
    device.release()


@pytest.mark.parametrize(("parts", "width"), [(1, 32), (4, 32), (1, 20), (1, 256), (4, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("marked", "own_parts", "add"), [(False, 0, 0), (True, 0, 0), (True, 7, 0), (True, 2, 1)]
)
def test_sums_by_sender_skip_dead_rows(
    dtype: str, parts: int, width: int, marked: bool, own_parts: int, add: int, rng: Any
) -> None:
    """Rows of edges or pairs beyond the cutoff, or outside of the range, may contain NaN.

    Nodes with `own` rows get their sum, which replaces the target unless `add`. The rows of others
    are added to the target.
    """
    device = Device()
    edges, senders, nodes = 270, 6, 9
    first, count = (0, edges) if marked else (13, 200)  # edges that have rows
    packs = width * np.dtype(dtype).itemsize // 16
    ends = np.sort(rng.integers(senders, size=edges))
    row_ptr = np.searchsorted(ends, np.arange(senders + 1)).astype(np.int32)
    sender = rng.permutation(nodes)[:senders].astype(np.int32)
    edge = rng.permutation(edges).astype(np.int32)
    length = np.where(rng.random(edges) < 0.4, 1e3, 2.0)
    number = np.arange(edges) if marked else edge - first
    active = (length[edge] < 1e3) & (number >= 0) & (number < count)
    rows = np.full((count, width), np.nan, dtype)
    rows[number[active]] = rng.normal(size=(active.sum(), width))
    target = rng.normal(size=(nodes, width)).astype(dtype)
    want = target.astype(float)
    first_own, num_own = 2, 4 * min(own_parts, 1)
    own = rng.normal(size=(num_own, own_parts, width)).astype(dtype)
    for node in set(sender) & set(range(first_own, first_own + num_own)):
        want[node] = add * want[node] + own[node - first_own].sum(0)
    for k in np.flatnonzero(active):
        want[sender[ends[k]]] += rows[number[k]]
    out = device.upload(target)
    arguments = structure(
        rows=(POINTER, device.upload(rows)),
        target=(POINTER, out),
        sender=(POINTER, device.upload(sender)),
        row_ptr=(POINTER, device.upload(row_ptr)),
        edge=(POINTER, 0 if marked else device.upload(edge)),
        length=(POINTER, 0 if marked else device.upload(length)),
        live_rows=(POINTER, device.upload(active.astype(np.int32)) if marked else 0),
        own=(POINTER, device.upload(own)),
        senders=(LONG, senders),
        width=(LONG, packs),
        **{
            name: (INT, value)
            for name, value in {
                "first_edge": first,
                "num_edges": count,
                "parts": parts,
                "group": math.gcd(packs, 32),
                "first_own": first_own,
                "num_own": num_own,
                "own_parts": own_parts,
                "add": add,
            }.items()
        },
    )
    blocks = -(-parts * senders * packs // 256)
    device.launch(program(dtype, "sender_sums.cuh"), "sum_by_sender", blocks, 256, arguments)
    found = device.download(out, target)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
    device.release()


def test_one_block_for_each_group(tmp_path: Path, rng: Any) -> None:
    """With at least four groups per multiprocessor, every block has its own group."""
    model = Model(table=True)
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "8x0e+8x1o")
    model.energy(model.conv(x, "8x0e+8x1o", 1, "8x0e+8x1o+8x0e+8x1o"))
    compare(model.write(tmp_path), 9.0, (12, 12, 11), rng)


def test_flipped_vectors(tmp_path: Path, rng: Any) -> None:
    compare(two_layers(flip=True, table=True).write(tmp_path), 1.7, (3, 2, 2), rng)


# -- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("molecules", [1, 64, 343])
def test_groups_are_near_each_other(molecules: int, rng: Any) -> None:
    """Nearly all groups are whole molecules of three atoms, for any order of the atoms."""
    size = round(molecules ** (1 / 3))
    centers = np.stack(np.meshgrid(*[np.arange(size)] * 3), -1).reshape(-1, 3) + 0.5
    atoms = np.repeat(3.1 * centers, 3, axis=0)
    atoms += rng.uniform(-0.5, 0.5, atoms.shape)
    order = rng.permutation(len(atoms))
    lists = core.CudaLists(5.5, 0.5, pairs=True)
    cell = 3.1 * size * np.eye(3)
    found = lists.make(atoms[order], np.zeros(len(atoms), np.int32), cell, (True,) * 3)
    assert found["group"] == 3
    node = np.array(found["node"])
    assert sorted(node) == list(range(len(atoms)))
    groups = (order[node] // 3).reshape(-1, 3)
    whole = (groups == groups[:, :1]).all(1).mean()
    assert whole > 0.95  # 96 atoms that are divided may begin or end inside a molecule


@pytest.mark.parametrize("most", [30, 400, 8192])
@pytest.mark.parametrize(("local", "nodes"), [(0, 0), (1, 1), (4, 9), (40, 40), (31, 45)])
def test_lists_of_pairs(local: int, nodes: int, most: int, rng: Any) -> None:
    lists = core.CudaLists(R_MAX, 0.0, range_edges=most, pairs=True)
    count = 300 if local else 0
    ends = rng.integers(max(local, 1), size=(2, count))
    if nodes > local:  # edges from ghosts have no reverse
        far = np.stack([rng.integers(local, nodes, size=50), rng.integers(local, size=50)])
        sender, receiver = np.concatenate([ends, ends[::-1], far], axis=1)
    else:
        sender, receiver = np.concatenate([ends, ends[::-1]], axis=1)
    types = np.zeros(nodes, np.int32)
    ends = (sender.astype(np.int32), receiver.astype(np.int32))
    found = lists.take(local, types, *ends, reversed=True)
    check_pairs(found, local, alone=False)
    if local > 1:  # without one reverse, all edges are listed
        one = np.flatnonzero((sender < local) & (sender != receiver))[0]
        rest = np.delete(np.stack([sender, receiver]), one, axis=1).astype(np.int32)
        check_pairs(lists.take(local, types, *rest, reversed=True), local, alone=True)
    check_pairs(lists.take(local, types, *ends), local, alone=True)


def check_pairs(found: dict[str, Any], local: int, alone: bool) -> None:
    sender, receiver = np.array(found["sender"], int), np.array(found["receiver"], int)
    group, row_ptr = found["group"], np.array(found["row_ptr"])
    by_group, row = np.array(found["by_group"], int), np.array(found["pair_row"], int)
    listed = by_group[row >= 0]
    reverses = (sender < local) & (sender != receiver)
    if alone:
        assert len(listed) == len(sender)
    else:  # one edge of each pair, and all edges without a reverse
        assert set(np.flatnonzero(~reverses)) <= set(listed)
        pairs = Counter(tuple(sorted((sender[e], receiver[e]))) for e in listed if reverses[e])
        every = Counter(tuple(sorted((sender[e], receiver[e]))) for e in np.flatnonzero(reverses))
        assert {pair: 2 * number for pair, number in pairs.items()} == every
    # by group, then by sender, then by receiver; a row for each sender of a group
    order = np.lexsort((np.arange(len(sender)), sender, receiver // group))
    np.testing.assert_array_equal(by_group, order)
    groups = [receiver[e] // group for e in listed]
    rows = {(g, sender[e]): r for g, e, r in zip(groups, listed, row[row >= 0], strict=True)}
    for g, e, r in zip(groups, listed, row[row >= 0], strict=True):
        assert rows[g, sender[e]] == r
    assert sorted(rows.values()) == list(range(len(rows)))
    # ranges are whole groups; rows are in order of range_, sender and group
    assert all(part[0] % group == 0 for part in found["divided"])
    parts = check_ranges(found)
    first = 0
    for number, range_ in enumerate(found["ranges"]):
        (first_receiver, receivers), (first_row, num_rows) = range_["receivers"], range_["rows"]
        first_sender, senders = range_["senders"]
        assert first_row == first
        own = sorted(
            (s, g, r)
            for (g, s), r in rows.items()
            if first_receiver <= g * group < first_receiver + receivers
        )
        assert [r for _, _, r in own] == list(range(first, first + num_rows))
        first += num_rows
        ptr = found["range_row_ptr"][first_sender + number : first_sender + senders + number + 1]
        names = found["range_sender"][first_sender : first_sender + senders]
        counts = Counter(s for s, _, _ in own)
        np.testing.assert_array_equal(np.diff(ptr), [counts[s] for s in names])
        assert len(ptr) == 0 or ptr[0] == first_row
    assert first == len(rows)
    # two buffers hold all rows, or one of them those of a range_
    most = found["range_edges"] + found["range_edges"] // 2
    found_rows = [range_["rows"][1] for range_ in found["ranges"]]
    if len(rows) <= 2 * most:
        assert len(found_rows) == 1
    else:
        fewest = -(-len(rows) // most)
        assert fewest <= len(found_rows) <= 3 * fewest
        for count, number in zip(found_rows, parts, strict=True):
            assert count <= most or number == 1
    assert row_ptr[-1] == len(sender)
