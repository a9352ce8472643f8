"""The symmetric contractions of MACE models, which can be patched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import UnsupportedProblemError, a_type
from ..problem import FoldedTensors
from .copies import copy_model
from .layer import Layer
from .probe import relative_errors
from .report import LayerReport

_NODES = 7


def find_contractions(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield the symmetric contraction of every product block."""
    for name, block in model.named_modules():
        layer = getattr(block, "symmetric_contractions", None)
        if isinstance(layer, torch.nn.Module):
            at = f"{name}.symmetric_contractions" if name else "symmetric_contractions"
            yield MaceContraction(at, layer)


class MaceContraction(Layer):
    """The ``symmetric_contractions`` of a product block."""

    @property
    def is_patched(self) -> bool:
        """Whether the module has the class that patching gives it."""
        fused = sys.modules.get("mdcg.patch.fused_contraction")
        return fused is not None and type(self.module) is fused.FusedSymmetricContraction

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        layer = self.module
        if type(layer).__module__.partition(".")[0] == "cuequivariance_torch":
            return "already accelerated by cuEquivariance: convert the model back to e3nn first"
        if type(layer) is not _stock_class():
            return (
                f"symmetric_contractions is {a_type(layer)}, expected a "
                "SymmetricContraction of mace"
            )
        if "forward" in layer.__dict__:
            return (
                "symmetric_contractions has had its forward replaced by another package: undo that"
            )
        kinds = {type(part).__qualname__ for part in layer.contractions}
        if kinds - {"Contraction"} or any("forward" in p.__dict__ for p in layer.contractions):
            return f"its parts are {', '.join(sorted(kinds))}, expected mace's own Contraction"
        return ""

    def make_problem(self) -> FoldedTensors:
        """Reduce the coupling tensors of the layer's own buffers.

        Raises
        ------
        UnsupportedProblemError
            No kernel computes them.
        """
        from .fused_contraction import fold_contraction

        try:
            return fold_contraction(self.module)
        except (AttributeError, IndexError) as error:
            raise UnsupportedProblemError(str(error)) from error

    def describe(self, status: str, reason: str = "", problem: Any = None) -> LayerReport:
        """Return the row of a report."""
        layer = self.module
        fold: FoldedTensors | None = problem
        if fold is None and self.is_patched:
            text: str = layer._mdcg_fold
            fold = FoldedTensors.from_json(text) if text else self.make_problem()
        into, out = (str(getattr(layer, f"irreps_{end}", "")) for end in ("in", "out"))
        if fold is None:
            return LayerReport(self.name, into, "", out, 0, 0, 0, status, reason)
        paths, of = fold.combination.shape[1], fold.problem
        return LayerReport(
            self.name, into, "", out, paths, of.nnz, paths * of.channels, status, reason, of.key()
        )

    def probe(self, problem: FoldedTensors) -> float:
        """Compare value and gradient with the stock layer in float64."""
        dtype: torch.dtype = self.module.contractions[0].weights_max.dtype
        with torch.inference_mode(False), torch.enable_grad():
            got, want = _both(self.module, problem)
        labels = ("value", "gradient of node_feats")
        what = f"{self.name}: the {{}} of the generated kernel"
        return relative_errors(what, zip(labels, got, want, strict=True), dtype)

    def patch(self, problem: FoldedTensors) -> None:
        """Change the class of the layer."""
        from .fused_contraction import FOLD, FusedSymmetricContraction
        from .fused_state import watch_loads

        self.module.__dict__[FOLD] = problem.to_json()
        self.module.__class__ = FusedSymmetricContraction
        watch_loads(self.module)
        self.module._remember()

    def restore(self) -> None:
        """Give the layer its class back."""
        from .fused_contraction import FOLD, MAP
        from .fused_state import forget_loads

        if self.is_patched:
            forget_loads(self.module)
        self.module.__class__ = _stock_class()
        for name in (FOLD, MAP):
            self.module.__dict__.pop(name, None)


def _stock_class() -> Any:
    module = sys.modules.get("mace.modules.symmetric_contraction")
    return getattr(module, "SymmetricContraction", None)


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
