"""Put the source of generated kernels into a package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codegen.engine_contraction import emit_engine_contraction
from ..codegen.engine_conv import emit_engine_conv
from ..problem import ConvProblem, SymmetricContractionProblem

__all__ = ["add_kernels"]


def add_kernels(
    layers: list[dict[str, Any]], tensors: dict[str, NDArray[Any]]
) -> list[dict[str, Any]]:
    """Write the kernels of all layers that have one, and name them in the layers.

    Parameters
    ----------
    layers : list of dict
        Of a manifest; ``kernel`` is set in each layer that has one.
    tensors : dict of str to array
        Sources are added, as bytes.

    Returns
    -------
    list of dict
        The manifest's ``kernels``. Layers with the same source share one.
    """
    kernels: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for layer in layers:
        source = _source(layer, tensors)
        if source is None:
            continue
        if source not in names:
            names[source] = layer["name"]
            tensor = f"kernels.{layer['name']}"
            tensors[tensor] = np.frombuffer(source.encode(), dtype=np.uint8)
            kernels.append(
                {
                    "name": layer["name"],
                    "layer": layer["name"],
                    "kind": layer["type"],
                    "source": tensor,
                    "binaries": [],
                }
            )
        layer["kernel"] = names[source]
    return kernels


def _source(layer: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str | None:
    if layer["type"] == "conv":
        radial = layer["radial"]
        last = radial["layers"][-1]
        # a bias of the last layer is a row of its own, whose input is 1
        hidden = tensors[last["weight"]].shape[0] + ("bias" in last)
        ends = (radial.get("sender"), radial.get("receiver"))
        by_type = all(end is None or end in tensors for end in ends)
        return emit_engine_conv(ConvProblem.from_json(layer["problem"]), hidden, table=by_type)
    if layer["type"] == "contraction":
        return emit_engine_contraction(SymmetricContractionProblem.from_json(layer["problem"]))
    return None
