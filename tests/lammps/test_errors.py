"""Errors end the run on all ranks, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.data import atomic_masses

from mdcg import _core
from mdcg.lammps_plugin import _sources
from mdcg.package import Package

from .lmp import NAN_FORCE, head, package, run_input, water, write_data

MODEL = package("mace", "float64")
SINGLE = package("mace", "float32")
PLUGIN = _sources()
START = head(MODEL).split("pair_style")[0]

CASES = {
    "keyword": ("pair_style mdcg gpu 1", "unknown keyword gpu"),
    "no value": ("pair_style mdcg threads", "keyword threads needs a value"),
    "device": (
        "pair_style mdcg device tpu",
        "device is tpu, expected auto, cpu, cuda or hip (one for each rank), cuda:N or hip:N",
    ),
    "number of a device": ("pair_style mdcg device cuda:", "device is cuda:, expected auto, cpu"),
    "precision": (
        f"pair_style mdcg precision half\npair_coeff * * {MODEL} H O",
        "precision is 'half', expected fp32 (or float32) or fp64 (or float64), or nothing",
    ),
    "no precision": ("pair_style mdcg precision", "keyword precision needs a value"),
    "removed precision": (
        f"pair_style mdcg precision tf32\npair_coeff * * {SINGLE} H O",
        "precision is 'tf32', a mode that was removed: leave it out, and float32 packages multiply "
        "in float32",
    ),
    "precision of another package": (
        f"pair_style mdcg precision fp64\npair_coeff * * {SINGLE} H O",
        "was converted to float32, which is fixed: leave it out, or convert the checkpoint again "
        "(mdcg-patch --precision fp64)",
    ),
    "threads": ("pair_style mdcg threads 0", "threads is 0, expected 1 or more"),
    "no file": ("pair_style mdcg\npair_coeff * * none.mdcg H O", "none.mdcg: cannot be opened"),
    "damaged": ("pair_style mdcg\npair_coeff * * test.data H O", "test.data"),
    "cut short": ("pair_style mdcg\npair_coeff * * short.mdcg H O", "short.mdcg"),
    "few names": (f"pair_style mdcg\npair_coeff * * {MODEL} H", "got 1 type names"),
    "many names": (f"pair_style mdcg\npair_coeff * * {MODEL} H O O", "got 3 type names"),
    "pair": (f"pair_style mdcg\npair_coeff 1 2 {MODEL} H O", "pair_coeff"),
    "unknown type": (
        f"pair_style mdcg\npair_coeff * * {MODEL} H Cu",
        "atom type 2 is Cu, which",
    ),
    "all null": (f"pair_style mdcg\npair_coeff * * {MODEL} NULL NULL", "all atom types are NULL"),
    "no coefficients": ("pair_style mdcg\nrun 0", "pair coeff"),
}


@pytest.mark.parametrize("case", CASES)
def test_input(tmp_path: Path, case: str) -> None:
    write_data(tmp_path / "test.data", water(1))
    (tmp_path / "short.mdcg").write_bytes(MODEL.read_bytes()[:-1000])
    commands, reason = CASES[case]
    output = run_input(tmp_path, START + commands + "\nrun 0\n", check=False)
    assert output.code != 0
    assert reason in output.text
    if "ERROR: pair_style mdcg" in output.text:
        assert_place(output.text)


def assert_place(text: str) -> None:
    """Check that an error ends with the file and line that found it, not with those of a helper."""
    found = re.search(r"ERROR.*: pair_style mdcg: .* \((\w+\.cpp):(\d+)\)$", text, re.MULTILINE)
    assert found, text
    lines = (PLUGIN / found[1]).read_text().splitlines()
    assert any("FLERR" in line for line in lines[max(0, int(found[2]) - 4) : int(found[2])])


@pytest.mark.parametrize("case", ["no file", "unknown type"])
def test_input_on_two_ranks(tmp_path: Path, case: str) -> None:
    write_data(tmp_path / "test.data", water(1))
    commands, reason = CASES[case]
    output = run_input(tmp_path, START + commands + "\nrun 0\n", ranks=2, check=False)
    assert output.code != 0
    assert output.text.count(reason) == 1


@pytest.mark.parametrize("first", ["cd $PMI_RANK", "export LAMMPS_POTENTIALS=$PMI_RANK"])
@pytest.mark.parametrize("files", ["a.mdcg", "same.mdcg a.mdcg"])
def test_ranks_that_find_different_packages(tmp_path: Path, first: str, files: str) -> None:
    """Ranks that open different packages under one name are reported with their digests."""
    for rank, model in enumerate([MODEL, SINGLE, MODEL]):
        folder = tmp_path / f"{rank}"
        folder.mkdir()
        (folder / "a.mdcg").symlink_to(model)
        (folder / "same.mdcg").symlink_to(MODEL)
        for name in ("test.data", "in.test"):
            (folder / name).symlink_to(tmp_path / name)
    write_data(tmp_path / "test.data", water(1))
    text = head(MODEL).replace(str(MODEL), files) + "run 0\n"
    output = run_input(tmp_path, text, ranks=3, first=first, check=False)
    assert output.code != 0
    here, there = (_core.Model(str(model)).digest[:12] for model in (MODEL, SINGLE))
    shares = sorted([f"{here} on ranks 0 2", f"{there} on rank 1"])
    reason = f"a.mdcg is not the same on all ranks (digest {', '.join(shares)}): copy one file"
    assert output.text.count(reason) == 1, output.text
    assert_place(output.text)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("units metal", "units si", "units are si, expected metal or real"),
        ("units metal", "units lj", "units are lj, expected metal or real"),
        ("newton on", "newton off", "newton pair is off, expected on"),
    ],
)
def test_settings(tmp_path: Path, old: str, new: str, reason: str) -> None:
    write_data(tmp_path / "test.data", water(1))
    text = head(MODEL).replace(old, new).replace("neighbor 1.0 bin", "")
    output = run_input(tmp_path, text + "run 0\n", check=False)
    assert output.code != 0
    assert reason in output.text


def test_device_that_is_not_there(tmp_path: Path) -> None:
    """A device number that does not exist is refused, with or without a driver."""
    write_data(tmp_path / "test.data", water(1))
    text = head(MODEL).replace("pair_style mdcg", "pair_style mdcg device cuda:99")
    output = run_input(tmp_path, text + "run 0\n", check=False)
    assert output.code != 0
    assert "pair_style mdcg: device is 'cuda:99', and the" in output.text


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_rank_fails(tmp_path: Path, ranks: int) -> None:
    """Two atoms at one place end the run on all ranks and are named, with the rank."""
    atoms = water(3)
    atoms.positions[3] = atoms.positions[0]
    write_data(tmp_path / "test.data", atoms)
    text = head(MODEL, before=f"processors {ranks} 1 1") + "run 0\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code != 0
    # With several ranks, the message names the rank.
    assert_names(
        output.text, "atoms (1 and 4|4 and 1) are at the same place, expected a dis", ranks
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_position_that_is_not_a_number(tmp_path: Path, ranks: int) -> None:
    """An atom that another fix moves to NaN is named."""
    write_data(tmp_path / "test.data", water(3))
    text = head(MODEL) + NAN_FORCE
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code != 0
    assert_names(output.text, "the position of atom 4 is nan, expected finite numbers", ranks)


def assert_names(text: str, reason: str, ranks: int) -> None:
    """Check an error that names atoms and the rank; launchers may lose LAMMPS' own line of it."""
    where = "ERROR on proc 0" if ranks == 1 else r"rank \d"
    assert re.search(f"{where}: pair_style mdcg: {reason}", text), text
    if ranks == 1:
        assert_place(text)


