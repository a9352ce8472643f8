"""Layers on edges inside whole small models, against plain torch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core
from mdcg.package import Package
from mdcg.problem import ConvProblem, Irreps

from . import reference
from .small_package import SmallPackage

Array = NDArray[np.float64]
R_MAX = 4.0


@dataclass
class System:
    """A graph; `shifts` make it asymmetric where they are drawn at random."""

    positions: Array
    types: NDArray[np.int32]
    sender: NDArray[np.int32]
    receiver: NDArray[np.int32]
    shifts: Array

    @property
    def edges(self) -> tuple[Any, Any, Any]:
        return self.sender, self.receiver, self.shifts


def system(nodes: int, edges: int, seed: int = 0, n_types: int = 2) -> System:
    """Return a random graph: asymmetric, with isolated nodes, some edges beyond the cutoff."""
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0.0, 3.0, size=(nodes, 3))
    used = max(1, nodes - 2)  # the last nodes are isolated
    sender, receiver = (rng.integers(0, used, size=edges).astype(np.int32) for _ in range(2))
    direction = rng.normal(size=(edges, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    vec = direction * rng.uniform(0.6, 1.1 * R_MAX, size=(edges, 1))
    shifts = vec - (positions[receiver] - positions[sender])
    types = rng.integers(0, n_types, size=nodes).astype(np.int32)
    return System(positions, types, sender, receiver, shifts)


class Model:
    """A package of random layers.

    Parameters
    ----------
    dtype : {"float32", "float64"}
    by_pair : bool
        Cutoffs by pairs of types.
    flip : bool
        Harmonics of the opposite direction.
    knots : int
        Of tables; 0: exact radial networks.
    """

    def __init__(
        self, dtype: str = "float64", by_pair: bool = False, flip: bool = False, knots: int = 0
    ) -> None:
        self.package = SmallPackage(["H", "O"], R_MAX, dtype)
        if flip:
            self.package.manifest["edge_vector"] = "sender_minus_receiver"
        self.rng = np.random.default_rng(7)
        self.dtype, self.by_pair, self.knots = dtype, by_pair, knots

    def radial(self, outputs: int, ends: dict[str, Any], hidden: int = 20, **change: Any) -> Any:
        """Return the field "radial" of a random network."""
        p, rng = self.package, self.rng
        r_max: Any = R_MAX
        if self.by_pair:
            r_max = p.tensor([[2.0, 3.0], [3.5, 4.0]])
        layers = [
            {
                "weight": p.tensor(rng.normal(size=(8, hidden)) / 2, self.dtype),
                "activation": "silu",
                "factor": 1.7,
            },
            {"weight": p.tensor(rng.normal(size=(hidden, outputs)) / 4, self.dtype)},
        ]
        if change.get("cutoff_on") == "weights":
            layers[0]["bias"] = p.tensor(rng.normal(size=hidden), self.dtype)
            layers[1]["bias"] = p.tensor(rng.normal(size=outputs), self.dtype)
        table = {"knots": self.knots, "error": 1e-6} if self.knots and not ends else None
        return {
            "r_max": r_max,
            "transform": None,
            "basis": {
                "kind": "bessel",
                "argument": "normalized",
                "weights": p.tensor(np.pi * np.arange(1, 9)),
                "prefactor": 0.5,
            },
            "cutoff": {"kind": "polynomial", "p": 6},
            "cutoff_on": "basis",
            "layers": layers,
            "table": table,
            **ends,
            **change,
        }

    def conv(self, x: str | None, in1: str, lmax: int, out: str, **options: Any) -> str:
        """Append a convolution; return its output."""
        p = self.package
        number = len(p.manifest["layers"])
        in2 = "+".join(f"1x{degree}{'eo'[degree % 2]}" for degree in range(lmax + 1))
        one, two, three = (Irreps.parse(text) for text in (in1, in2, out))
        paths = [
            (i, j, k)
            for i, a in enumerate(one)
            for j, b in enumerate(two)
            for k, c in enumerate(three)
            if a.ir.p * b.ir.p == c.ir.p
            and abs(a.ir.l - b.ir.l) <= c.ir.l <= a.ir.l + b.ir.l
            and a.mul == c.mul
        ]
        problem = ConvProblem.build(in1, in2, out, paths, dtype=self.dtype, layout="ir_mul")
        indices, values = [], []
        for n, path in enumerate(problem.paths):
            symbol = problem.w3j(problem.degrees(path))
            for a, b, c in np.argwhere(symbol):
                indices.append((n, a, b, c))
                values.append(symbol[a, b, c] * path.path_weight)
        ends = {k: options.pop(k) for k in ("sender", "receiver") if k in options}
        fields: dict[str, Any] = {
            "problem": problem.to_json(),
            "nonzeros": p.tensor(np.array(indices), "int32"),
            "values": p.tensor(values),
            "radial": self.radial(problem.weight_numel, ends, **options),
            "out": p.value(f"conv{number}", str(problem.irreps_out)),
        }
        if x is None:
            table = self.rng.normal(size=(2, problem.irreps_in1.dim))
            fields["x_table"] = p.tensor(table, self.dtype)
        else:
            p.layer("exchange", x=x)
            fields["x"] = x
        p.layer("conv", **fields)
        return str(fields["out"])

    def linear(self, x: str, out: str) -> str:
        """Append a linear layer of all paths; return its output."""
        p = self.package
        number = len(p.manifest["layers"])
        irreps_in = Irreps.parse(p.manifest["values"][x])
        irreps_out = Irreps.parse(out)
        paths = [
            {
                "in": i,
                "out": o,
                "weight": p.tensor(self.rng.normal(size=(a.mul, b.mul)) / 4, self.dtype),
            }
            for o, b in enumerate(irreps_out)
            for i, a in enumerate(irreps_in)
            if a.ir == b.ir
        ]
        p.layer("linear", x=x, paths=paths, bias=[], out=p.value(f"linear{number}", out))
        return f"linear{number}"

    def energy(self, x: str) -> None:
        """Append a readout."""
        last = self.linear(x, "1x0e")
        p = self.package
        p.layer("energy", x=last, channel=0, scale=p.tensor([1.3]), shift=p.tensor([0.1, -2.0]))

    def write(self, path: Path) -> str:
        """Write the package; the manifest's own checks pass."""
        name = self.package.write(path / "model.mdcg")
        Package.open(name)
        return name


