"""Imports e3nn, mace, nequip, sevenn and nequix without side effects on the process."""

from __future__ import annotations

import importlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from types import ModuleType
from typing import Any, TextIO

import torch

from ..errors import MissingDependencyError, installation

_UNSAFE_LOAD = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
# MACE prints this when it is imported; mdcg does not use cuEquivariance.
_NOTICE = "Cuequivariance acceleration will be disabled"


class _WithoutNotice(io.TextIOBase):
    """Passes text on to a stream, except for MACE's notice about cuEquivariance."""

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


def _import(module: str, package: str, need: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # a package that raises it itself gives a sentence instead of a name
        why = f"{error.name!r} is not installed" if error.name else f"its import failed ({error})"
        raise MissingDependencyError(f"{need}, but {why}: {installation(package)}") from error


def import_e3nn_o3() -> ModuleType:
    """Return ``e3nn.o3``, or raise MissingDependencyError."""
    loaded = sys.modules.get("e3nn.o3")
    if loaded is not None:
        return loaded
    # e3nn 0.4.4 reads its constants with torch.load; weights_only refuses their slices
    with torch.serialization.safe_globals([slice]):
        return _import("e3nn.o3", "e3nn", "e3nn is needed for models built on it")


def import_mace(part: str = "modules") -> ModuleType:
    """Return ``mace``, whose import must not turn off ``weights_only`` of ``torch.load``.

    The module ``mace.<part>`` is loaded, too.
    """
    if f"mace.{part}" in sys.modules:
        return sys.modules["mace"]
    import_e3nn_o3()
    before = os.environ.get(_UNSAFE_LOAD)
    try:
        with redirect_stdout(_WithoutNotice(sys.stdout)):
            _import(f"mace.{part}", "mace", "a MACE model needs mace-torch")
        return sys.modules["mace"]
    finally:
        if before is None:
            os.environ.pop(_UNSAFE_LOAD, None)
        else:
            os.environ[_UNSAFE_LOAD] = before


def import_nequip() -> ModuleType:
    """Return ``nequip``, or raise MissingDependencyError."""
    import_e3nn_o3()
    return _import("nequip", "nequip", "a NequIP model needs nequip")


def import_sevennet() -> ModuleType:
    """Return ``sevenn``, whose import must not change the filters of warnings."""
    if "sevenn.checkpoint" in sys.modules:
        return sys.modules["sevenn"]
    import_e3nn_o3()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _import("sevenn.checkpoint", "sevenn", "a SevenNet model needs sevenn")
    return sys.modules["sevenn"]


def import_nequix(part: str = "torch_impl.model") -> ModuleType:
    """Return ``nequix``, whose import must not change torch's and e3nn's options.

    The module ``nequix.<part>`` is loaded, too.
    """
    if f"nequix.{part}" in sys.modules:
        return sys.modules["nequix"]
    import_e3nn_o3()
    import e3nn
    import torch._dynamo

    options, precision = e3nn.get_optimization_defaults(), torch.get_float32_matmul_precision()
    shapes: Any = torch.fx.experimental._config
    changed = ("capture_dynamic_output_shape_ops", "capture_scalar_outputs")
    dynamo: Any = torch._dynamo.config
    kept = {name: getattr(dynamo, name) for name in changed}
    try:
        with dynamo.patch(**kept), shapes.patch(use_duck_shape=shapes.use_duck_shape):
            _import(f"nequix.{part}", "nequix", "a Nequix model needs nequix")
    finally:
        e3nn.set_optimization_defaults(**options)
        torch.set_float32_matmul_precision(precision)
    return sys.modules["nequix"]


def is_stock(module: Any, name: str, where: str) -> bool:
    """Whether a module's class is class `name` of e3nn, MACE or NequIP, or a copy of it.

    `where` is the beginning of the name of the class's module. NequIP's packages contain copies of
    the classes of NequIP and e3nn, in modules with a prefix: ``<torch_package_0>.e3nn.o3...``.
    """
    cls = type(module)
    home = cls.__module__
    if home.startswith("<torch_package_"):
        home = home.partition(".")[2]
    return cls.__qualname__ == name and home.startswith(where)


class _DefaultDtype:
    """Torch's default dtype, which several threads can hold at once if they need the same one."""

    def __init__(self) -> None:
        self.changes = threading.Condition()
        self.holders: list[int] = []  # threads
        self.before = self.now = torch.float32

    @contextmanager
    def held(self, dtype: torch.dtype) -> Iterator[None]:
        mine = threading.get_ident()
        with self.changes:
            # A thread cannot wait for itself, so a nested dtype also changes for other holders.
            nested = mine in self.holders
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
    """Restore, in a forked child, the default dtype that threads of the parent had changed."""
    global _default
    inherited, _default = _default, _DefaultDtype()
    if inherited.holders:
        torch.set_default_dtype(inherited.before)


os.register_at_fork(after_in_child=_after_fork)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Set torch's default dtype for a while: e3nn and mace create tensors in it.

    All threads share the default, so a thread that needs another dtype waits.
    """
    return _default.held(dtype)
