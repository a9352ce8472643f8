"""Base classes of patched layers, which derive the text of a problem from their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..errors import MdcgError, UnsupportedProblemError
from ..ops.cuda import start_conv
from ..problem import ConvProblem

if TYPE_CHECKING:
    _Base: TypeAlias = Any
else:
    _Base = object

#: Set on a submodule when a state is loaded into it directly, not through the layer above it.
_LOADED = "_mdcg_loaded"
_KERNEL_DTYPES = (torch.float32, torch.float64)


# a plain dict, because torch.compile cannot trace functions behind lru_cache
_problems: dict[tuple[str, str], ConvProblem] = {}


def parsed_problem(text: str, dtype: str) -> ConvProblem:
    """Return the problem of a JSON text in a dtype, parsed once per process."""
    found = _problems.get((text, dtype))
    if found is None:
        found = ConvProblem.from_json(text).with_dtype(dtype)
        _problems[text, dtype] = found
    return found


class WithoutTorchScript(_Base):  # type: ignore[misc]
    """Base class of all patched layers, which TorchScript cannot contain."""

    #: Advice in the error message.
    _mdcg_advice = "or give the file from before mdcg-patch to the tool that makes TorchScript"

    def __prepare_scriptable__(self) -> Any:
        raise MdcgError(
            "TorchScript cannot hold mdcg layers: call mdcg.unpatch_model(model) first, "
            + self._mdcg_advice
        )


class FusedState(WithoutTorchScript):
    """Base class of patched layers; it precedes the stock class among the bases.

    A layer keeps the description of its kernels as text. It derives the text again after the
    buffers change through ``load_state_dict`` or a change of dtype. Subclasses have these methods:

    - ``_any_buffer`` returns one buffer; all buffers have its dtype and device.
    - ``_drop_text`` drops the text, so that the next call derives it from the buffers.
    - ``_derive_text`` derives the text from the buffers, or raises UnsupportedProblemError.
    - ``_prepare`` prepares the layer, so that torch.compile can trace its first call.
    """

    def _buffer_holders(self) -> Sequence[torch.nn.Module]:
        """Return the submodules that hold the buffers; empty if the layer holds them itself."""
        return ()

    def _current_text(self, text: str) -> str:
        """Return the text, derived again if buffers have changed since it was made."""
        stale = [part for part in self._buffer_holders() if part.__dict__.get(_LOADED)]
        if text and not stale:
            return text
        for part in stale:
            part.__dict__.pop(_LOADED, None)
        text = self._derive_text()
        self._prepare()
        return text

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        like = self._any_buffer()
        dtype, device = like.dtype, like.device  # before parameters change in place
        result = super()._apply(*args, **kwargs)
        like = self._any_buffer()
        if like.dtype != dtype:
            self._drop_text()  # float32 buffers have rounded the constants
            if like.dtype in _KERNEL_DTYPES:
                # the next call raises; here, .to() would stop with half of the model converted
                with suppress(UnsupportedProblemError):
                    self._derive_text()
                self._prepare()
        elif like.device != device:
            self._prepare()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._drop_text()  # the sign of the constants depends on the version of e3nn


class FusedConvState(FusedState):
    """A layer whose text is the JSON of its convolution problem.

    Subclasses have a method ``_product``, which returns the e3nn tensor product.
    """

    _mdcg_problem = ""

    def _any_buffer(self) -> torch.Tensor:
        return self._product().output_mask

    def _drop_text(self) -> None:
        self._mdcg_problem = ""

    def _derive_text(self) -> str:
        self._mdcg_problem = ConvProblem.from_e3nn(self._product()).to_json()
        return self._mdcg_problem

    def _prepare(self) -> None:
        """Parse the problem; on a CUDA device, start to compile in the background."""
        like = self._any_buffer()
        if self._mdcg_problem and like.dtype in _KERNEL_DTYPES:
            dtype = str(like.dtype).removeprefix("torch.")
            start_conv(parsed_problem(self._mdcg_problem, dtype), like.device)


def watch_loads(layer: FusedState) -> None:
    """Make the submodules of a patched layer record when a state is loaded into them directly."""
    forget_loads(layer)
    for part in layer._buffer_holders():
        part.register_load_state_dict_post_hook(_note)  # type: ignore[no-untyped-call]


def forget_loads(layer: FusedState) -> None:
    """Undo :func:`watch_loads`; does nothing on a layer that is not watched."""
    for part in layer._buffer_holders():
        part.__dict__.pop(_LOADED, None)
        hooks = part._load_state_dict_post_hooks
        for key in [key for key, hook in hooks.items() if hook is _note]:
            del hooks[key]


# Pickles of patched models name this function, so it may not move.
def _note(part: torch.nn.Module, incompatible: Any) -> None:
    part.__dict__[_LOADED] = True
