"""Energies, forces and virials for i-PI, all beads of a step in one batch.

i-PI loads this file (``<pes_path>`` of ipi_water.xml), and so does its client, of which several can
share the beads: ``i-pi-driver-py -u -a ADDRESS -m custom -P ipi_driver.py -o template=...``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ase import Atoms
from ase.io import read
from ase.stress import voigt_6_to_full_3x3_stress
from ipi.pes.dummy import Dummy_driver
from ipi.utils.units import unit_to_internal, unit_to_user
from numpy.typing import NDArray

from mdcg import MDCGCalculator

# i-PI finds the class by these.
__DRIVER_NAME__ = "mdcg"
__DRIVER_CLASS__ = "MDCGDriver"

Array = NDArray[np.float64]
Result = tuple[float, Array, Array, str]  # energy, forces, virial, and text for i-PI's output


class MDCGDriver(Dummy_driver):
    """Evaluates structures with a package.

    Parameters
    ----------
    template : str
        File with a structure that has the elements, in i-PI's order, and the periodic directions.
    package : str
    device : str
    **options
        Those of i-PI.
    """

    def __init__(self, template: str, package: str, device: str = "cpu", **options: Any) -> None:
        super().__init__(**options)
        self.atoms = read(template)
        self.calculator = MDCGCalculator(package, device=device)
        stress = ["stress"] if self.atoms.pbc.any() else []
        self.properties = ["energy", "forces", *stress]

    def compute(self, cell: Any, pos: Any) -> Any:
        """Return the result of a structure, or a list of those of lists of cells and positions."""
        if not isinstance(cell, list):
            atoms = self.image(cell, pos)
            self.calculator.calculate(atoms, self.properties)
            return self.result(atoms, self.calculator.results)
        images = [self.image(*each) for each in zip(cell, pos, strict=True)]
        found = self.calculator.batch(images, self.properties)
        return [self.result(*each) for each in zip(images, found, strict=True)]

    def image(self, cell: Array, positions: Array) -> Atoms:
        """Return a structure. i-PI counts in Bohr, and its vectors of the cell are columns."""
        atoms = self.atoms.copy()
        atoms.cell[:] = unit_to_user("length", "angstrom", cell.T)
        atoms.positions[:] = unit_to_user("length", "angstrom", positions)
        return atoms

    def result(self, atoms: Atoms, found: dict[str, Any]) -> Result:
        virial = np.zeros((3, 3))
        if "stress" in found:
            virial = -voigt_6_to_full_3x3_stress(found["stress"]) * atoms.get_volume()
        return (
            unit_to_internal("energy", "electronvolt", found["energy"]),
            unit_to_internal("force", "ev/ang", found["forces"]),
            unit_to_internal("energy", "electronvolt", virial),
            "",
        )
