"""pair_style mdcg device cuda: on emulated devices what the processor finds, and on real ones."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import MDCGCalculator

from ..emulator.emulator import emulator_environment
from .lmp import (
    DUMP,
    LATE_EXCLUSION,
    THERMO,
    TOLERANCE,
    Output,
    check_strain,
    compare,
    environment,
    flat_water,
    head,
    nve,
    package,
    reference,
    run_input,
    same,
    water,
    write_data,
    write_molecules,
)
from .test_monte_carlo import DISPERSION, check_an_atom_of_a_liquid

Models = Callable[..., Path]

pytestmark = pytest.mark.timeout(300)
NVE = nve(every=1)


def emulated(**changes: str) -> dict[str, str]:
    """Return the environment of LAMMPS with devices that are not there."""
    plain = environment()
    made: dict[str, str] = emulator_environment(**changes)
    made |= {name: plain[name] for name in plain if name.startswith(("OMP_", "MPIR_"))}
    made["LAMMPS_PLUGIN_PATH"] = plain["LAMMPS_PLUGIN_PATH"]
    made["LD_LIBRARY_PATH"] = os.pathsep.join(
        [made["LD_LIBRARY_PATH"].split(os.pathsep)[0], plain["LD_LIBRARY_PATH"]]
    )
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return packages with the kernels that are generated now."""
    folder = tmp_path_factory.mktemp("packages")

    def make(name: str, dtype: str = "float64") -> Path:
        path = folder / f"{name}_{dtype}.mdcg"
        if not path.exists():
            shutil.copy(package(name, dtype), path)
        return path

    return make


def on(device: str, text: str) -> str:
    return text.replace("pair_style mdcg", f"pair_style mdcg device {device}")


def hot(model: Path, how: str = "") -> str:
    """Return an input whose run builds new lists; ``how`` is the division of the box."""
    text = head(model, before=how).replace("neighbor 1.0 bin", "neighbor 0.3 bin")
    text += "neigh_modify every 1 delay 0 check yes\n" + NVE
    return text + "velocity all scale 3000\nrun 12\n"


