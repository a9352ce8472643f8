"""Layers on edges inside whole small models, against plain torch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.data import chemical_symbols
from numpy.typing import NDArray

from mdcg import _core
from mdcg.errors import PackageError
from mdcg.package import Package
from mdcg.problem import Irreps

from ..covering import covering
from . import reference
from .problems import build
from .small_package import RADIAL_KINDS, SmallPackage, radial_network

pytestmark = pytest.mark.compiler

Array = NDArray[np.float64]
R_MAX = 4.0
#: Tolerances of energies and forces, relative to the largest.
TOLERANCE = {"float64": (1e-13, 1e-12), "float32": (1e-5, 2e-5)}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE))


@dataclass
class System:
    """A graph; random `shifts` make it asymmetric."""

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
    table : bool
        Tables of radial networks, or on CPUs the networks as they are.
    types : int
    """

    def __init__(
        self,
        dtype: str = "float64",
        by_pair: bool = False,
        flip: bool = False,
        table: bool = False,
        types: int = 2,
    ) -> None:
        self.package = SmallPackage(list(chemical_symbols[1 : types + 1]), R_MAX, dtype)
        self.types = types
        if flip:
            self.package.manifest["edge_vector"] = "sender_minus_receiver"
        self.rng = np.random.default_rng(7)
        self.dtype, self.by_pair, self.table = dtype, by_pair, table

    def radial(self, outputs: int, ends: dict[str, Any], hidden: int = 20, **change: Any) -> Any:
        """Return the field "radial" of a random network."""
        p, rng = self.package, self.rng
        r_max: Any = R_MAX
        if self.by_pair:
            pairs = np.add.outer(np.arange(self.types) % 3, 1.0 - np.arange(self.types) % 2)
            r_max = p.tensor(2.0 + 0.5 * pairs)
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
        table: dict[str, Any] | None = {} if self.table and not ends else None
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
        problem = options.pop("problem", None) or build(in1, in2, out, self.dtype)
        ends = {k: options.pop(k) for k in ("sender", "receiver") if k in options}
        radial = options.pop("radial", None)
        fields: dict[str, Any] = {
            "problem": problem.to_json(),
            "radial": radial or self.radial(problem.weight_numel, ends, **options),
            "out": p.value(f"conv{number}", str(problem.irreps_out)),
        }
        if x is None:
            table = self.rng.normal(size=(self.types, problem.irreps_in1.dim))
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
        p.layer(
            "energy",
            x=last,
            channel=0,
            scale=p.tensor([1.3]),
            shift=p.tensor(0.1 - 2.1 * np.arange(self.types)),
        )

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


def with_edges(model: Model, start: float | None = None, solid: bool = False) -> Model:
    """Give a model XPLOR cutoffs that begin to fall at `start`, or solid harmonics."""
    for layer in model.package.manifest["layers"]:
        if "radial" in layer and start is not None:
            layer["radial"]["cutoff"] = {"kind": "xplor", "start": start}
        if layer["type"] == "conv" and solid:
            layer["harmonics"] = "solid"
    return model


def many_blocks(**options: Any) -> Model:
    """Return a model of repeated blocks, high degrees and channels that fill no whole vectors."""
    model = Model(**options)
    every = "{0}x0e+{0}x1o+{0}x2e+{0}x3o+{0}x4e"
    first = model.conv(None, "4x0e", 4, every.format(4))
    irreps = "8x1o+8x1o+16x0e+2x4e+40x3o"
    second = model.conv(
        model.linear(first, irreps), irreps, 4, "8x0e+8x0e+8x2e+16x4e+8x1o+2x0e+2x4e+40x0e+40x3o"
    )
    x = model.linear(second, every.format(32))
    model.energy(model.conv(x, every.format(32), 4, "32x0e"))
    return model


def type_model(
    in1: str = "5x0e", lmax: int = 2, out: str = "5x0e+5x1o+5x2e", hidden: int = 6, **options: Any
) -> Model:
    """Return a model of one convolution of types, whose output another convolution reads."""
    change = {"cutoff_on": "weights"} if options.pop("bias", False) else {}
    model = Model(**options)
    first = model.conv(None, in1, lmax, out, hidden=hidden, **change)
    rows = "+".join(
        f"4x{irrep}" for irrep in dict.fromkeys(b.split("x")[1] for b in out.split("+"))
    )
    model.energy(model.conv(model.linear(first, rows), rows, lmax, "4x0e"))
    return model


