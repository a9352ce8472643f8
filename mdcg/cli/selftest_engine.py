"""The part of ``mdcg selftest`` that needs neither torch nor a compiler: the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__, _core
from ..calculators.package_backend import engine_errors
from ..errors import KernelCompileError
from ..problem import ConvProblem, Irreps, SymmetricContractionProblem
from ..runtime.compiler import find_compiler
from ..runtime.nvrtc import find_nvrtc

Array = NDArray[np.float64]

# Differences of energies have an error of 2e-10 of the largest force.
LIMITS = {"float64": 1e-8, "float32": 2e-5}
_ATOMS, _TYPES, _CUTOFF, _SEED = 12, 2, 4.0, 11
_STEP = 1e-3  # Å


def compare(contraction: SymmetricContractionProblem) -> list[dict[str, Any]]:
    """Evaluate a small random model, with each kind of kernels that this machine has.

    The model is two convolutions and the contraction. In float64 ``forward`` is how much the energy
    changes when the atoms are rotated, and ``backward`` how much the forces differ from differences
    of energies. In float32 both are compared with float64. All are relative to the largest value.
    """
    cases = []
    with TemporaryDirectory() as folder:
        files = {
            dtype: _write(Path(folder) / f"{dtype}.mdcg", dtype, contraction) for dtype in LIMITS
        }
        for device, kernels, reason in _choices():
            for dtype, limit in LIMITS.items():
                started = time.perf_counter()
                result: dict[str, Any] = {"skipped": reason, "passed": True}
                if reason is None:
                    errors = _errors(files, dtype, device, kernels)
                    result = {**errors, "passed": max(errors.values()) <= limit}
                seconds = round(time.perf_counter() - started, 2)
                facts = {"case": f"engine, {kernels} kernels", "device": device, "dtype": dtype}
                cases.append({**facts, **result, "limit": limit, "seconds": seconds})
    return cases


def _choices() -> list[tuple[str, str, str | None]]:
    """Return devices, kinds of kernels, and why they cannot be made."""
    choices = [("cpu", "generic", None), ("cpu", "generated", _refusal(find_compiler))]
    try:
        _core.cuda_compute_capability(0)
    except RuntimeError:
        return choices
    return [*choices, ("cuda", "generated", _refusal(find_nvrtc))]


def _refusal(find: Callable[[], object]) -> str | None:
    try:
        find()
    except KernelCompileError as error:
        return str(error)
    return None


def _errors(files: dict[str, str], dtype: str, device: str, kernels: str) -> dict[str, float]:
    rng = np.random.default_rng(_SEED)
    grid = np.stack(np.meshgrid(*3 * [np.arange(3.0)]), -1).reshape(-1, 3)[:_ATOMS]
    positions = 1.7 * grid + rng.uniform(-0.2, 0.2, grid.shape)
    types = (np.arange(_ATOMS) % _TYPES).astype(np.int32)

    def evaluate(model: _core.Model, at: Array) -> tuple[float, Array]:
        with engine_errors():
            found = model.evaluate(at, types)
        return float(found["energy"]), np.asarray(found["forces"], dtype=np.float64)

    model = _core.Model(files[dtype], device=device, kernels=kernels)
    energy, forces = evaluate(model, positions)
    if dtype == "float64":
        rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        exact = evaluate(model, positions @ rotation)[0]
        slopes = np.zeros_like(forces)
        for index in np.ndindex(*forces.shape):
            for steps, weight in ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12)):
                moved = positions.copy()
                moved[index] += steps * _STEP
                slopes[index] -= weight * evaluate(model, moved)[0] / _STEP
    else:
        exact, slopes = evaluate(_core.Model(files["float64"], kernels="generic"), positions)
    return {
        "forward": abs(energy - exact) / abs(exact),
        "backward": float(np.abs(forces - slopes).max() / np.abs(slopes).max()),
    }


def _write(path: Path, dtype: str, contraction: SymmetricContractionProblem) -> str:
    """Write a model of random numbers, which are the same for both precisions."""
    from ..package import Package
    from ..package.builder import Builder, Radial, RadialLayer
    from ..package.linear_map import LinearMap

    rng = np.random.default_rng(_SEED)
    builder = Builder(_TYPES, dtype)
    channels = contraction.channels

    def radial(outputs: int) -> Radial:
        basis = {"kind": "bessel", "weights": np.pi * np.arange(1, 7) / _CUTOFF, "prefactor": 0.7}
        hidden = RadialLayer(rng.normal(size=(6, 16)) / 2, activation="silu", factor=1.7)
        last = RadialLayer(rng.normal(size=(16, outputs)) / 4)
        return Radial(_CUTOFF, basis, 6.0, (hidden, last))

    def mixed(blocks: Irreps, out: str) -> LinearMap:
        wanted = Irreps.parse(out)
        weights = {
            (i, o): rng.normal(size=(block.mul, each.mul)) / np.sqrt(block.mul)
            for o, each in enumerate(wanted)
            for i, block in enumerate(blocks)
            if block.ir == each.ir
        }
        return LinearMap(blocks, wanted, weights)

    pair = f"{channels}x0e+{channels}x1o"
    first = ConvProblem.build(f"{channels}x0e", "0e+1o", pair, [(0, 0, 0), (0, 1, 1)])
    second = ConvProblem.build(
        pair, "0e+1o+2e", f"{pair}+{channels}x1o", [(0, 0, 0), (1, 0, 1), (1, 2, 2)]
    )
    x = builder.table(f"{channels}x0e", rng.normal(size=(_TYPES, channels)))
    for number, problem in enumerate((first, second)):
        x = builder.conv(x, problem, radial(problem.weight_numel), f"conv{number}")
        x = builder.linear(x, mixed(x.irreps, pair), f"linear{number}")
        size = (_TYPES, contraction.num_coefficients, channels)
        x = builder.contraction(x, contraction, rng.normal(size=size), f"contraction{number}")
    x = builder.linear(x, mixed(x.irreps, "1x0e"), "readout")
    builder.energy(x, np.array([0.3]), np.zeros(1), "energy")
    program, tensors = builder.finish()
    manifest = {
        "mdcg_version": __version__,
        "architecture": "mace",
        "model_class": "selftest",
        "type_names": ["H", "O"],
        "atomic_numbers": [1, 8],
        "r_max": _CUTOFF,
        "dtype": dtype,
        "energy_unit": "eV",
        "length_unit": "angstrom",
        "head": None,
        "edge_vector": "receiver_minus_sender",
        "source": {"name": "selftest", "sha256": ""},
        "verification": None,
        "options": {},
    }
    Package(manifest | program, tensors).save(path)
    return str(path)