def said(output: Output) -> str:
    """Return what the style says once: what runs where."""
    (found,) = re.findall(r"pair_style mdcg: \S+, \d ranks?: .*(?:\n  .*)*", output.text)
    return str(found)


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    return emulated() if request.param == "emulated" else environment()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["mace", "nequip"])
def test_single_point(tmp_path: Path, models: Models, env: Any, name: str, ranks: int) -> None:
    """Energies, forces and atomic virials in a skewed box equal those of ASE."""
    atoms = water(2, seed=3)
    shear = np.array([[1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [-0.1, 0.2, 1.0]])
    atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    write_data(tmp_path / "test.data", atoms)
    text = on("cuda", head(models(name)) + THERMO + DUMP + "run 0\n")
    got = run_input(tmp_path, text, ranks=ranks, env=env)
    compare(got, reference(atoms, package(name, "float64")), TOLERANCE["float64"])
    assert f"{ranks} rank" in said(got)
    assert "cuda:0 (" in said(got)


@pytest.mark.parametrize("ranks", [1, 2])
def test_descriptors(tmp_path: Path, models: Models, env: Any, ranks: int) -> None:
    """Descriptors along a run, between steps that the device replays, equal those of ASE."""
    write_data(tmp_path / "test.data", water(2))
    text = on("cuda", head(models("mace"))) + NVE.replace("thermo 1", "thermo 3")
    text += "compute d all mdcg/descriptors\ndump d all custom 2 out.dump id xu yu zu c_d[*]\n"
    text += "dump_modify d sort id format float %.17g\nrun 4\n"
    output, atoms = run_input(tmp_path, text, ranks=ranks, env=env), water(2)
    calc, frames = MDCGCalculator(package("mace", "float64"), threads=1), output.dump()
    same(output, run_input(tmp_path, text.replace("c_d[*]", ""), ranks=ranks, env=env))
    assert len(frames) == 3
    for rows in frames:
        atoms.positions = rows[:, 1:4]
        want = calc.get_descriptors(atoms)
        np.testing.assert_allclose(rows[:, 4:], want, rtol=0, atol=1e-10 * np.abs(want).max())


@pytest.mark.parametrize("ranks", [1, 2])
def test_long_range(tmp_path: Path, models: Models, env: Any, ranks: int) -> None:
    """A long-range sum on devices, while lists and the box change, gives the CPU's trajectory."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = hot(models("mace_les")).replace(
        "nve all nve", "npt all npt temp 3000 3000 1 iso 1e4 1e4 1"
    )
    text = text.replace("fix npt", "fix q all pair 1 mdcg charges 1\nfix npt", 1)
    text += "dump d all custom 1 out.dump id fx fy fz f_q\n"
    text += "dump_modify d sort id format float %.17g\nrun 0\n"
    want = run_input(tmp_path, text)
    frames = want.dump()
    got = run_input(tmp_path, on("cuda", text), ranks=ranks, env=env)
    same(got, want)
    np.testing.assert_allclose(got.dump()[-1], frames[-1], rtol=0, atol=1e-8)
    assert np.abs(frames[-1][:, 4]).min() > 1e-6


@pytest.mark.parametrize("name", ["mace", "nequip"])
def test_dynamics(tmp_path: Path, models: Models, env: Any, name: str) -> None:
    """A hot run with new lists on one rank gives the trajectory of the CPU."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = hot(models(name))
    want = run_input(tmp_path, text)
    assert "Neighbor list builds = 0" not in want.text
    assert np.ptp(want.runs[0]["PotEng"]) > 0.1
    got = run_input(tmp_path, on("cuda", text), env=env)
    assert "Neighbor list builds = 0" not in got.text
    same(got, want)


def test_domains(tmp_path: Path, models: Models, env: Any) -> None:
    """With little memory, a hot run in domains gives the trajectory of the CPU."""
    write_data(tmp_path / "test.data", water(2, seed=5).repeat((7, 1, 1)))
    text = hot(models("mace")).replace("run 12", "run 4")
    want = run_input(tmp_path, text)
    got = run_input(tmp_path, on("cuda memory 2MB", text), env=env)
    assert int(re.findall(r"(\d+) domains of at most", said(got))[0]) > 1
    same(got, want)


def test_domains_are_for_one_rank(tmp_path: Path, models: Models) -> None:
    """On several ranks little memory is an error, and so is a list that LAMMPS makes."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = head(models("mace")) + "run 0\n"
    got = run_input(tmp_path, on("cuda memory 0.1MB", text), ranks=2, env=emulated(), check=False)
    assert "smaller system, or use more devices, each with a rank of its own" in got.text
    for device in ("cpu memory 1GB", "cuda memory much"):
        got = run_input(tmp_path, on(device, text), env=emulated(), check=False)
        expected = (
            "device cuda or hip, no hybrid style" if "1GB" in device else "memory is 'much', exp"
        )
        assert expected in got.text


@pytest.mark.parametrize(
    ("ranks", "options"), [(1, "committee mean"), (2, "committee first"), (2, "exchange host")]
)
def test_committee(tmp_path: Path, models: Models, env: Any, ranks: int, options: str) -> None:
    """A committee on a device gives the trajectory and deviations of the CPU."""
    write_data(tmp_path / "test.data", water(2, seed=6))
    files = f"{models('mace')} {models('nequip')}"
    text = hot(models("mace")).replace(str(models("mace")), files)
    deviations = "compute c all pair mdcg\nthermo_style custom step c_c[3] c_c[4] c_c[5] "
    text = text.replace("thermo_style custom step ", deviations).replace("thermo 1\n", "thermo 3\n")
    plain = options if options.startswith("committee") else ""
    want = run_input(tmp_path, text.replace("pair_style mdcg", f"pair_style mdcg {plain}"))
    assert want.runs[0]["c_c[4]"].min() > 1e-2
    device = on("cuda", text).replace("device cuda", f"device cuda {options}")
    same(run_input(tmp_path, device, ranks=ranks, env=env), want, 1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_box_that_moves(tmp_path: Path, models: Models, env: Any, ranks: int) -> None:
    """A changing box gives the results of the CPU while the list is kept."""
    shear = np.array([[1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [-0.1, 0.2, 1.0]])
    atoms = water(2, seed=6)
    atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    write_data(tmp_path / "test.data", atoms)
    text = head(models("mace")) + NVE + "unfix nve\n"
    text += "fix npt all npt temp 300 300 0.05 tri 0 0 0.1\nthermo_style custom step pe vol pxy\n"
    text += "run 5\n"
    want = run_input(tmp_path, text)
    assert np.ptp(want.runs[0]["Volume"]) > 1e-3
    assert "Neighbor list builds = 0" in want.text
    same(run_input(tmp_path, on("cuda", text), ranks=ranks, env=env), want)


@pytest.mark.parametrize("ranks", [1, 2])
def test_strain_of_atoms_alone(tmp_path: Path, models: Models, env: Any, ranks: int) -> None:
    """Atoms strained in a constant box give ASE's pressures and elastic derivatives."""
    check_strain(tmp_path, models("mace"), ranks, change=lambda text: on("cuda", text), env=env)


def test_float32(tmp_path: Path, models: Models, env: Any) -> None:
    atoms = water(2, seed=3)
    write_data(tmp_path / "test.data", atoms)
    text = on("cuda", head(models("mace", "float32")) + THERMO + DUMP + "run 0\n")
    got = run_input(tmp_path, text, ranks=2, env=env)
    compare(got, reference(atoms, package("mace", "float64")), TOLERANCE["float32"])


def test_precision(tmp_path: Path, models: Models, env: Any) -> None:
    """Naming the package's own precision changes no bit of the forces."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = on("cuda", head(models("mace", "float32")) + THERMO + DUMP + "run 0\n")
    want = run_input(tmp_path, text, env=env).dump()[-1][:, 1:4]
    text = text.replace("device cuda", "precision fp32 device cuda")
    got = run_input(tmp_path, text, env=env)
    assert np.array_equal(got.dump()[-1][:, 1:4], want)


def test_precision_is_forgotten(tmp_path: Path, models: Models, env: Any) -> None:
    """A second pair_style without `precision` resets the precision of the first."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = on("cuda", head(models("mace", "float32")) + "run 0\n")
    both = text.replace("pair_style mdcg", "pair_style mdcg precision fp64\npair_style mdcg")
    assert run_input(tmp_path, both, env=env).last["E_pair"]


def test_virials_of_atoms_on_the_way(tmp_path: Path, models: Models, env: Any) -> None:
    """Atomic virials and forces are right when only some steps of a run need virials."""
    write_data(tmp_path / "test.data", water(2, seed=9))
    text = head(models("mace")) + NVE + "compute vir all stress/atom NULL virial\n"
    text += "dump d all custom 3 out.dump id fx fy fz c_vir[*]\n"
    text += "dump_modify d sort id format float %.17g\nthermo 2\nrun 6\n"
    want = run_input(tmp_path, text)
    frames = want.dump()
    got = run_input(tmp_path, on("cuda", text), env=env)
    same(got, want)
    for mine, other in zip(got.dump(), frames, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10 * np.abs(other).max())


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 4])
def test_lists_of_the_device(tmp_path: Path, models: Models, env: Any, ranks: int) -> None:
    """The device makes the lists instead of LAMMPS and follows changes of box and types."""
    write_data(tmp_path / "test.data", water(2, seed=7))
    text = head(models("mace")).replace("neighbor 1.0 bin", "neighbor 0.3 bin")
    text += "neigh_modify every 1 delay 0 check yes\n" + NVE + "unfix nve\n"
    text += "velocity all scale 3000\nfix npt all npt temp 3000 3000 0.05 tri 0 0 0.1\n"
    text += "run 8\nset atom 2 type 1\nrun 4\n"
    text = text.replace("read_data test.data", "read_data test.data\nchange_box all triclinic")
    want = run_input(tmp_path, text)
    got = run_input(tmp_path, on("cuda", text), ranks=ranks, env=env)
    for output in (want, got):
        assert int(re.findall(r"Neighbor list builds = (\d+)", output.text)[0]) > 0
    assert "perpetual/occasional/extra = 1 " in want.text
    assert "perpetual/occasional/extra = 1 " not in got.text
    same(got, want)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("how", ["exclude", "include", "hybrid", "group"])
