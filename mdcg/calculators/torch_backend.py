"""The backend of MDCGCalculator for models that torch runs."""

from __future__ import annotations

import io
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from ase import Atoms

from ..errors import CheckpointError, DeviceError, UnsupportedProblemError, VerificationError
from ..ops.kernels import torch_has_cuda
from ..patch import (
    PatchReport,
    copy_model,
    inspect_model,
    is_nequip,
    is_nequix,
    is_patched,
    is_sevennet,
    load_model,
    model_info,
    patch_model,
    unpatch_model,
)
from ..patch.models import copy_in_dtype
from ..patch.report import PATCHED
from ..problem.text import dtype_of
from .descriptors import LayerFeatures
from .drop_in import check_model_type
from .evaluation import Evaluation, Options, known_symbols, mean_of, require_known
from .neighbors import Edges, SkinNeighborList
from .torch_models import LoadedModel, MaceModel, NequipModel, SevenNetModel, one_at_a_time

_LOG = logging.getLogger("mdcg")


class _GivenModel:
    """A model that is copied and pickled itself, because it was not loaded from a file."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> _GivenModel:
        return _GivenModel(copy_model(self.model))

    def __reduce__(self) -> tuple[Any, ...]:
        stream = io.BytesIO()
        # Not by pickle: with it, torch's processes would share the memory of tensors.
        torch.save(self.model, stream)
        return _unpickled, (stream.getvalue(),)


def _unpickled(data: bytes) -> _GivenModel:
    return _GivenModel(torch.load(io.BytesIO(data), weights_only=False))


def _fingerprint(model: torch.nn.Module) -> int:
    """Return a checksum of the modules and the content of the tensors."""
    found = 0
    for name, module in model.named_modules():
        found = zlib.crc32(f"{name} {type(module).__qualname__}\n".encode(), found)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(), found)
        found = zlib.crc32(content.numpy().data, found)
    return found


def _reopen(
    models: Sequence[_GivenModel | str], fingerprints: Sequence[int], options: Options
) -> TorchBackend:
    """Make the backend of a copied calculator from its models or from the same files."""
    given = [each.model if isinstance(each, _GivenModel) else each for each in models]
    backend = TorchBackend(given, options, patch=False)
    for model, found, wanted in zip(models, backend._fingerprints, fingerprints, strict=True):
        if found != wanted and not isinstance(model, _GivenModel):
            raise CheckpointError(
                f"{model} has changed since the calculator was made from it, so the calculator "
                "cannot be copied: make a new one from the file"
            )
    return backend


Given: TypeAlias = str | os.PathLike[str] | torch.nn.Module


class TorchBackend:
    """One loaded model, or a committee of several, with their neighbour list."""

    def __init__(self, models: Sequence[Given], options: Options, patch: bool = True) -> None:
        with torch.inference_mode(False):  # tensors made in inference mode cannot have gradients
            device = None if options.device is None else as_device(options.device)
            found = [_prepare(model, device, _as_dtype(options.dtype)) for model in models]
        loaded = [model for model, _ in found]
        self.name = ", ".join(name for _, name in found)
        # absolute, because the working folder may differ when a copy is opened
        self._files = [
            None if isinstance(model, torch.nn.Module) else str(Path(model).absolute())
            for model in models
        ]
        self._options = options
        self._fingerprints = [_fingerprint(model) for model in loaded]
        self._evaluators = _evaluators(loaded, options)
        first = self._evaluators[0]
        info = first.info
        for each in self._evaluators[1:]:
            for what in ("r_max", "device", "dtype"):
                one, other = getattr(info, what), getattr(each.info, what)
                if one != other:
                    raise ValueError(
                        f"models of the committee have {what} {one} and {other}, expected one "
                        "value: give models that agree, or their packages"
                    )
        self.device, self.dtype, self.r_max = info.device, info.dtype, info.r_max
        self.species = tuple(known_symbols(np.min([e.types for e in self._evaluators], axis=0)))
        self.head, self.heads = first.head, info.heads
        self.model_class = info.model_class
        check_model_type(options.model_type, self.model_class)
        self.reach = options.reach(self.r_max)
        self.neighbors = SkinNeighborList(info.r_max, options.skin, info.device)
        self._numbers: bytes | None = None
        if patch:  # last, so that models are as they were if something above is refused
            _patch_given(models, loaded)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments of a copy: files, or models that were given or changed."""
        models = [
            file if file is not None and _fingerprint(each.model) == known else None
            for file, each, known in zip(
                self._files, self._evaluators, self._fingerprints, strict=True
            )
        ]
        given = [
            _GivenModel(each.model) if file is None else file
            for file, each in zip(models, self._evaluators, strict=True)
        ]
        return _reopen, (given, self._fingerprints, self._options), {"name": self.name}

    @property
    def model(self) -> torch.nn.Module:
        """The torch model that is evaluated, of a committee the first."""
        return self._evaluators[0].model

    @property
    def is_patched(self) -> bool:
        """Whether layers of all models run on mdcg's kernels."""
        return all(is_patched(each.model) for each in self._evaluators)

    @property
    def patch_report(self) -> PatchReport:
        """Whether each tensor product of the (first) model is patched, or why not."""
        return inspect_model(self.model)

    def describe(self) -> str:
        """Return a description of the model for the calculator's ``repr``."""
        kind = f"{'patched' if self.is_patched else 'unpatched'} {self.model_class}"
        count = len(self._evaluators)
        return kind if count == 1 else f"committee of {count} models, {kind}"

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return what a structure states of inputs, unchecked, by the number of the model."""
        return {str(n): each.inputs_of(atoms) for n, each in enumerate(self._evaluators)}

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if a model cannot use what a structure states of inputs."""
        for each in self._evaluators:
            each.check_inputs(atoms)

    @torch.inference_mode(False)  # tensors that are kept between calls must be ordinary
    def evaluate(self, atoms: Atoms, wanted: set[str]) -> Evaluation:
        """Evaluate the models on one structure; a committee gives mean and deviation."""
        edges = self._edges(atoms)
        if edges is None:
            return Evaluation.of_nothing(wanted)
        found = [each.evaluate(atoms, edges, wanted) for each in self._evaluators]
        return found[0] if len(found) == 1 else mean_of(found)

    @torch.inference_mode(False)
    def descriptors(self, atoms: Atoms, all_members: bool) -> list[LayerFeatures]:
        """Return features of every atom, of the first model or of all."""
        edges = self._edges(atoms)
        members = self._evaluators[: None if all_members else 1]
        return [each.descriptors(atoms, edges) for each in members]

    def _edges(self, atoms: Atoms) -> Edges | None:
        """Return the edges of a structure, or None if it has no atoms."""
        numbers = np.asarray(atoms.numbers, dtype=np.int64)
        for each in self._evaluators:
            require_known(numbers, each.types)
        if len(atoms) == 0:
            return None
        if self._numbers != numbers.tobytes():
            self.neighbors.reset()
            self._numbers = numbers.tobytes()
        cell = np.asarray(atoms.cell.array, dtype=np.float64)
        return self.neighbors.update(atoms.positions, cell, atoms.pbc)


