"""Functions of edges on a device against the processor's: cases that test_cuda_text_edges.py runs
in a process with emulated CUDA, and that run on a device as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core

from ..internals.internals import core
from .small_package import SmallPackage
from .test_conv_layer import system, two_layers

R_MAX = 4.0
TYPES = 3
LEVEL = core.simd_levels()[0]


def _norm(package: SmallPackage, rng: Any, n: int) -> dict[str, Any]:
    return {
        "weight": package.weights(1.0 + 0.3 * rng.normal(size=n)),
        "bias": package.weights(0.3 * rng.normal(size=n)),
        "epsilon": 1e-5,
    }


def radial_network(kind: str, package: SmallPackage, rng: Any, num_types: int) -> dict[str, Any]:
    """Return a radial network whose last layer copies its inputs (and shows its bias)."""
    square = (num_types, num_types)
    r_0 = package.tensor(0.5 + rng.uniform(size=square))
    bessel = {
        "kind": "bessel",
        "weights": package.tensor(np.pi * np.arange(1, 6) / R_MAX),
        "prefactor": 0.7,
    }

    def layer(n: int, m: int, **fields: Any) -> dict[str, Any]:
        weight = package.weights(rng.normal(size=(n, m)) / np.sqrt(n))
        return {"weight": weight, **fields}

    def bias(n: int) -> str:
        return package.weights(rng.normal(size=n))

    def last(n: int) -> dict[str, Any]:
        return {"weight": package.weights(np.eye(n))}

    found: dict[str, Any] = {
        "r_max": R_MAX,
        "transform": None,
        "basis": bessel,
        "cutoff": {"kind": "polynomial", "p": 6},
        "cutoff_on": "basis",
        "table": None,
    }
    if kind == "silu":
        found["layers"] = [
            layer(5, 9, activation="silu", factor=1.6),
            layer(9, 18, activation="tanh", bias=bias(18)),
            last(18),
        ]
    elif kind == "norms":
        found["basis"] = {
            "kind": "gaussian",
            "centers": package.tensor(np.linspace(0.0, R_MAX, 7)),
            "coefficient": -1.3,
        }
        found["transform"] = {"kind": "soft", "alpha": 4.0, "r_0": r_0}
        found["cutoff_on"] = "weights"
        found["layers"] = [
            layer(7, 33, bias=bias(33), layer_norm=_norm(package, rng, 33), activation="silu"),
            layer(33, 6, layer_norm=_norm(package, rng, 6), activation="ssp", factor=1.1),
            {**last(6), "bias": package.weights(np.zeros(6))},
        ]
    elif kind == "tables":
        found["basis"] = {"kind": "chebyshev", "order": 6, "argument": "normalized"}
        found["r_max"] = package.tensor(rng.uniform(1.5, R_MAX, size=square))
        found["cutoff"] = {"kind": "polynomial", "p": 5.5}
        found["layers"] = [layer(6, 12, activation="sigmoid", bias=bias(12)), last(12)]
        found["sender"] = package.weights(rng.normal(size=(num_types, 12)))
        found["receiver"] = package.weights(rng.normal(size=(num_types, 12)))
    elif kind == "flat":
        found["transform"] = {"kind": "agnesi", "a": 1.08, "q": 0.92, "p": 4.58, "r_0": r_0}
        found["r_max"] = package.tensor(rng.uniform(1.5, R_MAX, size=square))
        found["cutoff_on"] = "weights"
        found["layers"] = [{**last(5), "bias": package.weights(np.zeros(5))}]
    elif kind == "wide":  # more shared memory than every device has without asking
        found["layers"] = [layer(5, 640, activation="silu"), layer(640, 5), last(5)]
    elif kind == "free":
        found["cutoff"] = None
        found["layers"] = [layer(5, 70, activation="relu", bias=bias(70)), last(70)]
    else:
        raise ValueError(kind)
    return found


class _System:
    """Nodes, some of them ghosts, and edges by receiver; some longer than r_max."""

    def __init__(self, rng: Any, num_local: int, num_nodes: int, num_edges: int) -> None:
        self.num_local = num_local
        self.positions = rng.uniform(0.0, 3.5, size=(num_nodes, 3))
        self.types = rng.integers(TYPES, size=num_nodes).astype(np.int32)
        # receiver 1 has no edges
        receivers = np.sort(rng.integers(num_local, size=num_edges))
        self.receiver = np.where(receivers == 1, 2, receivers).astype(np.int32)
        self.sender = rng.integers(num_nodes, size=num_edges).astype(np.int32)
        self.shifts = 1.7 * rng.normal(size=(num_edges, 3))
        self.shifts[self.sender == self.receiver] += (1.0, 0.0, 0.0)
        self.vectors = self.positions[self.receiver] - self.positions[self.sender] + self.shifts
        self.lengths = np.linalg.norm(self.vectors, axis=1)
        # shorter than every table
        short = self.lengths < 0.3
        self.shifts[short] += 1.0
        self.vectors[short] += 1.0
        self.lengths = np.linalg.norm(self.vectors, axis=1)
        assert 0.05 < (self.lengths >= R_MAX).mean() < 0.6

    def given(self) -> tuple[Any, ...]:
        nodes = (self.positions, self.types, self.num_local)
        return (*nodes, self.sender, self.receiver, self.shifts)

    def pairs(self) -> Any:
        """Yield types of receiver and sender, and the edges between them."""
        ends = np.stack([self.types[self.receiver], self.types[self.sender]], axis=1)
        for pair in np.unique(ends, axis=0):
            yield (*map(int, pair), np.flatnonzero((ends == pair).all(axis=1)))


def _assemble(system: _System, gradient: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    forces = np.zeros_like(system.positions)
    np.add.at(forces, system.receiver, -gradient)
    np.add.at(forces, system.sender, gradient)
    outer = np.einsum("ei,ej->eij", system.vectors, gradient)
    part = -0.25 * (outer + outer.transpose(0, 2, 1)).reshape(-1, 9)
    virials = np.zeros((len(forces), 9))
    np.add.at(virials, system.receiver, part)
    np.add.at(virials, system.sender, part)
    return forces, virials


def _expected(
    system: _System, sign: float, l_max: int, d_harmonics: Any, slope: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return harmonics and gradients of vectors; `slope`: of lengths."""
    unit = sign * system.vectors / system.lengths[:, None]
    harmonics, d_unit = core.edge_harmonics(l_max, "component", unit, d_harmonics, True, LEVEL)
    along = slope - (d_unit * unit).sum(axis=1) / system.lengths
    gradient = sign * (along[:, None] * unit + d_unit / system.lengths[:, None])
    live = (system.lengths < R_MAX)[:, None]
    return harmonics * live, gradient * live


