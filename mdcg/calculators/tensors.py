"""What MACE and NequIP models have in common when they are called: tensors and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["as_array", "frozen"]


def as_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return tensor.detach().to(device="cpu", dtype=torch.float64).numpy()


@contextmanager
def frozen(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Switch off gradients to parameters for a while, so that nothing is stored for them."""
    live = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in live:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in live:
            parameter.requires_grad_(True)
