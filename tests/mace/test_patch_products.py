"""Symmetric contractions of mace-torch, patched: every kind, every derivative, and the way back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from mdcg import UnsupportedProblemError, patch_model
from mdcg.patch import inspect_model, is_patched
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.fused_contraction import (
    FusedSymmetricContraction,
    fold_contraction,
    stacked_weights,
)
from mdcg.patch.layers import MaceContraction
from mdcg.patch.models import copy_model

Tensors = list[torch.Tensor]


def build_layer(
    into: str, out: str, correlation: int, *, species: int = 3, dtype: Any = torch.float64
) -> Any:
    """Return a random layer of mace."""
    from e3nn import o3
    from mace.modules.symmetric_contraction import SymmetricContraction

    with torch.random.fork_rng(devices=[]), default_dtype(dtype):
        torch.manual_seed(4)
        return SymmetricContraction(
            o3.Irreps(into), o3.Irreps(out), correlation, num_elements=species
        )


def fuse(layer: Any) -> Any:
    """Return a patched copy of a layer."""
    fused = copy_model(layer)
    MaceContraction("layer", fused).patch(fold_contraction(fused))
    assert type(fused) is FusedSymmetricContraction
    return fused


def operands(layer: Any, nodes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return node features and attributes: one-hot but for a mixture and a node of nothing."""
    weights = layer.contractions[0].weights_max
    species, _, channels = weights.shape
    generator = torch.Generator().manual_seed(11)
    dim = layer.irreps_in.dim // channels
    x = torch.randn(nodes, channels, dim, generator=generator, dtype=torch.float64)
    y = torch.eye(species, dtype=torch.float64)[torch.arange(nodes) % species]
    y[1] = torch.randn(species, generator=generator, dtype=torch.float64)
    y[2] = 0
    return x.to(weights.dtype), y.to(weights.dtype)


def all_derivatives(layer: Any, *, attributes: bool = False) -> Tensors:
    """Return the value, and first and second derivatives in features, attributes and weights."""
    x, y = operands(layer)
    x.requires_grad_()
    y.requires_grad_(attributes)
    leaves = [x, *([y] if attributes else [])]
    leaves += [p for p in layer.parameters() if p.requires_grad]
    out = layer(x, y)
    generator = torch.Generator().manual_seed(2)

    def draw(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)

    first = torch.autograd.grad(out, leaves, draw(out), create_graph=True)
    total = torch.stack([(t * draw(t)).sum() for t in first]).sum()
    second = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [out, *first, *second]


def assert_same(got: Tensors, want: Tensors, tolerance: float) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        # Operands are of order 1, so values that vanish have rounding errors of that scale.
        scale = max(float(b.detach().abs().max()), 0.1) if b.numel() else 1.0
        error = float((a.detach() - b.detach()).abs().max()) / scale if b.numel() else 0.0
        assert error <= tolerance, f"relative error {error:.1e}"


