"""The result of an evaluation, and checks that all backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.calculator import CalculationFailed, InputError

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Results for one structure; None where a result was not asked for or does not exist.

    Attributes
    ----------
    energy : float
        eV, with the energies of the isolated atoms.
    energies : numpy.ndarray or None, shape (n_nodes,)
        eV; they sum to `energy`. None if the model's energy is not a sum over atoms.
    forces : numpy.ndarray or None, shape (n_nodes, 3)
        eV/Å.
    stress : numpy.ndarray or None, shape (3, 3)
        eV/Å^3, positive under tension.
    extra : dict
        Further results by name, such as those of a committee.
    """

    energy: float
    energies: FloatArray | None
    forces: FloatArray | None
    stress: FloatArray | None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_nothing(cls, *, forces: bool, stress: bool) -> Evaluation:
        """Return the evaluation of a structure without atoms."""
        return cls(
            energy=0.0,
            energies=np.zeros(0),
            forces=np.zeros((0, 3)) if forces else None,
            stress=np.zeros((3, 3)) if stress else None,
        )


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


@contextmanager
def errors_of_images(
    images: Sequence[Atoms], evaluate: Callable[[Atoms], Evaluation]
) -> Iterator[None]:
    """Raise the error of the first structure that fails by itself, with its own atom numbers."""
    try:
        yield
    except (InputError, CalculationFailed):
        for number, atoms in enumerate(images):
            try:
                evaluate(atoms)
            except (InputError, CalculationFailed) as error:
                raise type(error)(f"images[{number}]: {error}") from None
        raise
