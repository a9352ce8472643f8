"""Packages on a CUDA device against the same on the CPU.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.build import molecule

from mdcg import MDCGCalculator, _core
from mdcg.errors import DeviceError, KernelCompileError, UnsupportedProblemError
from mdcg.package import Package

from ..internals.internals import small_up_to
from ..processes import printed_by
from .capi import Exchange, Rank, library
from .cuda_device import choose_devices
from .programs import Array, graph, run
from .test_ghosts import WANT, evaluate_together, parts
from .test_program import two_layers, two_readers, with_pairs

DATA = Path(__file__).parents[1] / "data"
LIMIT = {"float64": 1e-11, "float32": 8e-6}  # found, emulated: 1.2e-12 and 1.8e-6
pytest_generate_tests = choose_devices
NAMES = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}


def saved(package: Package, path: Path) -> Path:
    package.save(path)
    return path


def both(package: Package, path: Path) -> tuple[Any, Any]:
    """Return the package opened on the CPU and on the device."""
    package.save(path)
    return _core.Model(str(path), kernels="generic"), _core.Model(str(path), device="cuda")


def assert_close(got: dict[str, Any], want: dict[str, Any], dtype: str) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        size = np.abs(value).max(initial=0.0)
        if name == "energy" and "energies" in want:
            size = np.abs(want["energies"]).sum()  # terms may nearly cancel
        scale = max(1e-3, float(size))
        error = float(np.abs(np.asarray(got[name]) - value).max(initial=0.0)) / scale
        assert error < LIMIT[dtype], f"{name}: relative error {error:.1e}"


def assert_equal(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in want.items():
        assert np.array_equal(got[name], value), f"{name} is not the same to the last bit"


def water(seed: int = 0, count: int = 8) -> tuple[Array, Array, Array]:
    """Return positions, types (H, O) and cell of a periodic box smaller than two cutoffs."""
    rng = np.random.default_rng(seed)
    one = molecule("H2O")
    sites = np.stack(np.meshgrid(*[np.arange(2) * 3.1] * 3), -1).reshape(-1, 3)[:count]
    at = np.concatenate([site + one.positions for site in sites])
    at += rng.normal(scale=0.08, size=at.shape)
    types = np.tile((one.numbers == 8).astype(np.int32), count)
    cell = 6.2 * np.eye(3) + rng.normal(scale=0.2, size=(3, 3))
    return at, types, cell


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_two_layers(tmp_path: Path, dtype: str) -> None:
    cpu, cuda = both(two_layers(dtype).package(), tmp_path / "p.mdcg")
    g = graph(40, box=5.5)
    for _ in range(3):  # layer by layer, captured, replayed
        wanted = {"virial": True, "virials": True}
        assert_close(run(cuda, g, **wanted), run(cpu, g, **wanted), dtype)
    wanted = {"forces": False, "descriptors": True}
    assert_close(run(cuda, g, **wanted), run(cpu, g, **wanted), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weighted_energies(tmp_path: Path, dtype: str) -> None:
    """Evaluations with weights do not change the replayed steps before and after them."""
    cpu, cuda = both(with_pairs(dtype).package(), tmp_path / "p.mdcg")
    g, weights = graph(40, box=5.5), np.random.default_rng(2).normal(size=40)
    plain = [run(cuda, g) for _ in range(3)]
    for _ in range(2):
        found = run(cuda, g, virials=True, energy_weights=weights)
        assert_close(found, run(cpu, g, virials=True, energy_weights=weights), dtype)
    assert_equal(run(cuda, g), plain[-1])


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_converted_packages(tmp_path: Path, name: str, dtype: str) -> None:
    package = Package.open(DATA / f"{name}_{dtype}.mdcg")
    cpu, cuda = both(package, tmp_path / "p.mdcg")
    positions, types, cell = water()
    rng = np.random.default_rng(1)
    for _ in range(3):
        wanted = {"cell": cell, "periodic": (True, True, True), "virial": True}
        assert_close(
            cuda.evaluate(positions, types, **wanted),
            cpu.evaluate(positions, types, **wanted),
            dtype,
        )
        positions = positions + rng.normal(scale=0.02, size=positions.shape)
        cell = cell * 1.001
    report = json.loads(cuda.report())
    assert report["neighbor_lists_built"] == 1
    assert report["replays"] == 2
    names = [kernel["name"] for kernel in report["kernels"]]
    assert any("conv_table_forward_0" in name for name in names)
    assert not any("radial_forward" in name for name in names)


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_hardly_any_nodes(tmp_path: Path, nodes: int) -> None:
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    at = np.array([[0.0, 0, 0], [100.0, 0, 0]])[:nodes]
    types = np.zeros(nodes, dtype=np.int32)
    for _ in range(2):
        wanted = {"virial": True, "virials": True}
        assert_close(
            cuda.evaluate(at, types, **wanted), cpu.evaluate(at, types, **wanted), "float64"
        )


# -- steps -----------------------------------------------------------------------------------------


def test_replayed_steps_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    _, cuda = both(two_layers("float32").package(), tmp_path / "p.mdcg")
    g = graph(40, box=5.5)
    shifts = np.zeros((len(g["sender"]), 3))
    edges = (g["sender"], g["receiver"], shifts)

    def step(positions: Array, same: bool, **wanted: Any) -> dict[str, Any]:
        found = cuda.evaluate(positions, g["types"], edges=edges, same_edges=same, **wanted)
        assert isinstance(found, dict)
        return found

    moved = g["positions"] + 0.01
    moved[3] += 0.02
    replays = json.loads(cuda.report()).get("replays", 0)
    assert replays == 0
    first = step(g["positions"], False, virial=True)
    assert_equal(step(g["positions"], True, virial=True), first)
    other = step(moved, True, virial=True)
    assert np.abs(other["forces"] - first["forces"]).max() > 1e-3
    assert json.loads(cuda.report())["replays"] == 2
    # steps without forces and steps without virial have their own graphs
    for wanted in ({"forces": False}, {"virial": False}):
        for _ in range(3):
            found = step(g["positions"], True, **wanted)
            assert_equal(found, {name: first[name] for name in found})
    assert json.loads(cuda.report())["replays"] == 6
    assert_equal(step(g["positions"], True, virial=True), first)
    # a new list: everything is made again, including the order of the nodes
    assert_equal(step(g["positions"], False, virial=True), first)
    assert_equal(step(g["positions"], True, virial=True), first)
    assert_equal(step(moved, True, virial=True), other)
    assert json.loads(cuda.report())["replays"] == 10  # the captured graph was updated for the list


@pytest.mark.parametrize(
    ("most", "replayed"),
    [(131072, [1, 3, 5, 7, 9, 11, 12]), (100, [1, 3, 5, 6, 8, 10, 11])],  # no edges: a small one
    ids=["small", "large"],
)
def test_steps_of_other_lists(tmp_path: Path, most: int, replayed: list[int]) -> None:
    """Captured steps are updated for other addresses and sizes, even of no edges."""
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    boxes = [(40, 5.5, 0), (40, 6.5, 3), (41, 5.0, 0), (12, 4.0, 0)]
    systems = [graph(nodes, box=box, seed=seed) for nodes, box, seed in boxes]
    apart = dict(systems[0])
    apart["sender"], apart["receiver"] = (apart[end][:0] for end in ("sender", "receiver"))
    replays = []
    with small_up_to(most):
        for g in (systems[0], systems[0], systems[1], apart, systems[1], systems[2], systems[3]):
            shifts = np.zeros((len(g["sender"]), 3))
            wanted = {"edges": (g["sender"], g["receiver"], shifts), "virial": True}
            for same in (False, True):
                found = cuda.evaluate(g["positions"], g["types"], same_edges=same, **wanted)
                want = cpu.evaluate(g["positions"], g["types"], **wanted)
                assert_close(found, want, "float64")
            replays.append(json.loads(cuda.report())["replays"])
    # the first step of another system runs layer by layer
    assert replays == replayed


def test_types_and_shifts_may_change_with_the_same_edges(tmp_path: Path) -> None:
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(30, box=5.0)
    shifts = np.zeros((len(g["sender"]), 3))
    for same, change in ((False, ""), (True, ""), (True, "types"), (True, "shifts"), (True, "")):
        if change == "types":
            g["types"] = np.ascontiguousarray(g["types"][::-1])
        if change == "shifts":
            shifts = shifts + np.array([0.01, 0.0, -0.02])
        edges = (g["sender"], g["receiver"], shifts)
        found = [
            model.evaluate(g["positions"], g["types"], edges=edges, same_edges=same)
            for model in (cuda, cpu)
        ]
        assert_close(found[0], found[1], "float64")


def test_same_shifts(tmp_path: Path) -> None:
    """With `same_shifts` the engine does not read the shifts of a step."""
    cpu, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(30, box=5.0)
    shifts = np.full((len(g["sender"]), 3), 0.01)
    nowhere = np.full_like(shifts, np.nan)

    def step(model: Any, given: Array, **same: bool) -> dict[str, Any]:
        edges = (g["sender"], g["receiver"], given)
        found = model.evaluate(g["positions"], g["types"], edges=edges, **same)
        assert isinstance(found, dict)
        return found

    want = step(cpu, shifts)
    assert_close(step(cuda, shifts), want, "float64")
    for _ in range(3):
        assert_close(step(cuda, nowhere, same_edges=True, same_shifts=True), want, "float64")
    other = step(cpu, 2 * shifts)
    assert_close(step(cuda, 2 * shifts, same_edges=True), other, "float64")
    # other types: everything is uploaded again
    g["types"] = np.ascontiguousarray(g["types"][::-1])
    want = step(cpu, shifts)
    assert_close(step(cuda, shifts, same_edges=True, same_shifts=True), want, "float64")


def test_times_and_kernels_in_the_report(tmp_path: Path) -> None:
    _, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    assert "not loaded" in cuda.summary()
    run(cuda, graph(20, box=4.5))
    report = json.loads(cuda.report())
    assert report["device"] == "cuda:0"
    assert report["bytes"] > 0
    assert any(layer["backward_ms"] > 0 for layer in report["layers"])
    assert {kernel["origin"] for kernel in report["kernels"]} <= {"cached", "made"}
    assert "cuda:0 (" in cuda.summary()
    assert "kernels: " in cuda.summary()


# -- hosts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "share", "by_rows"),
    [
        (two_layers, 0.5, False),
        (two_layers, 0.5, True),
        (two_layers, 0.0, False),
        (two_layers, 0.0, True),
        (two_readers, 0.5, True),
    ],
)
def test_two_ranks(tmp_path: Path, make: Any, share: float, by_rows: bool) -> None:
    """Two ranks give the results of one, also if the host lists rows to exchange, even twice."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(make().package(), path)
    g = graph(40, box=5.5)
    want = run(cpu, g, virial=True, virials=True)
    ranks = [
        Rank(str(path), local, ghosts, device="cuda", kernels="auto")
        for local, ghosts in parts(g, share)
    ]
    exchange = Exchange(2, len(g["positions"]))
    before: dict[str, Array] = {}
    sent: list[Any] = [None, None]
    for i in range(2) if by_rows else ():
        wanted = np.flatnonzero(np.isin(ranks[i].local, ranks[1 - i].ghosts))
        sent[i] = np.random.default_rng(i).permutation([*wanted, *wanted[::2], -1])

    for _ in range(3):  # layer by layer, captured between exchanges, replayed
        exchange.calls.clear()
        total = evaluate_together(ranks, g, exchange, sent, same_edges=bool(before))
        end = "_rows" if by_rows else ""
        assert exchange.calls == ["forward" + end, "reverse" + end]
        assert_close(total, want, "float64")
        assert_equal(total, before)
        before = total
    for rank in ranks:
        report = rank.report()
        assert report["replays"] == 2
        if by_rows:
            travel = len(rank.sent) + len(rank.ghosts)
            assert report["exchanged_bytes"] == 2 * travel * exchange.row_bytes
        rank.close()


