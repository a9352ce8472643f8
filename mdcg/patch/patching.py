"""Patches the layers of a loaded model in place, and restores them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import MdcgError, UnsupportedProblemError, VerificationError, a_type
from .checkpoint_kind import ALLEGRO
from .layers import (
    Layer,
    describe,
    find_mace_layers,
    find_nequip_layers,
    find_sevennet_layers,
)
from .models import clear_record
from .nequix_files import is_nequix
from .report import ALREADY, LEFT, PATCHABLE, PATCHED, REFUSED, LayerReport, PatchReport

log = logging.getLogger("mdcg")

_FINDERS = (find_mace_layers, find_nequip_layers, find_sevennet_layers)
_NODE_LEVEL = "works on nodes, not on edges, and takes a small part of the time"


@dataclass
class _Entry:
    """A layer with its row of the report and, if it can be patched, its problem."""

    layer: Layer
    report: LayerReport
    problem: Any = None


def patch_model(model: torch.nn.Module, *, allow_partial: bool = False) -> PatchReport:
    """Make the tensor products of a loaded model run on generated kernels, in place.

    The model keeps its class, parameters and ``state_dict``; dtype, device, copying, pickling and
    training work as before. Every layer is checked against its stock computation, value and
    gradients, before anything is changed; if something raises, the model is as it was.

    Parameters
    ----------
    model : torch.nn.Module
        Any model with MACE interaction blocks, NequIP's ``TensorProductScatter`` or SevenNet's
        ``IrrepsConvolution``: ``torch.load(...)``, ``calculator.models[0]``,
        ``NequIPCalculator.model``, ``SevenNetCalculator.model``.
    allow_partial : bool
        Patch the layers that can be patched and report the others, instead of raising.

    Returns
    -------
    PatchReport
        Whether each tensor product was patched, and why not. Patching twice changes nothing; the
        report says so.

    Raises
    ------
    UnsupportedProblemError
        No layer was found, or one cannot be patched and `allow_partial` is False.
    VerificationError
        The results of a generated kernel differ from those of the layer.
    KernelCompileError
        No C++ compiler, or it failed.
    """
    found = _inspect(model)
    if not allow_partial:
        _stop_if_refused(
            found.report(), ": allow_partial=True (--allow-partial) patches the others"
        )
    for entry in found.entries:
        if entry.report.status == PATCHABLE:
            entry.report = _probe(entry, allow_partial)
    report = found.report()
    if not any(entry.layer.required and entry.report in report.patched for entry in found.entries):
        _stop_if_refused(report)
    _apply([entry for entry in found.entries if entry.report.status == PATCHED])
    log.info("patched %d of %d layers", len(report.patched), len(found.entries))
    return report


def unpatch_model(model: torch.nn.Module) -> int:
    """Restore the stock classes of the layers of a patched model, in place.

    Returns
    -------
    int
        Number of layers restored; 0 if the model was not patched.
    """
    patched = [layer for layer in _layers(model) if layer.is_patched]
    for layer in patched:
        layer.restore()
    clear_record(model)
    return len(patched)


def apply_patch(model: torch.nn.Module, names: Collection[str]) -> None:
    """Patch the named layers without a check, which the writer of the file has made."""
    entries = [_entry_of(layer) for layer in _layers(model) if layer.name in names]
    _apply([entry for entry in entries if entry.report.status == PATCHABLE])


def inspect_model(model: torch.nn.Module) -> PatchReport:
    """Return the report that :func:`patch_model` would give; nothing is compiled or changed."""
    return _inspect(model).report()


def is_patched(model: torch.nn.Module) -> bool:
    """Return whether a layer of the model runs on generated kernels."""
    return any(layer.is_patched for layer in _layers(model))


# ---- finding ----


@dataclass
class _Found:
    model_class: str
    entries: list[_Entry]
    others: list[LayerReport]
    names: list[str]  # names of all modules, in the order of the model

    def report(self) -> PatchReport:
        rows = {row.name: row for row in [*(entry.report for entry in self.entries), *self.others]}
        in_order = tuple(rows[name] for name in self.names if name in rows)
        return PatchReport(self.model_class, in_order)


def _layers(model: torch.nn.Module) -> Iterator[Layer]:
    for find in _FINDERS:
        yield from find(model)


def _inspect(model: torch.nn.Module) -> _Found:
    if not isinstance(model, torch.nn.Module):
        hint = "pass calculator.models[0]" if hasattr(model, "models") else "load the file first"
        raise TypeError(f"model is {a_type(model)}, expected a torch.nn.Module: {hint}")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedProblemError(
            "the model is compiled TorchScript, whose layers cannot be swapped: "
            "load the file it was made from (.model of MACE, .ckpt or .nequip.zip of NequIP)"
        )
    entries = [_entry_of(layer) for layer in _layers(model)]
    if not any(entry.layer.required for entry in entries):
        if any("allegro.nn" in type(module).__module__ for module in model.modules()):
            raise UnsupportedProblemError(f"{type(model).__name__} {ALLEGRO}")
        if is_nequix(model):
            raise UnsupportedProblemError(
                "layers of Nequix models cannot be patched: convert the file to a package"
            )
        raise UnsupportedProblemError(
            f"{type(model).__name__} has no interaction block with a conv_tp layer (MACE), no "
            "TensorProductScatter (NequIP) and no IrrepsConvolution (SevenNet): expected a model "
            "of one of these"
        )
    taken = {id(m) for entry in entries for m in (entry.layer.module, entry.layer.tensor_product)}
    others = [
        describe(name, module, LEFT, _NODE_LEVEL)
        for name, module in _tensor_products(model)
        if not any(id(part) in taken for part in module.modules())
    ]
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    return _Found(type(model).__name__, entries, others, names)


def _tensor_products(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        if {"irreps_in1", "irreps_in2", "irreps_out"} <= module.__dict__.keys():
            yield name, module


def _entry_of(layer: Layer) -> _Entry:
    """Decide whether a layer can be patched."""
    if layer.is_patched:
        return _Entry(layer, layer.describe(ALREADY))
    otherwise = REFUSED if layer.required else LEFT
    refusal = layer.refusal()
    if refusal:
        return _Entry(layer, layer.describe(otherwise, refusal))
    try:
        problem = layer.make_problem()
    except (MdcgError, ValueError) as error:
        return _Entry(layer, layer.describe(otherwise, str(error)))
    return _Entry(layer, layer.describe(PATCHABLE, problem=problem), problem)


# ---- changing ----


def _stop_if_refused(report: PatchReport, advice: str = "") -> None:
    if not report.refused:
        return
    reasons = "; ".join(f"{layer.name}: {layer.reason}" for layer in report.refused)
    raise UnsupportedProblemError(
        f"{len(report.refused)} of {len(report.refused + report.patchable)} layers of "
        f"{report.model_class} cannot be patched ({reasons})" + (advice if report.patchable else "")
    )


def _probe(entry: _Entry, allow_partial: bool) -> LayerReport:
    try:
        # ordinary tensors, even if the caller is in inference mode
        with torch.inference_mode(False), torch.enable_grad():
            error = entry.layer.probe(entry.problem)
    except (UnsupportedProblemError, VerificationError) as refusal:
        if not allow_partial:
            raise
        return replace(entry.report, status=REFUSED, reason=str(refusal), problem_key="")
    return replace(entry.report, status=PATCHED, probe_error=error)


def _apply(entries: list[_Entry]) -> None:
    done: list[Layer] = []
    try:
        for entry in entries:
            done.append(entry.layer)
            entry.layer.patch(entry.problem)
    except BaseException:
        for layer in done:
            layer.restore()
        raise
