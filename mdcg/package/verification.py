"""Compares a package, evaluated by the engine, with the model that it was made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..errors import VerificationError
from .file import Package, engine_checks, write_synced
from .inputs import FIELD_COMPONENTS, values_to_compare

if TYPE_CHECKING:
    from ..patch import ModelInfo, VerificationReport
    from ..patch.systems import Structure
    from ..patch.verify import Outputs, Reference

# An external field, eV/Å/e.
_FIELD = (0.03, -0.02, 0.05)
_OWN_FORCES = (
    "MACE's own forces and stress were left out: they are not the gradient of its energy, because "
    'torch gives the Chebyshev polynomials of radial_type="chebyshev" a derivative of zero; the '
    "package's are, and were compared with that gradient"
)
_OWN_STRESS = (
    "MACE's own stress was left out: the strain does not reach the waves of its long-range sum; "
    "the package's is the derivative of the energy, and was compared with differences of MACE's "
    "energies"
)
# Relative change of the cell in these differences. It is so small that waves at the edge of the
# sphere, which the sum ends at, hardly ever cross it.
_STRAIN = 2e-6


def verify_package(
    path: str | Path,
    original: Any,
    *,
    head: str | None = None,
    systems: Sequence[Structure] | None = None,
    atol_forces: float | None = None,
    kernels: str = "auto",
    device: str = "cpu",
    reference: Reference | None = None,
) -> VerificationReport:
    """Evaluate a package and the original on several structures and compare.

    A float64 package is compared with the original in float64. A float32 package is compared with
    it too: its error may be twice the largest error, over the structures, of the original evaluated
    in float32. If the original's forces or stress are not derivatives of its energy, derivatives
    are compared instead, and the report's note says so. `atol_forces` in eV/Å replaces the limit on
    forces; a `reference` of :func:`package_reference` replaces the evaluation of the original. The
    engine runs on `device`, the original on its own device.
    """
    from ..patch import model_info
    from ..patch.models import lacks_radial_derivative, lacks_strain_derivative
    from ..patch.verify import compare

    package = Package.open(path)
    if reference is None:
        reference = package_reference(package, original, head=head, systems=systems)
    with engine_checks(VerificationError, "the engine does not open the package: "):
        engine = _core.Model(str(path), device=device, kernels=kernels)
    types = {kind: number for number, kind in enumerate(_kinds(package, model_info(original)))}
    found = [_evaluate(engine, types, package, known.system) for known in reference.structures]
    report = compare(reference, found, atol_forces=atol_forces)
    notes = {
        _OWN_FORCES: lacks_radial_derivative(original),
        _OWN_STRESS: lacks_strain_derivative(original),
    }
    note = " ".join(text for text, holds in notes.items() if holds)
    return replace(report, device=device, note=note)


def write_verified(
    package: Package,
    file: Path,
    original: Any,
    *,
    atol_forces: float | None = None,
    reference: Reference | None = None,
) -> VerificationReport:
    """Write a package, compare it with the original, and record in it that it agrees.

    The arguments are those of :func:`verify_package`.
    """
    write_synced(file, package.to_bytes())
    head = package.manifest["head"]
    report = verify_package(file, original, head=head, atol_forces=atol_forces, reference=reference)
    if report.passed:
        package.manifest["verification"] = _recorded(report)
        write_synced(file, package.to_bytes())
    return report


def _recorded(report: VerificationReport) -> dict[str, Any]:
    """Return the record for the manifest, with powers of ten, which are equal on all machines."""
    below = {}
    for name, worst in report.worst().items():
        error = max(worst.error, 1e-18)
        below[f"{name} ({worst.unit})"] = float(f"1e{math.ceil(math.log10(error))}")
    return {
        "passed": report.passed,
        "dtype": report.dtype,
        "structures": len({deviation.system for deviation in report.deviations}),
        "below": below,
    }


def package_reference(
    package: Package,
    original: Any,
    *,
    head: str | None = None,
    systems: Sequence[Structure] | None = None,
) -> Reference:
    """Evaluate the original for comparison with a package; see :func:`verify_package`."""
    import torch

    from ..patch import model_info
    from ..patch.models import (
        copy_in_dtype,
        lacks_radial_derivative,
        lacks_strain_derivative,
        with_radial_derivative,
    )
    from ..patch.systems import verification_systems
    from ..patch.verify import evaluate_outputs, evaluate_reference

    info = model_info(original)
    if lacks_radial_derivative(original):
        original = with_radial_derivative(original)
    exact = original if info.dtype == torch.float64 else copy_in_dtype(original, torch.float64)
    model = exact
    if package.dtype == "float32":
        model = original
        if info.dtype != torch.float32:
            model = copy_in_dtype(original, torch.float32)
    if systems is None:
        kinds = _kinds(package, info)
        systems = verification_systems(kinds, package.r_max, symbols=package.type_names)
        if package.is_long_range:  # the sum is that of a crystal, or of a cluster
            systems = [each for each in systems if len({*each.pbc}) == 1]
    values = values_to_compare(package.inputs, len(systems))
    for each, own in zip(systems, values, strict=True):
        if not each.periodic:  # only open systems may be in a field
            own |= {n: v for n, v in zip(FIELD_COMPONENTS, _FIELD, strict=True) if n in own}
    systems = [replace(each, inputs=own) for each, own in zip(systems, values, strict=True)]
    reference = evaluate_reference(model, head=head, systems=systems, exact=exact)
    if not package.has_dipoles:  # PolarMACE gives that of its charges, packages do not
        structures = tuple(known.without("dipole") for known in reference.structures)
        reference = replace(reference, structures=structures)
    if not lacks_strain_derivative(original):
        return reference

    exact_info = model_info(exact)

    def energy(system: Structure) -> float:
        return float(evaluate_outputs(exact, exact_info, system, head)[1]["energy"])

    return replace(
        reference,
        structures=tuple(
            known.with_stress(_stress_of_differences(energy, known.system))
            if "stress" in known.truth
            else known
            for known in reference.structures
        ),
    )


def _stress_of_differences(energy: Callable[[Structure], float], system: Structure) -> Any:
    """Return the derivative of an energy by a strain, divided by the volume, shape (3, 3)."""
    found = np.zeros((3, 3))
    for a, b in combinations_with_replacement(range(3), 2):
        strain = np.zeros((3, 3))
        strain[a, b] += 0.5
        strain[b, a] += 0.5

        def at(amount: float, by: Any = strain) -> float:
            change = np.eye(3) + amount * by
            moved = {"positions": system.positions @ change, "cell": system.cell @ change}
            return energy(replace(system, **moved))

        near, far = (at(n * _STRAIN) - at(-n * _STRAIN) for n in (1, 2))
        found[a, b] = found[b, a] = (8 * near - far) / (12 * _STRAIN)
    return found / abs(np.linalg.det(system.cell))


def _kinds(package: Package, info: ModelInfo) -> list[int]:
    """Return the atomic number, or type of the original, of each type of a package."""
    return [info.kinds[info.symbols.index(name)] for name in package.type_names]


def _evaluate(model: Any, types: Mapping[int, int], package: Package, system: Structure) -> Outputs:
    """Return the engine's results for a structure under MACE's names."""
    import torch

    from ..patch.models import complete_cell

    energies, dipoles, charges = package.has_energies, package.has_dipoles, package.has_charges
    cell = complete_cell(system.cell, system.pbc)
    numbers = np.array([types[int(kind)] for kind in system.atomic_numbers], np.int32)
    with engine_checks(
        VerificationError, f"the engine does not run on the {system.name} structure: "
    ):
        found = model.evaluate(
            system.positions,
            numbers,
            cell=cell,
            periodic=list(system.pbc),
            forces=energies,
            virial=energies,
            descriptors=dipoles or charges,
            inputs=[system.inputs[each["name"]] for each in package.inputs],
        )
    values: dict[str, Any] = {}
    if energies:
        values |= {"energy": np.array([found["energy"]]), "forces": found["forces"]}
    if dipoles:
        values["dipole"] = found["descriptors"][:, -3:].sum(axis=0)[None]
    if charges:
        values["charges"] = found["descriptors"][:, -1]
    if energies and system.periodic:
        values["stress"] = -found["virial"][None] / abs(np.linalg.det(cell))
    return {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
