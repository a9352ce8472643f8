"""Small programs around single layers, evaluated by the engine and by the reference."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core
from mdcg.errors import PackageError
from mdcg.package import Package
from mdcg.package.builder import Builder, Features, Radial, RadialLayer
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from ..core.helpers import e3nn_o3

e3nn_o3()  # imports e3nn as it must be imported
from .reference import evaluate  # noqa: E402

Array = NDArray[Any]
R_MAX = 3.0
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


class Program(Builder):
    """A builder with random weights and a source of features that move with the positions.

    In float64 radial networks are no tables, so that results can be compared to rounding.
    """

    def __init__(self, types: int = 3, dtype: str = "float64", seed: int = 0) -> None:
        super().__init__(types, dtype, exact=dtype == "float64")
        self.rng = np.random.default_rng(seed)

    def random(self, *shape: int) -> Array:
        return self.rng.normal(size=shape)

    def network(self, outputs: int) -> Radial:
        layers = (
            RadialLayer(self.random(4, 8), activation="silu", factor=1.5),
            RadialLayer(self.random(8, outputs) / 3.0),
        )
        basis = {"kind": "bessel", "weights": np.arange(1, 5) * np.pi / R_MAX, "prefactor": 0.8}
        return Radial(R_MAX, basis, 5.0, layers)

    def features(self, channels: int = 7, l_max: int = 2, name: str = "source") -> Features:
        """Return `channels` of every degree up to `l_max`, from a convolution of types."""
        sh = "+".join(f"1x{l}{'eo'[l % 2]}" for l in range(l_max + 1))
        out = "+".join(f"{channels}x{l}{'eo'[l % 2]}" for l in range(l_max + 1))
        paths = [(0, l, l, "uvu", True) for l in range(l_max + 1)]
        problem = ConvProblem.build(f"{channels}x0e", sh, out, paths)
        x = self.table(f"{channels}x0e", self.random(self.n_types, channels))
        return self.conv(x, problem, self.network(problem.weight_numel), name)

    def readout(self, x: Features, name: str = "readout") -> None:
        """Add an energy that reads all blocks of x: scalars linearly, others by their norms."""
        scalars = [i for i, block in enumerate(x.irreps) if block.ir.l == 0]
        assert scalars, "give the layer a block of scalars"
        weights = {(i, 0): self.random(x.irreps[i].mul, 1) for i in scalars if x.irreps[i].ir.p > 0}
        linear = LinearMap(x.irreps, Irreps.parse("1x0e"), weights)
        energy = self.linear(x, linear, name)
        types = self.n_types
        self.energy(energy, self.random(types), self.random(types), f"{name}_energy")

    def package(self, **manifest: Any) -> Package:
        program, tensors = self.finish()
        names = [f"A{i}" for i in range(self.n_types)]
        return Package(
            {
                "mdcg_version": "0",
                "architecture": "mace",
                "model_class": "test",
                "type_names": names,
                "atomic_numbers": None,
                "r_max": R_MAX,
                "dtype": self.dtype,
                "energy_unit": "eV",
                "length_unit": "angstrom",
                "head": None,
                "edge_vector": "receiver_minus_sender",
                "source": None,
                "verification": None,
                "options": {},
                **program,
                **manifest,
            },
            tensors,
        )


def graph(nodes: int = 41, types: int = 3, box: float = 6.0, seed: int = 0) -> dict[str, Array]:
    """Return a random open cluster with all edges below 1.2 cutoffs, some of them one-sided."""
    rng = np.random.default_rng(seed)
    positions: list[Array] = []
    while len(positions) < nodes:
        new = rng.uniform(0, box, 3)
        if all(np.linalg.norm(new - old) > 0.7 for old in positions):
            positions.append(new)
    at = np.array(positions).reshape(-1, 3)
    length = np.linalg.norm(at[:, None] - at[None], axis=-1)
    receiver, sender = np.nonzero((length < 1.2 * R_MAX) & (length > 0))
    keep = rng.uniform(size=len(sender)) < 0.95
    order = rng.permutation(np.flatnonzero(keep))
    return {
        "positions": at,
        "types": rng.integers(types, size=nodes).astype(np.int32),
        "sender": sender[order].astype(np.int32),
        "receiver": receiver[order].astype(np.int32),
    }


def run(model: Any, g: dict[str, Array], **wanted: Any) -> dict[str, Any]:
    shifts = g.get("shifts", np.zeros((len(g["sender"]), 3)))
    return model.evaluate(
        g["positions"], g["types"], edges=(g["sender"], g["receiver"], shifts), **wanted
    )


def open_model(package: Package, path: Path, **options: Any) -> Any:
    """Save and open a package; on CPUs with generic kernels, unless others are named."""
    package.save(path)
    if options.get("device", "cpu") == "cpu":
        options.setdefault("kernels", "generic")
    return _core.Model(str(path), **options)


def refused(path: Path, message: str = ".", kind: int = 2) -> None:
    """See that both readers refuse a file with one sentence."""
    for reader in (
        lambda: _core.Model(str(path), kernels="generic"),
        lambda: Package.open(path),
    ):
        with pytest.raises((_core.EngineError, PackageError), match=message) as error:
            reader()
        assert path.name in str(error.value)
        assert "\n" not in str(error.value)
        assert getattr(error.value, "kind", kind) == kind


def evaluate_both(
    package: Package, positions: Any, types: Any, sender: Any, receiver: Any, shifts: Any
) -> Any:
    """Return the reference's results for a package."""
    want = evaluate(package, positions, types, sender, receiver, shifts)
    with TemporaryDirectory() as folder:
        model = open_model(package, Path(folder) / "p.mdcg")
    edges = (np.asarray(sender, np.int32), np.asarray(receiver, np.int32), shifts)
    got = model.evaluate(positions, np.asarray(types, np.int32), edges=edges)
    limit = 1e-5 if package.dtype == "float32" else 1e-10
    for name, value in (("energies", want.energies), ("forces", want.forces)):
        scale = max(1.0, float(value.abs().max()))
        error = float(np.abs(got[name] - value.numpy()).max()) / scale
        assert error < limit, f"{name} of the engine: relative error {error:.1e}"
    return want


def check(
    program: Program,
    path: Path,
    g: dict[str, Array],
    kernels: tuple[str, ...] = ("generic",),
    **manifest: Any,
) -> dict[str, Any]:
    """Compare energies, forces and virial of the engine with the reference; return the engine's."""
    package = program.package(**manifest)
    want = evaluate(package, g["positions"], g["types"], g["sender"], g["receiver"])
    limit = TOLERANCE[program.dtype]

    def close(a: Array, b: Array, name: str) -> None:
        scale = max(1e-3, float(np.abs(b).max(initial=0.0)))
        error = float(np.abs(a - b).max(initial=0.0)) / scale
        assert error < limit, f"{name}: relative error {error:.1e}"

    for each in kernels:
        model = open_model(package, path, kernels=each)
        got = run(model, g, virial=True, virials=True)
        close(got["energies"], want.energies.detach().numpy(), "energies")
        assert np.isclose(got["energy"], got["energies"].sum(), rtol=1e-13)
        assert np.abs(want.forces.numpy()).max(initial=0.0) > 1e-3 or not len(g["sender"])
        close(got["forces"], want.forces.numpy(), "forces")
        close(got["virial"], want.virial.numpy(), "virial")
        close(got["virials"].sum(axis=0), got["virial"], "virials")
        energy_only = run(model, g, forces=False)
        assert np.array_equal(energy_only["energies"], got["energies"])
    return got
