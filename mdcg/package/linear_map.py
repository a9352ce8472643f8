"""Equivariant linear maps between feature rows: a dense matrix for each pair of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..problem.irreps import Irreps

Array = NDArray[np.float64]
_Weights = dict[tuple[int, int], Array]


def simplified(irreps: Irreps) -> Irreps:
    """Return the irreps with equal neighbours merged and empty blocks left out."""
    pairs: list[tuple[int, int, int]] = []
    for block in irreps:
        if not block.mul:
            continue
        if pairs and pairs[-1][1:] == (block.ir.l, block.ir.p):
            pairs[-1] = (pairs[-1][0] + block.mul, block.ir.l, block.ir.p)
        else:
            pairs.append((block.mul, block.ir.l, block.ir.p))
    return Irreps.from_pairs(pairs)


@dataclass(frozen=True)
class LinearMap:
    """``out[o] = sum_i in[i] @ weights[i, o] + bias[o]``, all factors included.

    With an axis of types, a matrix or a bias depends on the type of the node.
    """

    irreps_in: Irreps
    irreps_out: Irreps
    # (input block, output block): (mul_in, mul_out) or (n_types, mul_in, mul_out); absent: zero
    weights: _Weights
    # output block, scalars only: (mul_out,) or (n_types, mul_out)
    bias: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (i, o), weight in self.weights.items():
            into, out = self.irreps_in[i], self.irreps_out[o]
            if weight.shape[-2:] != (into.mul, out.mul) or into.ir != out.ir:
                raise ValueError(
                    f"weights of shape {weight.shape} do not lead from {into} to {out}"
                )
        for o, value in self.bias.items():
            block = self.irreps_out[o]
            if value.shape[-1:] != (block.mul,) or block.ir.l:
                raise ValueError(f"a bias of shape {value.shape} does not fit {block}")

    @property
    def num_weights(self) -> int:
        """Number of all weights, biases left out."""
        return sum(weight.size for weight in self.weights.values())

    def scaled(self, factor: float | Array) -> LinearMap:
        """Return the map times a number, or times a number for each type, shape (n_types,)."""
        row = np.asarray(factor)[..., None]
        return LinearMap(
            self.irreps_in,
            self.irreps_out,
            {key: weight * row[..., None] for key, weight in self.weights.items()},
            {o: value * row for o, value in self.bias.items()},
        )

    def then(self, after: LinearMap) -> LinearMap:
        """Return the map that applies this map, then `after`."""
        if after.irreps_in != self.irreps_out:
            after = after.from_blocks(self.irreps_out)
        weights: _Weights = {}
        bias: dict[int, Array] = dict(after.bias)
        for (m, o), second in after.weights.items():
            for (i, middle), first in self.weights.items():
                if middle == m:
                    _add(weights, (i, o), first @ second)
            if m in self.bias:
                # einsum, because either of the two may have an axis of types
                _add(bias, o, np.einsum("...i,...io->...o", self.bias[m], second))
        return LinearMap(self.irreps_in, after.irreps_out, weights, bias)

    def from_blocks(self, irreps_in: Irreps) -> LinearMap:
        """Return the same map for another division of the input into blocks."""
        pieces = _pieces(self.irreps_in, irreps_in)
        weights: _Weights = {}
        for (i, o), weight in self.weights.items():
            for block, start, first, length in pieces[i]:
                shape = (*weight.shape[:-2], irreps_in[block].mul, weight.shape[-1])
                part = np.zeros(shape)
                part[..., start : start + length, :] = weight[..., first : first + length, :]
                _add(weights, (block, o), part)
        return LinearMap(irreps_in, self.irreps_out, weights, self.bias)

    def to_blocks(self, irreps_out: Irreps) -> LinearMap:
        """Return the same map for another division of the output into blocks."""
        pieces = _pieces(self.irreps_out, irreps_out)
        weights: _Weights = {}
        bias: dict[int, Array] = {}
        for (i, o), weight in self.weights.items():
            for block, start, first, length in pieces[o]:
                part = np.zeros((*weight.shape[:-1], irreps_out[block].mul))
                part[..., start : start + length] = weight[..., first : first + length]
                _add(weights, (i, block), part)
        for o, value in self.bias.items():
            for block, start, first, length in pieces[o]:
                part = np.zeros((*value.shape[:-1], irreps_out[block].mul))
                part[..., start : start + length] = value[..., first : first + length]
                _add(bias, block, part)
        return LinearMap(self.irreps_in, irreps_out, weights, bias)

    def to_channels(self, channels: slice | list[int]) -> LinearMap:
        """Return the map to some channels of its only output block."""
        (block,) = self.irreps_out.blocks
        count = len(range(block.mul)[channels]) if isinstance(channels, slice) else len(channels)
        return LinearMap(
            self.irreps_in,
            Irreps.from_pairs([(count, block.ir.l, block.ir.p)]),
            {key: weight[..., channels] for key, weight in self.weights.items()},
            {o: value[..., channels] for o, value in self.bias.items()},
        )

    def from_channels(self, channels: slice) -> LinearMap:
        """Return the map of some channels of its only input block; the other channels are zero."""
        (block,) = self.irreps_in.blocks
        return LinearMap(
            Irreps.from_pairs([(len(range(block.mul)[channels]), block.ir.l, block.ir.p)]),
            self.irreps_out,
            {key: weight[..., channels, :] for key, weight in self.weights.items()},
            self.bias,
        )

    def apply(self, rows: Array) -> Array:
        """Apply the map to one row per type, shape (n_types, dim), blocks ``[2l+1][mul]``."""
        result = self.apply_weights(rows)
        for o, value in self.bias.items():
            out = self.irreps_out[o]
            result[:, out.offset : out.offset + out.dim] += value
        return result

    def apply_weights(self, rows: Array) -> Array:
        """Apply the map without its bias to rows of shape (..., n_types or 1, dim)."""
        typed = [len(weight) for weight in self.weights.values() if weight.ndim == 3]
        count = max([rows.shape[-2], *typed])
        result = np.zeros((*rows.shape[:-2], count, self.irreps_out.dim))
        for (i, o), weight in self.weights.items():
            into, out = self.irreps_in[i], self.irreps_out[o]
            block = rows[..., into.offset : into.offset + into.dim]
            value = block.reshape(*rows.shape[:-1], into.ir.dim, into.mul) @ weight
            result[..., out.offset : out.offset + out.dim] += value.reshape(*value.shape[:-2], -1)
        return result


def _add(found: dict, key: object, value: Array) -> None:  # type: ignore[type-arg]
    found[key] = found[key] + value if key in found else value


def _pieces(given: Irreps, wanted: Irreps) -> list[list[tuple[int, int, int, int]]]:
    """Return the pieces of each given block: (wanted block, start there, own start, length)."""
    if simplified(given) != simplified(wanted):
        raise ValueError(f"irreps are {given}, expected {wanted} or the same cut differently")
    found: list[list[tuple[int, int, int, int]]] = []
    target, used = 0, 0
    for block in given:
        mine: list[tuple[int, int, int, int]] = []
        done = 0
        while done < block.mul:
            while used == wanted[target].mul:
                target, used = target + 1, 0
            length = min(block.mul - done, wanted[target].mul - used)
            mine.append((target, used, done, length))
            done, used = done + length, used + length
        found.append(mine)
    return found