def deviation(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / max(1e-300, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("kind", "l_max", "flip", "knots", "double"),
    [
        ("silu", 3, False, 0, True),
        ("norms", 1, True, 0, False),
        ("tables", 0, True, 0, True),
        ("flat", 2, False, 0, False),
        ("free", 7, False, 0, True),
        ("free", 7, False, 0, False),
        ("wide", 12, True, 0, True),
        ("silu", 1, True, 40, False),
        ("norms", 1, True, 40, True),
        ("tables", 1, False, 40, False),
        ("flat", 1, False, 40, True),
    ],
)
def test_against_the_processor(
    kind: str,
    l_max: int,
    flip: bool,
    knots: int,
    double: bool,
    tmp_path: Path,
    rng: Any,
) -> None:
    tolerance = 2e-14 if double else 2e-6
    package = SmallPackage(["H", "O", "Fe"], R_MAX, "float64")
    package.manifest["edge_vector"] = "sender_minus_receiver" if flip else "receiver_minus_sender"
    radial = radial_network(kind, package, rng, TYPES)
    if knots > 0:
        radial["table"] = {"knots": knots, "error": 0.0}
    package.layer("conv", radial=radial)
    path = package.write(tmp_path / "radial.mdcg")
    layers = package.manifest["layers"][0]["radial"]["layers"]
    constant = "bias" in layers[-1]
    outputs = package.tensors[layers[-1]["weight"]].shape[1]
    units = outputs + constant

    system = _System(rng, 7, 9, 75)
    d_harmonics = rng.normal(size=(75, (l_max + 1) ** 2))
    d_hidden = rng.normal(size=(75, units))
    if constant:
        d_hidden[:, -1] = 0.0  # of zeros
    hidden, slope = np.zeros((75, outputs)), np.zeros(75)
    for receiver, sender, at in system.pairs():
        hidden[at], slope[at] = core.radial_weights(
            path, 0, system.lengths[at], receiver, sender, d_hidden[at, :outputs], True, knots
        )
    live = system.lengths < R_MAX
    hidden *= live[:, None]
    slope *= live
    harmonics, gradient = _expected(system, -1.0 if flip else 1.0, l_max, d_harmonics, slope)
    forces, virials = _assemble(system, gradient)

    found = core.cuda_edge_functions(
        path,
        0,
        l_max,
        "component",
        *system.given(),
        d_harmonics,
        d_hidden,
        np.zeros((0, 0)),
        double,
    )
    assert (np.diff(found["edges"]) == 1).all()
    assert np.abs(hidden).max() > 0.1
    assert deviation(found["harmonics"], harmonics) < tolerance
    assert deviation(found["hidden"][:, :outputs], hidden) < tolerance
    assert not found["hidden"][~live].any()
    assert deviation(found["gradient"], gradient) < tolerance
    assert deviation(found["forces"], forces) < tolerance
    assert deviation(found["virials"], virials) < tolerance


def test_short_edges_leave_the_table(tmp_path: Path, rng: Any) -> None:
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    radial = {**radial_network("silu", package, rng, TYPES), "table": {"knots": 40, "error": 0.0}}
    package.layer("conv", radial=radial)
    path = package.write(tmp_path / "radial.mdcg")
    system = _System(rng, 7, 9, 75)
    system.shifts[50] -= 0.99 * system.vectors[50]
    system.lengths[50] *= 0.01
    d_hidden = rng.normal(size=(75, 18))
    hidden = np.zeros((75, 18))
    for receiver, sender, at in system.pairs():
        lengths = system.lengths[at]
        hidden[at], _ = core.radial_weights(path, 0, lengths, receiver, sender, d_hidden[at], True)
    none = np.zeros((0, 0))
    d_harmonics = np.zeros((75, 1))
    found = core.cuda_edge_functions(
        path, 0, 0, "norm", *system.given(), d_harmonics, d_hidden, none, True
    )
    assert system.lengths[50] < R_MAX / 16
    assert deviation(found["hidden"][50], hidden[50]) < 2e-13
    assert deviation(found["hidden"], hidden) < 1e-3
    assert np.isfinite(found["forces"]).all()


class _Rows:
    """A radial network with rows of both ends of an edge."""

    def __init__(self, rng: Any) -> None:
        self.net = [rng.normal(size=(5, 11)) / 2, rng.normal(size=11), rng.normal(size=(11, 4)) / 3]
        self.norm = [1.0 + 0.3 * rng.normal(size=11), rng.normal(size=11)]
        self.roots = np.pi * np.arange(1, 6) / R_MAX

    def write(self, path: Path, **changes: Any) -> str:
        package = SmallPackage(["H", "O", "Fe"], R_MAX, "float64")
        package.value("ends", "11x0e")
        radial = {
            "r_max": R_MAX,
            "basis": {
                "kind": "bessel",
                "weights": package.tensor(self.roots),
                "prefactor": 0.7,
            },
            "cutoff": {"kind": "polynomial", "p": 6},
            "layers": [
                {
                    "weight": package.tensor(self.net[0]),
                    "bias": package.tensor(self.net[1]),
                    "layer_norm": {
                        "weight": package.tensor(self.norm[0]),
                        "bias": package.tensor(self.norm[1]),
                        "epsilon": 1e-5,
                    },
                    "activation": "silu",
                },
                {"weight": package.tensor(self.net[2]), "activation": "tanh", "factor": 1.3},
                {"weight": package.tensor(np.eye(4))},
            ],
            "sender": "ends",
            "receiver": "ends",
        }
        package.layer("conv", radial=radial | changes)
        return package.write(path)


def test_high_powers_of_the_cutoff(tmp_path: Path, rng: Any) -> None:
    """They overflow in float32 far beyond r_max, where edges of lists are put that are too long."""
    rows = _Rows(rng)
    system = _System(rng, 40, 60, 90)
    assert (system.lengths > R_MAX).any()
    gradients = [rng.normal(size=(90, 1)), rng.normal(size=(90, 4))]
    ends = rng.normal(size=(60, 11))
    cutoff = {"cutoff": {"kind": "polynomial", "p": 40}, "cutoff_on": "weights"}
    path = rows.write(tmp_path / "radial.mdcg", **cutoff)
    run = core.cuda_edge_functions
    want, got = (
        run(path, 0, 0, "component", *system.given(), *gradients, ends, double)
        for double in (True, False)
    )
    for name in ("d_sender", "d_receiver", "gradient", "forces"):
        assert deviation(got[name], want[name]) < 1e-4, name


@pytest.mark.parametrize("edges", [90, 8300])
def test_rows_of_nodes(edges: int, tmp_path: Path, rng: Any) -> None:
    torch = pytest.importorskip("torch")
    rows_of = _Rows(rng)
    net, norm, roots = rows_of.net, rows_of.norm, rows_of.roots
    path = rows_of.write(tmp_path / "radial.mdcg")
    system = _System(rng, 40, 60, edges)
    ends = rng.normal(size=(60, 11))
    d_hidden = rng.normal(size=(edges, 4))
    d_harmonics = rng.normal(size=(edges, 1))

    r = torch.tensor(system.lengths, requires_grad=True)
    rows = [torch.tensor(ends[i], requires_grad=True) for i in (system.sender, system.receiver)]
    x = r[:, None] / R_MAX
    cutoff = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
    basis = 0.7 * torch.sin(r[:, None] * torch.tensor(roots)) / r[:, None] * cutoff
    first = basis @ torch.tensor(net[0]) + torch.tensor(net[1]) + rows[0] + rows[1]
    functional = torch.nn.functional
    first = functional.layer_norm(first, (11,), *(torch.tensor(n) for n in norm), 1e-5)
    hidden = 1.3 * torch.tanh(functional.silu(first) @ torch.tensor(net[2]))
    hidden = hidden * (r[:, None] < R_MAX)
    (hidden * torch.tensor(d_hidden)).sum().backward()
    harmonics, gradient = _expected(system, 1.0, 0, d_harmonics, r.grad.numpy())
    sums = [np.zeros_like(ends), np.zeros_like(ends)]
    for total, nodes, row in zip(sums, (system.sender, system.receiver), rows, strict=True):
        np.add.at(total, nodes, row.grad.numpy())

    found = core.cuda_edge_functions(
        path,
        0,
        0,
        "component",
        *system.given(),
        d_harmonics,
        d_hidden,
        ends,
        True,
    )
    assert found["num_chunks"] == (1 if edges < 8192 else 2)
    assert deviation(found["harmonics"], harmonics) < 2e-14
    assert deviation(found["hidden"], hidden.detach().numpy()) < 2e-14
    assert deviation(found["gradient"], gradient) < 2e-14
    assert deviation(found["d_sender"], sums[0]) < 2e-14
    assert deviation(found["d_receiver"], sums[1]) < 2e-14
    begin, edges = np.array(found["row_ptr"]), np.array(found["live"])
    kept = np.concatenate(
        [edges[b : b + n] for b, n in zip(begin[:-1], found["num_live"], strict=True)]
    )
    np.testing.assert_array_equal(kept, np.flatnonzero(system.lengths < R_MAX))
    of_receivers = np.bincount(system.receiver[kept], minlength=40)
    np.testing.assert_array_equal(found["num_live"], of_receivers)
    forces, virials = _assemble(system, gradient)
    assert deviation(found["forces"], forces) < 2e-14
    assert deviation(found["virials"], virials) < 2e-14


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 2e-14), ("float32", 2e-6)])
@pytest.mark.parametrize(
    ("kind", "activation", "flip"),
    [
        ("silu", "none", True),
        ("norms", "tanh_square", False),
        ("tables", "tanh_square", True),
        ("flat", "none", False),
        ("flat", "tanh_square", True),
    ],
)
def test_layers_of_edges(
    kind: str, activation: str, flip: bool, dtype: str, tolerance: float, tmp_path: Path, rng: Any
) -> None:
    """Densities and pair repulsion as energies, in whole models on both."""
    package = SmallPackage(["H", "O", "Fe"], R_MAX, dtype)
    package.manifest["edge_vector"] = "sender_minus_receiver" if flip else "receiver_minus_sender"
    radial = radial_network(kind, package, rng, TYPES)
    outputs = package.tensors[radial["layers"][-1]["weight"]].shape[1]
    density = package.value("density", f"{outputs}x0e")
    package.layer("edge_sum", out=density, radial=radial, activation=activation)
    for channel in range(outputs):
        package.layer(
            "energy",
            x=density,
            channel=channel,
            scale=package.tensor(rng.normal(size=TYPES)),
            shift=package.tensor(rng.normal(size=1)),
        )
    square = (TYPES, TYPES)
    package.layer(
        "pair_energy",
        kind="zbl",
        factor=package.tensor(rng.uniform(1.0, 3.0, size=square)),
        a=package.tensor(rng.uniform(0.2, 0.6, size=square)),
        coefficients=[0.1818, 0.5099, 0.2802, 0.02817],
        exponents=[3.2, 0.9423, 0.4028, 0.2016],
        p=6,
        r_max=package.tensor(rng.uniform(1.0, 3.0, size=square)),
    )
    path = package.write(tmp_path / "densities.mdcg")
    models = [_core.Model(path, kernels="generic"), _core.Model(path, device="cuda")]
    system = _System(rng, 9, 9, 90)
    edges = (system.sender, system.receiver, system.shifts)
    for step in range(3):  # the later ones are replayed
        positions = system.positions + 0.02 * step * rng.normal(size=(9, 3))
        expected, found = (
            model.evaluate(positions, system.types, edges=edges, virial=True, virials=True)
            for model in models
        )
        for name in ("energies", "forces", "virial", "virials"):
            assert deviation(found[name], expected[name]) < tolerance, name


