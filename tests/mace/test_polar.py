"""Packages of PolarMACE: charges and dipoles in each other's fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.calculator import InputError, PropertyNotImplementedError
from ase.calculators.lj import LennardJones
from ase.calculators.mixing import SumCalculator
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE

from mdcg import MDCGCalculator
from mdcg.errors import UnsupportedProblemError
from mdcg.package import convert_model
from mdcg.package.convert import ConversionOptions
from mdcg.package.verification import verify_package
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.systems import Structure, verification_systems

from ..covering import covering
from ..lammps.lmp import package as package_of
from ..lammps.lmp import water
from ..lammps.make_packages import strengthen

LES = package_of("mace_les", "float64")
SHORT = package_of("mace", "float64")
ION = (("total_charge", -1), ("total_spin", 2))
NO_DEFAULTS = ()
WIDTHS = {"one": [1.2], "two": [1.0, 1.5]}


def model_of(build: Any, **changes: Any) -> Any:
    pytest.importorskip("graph_longrange", reason="pip install graph-longrange==0.4.0")
    settings = {
        "atomic_multipoles_max_l": 1,
        "field_feature_max_l": 1,
        "field_feature_widths": WIDTHS["two"],
        "num_recursion_steps": 2,
        "add_local_electron_energy": True,
        "atomic_inter_scale": 1.3,
        "atomic_inter_shift": 0.2,
    }
    model = build(model_class="PolarMACE", **{**settings, **changes})
    strengthen(model)
    return model


def converted(model: Any, path: Path, fields: Any = ION, **options: Any) -> Any:
    package = convert_model(model, ConversionOptions(graph_fields=fields, **options))
    package.save(path)
    return package


def some(names: tuple[str, ...]) -> list[Structure]:
    known = verification_systems([1, 8], 4.0, symbols=("H", "O"))
    return [each for each in known if each.name in names]


@covering(
    max_l=[0, 1],
    field_max_l=[0, 1],
    widths=list(WIDTHS),
    steps=[0, 1, 2],
    energy=[False, True],
    own=[False, True],
    fields=[ION, NO_DEFAULTS],
    norms=[False, True],
)
def test_results_are_those_of_the_model(
    build: Any,
    tmp_path: Path,
    max_l: int,
    field_max_l: int,
    widths: str,
    steps: int,
    energy: bool,
    own: bool,
    fields: Any,
    norms: bool,
) -> None:
    count = len(WIDTHS[widths]) * (1 + field_max_l)
    model = model_of(
        build,
        atomic_multipoles_max_l=max_l,
        field_feature_max_l=field_max_l,
        field_feature_widths=WIDTHS[widths],
        num_recursion_steps=steps,
        add_local_electron_energy=energy,
        field_si=own,
        include_electrostatic_self_interaction=own,
        field_feature_norms=[1.0 + 0.3 * n for n in range(count)] if norms else None,
    )
    package = converted(model, tmp_path / "p.mdcg", fields)
    kinds = [layer["type"] for layer in package.layers]
    assert kinds.count("reciprocal_field") == steps
    assert kinds.count("total_charge") == steps + 1
    systems = some(("self-images", "molecule"))
    report = verify_package(tmp_path / "p.mdcg", model, systems=systems)
    assert report.passed, str(report)
    assert {"energy", "forces", "stress", "charges"} == {*report.worst()}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_structures(dtype: str, build: Any, tmp_path: Path) -> None:
    model = model_of(build).to(getattr(torch, dtype))
    converted(model, tmp_path / "p.mdcg")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    assert {d.system for d in report.deviations if d.quantity == "stress"} == {
        *("cubic", "triclinic", "self-images")
    }
    assert "compared with differences of MACE's energies" in report.note


CHANGES: dict[str, dict[str, Any]] = {
    "degrees": {"hidden_irreps": "6x0e+6x1o+6x2e", "max_ell": 3, "correlation": 3},
    "scalars": {"hidden_irreps": "6x0e", "atomic_multipoles_max_l": 0},
    "layers": {"num_interactions": 3},
    "one readout": {"use_last_readout_only": True},
    "repulsion that it does not use": {"pair_repulsion": True},
    "fewer waves": {"kspace_cutoff_factor": 0.8},
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_shapes(case: str, build: Any, tmp_path: Path) -> None:
    from e3nn import o3

    changes = dict(CHANGES[case])
    if "hidden_irreps" in changes:
        changes["hidden_irreps"] = o3.Irreps(changes["hidden_irreps"])
    model = model_of(build, **changes)
    converted(model, tmp_path / "p.mdcg")
    systems = some(("self-images", "molecule"))
    report = verify_package(tmp_path / "p.mdcg", model, systems=systems)
    assert report.passed, str(report)


def test_heads(build: Any, tmp_path: Path) -> None:
    heads = {"heads": ["a", "b"], "atomic_energies": np.array([[-1.5, -7.25], [-1.0, -6.0]])}
    scales = {"atomic_inter_scale": [1.3, 0.8], "atomic_inter_shift": [0.2, 0.1]}
    model = model_of(build, **heads, **scales)
    for head in ("a", "b"):
        converted(model, tmp_path / f"{head}.mdcg", head=head)
        systems = some(("molecule",))
        report = verify_package(tmp_path / f"{head}.mdcg", model, head=head, systems=systems)
        assert report.passed, str(report)


def test_calculator(build: Any, tmp_path: Path) -> None:
    """The calculator of mace-torch gives the same energies and forces."""
    from mace.calculators import MACECalculator

    model = model_of(build)
    converted(model, tmp_path / "p.mdcg", NO_DEFAULTS)
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert calc.implemented_properties[-2:] == ["stress", "charges"]
    with default_dtype(torch.float64):  # MACE makes some constants in torch's default type
        options = {"device": "cpu", "default_dtype": "float64", "model_type": "PolarMACE"}
        theirs = MACECalculator(models=[model], **options)
        ion, liquid = molecule("OH"), water(1, seed=4)
        for atoms, charge, spin in ((ion, -1, 1), (liquid, 0, 1), (ion, 0, 2), (liquid, -1, 2)):
            atoms.info |= {"charge": charge, "spin": spin}
            want = [theirs.get_property(name, atoms) for name in ("energy", "forces")]
            got = [calc.get_property(name, atoms) for name in ("energy", "forces")]
            assert abs(got[0] - want[0]) < 1e-9 * len(atoms)
            np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-8)
            assert calc.get_charges(atoms).sum() == pytest.approx(charge, abs=1e-10)
    with pytest.raises(InputError, match=r"the structure has no total_charge, which .* default"):
        calc.get_potential_energy(water(1, seed=4))
    images = [ion, liquid]
    batch = calc.batch(images, ["energy", "forces", "charges"])
    for atoms, found in zip(images, batch, strict=True):
        np.testing.assert_allclose(found["forces"], calc.get_forces(atoms), rtol=0, atol=1e-12)
    moved = liquid.copy()  # in a cell that changes, with the list of before
    moved.set_cell(1.001 * liquid.cell.array, scale_atoms=True)
    fresh = MDCGCalculator(tmp_path / "p.mdcg", skin=0.0)
    np.testing.assert_allclose(calc.get_forces(moved), fresh.get_forces(moved), atol=1e-11)
    liquid.pbc = [True, True, False]
    with pytest.raises(InputError, match="periodic along 2 directions, expected 0 or 3"):
        calc.get_potential_energy(liquid)
    with pytest.raises(PropertyNotImplementedError, match="stresses not implemented, which a lo"):
        calc.get_property("stresses", ion)
    with pytest.raises(UnsupportedProblemError, match=r"has a long-range sum, .*heat fluxes"):
        calc.get_heat_flux(ion)


POLAR = package_of("mace_polar", "float64")
INPUTS: dict[str, Any] = {"charge": -1, "spin": 2}


def isolated(**info: Any) -> Atoms:
    """Return a water molecule with inputs; its energy depends on a field."""
    found = molecule("H2O")
    found.rotate(20, (1, 2, 3))
    found.info |= INPUTS | info
    return found


@pytest.mark.parametrize("field", [None, [0.02, -0.1, 0.05]])
def test_openmm(field: list[float] | None) -> None:
    pytest.importorskip("openmm")
    from mdcg.openmm import add_force

    from .test_openmm import bare, evaluate, topology_of

    atoms = water(1, seed=3) if field is None else isolated()
    inputs = INPUTS if field is None else INPUTS | {"external_field": field}
    atoms.info |= inputs
    atoms.calc = MDCGCalculator(POLAR, threads=1)
    system = bare(atoms)
    add_force(system, topology_of(atoms), POLAR, threads=1, inputs=inputs)
    energy, forces = evaluate(system, atoms)
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
    np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-6)
    if field is None:
        with pytest.raises(UnsupportedProblemError, match="leave out atoms, or set periodic="):
            add_force(bare(atoms), topology_of(atoms), POLAR, atoms=range(2), inputs=inputs)
    else:
        with pytest.raises(InputError, match="external_field of the structure is 1, expected thr"):
            add_force(bare(atoms), topology_of(atoms), POLAR, inputs=inputs | {"external_field": 1})


def test_torchsim() -> None:
    """Systems of a state, with a field where they are isolated, have the calculator's results."""
    ts = pytest.importorskip("torch_sim", reason="needs Python 3.11", exc_type=ImportError)
    from mdcg.torchsim import MDCGModel

    model, calc = MDCGModel(POLAR, "cpu", threads=1), MDCGCalculator(POLAR, threads=1)
    fields = [[0.0, 0.0, 0.1], [0.0, 0.0, 0.0], [-0.3, 0.2, 0.1]]
    liquid, ions = water(1, seed=6), [isolated(external_field=field) for field in fields]
    for atoms in ions:
        atoms.cell = np.eye(3) * 9.0
    for images, own in ((ions, fields), ([liquid, water(2, seed=5)], None)):
        state = vars(ts.io.atoms_to_state(images, model.device, model.dtype))
        given = {"charge": torch.full((len(images),), -1.0), "spin": torch.tensor([2.0])}
        if own is not None:
            given["external_field"] = torch.tensor(own, dtype=torch.float64)
        found = model({**state, **given})
        for atoms in images:
            atoms.info |= INPUTS
        forces = np.concatenate([calc.get_forces(atoms) for atoms in images])
        np.testing.assert_allclose(found["forces"].numpy(), forces, rtol=0, atol=1e-10)
        energies = [calc.get_potential_energy(atoms) for atoms in images]
        np.testing.assert_allclose(found["energy"].numpy(), energies, rtol=1e-12)
    with pytest.raises(ValueError, match=r"external field is .* and the system is periodic, where"):
        model({**state, **given, "external_field": torch.tensor([0.0, 0.0, 0.1])})
    with pytest.raises(InputError, match="expected three finite numbers"):
        model({**state, **given, "external_field": torch.tensor([0.0, 0.1])})


