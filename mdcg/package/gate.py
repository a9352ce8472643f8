"""Gated nonlinearities: mace's own block and e3nn's, whose input is sorted and merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps, MulIrrep
from .e3nn_modules import activation, irreps_of
from .linear_map import simplified


@dataclass(frozen=True)
class GateBlocks:
    """A gate whose scalars, gates and gated features are blocks of their own.

    `scalars` and `gated` are those of :meth:`.Builder.gate`.
    """

    irreps_in: Irreps  # the module's input, cut where its three parts meet
    irreps_out: Irreps
    scalars: tuple[tuple[int, int, str, float], ...]
    gated: tuple[tuple[int, int, int, int, str, float], ...]


def gate_blocks(module: Any, name: str) -> GateBlocks:
    """Read a ``GatedEquivariantBlock`` of mace, or an ``e3nn.nn.Gate``."""
    kind = type(module).__name__
    if kind == "GatedEquivariantBlock":
        if getattr(module, "_layout_is_ir_mul", False):
            raise UnsupportedProblemError(
                f"{name} has the layout of cuEquivariance: convert the model back to e3nn first"
            )
        parts = [irreps_of(getattr(module, f"irreps_{n}")) for n in ("scalars", "gates", "gated")]
        # one constant for all blocks of a part, taken from the first
        acts = [
            [_activation(module._act_scalar, module._scalar_cst, name)] * len(parts[0]),
            [_activation(module._act_gate, module._gate_cst, name)] * len(parts[1]),
        ]
    elif kind == "Gate":
        parts = [irreps_of(getattr(module, f"irreps_{n}")) for n in ("scalars", "gates", "gated")]
        acts = [
            [activation(act, name) for act in getattr(module, f"act_{n}").acts]
            for n in ("scalars", "gates")
        ]
    else:
        raise UnsupportedProblemError(f"{name} is {a_type(module)}, expected a gate")
    return _arranged(parts, acts, irreps_of(module.irreps_in), irreps_of(module.irreps_out))


def _activation(function: Any, factor: float, name: str) -> tuple[str, float]:
    kind, own = activation(function, name)
    return kind, own * float(factor)


def _arranged(
    parts: list[Irreps],
    acts: list[list[tuple[str, float]]],
    irreps_in: Irreps,
    irreps_out: Irreps,
) -> GateBlocks:
    labelled: list[tuple[int, int, MulIrrep]] = [
        (part, number, block)
        for part, irreps in enumerate(parts)
        for number, block in enumerate(irreps)
    ]
    # e3nn sorts stably, by degree and by parity; versions differ in which parity comes first
    for sign in (1, -1):
        order = sorted(labelled, key=lambda row: (row[2].ir.l, sign * row[2].ir.p))
        found = Irreps.from_pairs((b.mul, b.ir.l, b.ir.p) for _, _, b in order)
        if simplified(found) == simplified(irreps_in):
            break
    else:
        raise UnsupportedProblemError(f"a gate takes {irreps_in}, expected {simplified(found)}")
    place = {(part, number): position for position, (part, number, _) in enumerate(order)}
    scalars = tuple((place[0, number], number, *acts[0][number]) for number in range(len(parts[0])))
    ends: list[tuple[int, int]] = []  # (gates block, channel) of each gate, in order
    for number, block in enumerate(parts[1]):
        ends += [(number, channel) for channel in range(block.mul)]
    gated = []
    first = 0
    for number, block in enumerate(parts[2]):
        gates, channel = ends[first]
        if ends[first + block.mul - 1][0] != gates:
            raise UnsupportedProblemError(f"the gates of {block} are of several blocks")
        first += block.mul
        out = len(parts[0]) + number
        gated.append((place[1, gates], channel, place[2, number], out, *acts[1][gates]))
    return GateBlocks(found, irreps_out, scalars, tuple(gated))
