"""Patching NequIP models in place: same results, same state, and back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.errors import MdcgError, UnsupportedProblemError
from mdcg.patch import inspect_model, is_patched, load_model, patch_model, unpatch_model
from mdcg.patch.layers import PROBLEM
from mdcg.patch.nequip_files import nequip_state

from ..processes import printed_by
from .conftest import MODELS


def layers(model: torch.nn.Module, kind: str) -> list[Any]:
    return [module for name, module in model.named_modules() if name.endswith(f"conv.{kind}")]


# Models that are also tested in float32, because their kernels compile quickly.
SINGLE = ("one layer", "pair potential")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float64) for name in MODELS), *((name, torch.float32) for name in SINGLE)],
)
def test_same_results_and_state(
    name: str,
    dtype: torch.dtype,
    build: Callable[..., torch.nn.Module],
    systems: Any,
    evaluate: Any,
    agree: Any,
) -> None:
    model = build(name, dtype)
    classes = [type(module) for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    before = [evaluate(model, system) for system in systems(model)]

    report = patch_model(model)
    assert report.complete
    assert is_patched(model)
    convolutions, connections = layers(model, "tp_scatter"), layers(model, "sc")
    assert len(convolutions) == MODELS[name]["num_layers"]
    found = {row.name.split(".")[-1] for row in report.patched}
    assert found == {"tp_scatter", "sc"} if connections else {"tp_scatter"}
    assert all(hasattr(type(layer), PROBLEM) for layer in convolutions)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[key], state[key]) for key in state)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    for system, want in zip(systems(model), before, strict=True):
        agree(evaluate(model, system), want, tolerance, system.name)

    assert unpatch_model(model) == len(report.patched)
    assert [type(module) for module in model.modules()] == classes
    assert not any(PROBLEM in module.__dict__ for module in model.modules())
    for system, want in zip(systems(model), before, strict=True):
        # Only to rounding: TorchScript, which e3nn uses, optimises code after its first calls.
        agree(evaluate(model, system), want, 1e-12 if dtype == torch.float64 else 2e-5, system.name)


def test_report_and_patching_twice(build: Callable[..., torch.nn.Module]) -> None:
    model = build()
    looked = inspect_model(model)
    assert {row.status for row in looked.layers} == {"can be patched", "left as is"}
    row = next(row for row in looked.layers if row.name.endswith("layer1_convnet.conv.tp_scatter"))
    assert row.irreps_in1 == "9x0e+4x1o+2x2e+3x3o"
    assert row.paths == 23
    assert not is_patched(model)
    assert patch_model(model).complete
    again = patch_model(model)
    assert {row.status for row in again.layers} == {"already patched", "left as is"}


def test_kept_tensor_product(build: Callable[..., torch.nn.Module]) -> None:
    model = build()
    before = [layer.tp for layer in layers(model, "tp_scatter")]
    patch_model(model)
    assert all(a is b.tp for a, b in zip(before, layers(model, "tp_scatter"), strict=True))


def test_copies_and_pickles(
    build: Callable[..., torch.nn.Module], systems: Any, evaluate: Any, agree: Any, tmp_path: Path
) -> None:
    model = build()
    patch_model(model)
    system = systems(model)[0]
    want = evaluate(model, system)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    pickled = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(model), pickled):
        assert is_patched(other)
        agree(evaluate(other, system), want, 1e-12)
        assert unpatch_model(other) == 5
        agree(evaluate(other, system), want, 1e-11)
    path = tmp_path / "patched.pt"
    torch.save(model, path)
    code = f"import torch; print(type(torch.load({str(path)!r}, weights_only=False)).__module__)"
    assert printed_by(code).split()[-1:] == ["nequip.nn.graph_model"]


def test_layer_follows_dtype_and_state(build: Callable[..., torch.nn.Module]) -> None:
    """Patched layers follow changes of dtype and 3j signs in their buffers."""
    model = build("preset-like")
    patch_model(model)
    layer = layers(model, "tp_scatter")[1]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, layer.tp.irreps_in1.dim, generator=generator, dtype=torch.float64)
    y = torch.randn(5, layer.tp.irreps_in2.dim, generator=generator, dtype=torch.float64)
    w = torch.randn(5, layer.tp.weight_numel, generator=generator, dtype=torch.float64)
    dst, src = torch.tensor([0, 3, 3, 1, 0]), torch.tensor([1, 1, 0, 0, 3])
    want = layer(x, y, w, dst, src)
    single = copy.deepcopy(layer).float()
    got = single(x.float(), y.float(), w.float(), dst, src)
    assert got.dtype == torch.float32
    assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-6
    # 3j symbols with the sign of another version of e3nn
    state = {
        key: -value if "_w3j_1_1_2" in key else value for key, value in layer.state_dict().items()
    }
    layer.load_state_dict(state)
    flipped = layer(x, y, w, dst, src)
    assert float((flipped - want).abs().max()) > 1e-3
    unpatch = copy.deepcopy(model)
    unpatch_model(unpatch)
    stock = layers(unpatch, "tp_scatter")[1]
    assert float((stock(x, y, w, dst, src) - flipped).abs().max() / want.abs().max()) < 1e-12


def test_state_loaded_into_the_tensor_product_alone(
    build: Callable[..., torch.nn.Module],
) -> None:
    """3j signs loaded only into the tensor product of a layer take effect in the layer."""
    model = build("preset-like")
    stock = copy.deepcopy(layers(model, "tp_scatter")[1])
    patch_model(model)
    layer = layers(model, "tp_scatter")[1]
    x, y, w = (
        torch.randn(3, n, dtype=torch.float64)
        for n in (layer.tp.irreps_in1.dim, layer.tp.irreps_in2.dim, layer.tp.weight_numel)
    )
    edges = torch.tensor([0, 1, 1])
    before = layer(x, y, w, edges, edges.flip(0))
    for kind in (layer, stock):
        state = kind.tp.state_dict()
        signed = {n: -v if "_w3j_1_1_2" in n else v for n, v in state.items()}
        kind.tp.load_state_dict(signed)
    after = layer(x, y, w, edges, edges.flip(0))
    torch.testing.assert_close(after, stock(x, y, w, edges, edges.flip(0)), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after, before)


def test_layer_without_edges_and_under_autocast(build: Callable[..., torch.nn.Module]) -> None:
    model = build("parity", torch.float32)
    patch_model(model)
    layer = layers(model, "tp_scatter")[1]
    x = torch.randn(4, layer.tp.irreps_in1.dim)
    none = torch.zeros(0, dtype=torch.int64)
    attrs = layer.tp.irreps_in2.dim
    out = layer(x, x.new_zeros(0, attrs), x.new_zeros(0, layer.tp.weight_numel), none, none)
    assert out.shape == (4, layer.tp.irreps_out.dim)
    assert not out.any()
    w = torch.randn(3, layer.tp.weight_numel).bfloat16()
    edges = torch.tensor([0, 1, 1])
    out = layer(x, torch.randn(3, attrs), w, edges, edges.flip(0))
    assert out.dtype == torch.float32


# ---- self-connections ----


@pytest.fixture
def connection(build: Callable[..., torch.nn.Module]) -> tuple[Any, Any]:
    model = build("parity")
    stock = layers(copy.deepcopy(model), "sc")[0]
    patch_model(model)
    return layers(model, "sc")[0], stock


@pytest.mark.parametrize("rows", ["repeat", "sorted", "differ", "few", "nan"])
def test_self_connection_is_exact(connection: tuple[Any, Any], rows: str) -> None:
    layer, stock = connection
    generator = torch.Generator().manual_seed(1)
    kinds = torch.randn(3, layer.irreps_in2.dim, generator=generator, dtype=torch.float64)
    place = {
        "repeat": torch.randint(3, (40,), generator=generator),
        "sorted": torch.arange(3).repeat_interleave(13),
        "differ": torch.arange(40),
        "few": torch.tensor([0, 1]),
        "nan": torch.zeros(20, dtype=torch.int64),
    }[rows]
    if rows == "differ":
        kinds = torch.randn(40, layer.irreps_in2.dim, generator=generator, dtype=torch.float64)
    y = kinds[place]
    if rows == "nan":
        y[3] = float("nan")
    x = torch.randn(len(y), layer.irreps_in1.dim, generator=generator, dtype=torch.float64)
    for changed in (y, 2.0 * y):  # the second call must not use values cached by the first
        got, want = layer(x, changed), stock(x, changed)
        ok = torch.isfinite(want)
        assert torch.equal(torch.isfinite(got), ok)
        error = (got - want)[ok].detach().abs().max() / want[ok].detach().abs().max()
        assert float(error) < 1e-13


@pytest.mark.parametrize("y_needs_grad", [False, True])
def test_self_connection_gradients(connection: tuple[Any, Any], y_needs_grad: bool) -> None:
    """First and second derivatives of a self-connection equal those of the original."""
    layer, stock = connection
    generator = torch.Generator().manual_seed(2)
    kinds = torch.randn(2, layer.irreps_in2.dim, generator=generator, dtype=torch.float64)
    y0 = kinds[torch.randint(2, (12,), generator=generator)]
    x0 = torch.randn(12, layer.irreps_in1.dim, generator=generator, dtype=torch.float64)
    found = []
    for module in (layer, stock):
        x, y = x0.clone().requires_grad_(), y0.clone().requires_grad_(y_needs_grad)
        leaves = [x, module.weight, *([y] if y_needs_grad else [])]
        value = module(x, y).pow(3).sum()
        first = torch.autograd.grad(value, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)
        found.append([value, *first, *second])
    for got, want in zip(*found, strict=True):
        error = (got - want).detach().abs().max() / want.detach().abs().max()
        assert float(error) < 1e-12


def test_self_connection_under_transforms(connection: tuple[Any, Any]) -> None:
    layer, stock = connection
    x = torch.randn(8, layer.irreps_in1.dim, dtype=torch.float64)
    y = torch.randn(1, layer.irreps_in2.dim, dtype=torch.float64).expand(8, -1)
    with torch.no_grad():
        _, tangent = torch.func.jvp(lambda a: layer(a, y), (x,), (x,))
        assert float((tangent - stock(x, y)).abs().max()) < 1e-12
        assert layer(x[None], y[None]).shape == (1, 8, layer.irreps_out.dim)


# ---- refusals ----


def test_accelerated_by_another_package(build: Callable[..., torch.nn.Module]) -> None:
    model = build("one layer")
    scatter = layers(model, "tp_scatter")[0]
    name = "OpenEquivarianceTensorProductScatter"
    scatter.__class__ = type(name, (type(scatter),), {})
    with pytest.raises(UnsupportedProblemError, match="already accelerated by OpenEquivariance"):
        patch_model(model)


def test_replaced_forward(build: Callable[..., torch.nn.Module]) -> None:
    model = build("preset-like")
    scatter = layers(model, "tp_scatter")[0]
    scatter.forward = scatter.forward
    with pytest.raises(UnsupportedProblemError, match=r"1 of 5 layers .* has been replaced"):
        patch_model(model)
    assert not is_patched(model)
    report = patch_model(model, allow_partial=True)
    assert len(report.refused) == 1
    assert len(report.patched) == 4


def test_half_precision(build: Callable[..., torch.nn.Module]) -> None:
    with pytest.raises(UnsupportedProblemError, match=r"dtype is torch\.float16, expected float32"):
        patch_model(build("one layer").half())


def test_torchscript(build: Callable[..., torch.nn.Module]) -> None:
    model = build("one layer")
    patch_model(model)
    with pytest.raises(MdcgError, match="TorchScript cannot hold mdcg layers"):
        torch.jit.script(layers(model, "tp_scatter")[0])


def test_wrong_kernel_is_found(
    build: Callable[..., torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer whose result differs from its instructions is not patched."""
    model = build("one layer")
    scatter = layers(model, "tp_scatter")[0]
    stock = type(scatter).forward
    monkeypatch.setattr(type(scatter), "forward", lambda *args: 1.001 * stock(*args))
    with pytest.raises(MdcgError, match=r"differs from the stock layer by 1\.0e-03"):
        patch_model(model)
    assert not is_patched(model)


