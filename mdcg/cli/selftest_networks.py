"""Networks with random weights, by which ``mdcg selftest`` checks the engine without a model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._version import __version__

if TYPE_CHECKING:
    from ..package.builder import Builder, Features

_R_MAX = 4.5


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


#: Functions of precision, number of channels and path, which write a package of types H and O.
NETWORKS: dict[str, Callable[[str, int, Path], Path]] = {"MACE": _mace, "NequIP": _nequip}
