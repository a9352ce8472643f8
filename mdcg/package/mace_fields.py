"""Inputs of a structure that a MACE model reads besides its atoms, at the values of a package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError
from .e3nn_modules import array


def embedded_fields(model: Any, fields: Mapping[str, int]) -> NDArray[np.float64]:
    """Return what the ``joint_embedding`` adds to the features of each node.

    Parameters
    ----------
    model : mace.modules.MACE
    fields : mapping of str to int
        Value of every input, such as ``total_charge``.

    Raises
    ------
    UnsupportedProblemError
        A value is missing, or an input is one of each atom.
    """
    import torch

    from ..patch import copy_model

    specs: Mapping[str, Mapping[str, Any]] = model.embedding_specs
    given: dict[str, torch.Tensor] = {}
    for name, spec in specs.items():
        if spec["per"] != "graph":
            raise UnsupportedProblemError(
                f"the model reads {name!r} of each atom, which a package has not"
            )
        if name not in fields:
            raise UnsupportedProblemError(
                f"the model reads {name!r} of each structure, and a package is made for one value "
                f"of it: give it with --set {name}=VALUE; for several values"
            )
        given[name] = torch.tensor([fields[name]]).double()
        classes = spec.get("num_classes")
        if classes is not None and not 0 <= fields[name] + spec.get("offset", 0) < classes:
            raise ValueError(
                f"{name} is {fields[name]}, expected {-spec.get('offset', 0)} to "
                f"{classes - 1 - spec.get('offset', 0)}"
            )
    unknown = sorted(set(fields) - set(specs))
    if unknown:
        raise ValueError(f"the model reads no {', '.join(unknown)}, expected {', '.join(specs)}")
    module = copy_model(model.joint_embedding).double()
    with torch.no_grad():
        return array(module(torch.zeros(1, dtype=torch.int64), given))