def compare(path: str, s: System, tolerance: float, force_tolerance: float) -> None:
    """Compare energies, forces and virial of generic and generated kernels with the reference."""
    expected = reference.evaluate(
        Package.open(path), s.positions, s.types, s.sender, s.receiver, s.shifts
    )
    energies, forces, virial = (
        part.detach().numpy() for part in (expected.energies, expected.forces, expected.virial)
    )
    for kernels in ("generic", "generated"):
        found = _core.Model(path, kernels=kernels).evaluate(
            s.positions, s.types, edges=s.edges, virial=True
        )
        assert np.abs(found["energies"] - energies).max() < tolerance * np.abs(energies).max()
        for name, want in (("forces", forces), ("virial", virial)):
            scale = max(np.abs(want).max(), 1e-10)
            assert np.abs(found[name] - want).max() < force_tolerance * scale, (kernels, name)


@covering(
    make=[two_layers, many_blocks], dtype=list(TOLERANCE), flip=[False, True], by_pair=[False, True]
)
def test_models(make: Any, dtype: str, flip: bool, by_pair: bool, tmp_path: Path) -> None:
    path = make(dtype=dtype, flip=flip, by_pair=by_pair).write(tmp_path)
    compare(path, system(50, 1500), *TOLERANCE[dtype])


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (3, 0), (4, 1), (7, 63), (7, 64), (90, 65)])
def test_sizes(nodes: int, edges: int, tmp_path: Path) -> None:
    path = two_layers().write(tmp_path)
    compare(path, system(nodes, edges, seed=edges), *TOLERANCE["float64"])


@DTYPES
@pytest.mark.parametrize("lmax", [0, 7, 11])
def test_degrees(lmax: int, dtype: str, tmp_path: Path) -> None:
    model = Model(dtype)
    irreps = "+".join(f"1x{degree}{'eo'[degree % 2]}" for degree in range(lmax + 1))
    model.energy(model.conv(model.conv(None, "1x0e", lmax, irreps), irreps, lmax, "1x0e"))
    compare(model.write(tmp_path), system(9, 90), *TOLERANCE[dtype])


@DTYPES
def test_few_senders(dtype: str, tmp_path: Path) -> None:
    """Results agree if blocks of edges have few senders, whose scalars are grouped."""
    path = two_layers(dtype=dtype).write(tmp_path)
    for edges, senders in ((96, 1), (95, 2), (300, 1), (300, 3), (80, 9)):
        s = system(11, edges, seed=edges + senders)
        s.sender %= senders
        s.shifts += 0.7 * (s.sender == s.receiver)[:, None]  # no edge is too short
        compare(path, s, *TOLERANCE[dtype])


@covering(
    kind=RADIAL_KINDS,
    table=[False, True],
    activation=["tanh_square", "none"],
    dtype=list(TOLERANCE),
    flip=[False, True],
)
def test_radial_networks(
    kind: str, table: bool, activation: str, dtype: str, flip: bool, tmp_path: Path, rng: Any
) -> None:
    """Radial functions of all kinds agree in densities and convolutions, also as tables."""
    model = Model(dtype=dtype, flip=flip, types=3)
    p = model.package
    radial = radial_network(kind, p, rng)
    n = p.tensors[radial["layers"][-1]["weight"]].shape[1]
    p.layer("edge_sum", out=p.value("density", f"{n}x0e"), radial=radial, activation=activation)
    model.energy("density")
    field: dict[str, Any] | None = {} if table else None
    model.energy(model.conv(None, f"{n}x0e", 0, f"{n}x0e", radial={**radial, "table": field}))
    tolerance = (1e-5, 1e-4) if table else TOLERANCE[dtype]
    compare(model.write(tmp_path), system(20, 400, n_types=3), *tolerance)


@DTYPES
@pytest.mark.parametrize("cutoff_on", ["basis", "weights"])
def test_radial_networks_of_types(dtype: str, cutoff_on: str, tmp_path: Path) -> None:
    model = Model(dtype=dtype, by_pair=cutoff_on == "weights")
    p, rng = model.package, model.rng
    ends = [{k: p.tensor(rng.normal(size=(2, 20)), dtype) for k in ("sender", "receiver")}]
    ends.append({"sender": ends[0]["receiver"]})
    first = model.conv(None, "4x0e+2x1o", 2, "4x0e+2x0e+4x1o", cutoff_on=cutoff_on, **ends[0])
    x = model.linear(first, "4x0e+3x1o")
    second = model.conv(x, "4x0e+3x1o", 2, "4x0e+3x0e", cutoff_on=cutoff_on, **ends[1])
    model.energy(second)
    compare(model.write(tmp_path), system(20, 500), *TOLERANCE[dtype])


def model_of_features(*ends: str, dtype: str = "float64", **radial: Any) -> Model:
    """Return a model whose second radial network reads features of senders, receivers or both."""
    model = Model(dtype)
    first = model.conv(None, "4x0e", 2, "4x0e+4x1o")
    x = model.linear(first, "4x0e+3x1o")
    rows = {end: model.linear(first, "20x0e") for end in ends}
    for end, name in rows.items():
        if end == "sender":
            model.package.layer("exchange", x=name)
    second = model.conv(x, "4x0e+3x1o", 2, "4x0e+3x0e", **rows, **radial)
    model.energy(second)
    # the energy of what the convolution reads: its gradient is added to, not overwritten
    model.energy(rows[ends[0]])
    return model


