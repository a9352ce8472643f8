"""The class of patched symmetric contractions: independent polynomials in one kernel.

Pickles of patched models name this class, so neither the module nor the class may move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import UnsupportedProblemError
from ..ops.functional import symmetric_contraction
from ..problem import FoldedTensors, SymmetricContractionProblem
from ._frameworks import import_mace
from .fused_state import FusedState

_stock = import_mace().modules.symmetric_contraction

#: The attribute of a patched layer that holds the text of its fold, and its matrix.
FOLD_AND_MATRIX = "_mdcg_map"

# plain dicts, because torch.compile cannot trace functions behind lru_cache
_folds: dict[str, FoldedTensors] = {}
_problems: dict[tuple[str, torch.dtype], SymmetricContractionProblem] = {}


def _folded(text: str) -> FoldedTensors:
    found = _folds.get(text)
    if found is None:
        found = _folds[text] = FoldedTensors.from_json(text)
    return found


def _problem(text: str, dtype: torch.dtype) -> SymmetricContractionProblem:
    found = _problems.get((text, dtype))
    if found is None:
        found = _folded(text).problem.with_dtype(str(dtype).removeprefix("torch."))
        _problems[text, dtype] = found
    return found


def _orders(contraction: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return coupling tensor and weights of every correlation order, beginning with the lowest."""
    highest = int(contraction.correlation)
    # mace stores the weights of the highest order separately, and the others from high to low
    weights = [*reversed(list(contraction.weights)), contraction.weights_max]
    return [
        (getattr(contraction, f"U_matrix_{order}"), weights[order - 1])
        for order in range(1, highest + 1)
    ]


def stacked_weights(layer: Any) -> torch.Tensor:
    """Return all weights of a layer, [num_species, num_paths, channels], in fold order."""
    return torch.cat([w for part in layer.contractions for _, w in _orders(part)], dim=1)


def fold_contraction(layer: Any) -> FoldedTensors:
    """Reduce the coupling tensors of a ``mace.modules.SymmetricContraction``.

    UnsupportedProblemError says which shape, dtype or correlation order has no generated kernel.
    """
    tensors: list[tuple[int, np.ndarray[Any, Any]]] = []
    shapes, dtypes = set(), set()
    for i_out, (part, (_, ir)) in enumerate(zip(layer.contractions, layer.irreps_out, strict=True)):
        for order, (coupling, weights) in enumerate(_orders(part), 1):
            dense = coupling.detach().cpu()
            if dense.dim() == order + 1:  # mace leaves out the axis of a scalar
                dense = dense[None]
            dim = layer.irreps_in.dim // max(weights.shape[2], 1)
            if dense.shape != (ir.dim, *(dim,) * order, weights.shape[1]):
                raise UnsupportedProblemError(
                    f"U_matrix_{order} has shape {tuple(coupling.shape)}, which does not fit "
                    f"{layer.irreps_in} to {ir} with weights {tuple(weights.shape)}"
                )
            tensors.append((i_out, dense.double().numpy()))
            shapes.add((weights.shape[0], weights.shape[2]))
            dtypes |= {coupling.dtype, weights.dtype}
    if len(shapes) != 1 or len(dtypes) != 1:
        raise UnsupportedProblemError(
            f"weights have several numbers of species and channels {sorted(shapes)} or types "
            f"{sorted(map(str, dtypes))}, expected one"
        )
    dtype = dtypes.pop()
    if dtype not in (torch.float32, torch.float64):
        raise UnsupportedProblemError(f"dtype is {dtype}, expected float32 or float64")
    ((_, channels),) = shapes
    into, out = (
        "+".join(f"{channels}x{ir}" for _, ir in irreps)
        for irreps in (layer.irreps_in, layer.irreps_out)
    )
    return FoldedTensors.fold(into, out, tensors, dtype=str(dtype).removeprefix("torch."))


class FusedSymmetricContraction(FusedState, _stock.SymmetricContraction):  # type: ignore[misc, name-defined]
    """A ``mace.modules.SymmetricContraction`` that runs in one kernel.

    Patching changes the class of an existing layer in place, so that parameters, buffers,
    ``state_dict``, hooks and copying stay mace's own. Weights are read at every call. Coupling
    tensors are read when patching, and after ``load_state_dict`` or a change of dtype.
    """

    _mdcg_fold = ""

    def forward(
        self,
        x: torch.Tensor,  # [num_nodes, channels, components]
        y: torch.Tensor,  # [num_nodes, num_species], usually one-hot
    ) -> torch.Tensor:
        """Evaluate the contraction; returns [num_nodes, irreps_out.dim]."""
        text = self._current_text(self._mdcg_fold)
        made: tuple[str, torch.Tensor] | None = self.__dict__.get(FOLD_AND_MATRIX)
        if made is None or made[0] != text:
            made = self._prepare()
        weights = stacked_weights(self)
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self._contracted(x.to(weights), y.to(weights), weights, made)
        return self._contracted(x, y, weights, made)

    def _contracted(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        made: tuple[str, torch.Tensor],
    ) -> torch.Tensor:
        text, matrix = made
        if matrix.device != weights.device or matrix.dtype != weights.dtype:
            matrix = matrix.to(weights)
        problem = _problem(text, weights.dtype)
        return symmetric_contraction(problem, x, torch.matmul(matrix, weights), y)

    def _prepare(self) -> tuple[str, torch.Tensor]:
        """Parse the fold and store its matrix, before torch.compile traces a call.

        Text and matrix are one attribute, so other threads see both or neither.
        """
        text = self._mdcg_fold
        if not text:
            self.__dict__.pop(FOLD_AND_MATRIX, None)
            return "", torch.empty(0)
        like = self.contractions[0].weights_max
        _problem(text, like.dtype)
        with torch.inference_mode(False):  # autograd cannot save tensors made in inference mode
            matrix = torch.from_numpy(_folded(text).combination)
            made = (text, matrix.to(device=like.device, dtype=like.dtype))
        self.__dict__[FOLD_AND_MATRIX] = made
        return made

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop(FOLD_AND_MATRIX, None)
        return state

    def _any_buffer(self) -> torch.Tensor:
        return self.contractions[0].weights_max

    def _buffer_holders(self) -> Sequence[torch.nn.Module]:
        return tuple(self.contractions)

    def _drop_text(self) -> None:
        # paths that coincide in float32 can differ in float64
        self._mdcg_fold = ""

    def _derive_text(self) -> str:
        self._mdcg_fold = fold_contraction(self).to_json()
        return self._mdcg_fold