# ---- models of packages ----


def test_package(package: Path, data_dir: Path, systems: Any, evaluate: Any, agree: Any) -> None:
    """Models of a package, which has its own copies of all classes, can be patched and restored."""
    model = load_model(package)
    assert type(model).__module__.startswith("<torch_package_")
    want = [evaluate(load_model(data_dir / "nequip_alloy.ckpt"), s) for s in systems(model)]
    classes = [type(module) for module in model.modules()]
    assert len(patch_model(model).patched) == 5
    for system, reference in zip(systems(model), want, strict=True):
        agree(evaluate(model, system), reference, 1e-5, system.name)
    twin = copy.deepcopy(model)
    assert is_patched(twin)
    agree(evaluate(twin, systems(model)[0]), want[0], 1e-5)
    unpatch_model(model)
    assert [type(module) for module in model.modules()] == classes


# ---- training ----


def test_global_state_is_left_alone(data_dir: Path) -> None:
    from e3nn import get_optimization_defaults

    def look() -> tuple[Any, ...]:
        from nequip.utils import global_state

        return (
            torch.get_default_dtype(),
            get_optimization_defaults(),
            torch.random.get_rng_state().tolist(),
            global_state._GLOBAL_STATE_INITIALIZED,
        )

    before = look()
    patch_model(load_model(data_dir / "nequip_water.ckpt"))
    with nequip_state():
        assert torch.get_default_dtype() == torch.float64
    assert look() == before
