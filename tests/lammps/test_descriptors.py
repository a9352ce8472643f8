"""compute mdcg/descriptors against the calculator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mdcg import MDCGCalculator
from mdcg.package.file import Package

from .lmp import TOLERANCE, head, molecule_in_a_corner, package, run_input, water, write_data

RUN = """
velocity all create 900 4711 loop geom
group some id 1:9
compute d all mdcg/descriptors
compute of_some some mdcg/descriptors
compute sum all reduce sum c_d[1]
thermo_style custom step pe c_sum
thermo_modify format float %.17g
fix nve all nve
dump d all custom 2 out.dump id xu yu zu c_d[*]
dump_modify d sort id format float %.17g
dump s all custom 2 some.dump id c_of_some[*]
dump_modify s sort id format float %.17g
thermo 2
run 4
"""
MODELS = [package("mace", "float64"), package("nequip", "float64")]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "model", [*MODELS, package("mace", "float32"), package("mace_les", "float64")], ids=str
)
def test_descriptors(tmp_path: Path, model: Path, ranks: int) -> None:
    """They equal ASE's along a run, whatever the units, and do not change it."""
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(model, units="metal" if ranks < 3 else "real")
    text += "timestep 0.0005\n" if ranks < 3 else "timestep 0.5\n"
    output = run_input(tmp_path, text + RUN, ranks=ranks)
    calc, tolerance = MDCGCalculator(model, threads=1), TOLERANCE[model.stem.split("_")[-1]]
    frames, of_some = output.dump(), output.dump("some.dump")
    assert len(frames) == 3
    for frame, rows in enumerate(frames):
        atoms.positions = rows[:, 1:4]
        want = calc.get_descriptors(atoms)
        size = np.abs(want).max()
        assert rows[:, 4:].shape == want.shape
        np.testing.assert_allclose(rows[:, 4:], want, rtol=0, atol=tolerance * size)
        np.testing.assert_array_equal(of_some[frame][:9, 1:], rows[:9, 4:])
        assert not of_some[frame][9:, 1:].any()
        total = output.runs[0]["c_sum"][frame]
        np.testing.assert_allclose(total, rows[:, 4].sum(), rtol=0, atol=1e-10 * size * len(atoms))
    assert np.abs(frames[2][:, 4:] - frames[0][:, 4:]).max() > 1e-3 * size
    plain = RUN.replace("c_sum", "").replace("c_d[*]", "").replace("c_of_some[*]", "")
    plain = run_input(tmp_path, text + plain, ranks=ranks)
    change = 0.0 if ranks == 1 and tolerance < 1e-9 else tolerance
    found = output.runs[0]["PotEng"]
    np.testing.assert_allclose(found, plain.runs[0]["PotEng"], rtol=change, atol=0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_descriptors_of_a_committee_are_those_of_its_first_package(
    tmp_path: Path, ranks: int
) -> None:
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(MODELS[0], settings="committee mean").replace(
        f"{MODELS[0]}", f"{MODELS[0]} {MODELS[1]}"
    )
    rows = run_input(tmp_path, text + RUN, ranks=ranks).dump()[0]
    atoms.positions = rows[:, 1:4]
    want = MDCGCalculator(MODELS[0], threads=1).get_descriptors(atoms)
    np.testing.assert_allclose(rows[:, 4:], want, rtol=0, atol=1e-10 * np.abs(want).max())


def test_descriptors_with_empty_ranks_and_null_types(tmp_path: Path) -> None:
    """Ranks without atoms take part; atoms of NULL types, which the model does not see, have 0."""
    atoms = molecule_in_a_corner()
    atoms += atoms[:1]
    atoms.symbols[3] = "Ar"
    atoms.positions[3] += [1.0, 1.0, 1.0]
    write_data(tmp_path / "test.data", atoms, types=("H", "O", "Ar"))
    text = head(MODELS[0], boundary="f f f", types="H O NULL", before="processors 4 1 1")
    text = text.replace("pair_style mdcg", "pair_style hybrid/overlay mdcg zero 4.0")
    text = text.replace("pair_coeff * *", "pair_coeff * * zero\npair_coeff * * mdcg")
    text = text.replace("neighbor 1.0", "neigh_modify one 4000\nneighbor 1.0")
    text += "compute d all mdcg/descriptors\ndump d all custom 1 out.dump id x y z c_d[*]\n"
    text += "dump_modify d sort id format float %.17g\nrun 0\n"
    rows = run_input(tmp_path, text, ranks=4).dump()[0]
    want = MDCGCalculator(MODELS[0], threads=1).get_descriptors(atoms[:3])
    np.testing.assert_allclose(rows[:3, 4:], want, rtol=0, atol=1e-10 * np.abs(want).max())
    assert not rows[3, 4:].any()


COMPUTE = "compute d all mdcg/descriptors"
SUM = "compute s all reduce sum c_d[1]\nthermo_style custom step c_s"
NEW = "pair_style mdcg"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        (f"{COMPUTE} 3", "got 1 arguments, expected none"),
        (f"pair_style zero 4.0\npair_coeff * *\n{COMPUTE}", "pair style is zero, expected mdcg"),
        (f"pair_style mdcg\n{COMPUTE}", "no package yet, .*: write the compute after pair_coeff"),
        (f"{COMPUTE}\npair_style none", "the pair style is none, expected mdcg"),
        (
            f"{COMPUTE}\npair_coeff * * {MODELS[1]} H O",
            r"nequip_water_float64.mdcg has \d+ descriptors, and the package of an earlier "
            r"pair_coeff had \d+: write the compute again after pair_coeff",
        ),
        (
            f"{COMPUTE}\n{SUM}\nrun 0\n{NEW}\npair_coeff * * {MODELS[0]} H O\nrun 0 pre no",
            "leave out pre no",
        ),
        (
            f"{COMPUTE}\n{SUM}\nrun 0\npair_style none\n{NEW}\nrun 0 pre no",
            "there is no package yet",
        ),
    ],
)
def test_refusals(tmp_path: Path, commands: str, sentence: str, ranks: int) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(MODELS[0]) + commands + "\n"
    text += "" if SUM in text else f"\n{SUM}\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code > 0
    assert re.search(sentence, output.text), output.text[-2000:]


def test_a_package_without_descriptors(tmp_path: Path) -> None:
    made = Package.open(MODELS[1])
    made.manifest["descriptors"] = []
    made.save(tmp_path / "bare.mdcg")
    write_data(tmp_path / "test.data", water(2))
    output = run_input(tmp_path, head(tmp_path / "bare.mdcg") + COMPUTE + "\n", check=False)
    assert output.code > 0
    assert "compute mdcg/descriptors: " in output.text
    assert "bare.mdcg has no descriptors, expected a package that mdcg-patch made" in output.text
