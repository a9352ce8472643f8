"""The backend of MDCGCalculator for MACE and NequIP models that torch runs."""

from __future__ import annotations

import io
import logging
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms

from ..errors import CheckpointError, DeviceError, UnsupportedProblemError, a_type
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
    model_record,
    patch_model,
)
from ..problem.text import dtype_of
from .evaluation import Evaluation, Options, known_symbols, require_known
from .neighbors import SkinNeighborList
from .torch_models import LoadedModel, MaceModel, NequipModel

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


def _reopen(model: _GivenModel | str, fingerprint: int, options: Options) -> TorchBackend:
    """Make the backend of a copied calculator from its model or from the same file."""
    if isinstance(model, _GivenModel):
        return TorchBackend(model.model, options)
    backend = TorchBackend(model, options)
    if backend._fingerprint != fingerprint:
        raise CheckpointError(
            f"{model} has changed since the calculator was made from it, so the calculator cannot "
            "be copied: make a new one from the file"
        )
    return backend


class TorchBackend:
    """A loaded model with its neighbour list."""

    def __init__(self, model: str | os.PathLike[str] | torch.nn.Module, options: Options) -> None:
        with torch.inference_mode(False):  # tensors made in inference mode cannot have gradients
            device = None if options.device is None else as_device(options.device)
            loaded, self.name = _prepare(model, device, _as_dtype(options.dtype))
        # absolute, because the working folder may differ when a copy is opened
        self._file = None if isinstance(model, torch.nn.Module) else str(Path(model).absolute())
        self._options = options
        self._fingerprint = _fingerprint(loaded)
        head, species_types = options.head, options.species_types
        if head is None:
            head = model_record(loaded).get("head")  # the head chosen by mdcg-patch --head
        self._evaluator: LoadedModel
        if is_nequip(loaded):
            self._evaluator = NequipModel(loaded, head, species_types)
        elif species_types is None:
            self._evaluator = MaceModel(loaded, head)
        else:
            raise ValueError(
                "species_types is for NequIP models; a MACE model has chemical elements"
            )
        info = self._evaluator.info
        self.device, self.dtype, self.r_max = info.device, info.dtype, info.r_max
        self.species = tuple(known_symbols(self._evaluator.types))
        self.head, self.heads = self._evaluator.head, info.heads
        self.model_class = info.model_class
        self.neighbors = SkinNeighborList(info.r_max, options.skin, info.device)
        self._numbers: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments of a copy: the file, or the model if it was given or changed."""
        from_file = self._file is not None and _fingerprint(self.model) == self._fingerprint
        model = self._file if from_file else _GivenModel(self.model)
        return _reopen, (model, self._fingerprint, self._options), {"name": self.name}

    @property
    def model(self) -> torch.nn.Module:
        """The torch model that is evaluated."""
        return self._evaluator.model

    @property
    def is_patched(self) -> bool:
        """Whether the model runs on mdcg's kernels."""
        return is_patched(self.model)

    @property
    def patch_report(self) -> PatchReport:
        """Whether each tensor product of the model is patched, or why not."""
        return inspect_model(self.model)

    def describe(self) -> str:
        """Return a description of the model for the calculator's ``repr``."""
        return f"{'patched' if self.is_patched else 'unpatched'} {self.model_class}"

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return the inputs of the model besides the geometry."""
        return self._evaluator.inputs_of(atoms)

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if the model cannot use what a structure states of inputs."""
        self._evaluator.check_inputs(atoms)

    @torch.inference_mode(False)  # tensors that are kept between calls must be ordinary
    def evaluate(self, atoms: Atoms, wanted: set[str]) -> Evaluation:
        """Evaluate the model on one structure."""
        numbers = np.asarray(atoms.numbers, dtype=np.int64)
        require_known(numbers, self._evaluator.types)
        if len(atoms) == 0:
            return Evaluation.of_nothing(wanted)
        if self._numbers != numbers.tobytes():
            self.neighbors.reset()
            self._numbers = numbers.tobytes()
        cell = np.asarray(atoms.cell.array, dtype=np.float64)
        edges = self.neighbors.update(atoms.positions, cell, atoms.pbc)
        return self._evaluator.evaluate(atoms, edges, wanted)


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    return None if dtype is None else getattr(torch, dtype_of(dtype))


def as_device(device: str | torch.device) -> torch.device:
    """Return a device that torch can use; a CUDA device without a number is torch's current one.

    Raises `DeviceError` if torch has no such CUDA device, and `ValueError` for other kinds.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            why = (
                f"this torch ({torch.__version__}) is built without CUDA"
                if torch.version.cuda is None
                else f"torch finds {count} CUDA devices"
            )
            raise DeviceError(
                f"device {device!s} was requested, but {why}; use the device cpu or install a "
                "torch that can use the GPU"
            )
        if found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    return found


def _prepare(
    model: str | os.PathLike[str] | torch.nn.Module,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> tuple[torch.nn.Module, str]:
    """Return the model to evaluate, on its device and in its dtype, and a name for it."""
    if isinstance(model, torch.nn.Module):
        loaded, name = _from_module(model, device, dtype), type(model).__name__
    elif isinstance(model, (str, os.PathLike)):
        loaded, name = _from_file(Path(model), device, dtype), os.fspath(model)
    else:
        raise TypeError(
            f"model is {a_type(model)}, expected the path of a package or checkpoint, or a loaded "
            "torch model that is patched (of a MACECalculator: mdcg.patch_model(calc.models[0]), "
            "then give calc.models[0])"
        )
    _refuse_packages_only(loaded, name)
    return loaded, name


def _refuse_packages_only(model: torch.nn.Module, name: str) -> None:
    """Raise UnsupportedProblemError for a model whose torch form no calculator of mdcg runs."""
    kind = "SevenNet" if is_sevennet(model) else "Nequix" if is_nequix(model) else None
    if kind is not None:
        raise UnsupportedProblemError(
            f"{name} is a {kind} model, which MDCGCalculator runs as a package: convert the "
            "checkpoint with mdcg-patch CHECKPOINT -o OUT.mdcg"
        )


def _from_file(
    path: Path, device: torch.device | None, dtype: torch.dtype | None
) -> torch.nn.Module:
    loaded = load_model(path)
    _refuse_packages_only(loaded, str(path))
    if _other_dtype(loaded, dtype):
        loaded = loaded.to(dtype)
    # moved before it is patched, because layers are checked on the device where they will run
    loaded = loaded.to(device or torch.device("cpu"))
    if not is_patched(loaded):
        report = patch_model(loaded)
        _LOG.info("%s was not patched yet; patched it after loading:\n%s", path, report)
    if device is None:
        _LOG.info("%s runs on the CPU", path)
    return loaded.requires_grad_(False)


def _other_dtype(model: torch.nn.Module, dtype: torch.dtype | None) -> bool:
    """Return whether a model has to be converted, or raise if it cannot be."""
    if dtype is None:
        return False
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
            "model is a TorchScript module, whose layers are compiled in; expected the MACE or "
            "NequIP model it was made from"
        )
    weights = _weights(model)
    moved = device is not None and weights is not None and weights.device != device
    converted = _other_dtype(model, dtype)
    if not (moved or converted):
        return model
    # a copy, because the caller's model must not change
    return copy_model(model).to(device=device, dtype=dtype if converted else None)


def _weights(model: torch.nn.Module) -> torch.nn.Parameter | None:
    return next((p for p in model.parameters() if p.is_floating_point()), None)
