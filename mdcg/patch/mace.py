"""Swap convolutions and symmetric contractions of a loaded MACE model in place, and back."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import MdcgError, UnsupportedProblemError, VerificationError
from ..problem import ConvProblem, wigner_3j
from .mace_products import (
    Contraction,
    apply_contraction,
    contractions_of,
    has_fused_contraction,
    restore_contraction,
    restore_contractions,
)
from .probe import LIMITS, probe_layer
from .record import clear_record
from .report import ALREADY, LEFT, PATCHABLE, PATCHED, REFUSED, LayerReport, PatchReport

__all__ = ["inspect_model", "is_patched", "patch_model", "unpatch_model"]

log = logging.getLogger("mdcg")

_NODE_LEVEL = "works on nodes, not on edges, and takes a small part of the time"
_ACCELERATED = {"cuequivariance_torch": "cuEquivariance", "openequivariance": "OpenEquivariance"}


@dataclass
class _Layer:
    """A convolution layer that was found: what it is and what to do with it."""

    block: torch.nn.Module
    conv_tp: Any
    report: LayerReport
    problem: ConvProblem | None = None


def patch_model(model: torch.nn.Module, *, allow_partial: bool = False) -> PatchReport:
    """Make convolutions and products of a loaded MACE model run on generated kernels, in place.

    The model keeps its class, parameters and ``state_dict``; dtype, device, copying, pickling and
    training work as before. Every layer is checked against its stock computation, value and
    gradients, before anything is changed; if something raises, the model is as it was.

    Parameters
    ----------
    model : torch.nn.Module
        Any model with MACE interaction blocks: ``torch.load(...)``, or ``calculator.models[0]``.
    allow_partial : bool
        Patch what can be patched and report the rest, instead of raising for a layer that cannot.

    Returns
    -------
    PatchReport
        Every tensor product: patched, or why not. Patching twice changes nothing and says so.

    Raises
    ------
    UnsupportedProblemError
        No convolution layer was found, or one cannot be patched and `allow_partial` is False.
    VerificationError
        A generated kernel does not give what the layer gives.
    KernelCompileError
        No C++ compiler, or it failed.
    """
    found = _inspect(model)
    if not allow_partial:
        _stop_if_refused(found.report())
    todo = []
    for layer in found.convolutions:
        if layer.report.status == PATCHABLE:
            layer.report = _probe(layer, allow_partial)
            todo.extend([layer] if layer.report.status == PATCHED else [])
    products = []
    for product in found.products:
        if product.report.status == PATCHABLE:
            product.report = product.probe(allow_partial=allow_partial)
            products.extend([product] if product.report.status == PATCHED else [])
    report = found.report()
    if not report.patched:
        _stop_if_refused(report)
    _apply(todo, products)
    total = len(found.convolutions) + len(found.products)
    log.info("patched %d of %d layers", len(report.patched), total)
    return report


def unpatch_model(model: torch.nn.Module) -> int:
    """Give the layers of a patched model their own class back, in place.

    Returns
    -------
    int
        Number of layers restored; 0 if the model was not patched.
    """
    restored = 0
    for _, block, conv_tp in _blocks(model):
        if _is_fused(conv_tp):
            _restore(block, conv_tp)
            restored += 1
    restored += restore_contractions(model)
    clear_record(model)
    return restored


def inspect_model(model: torch.nn.Module) -> PatchReport:
    """Say what :func:`patch_model` would do, without compiling or changing anything.

    Raises
    ------
    UnsupportedProblemError
        The model has no convolution layer.
    """
    return _inspect(model).report()


def is_patched(model: torch.nn.Module) -> bool:
    """Return whether a layer of the model runs on generated kernels."""
    fused = any(_is_fused(conv_tp) for _, _, conv_tp in _blocks(model))
    return fused or has_fused_contraction(model)


# ---- finding ----


@dataclass
class _Found:
    model_class: str
    convolutions: list[_Layer]
    products: list[Contraction]
    others: list[LayerReport]
    order: dict[str, int]

    def report(self) -> PatchReport:
        rows = [layer.report for layer in self.convolutions]
        rows += [product.report for product in self.products] + self.others
        return PatchReport(
            self.model_class, tuple(sorted(rows, key=lambda row: self.order[row.name]))
        )


def _inspect(model: torch.nn.Module) -> _Found:
    if not isinstance(model, torch.nn.Module):
        hint = "pass calculator.models[0]" if hasattr(model, "models") else "load the file first"
        raise TypeError(f"model is a {type(model).__name__}, expected a torch.nn.Module: {hint}")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedProblemError(
            "the model is compiled TorchScript, whose layers cannot be swapped: "
            "load the .model file it was made from"
        )
    convolutions = [
        _look_at(f"{name}.conv_tp" if name else "conv_tp", block, conv_tp)
        for name, block, conv_tp in _blocks(model)
    ]
    taken = {id(layer.conv_tp) for layer in convolutions}
    others = [
        _describe(name, module, LEFT, _NODE_LEVEL)
        for name, module in _tensor_products(model)
        if id(module) not in taken
    ]
    if not convolutions:
        raise UnsupportedProblemError(
            f"{type(model).__name__} has no interaction block with a conv_tp layer: "
            "expected a MACE model"
        )
    products = list(contractions_of(model))
    rows = [layer.report for layer in convolutions]
    rows += [product.report for product in products] + others
    order = {row.name: n for n, row in enumerate(rows)}
    for number, (name, _) in enumerate(model.named_modules()):
        if name in order:
            order[name] = number
    return _Found(type(model).__name__, convolutions, products, others, order)


def _blocks(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Yield name, block and convolution layer of every interaction block."""
    for name, block in model.named_modules():
        conv_tp = getattr(block, "conv_tp", None)
        if isinstance(conv_tp, torch.nn.Module):
            yield name, block, conv_tp