def test_committees_and_second_derivatives(tmp_path: Path) -> None:
    atoms = isolated(external_field=[0.1, 0.0, 0.2])
    single = MDCGCalculator(POLAR, threads=1)
    calc = MDCGCalculator([POLAR, POLAR], threads=1)
    np.testing.assert_allclose(calc.get_forces(atoms), single.get_forces(atoms), atol=1e-12)
    calc.get_property("charges", atoms)
    assert np.abs(calc.results["charges_std"]).max() < 1e-12
    found = single.get_hessian(atoms)
    moved = atoms.copy()
    moved.positions[1, 0] += 1e-3
    change = (single.get_forces(atoms) - single.get_forces(moved)).reshape(-1) / 1e-3
    np.testing.assert_allclose(found[3], change, rtol=0, atol=0.02)
    assert np.abs(found[3]).max() > 0.1
    bare = atoms.copy()
    bare.info.pop("external_field")
    assert np.abs(single.get_hessian(bare) - found).max() > 1e-3
    with pytest.raises(InputError, match=r"and \S*mace_les\S* takes no external field: remove it"):
        MDCGCalculator([LES, LES]).get_forces(atoms)


@pytest.mark.parametrize("package", [POLAR, LES, SHORT], ids=["polar", "les", "short"])
@pytest.mark.parametrize("field", [None, [0.0, 0.05, 0.1]])
def test_dynamics_conserves_energy(package: Path, field: Any) -> None:
    """Repulsion of ASE keeps the atoms of random models apart, for 50 fs."""
    if field is not None and package != POLAR:
        pytest.skip("the model takes no field")
    grid = 2.2 * np.array(list(np.ndindex(3, 3, 2)))
    atoms = Atoms("OHH" * 6, grid, cell=[6.6, 6.6, 4.4], pbc=field is None)
    atoms.rattle(0.05, seed=3)
    atoms.info |= INPUTS | ({} if field is None else {"external_field": field})
    repulsion = LennardJones(sigma=2.0, epsilon=0.3, rc=4.0, smooth=True)
    atoms.calc = SumCalculator([MDCGCalculator(package, threads=1), repulsion])
    FIRE(atoms, logfile=None).run(fmax=0.2, steps=60)
    speeds = np.random.default_rng(2).normal(size=(len(atoms), 3))
    changes = []
    for timestep in (0.5, 0.25):
        moving = atoms.copy()
        moving.calc = atoms.calc
        moving.set_momenta(np.sqrt(300 * units.kB * atoms.get_masses())[:, None] * speeds)
        dynamics = VelocityVerlet(moving, timestep=timestep * units.fs)
        total, kinetic = [], []
        for _ in range(100):
            dynamics.run(round(0.5 / timestep))
            total.append(moving.get_total_energy())
            kinetic.append(moving.get_kinetic_energy())
        assert np.ptp(kinetic) > 0.1
        changes.append(np.ptp(total))
    assert changes[1] < 5e-3 * np.ptp(kinetic)
    # those of the integrator shrink with the square of the step, those of wrong forces do not
    assert changes[1] < 0.3 * changes[0]


