"""Import e3nn, mace and nequip without the side effects their imports have on the process."""

from __future__ import annotations

import importlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from types import ModuleType
from typing import Any, TextIO

import torch

from ..errors import MissingDependencyError, installation

_UNSAFE_LOAD = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
# MACE prints it when it is imported; mdcg does not use cuEquivariance.
_NOTICE = "Cuequivariance acceleration will be disabled"


class _WithoutNotice(io.TextIOBase):
    """Pass text on to a stream, except for MACE's notice about cuEquivariance."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._dropped = stream, False

    def write(self, text: str) -> int:
        is_end = self._dropped and text == "\n"
        self._dropped = _NOTICE in text
        if not (self._dropped or is_end):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


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
            + installation("e3nn")
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
        with redirect_stdout(_WithoutNotice(sys.stdout)):
            importlib.import_module("mace.modules")
        return sys.modules["mace"]
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a MACE model needs mace-torch, but {error.name!r} is not installed: "
            + installation("mace")
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
            + installation("nequip")
        ) from error


def is_stock(module: Any, name: str, where: str) -> bool:
    """Whether a module is of a class of e3nn or NequIP, or of a copy of such a class.

    NequIP's packages contain copies of the classes of both. The copies are not identical to the
    installed classes, and their modules have a prefix: ``<torch_package_0>.e3nn.o3...``.

    Parameters
    ----------
    module : torch.nn.Module
    name : str
        Class name.
    where : str
        Beginning of the name of the module of the class.
    """
    cls = type(module)
    home = cls.__module__
    if home.startswith("<torch_package_"):
        home = home.partition(".")[2]
    return cls.__qualname__ == name and home.startswith(where)


class _DefaultDtype:
    """Torch's default dtype, which threads that need the same one can set together."""

    def __init__(self) -> None:
        self.changes = threading.Condition()
        self.holders: list[int] = []  # threads
        self.before = self.now = torch.float32

    @contextmanager
    def held(self, dtype: torch.dtype) -> Iterator[None]:
        mine = threading.get_ident()
        with self.changes:
            nested = mine in self.holders  # whose other dtype is set for the others as well
            self.changes.wait_for(lambda: nested or not self.holders or self.now == dtype)
            outer = self.now
            if not self.holders:
                self.before = outer = torch.get_default_dtype()
            self.holders.append(mine)
            self._set(dtype)
        try:
            yield
        finally:
            with self.changes:
                self.holders.remove(mine)
                if nested:
                    self._set(outer)
                elif not self.holders:
                    self._set(self.before)
                self.changes.notify_all()

    def _set(self, dtype: torch.dtype) -> None:
        self.now = dtype
        torch.set_default_dtype(dtype)


_default = _DefaultDtype()


def _after_fork() -> None:
    """Release, in a forked child, what threads of the parent held."""
    global _default
    inherited, _default = _default, _DefaultDtype()
    if inherited.holders:
        torch.set_default_dtype(inherited.before)


os.register_at_fork(after_in_child=_after_fork)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Set torch's default dtype for a while: e3nn and mace create modules and some tensors in it.

    All threads share the default, so threads that need another dtype wait.
    """
    return _default.held(dtype)
