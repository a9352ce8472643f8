"""Copies of calculators that run packages: deepcopy, pickle, NEB, pools of processes."""

from __future__ import annotations

import copy
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.mep import NEB
from ase.optimize import BFGS

from mdcg import MDCGCalculator
from mdcg.errors import PackageError

from .copies import check_copies, round_trip
from .test_package_calculator import write

FORCES = methodcaller("get_forces")


@pytest.fixture
def atoms(tmp_path: Path) -> Atoms:
    """Return a molecule with a calculator that has an option of every kind."""
    atoms = molecule("CH3OH")
    path = write(tmp_path / "p.mdcg")
    atoms.calc = MDCGCalculator(path, kernels="generic", threads=1, skin=0.7, device="cpu")
    return atoms


@pytest.mark.parametrize("members", [1, 3])
def test_copies(members: int, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{seed}.mdcg", seed=seed) for seed in range(members)]
    calc = MDCGCalculator(paths, kernels="generic", threads=2, skin=0.7, precision="fp64")
    check_copies(calc, molecule("CH3OH"))
    for other in (copy.deepcopy(calc), round_trip(calc)):
        assert other._backend._options == calc._backend._options
        assert other.neighbors.skin == 0.7


@pytest.mark.parametrize("way", [copy.deepcopy, round_trip])
def test_what_became_of_the_file(
    way: object, atoms: Atoms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calc = MDCGCalculator("p.mdcg", kernels="generic")
    monkeypatch.chdir("/")
    assert way(calc).parameters["model"] == "p.mdcg", "a copy is opened by its whole path"
    write(tmp_path / "p.mdcg", seed=1)
    with pytest.raises(PackageError, match=r"p\.mdcg has changed since .* make a new one"):
        way(atoms)
    (tmp_path / "p.mdcg").unlink()
    with pytest.raises(PackageError, match=r"p\.mdcg: cannot be opened: No such file"):
        way(calc)


@pytest.mark.parametrize("parallel", [False, True], ids=["in turn", "threads"])
def test_nudged_elastic_band(atoms: Atoms, parallel: bool) -> None:
    images = []
    for number in range(5):
        images.append(atoms.copy())
        images[-1].positions[0, 0] += 0.1 * number
        images[-1].calc = copy.deepcopy(atoms.calc)
    band = NEB(images, parallel=parallel, method="improvedtangent")
    BFGS(band, logfile=None).run(fmax=1e-9, steps=3)
    for image in images[1:-1]:
        alone = image.copy()
        alone.calc = MDCGCalculator(atoms.calc.parameters["model"], kernels="generic")
        assert image.get_potential_energy() == pytest.approx(alone.get_potential_energy(), 1e-12)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes(method: str, atoms: Atoms) -> None:
    images = [atoms.copy() for _ in range(3)]
    for number, image in enumerate(images):
        image.rattle(0.02, seed=number)
        image.calc = atoms.calc
    want = [atoms.calc.get_forces(image) for image in images]
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = [pool.map(FORCES, images)]
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found.append(list(pool.map(FORCES, images)))
    with ThreadPoolExecutor(2) as pool:
        found.append(list(pool.map(FORCES, [copy.deepcopy(image) for image in images])))
    for each in found:
        np.testing.assert_allclose(each, want, rtol=0, atol=1e-10)
