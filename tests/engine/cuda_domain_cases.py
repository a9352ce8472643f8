"""Systems in domains on a device; run like cuda_cases.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator, _core

from .cuda_device import choose_devices
from .domains import RESULTS, box, compare, opened, report

pytest_generate_tests = choose_devices
DATA = Path(__file__).parents[1] / "data"
MACE, NEQUIP = (str(DATA / f"{kind}_water_float64.mdcg") for kind in ("mace", "nequip"))


@pytest.mark.parametrize("periodic", [(True, True, True), (False, True, False)])
def test_domains_agree_with_the_whole_system(periodic: tuple[bool, ...]) -> None:
    """Domains on a device, in one-domain steps and divided, with weights of energies too."""
    positions, types, cell = box((12, 4, 3), skew=0.4)
    system = {"positions": positions, "types": types, "cell": cell, "periodic": periodic}
    whole = _core.Model(MACE, device="cuda").evaluate(**system, **RESULTS)
    model = opened(MACE, 3, system, device="cuda")
    for _ in range(3):  # the last ones keep the domains
        compare(whole, model.evaluate(**system, **RESULTS), 1e-11)
    weights = np.random.default_rng(1).normal(size=len(types))
    want = _core.Model(MACE).evaluate(**system, **RESULTS, energy_weights=weights)
    compare(want, model.evaluate(**system, **RESULTS, energy_weights=weights), 1e-9)


def test_several_layers() -> None:
    positions, types, cell = box((30, 3, 3))
    system = {"positions": positions, "types": types, "cell": cell, "periodic": (True,) * 3}
    whole = _core.Model(NEQUIP, device="cuda").evaluate(**system, virial=True)
    model = opened(NEQUIP, 2, system, device="cuda")
    compare(whole, model.evaluate(**system, virial=True), 1e-11)


def test_memory_is_kept_to() -> None:
    """Estimates come near to the bytes of buffers, which never exceed what is allowed."""
    positions, types, cell = box((14, 6, 6))
    system = {"positions": positions, "types": types, "cell": cell, "periodic": (True,) * 3}
    model = opened(MACE, 3, system, device="cuda")
    found = report(model)
    assert 0.5 * found["memory_bytes"] < found["bytes"] <= found["memory_bytes"]


def test_the_heat_flux_is_not_divided() -> None:
    positions, types, cell = box((14, 6, 6))
    atoms = Atoms(np.array(["O", "H"])[types], positions, cell=cell, pbc=True)
    atoms.set_velocities(np.random.default_rng(0).normal(size=positions.shape))
    atoms.calc = MDCGCalculator(MACE, device="cuda", memory="5 MB")
    assert np.isfinite(atoms.get_forces()).all()
    assert atoms.calc.report().packages[0]["domains"] > 1
    with pytest.raises(MemoryError, match="heat fluxes, are not divided into domains"):
        atoms.calc.get_heat_flux(atoms)
