"""Radial networks and their tables against the modules of mace and nequip."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..internals.internals import core
from .small_package import SmallPackage

torch = pytest.importorskip("torch")

R_MAX = 5.0
NUMBERS = (1, 8, 26)
LENGTHS = np.concatenate([np.linspace(0.35, 4.999, 41), [5.0, 5.3, 9.0]])


def _numpy(x: Any) -> Any:
    return x.detach().double().numpy()


class ChebychevBasis(torch.nn.Module):  # type: ignore[misc]
    """mace's basis with a derivative: torch's Chebyshev polynomials silently have none."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        r = torch.tensor(LENGTHS)[:, None]
        torch.testing.assert_close(self(r), module(r), rtol=1e-12, atol=1e-12)

    def forward(self, x: Any) -> Any:
        found = [torch.ones_like(x), x]
        while len(found) < 9:
            found.append(2.0 * x * found[-1] - found[-2])
        return torch.cat(found[1:], dim=1)


class _Case:
    """A radial network of mace as modules, and as the manifest describes it."""

    def __init__(self, basis: str, transform: str, net: str, cutoff_on: str, p: int = 6) -> None:
        blocks = pytest.importorskip("mace.modules.blocks")
        radial = pytest.importorskip("mace.modules.radial")
        from e3nn.nn import FullyConnectedNet

        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            self.embedding = blocks.RadialEmbeddingBlock(
                R_MAX, 8, p, basis, transform, cutoff_on == "basis"
            )
            self.kind = net
            self.ends = []
            if net == "fully_connected":
                self.net = FullyConnectedNet([8, 24, 17, 20], torch.nn.functional.silu)
            elif net == "one_layer":
                self.net = FullyConnectedNet([8, 20], torch.nn.functional.silu)
            else:
                self.net = radial.RadialMLP([8 + 6, 24, 17, 20])
                self.ends = [torch.randn(3, 3), torch.randn(3, 3)]
                with torch.no_grad():
                    for parameter in self.net.parameters():
                        parameter.add_(0.3 * torch.randn_like(parameter))
        finally:
            torch.set_default_dtype(before)
        self.cutoff_on = cutoff_on
        if basis == "chebyshev":
            self.embedding.bessel_fn = ChebychevBasis(self.embedding.bessel_fn)

    def __call__(self, r: Any, receiver: int, sender: int) -> Any:
        """Return weights as the interaction blocks of mace compute them."""
        n = len(r)
        attrs = torch.zeros(2, 3, dtype=torch.float64)
        attrs[0, sender] = 1.0
        attrs[1, receiver] = 1.0
        edge_index = torch.tensor([[0] * n, [1] * n])
        feats, cutoff = self.embedding(r[:, None], attrs, edge_index, torch.tensor(NUMBERS))
        if self.ends:
            source, target = self.ends
            feats = torch.cat(
                [feats, source[sender].expand(n, -1), target[receiver].expand(n, -1)], dim=1
            )
        weights = self.net(feats)
        weights = weights if cutoff is None else weights * cutoff
        return weights * (r[:, None] < R_MAX)  # mace's graphs end at r_max

    def fields(self, package: SmallPackage) -> dict[str, Any]:
        """Return the field "radial" of a layer."""
        block = self.embedding
        found: dict[str, Any] = {
            "r_max": R_MAX,
            "cutoff": {"kind": "polynomial", "p": int(block.cutoff_fn.p)},
            "cutoff_on": self.cutoff_on,
            "table": None,
            "transform": None,
            "layers": [],
        }
        module = block.bessel_fn
        name = type(module).__name__
        if name == "BesselBasis":
            found["basis"] = {
                "kind": "bessel",
                "weights": package.tensor(_numpy(module.bessel_weights)),
                "prefactor": float(module.prefactor),
            }
        elif name == "GaussianBasis":
            found["basis"] = {
                "kind": "gaussian",
                "centers": package.tensor(_numpy(module.gaussian_weights)),
                "coefficient": float(module.coeff),
            }
        else:
            found["basis"] = {"kind": "chebyshev", "order": 8}
        transform = getattr(block, "distance_transform", None)
        if transform is not None:
            radii = _numpy(transform.covalent_radii)[list(NUMBERS)]
            total = radii[:, None] + radii[None, :]
            if type(transform).__name__ == "AgnesiTransform":
                found["transform"] = {
                    "kind": "agnesi",
                    **{k: float(getattr(transform, k)) for k in "aqp"},
                    "r_0": package.tensor(0.5 * total),
                }
            else:
                found["transform"] = {
                    "kind": "soft",
                    "alpha": float(transform.alpha),
                    "r_0": package.tensor(total),
                }
        if self.ends:
            self._mlp(found, package)
            return found
        layers = list(self.net.children())
        for number, layer in enumerate(layers):
            last = number + 1 == len(layers)
            weight = _numpy(layer.weight) / math.sqrt(layer.h_in * layer.var_in)
            entry: dict[str, Any] = {"weight": package.tensor(weight)}
            if not last:
                entry |= {"activation": "silu", "factor": float(layer.act.cst)}
            found["layers"].append(entry)
        return found

    def _mlp(self, found: dict[str, Any], package: SmallPackage) -> None:
        modules = list(self.net.net)
        first = _numpy(modules[0].weight).T
        source, target = (_numpy(end) for end in self.ends)
        found["sender"] = package.tensor(source @ first[8:11])
        found["receiver"] = package.tensor(target @ first[11:14])
        for number, module in enumerate(modules):
            name = type(module).__name__
            if name == "Linear":
                weight = _numpy(module.weight).T
                found["layers"].append(
                    {
                        "weight": package.tensor(weight[:8] if number == 0 else weight),
                        "bias": package.tensor(_numpy(module.bias)),
                    }
                )
            elif name == "LayerNorm":
                found["layers"][-1]["layer_norm"] = {
                    "weight": package.tensor(_numpy(module.weight)),
                    "bias": package.tensor(_numpy(module.bias)),
                    "epsilon": module.eps,
                }
            else:
                found["layers"][-1]["activation"] = "silu"


