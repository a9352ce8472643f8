"""What patched layers remember of their buffers, and when they read them again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..errors import MdcgError, UnsupportedProblemError
from ..ops.cuda import start_conv
from ..problem import ConvProblem
from .layer import parsed_problem

if TYPE_CHECKING:
    _Base: TypeAlias = Any
else:
    _Base = object

__all__ = ["FusedConvState", "FusedState", "forget_loads", "watch_loads"]

#: What a part notes when a state was loaded into it alone, without the layer above it.
_LOADED = "_mdcg_loaded"
_KERNEL_DTYPES = (torch.float32, torch.float64)


class FusedState(_Base):  # type: ignore[misc]
    """Stands before the stock class among the base classes of a patched layer.

    What kernels are made for is kept as text, read again from the layer's buffers after they
    change through ``load_state_dict`` or a change of dtype.
    """

    #: What to do instead of giving the layer to TorchScript.
    _mdcg_advice = "or give the file from before mdcg-patch to the tool that makes TorchScript"

    def _constants(self) -> torch.Tensor:
        """Return a buffer whose dtype and device are those of all."""
        raise NotImplementedError

    def _parts(self) -> Sequence[torch.nn.Module]:
        """Return the submodules that hold the buffers, if not the layer itself."""
        return ()

    def _forget(self) -> None:
        """Drop the text: the next call reads the buffers."""
        raise NotImplementedError

    def _read(self) -> str:
        """Make the text from the buffers.

        Raises
        ------
        UnsupportedProblemError
            No kernel computes what they describe.
        """
        raise NotImplementedError

    def _remember(self) -> Any:
        """Make what calls need now, so that the first may be one that torch.compile traces."""
        raise NotImplementedError

    def _current(self, text: str) -> str:
        """Return the text, or a new one if buffers have changed since it was made."""
        stale = [part for part in self._parts() if part.__dict__.get(_LOADED)]
        if text and not stale:
            return text
        for part in stale:
            part.__dict__.pop(_LOADED, None)
        text = self._read()
        self._remember()
        return text

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._remember()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        like = self._constants()
        dtype, device = like.dtype, like.device  # now: a parameter is changed in place
        result = super()._apply(*args, **kwargs)
        like = self._constants()
        if like.dtype != dtype:
            self._forget()  # float32 buffers have rounded the constants
            if like.dtype in _KERNEL_DTYPES:
                # a call says what is wrong; .to() must not stop with half of a model converted
                with suppress(UnsupportedProblemError):
                    self._read()
                self._remember()
        elif like.device != device:
            self._remember()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()  # files of another e3nn bring constants of another sign

    def __prepare_scriptable__(self) -> Any:
        raise MdcgError(
            "TorchScript cannot hold mdcg layers: call mdcg.unpatch_model(model) first, "
            + self._mdcg_advice
        )


class FusedConvState(FusedState):
    """Of a convolution: the text is its problem."""

    _mdcg_problem = ""

    def _product(self) -> Any:
        """Return the e3nn tensor product."""
        raise NotImplementedError

    def _constants(self) -> torch.Tensor:
        mask: torch.Tensor = self._product().output_mask
        return mask

    def _forget(self) -> None:
        self._mdcg_problem = ""

    def _read(self) -> str:
        self._mdcg_problem = ConvProblem.from_e3nn(self._product()).to_json()
        return self._mdcg_problem

    def _remember(self) -> None:
        """Parse the problem; for a CUDA device, begin to compile, all layers side by side."""
        like = self._constants()
        if self._mdcg_problem and like.dtype in _KERNEL_DTYPES:
            dtype = str(like.dtype).removeprefix("torch.")
            start_conv(parsed_problem(self._mdcg_problem, dtype), like.device)


def watch_loads(layer: FusedState) -> None:
    """Make the parts of a patched layer note when a state is loaded into them alone."""
    forget_loads(layer)
    for part in layer._parts():
        part.register_load_state_dict_post_hook(_note)  # type: ignore[no-untyped-call]


def forget_loads(layer: FusedState) -> None:
    """Undo :func:`watch_loads`; harmless where there is nothing to undo."""
    for part in layer._parts():
        part.__dict__.pop(_LOADED, None)
        hooks = part._load_state_dict_post_hooks
        for key in [key for key, hook in hooks.items() if hook is _note]:
            del hooks[key]


def _note(part: torch.nn.Module, incompatible: Any) -> None:
    part.__dict__[_LOADED] = True
