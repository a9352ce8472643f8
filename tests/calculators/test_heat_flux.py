"""The heat flux of packages, as the derivative of the sum of positions times energies."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mdcg import MDCGCalculator

from .kinds import CHECKPOINTS, Kind, box, dimer, kinds

KINDS = [each for each in kinds() if each.values[0].name not in CHECKPOINTS]


def moving(atoms: Atoms, seed: int = 5) -> Atoms:
    velocities = np.random.default_rng(seed).normal(scale=0.02, size=(len(atoms), 3))
    atoms.set_velocities(velocities)
    return atoms


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_cluster_it_is_the_derivative_of_the_barycentre_of_energy(kind: Kind) -> None:
    atoms, calc = moving(dimer()), kind.make()
    flux = calc.get_heat_flux(atoms)
    forces, velocities = calc.get_forces(atoms), atoms.get_velocities()
    masses = atoms.get_masses()

    def barycentre(time: float) -> np.ndarray:
        """Return the sum of positions times energies, to second order in time."""
        at = atoms.copy()
        at.positions += time * velocities + 0.5 * time**2 * forces / masses[:, None]
        then = velocities + time * forces / masses[:, None]
        energies = 0.5 * masses * (then**2).sum(axis=1) + calc.get_potential_energies(at)
        return np.asarray(energies @ at.positions)

    step = 1e-4
    numeric = (barycentre(step) - barycentre(-step)) / (2 * step)
    assert np.abs(flux).max() > 0.1
    np.testing.assert_allclose(flux, numeric, rtol=0, atol=1e-6 * np.abs(flux).max())


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_crystal(kind: Kind) -> None:
    """The heat flux of a crystal does not depend on the choice of cell or periodic images."""
    calc, atoms = kind.make(), moving(box())
    flux = calc.get_heat_flux(atoms)
    size = np.abs(flux).max()
    assert size > 0.1

    def check(other: Atoms, times: int = 1) -> None:
        np.testing.assert_allclose(
            calc.get_heat_flux(other), times * flux, rtol=0, atol=1e-10 * size * times
        )

    check(atoms)
    apart = atoms.copy()
    apart.positions += np.arange(18).reshape(6, 3) % 3 @ atoms.cell.array + [7.0, -3.0, 50.0]
    check(apart)
    check(atoms * (2, 1, 3), 6)
    skewed = atoms.copy()
    skewed.set_cell([[1, 0, 0], [2, 1, 0], [-1, 1, 1]] @ atoms.cell.array)
    check(skewed)


@pytest.mark.parametrize("kind", KINDS)
def test_heat_flux_of_atoms_at_rest_is_zero(kind: Kind) -> None:
    calc, atoms = kind.make(), box()
    assert not calc.get_heat_flux(atoms).any()
    assert not calc.get_heat_flux(Atoms()).any()
    # the heat flux does not change stored results
    forces = calc.get_forces(atoms)
    calc.get_heat_flux(moving(atoms.copy()))
    np.testing.assert_array_equal(calc.get_forces(atoms), forces)


def test_a_single_atom_carries_its_energy() -> None:
    calc = MDCGCalculator(Kind("package").model)
    atoms = Atoms("O", velocities=[[0.01, -0.02, 0.03]])
    energy = calc.get_potential_energy(atoms) + atoms.get_kinetic_energy()
    np.testing.assert_allclose(calc.get_heat_flux(atoms), energy * atoms.get_velocities()[0])


def test_models_of_torch_have_none() -> None:
    pytest.importorskip("mace")
    calc = MDCGCalculator(CHECKPOINTS["mace"])
    with pytest.raises(TypeError, match="get_heat_flux is for packages"):
        calc.get_heat_flux(molecule("H2O"))
    package = MDCGCalculator(Kind("package").model)
    with pytest.raises(ValueError, match="no atoms to evaluate"):
        package.get_heat_flux()