def _tensor_products(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    wanted = ("irreps_in1", "irreps_in2", "irreps_out")
    for name, module in model.named_modules():
        if all(name in module.__dict__ for name in wanted):
            yield name, module


def _look_at(name: str, block: torch.nn.Module, conv_tp: Any) -> _Layer:
    """Decide what can be done with one convolution layer."""
    if _is_fused(conv_tp):
        return _Layer(block, conv_tp, _describe(name, conv_tp, ALREADY))
    refusal = _refusal(block, conv_tp)
    if refusal:
        return _Layer(block, conv_tp, _describe(name, conv_tp, REFUSED, refusal))
    try:
        problem = ConvProblem.from_e3nn(conv_tp)
    except (MdcgError, ValueError) as error:
        return _Layer(block, conv_tp, _describe(name, conv_tp, REFUSED, str(error)))
    return _Layer(block, conv_tp, _describe(name, conv_tp, PATCHABLE), problem)


def _refusal(block: torch.nn.Module, conv_tp: Any) -> str:
    """Return why a convolution layer cannot be patched, or an empty string."""
    room = type(conv_tp).__module__.partition(".")[0]
    if room in _ACCELERATED:
        return f"already accelerated by {_ACCELERATED[room]}: convert the model back to e3nn first"
    if type(conv_tp) is not _stock_class():
        return f"conv_tp is a {type(conv_tp).__qualname__}, expected an e3nn TensorProduct"
    if "forward" in conv_tp.__dict__:
        return "conv_tp has had its forward replaced by another package: undo that first"
    hook = block.__dict__.get("conv_fusion", "mdcg")
    if hook != "mdcg":
        return f"conv_fusion of the block is {hook!r}, set by another package"
    if conv_tp.shared_weights or conv_tp.internal_weights:
        return "conv_tp has weights of its own, expected one row of weights per edge"
    if conv_tp.output_mask.dtype not in LIMITS:
        return f"dtype is {conv_tp.output_mask.dtype}, expected float32 or float64"
    if not _has_hook(block):
        return (
            f"{type(block).__name__}.forward does not look at conv_fusion, so it cannot hand over "
            "the edge index: install mace-torch 0.3.16 or newer"
        )
    return ""


def _has_hook(block: torch.nn.Module) -> bool:
    """Whether the block's forward asks for ``conv_fusion``, as mace-torch writes it."""
    code = getattr(inspect.unwrap(type(block).forward), "__code__", None)
    if code is None:
        return False
    return "conv_fusion" in code.co_consts or "conv_fusion" in code.co_names


def _stock_class() -> Any:
    o3 = sys.modules.get("e3nn.o3")  # a model with e3nn layers has imported it
    return getattr(o3, "TensorProduct", None)


def _is_fused(conv_tp: Any) -> bool:
    fused = sys.modules.get("mdcg.patch.fused_conv")
    return fused is not None and type(conv_tp) is fused.FusedConvTensorProduct


def _describe(name: str, module: Any, status: str, reason: str = "") -> LayerReport:
    in1, in2, out = (_text(getattr(module, f"irreps_{end}", "")) for end in ("in1", "in2", "out"))
    try:
        key = "" if status in (LEFT, REFUSED) else ConvProblem.from_e3nn(module).key()
        degrees = [
            (
                module.irreps_in1[p.i_in1].ir.l,
                module.irreps_in2[p.i_in2].ir.l,
                module.irreps_out[p.i_out].ir.l,
            )
            for p in module.instructions
        ]
        nnz = sum(int(np.count_nonzero(wigner_3j(*triple))) for triple in degrees)
    except AttributeError:  # not an e3nn tensor product
        degrees, nnz, key = [], 0, ""
    weights = int(getattr(module, "weight_numel", 0))
    return LayerReport(name, in1, in2, out, len(degrees), nnz, weights, status, reason, key)


def _text(irreps: Any) -> str:
    simplify = getattr(irreps, "simplify", None)
    return str(simplify() if callable(simplify) else irreps)


# ---- changing ----


def _stop_if_refused(report: PatchReport) -> None:
    if not report.refused:
        return
    reasons = "; ".join(f"{layer.name}: {layer.reason}" for layer in report.refused)
    advice = ": allow_partial=True (--allow-partial) patches the others"
    raise UnsupportedProblemError(
        f"{len(report.refused)} of {len(report.refused + report.patchable)} layers of "
        f"{report.model_class} cannot be patched ({reasons})" + (advice if report.patchable else "")
    )


def _probe(layer: _Layer, allow_partial: bool) -> LayerReport:
    assert layer.problem is not None
    try:
        error = probe_layer(layer.conv_tp, layer.problem, name=layer.report.name)
    except (UnsupportedProblemError, VerificationError) as refusal:
        if not allow_partial:
            raise
        return replace(layer.report, status=REFUSED, reason=str(refusal), problem_key="")
    return replace(layer.report, status=PATCHED, probe_error=error)


def _apply(layers: list[_Layer], products: list[Contraction]) -> None:
    from .fused_conv import HOOK, HOOK_VALUE, PROBLEM, FusedConvTensorProduct

    done: list[_Layer] = []
    try:
        for layer in layers:
            assert layer.problem is not None
            done.append(layer)
            setattr(layer.conv_tp, PROBLEM, layer.problem.to_json())
            layer.conv_tp.__class__ = FusedConvTensorProduct
            layer.conv_tp._remember()
            setattr(layer.block, HOOK, HOOK_VALUE)
        for product in products:
            apply_contraction(product)
    except BaseException:
        for layer in done:
            _restore(layer.block, layer.conv_tp)
        for product in products:
            restore_contraction(product.layer)
        raise


def _restore(block: torch.nn.Module, conv_tp: Any) -> None:
    from .fused_conv import HOOK, PROBLEM, o3

    conv_tp.__class__ = o3.TensorProduct
    conv_tp.__dict__.pop(PROBLEM, None)
    block.__dict__.pop(HOOK, None)