def two_layers(**options: Any) -> Model:
    """Return a model whose energy depends on every output of both convolutions."""
    model = Model(**options)
    first = model.conv(None, "8x0e", 3, "8x0e+8x1o+8x2e+8x3o")
    x = model.linear(first, "3x0e+17x1o+5x2e")
    second = model.conv(x, "3x0e+17x1o+5x2e", 3, "3x0e+17x0e+5x0e+3x1o+17x1o+17x1e+5x2e+17x3o")
    y = model.linear(second, "16x0e+16x1o+2x1e+2x2e")
    third = model.conv(y, "16x0e+16x1o+2x1e+2x2e", 2, "16x0e+2x0e+2x0e", hidden=70)
    model.energy(third)
    return model


def compare(path: str, s: System, tolerance: float, force_tolerance: float) -> None:
    """Compare energies, forces and virial with the reference."""
    expected = reference.evaluate(
        Package.open(path), s.positions, s.types, s.sender, s.receiver, s.shifts
    )
    found = _core.Model(path, kernels="generic").evaluate(
        s.positions, s.types, edges=s.edges, virial=True
    )
    energies = expected.energies.detach().numpy()
    assert np.abs(found["energies"] - energies).max() < tolerance * np.abs(energies).max()
    forces = expected.forces.numpy()
    scale = max(np.abs(forces).max(), 1e-10)
    assert np.abs(found["forces"] - forces).max() < force_tolerance * scale
    virial = expected.virial.numpy()
    assert np.abs(found["virial"] - virial).max() < force_tolerance * max(
        np.abs(virial).max(), 1e-10
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("by_pair", [False, True])
def test_two_layers(dtype: str, flip: bool, by_pair: bool, tmp_path: Path) -> None:
    path = two_layers(dtype=dtype, flip=flip, by_pair=by_pair).write(tmp_path)
    tolerance = (1e-13, 1e-12) if dtype == "float64" else (1e-5, 1e-5)
    compare(path, system(50, 1500), *tolerance)


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (3, 0), (4, 1), (7, 63), (7, 64), (90, 65)])
def test_sizes(nodes: int, edges: int, tmp_path: Path) -> None:
    path = two_layers().write(tmp_path)
    compare(path, system(nodes, edges, seed=edges), 1e-13, 1e-12)
