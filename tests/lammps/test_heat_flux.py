"""compute mdcg/heat/flux against the calculator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import units as ase_units

from mdcg import MDCGCalculator

from .lmp import head, molecule_in_a_corner, package, run_input, water, write_data

HEAT_FLUX = """
mass * 12.0
mass 2 15.0
velocity all create 900 4711 loop geom
group some id 1:9
compute flux all mdcg/heat/flux
compute of_some some mdcg/heat/flux
thermo_style custom step pe c_flux[*] c_of_some[*]
thermo_modify format float %.17g
thermo 2
fix nve all nve
dump v all custom 2 out.dump id xu yu zu vx vy vz
dump_modify v sort id format float %.17g
run 4
"""


MODELS = [package("mace", "float64"), package("nequip", "float64")]  # with 2 and 3 layers


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("units", "members"), [("metal", 1), ("real", 1), ("metal", 2)])
def test_heat_flux(tmp_path: Path, ranks: int, units: str, members: int) -> None:
    """The heat flux of a run equals ASE's, and computing it does not change the trajectory."""
    atoms, models = water(2), MODELS[:members]
    write_data(tmp_path / "test.data", atoms)
    text = head(MODELS[0], units=units, before="comm_modify cutoff 15.0")
    text = text.replace(str(MODELS[0]), " ".join(map(str, models)))
    output = run_input(tmp_path, text + HEAT_FLUX, ranks=ranks)
    plain = run_input(tmp_path, text + HEAT_FLUX.replace("c_flux[*] c_of_some[*]", ""), ranks=ranks)
    np.testing.assert_allclose(output.runs[0]["PotEng"], plain.runs[0]["PotEng"], rtol=0, atol=1e-9)
    calc = MDCGCalculator(models, threads=1)
    energy, time = (1.0, 1000.0) if units == "metal" else (ase_units.kcal / ase_units.mol, 1.0)
    atoms.set_masses([15.0 if symbol == "O" else 12.0 for symbol in atoms.symbols])
    for frame, rows in enumerate(output.dump()):
        atoms.positions = rows[:, 1:4]
        atoms.set_velocities(rows[:, 4:7] / (time * ase_units.fs))
        want = calc.get_heat_flux(atoms) * time * ase_units.fs / energy
        run = output.runs[0]
        found = np.array([run[f"c_flux[{k}]"][frame] for k in range(1, 7)])
        assert np.abs(want).max() > 0.1
        np.testing.assert_allclose(found[:3], want, rtol=0, atol=2e-7 * np.abs(want).max())
        some = np.array([run[f"c_of_some[{k}]"][frame] for k in range(1, 7)])
        assert np.abs(some[:3]).max() > 0.05
        assert np.abs(some[:3] - found[:3]).max() > 0.05
        kinetic = 0.5 * atoms.get_masses() * (atoms.get_velocities() ** 2).sum(axis=1)
        carried = (kinetic + calc.get_potential_energies(atoms)) @ rows[:, 4:7] / energy
        np.testing.assert_allclose(found[3:], carried, rtol=0, atol=2e-7 * np.abs(carried).max())


def test_heat_flux_with_empty_ranks(tmp_path: Path) -> None:
    """The heat flux does not depend on ranks without atoms, or without atoms of the group."""
    write_data(tmp_path / "test.data", molecule_in_a_corner())
    text = head(MODELS[0], boundary="f f f", before="comm_modify cutoff 15.0\nprocessors 4 1 1")
    one, four = (
        run_input(
            tmp_path, text.replace("processors 4", f"processors {ranks}") + HEAT_FLUX, ranks=ranks
        )
        for ranks in (1, 4)
    )
    for name in (f"c_{which}[{k}]" for which in ("flux", "of_some") for k in range(1, 7)):
        want = one.runs[0][name]
        assert np.isfinite(want).all()
        np.testing.assert_allclose(
            four.runs[0][name], want, rtol=0, atol=1e-9 * max(1.0, np.abs(want).max())
        )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ("compute f all mdcg/heat/flux 3", "got 1 arguments, expected none"),
        ("compute f all mdcg/heat/flux", "use comm_modify cutoff "),
        ("compute f all mdcg/heat/flux\npair_style zero 4.0\npair_coeff * *", "expected mdcg"),
    ],
)
def test_heat_flux_errors(tmp_path: Path, commands: str, sentence: str, ranks: int) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = (
        head(package("mace", "float64")) + commands + "\nthermo_style custom step c_f[1]\nrun 0\n"
    )
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code > 0
    assert "compute mdcg/heat/flux: " in output.text
    assert sentence in output.text