@DTYPES
@pytest.mark.parametrize("ends", [("sender",), ("receiver",), ("sender", "receiver")])
def test_radial_networks_of_features(ends: tuple[str, ...], dtype: str, tmp_path: Path) -> None:
    path = model_of_features(*ends, dtype=dtype).write(tmp_path)
    compare(path, system(40, 800), *TOLERANCE[dtype])


@covering(cutoff_on=["basis", "weights"], activation=["tanh_square", "none"], dtype=list(TOLERANCE))
def test_density(dtype: str, activation: str, cutoff_on: str, tmp_path: Path) -> None:
    model = Model(dtype=dtype, by_pair=True)
    p = model.package
    x = model.linear(model.conv(None, "4x0e", 2, "4x0e+4x1o"), "4x0e")
    radial = model.radial(1, {}, cutoff_on=cutoff_on)
    p.layer("edge_sum", out=p.value("density", "1x0e"), radial=radial, activation=activation)
    p.layer("normalize", x=x, density="density", alpha=3.0, beta=0.3, out=p.value("y", "4x0e"))
    model.energy("y")
    compare(model.write(tmp_path), system(20, 300), *TOLERANCE[dtype])


@DTYPES
def test_pair_repulsion(dtype: str, tmp_path: Path) -> None:
    model = Model(dtype=dtype)
    p = model.package
    p.layer(
        "pair_energy",
        kind="zbl",
        factor=p.tensor([[7.2, 57.6], [57.6, 460.0]]),
        a=p.tensor([[0.24, 0.14], [0.14, 0.11]]),
        coefficients=[0.1818, 0.5099, 0.2802, 0.02817],
        exponents=[3.2, 0.9423, 0.4028, 0.2016],
        p=6,
        r_max=p.tensor([[0.62, 1.9], [1.9, 2.64]]),
    )
    tolerance = (1e-14, 1e-13) if dtype == "float64" else (1e-14, 1e-6)
    compare(model.write(tmp_path), system(20, 300), *tolerance)


def test_pair_repulsion_beyond_the_cutoff_of_the_package(tmp_path: Path) -> None:
    model = Model()
    p = model.package
    length = p.manifest["r_max"] + 0.1
    lists = {"coefficients": [1.0], "exponents": [1.0], "p": 6, "r_max": length}
    square = {"factor": p.tensor(np.ones((2, 2))), "a": p.tensor(np.ones((2, 2)))}
    p.layer("pair_energy", kind="zbl", **square, **lists)
    with pytest.raises(
        PackageError, match=rf"r_max is {length:g}, expected .* up to the package's"
    ):
        model.write(tmp_path)


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-10), ("float32", 5e-6)])
@pytest.mark.parametrize("by_pair", [False, True])
def test_tables(by_pair: bool, dtype: str, limit: float, tmp_path: Path) -> None:
    """Tables agree with the networks but not exactly, which shows that they are used."""
    s = system(30, 600)
    want, found = (
        _core.Model(
            two_layers(dtype=dtype, by_pair=by_pair, table=table).write(tmp_path), kernels="generic"
        ).evaluate(s.positions, s.types, edges=s.edges)["forces"]
        for table in (False, True)
    )
    assert 0 < np.abs(found - want).max() < limit * np.abs(want).max()


