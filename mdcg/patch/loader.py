"""Load model files: pickled MACE models of any age, and NequIP's checkpoints and packages."""

from __future__ import annotations

import logging
import pickle
import threading
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ..errors import (
    CheckpointError,
    MissingDependencyError,
    a_type,
    installation,
    installed_version,
)
from ._frameworks import import_e3nn_o3, import_mace, import_nequip
from .checkpoint_kind import MACE, NEQUIP_CHECKPOINT, NEQUIP_PACKAGE, checkpoint_kind
from .e3nn_pickle import e3nn_pickle_module
from .nequip_files import load_nequip_checkpoint, load_nequip_package
from .nequip_inputs import is_nequip

log = logging.getLogger("mdcg")
_warned = False
# unpickling can trace graphs, and torch.fx then replaces nn.Module.__call__ for all threads
_one_at_a_time = threading.Lock()


def load_model(path: str | PathLike[str], *, map_location: Any = "cpu") -> torch.nn.Module:
    """Load a MACE or NequIP model, patched or not.

    MACE: whole pickled models. NequIP: the ``.ckpt`` of ``nequip-train`` (with its EMA weights, if
    it has any), ``.nequip.zip`` packages, and the files that ``mdcg-patch`` writes from either.
    MACE files from e3nn 0.4, which go back to 2022, load under e3nn 0.4.4 and 0.6. No global state
    is changed: not the default dtype, the environment, the ``weights_only`` protection, or a class
    of e3nn.

    Parameters
    ----------
    path : path
        Recognised by its contents. Loading a pickle can run code: use files you trust only;
        one warning about this is logged per process.
    map_location : torch.device or str
        Where the tensors go.

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or of another kind; the message says which file to give.
    MissingDependencyError
        A package whose classes are in the file is not installed.
    """
    path = Path(path)
    model = _load(path, map_location)
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(
                f"{path} has NaN or infinity in {name}, expected finite numbers: the training has "
                "diverged, or the file is damaged"
            )
    return model


def _load(path: Path, map_location: Any) -> torch.nn.Module:
    kind = checkpoint_kind(path)
    _warn_once(path)
    if kind in (NEQUIP_CHECKPOINT, NEQUIP_PACKAGE):
        load = load_nequip_checkpoint if kind == NEQUIP_CHECKPOINT else load_nequip_package
        with _one_at_a_time:
            return load(path).to(map_location)
    if kind == MACE:
        import_mace()
    else:
        import_nequip()
    model = _unpickle(path, map_location)
    if is_nequip(model):
        found: torch.nn.Module = model
        return found
    known = isinstance(model, torch.nn.Module) and hasattr(model, "atomic_numbers")
    if not (known and hasattr(model, "r_max")):
        raise CheckpointError(
            f"{path} holds {a_type(model)}, expected a MACE or NequIP model: "
            "give the .model file that mace_run_train writes"
        )
    loaded: torch.nn.Module = model
    _bring_up_to_date(loaded)
    return loaded


def _unpickle(path: Path, map_location: Any) -> Any:
    try:
        # torch derives from the Unpickler of this module
        with _one_at_a_time:
            model: Any = torch.load(
                path,
                map_location=map_location,
                weights_only=False,
                pickle_module=e3nn_pickle_module(map_location),
            )
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{path} contains a class of {error.name!r}, which is not installed: "
            f"{installation(error.name)}"
        ) from error
    except AttributeError as error:
        raise CheckpointError(
            f"{path} was written with other versions of mace-torch or e3nn ({error}), found "
            f"mace-torch {installed_version('mace-torch')} and e3nn {installed_version('e3nn')}: "
            "files from e3nn 0.5 and later need e3nn 0.6"
        ) from error
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or of another kind: reading it failed with {_first_line(error)}"
        ) from error
    return model


def _warn_once(path: Path) -> None:
    global _warned
    if not _warned:
        _warned = True
        log.warning("%s is a pickle: loading one from an untrusted source can run any code", path)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _bring_up_to_date(model: torch.nn.Module) -> None:
    """Add the attributes that newer e3nn and mace expect and older files lack."""
    o3 = import_e3nn_o3()
    for module in list(model.modules()):
        if type(module).__name__ == "Activation" and not hasattr(module, "paths"):
            old: Any = module
            old.paths = [
                (mul, (ir.l, ir.p), act)
                for (mul, ir), act in zip(old.irreps_in, old.acts, strict=True)
            ]
        for name, child in list(module.named_children()):
            if isinstance(child, o3.SphericalHarmonics):
                _refresh_harmonics(module, name, child, o3)
    r_max = getattr(model, "r_max", None)
    if isinstance(r_max, (int, float)):  # files of 2022
        del model.r_max
        dtype = next((p.dtype for p in model.parameters()), torch.float64)
        model.register_buffer("r_max", torch.tensor(float(r_max), dtype=dtype))


def _refresh_harmonics(parent: torch.nn.Module, name: str, old: Any, o3: Any) -> None:
    fresh = o3.SphericalHarmonics(
        o3.Irreps(str(old.irreps_out)), normalize=old.normalize, normalization=old.normalization
    )
    if hasattr(fresh, "sph_func") and not hasattr(old, "sph_func"):
        fresh.train(old.training)
        setattr(parent, name, fresh)