def test_null_needs_hybrid(tmp_path: Path) -> None:
    """LAMMPS refuses NULL types if no other pair style covers them."""
    atoms = Atoms("HOAr", [[0, 0, 0], [1, 0, 0], [3, 3, 3]], cell=[8.0] * 3, pbc=True)
    write_data(tmp_path / "test.data", atoms, ("H", "O", "Ar"))
    text = head(MODEL, types="H O NULL") + "run 0\n"
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert "pair coeff" in output.text


SWAPPED = (
    "atom type 1 is O (15.999 u) and has mass {}, atom type 2 is H (1.008 u) and has mass 15.999, "
    "but in the order H O the elements would fit the masses: name them in pair_coeff in the order"
)
DEUTERIUM = "WARNING: pair_style mdcg: atom type 1 is H (1.008 u) and has mass 2.014: are these the"
OWN_MASSES = "fix m all property/atom rmass\nset type 1 mass 16.0\nset type 2 mass 1.0\n"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("types", "commands", "reason"),
    [
        ("O H", "", SWAPPED.format("1.008")),
        ("O H", "mass 1 2.014", SWAPPED.format("2.014")),
        ("H O", "mass 1 2.014", DEUTERIUM),
        ("H O", "mass 1 1.4\nmass 2 16.4", ""),
        ("O H", OWN_MASSES, ""),
    ],
)
def test_masses_show_the_order_of_elements(
    tmp_path: Path, types: str, commands: str, reason: str, ranks: int
) -> None:
    write_data(tmp_path / "test.data", water(1))
    text = head(MODEL, types=types) + commands + "\nrun 0\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert (output.code != 0) == (types == "O H" and commands != OWN_MASSES), output.text
    if reason:
        assert output.text.count(reason) == 1, output.text
    else:
        assert " u) and has mass" not in output.text


def test_masses_of_null_types_and_names_without_elements(tmp_path: Path) -> None:
    atoms = Atoms("HOAr", [[0, 0, 0], [1, 0, 0], [3, 3, 3]], cell=[8.0] * 3, pbc=True)
    write_data(tmp_path / "test.data", atoms, ("H", "Ar", "O"))
    text = head(MODEL, types="O NULL H").replace("mdcg\n", "hybrid/overlay mdcg zero 5.0\n", 1)
    text = text.replace("* * /", "* * zero\npair_coeff * * mdcg /") + "run 0\n"
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert "in the order H NULL O the elements would fit the masses" in output.text
    named = Package.open(MODEL)
    del named.manifest["atomic_numbers"]
    named.manifest["type_names"] = ["light", "heavy"]
    (tmp_path / "named.mdcg").write_bytes(named.to_bytes())
    write_data(tmp_path / "test.data", water(1))
    text = head(tmp_path / "named.mdcg", types="heavy light") + "run 0\n"
    assert "and has mass" not in run_input(tmp_path, text).text


def test_table_of_masses() -> None:
    table = (PLUGIN / "pair_mdcg_masses.cpp").read_text().split("WEIGHTS[] = {")[1].split("}")[0]
    np.testing.assert_allclose([float(n) for n in table.split(",")[:-1]], atomic_masses[1:], 1e-4)
