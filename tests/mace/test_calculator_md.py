"""Molecular dynamics: a thousand steps of a patched checkpoint, the first against the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE

from mdcg import MDCGCalculator, unpatch_model
from mdcg.patch import load_model

CHECKPOINT = Path(__file__).resolve().parents[2] / "examples" / "data" / "water.model"
STEPS = 1000
COMPARED = 300  # steps that the original model runs too; it takes most of the time
TIMESTEP = 0.5  # fs


def start(calc: MDCGCalculator, seed: int) -> Atoms:
    """Return eight relaxed water molecules in a periodic box, with velocities of 300 K."""
    atoms = molecule("H2O", cell=[3.1, 3.1, 3.1], pbc=True)
    atoms.center()
    atoms = atoms * (2, 2, 2)
    atoms.rattle(0.1, seed=3)
    atoms.calc = calc
    FIRE(atoms, logfile=None).run(fmax=0.1, steps=60)
    masses = atoms.get_masses()[:, None]
    velocities = np.random.default_rng(seed).normal(size=(24, 3))
    velocities *= np.sqrt(units.kB * 300.0 / masses)
    atoms.set_velocities(velocities - (masses * velocities).sum(axis=0) / masses.sum())
    return atoms


def run(atoms: Atoms, calc: MDCGCalculator, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return total energies (eV) and positions (Å) at every step."""
    atoms = atoms.copy()
    atoms.calc = calc
    dynamics = VelocityVerlet(atoms, TIMESTEP * units.fs)
    energies, positions = [], []
    for _ in range(steps):
        dynamics.step()
        energies.append(atoms.get_total_energy())
        positions.append(atoms.positions.copy())
    return np.array(energies), np.array(positions)


@pytest.mark.slow
def test_thousand_steps(seed: int) -> None:
    original, patched = MDCGCalculator(load_model(CHECKPOINT)), MDCGCalculator(CHECKPOINT)
    unpatch_model(original.model)
    assert patched.is_patched
    assert not original.is_patched
    atoms = start(patched, seed)
    energies, positions = run(atoms, original, COMPARED)
    fast_energies, fast_positions = run(atoms, patched, STEPS)

    # Rounding differs, and dynamics is chaotic: the difference grows, from 1e-15 Å, step by step.
    distance = np.abs(fast_positions[:COMPARED] - positions).max(axis=(1, 2))
    assert distance[:100].max() < 1e-11
    assert distance.max() < 1e-9
    assert np.abs(fast_energies[:COMPARED] - energies).max() < 1e-9

    per_atom = 1e3 * fast_energies / len(atoms)  # meV
    slope = np.polyfit(np.arange(STEPS) * TIMESTEP * 1e-3, per_atom, 1)[0]
    assert abs(slope) < 0.5, "energy drifts, in meV/atom/ps"
    assert np.std(per_atom) < 0.5
    assert patched.neighbors.num_builds < STEPS / 5, "the skin saves most neighbour lists"
