"""Write the C++ text of convolutions and contractions of a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..codegen.contraction.engine import emit_engine_contraction
from ..codegen.conv.engine import emit_engine_conv
from ..problem import ConvProblem, SymmetricContractionProblem

__all__ = ["host_sources"]


def host_sources(
    layers: Sequence[Mapping[str, Any]], shapes: Mapping[str, Sequence[int]]
) -> list[str | None]:
    """Return the text of the kernel of each layer, or None where it has none.

    Parameters
    ----------
    layers : sequence of dict
        Of a manifest.
    shapes : mapping of str to sequence of int
        Shapes of the tensors of the package, whose numbers do not matter.
    """
    return [_source(layer, shapes) for layer in layers]


def _source(layer: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> str | None:
    if layer["type"] == "conv":
        radial = layer["radial"]
        last = radial["layers"][-1]
        # a bias of the last layer is a row of its own, whose input is 1
        hidden = shapes[last["weight"]][0] + ("bias" in last)
        ends = (radial.get("sender"), radial.get("receiver"))
        by_type = all(end is None or end in shapes for end in ends)
        return emit_engine_conv(ConvProblem.from_json(layer["problem"]), hidden, table=by_type)
    if layer["type"] == "contraction":
        return emit_engine_contraction(SymmetricContractionProblem.from_json(layer["problem"]))
    return None