def test_external_field(build: Any, tmp_path: Path) -> None:
    """Energies and forces of open systems in a field are those of mace-torch."""
    from mace.calculators import MACECalculator

    norms = [1.0 + 0.3 * n for n in range(4)]
    model = model_of(build, field_feature_norms=norms)
    converted(model, tmp_path / "p.mdcg", NO_DEFAULTS)
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    found = []
    with default_dtype(torch.float64):  # MACE makes some constants in torch's default type
        options = {"device": "cpu", "default_dtype": "float64", "model_type": "PolarMACE"}
        theirs = MACECalculator(models=[model], **options)
        for name, charge, spin in (("OH", -1, 1), ("CH3CH2OH", 0, 1), ("CH3CH2OH", 1, 2)):
            atoms = molecule(name)
            atoms = atoms[[n != 6 for n in atoms.numbers]]
            atoms.rotate(20, (1, 2, 3))
            atoms.translate((3.0, -1.0, 2.0))  # the energy of an ion depends on the origin
            for field in ((0.0, 0.0, 0.0), (0.03, -0.02, 0.05), (0.0, 0.3, 0.0)):
                atoms.info = {"charge": charge, "spin": spin, "external_field": list(field)}
                want = [theirs.get_property(key, atoms) for key in ("energy", "forces")]
                got = [calc.get_property(key, atoms) for key in ("energy", "forces")]
                assert abs(got[0] - want[0]) < 1e-9 * len(atoms)
                np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-8)
                found.append(got[0])
    assert np.ptp(found[:3]) > 0.01
    assert np.ptp(found[3:6]) > 1e-4
    energies = [each["energy"] for each in calc.batch([atoms, atoms], ["energy"])]
    assert energies == pytest.approx(found[-1:] * 2, rel=1e-12)
    step, moved = 1e-4, []
    for sign in (1, -1):
        moved.append(atoms.copy())
        moved[-1].positions[1, 2] += sign * step
    up, down = (calc.get_potential_energy(each) for each in moved)
    assert calc.get_forces(atoms)[1, 2] == pytest.approx((down - up) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("kind", ["ScaleShiftMACE", "EnergyDipolesMACE", "MACELES", "PolarMACE"])
def test_fields_of_models_in_torch(build: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only PolarMACE takes a field, of finite numbers, whole or by components."""
    if kind == "PolarMACE":
        model = model_of(build)
    elif kind == "MACELES":
        monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "stubs"))
        model = build(
            model_class=kind, les_arguments={}, atomic_inter_scale=1.3, atomic_inter_shift=0.2
        )
    else:
        model = build(model_class=kind)
    calc, atoms = MDCGCalculator(model), water(1, seed=4)
    energy = calc.get_potential_energy(atoms)
    atoms.info["external_field"] = [0.0, 0.0, 0.1]
    if kind == "PolarMACE":
        changed = calc.get_potential_energy(atoms)
        assert abs(changed - energy) > 1e-3
        atoms.info = {"external_field_z": 0.1}
        assert calc.get_potential_energy(atoms) == changed
        atoms.info = {"external_field": [0.0, 0.0, np.nan]}
        message = r"is \[0.0, 0.0, nan\], expected three finite numbers in eV/Å/e: the slope of the"
        with pytest.raises(InputError, match=message):
            calc.get_potential_energy(atoms)
        return
    message = r"is \[0.0, 0.0, 0.1\], and the model takes no external field: remove it, or use a"
    with pytest.raises(InputError, match=message):
        calc.get_potential_energy(atoms)
    atoms.info = {"external_field_z": 0.1}
    with pytest.raises(
        InputError, match=r"external_field_z of the structure is 0\.1, and the model"
    ):
        calc.get_potential_energy(atoms)
    atoms.info = {"external_field_z": 0.0}
    assert calc.get_potential_energy(atoms) == energy


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"external_field": [0.1, 0.2]}, r"field of the structure is \[0.1, 0.2\], expected three"),
        ({"external_field": "x"}, "external_field of the structure is 'x', expected three finite"),
        ({"external_field": [0, 0, np.nan]}, r"is \[0, 0, nan\], expected three finite numbers"),
        ({"external_field": [0.0, 0.0, 0.1]}, r"the external field is \(0, 0, 0.1\) eV/Å/e and "),
        ({"external_field": [0, 0, 0.1], "external_field_z": 0.2}, "which are one input of the m"),
    ],
)
def test_unusable_fields(small: Any, tmp_path: Path, info: Any, message: str) -> None:
    converted(small, tmp_path / "p.mdcg")
    atoms = water(1, seed=4)
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    atoms.info = {"external_field": [0.0, 0.0, 0.0]}
    calc.get_potential_energy(atoms)  # also in a cell
    atoms.info = info
    with pytest.raises(InputError, match=message) as error:
        calc.get_potential_energy(atoms)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("info", "cell", "message"),
    [
        ({"charge": 0.5}, None, "charge of the structure is 0.5, expected a whole number"),
        ({"spin": 0}, None, "spin of the structure is 0, expected a whole number from 1 on"),
        ({"charge": None}, None, "the structure has no total_charge, which .* set atoms.info"),
        ({}, np.zeros((3, 3)), "the system is periodic along abc, where its cell vector is zero"),
        ({}, [[6, 0, 0], [0, 6, 0], [6, 6, 0]], "cell vectors .* lie in one plane or on one line"),
        ({}, "slab", "the model sums over a cell or an open system, and the system is periodic al"),
    ],
)
def test_unusable_structures(info: Any, cell: Any, message: str) -> None:
    atoms = water(1, seed=4)
    atoms.info = INPUTS | info
    if isinstance(cell, str):
        atoms.pbc = (True, True, False)
    elif cell is not None:
        atoms.cell = cell
    with pytest.raises(InputError, match=message) as error:
        MDCGCalculator(POLAR, threads=1).get_potential_energy(atoms)
    assert "\n" not in str(error.value)


def refused(model: Any, message: str, fields: Any = ION) -> None:
    with pytest.raises((UnsupportedProblemError, ValueError), match=message):
        convert_model(model, ConversionOptions(graph_fields=fields))


@pytest.fixture(scope="module")
def small(build: Any) -> Any:
    return model_of(build, num_recursion_steps=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((("total_charge", 0.5),), "total_charge is 0.5, expected a whole number"),
        ((*ION, ("external_field", 1)), "reads no external_field, expected external_field_x, ext"),
    ],
)
def test_inputs(small: Any, fields: Any, message: str) -> None:
    refused(small, message, fields)


PARTS = {
    "field_dependent_charges_maps.0": "expected AgnosticEmbeddedOneBodyVariableUpdate",
    "field_dependent_charges_maps.0.potential_embedding": "expected AgnosticChargeBiasedLinear",
    "field_dependent_charges_maps.0.readout": "expected GeneralNonLinearBiasReadoutBlock",
    "field_dependent_charges_maps.0.dot_products": "expected SparseUvuTensorProduct of e3nn's",
    "field_dependent_charges_maps.0.nonlinearity": "expected a FullyConnectedNet or a RadialMLP",
    "lr_source_maps.1": "expected EnvironmentDependentSpinSourceBlock",
    "local_electron_energy": "expected OneBodyMLPFieldReadout",
    "electric_potential_descriptor": "expected GTOElectrostaticFeatures",
    "coulomb_energy": "expected GTOElectrostaticEnergy",
    "fukui_source_map": "expected NonLinearBiasReadoutBlock",
}


@pytest.mark.parametrize("part", PARTS)
def test_other_classes(small: Any, part: str) -> None:
    """A part of another class is refused by its name."""
    import copy

    model = copy.deepcopy(small)
    *path, name = part.split(".")
    setattr(model.get_submodule(".".join(path)), name, torch.nn.Identity())
    refused(model, f"{part} is an Identity.*{PARTS[part]}")


def test_zero_charges(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small.lr_source_maps[1], "zero_charges", True)
    refused(small, r"lr_source_maps.1 has charges that are zero \(zero_charges\), which packages")


def test_other_degrees(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "atomic_multipoles_max_l", 2)
    refused(small, "the model has multipoles up to l = 2, expected 0 or 1: charges and dipoles")
    monkeypatch.setattr(small, "atomic_multipoles_max_l", 1)
    monkeypatch.setattr(small, "field_feature_max_l", 2)
    refused(small, "the model has field features up to l = 2, expected 0 or 1")
