"""Load NequIP's training checkpoints and packages, and write packages that patch themselves."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import (
    CheckpointError,
    MissingDependencyError,
    a_type,
    installation,
    installed_version,
)
from ._frameworks import default_dtype, import_nequip
from .checkpoint_kind import ALLEGRO


def load_nequip_checkpoint(path: Path) -> torch.nn.Module:
    """Load the model of a checkpoint of ``nequip-train``, with its EMA weights if any.

    Like NequIP's own tools, this leaves out modifiers of the configuration that only accelerate.
    CheckpointError says why NequIP cannot build the model.
    """
    import_nequip()
    from nequip.model.modify_utils import only_apply_persistent_modifiers
    from nequip.model.saved_models import ModelFromCheckpoint

    with _reading(path), only_apply_persistent_modifiers(persistent_only=True):
        models = ModelFromCheckpoint(str(path), compile_mode="eager")
    return _sole(models, path).eval()


def load_nequip_package(path: Path) -> torch.nn.Module:
    """Load the model of a ``.nequip.zip`` package, patched if mdcg-patch wrote it."""
    if not path.name.endswith(".nequip.zip"):
        raise CheckpointError(
            f"{path} is a NequIP package, which needs a name that ends in .nequip.zip: rename it"
        )
    import_nequip()
    from nequip.model.saved_models import ModelFromPackage

    with _reading(path):
        models = ModelFromPackage(str(path), compile_mode="eager")
    return _sole(models, path).eval()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        with nequip_state():
            yield
    except Exception as error:
        missing = _missing_package(error)
        if missing == "allegro":  # a checkpoint can name it in another file
            raise CheckpointError(f"{path} {ALLEGRO}") from error
        if missing:
            raise MissingDependencyError(
                f"{path} needs the package {missing!r}, which is not installed: "
                f"{installation(missing)}"
            ) from error
        # any error is possible, because the configuration of a model can name any code
        cause: BaseException = error
        while cause.__cause__ is not None:  # hydra puts its own errors around NequIP's
            cause = cause.__cause__
        text = str(cause).strip().splitlines() or [""]
        advice = ""
        if text[0].startswith("Error(s) in loading state_dict"):  # torch: the layers differ
            advice = (
                ": use the version of NequIP that wrote it, or give its .nequip.zip package, which "
                "brings its own"
            )
        raise CheckpointError(
            f"{path} cannot be read by NequIP {installed_version('nequip')} "
            f"({type(cause).__name__}: {text[0]}){advice}"
        ) from error


def _missing_package(error: BaseException | None) -> str:
    """Return the package whose failed import caused the error; hydra wraps its errors."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            # if only a submodule is missing, the package is installed in another version
            return package if find_spec(package) is None else ""
        error = error.__cause__ or error.__context__
    return ""


def _sole(models: Any, path: Path) -> torch.nn.Module:
    if not isinstance(models, torch.nn.ModuleDict):
        raise CheckpointError(f"{path} holds {a_type(models)}, expected a NequIP model")
    if len(models) != 1:
        names = ", ".join(models)
        raise CheckpointError(
            f"{path} holds {len(models)} models ({names}), expected one: package one of them alone"
        )
    return next(iter(models.values()))


@contextmanager
def nequip_state() -> Iterator[None]:
    """Set the global state that NequIP needs to build models, for a while.

    NequIP's ``set_global_state`` would change the default dtype, the random state, an environment
    variable and options of torch's compiler for the rest of the process.
    """
    import_nequip()
    import e3nn
    from nequip.utils import global_state

    options = e3nn.get_optimization_defaults()
    state: Any = global_state
    before = state._GLOBAL_STATE_INITIALIZED
    newer = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 10)
    try:
        e3nn.set_optimization_defaults(
            specialized_code=True, optimize_einsums=True, jit_mode="eager" if newer else "script"
        )
        state._GLOBAL_STATE_INITIALIZED = True
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
            yield
    finally:
        state._GLOBAL_STATE_INITIALIZED = before
        e3nn.set_optimization_defaults(**options)


# ---- packages that patch themselves ----


def write_nequip_package(source: Path, target: Path | IO[bytes], record: dict[str, Any]) -> None:
    """Copy a package so that its model is patched whenever it is loaded.

    The copy differs by a call of :func:`revive` around the pickled model. It loads wherever mdcg is
    installed, in NequIP's own tools too. `record` is stored in the model; its ``layers`` are the
    names of the layers to patch. The name of a target need not end in ``.nequip.zip`` yet.
    """
    text = json.dumps(record, sort_keys=True)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            inner = item.filename.partition("/")[2]
            if inner == "model/eager_model.pkl":
                data = _with_call(data, text)
            elif inner == ".data/extern_modules" and b"mdcg" not in data.split(b"\n"):
                data += b"mdcg\n"
            new.writestr(item, data)


def _with_call(pickled: bytes, argument: str) -> bytes:
    """Return a pickle of ``revive(object, argument)`` for the pickle of an object."""
    if not pickled.startswith(b"\x80\x03") or not pickled.endswith(b"."):
        raise CheckpointError(
            "the package's model is not pickled with protocol 3, as torch.package does: "
            "build it again with nequip-package"
        )
    encoded = argument.encode()
    call = f"c{__name__}\n{revive.__name__}\n".encode()
    text = b"X" + struct.pack("<I", len(encoded)) + encoded
    return pickled[:2] + call + pickled[2:-1] + text + b"\x86R."


def revive(models: torch.nn.Module, record: str) -> torch.nn.Module:
    """Patch the models (a ``ModuleDict``) of a package; `record` is JSON.

    Packages from mdcg-patch name this function, so it may not move.
    """
    from .models import set_model_record
    from .patching import apply_patch

    facts = json.loads(record)
    for model in models.children():
        apply_patch(model, facts["layers"])
        set_model_record(model, facts)
    return models
