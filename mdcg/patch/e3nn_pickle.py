"""Unpickle e3nn modules written by any version of e3nn, on any device.

e3nn objects carry generated code as bytes inside their pickle: TorchScript (a bytes object up to
e3nn 0.5.1, ``("torchscript", bytes)`` after) or, from 0.5.9, a pickled graph (``("fx", bytes)``).
e3nn reads it without ``map_location``, so a file saved on a GPU cannot be loaded without one.
This module unpickles such objects through stand-in classes that repair the state. The classes of
e3nn are never altered, so other threads are not affected.
"""

from __future__ import annotations

import io
import pickle
import types
from typing import Any

import torch

from ._frameworks import import_e3nn_o3


def e3nn_pickle_module(map_location: Any) -> types.ModuleType:
    """Return a `pickle_module` for ``torch.load`` that loads e3nn's generated code too."""
    import_e3nn_o3()
    from e3nn.util.codegen import CodeGenMixin

    stand_ins: dict[type, type] = {}
    as_pairs = "torchscript" in CodeGenMixin.__setstate__.__code__.co_consts

    class Unpickler(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
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
    """Return a subclass whose objects turn into objects of `cls` as soon as their state arrives."""

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
    return code if kind == "torchscript" else value  # e3nn 0.4 raises for graphs by itself


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
