"""Energies and forces of trained models where an atom leaves the cutoff of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg import _core
from mdcg.package import Package

from .smoothness import check_smooth
from .symmetry import DATA, open_trained


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
@pytest.mark.parametrize(
    ("dtype", "knots"), [("float64", None), ("float64", 512), ("float32", 512), ("float32", None)]
)
def test_cutoff(name: str, dtype: str, knots: int | None, tmp_path: Path) -> None:
    model = open_trained(name, dtype, knots, tmp_path)
    for types in ((0, 0), (0, 1), (1, 1)):
        for others in (0, 5):
            check_smooth(model, model.r_max, others, types, table=knots is not None)


@pytest.mark.parametrize("others", [0, 5])
def test_a_jump_is_found(others: int, tmp_path: Path) -> None:
    """Edges end 0.1 Å before the radial functions do."""
    package = Package.open(DATA / "mace_water_float64.mdcg")
    package.manifest["r_max"] -= 0.1
    package.save(tmp_path / "p.mdcg")
    model = _core.Model(str(tmp_path / "p.mdcg"))
    with pytest.raises(AssertionError, match="forces jump"):
        check_smooth(model, model.r_max, others, (0, 1))