def test_nothing_near(tmp_path: Path, rng: Any) -> None:
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    density = package.value("density", "18x0e")
    package.layer("edge_sum", out=density, radial=radial_network("silu", package, rng, TYPES))
    one = package.tensor([1.0])
    package.layer("energy", x=density, channel=3, scale=one, shift=one)
    path = package.write(tmp_path / "density.mdcg")
    models = [_core.Model(path, kernels="generic"), _core.Model(path, device="cuda")]
    system = _System(rng, 9, 9, 90)
    none = np.zeros(0, np.int32)
    far = (np.array([4], np.int32), np.array([2], np.int32), np.array([[9.0, 0.0, 0.0]]))
    for edges in ((none, none, np.zeros((0, 3))), far):
        expected, found = (
            model.evaluate(system.positions, system.types, edges=edges, virial=True)
            for model in models
        )
        assert found["energy"] == expected["energy"] == 9.0
        assert not found["forces"].any()
        assert not found["virial"].any()


def test_too_wide(tmp_path: Path, rng: Any) -> None:
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    radial = radial_network("silu", package, rng, TYPES)
    radial["layers"][0]["weight"] = package.tensor(np.zeros((5, 5000)))
    radial["layers"][1]["weight"] = package.tensor(np.zeros((5000, 18)))
    package.layer("edge_sum", out=package.value("density", "18x0e"), radial=radial)
    path = package.write(tmp_path / "density.mdcg")
    with pytest.raises(_core.EngineError, match="layers of 5000 units is too wide"):
        _core.Model(path, device="cuda")


