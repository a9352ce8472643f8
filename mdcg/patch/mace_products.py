"""Swap the symmetric contractions of a loaded MACE model in place, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import MdcgError, UnsupportedProblemError, VerificationError
from ..problem import FoldedTensors
from .copies import copy_model
from .probe import relative_errors
from .report import ALREADY, PATCHABLE, PATCHED, REFUSED, LayerReport

__all__ = [
    "Contraction",
    "apply_contraction",
    "contractions_of",
    "has_fused_contraction",
    "restore_contraction",
    "restore_contractions",
]

_NODES = 7


@dataclass
class Contraction:
    """A symmetric contraction that was found: what it is and what to do with it."""

    layer: Any
    report: LayerReport
    fold: FoldedTensors | None = None

    def probe(self, *, allow_partial: bool) -> LayerReport:
        """Compare the kernels with the stock layer; return the row of the report.

        Raises
        ------
        UnsupportedProblemError, VerificationError
            The layer cannot be patched and `allow_partial` is False.
        """
        assert self.fold is not None
        try:
            error = _probe(self.layer, self.fold, self.report.name)
        except (UnsupportedProblemError, VerificationError) as refusal:
            if not allow_partial:
                raise
            return replace(self.report, status=REFUSED, reason=str(refusal), problem_key="")
        return replace(self.report, status=PATCHED, probe_error=error)


def contractions_of(model: torch.nn.Module) -> Iterator[Contraction]:
    """Yield the symmetric contraction of every product block, with what can be done."""
    for name, layer in _layers(model):
        yield _look_at(name, layer)


def restore_contractions(model: torch.nn.Module) -> int:
    """Give all patched layers of a model their own class back; return how many."""
    fused = [layer for _, layer in _layers(model) if _is_fused(layer)]
    for layer in fused:
        restore_contraction(layer)
    return len(fused)


def has_fused_contraction(model: torch.nn.Module) -> bool:
    """Return whether a symmetric contraction of the model runs on generated kernels."""
    return any(_is_fused(layer) for _, layer in _layers(model))


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, block in model.named_modules():
        layer = getattr(block, "symmetric_contractions", None)
        if isinstance(layer, torch.nn.Module):
            yield f"{name}.symmetric_contractions" if name else "symmetric_contractions", layer


def apply_contraction(found: Contraction) -> None:
    """Make a layer that was probed run on generated kernels."""
    from .fused_contraction import FOLD, FusedSymmetricContraction

    assert found.fold is not None
    found.layer.__dict__[FOLD] = found.fold.to_json()
    found.layer.__class__ = FusedSymmetricContraction
    found.layer._remember()


def restore_contraction(layer: Any) -> None:
    """Give a layer its own class back."""
    layer.__class__ = _stock_class()
    for name in ("_mdcg_fold", "_mdcg_map"):
        layer.__dict__.pop(name, None)


def _look_at(name: str, layer: Any) -> Contraction:
    if _is_fused(layer):
        return Contraction(layer, _describe(name, layer, ALREADY, fold=_kept(layer)))
    reason = _refusal(layer)
    fold = None
    if not reason:
        from .fused_contraction import fold_contraction

        try:
            fold = fold_contraction(layer)
        except (MdcgError, ValueError, AttributeError, IndexError) as error:
            reason = str(error)
    status = REFUSED if reason else PATCHABLE
    return Contraction(layer, _describe(name, layer, status, reason, fold), fold)


def _kept(layer: Any) -> FoldedTensors:
    from .fused_contraction import fold_contraction

    text: str = layer._mdcg_fold
    return FoldedTensors.from_json(text) if text else fold_contraction(layer)


def _refusal(layer: Any) -> str:
    """Return why a layer cannot be patched, or an empty string."""
    if type(layer).__module__.partition(".")[0] == "cuequivariance_torch":
        return "already accelerated by cuEquivariance: convert the model back to e3nn first"
    if type(layer) is not _stock_class():
        return (
            f"symmetric_contractions is a {type(layer).__qualname__}, expected a "
            "SymmetricContraction of mace"
        )
    if "forward" in layer.__dict__:
        return "symmetric_contractions has had its forward replaced by another package: undo that"
    kinds = {type(part).__qualname__ for part in layer.contractions}
    if kinds - {"Contraction"} or any("forward" in part.__dict__ for part in layer.contractions):
        return f"its parts are {', '.join(sorted(kinds))}, expected mace's own Contraction"
    return ""


def _stock_class() -> Any:
    module = sys.modules.get("mace.modules.symmetric_contraction")
    return getattr(module, "SymmetricContraction", None)


def _is_fused(layer: Any) -> bool:
    fused = sys.modules.get("mdcg.patch.fused_contraction")
    return fused is not None and type(layer) is fused.FusedSymmetricContraction


def _describe(
    name: str, layer: Any, status: str, reason: str = "", fold: FoldedTensors | None = None
) -> LayerReport:
    into, out = (str(getattr(layer, f"irreps_{end}", "")) for end in ("in", "out"))
    if fold is None:
        return LayerReport(name, into, "", out, 0, 0, 0, status, reason)
    paths = fold.combination.shape[1]
    problem = fold.problem
    weights = paths * problem.channels
    return LayerReport(
        name, into, "", out, paths, problem.nnz, weights, status, reason, problem.key()
    )


# ---- checking ----


def _probe(layer: Any, fold: FoldedTensors, name: str) -> float:
    """Return the largest relative difference from the stock layer in float64, with gradients."""
    dtype: torch.dtype = layer.contractions[0].weights_max.dtype
    with torch.inference_mode(False), torch.enable_grad():
        got, want = _both(layer, fold)
    labels = ("value", "gradient of node_feats")
    return relative_errors(name, str(fold.problem), zip(labels, got, want, strict=True), dtype)


def _both(layer: Any, fold: FoldedTensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    from ..ops import contraction
    from .fused_contraction import stacked_weights

    like = layer.contractions[0].weights_max
    species, _, channels = like.shape
    dim = fold.problem.dim_in
    generator = torch.Generator("cpu").manual_seed(20240229)

    def draw(*shape: int) -> torch.Tensor:
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        return value.to(device=like.device, dtype=like.dtype)

    feats, cotangent = draw(_NODES, channels, dim), draw(_NODES, channels * fold.problem.dim_out)
    attrs = torch.zeros(_NODES, species, dtype=like.dtype, device=like.device)
    attrs[range(_NODES), [n * 5 % species for n in range(_NODES)]] = 1
    attrs[_NODES - 1] = draw(species)  # one node of all species at once
    matrix = torch.from_numpy(fold.combination).to(like)
    problem = fold.problem.with_dtype(str(like.dtype).removeprefix("torch."))

    x = feats.clone().requires_grad_()
    coefficients = torch.matmul(matrix, stacked_weights(layer).detach())
    fused = contraction.symmetric_contraction(problem, x, coefficients, attrs)
    got = [fused, *torch.autograd.grad(fused, x, cotangent)]

    stock = copy_model(layer).to(torch.float64)
    x = feats.double().requires_grad_()
    value = stock.forward(x, attrs.double())  # not stock(...), which calls the user's hooks
    return got, [value, *torch.autograd.grad(value, x, cotangent.double())]
