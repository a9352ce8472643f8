"""Comparisons of small packages on the CPU and on a CUDA device, for several files of cases."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mdcg import _core
from mdcg.package import Package
from mdcg.package.cuda_kernels import cuda_passes

from . import reference
from .test_conv_layer import R_MAX, System, system


def passes(path: str) -> set[str]:
    """Return the passes of a package that have generated kernels for devices."""
    package = Package.open(path)
    found, _ = cuda_passes(package.layers, package.tensors)
    return {kernel["pass"] for kernel in found}


class Reference:
    """The network in torch, in place of the CPU engine, whose tables differ from the GPU's."""

    def __init__(self, path: str) -> None:
        self.package = Package.open(path)

    def evaluate(self, positions: Any, types: Any, edges: Any, virial: bool) -> dict[str, Any]:
        found = reference.evaluate(self.package, positions, types, *edges)
        return {
            "energy": found.energy,
            "energies": found.energies.numpy(),
            "forces": found.forces.numpy(),
            "virial": found.virial.numpy(),
        }


def open_both(path: str) -> tuple[Any, Any]:
    """Return a package on the CPU (or the reference, if it has tables), and on the device."""
    tables = any(
        layer.get("radial") and layer["radial"].get("table") is not None
        for layer in Package.open(path).manifest["layers"]
    )
    cpu = Reference(path) if tables else _core.Model(path, kernels="generic")
    return cpu, _core.Model(path, device="cuda")


def evaluate(model: Any, s: System) -> dict[str, Any]:
    found: dict[str, Any] = model.evaluate(s.positions, s.types, edges=s.edges, virial=True)
    return found


def compare_models(cpu: Any, cuda: Any, s: System, limit: float) -> list[dict[str, Any]]:
    """Evaluate layer by layer, captured and replayed; check that all three are equal."""
    want = evaluate(cpu, s)
    got = [evaluate(cuda, s) for _ in range(3)]
    for name, value in want.items():
        # terms of an energy may nearly cancel
        size = np.abs(want["energies"]).sum() if name == "energy" else np.abs(value).max()
        scale = max(1e-3, float(size))
        for found in got:
            got_value = np.asarray(found[name])
            if name == "virial" and isinstance(cpu, Reference):
                got_value = 0.5 * (got_value + got_value.T)
            error = float(np.abs(got_value - value).max()) / scale
            assert error < limit, f"{name}: relative error {error:.1e}"
            assert np.array_equal(found[name], got[0][name])
    return got


#: Lengths of an edge as parts of the cutoff, by precision.
SHORT_EDGES = (
    ("float64", 1 / 20),
    ("float64", 1 / 300),
    ("float32", 1 / 70),
    ("float32", 1 / 300),
)


def check_short_edges(cpu: Any, cuda: Any, part: float, nodes: int = 6, edges: int = 40) -> None:
    """Check that a short edge needs no other kind of step: tables contain all lengths."""
    s = system(nodes, edges, seed=5)
    first = evaluate(cuda, s)
    moved = System(s.positions, s.types, s.sender, s.receiver, s.shifts.copy())
    moved.shifts[7] = part * R_MAX * np.sqrt(1 / 3) * np.array([1.0, 1.0, -1.0]) - (
        s.positions[s.receiver[7]] - s.positions[s.sender[7]]
    )
    want = evaluate(cpu, moved)
    # tables differ between float32 and float64
    limit = 1e-11 if cuda.dtype == "float64" else 5e-6
    for _ in range(3):
        found = evaluate(cuda, moved)
        assert abs(found["energy"] - want["energy"]) < limit * abs(want["energy"])
        error = np.abs(found["forces"] - want["forces"]).max()
        assert error < limit * np.abs(want["forces"]).max()
    for _ in range(2):
        assert np.array_equal(evaluate(cuda, s)["forces"], first["forces"])
    kernels = [kernel["name"] for kernel in json.loads(cuda.report())["kernels"]]
    assert not any("radial_forward" in name for name in kernels)
