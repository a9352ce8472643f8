"""Deep copies of models, also of those whose parameters cannot be copied one by one."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch

__all__ = ["copy_model"]

M = TypeVar("M", bound=torch.nn.Module)


def copy_model(model: M) -> M:
    """Return a deep copy.

    mace marks weights of paths that do not exist by a kind of parameter which ``copy.deepcopy``
    cannot construct; its copy is an ordinary parameter without gradient.
    """
    memo = {
        id(parameter): torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
        for parameter in model.parameters()
        if type(parameter).__name__ == "EmptyParam"
    }
    return copy.deepcopy(model, memo)