CASES = [
    ("bessel", "None", "fully_connected", "basis"),
    ("gaussian", "None", "fully_connected", "basis"),
    ("chebyshev", "None", "fully_connected", "weights"),
    ("bessel", "Agnesi", "fully_connected", "basis"),
    ("gaussian", "Soft", "fully_connected", "basis"),
    ("bessel", "Soft", "fully_connected", "weights"),
    ("chebyshev", "Agnesi", "radial_mlp", "weights"),
    ("bessel", "None", "radial_mlp", "weights"),
    ("bessel", "Agnesi", "radial_mlp", "basis"),
    ("bessel", "None", "one_layer", "basis"),
    ("bessel", "Agnesi", "one_layer", "weights"),
]


def _write(case: _Case, path: Path, dtype: str = "float64") -> str:
    package = SmallPackage(["H", "O", "Fe"], R_MAX, dtype)
    package.layer("conv", radial=case.fields(package))
    return package.write(path / "radial.mdcg")


@pytest.mark.parametrize("pair", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize(("basis", "transform", "net", "cutoff_on"), CASES)
def test_value_and_derivative(
    basis: str, transform: str, net: str, cutoff_on: str, pair: tuple[int, int], tmp_path: Path
) -> None:
    case = _Case(basis, transform, net, cutoff_on, p=5 if transform == "Soft" else 6)
    path = _write(case, tmp_path)
    d = np.random.default_rng(1).normal(size=(len(LENGTHS), 20))
    r = torch.tensor(LENGTHS, requires_grad=True)
    expected = case(r, *pair)
    (expected * torch.tensor(d)).sum().backward()
    weights, slope = core.radial_weights(path, 0, LENGTHS, *pair, d, True)
    scale = np.abs(_numpy(expected)).max()
    # T_8(5) is 10^7: rounding grows with it, and MKL's sums depend on the alignment of memory
    large = 400.0 if basis == "chebyshev" else 1.0
    assert np.abs(weights - _numpy(expected)).max() < 2e-14 * large * scale
    assert np.abs(slope - _numpy(r.grad)).max() < 2e-13 * large * np.abs(_numpy(r.grad)).max()
    beyond = LENGTHS >= R_MAX
    assert not weights[beyond].any()
    assert not slope[beyond].any()

    weights, slope = core.radial_weights(path, 0, LENGTHS, *pair, d, False)
    assert np.abs(weights - _numpy(expected)).max() < 3e-6 * large * scale
    assert np.abs(slope - _numpy(r.grad)).max() < 1e-5 * large * np.abs(_numpy(r.grad)).max()
    assert not weights[beyond].any()
    assert not slope[beyond].any()


@pytest.mark.parametrize("p", [2, 3, 6, 5.5])
def test_cutoffs_by_types_as_in_nequip(p: float, tmp_path: Path) -> None:
    mlp = pytest.importorskip("nequip.nn.mlp")
    cutoffs = pytest.importorskip("nequip.nn.embedding.cutoffs")
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        net = mlp.ScalarMLPFunction(8, 12, 2, 16)
    finally:
        torch.set_default_dtype(before)
    r_max = np.array([[2.0, 3.0], [4.0, 5.0]])
    roots = torch.linspace(1.0, 8.0, 8, dtype=torch.float64)
    package = SmallPackage(["H", "O"], 5.0)
    layers = [m for m in net.mlp if hasattr(m, "weight")]
    package.layer(
        "conv",
        radial={
            "r_max": package.tensor(r_max),
            "basis": {
                "kind": "bessel",
                "argument": "normalized",
                "weights": package.tensor(np.pi * roots.numpy()),
                "prefactor": 1.0 / np.pi,
            },
            "cutoff": {"kind": "polynomial", "p": p},
            "layers": [
                {"weight": package.tensor(_numpy(m.weight) * float(m.alpha))}
                | ({"activation": "silu"} if i < 2 else {})
                for i, m in enumerate(layers)
            ],
        },
    )
    path = package.write(tmp_path / "radial.mdcg")
    d = np.random.default_rng(1).normal(size=(len(LENGTHS), 12))
    for receiver in range(2):
        for sender in range(2):
            r = torch.tensor(LENGTHS, requires_grad=True)
            x = r[:, None] / r_max[receiver, sender]
            basis = torch.sinc(x * roots) * roots * cutoffs.PolynomialCutoff(p)(x)
            expected = net(basis)
            (expected * torch.tensor(d)).sum().backward()
            weights, slope = core.radial_weights(path, 0, LENGTHS, receiver, sender, d, True)
            assert np.abs(weights - _numpy(expected)).max() < 1e-13 * np.abs(weights).max()
            assert np.abs(slope - _numpy(r.grad)).max() < 1e-12 * np.abs(slope).max()
            assert not weights[r_max[receiver, sender] <= LENGTHS].any()


@pytest.mark.parametrize(
    ("basis", "transform", "net", "cutoff_on"), [CASES[i] for i in (0, 3, 4, 7, 8)]
)
def test_table(basis: str, transform: str, net: str, cutoff_on: str, tmp_path: Path) -> None:
    case = _Case(basis, transform, net, cutoff_on)
    path = _write(case, tmp_path)
    rng = np.random.default_rng(2)
    r = np.sort(rng.uniform(R_MAX / 16, R_MAX, size=256))
    r[0] = R_MAX / 16 + 1e-9  # the largest weights stand there
    d = rng.normal(size=(len(r), 20))
    exact, exact_slope = core.radial_weights(path, 0, r, 1, 2, d, True)
    errors = []
    for knots in (64, 128, 256, 512):
        found, slope = core.radial_weights(path, 0, r, 1, 2, d, True, knots)
        errors.append((np.abs(found - exact).max(), np.abs(slope - exact_slope).max()))
    # fourth order in the values, third in the derivatives
    assert errors[0][0] / errors[3][0] > 8**4 / 3
    assert errors[0][1] / errors[3][1] > 8**3 / 3
    single, single_slope = core.radial_weights(path, 0, r, 1, 2, d, False, 512)
    assert np.abs(single - found).max() < 4e-7 * np.abs(exact).max()
    # neighbouring coefficients have most digits in common
    assert np.abs(single_slope - slope).max() < 1e-6 * np.abs(slope).max()


def test_table_derivative_is_exact(tmp_path: Path) -> None:
    path = _write(_Case(*CASES[3]), tmp_path)
    one = np.zeros((4, 20))
    one[:, 7] = 1.0
    step = 1e-4  # inside one interval of 64 smooth: the difference of four values is nearly exact
    first = math.sqrt(R_MAX / 16)
    h = (math.sqrt(R_MAX) - first) / 64
    for interval in (0, 1, 31, 62, 63):
        middle = (first + h * (interval + 0.4)) ** 2
        r = middle + step * np.array([-2.0, -1.0, 1.0, 2.0])
        w, _ = core.radial_weights(path, 0, r, 0, 1, one, True, 64)
        _, slope = core.radial_weights(path, 0, np.array([middle] * 4), 0, 1, one, True, 64)
        found = (w[0, 7] - 8 * w[1, 7] + 8 * w[2, 7] - w[3, 7]) / (12 * step)
        assert abs(found - slope[0]) < 1e-10 * max(1.0, np.abs(w).max())


def test_table_ends_smoothly(tmp_path: Path) -> None:
    path = _write(_Case(*CASES[0]), tmp_path)
    r = R_MAX - np.array([1e-3, 1e-5, 1e-7, 0.0])
    d = np.ones((4, 20))
    w, slope = core.radial_weights(path, 0, r, 0, 1, d, True, 256)
    assert np.abs(w[2]).max() < 1e-12
    assert not w[3].any()
    assert abs(slope[2]) < 1e-8
    assert slope[3] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r_max": -1.0}, "r_max"),
        ({"cutoff_on": "both"}, "expected basis or weights"),
        ({"cutoff": {"kind": "cosine"}}, "expected polynomial"),
        ({"basis": {"kind": "sinc"}}, "expected bessel, gaussian or chebyshev"),
        ({"transform": {"kind": "log"}}, "expected agnesi or soft"),
        ({"layers": []}, "1 .. 16"),
        ({"table": {"knots": 2}}, "knots"),
    ],
)
def test_bad_fields(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    package.layer("conv", radial=_Case(*CASES[0]).fields(package) | change)
    path = package.write(tmp_path / "radial.mdcg")
    with pytest.raises(Exception, match=message):
        core.radial_weights(path, 0, np.ones(1), 0, 0, np.ones((1, 20)), True)
