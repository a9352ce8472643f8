"""The part of ``mdcg selftest`` that needs neither torch nor a compiler: the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..calculators.package_backend import engine_errors
from ..errors import KernelCompileError
from ..runtime.compiler import find_compiler
from ..runtime.nvrtc import find_nvrtc
from .selftest_networks import NETWORKS

Array = NDArray[np.float64]

# Differences of energies have an error of 2e-10 of the largest force.
LIMITS = {"float64": 1e-8, "float32": 2e-5}
_ATOMS, _CHANNELS, _SEED = 12, 4, 11
_STEP = 1e-3  # Å


def compare() -> list[dict[str, Any]]:
    """Evaluate a small random model of MACE, with each kind of kernels that this machine has.

    In float64 ``forward`` is how much the energy changes when the atoms are rotated, and
    ``backward`` how much the forces differ from differences of energies. In float32 both are
    compared with float64. All are relative to the largest value.
    """
    cases = []
    with TemporaryDirectory() as folder:
        files = {
            dtype: str(NETWORKS["MACE"](dtype, _CHANNELS, Path(folder) / f"{dtype}.mdcg"))
            for dtype in LIMITS
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
    types = (np.arange(_ATOMS) % 2).astype(np.int32)

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
