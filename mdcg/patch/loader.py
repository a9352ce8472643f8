"""Load model files: MACE's pickles of any age, those of NequIP, SevenNet and Nequix."""

from __future__ import annotations

import io
import logging
import pickle
import threading
import types
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
from .checkpoint_kind import (
    MACE,
    NEQUIP_CHECKPOINT,
    NEQUIP_PACKAGE,
    NEQUIX,
    SEVENNET,
    checkpoint_kind,
)
from .models import is_nequip
from .nequip_files import load_nequip_checkpoint, load_nequip_package
from .nequix_files import load_nequix_checkpoint
from .sevennet_files import load_sevennet_checkpoint


def e3nn_pickle_module(map_location: Any) -> types.ModuleType:
    """Return a `pickle_module` for ``torch.load`` that loads e3nn's generated code too.

    The pickle of an e3nn object contains generated code as bytes: TorchScript (a bytes object up to
    e3nn 0.5.1, later ``("torchscript", bytes)``) or, from 0.5.9, a pickled graph
    (``("fx", bytes)``). e3nn reads the code without ``map_location``, so it cannot load a file from
    a GPU on a machine without one. Stand-in classes therefore repair the state during unpickling.
    e3nn's own classes are never altered, so other threads are not affected.
    """
    import_e3nn_o3()
    from e3nn.util.codegen import CodeGenMixin

    stand_ins: dict[type, type] = {}
    as_pairs = "torchscript" in CodeGenMixin.__setstate__.__code__.co_consts

    class Unpickler(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            if (module_name, global_name) == ("mace.modules.models", "MACELES"):
                module_name = "mace.modules.extensions"  # files of the fork that MACELES is from
            found = super().find_class(module_name, global_name)
            if not (isinstance(found, type) and issubclass(found, CodeGenMixin)):
                return found
            if found not in stand_ins:
                stand_ins[found] = _stand_in(found, as_pairs, map_location)
            return stand_ins[found]

    module = types.ModuleType("mdcg_pickle")
    module.Unpickler = Unpickler  # type: ignore[attr-defined]
    module.load = lambda file, **options: Unpickler(file, **options).load()  # type: ignore[attr-defined]
    return module


def _stand_in(cls: Any, as_pairs: bool, map_location: Any) -> type:
    """Return a subclass whose objects become objects of `cls` when their state is set."""

    def set_state(self: Any, state: dict[str, Any]) -> None:
        self.__class__ = cls
        code = state.get("__codegen__")
        if isinstance(code, dict):
            repaired = {
                name: _repair(value, as_pairs, map_location) for name, value in code.items()
            }
            state = {**state, "__codegen__": repaired}
        self.__setstate__(state)

    stand_in = type(cls.__name__, (cls,), {"__setstate__": set_state})
    stand_in.__module__, stand_in.__qualname__ = cls.__module__, cls.__qualname__
    return stand_in


def _repair(value: Any, as_pairs: bool, map_location: Any) -> Any:
    """Return one piece of generated code in the form that the installed e3nn expects."""
    kind, code = value if isinstance(value, tuple) else ("torchscript", bytes(value))
    if b"cuda" in code:
        code = _moved(kind, code, map_location)
    if as_pairs:
        return kind, code
    return code if kind == "torchscript" else value  # e3nn 0.4 itself raises for graphs


def _moved(kind: str, code: bytes, map_location: Any) -> bytes:
    """Return generated code with its constants on another device."""
    if kind == "torchscript":
        load: Any = torch.jit.load
        buffer = io.BytesIO()
        torch.jit.save(load(io.BytesIO(code), map_location=map_location), buffer)
        return buffer.getvalue()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            if (module_name, global_name) == ("torch.storage", "_load_from_bytes"):
                return lambda data: torch.load(
                    io.BytesIO(data), map_location=map_location, weights_only=False
                )
            return super().find_class(module_name, global_name)

    return pickle.dumps(Unpickler(io.BytesIO(code)).load())


log = logging.getLogger("mdcg")
_warned = False
# unpickling can trace graphs, and torch.fx then replaces nn.Module.__call__ for all threads
_one_at_a_time = threading.Lock()


def load_model(path: str | PathLike[str], *, map_location: Any = "cpu") -> torch.nn.Module:
    """Load a model of MACE, NequIP, SevenNet or Nequix, patched or not.

    MACE: whole pickled models. NequIP: the ``.ckpt`` of ``nequip-train`` (with its EMA weights, if
    it has any), ``.nequip.zip`` packages, and the files that ``mdcg-patch`` writes from either.
    SevenNet: the ``.pth`` of ``sevenn``, read and repaired by it. Nequix: its ``.nqx`` files, and
    its ``.pt`` files with weights of torch; both hold nothing that is run.
    MACE files from e3nn 0.4, which go back to 2022, load under e3nn 0.4.4 and 0.6. No global state
    is changed: not the default dtype, the environment, the ``weights_only`` protection, or a class
    of e3nn.

    Parameters
    ----------
    path : path
        The contents tell the kind of file. Loading a pickle can run code: use only files that you
        trust. One warning about this is logged per process.
    map_location : torch.device or str
        Device of the tensors.

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


_LOADERS = {
    NEQUIP_CHECKPOINT: load_nequip_checkpoint,
    NEQUIP_PACKAGE: load_nequip_package,
    SEVENNET: load_sevennet_checkpoint,
    NEQUIX: load_nequix_checkpoint,
}


def _load(path: Path, map_location: Any) -> torch.nn.Module:
    kind = checkpoint_kind(path)
    if kind != NEQUIX:
        _warn_once(path)
    load = _LOADERS.get(kind)
    if load is not None:
        with _one_at_a_time:
            return load(path).to(map_location)
    if kind == MACE:
        import_mace()
    else:
        import_nequip()
    model = _unpickle(path, map_location)
    if is_nequip(model):
        return model
    known = isinstance(model, torch.nn.Module) and hasattr(model, "atomic_numbers")
    if not (known and hasattr(model, "r_max")):
        raise CheckpointError(
            f"{path} holds {a_type(model)}, expected a MACE, NequIP or SevenNet model: "
            "give the .model file that mace_run_train writes"
        )
    loaded: torch.nn.Module = model
    _bring_up_to_date(loaded)
    return loaded


def _unpickle(path: Path, map_location: Any) -> Any:
    try:
        # torch makes a subclass of the Unpickler in `pickle_module`
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
