"""Import e3nn, mace and nequip without the side effects their imports have on the process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch

from ..errors import MissingDependencyError

__all__ = [
    "default_dtype",
    "import_e3nn_o3",
    "import_mace",
    "import_nequip",
    "installed_version",
]

_UNSAFE_LOAD = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def import_e3nn_o3() -> ModuleType:
    """Return ``e3nn.o3``.

    Raises
    ------
    MissingDependencyError
        e3nn is not installed.
    """
    loaded = sys.modules.get("e3nn.o3")
    if loaded is not None:
        return loaded
    try:
        # e3nn 0.4.4 reads its constants with torch.load; weights_only refuses their slices
        with torch.serialization.safe_globals([slice]):
            return importlib.import_module("e3nn.o3")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"e3nn is needed for models built on it, but {error.name!r} is not installed: "
            "pip install 'mdcg[mace]'"
        ) from error


def import_mace() -> ModuleType:
    """Return ``mace``, leaving the environment as it was.

    ``import mace`` switches off the ``weights_only`` protection of every later ``torch.load``
    in the process.

    Raises
    ------
    MissingDependencyError
        mace-torch is not installed.
    """
    loaded = sys.modules.get("mace.modules")
    if loaded is not None:
        return sys.modules["mace"]
    import_e3nn_o3()
    before = os.environ.get(_UNSAFE_LOAD)
    try:
        importlib.import_module("mace.modules")
        return sys.modules["mace"]
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a MACE model needs mace-torch, but {error.name!r} is not installed: "
            "pip install 'mdcg[mace]'"
        ) from error
    finally:
        if before is None:
            os.environ.pop(_UNSAFE_LOAD, None)
        else:
            os.environ[_UNSAFE_LOAD] = before


def import_nequip() -> ModuleType:
    """Return ``nequip``.

    Raises
    ------
    MissingDependencyError
        nequip is not installed.
    """
    import_e3nn_o3()
    try:
        return importlib.import_module("nequip")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a NequIP model needs nequip, but {error.name!r} is not installed: "
            "pip install 'mdcg[nequip]' (after mdcg[mace], if you want both)"
        ) from error


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default for a while: e3nn and mace make modules, and some products, in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