def test_what_only_the_list_of_lammps_knows(
    tmp_path: Path, models: Models, env: Any, how: str, ranks: int
) -> None:
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = head(models("mace"))
    if how == "exclude":
        text += "neigh_modify exclude type 1 2\n"
    elif how == "include":
        text += "group some id 1 2 3 7 8 9\natom_modify first some\nneigh_modify include some\n"
    elif how == "group":
        text += "group some id 1 2 3 7 8 9\natom_modify first some\ncomm_modify group some\n"
    else:
        text = text.replace("pair_coeff * *", "pair_coeff * * mdcg")
        text = text.replace("pair_style mdcg", "pair_style hybrid/overlay mdcg zero 3.0")
        text = text.replace("neighbor", "pair_coeff * * zero\nneighbor")
    # LAMMPS clears only the forces of listed atoms, so only these may move.
    text += (NVE.replace("nve all", "nve some") if how == "include" else NVE) + "run 2\n"
    # Without all ghosts, results depend on the number of ranks.
    want = run_input(tmp_path, text, ranks=ranks if how == "group" else 1)
    cuda = text.replace("overlay mdcg", "overlay mdcg device cuda")
    if how != "hybrid":
        cuda = on("cuda", text)
    got = run_input(tmp_path, cuda, ranks=ranks, env=env)
    assert "pair mdcg, perpetual" in got.text
    same(got, want)


