"""Helpers for calling MACE and NequIP models: tensors, gradients and locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch


def as_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return tensor.detach().to(device="cpu", dtype=torch.float64).numpy()


_locks: WeakKeyDictionary[torch.nn.Module, threading.RLock] = WeakKeyDictionary()
_registry = threading.Lock()


def _after_fork() -> None:
    """Replace, in a forked child, the locks that threads of the parent may have held."""
    global _locks, _registry
    _locks, _registry = WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def one_at_a_time(model: torch.nn.Module) -> Iterator[None]:
    """Keep other threads from evaluating the same model.

    :func:`frozen` and similar functions change the live model, which calculators may share.
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