def _evaluators(models: Sequence[torch.nn.Module], options: Options) -> list[LoadedModel]:
    # of a mixed committee, only models of NequIP have types
    others = replace(options, species_types=None) if any(map(is_nequip, models)) else options

    def single(model: torch.nn.Module) -> LoadedModel:
        if is_nequip(model):
            return NequipModel(model, options)
        return SevenNetModel(model, others) if is_sevennet(model) else MaceModel(model, others)

    return [single(model) for model in models]


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    return None if dtype is None else getattr(torch, dtype_of(dtype))


def as_device(device: str | torch.device | None) -> torch.device:
    """Return a device that torch can use; a CUDA device without a number is torch's current one.

    None is that one, or the CPU where torch finds no CUDA device.

    Raises `DeviceError` if torch has no such CUDA device, and `ValueError` for other kinds.
    """
    default = "cuda" if torch_has_cuda() else "cpu"
    try:
        found = torch.device(default if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch_has_cuda() else 0
        if (found.index or 0) >= count:
            why = f"torch finds {count} CUDA devices"
            if torch.version.cuda is None:
                build = "without CUDA" if torch.version.hip is None else "for ROCm, not for CUDA"
                why = f"this torch ({torch.__version__}) is built {build}"
            raise DeviceError(
                f"device {device!s} was requested, but {why}; use the device cpu or install a "
                "torch that can use the GPU"
            )
        if found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    return found


def _prepare(
    model: Given, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[torch.nn.Module, str]:
    """Return the model to evaluate, on its device and in its dtype, and a name for it."""
    if isinstance(model, torch.nn.Module):
        name = type(model).__name__
        _refuse_nequix(model, name)
        return _from_module(model, device, dtype), name
    return _from_file(Path(model), device, dtype), os.fspath(model)


def _refuse_nequix(model: torch.nn.Module, name: str) -> None:
    """Raise UnsupportedProblemError for a model of Nequix, which runs in the engine only."""
    if is_nequix(model):
        raise UnsupportedProblemError(
            f"{name} is a Nequix model, which MDCGCalculator runs as a package: convert the "
            "checkpoint with mdcg-patch CHECKPOINT -o OUT.mdcg"
        )


def _from_file(
    path: Path, device: torch.device | None, dtype: torch.dtype | None
) -> torch.nn.Module:
    loaded = load_model(path)
    _refuse_nequix(loaded, str(path))
    if dtype is not None and _other_dtype(loaded, dtype):
        loaded = copy_in_dtype(loaded, dtype)
    # moved before it is patched, because layers are checked on the device where they will run
    loaded = loaded.to(device or torch.device("cpu"))
    if not is_patched(loaded):
        report = patch_model(loaded)
        _LOG.info("%s was not patched yet; patched it after loading:\n%s", path, report)
    if device is None:
        _LOG.info("%s runs on the CPU", path)
    return loaded.requires_grad_(False)


@torch.inference_mode(False)
def _patch_given(given: Sequence[Given], loaded: Sequence[torch.nn.Module]) -> None:
    """Patch, in place, models that were given, or the copies of them that are evaluated.

    A layer that cannot be patched is a warning. After any other error no model is changed.
    """
    changed = []
    try:
        for original, model in zip(given, loaded, strict=True):
            if isinstance(original, torch.nn.Module):
                before = is_patched(model)
                _patch(model, copied=model is not original)
                if is_patched(model) and not before:
                    changed.append(model)
    except BaseException:
        for model in changed:
            unpatch_model(model)
        raise


def _patch(model: torch.nn.Module, copied: bool) -> None:
    try:
        with one_at_a_time(model):
            report = patch_model(model, allow_partial=True)
    except (UnsupportedProblemError, VerificationError) as error:
        reason = str(error)
    else:
        reason = "; ".join(f"{layer.name}: {layer.reason}" for layer in report.refused)
        if any(layer.status == PATCHED for layer in report.layers):
            what = (
                "a copy of the loaded model, because its device or dtype is another"
                if copied
                else "the loaded model in place; mdcg.unpatch_model restores it"
            )
            _LOG.info("patched %s:\n%s", what, report)
    if reason:
        _LOG.warning(
            "%s runs%s as it was given, without mdcg's kernels: %s",
            type(model).__name__,
            " in part" if is_patched(model) else "",
            reason,
        )


def _other_dtype(model: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Return whether a model has to be converted, or raise if it cannot be."""
    if is_nequip(model):
        built = model_info(model).dtype
        if built != dtype:
            raise ValueError(
                f"dtype is {dtype}, but the NequIP model was built in {built} (model_dtype of its "
                "configuration), which is fixed: leave out dtype"
            )
        return False
    weights = _weights(model)
    return weights is not None and weights.dtype != dtype


def _from_module(
    model: torch.nn.Module, device: torch.device | None, dtype: torch.dtype | None
) -> torch.nn.Module:
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "model is a TorchScript module, whose layers are compiled in; expected the MACE, "
            "NequIP or SevenNet model it was made from"
        )
    weights = _weights(model)
    moved = device is not None and weights is not None and weights.device != device
    # copies, because weights, device and precision of the caller's model must not change
    if dtype is not None and _other_dtype(model, dtype):
        return copy_in_dtype(model, dtype).to(device)
    return copy_model(model).to(device) if moved else model


def _weights(model: torch.nn.Module) -> torch.nn.Parameter | None:
    return next((p for p in model.parameters() if p.is_floating_point()), None)
