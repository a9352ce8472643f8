"""The model modifier ``enable_mdcg`` of NequIP.

NequIP's import imports this module, through the entry point ``nequip.extension``. So this module
imports nothing large, and registers the modifier when NequIP's module of modifiers is loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MODIFIERS = "nequip.model.modify_utils"
_NAME = "enable_mdcg"


def register(modifiers: Any) -> None:
    """Make ``enable_mdcg`` known to NequIP.

    It becomes a class method of ``TensorProductScatter``, like NequIP's own accelerations. Models
    from packages have copies of that class without the method, so NequIP's function that lists a
    model's modifiers is replaced by one that adds it. `modifiers` is the module
    ``nequip.model.modify_utils``.
    """
    from nequip.nn._tp_scatter_base import TensorProductScatter
    from nequip.nn.model_modifier_utils import model_modifier

    if _NAME in TensorProductScatter.__dict__:
        return

    def enable_mdcg(cls: type, model: Any) -> Any:
        """Run the tensor products of a model on kernels that mdcg generates.

        Convolutions and self-connections, on the CPU and on NVIDIA GPUs, in training and inference.
        """
        from .patch import patch_model

        patch_model(model)
        return model

    mark: Callable[[Any], Any] = model_modifier(
        persistent=False, private=False, supported_compile_modes=["aotinductor"]
    )
    setattr(TensorProductScatter, _NAME, mark(classmethod(enable_mdcg)))
    original = modifiers.get_all_modifiers

    def get_all_modifiers(
        module: Any, _all_modifiers: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = original(module, _all_modifiers)
        if _all_modifiers is None and _NAME not in found and _has_layers(module):
            found[_NAME] = getattr(TensorProductScatter, _NAME)
        return found

    get_all_modifiers.__doc__ = original.__doc__
    modifiers.get_all_modifiers = get_all_modifiers


def _has_layers(module: Any) -> bool:
    from .patch.layers import find_nequip_layers

    return any(True for _ in find_nequip_layers(module))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls :func:`register` once NequIP's module of modifiers has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, with a loader that registers after loading."""
        if name != _MODIFIERS:
            return None
        # The modifier is registered once, and the search below must not call this method.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _register(module)

            loader.exec_module = exec_module
        return spec


def _register(module: ModuleType) -> None:
    try:
        register(module)
    except (ImportError, AttributeError) as error:
        # NequIP works without the modifier, and raises an error if it is asked for
        logging.getLogger("mdcg").warning(
            "the modifier enable_mdcg is not available: this NequIP is too old or too new (%s)",
            error,
        )


if _MODIFIERS in sys.modules:
    _register(sys.modules[_MODIFIERS])
else:
    sys.meta_path.insert(0, _AfterImport())