def test_exclusions_that_come_late(tmp_path: Path, models: Models) -> None:
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on("cuda", head(models("mace"))) + NVE + LATE_EXCLUSION
    output = run_input(tmp_path, text, env=emulated(), check=False)
    assert output.code != 0
    (line,) = re.findall(r"ERROR: pair_style mdcg: (.*)", output.text)
    assert "expected neigh_modify exclude before the run, or device cpu" in line


@pytest.mark.parametrize(("ranks", "dispersion"), [(1, ""), (2, DISPERSION)])
def test_hidden_atoms(
    tmp_path: Path, models: Models, env: Any, ranks: int, dispersion: str
) -> None:
    """Atoms that a fix hides are absent from lists that the device makes."""
    settings = f"device cuda {dispersion}"
    check_an_atom_of_a_liquid(tmp_path, models("nequip"), ranks, settings, env=env)


@pytest.mark.parametrize("options", [{}, {"dispersion": "pbe"}], ids=["", "dispersion"])
def test_two_dimensions(tmp_path: Path, models: Models, env: Any, options: dict[str, str]) -> None:
    atoms = flat_water()
    write_data(tmp_path / "test.data", atoms)
    settings = " ".join(["device cuda", *(f"{name} {value}" for name, value in options.items())])
    text = head(models("nequip"), before="dimension 2", settings=settings) + THERMO + DUMP
    got = run_input(tmp_path, text + "run 0\n", env=env)
    compare(got, reference(atoms, models("nequip"), **options), TOLERANCE["float64"])


def test_bonds_of_the_heat_flux(tmp_path: Path, models: Models, env: Any) -> None:
    """Bonded pairs are in the device's list; the heat flux, which uses LAMMPS' list, refuses."""
    atoms = water(2, seed=15)
    write_molecules(tmp_path / "test.data", atoms)
    text = on("cuda", head(models("mace"), before="comm_modify cutoff 9"))
    text = text.replace("atom_style atomic", "atom_style bond") + "bond_style zero\nbond_coeff *\n"
    got = run_input(tmp_path, text + THERMO + DUMP + "run 0\n", env=env)
    compare(got, reference(atoms, models("mace")), TOLERANCE["float64"])
    text += "compute flux all mdcg/heat/flux\nthermo_style custom step c_flux[1]\nrun 0\n"
    refused = run_input(tmp_path, text, env=env, check=False)
    assert refused.code != 0
    assert "special_bonds leaves out bonded neighbours" in refused.text


# -- devices ---------------------------------------------------------------------------------------


def short(
    folder: Path, model: Path, device: str, ranks: int, check: bool = True, **changes: str
) -> Output:
    write_data(folder / "test.data", water(2, seed=3))
    text = on(device, head(model) + "run 0\n")
    return run_input(folder, text, ranks=ranks, env=emulated(**changes), check=check)


