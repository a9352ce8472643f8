"""What MACE and NequIP models have in common when they are called: tensors and gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["as_array", "frozen", "one_at_a_time"]


def as_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return tensor.detach().to(device="cpu", dtype=torch.float64).numpy()


_locks: WeakKeyDictionary[torch.nn.Module, threading.RLock] = WeakKeyDictionary()
_registry = threading.Lock()


@contextmanager
def one_at_a_time(model: torch.nn.Module) -> Iterator[None]:
    """Let other threads wait that want to evaluate the same model.

    What :func:`frozen` and its like switch off is the live model's own, which calculators share.
    """
    with _registry:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


@contextmanager
def frozen(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Switch off gradients to parameters for a while, so that nothing is stored for them.

    Only inside :func:`one_at_a_time`.
    """
    live = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in live:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in live:
            parameter.requires_grad_(True)
