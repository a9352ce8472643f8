"""Energies and forces of trained models when an atom leaves the cutoff of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .smoothness import check_smooth
from .symmetry import open_trained

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
@pytest.mark.parametrize(
    ("dtype", "table"),
    [("float64", False), ("float64", True), ("float32", True), ("float32", False)],
)
def test_cutoff(name: str, dtype: str, table: bool, tmp_path: Path) -> None:
    model = open_trained(name, dtype, table, tmp_path)
    for types in ((0, 0), (0, 1), (1, 1)):
        for others in (0, 5):
            check_smooth(model, model.r_max, others, types, table=table)


class _Early:
    """A model with edges that end 0.1 Å before its radial functions."""

    def __init__(self, model: Any) -> None:
        self.model, self.r_max = model, model.r_max - 0.1
        self.dtype, self.type_names = model.dtype, model.type_names

    def evaluate(self, positions: Any, types: Any) -> Any:
        length = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
        receiver, sender = np.nonzero((length < self.r_max) & (length > 0))
        return self.model.evaluate(
            positions, types, edges=(sender, receiver, np.zeros((len(sender), 3)))
        )


@pytest.mark.parametrize("others", [0, 5])
def test_a_jump_is_found(others: int, tmp_path: Path) -> None:
    model = _Early(open_trained("mace_water", "float64", None, tmp_path))
    with pytest.raises(AssertionError, match="forces jump"):
        check_smooth(model, model.r_max, others, (0, 1))
