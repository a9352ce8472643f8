"""``mdcg selftest --device``: whether the engine is right on a device, and how long it takes.

Networks with random weights stand for MACE and NequIP, so no model is needed, and no torch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import OutputError, format_table
from .selftest_networks import NETWORKS

if TYPE_CHECKING:
    from ase import Atoms

# Largest deviations of both precisions from the CPU in float64: of the energy of an atom in eV, of
# forces relative to their root mean square, and of the stress relative to its largest component.
LIMITS = {"float64": 1e-7, "float32": 1e-4}
# Numbers of atoms of the comparison, and of the timings.
ATOMS = 24
TIMED_ATOMS = (192, 5184)
#: Channels of the networks that are compared, and of those that are timed.
CHANNELS, TIMED_CHANNELS = 32, 128
_REPEATS = 20


def test_device(device: str, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Compare and time the engine on a device such as ``"hip"`` or ``"cuda:1"``.

    An error of one case is part of the result, and the others run. The result has ``passed``, the
    lists ``cases`` and ``times``, and what ``mdcg env`` tells; or ``error``, why the device cannot
    be used. `save` is called with what there is before each case, which ``running`` names, because
    a fault of the device may end the process.
    """
    from .env import collect

    cases: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    results: dict[str, Any] = {"passed": False, "device": device, "cases": cases, "times": times}

    def begin(what: str) -> None:
        with suppress(OutputError):  # the results are not lost: the caller prints them
            save(results | {"running": what})

    begin("mdcg env")
    results["environment"] = collect()
    begin("the search for the device")
    try:
        results |= _found(device)
    except RuntimeError as error:
        return results | {"error": f"{type(error).__name__}: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            for dtype in LIMITS:
                facts = {"case": name, "device": device, "dtype": dtype}
                begin(f"{name}, {dtype}")
                cases.append({**facts, **_tried(_compare, name, dtype, device, Path(folder))})
        for name in NETWORKS:
            for atoms in TIMED_ATOMS:
                timed: dict[str, Any] = {"model": name, "atoms": atoms, "dtype": "float32"}
                begin(f"{name}, {atoms} atoms, timed")
                times.append({**timed, **_tried(_time, name, atoms, device, Path(folder))})
    return results | {"passed": all(each["passed"] for each in cases + times)}


def _found(device: str) -> dict[str, str]:
    """Return target and name of a device; RuntimeError: it cannot be used."""
    from .. import _core
    from ..calculators.package_backend import engine_errors

    with engine_errors():
        number = _core.parse_device(device)
    if number < 0:
        return {}
    return {"target": _core.device_target(number), "name": _core.device_name(number)}


def _tried(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        found = function(*arguments)
    except Exception as error:  # goes into the report
        found = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    return {**found, "seconds": round(time.perf_counter() - started, 2)}


def _water(atoms: int) -> Atoms:
    from ..bench.systems import make_system

    return make_system("water", atoms)


def _compare(name: str, dtype: str, device: str, folder: Path) -> dict[str, Any]:
    from ..bench.model import EngineStep, Settings

    atoms = _water(ATOMS)
    exact = NETWORKS[name]("float64", CHANNELS, folder / "exact.mdcg")
    want = EngineStep(exact, Settings(stress=True), atoms)()
    path = NETWORKS[name](dtype, CHANNELS, folder / "model.mdcg")
    step = EngineStep(path, Settings(device=device, stress=True), atoms)
    # layer by layer, then the captured step
    runs = [step() for _ in range(3)]
    scale = float(np.sqrt(np.mean(np.square(want["forces"]))))
    pressure = float(np.abs(want["stress"]).max())
    errors = {
        "energy": max(abs(found["energy"] - want["energy"]) for found in runs) / len(atoms),
        "forces": max(float(np.abs(found["forces"] - want["forces"]).max()) for found in runs)
        / scale,
        "stress": max(float(np.abs(found["stress"] - want["stress"]).max()) for found in runs)
        / pressure,
    }
    same = all(np.array_equal(found["forces"], runs[0]["forces"]) for found in runs)
    limit = LIMITS[dtype]
    right = bool(same and max(errors.values()) <= limit)
    return {**errors, "repeats are equal": same, "limit": limit, "passed": right}


def _time(name: str, atoms: int, device: str, folder: Path) -> dict[str, Any]:
    from ..bench.model import EngineStep, Settings

    path = NETWORKS[name]("float32", TIMED_CHANNELS, folder / "timed.mdcg")
    step = EngineStep(path, Settings(device=device), _water(atoms))
    for _ in range(3):
        step()
    taken = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        step()
        taken.append(1e3 * (time.perf_counter() - started))
    return {
        "ms": round(float(np.median(taken)), 4),
        "fastest ms": round(min(taken), 4),
        "bytes": step.own_bytes,
        "passed": True,
    }


def show(results: dict[str, Any]) -> str:
    """Return tables and the verdict."""
    if "error" in results:
        return f"{results['device']}: {results['error']}\nselftest: FAIL"
    labels = ("energy", "forces", "stress")
    rows = [
        (
            *(case["case"], case["device"], case["dtype"]),
            *(f"{case[label]:.0e}" if label in case else "-" for label in labels),
            f"{case['seconds']:.1f}",
            case.get("error") or ("ok" if case["passed"] else "FAIL"),
        )
        for case in results["cases"]
    ]
    columns = ("network", "device", "dtype", *labels, "s", "")
    compared = format_table(columns, rows, right=(3, 4, 5, 6))
    timed = format_table(
        ("network", "atoms", "ms per step", ""),
        [
            (each["model"], str(each["atoms"]), str(each.get("ms", "-")), each.get("error", ""))
            for each in results["times"]
        ],
        right=(1, 2),
    )
    about = ", ".join(str(results[key]) for key in ("device", "target", "name") if key in results)
    verdict = "PASS" if results["passed"] else "FAIL"
    return f"{about}\n{compared}\n\n{timed}\nselftest: {verdict}"