def test_images(tmp_path: Path) -> None:
    """Edges may refer to a table of shifts, which may change while the edges stay."""
    path = tmp_path / "p.mdcg"
    both(two_layers().package(), path)
    g = graph(30, box=5.0)
    rng = np.random.default_rng(4)
    g["image"] = rng.integers(0, 3, len(g["sender"]))
    nodes = np.arange(len(g["positions"]))
    ranks = [
        Rank(str(path), nodes, nodes[:0], device=device, kernels=kernels)
        for device, kernels in (("cpu", "generic"), ("cuda", "auto"))
    ]
    tables = rng.normal(scale=0.05, size=(2, 3, 3))
    tables[:, 0] = 0
    seen = []
    for same, table in ((False, 0), (True, 0), (True, 1), (True, 1), (False, 0), (True, 1)):
        g["image_shifts"] = tables[table]
        want, got = (rank.evaluate(g, None, WANT, same_edges=same) for rank in ranks)
        assert_close(got, want, "float64")
        seen.append(float(want["energy"][0]))
    assert len(set(seen)) == 2
    shifts = tables[1][g["image"]]
    edges = (g["sender"], g["receiver"], shifts)
    model = _core.Model(str(path), kernels="generic")
    whole = model.evaluate(g["positions"], g["types"], edges=edges)
    assert np.isclose(seen[-1], whole["energy"], rtol=1e-13)
    g["image_shifts"] = tables[1][:2]
    for rank in ranks:
        with pytest.raises(RuntimeError, match=r"image.\d+. is 2, expected 0 <= image < 2"):
            rank.evaluate(g, None, WANT, same_edges=True)
    g["image_shifts"] = tables[1]
    g["image"][5] = 3
    for rank in ranks:
        with pytest.raises(RuntimeError, match=r"image.5. is 3, expected 0 <= image < 3"):
            rank.evaluate(g, None, WANT)
        rank.close()


