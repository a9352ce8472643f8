"""``mdcg selftest --device``: whether the engine is right on a device, and how long it takes.

Networks with random weights stand for MACE and NequIP, so no model is needed, and no torch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..errors import format_table

if TYPE_CHECKING:
    from ase import Atoms

    from ..package.builder import Builder, Features

# Largest deviations from the CPU in float64: of the energy of an atom in eV, and of forces relative
# to their root mean square.
LIMITS = {"float64": 1e-7, "float32": 1e-4}
# Numbers of atoms of the comparison, and of the timings.
ATOMS = 24
TIMED_ATOMS = (192, 5184)
#: Channels of the networks that are compared, and of those that are timed.
CHANNELS, TIMED_CHANNELS = 32, 128
_R_MAX = 4.5
_REPEATS = 20


class _Network:
    """Writes the layers of a network with random weights."""

    def __init__(self, dtype: str) -> None:
        from ..package.builder import Builder

        self.rng = np.random.default_rng(11)
        self.builder: Builder = Builder(2, dtype)
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def conv(self, x: Features, parities: str, lmax: int) -> Features:
        """Convolve with harmonics up to a degree; keep results of all parities or of some."""
        from ..package.builder import Radial, RadialLayer
        from ..problem import ConvProblem, Irreps

        outputs: list[tuple[int, int, int]] = []
        paths: list[tuple[int, int, int]] = []
        for i, block in enumerate(x.irreps):
            for degree in range(lmax + 1):
                for result in range(abs(block.ir.l - degree), min(block.ir.l + degree, lmax) + 1):
                    parity = block.ir.p * (-1) ** degree
                    if parities == "natural" and parity != (-1) ** result:
                        continue
                    paths.append((i, degree, len(outputs)))
                    outputs.append((block.mul, result, parity))
        attributes = "+".join(f"1x{degree}{'eo'[degree % 2]}" for degree in range(lmax + 1))
        problem = ConvProblem.build(
            str(x.irreps), attributes, str(Irreps.from_pairs(outputs)), paths, layout="ir_mul"
        )
        sizes = (8, 24, problem.weight_numel)
        layers = tuple(
            RadialLayer(
                self.rng.normal(size=(a, b)) / np.sqrt(a),
                activation="silu" if b != sizes[-1] else "none",
            )
            for a, b in pairwise(sizes)
        )
        basis = {
            "kind": "bessel",
            "argument": "normalized",
            "weights": np.pi * np.arange(1, 9),
            "prefactor": 0.5,
        }
        return self.builder.conv(x, problem, Radial(_R_MAX, basis, 6.0, layers), self.name("conv"))

    def linear(self, x: Features, irreps: str) -> Features:
        from ..package.linear_map import LinearMap
        from ..problem import Irreps

        out = Irreps.parse(irreps)
        blocks = list(x.irreps)
        weights = {
            (i, o): self.rng.normal(size=(a.mul, b.mul))
            / np.sqrt(a.mul * sum(c.ir == b.ir for c in blocks))
            / 3
            for i, a in enumerate(blocks)
            for o, b in enumerate(out)
            if a.ir == b.ir
        }
        return self.builder.linear(x, LinearMap(x.irreps, out, weights), self.name("linear"))

    def contraction(self, x: Features, channels: int) -> Features:
        """Multiply scalars and vectors of each channel, up to three at a time."""
        from ..problem import Polynomial, SymmetricContractionProblem

        squares = tuple((1.0 if i == 0 else 0.5, (i, i)) for i in range(4))
        cubes = tuple(tuple((0.3, tuple(sorted((i, k, k)))) for k in (1, 2, 3)) for i in (1, 2, 3))
        polynomials = [
            Polynomial(0, (((1.0, (0,)),),)),
            Polynomial(0, (squares,)),
            Polynomial(1, tuple(((1.0, (i,)),) for i in (1, 2, 3))),
            Polynomial(1, cubes),
        ]
        irreps = f"{channels}x0e+{channels}x1o"
        problem = SymmetricContractionProblem.build(irreps, irreps, polynomials)
        size = (2, problem.num_coefficients, channels)
        coefficients = self.rng.normal(size=size) / 2
        return self.builder.contraction(x, problem, coefficients, self.name("contraction"))

    def write(self, x: Features, path: Path) -> Path:
        from ..package import Package

        energy = self.linear(x, "1x0e")
        self.builder.energy(energy, np.array([0.5]), np.array([-1.0, -3.0]), "energy")
        program, tensors = self.builder.finish()
        manifest = {
            "format": 3,
            "mdcg_version": __version__,
            "architecture": "mace",
            "model_class": "selftest",
            "type_names": ["H", "O"],
            "atomic_numbers": [1, 8],
            "r_max": _R_MAX,
            "dtype": self.builder.dtype,
            "energy_unit": "eV",
            "length_unit": "angstrom",
            "head": None,
            "edge_vector": "receiver_minus_sender",
            "source": None,
            "verification": None,
            "options": {},
            **program,
        }
        Package(manifest, tensors).save(path)
        return path


def _mace(dtype: str, channels: int, path: Path) -> Path:
    net = _Network(dtype)
    x = net.builder.table(f"{channels}x0e", net.rng.normal(size=(2, channels)))
    irreps = f"{channels}x0e+{channels}x1o"
    for _ in range(2):
        x = net.linear(net.conv(x, "natural", 2), irreps)
        x = net.contraction(x, channels)
    return net.write(x, path)


def _nequip(dtype: str, channels: int, path: Path) -> Path:
    net = _Network(dtype)
    x = net.builder.table(f"{channels}x0e", net.rng.normal(size=(2, channels)))
    both = f"{channels}x0e+{channels}x0o+{channels}x1o+{channels}x1e"
    for irreps in (f"{channels}x0e+{channels}x1o", both):
        x = net.linear(net.conv(x, "all", 1), irreps)
    return net.write(x, path)


NETWORKS: dict[str, Callable[[str, int, Path], Path]] = {"MACE": _mace, "NequIP": _nequip}


def test_device(device: str) -> dict[str, Any]:
    """Compare and time the engine on a device such as ``"hip"`` or ``"cuda:1"``.

    An error of one case is part of the result, and the others run. The result has ``passed``, the
    lists ``cases`` and ``times``, and what ``mdcg env`` tells.
    """
    from .. import _core
    from ..calculators.package_backend import engine_errors
    from .env import collect

    with engine_errors():
        number = _core.parse_device(device)
    about = {"device": device}
    if number >= 0:
        about |= {"target": _core.device_target(number), "name": _core.cuda_device_name(number)}
    cases, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            for dtype in LIMITS:
                facts = {"case": name, "device": device, "dtype": dtype}
                cases.append({**facts, **_tried(_compare, name, dtype, device, Path(folder))})
        for name in NETWORKS:
            for atoms in TIMED_ATOMS:
                timed: dict[str, Any] = {"model": name, "atoms": atoms, "dtype": "float32"}
                times.append({**timed, **_tried(_time, name, atoms, device, Path(folder))})
    passed = all(each["passed"] for each in cases + times)
    return {"passed": passed, **about, "cases": cases, "times": times, "environment": collect()}


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