KINDS = {
    "correlation 1": ("4x0e+4x1o", "4x0e+4x1o", 1),
    "correlation 2": ("5x0e+5x1o+5x2e", "5x0e+5x1o+5x2e", 2),
    "correlation 3": ("17x0e+17x1o+17x2e", "17x0e+17x1o", 3),
    "correlation 4": ("3x0e+3x1o", "3x0e+3x1o", 4),
    "max_ell 3": ("2x0e+2x1o+2x2e+2x3o", "2x0e+2x1o+2x2e", 3),
    "order without path": ("3x0e+3x1o+3x2e", "3x0e+3x1e+3x2e", 2),
    "no parity": ("3x0e+3x1e+3x2e", "3x0e+3x1e", 3),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_and_derivatives(name: str) -> None:
    layer = build_layer(*KINDS[name])
    assert_same(all_derivatives(fuse(layer)), all_derivatives(layer), 1e-12)


def test_derivatives_in_the_attributes() -> None:
    layer = build_layer(*KINDS["correlation 2"])
    got, want = (all_derivatives(kind, attributes=True) for kind in (fuse(layer), layer))
    assert_same(got, want, 1e-12)


@pytest.mark.parametrize("name", ["correlation 3", "max_ell 3"])
def test_single_precision(name: str) -> None:
    layer = build_layer(*KINDS[name], dtype=torch.float32)
    exact = all_derivatives(copy.deepcopy(layer).double())
    got = [t.double() for t in all_derivatives(fuse(layer))]
    own = [t.double() for t in all_derivatives(layer)]
    for value, theirs, truth in zip(got, own, exact, strict=True):
        error, limit = ((t - truth).abs().max().item() for t in (value, theirs))
        assert error <= 3 * limit + 1e-5 * truth.abs().max().item()


def test_independent_polynomials_are_counted() -> None:
    """The fold keeps 8, 12 and 14 independent cubic polynomials of 23, 51 and 65 paths."""
    fold = fold_contraction(build_layer(*KINDS["max_ell 3"]))
    cubic = [0, 0, 0]
    for polynomial in fold.problem.polynomials:
        terms = [indices for part in polynomial.components for _, indices in part]
        cubic[polynomial.i_out] += all(len(indices) == 3 for indices in terms)
    assert cubic == [8, 12, 14]
    assert fold.combination.shape == (49, 4 + 23 + 1 + 6 + 51 + 1 + 7 + 65 + 1)
    assert fold.error < 1e-13


def test_fewer_paths_than_usual() -> None:
    """A layer with reduced coupling tensors, as use_reduced_cg makes them, can be patched."""
    layer = build_layer(*KINDS["correlation 3"])
    for part in layer.contractions:
        for order in (2, 3):
            coupling = getattr(part, f"U_matrix_{order}")
            kept = coupling[..., ::2].clone()
            if order == 3:  # an asymmetric tensor, which adds a dependent path
                kept = torch.cat([kept, kept[..., :1] - 2 * kept.flip(-1)[..., :1]], -1)
            part.register_buffer(f"U_matrix_{order}", kept)
            shape = list(part.weights_max.shape)
            shape[1] = kept.shape[-1]
            generator = torch.Generator().manual_seed(order)
            weights = torch.nn.Parameter(
                torch.randn(shape, generator=generator, dtype=torch.float64)
            )
            if order == 3:
                part.weights_max = weights
            else:
                part.weights[0] = weights
    assert_same(all_derivatives(fuse(layer)), all_derivatives(layer), 1e-12)


def test_weights_are_read_at_every_call() -> None:
    """Weights are read again at every call, even if they change without autograd's notice."""
    layer = build_layer(*KINDS["correlation 2"])
    fused = fuse(layer)
    x, y = operands(layer)
    fused(x, y)
    for kind in (layer, fused):
        for parameter in kind.parameters():
            parameter.data.mul_(1.5).add_(0.25)
    assert_same([fused(x, y)], [layer(x, y)], 1e-12)


def test_coupling_tensors_of_another_file() -> None:
    layer = build_layer(*KINDS["no parity"])
    fused = fuse(layer)
    state = layer.state_dict()
    names = [name for name in state if "U_matrix_3" in name]
    for name in names:
        state[name] = state[name] * torch.linspace(-1, 1, state[name].shape[-1])
    for kind in (layer, fused):
        kind.load_state_dict(state)
    assert_same(all_derivatives(fused), all_derivatives(layer), 1e-12)


@pytest.mark.parametrize("part", [0, 1])
def test_coupling_tensors_loaded_into_one_part(part: int) -> None:
    """Coupling tensors that are loaded into one part of a layer are used by the next call."""
    layer = build_layer(*KINDS["correlation 2"])
    fused = fuse(layer)
    x, y = operands(layer)
    before = fused(x, y)
    for kind in (layer, fused):
        below = kind.contractions[part]
        state = {n: -v if n.startswith("U_") else v for n, v in below.state_dict().items()}
        below.load_state_dict(state)
    assert_same([fused(x, y)], [layer(x, y)], 1e-12)
    assert not torch.allclose(fused(x, y), before)
    text = fused._mdcg_fold
    fused(x, y)
    assert fused._mdcg_fold is text  # tensors are read only once
    MaceContraction("layer", fused).restore()
    assert not any(p._load_state_dict_post_hooks for p in fused.contractions)
    assert "_mdcg_loaded" not in fused.contractions[part].__dict__


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_dtype_may_change(first: torch.dtype) -> None:
    """After a change of dtype the layer uses the rounded buffers, and refuses bfloat16."""
    layer = build_layer(*KINDS["correlation 3"], dtype=first)
    fused = fuse(layer)
    for dtype, tolerance in ((torch.float32, 2e-4), (torch.float64, 1e-12)):
        layer.to(dtype)
        fused.to(dtype)
        x, y = operands(layer)
        assert_same([fused(x, y)], [layer(x, y)], tolerance)
    fused.to(torch.bfloat16)
    with pytest.raises(UnsupportedProblemError, match="bfloat16"):
        fused(*operands(fused))
    fused.to(torch.float64)


def test_nothing_of_the_size_of_the_couplings_is_in_a_pickle() -> None:
    layer = build_layer(*KINDS["max_ell 3"])
    plain, fused = (len(pickle.dumps(kind)) for kind in (layer, fuse(layer)))
    assert fused - plain < 200_000


def test_inference_mode_leaves_nothing_behind() -> None:
    layer = build_layer(*KINDS["correlation 2"])
    fused = fuse(layer)
    x, y = operands(layer)
    with torch.inference_mode():
        fused._prepare()
        fused(x, y)
    assert_same(all_derivatives(fused), all_derivatives(layer), 1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled() -> None:
    torch._dynamo.reset()
    layer = build_layer(*KINDS["correlation 2"])
    fused = fuse(layer)
    x, y = operands(layer)
    x.requires_grad_()
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    got, want = (
        torch.autograd.grad(f(x, y).square().sum(), [x, *layer_parameters(fused)])
        for f in (compiled, fused)
    )
    assert_same(list(got), list(want), 1e-13)


def layer_parameters(layer: Any) -> Tensors:
    return [p for p in layer.parameters() if p.requires_grad]


# -- in a model -----------------------------------------------------------------------------------


def test_report(build: Any) -> None:
    model = build()
    rows = {layer.name: layer for layer in inspect_model(model).layers}
    assert rows["products.0.symmetric_contractions"].status == "can be patched"
    report = patch_model(model)
    rows = {layer.name: layer for layer in report.layers}
    row = rows["products.0.symmetric_contractions"]
    assert row.status == "patched"
    assert (row.irreps_in1, row.irreps_in2) == ("4x0e+4x1o+4x2e", "")
    assert row.irreps_out == "4x0e+4x1o"
    assert (
        row.paths * 4
        == row.weight_numel
        == 4 * stacked_weights(model.products[0].symmetric_contractions).shape[1]
    )
    assert row.nnz > 0
    assert len(row.problem_key) == 16
    assert row.probe_error is not None
    assert row.probe_error < 1e-11
    assert {layer.status for layer in patch_model(model).patched} == {"already patched"}


@pytest.mark.parametrize("agnostic", [False, True])
def test_training_step_has_the_same_gradients(
    agnostic: bool, build: Any, systems: Any, evaluate: Any
) -> None:
    """Gradients of a loss of energy, forces and stress agree for every parameter."""
    model = build(correlation=3, use_agnostic_product=agnostic)
    patched = copy.deepcopy(model)
    patch_model(patched)
    found = []
    for kind in (model, patched):
        outputs = evaluate(kind, systems(kind)[1], training=True)
        loss = outputs["energy"].square().sum() + outputs["forces"].square().sum()
        loss = loss + outputs["stress"].square().sum()
        loss.backward()
        found.append({name: p.grad for name, p in kind.named_parameters() if p.grad is not None})
    assert list(found[0]) == list(found[1])
    assert any("symmetric_contractions" in name for name in found[0])
    for name, want in found[0].items():
        scale = max(float(want.abs().max()), 1e-6)
        assert float((found[1][name] - want).abs().max()) < 1e-10 * scale, name


def test_hessian(build: Any, systems: Any, evaluate: Any) -> None:
    """The Hessian agrees, which mace computes by vmap over the forces."""
    model = build(correlation=3)
    patched = copy.deepcopy(model)
    patch_model(patched)
    system = systems(model)[3]
    got, want = (
        evaluate(kind, system, compute_hessian=True)["hessian"].detach()
        for kind in (patched, model)
    )
    assert float((got - want).abs().max()) < 1e-10 * float(want.abs().max())


def test_correlation_five_is_refused(build: Any) -> None:
    layer = build_layer("2x0e+2x1o", "2x0e", 5)
    with pytest.raises(UnsupportedProblemError, match="correlation order 5"):
        fold_contraction(layer)


def test_a_wrong_kernel_is_noticed(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdcg import VerificationError
    from mdcg.ops import functional as operators

    right = operators.symmetric_contraction
    monkeypatch.setattr(operators, "symmetric_contraction", lambda *a: right(*a) * 1.001)
    model = build()
    with pytest.raises(VerificationError, match="symmetric_contractions: the value of the gen"):
        patch_model(model)
    assert not is_patched(model)


def test_a_copy_after_new_weights_were_loaded(build: Any) -> None:
    """A loaded state takes effect in the layer and in copies made before its next call."""
    layer = build_layer("3x0e+3x1o", "3x0e+3x1o", 2)
    fused = fuse(layer)
    fused.load_state_dict(layer.state_dict())
    x, y = operands(layer)
    for other in (copy.deepcopy(fused), fused):
        torch.testing.assert_close(other(x, y), layer(x, y), rtol=1e-12, atol=1e-12)


def test_skip_connection_with_gradients_in_the_attributes(build: Any) -> None:
    """Derivatives agree with grouped attributes, and with attributes that need gradients."""
    model = build()
    stock = copy.deepcopy(model.interactions[1].skip_tp)
    patch_model(model)
    layer = model.interactions[1].skip_tp
    assert type(layer).__name__ == "FusedFullyConnectedTensorProduct"
    generator = torch.Generator().manual_seed(9)
    x0 = torch.randn(12, layer.irreps_in1.dim, generator=generator, dtype=torch.float64)
    y0 = torch.eye(2, dtype=torch.float64)[torch.arange(12) % 2]
    for grouped in (True, False):
        found = []
        for module in (layer, stock):
            x, y = x0.clone().requires_grad_(), y0.clone().requires_grad_(not grouped)
            leaves = [x, module.weight, *([] if grouped else [y])]
            value = module(x, y)
            first = torch.autograd.grad(value.pow(3).sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)
            found.append([value, *first, *second])
        assert_same(*found, 1e-12)
