"""Fully connected product with scalars whose rows repeat: one matrix per distinct row.

A ``FullyConnectedTensorProduct`` of features x and scalars y with weights W,

    out[n, w, m] = c sum_uv x[n, u, m] y[n, v] W[u, v, w],

is a linear map of x[n] whose matrix depends only on y[n]. If y is an embedding of atom types, it
has as many distinct rows as there are types. Their matrices are made once, and all rows of x with
one matrix are multiplied in one product. Rows of y share a matrix only if they are equal bit for
bit, so this is exact for any y.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from ..ops.autograd import readable
from ..problem import ConvProblem

#: Rows are grouped if there are at least this many times fewer distinct rows.
_REPEATS = 4

#: On a CUDA device, up to this many groups take less time in one padded product than one by one.
_MASKED = 8


@dataclass(frozen=True)
class SpeciesPath:
    """One path of the product: ``factor * weights[offset:]`` of shape (u, v, w)."""

    i_in: int
    i_out: int
    factor: float
    shape: tuple[int, int, int]  # u, v, w
    offset: int  # index of the path's first weight
    y_offset: int  # index of the first column of y


@dataclass
class _Groups:
    """Rows of y, grouped by equal values."""

    y: torch.Tensor  # [num_rows, dim]
    rows: torch.Tensor  # [num_groups, dim], the distinct rows
    order: torch.Tensor | None  # [num_rows], brings equal rows together; None if they already are
    inverse_order: torch.Tensor | None  # [num_rows], undoes `order`
    sizes: tuple[int, ...]  # [num_groups], numbers of rows
    mask: torch.Tensor  # [num_rows, num_groups], 1 if the row is in the group
    scaled: dict[SpeciesPath, torch.Tensor]  # the columns of `rows` of a path, times its factor
    # identity of the last tensor with these values, and the tensor itself, to keep its memory alive
    seen: tuple[tuple[object, ...], torch.Tensor] | None = None


class SpeciesProduct:
    """The product, made from a problem of mode ``uvw``.

    The second operand has even scalars, the weights are shared, and the layout is ``mul_ir``.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self.inputs = [(b.mul, b.ir.dim, b.offset, b.dim) for b in problem.irreps_in1]
        self.outputs = [(b.mul, b.ir.dim) for b in problem.irreps_out]
        self.paths: list[SpeciesPath] = []
        offset = 0
        for path in problem.paths:
            shape = problem.weight_shape(path)
            # the 3j symbol of (l, 0, l) is the unit matrix times this
            coupling = float(problem.w3j(problem.degrees(path))[0, 0, 0])
            second = problem.irreps_in2[path.i_in2].offset
            u, v, w = (int(n) for n in shape)
            factor = coupling * path.path_weight
            self.paths.append(
                SpeciesPath(path.i_in1, path.i_out, factor, (u, v, w), offset, second)
            )
            offset += u * v * w

    def grouped(
        self,
        x: torch.Tensor,  # [num_rows, irreps_in1.dim]
        y: torch.Tensor,  # [num_rows, irreps_in2.dim]
        weights: torch.Tensor,  # [weight_numel]
    ) -> torch.Tensor:
        """Return the product, differentiable with respect to x and weights, but not y."""
        groups = _groups_of(y)
        if x.is_cuda and len(groups.rows) <= _MASKED:
            return self._masked(x, groups, weights)
        if groups.order is not None:
            x = x.index_select(0, groups.order)
        pieces: list[list[torch.Tensor]] = [[] for _ in self.outputs]
        for path in self.paths:
            matrices = _matrices(path, groups, weights)
            _, dim, start, size = self.inputs[path.i_in]
            block = x[:, start : start + size]
            parts = [
                _linear(rows, matrices[:, g], dim)
                for g, rows in enumerate(torch.split(block, list(groups.sizes)))
            ]
            pieces[path.i_out].append(torch.cat(parts) if len(parts) > 1 else parts[0])
        out = self._joined(x, pieces)
        return out if groups.inverse_order is None else out.index_select(0, groups.inverse_order)

    def _masked(self, x: torch.Tensor, groups: _Groups, weights: torch.Tensor) -> torch.Tensor:
        """Multiply all rows by all matrices in one product, with zeros for other groups."""
        pieces: list[list[torch.Tensor]] = [[] for _ in self.outputs]
        n = len(x)
        for path in self.paths:
            u, _, w = path.shape
            matrix = _matrices(path, groups, weights).reshape(-1, w)
            _, dim, start, size = self.inputs[path.i_in]
            rows = x[:, start : start + size].view(n, u, dim).transpose(1, 2)
            spread = (rows.unsqueeze(-1) * groups.mask[:, None, None]).reshape(n * dim, -1)
            product = spread @ matrix
            if dim > 1:
                product = product.view(n, dim, w).transpose(1, 2).reshape(n, w * dim)
            pieces[path.i_out].append(product)
        return self._joined(x, pieces)

    def _joined(self, x: torch.Tensor, pieces: list[list[torch.Tensor]]) -> torch.Tensor:
        blocks = [
            sum(found[1:], found[0]) if found else x.new_zeros(len(x), mul * dim)
            for found, (mul, dim) in zip(pieces, self.outputs, strict=True)
        ]
        return torch.cat(blocks, dim=1) if len(blocks) != 1 else blocks[0]