def test_nodes_in_one_place(tmp_path: Path, rng: Any) -> None:
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    density = package.value("density", "18x0e")
    package.layer("edge_sum", out=density, radial=radial_network("silu", package, rng, TYPES))
    one = package.tensor([1.0])
    package.layer("energy", x=density, channel=0, scale=one, shift=one)
    model = _core.Model(package.write(tmp_path / "density.mdcg"), device="cuda")
    system = _System(rng, 9, 9, 90)
    system.sender[70] = 0 if system.receiver[70] != 0 else 3
    ends = system.positions[system.sender[70]] - system.positions[system.receiver[70]]
    system.shifts[70] = ends + 1e-8
    edges = (system.sender, system.receiver, system.shifts)
    ends_of = f"atoms {system.sender[70]} and {system.receiver[70]} are at the same place"
    with pytest.raises(_core.EngineError, match=ends_of):
        model.evaluate(system.positions, system.types, edges=edges)
    system.shifts[70] += 1.0
    assert np.isfinite(model.evaluate(system.positions, system.types, edges=edges)["energy"])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_tables_in_a_whole_model(dtype: str, tolerance: float, tmp_path: Path) -> None:
    """As the processor, which has tables of weights."""
    path = two_layers(dtype=dtype, knots=64, by_pair=True).write(tmp_path)
    models = [_core.Model(str(path), kernels="generic"), _core.Model(str(path), device="cuda")]
    for types in (0, 1):  # the second graph has more pairs of types
        s = system(12, 150, seed=3)
        kinds = s.types * types
        expected, found = (
            model.evaluate(s.positions, kinds, edges=s.edges, virial=True) for model in models
        )
        for name in ("energies", "forces", "virial"):
            assert deviation(found[name], expected[name]) < tolerance, name
