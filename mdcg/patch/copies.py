"""Deep copies of models, including models with parameters that ``copy.deepcopy`` cannot copy."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch

M = TypeVar("M", bound=torch.nn.Module)


def copy_model(model: M) -> M:
    """Return a deep copy of a model.

    mace marks the weights of missing paths with a class of parameter that ``copy.deepcopy`` cannot
    construct. The copy has an ordinary parameter without gradient in its place.
    """
    memo = {
        id(parameter): torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
        for parameter in model.parameters()
        if type(parameter).__name__ == "EmptyParam"
    }
    return copy.deepcopy(model, memo)
