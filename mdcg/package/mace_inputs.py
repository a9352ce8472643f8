"""Reads the joint embedding of MACE models, which turns inputs of a system into a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from .e3nn_modules import activation, array
from .inputs import InputLayer, InputNetwork, SystemInput, refuse_unknown, system_input

Array = NDArray[np.float64]


def embedded_inputs(model: Any, fields: Mapping[str, float]) -> tuple[InputNetwork, Array]:
    """Return the inputs that a ``joint_embedding`` of MACE reads, and the row of the defaults.

    The row is added to the features of each node. It is zero if an input has no default.
    """
    import torch

    from ..patch import copy_model

    specs: Mapping[str, Mapping[str, Any]] = model.embedding_specs
    refuse_unknown(fields, specs)
    module = model.joint_embedding
    project = list(module.project)
    if [type(part).__name__ for part in project] != ["Linear", "SiLU"] or (
        project[0].bias is not None
    ):
        raise UnsupportedProblemError(
            f"joint_embedding.project is {a_type(module.project)} of "
            f"{', '.join(type(part).__name__ for part in project)}, expected Linear without a bias "
            "and SiLU"
        )
    columns, used, found = array(project[0].weight), 0, []
    for name, spec in specs.items():
        if spec["per"] != "graph":
            raise UnsupportedProblemError(
                f"the model reads {name!r} of each atom, which packages do not have"
            )
        width = int(spec["emb_dim"])
        mix = columns[:, used : used + width].T
        used += width
        found.append(_embedded_input(fields, name, spec, module.embedders[name], mix))
    network = InputNetwork(tuple(found), len(columns), *activation(project[1], "joint_embedding"))
    if not network.has_defaults:
        return network, np.zeros((1, network.units))
    given = {each.name: torch.tensor([each.default]).double() for each in found}
    with torch.no_grad():
        return network, array(copy_model(module).double()(torch.zeros(1, dtype=torch.int64), given))


def _embedded_input(
    fields: Mapping[str, float], name: str, spec: Mapping[str, Any], module: Any, mix: Array
) -> SystemInput:
    """Read the embedding of an input; `mix` leads from it to the hidden units."""
    at = f"joint_embedding.embedders.{name}"
    if spec["type"] == "categorical":
        rows = array(module.weight) @ mix
        return system_input(fields, name, -int(spec.get("offset", 0)), len(rows), rows=rows)
    if int(spec.get("in_dim", 1)) != 1:
        raise UnsupportedProblemError(
            f"the model reads {name!r} as {spec['in_dim']} numbers of each structure, and inputs "
            "of packages are single numbers"
        )
    parts = list(module)
    if [type(part).__name__ for part in parts] != ["Linear", "SiLU", "Linear"]:
        raise UnsupportedProblemError(f"{at} is {a_type(module)}, expected Linear, SiLU, Linear")
    first, last = (
        (array(p.weight).T, None if p.bias is None else array(p.bias)) for p in parts[::2]
    )
    layers = (
        InputLayer(*first, *activation(parts[1], at)),
        InputLayer(last[0] @ mix, None if last[1] is None else last[1] @ mix),
    )
    return system_input(fields, name, layers=layers)