def test_sent_nodes_must_be_local(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    both(two_layers().package(), path)
    g = graph(30, box=5.0)
    local, ghosts = parts(g, 0.5)[0]
    rank = Rank(str(path), local, ghosts, device="cuda", kernels="auto")
    with pytest.raises(RuntimeError, match=f"sent.1. of the communicator is {len(local)}, expec"):
        rank.evaluate(g, Exchange(1, 30), WANT, sent=np.array([0, len(local)]))
    rank.close()


def test_two_models_at_a_time(tmp_path: Path, devices: tuple[int, int]) -> None:
    """Two threads can evaluate models at once, on one device or on two."""
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    systems = [graph(24, box=4.5, seed=seed) for seed in (0, 1)]
    models = [_core.Model(str(path), device=f"cuda:{device}") for device in devices]
    want = [run(_core.Model(str(path), kernels="generic"), g) for g in systems]
    got: list[list[Any]] = [[], []]

    def work(k: int) -> None:
        for _ in range(4):
            got[k].append(run(models[k], systems[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, device in enumerate(devices):
        assert json.loads(models[k].report())["device"] == f"cuda:{device}"
        assert len(got[k]) == 4
        for each in got[k]:
            assert_close(each, want[k], "float64")
            assert_equal(each, got[k][0])


def test_calculator(tmp_path: Path) -> None:
    path = saved(two_layers().package(**NAMES), tmp_path / "p.mdcg")
    atoms = molecule("CH3CH2OH")
    found = []
    for device in ("cpu", "cuda", "cuda:0"):
        atoms.calc = MDCGCalculator(path, device=device)
        found.append(atoms.get_forces())
        assert device in repr(atoms.calc)
    np.testing.assert_allclose(found[1], found[0], atol=1e-11 * np.abs(found[0]).max())
    assert np.array_equal(found[1], found[2])


# -- errors ----------------------------------------------------------------------------------------


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    path = saved(two_layers().package(**NAMES), tmp_path / "p.mdcg")
    with pytest.raises(DeviceError, match="device is 'cuda:99', and there"):
        MDCGCalculator(path, device="cuda:99")
    with pytest.raises(UnsupportedProblemError, match="kernels is 'generic'"):
        MDCGCalculator(path, device="cuda", kernels="generic")
    model = ctypes.c_void_p()
    rank = Rank.__new__(Rank)
    rank.lib = library()
    with pytest.raises(RuntimeError, match="device is 'cuda:', expected 'cpu', 'cuda', 'cuda:N'"):
        rank.open(str(path), model, device="cuda:", kernels="auto")


def test_wrong_geometries_leave_the_model_usable(tmp_path: Path) -> None:
    _, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(20, box=4.5)
    want = run(cuda, g)
    for value, sentence in ((np.nan, "is nan, expected finite numbers"), (0.0, "the same place")):
        wrong = {**g, "positions": g["positions"].copy()}
        wrong["positions"][0] = wrong["positions"][1] + value
        wrong["sender"] = np.append(g["sender"], np.int32(0))
        wrong["receiver"] = np.append(g["receiver"], np.int32(1))
        with pytest.raises(_core.EngineError, match=sentence):
            run(cuda, wrong)
        assert_equal(run(cuda, g), want)


def test_no_nvrtc(tmp_path: Path) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
import os, numpy as np
from mdcg import _core
model = _core.Model({str(path)!r}, device="cuda")
good = os.environ.pop("MDCG_NVRTC_LIB", "")
os.environ["MDCG_NVRTC_LIB"] = "/nonexistent/libnvrtc.so"
for _ in range(2):
    try:
        model.prepare()
        model.evaluate(np.zeros((1, 3)), np.zeros(1))
    except _core.EngineError as error:
        print(error.kind, error)
cpu = _core.Model({str(path)!r}, kernels="generic")
energy = cpu.evaluate(np.zeros((1, 3)), np.zeros(1))["energy"]
print(energy != 0)
os.environ["MDCG_NVRTC_LIB"] = good
if not good:
    del os.environ["MDCG_NVRTC_LIB"]
try:
    print(abs(model.evaluate(np.zeros((1, 3)), np.zeros(1))["energy"] - energy) < 1e-10)
except _core.EngineError as error:
    print(error)
"""
    said = printed_by(code, MDCG_CACHE_DIR=str(tmp_path / "empty")).splitlines()
    for line in said[:2]:
        assert line.startswith("4 the NVRTC library named by MDCG_NVRTC_LIB cannot be used")
    assert said[2:] == ["True", "True"]  # the model works again after the repair
    said = printed_by(
        code, MDCG_CACHE_DIR=str(tmp_path / "other"), MDCG_DISABLE_JIT="1"
    ).splitlines()
    assert "MDCG_DISABLE_JIT=1 forbids compiling them" in said[0]


def test_no_jit_in_the_calculator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(two_layers().package(**NAMES), tmp_path / "p.mdcg")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    calc = MDCGCalculator(path, device="cuda")
    with pytest.raises(KernelCompileError, match="MDCG_DISABLE_JIT=1"):
        calc.get_potential_energy(molecule("H2O"))


def test_forked_processes_are_told(tmp_path: Path) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
import os, numpy as np
from mdcg import _core
model = _core.Model({str(path)!r}, device="cuda")
where, types = np.zeros((1, 3)), np.zeros(1)
model.evaluate(where, types)
read, write = os.pipe()
if os.fork() == 0:
    try:
        model.evaluate(where, types)
    except _core.EngineError as error:
        os.write(write, str(error).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""
    assert "which a forked process cannot use" in printed_by(code)