def _matrices(path: SpeciesPath, groups: _Groups, weights: torch.Tensor) -> torch.Tensor:
    """Return the matrices of a path, [u, num_groups, w].

    They are made in every call, because weights can change without a new version of the tensor
    (through ``.data``, for example when averaged weights are swapped in).
    """
    u, v, w = path.shape
    second = groups.scaled.get(path)
    if second is None:
        with torch.inference_mode(False), torch.no_grad():
            second = groups.rows[:, path.y_offset : path.y_offset + v] * path.factor
        groups.scaled[path] = second
    return torch.matmul(second, weights[path.offset : path.offset + u * v * w].view(u, v, w))


def _linear(rows: torch.Tensor, matrix: torch.Tensor, dim: int) -> torch.Tensor:
    """Multiply rows of layout ``[u][m]`` by a matrix [u, w]."""
    if dim == 1:
        return rows @ matrix
    n, (u, w) = len(rows), matrix.shape
    product = rows.view(n, u, dim).transpose(1, 2).reshape(n * dim, u) @ matrix
    return product.view(n, dim, w).transpose(1, 2).reshape(n, w * dim)


def can_group(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether to look for equal rows of y.

    This is False if y needs a gradient or its values cannot be read, and during capture of a CUDA
    graph.
    """
    if y.requires_grad or not readable(x, y):
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # a captured graph must not depend on values
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or len(x) < _REPEATS:
        return False
    return _REPEATS * len(_groups_of(y).rows) <= len(y)


# (stream, groups), the newest first: all layers of a model get the same y in all steps
_recent: list[tuple[int, _Groups]] = []
_lock = threading.Lock()


def _groups_of(y: torch.Tensor) -> _Groups:
    """Return the groups of y, cached by its values.

    Reading values makes the host wait for a CUDA device. On devices a tensor is therefore also
    recognised by its address and version, so that only the first layer of a model waits.
    """
    stream = torch.cuda.current_stream(y.device).cuda_stream if y.is_cuda else 0
    with _lock:
        known = [groups for made_on, groups in _recent if made_on == stream]
    identity = _identity(y)
    for found in known:
        if identity is not None and found.seen is not None and found.seen[0] == identity:
            return found
    for found in known:
        same = found.y.shape == y.shape and found.y.dtype == y.dtype and found.y.device == y.device
        if same and torch.equal(found.y, y):
            found.seen = None if identity is None else (identity, y)
            return found
    # ordinary tensors even in inference mode, because later callers save them for backward
    with torch.inference_mode(False), torch.no_grad():
        groups = _make_groups(torch.empty_like(y).copy_(y))
    groups.seen = None if identity is None else (identity, y)
    with _lock:
        _recent[:] = [(stream, groups), *_recent[:3]]
    return groups


def _identity(y: torch.Tensor) -> tuple[object, ...] | None:
    """Return values that identify a CUDA tensor while it exists, or None."""
    if not y.is_cuda or y.is_inference():  # inference tensors have no version
        return None
    storage = y.untyped_storage()._cdata
    return storage, y.data_ptr(), y._version, y.shape, y.stride(), y.dtype


def _make_groups(y: torch.Tensor) -> _Groups:
    rows, place = torch.unique(y, dim=0, return_inverse=True)
    order = torch.argsort(place, stable=True)
    sizes = tuple(int(n) for n in torch.bincount(place, minlength=len(rows)).tolist())
    mask = (place[:, None] == torch.arange(len(rows), device=y.device)).to(y.dtype)
    if torch.equal(order, torch.arange(len(y), device=y.device)):
        return _Groups(y, rows, None, None, sizes, mask, {})
    return _Groups(y, rows, order, torch.argsort(order), sizes, mask, {})
