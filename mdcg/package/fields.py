"""Per-structure inputs of models, such as a charge, whose values a package fixes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError
from .e3nn_modules import array


def field_value(
    fields: Mapping[str, int], name: str, lowest: int = 0, count: int | None = None
) -> int:
    """Return the value of an input of the structure.

    The model knows `count` values, beginning with `lowest`; if `count` is None, it knows all.
    """
    if name not in fields:
        raise UnsupportedProblemError(
            f"the model reads {name!r} of each structure, and a package is made for one value "
            f"of it: give it with --set {name}=VALUE"
        )
    value = fields[name]
    if count is not None and not lowest <= value < lowest + count:
        raise ValueError(f"{name} is {value}, expected {lowest} to {lowest + count - 1}")
    return value


def lowest_values(model: Any) -> dict[str, int]:
    """Return the lowest value of each input of the structure that a model reads."""
    from ..patch.models import categorical_fields

    specs: Mapping[str, Mapping[str, Any]] = getattr(model, "embedding_specs", None) or {}
    found = {n: -spec.get("offset", 0) for n, spec in specs.items() if spec["per"] == "graph"}
    return found | {name: lowest for name, (lowest, _) in categorical_fields(model).items()}


def refuse_unknown(fields: Mapping[str, int], known: Collection[str]) -> None:
    """Raise ValueError if a value is given for an input that the model does not read."""
    unknown = sorted(set(fields) - set(known))
    if unknown:
        expected = ", ".join(sorted(known)) or "none"
        raise ValueError(f"the model reads no {', '.join(unknown)}, expected {expected}")


def embedded_fields(model: Any, fields: Mapping[str, int]) -> NDArray[np.float64]:
    """Return the row that the ``joint_embedding`` adds to the features of each node."""
    import torch

    from ..patch import copy_model

    specs: Mapping[str, Mapping[str, Any]] = model.embedding_specs
    given: dict[str, torch.Tensor] = {}
    for name, spec in specs.items():
        if spec["per"] != "graph":
            raise UnsupportedProblemError(
                f"the model reads {name!r} of each atom, which packages do not have"
            )
        value = field_value(fields, name, -spec.get("offset", 0), spec.get("num_classes"))
        given[name] = torch.tensor([value]).double()
    refuse_unknown(fields, specs)
    module = copy_model(model.joint_embedding).double()
    with torch.no_grad():
        return array(module(torch.zeros(1, dtype=torch.int64), given))
