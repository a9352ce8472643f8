"""What every model's evaluation returns, and what all of them do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import CalculationFailed

from .neighbors import FloatArray

__all__ = ["Evaluation", "as_array", "check_finite", "frozen", "one_at_a_time"]


@dataclass(frozen=True)
class Evaluation:
    """What a model says of one structure; None is what was not asked for or does not exist.

    Attributes
    ----------
    energy : float
        eV, with the energies of the isolated atoms.
    energies : numpy.ndarray or None, shape (n_nodes,)
        eV; they sum to `energy`. None if the model's energy is no sum over atoms.
    forces : numpy.ndarray or None, shape (n_nodes, 3)
        eV/Å.
    stress : numpy.ndarray or None, shape (3, 3)
        eV/Å^3, positive under tension.
    """

    energy: float
    energies: FloatArray | None
    forces: FloatArray | None
    stress: FloatArray | None


def check_finite(result: Evaluation, atoms: Atoms) -> None:
    """Raise ``CalculationFailed`` if a result is not finite."""
    for name in ("energy", "energies", "forces", "stress"):
        value = getattr(result, name)
        if value is not None and not np.isfinite(value).all():
            raise CalculationFailed(
                f"the model returned {name} that are not finite numbers for "
                f"{atoms.get_chemical_formula()}; check the structure for atoms that are much "
                "too close"
            )


def as_array(tensor: torch.Tensor) -> FloatArray:
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