def test_fields_of_older_tables_are_not_read(tmp_path: Path) -> None:
    """Packages that state a number of intervals can be opened and give the same results."""
    s = system(20, 200)
    found = []
    for field in ({}, {"knots": 16, "error": 0.1}):
        model = two_layers(table=True)
        for layer in model.package.manifest["layers"]:
            if "radial" in layer:
                layer["radial"]["table"] = field
        path = model.write(tmp_path)
        model = _core.Model(path, kernels="generic")
        found.append(model.evaluate(s.positions, s.types, edges=s.edges)["forces"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("activation", ["relu", "abs"])
def test_networks_with_kinks_have_no_table(activation: str, tmp_path: Path) -> None:
    s, found = system(20, 200), []
    for table in (False, True):
        model = two_layers(table=table)
        for layer in model.package.manifest["layers"]:
            if "radial" in layer:
                layer["radial"]["layers"][0]["activation"] = activation
        path = model.write(tmp_path)
        opened = _core.Model(path, kernels="generic")
        found.append(opened.evaluate(s.positions, s.types, edges=s.edges)["forces"])
    np.testing.assert_array_equal(*found)


def test_solid_harmonics_of_features(tmp_path: Path) -> None:
    path = with_edges(model_of_features("sender", "receiver"), solid=True).write(tmp_path)
    compare(path, system(40, 800), *TOLERANCE["float64"])


#: Starts of XPLOR cutoffs, and whether harmonics are solid.
EDGES = [(None, True), (1.7, False), (0.3, False), (1.7, True)]


@covering(edges=EDGES, dtype=list(TOLERANCE), by_pair=[False, True], flip=[False, True])
def test_xplor_and_solid_harmonics(
    edges: tuple[float | None, bool], dtype: str, by_pair: bool, flip: bool, tmp_path: Path
) -> None:
    model = with_edges(two_layers(dtype=dtype, by_pair=by_pair, flip=flip), *edges)
    compare(model.write(tmp_path), system(40, 900), *TOLERANCE[dtype])


def test_solid_harmonics_with_a_cutoff_of_weights(tmp_path: Path) -> None:
    model = two_layers()
    for layer in model.package.manifest["layers"]:
        if "radial" in layer:
            layer["radial"]["cutoff_on"] = "weights"
    path = with_edges(model, 1.1, True).write(tmp_path)
    compare(path, system(20, 400), *TOLERANCE["float64"])


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-10), ("float32", 5e-6)])
@pytest.mark.parametrize("by_pair", [False, True])
def test_tables_with_a_break(
    edges: tuple[float | None, bool], by_pair: bool, dtype: str, limit: float, tmp_path: Path
) -> None:
    """Tables exist in spite of the kink, and agree with the networks on both sides of it."""
    s, kink = system(30, 600), edges[0] or 1.7
    vectors = s.positions[s.receiver] - s.positions[s.sender] + s.shifts
    lengths = np.linalg.norm(vectors, axis=1)
    near = kink * (1 + np.array([-1e-3, -1e-9, 0.0, 1e-9, 1e-3]))
    for n, length in enumerate(near):
        s.shifts[n] += (length / lengths[n] - 1) * vectors[n]
    want, found = (
        _core.Model(
            with_edges(two_layers(dtype=dtype, by_pair=by_pair, table=table), *edges).write(
                tmp_path
            ),
            kernels="generic",
        ).evaluate(s.positions, s.types, edges=s.edges)["forces"]
        for table in (False, True)
    )
    assert 0 < np.abs(found - want).max() < limit * np.abs(want).max()


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("edges", [(None, False), *EDGES])
def test_finite_differences(edges: tuple[float | None, bool], table: bool, tmp_path: Path) -> None:
    path = with_edges(two_layers(table=table, by_pair=True), *edges).write(tmp_path)
    model = _core.Model(path, kernels="generic")
    s = system(12, 150, seed=3)
    forces = model.evaluate(s.positions, s.types, edges=s.edges)["forces"]
    step = 2e-4
    for node, axis in ((0, 0), (3, 1), (9, 2), (11, 0)):
        energies = []
        for n in (-2, -1, 1, 2):
            moved = s.positions.copy()
            moved[node, axis] += n * step
            found = model.evaluate(moved, s.types, edges=s.edges, forces=False)
            energies.append(float(found["energy"]))
        a, b, c, d = energies
        slope = -(a - 8 * b + 8 * c - d) / (12 * step)
        assert abs(slope - forces[node, axis]) < 1e-8 * np.abs(forces).max()


@pytest.mark.parametrize("part", [1 / 20, 1 / 50, 1 / 70])  # relative to the cutoff
def test_short_edges(part: float, tmp_path: Path) -> None:
    """Edges shorter than 1/64 of the cutoff use the exact network instead of the table."""
    s = system(6, 40, seed=5)
    s.shifts[7] = part * R_MAX * np.sqrt(1 / 3) * np.array([1.0, 1.0, -1.0]) - (
        s.positions[s.receiver[7]] - s.positions[s.sender[7]]
    )
    found = []
    for table in (False, True):
        path = two_layers(table=table).write(tmp_path)
        model = _core.Model(path, kernels="generic")
        found.append(model.evaluate(s.positions, s.types, edges=s.edges)["forces"])
    assert np.abs(found[0] - found[1]).max() < 1e-9 * np.abs(found[0]).max()
    assert np.array_equal(*found) == (part < 1 / 64)  # one method per block


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_do_not_change_a_bit(dtype: str, table: bool, tmp_path: Path) -> None:
    path = two_layers(dtype=dtype, table=table).write(tmp_path)
    s = system(200, 4000)
    results = [
        _core.Model(path, kernels="generic", threads=n).evaluate(
            s.positions, s.types, edges=s.edges
        )
        for n in (1, 2, 3)
    ]
    for other in results[1:]:
        for key in ("energies", "forces"):
            assert np.array_equal(results[0][key], other[key])