def test_named_device(tmp_path: Path, models: Models) -> None:
    want = short(tmp_path, models("mace"), "cpu", 1).last["E_pair"]
    for device in ("cuda:1", "cuda:0"):
        got = short(tmp_path, models("mace"), device, 1, EMULATED_CUDA_DEVICES="2")
        assert f"{device} (" in said(got)
        assert "share" not in said(got)
        assert np.isclose(got.last["E_pair"], want, rtol=1e-12)


def test_device_of_each_rank(tmp_path: Path, models: Models) -> None:
    want = short(tmp_path, models("mace"), "cpu", 1).last["E_pair"]
    two = short(tmp_path, models("mace"), "cuda", 2, EMULATED_CUDA_DEVICES="2")
    first, second, third = said(two).splitlines()
    assert "2 ranks: mace" in first
    assert "cuda:0 (" in first
    assert second.startswith("  rank 1: mace")
    assert "cuda:1 (" in second
    assert third == "  rows of ghosts go from device to device"
    three = short(tmp_path, models("mace"), "cuda", 3, EMULATED_CUDA_DEVICES="2")
    assert said(three).splitlines()[-1] == (
        "  up to 2 ranks share a device and take turns: run as many ranks as there are devices "
        "(2 used here), or start NVIDIA's MPS, with which they compute at the same time"
    )
    named = short(tmp_path, models("mace"), "cuda:1", 2, EMULATED_CUDA_DEVICES="2")
    assert said(named).count("cuda:1 (") == 1  # both ranks use it, and it is printed once
    assert "up to 2 ranks share a device" in said(named)
    for output in (two, three, named):
        assert np.isclose(output.last["E_pair"], want, rtol=1e-12)


CASES = {
    "none": (
        "cuda",
        {"EMULATED_CUDA_DEVICES": "0"},
        "device is 'cuda', and the CUDA driver finds none (",
    ),
    "not that many": (
        "cuda:2",
        {"EMULATED_CUDA_DEVICES": "2"},
        "device is 'cuda:2', and there are cuda:0 to cuda:1: choose another one, or device cpu",
    ),
    "too old": ("cuda", {"EMULATED_CUDA_CAPABILITY": "61"}, "compute capability 6.1, CUDA kernels"),
    "no compiler": ("cuda", {"MDCG_NVRTC_LIB": "/none"}, "named by MDCG_NVRTC_LIB cannot be used"),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_errors(tmp_path: Path, models: Models, case: str, ranks: int) -> None:
    device, changes, reason = CASES[case]
    if case == "no compiler":
        changes = changes | {"MDCG_CACHE_DIR": str(tmp_path / "cache")}
    output = short(tmp_path, models("mace"), device, ranks, check=False, **changes)
    assert output.code != 0
    (line,) = re.findall(r"ERROR: pair_style mdcg: (.*)", output.text)
    assert reason in line


def test_no_driver(tmp_path: Path, models: Models) -> None:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a CUDA driver")
    write_data(tmp_path / "test.data", water(1))
    text = on("cuda", head(models("mace")) + "run 0\n")
    output = run_input(tmp_path, text, ranks=2, check=False)
    assert output.code != 0
    (line,) = re.findall(r"ERROR: pair_style mdcg: (.*)", output.text)
    assert "device is 'cuda', and there is no CUDA driver" in line
    assert "install NVIDIA's, or use device cpu" in line


@pytest.mark.parametrize("ranks", [1, 2])
def test_dispersion(tmp_path: Path, models: Models, env: dict[str, str], ranks: int) -> None:
    """Dispersion on a device gives the trajectory of the CPU, with kept and with new lists."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    settings = "dispersion pbe dispersion_cutoff 8"
    for text in (
        head(models("nequip"), settings=settings) + NVE + "run 4\n",
        hot(models("nequip")).replace("pair_style mdcg", f"pair_style mdcg {settings}"),
    ):
        want = run_input(tmp_path, text)
        same(run_input(tmp_path, on("cuda", text), ranks=ranks, env=env), want, 1e-9)
