"""Systems that are divided into domains because an evaluation may take little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator, _core

from ..internals.internals import core as internals
from .domains import RESULTS, box, compare, opened, report

DATA = Path(__file__).parents[1] / "data"
MACE, NEQUIP = (str(DATA / f"{kind}_water_float64.mdcg") for kind in ("mace", "nequip"))
SHAPES = {
    "periodic": ((12, 5, 5), 0.0, (True, True, True)),
    "triclinic": ((11, 5, 4), 1.0, (True, True, True)),
    "slab": ((12, 6, 3), 0.5, (True, True, False)),
    "open": ((14, 4, 4), 0.0, (False, False, False)),
    "one direction": ((4, 13, 4), 0.3, (False, True, False)),
}


def system_of(name: str, seed: int = 0, longer: int = 1) -> dict[str, Any]:
    repeats, skew, periodic = SHAPES[name]
    along = int(np.argmax(repeats))
    repeats = tuple(count * longer if k == along else count for k, count in enumerate(repeats))
    positions, types, cell = box(repeats, seed=seed, skew=skew)
    return {"positions": positions, "types": types, "cell": cell, "periodic": periodic}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("path", [MACE, NEQUIP], ids=["mace", "nequip"])
def test_domains_agree_with_the_whole_system(path: str, name: str) -> None:
    system = system_of(name, longer=2 if path == MACE else 4)  # NequIP's has more layers
    whole = _core.Model(path).evaluate(**system, **RESULTS)
    for least in (2, 4):
        model = opened(path, least, system)
        divided = model.evaluate(**system, **RESULTS)
        compare(whole, divided, 1e-12)
        again = model.evaluate(**system, **RESULTS)
        for key, value in divided.items():
            np.testing.assert_array_equal(again[key], value)


def test_positions_outside_the_cell_and_weights() -> None:
    """Atoms that have left the cell, and weights of energies, as a heat flux has them."""
    system = system_of("triclinic")
    rng = np.random.default_rng(3)
    wraps = rng.integers(-3, 4, size=(len(system["types"]), 3))
    system["positions"] = system["positions"] + wraps @ system["cell"]
    weights = rng.normal(size=len(wraps))
    whole = _core.Model(MACE).evaluate(**system, **RESULTS, energy_weights=weights)
    divided = opened(MACE, 3, system).evaluate(**system, **RESULTS, energy_weights=weights)
    compare(whole, divided, 1e-12)


def test_an_atom_beside_its_own_image() -> None:
    """A domain that with its surroundings is longer than the cell has several images of an atom."""
    positions, types, cell = box((10, 4, 4))
    system = {"positions": positions, "types": types, "cell": cell, "periodic": (True,) * 3}
    model = opened(MACE, 2, system, skin=0.0)
    divided = model.evaluate(**system, **RESULTS)
    assert report(model)["domain_nodes"] > len(positions)
    compare(_core.Model(MACE).evaluate(**system, **RESULTS), divided, 1e-12)


def test_atoms_that_are_not_spread_evenly() -> None:
    system = system_of("open")
    near = system["positions"][:, 0] < 12
    system["positions"] = system["positions"] + np.where(near, 0, 30)[:, None] * [1, 0, 0]
    compare(
        _core.Model(MACE).evaluate(**system, **RESULTS),
        opened(MACE, 3, system).evaluate(**system, **RESULTS),
        1e-12,
    )


def test_domains_last_while_atoms_move_less_than_the_skin() -> None:
    system = system_of("periodic")
    model = opened(MACE, 2, system, skin=1.0)
    rng = np.random.default_rng(1)
    start, divisions = system["positions"], report(model)["domain_divisions"]
    for _ in range(4):
        system["positions"] = start + rng.uniform(-0.25, 0.25, size=start.shape)
        compare(
            _core.Model(MACE).evaluate(**system, **RESULTS),
            model.evaluate(**system, **RESULTS),
            1e-12,
        )
    assert report(model)["domain_divisions"] == divisions
    system["positions"] = start + np.array([2.0, 0.0, 0.0])
    model.evaluate(**system)
    assert report(model)["domain_divisions"] == divisions + 1
    system["cell"] = system["cell"] * 1.002  # within the skin: the images move
    system["positions"] = system["positions"] * 1.002
    whole = _core.Model(MACE).evaluate(**system, **RESULTS)
    compare(whole, model.evaluate(**system, **RESULTS), 1e-12)
    assert report(model)["domain_divisions"] == divisions + 1


def test_domains_do_not_depend_on_what_came_before() -> None:
    """A denser structure with as many atoms, an error and a release leave no trace."""
    system = system_of("periodic", longer=2)
    model = opened(MACE, 3, system)
    want, count = model.evaluate(**system, **RESULTS), report(model)["domains"]
    other = system_of("periodic", seed=9, longer=2)
    dense = {**other, "positions": 0.8 * other["positions"], "cell": 0.8 * other["cell"]}
    compare(
        _core.Model(MACE).evaluate(**dense, **RESULTS), model.evaluate(**dense, **RESULTS), 1e-12
    )
    wrong = {**system, "types": np.full_like(system["types"], 7)}
    with pytest.raises(_core.EngineError, match="the type of atom"):
        model.evaluate(**wrong)
    for release in (False, True):
        if release:
            model.release()
        for name, value in model.evaluate(**system, **RESULTS).items():
            np.testing.assert_array_equal(value, want[name])
        assert report(model)["domains"] == count


def test_results_do_not_depend_on_threads() -> None:
    system = system_of("triclinic", longer=2)
    size = report(opened(MACE, 3, system))["memory_bytes"] / 1e6
    one, four = (
        _core.Model(MACE, memory=f"{size:.6f} MB", threads=threads).evaluate(**system, **RESULTS)
        for threads in (1, 4)
    )
    for name, value in one.items():
        np.testing.assert_array_equal(value, four[name])


def test_a_stretched_cell_keeps_the_surroundings() -> None:
    """Atoms near the limit of the skin in a cell that has grown since domains were made."""
    system = system_of("periodic", longer=2)
    model = opened(MACE, 2, system, skin=1.0)
    start, cell, divisions = system["positions"], system["cell"], report(model)["domain_divisions"]
    rng = np.random.default_rng(4)
    for stretch in (1.01, 1.03):
        moved = rng.normal(size=start.shape)
        moved *= 0.49 / np.linalg.norm(moved, axis=1, keepdims=True)
        system["positions"], system["cell"] = stretch * (start + moved), stretch * cell
        compare(
            _core.Model(MACE).evaluate(**system, **RESULTS),
            model.evaluate(**system, **RESULTS),
            1e-12,
        )
    assert report(model)["domain_divisions"] == divisions


@pytest.mark.parametrize("thin", [(False, False, True), (False, True, True)])
def test_planes_through_atoms(thin: tuple[bool, ...]) -> None:
    """A perfect crystal, whose atoms lie on planes between domains; open, flat or a line."""
    repeats = tuple(1 if flat else (60 if thin[1] else 14) for flat in thin)
    grid = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1).reshape(-1, 3)
    positions = 2.3 * grid.astype(float)
    types = (grid.sum(axis=1) % 2).astype(np.int32)
    for periodic in ((False,) * 3, (True, False, False)):
        cell = np.diag(2.3 * np.array(repeats)) if periodic[0] else None
        system = {"positions": positions, "types": types, "cell": cell, "periodic": periodic}
        compare(
            _core.Model(MACE).evaluate(**system, **RESULTS),
            opened(MACE, 2, system).evaluate(**system, **RESULTS),
            1e-12,
        )


def test_parts_of_the_results() -> None:
    system = system_of("triclinic", longer=2)
    model, whole = opened(MACE, 2, system), _core.Model(MACE)
    for wanted in ({"forces": False}, {"forces": False, "descriptors": True}, {"virial": True}):
        compare(whole.evaluate(**system, **wanted), model.evaluate(**system, **wanted), 1e-12)


def test_what_fits_is_not_divided() -> None:
    system = system_of("periodic")
    model = _core.Model(MACE, memory="2 GB")
    want = _core.Model(MACE).evaluate(**system, **RESULTS)
    for name, value in model.evaluate(**system, **RESULTS).items():
        np.testing.assert_array_equal(value, want[name])
    assert "domains" not in report(model)
    assert report(model)["memory_bytes"] == 2e9


def test_an_atom_far_away_is_no_reason_to_divide() -> None:
    positions = np.random.default_rng(0).uniform(size=(60_000, 3)) * 85.0
    positions[0] = 1e4
    reach = {"cutoff": 6.0, "layers": 2, "bytes": 1.0, "limit": 1e12}
    assert internals.divided(positions, None, **reach)[0] == 0


def test_cells_that_are_small_beside_the_reach_of_all_layers() -> None:
    system = {"positions": np.zeros((1, 3)), "types": np.zeros(1, dtype=np.int32)}
    system |= {"cell": np.eye(3) * 0.7, "periodic": (True,) * 3}
    whole = _core.Model(NEQUIP).evaluate(**system, virial=True)
    found = _core.Model(NEQUIP, memory="1 GB").evaluate(**system, virial=True)
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value)


def test_more_edges_than_numbers_of_32_bits() -> None:
    """A dense system is divided for its edges alone; nothing is evaluated."""
    cell = np.diag([36.0, 12.0, 12.0])
    positions = np.random.default_rng(0).uniform(size=(120_000, 3)) @ cell
    reach = {"cutoff": 6.0, "layers": 1, "bytes": 1.0, "limit": 1e12}
    neighbors = len(positions) / np.linalg.det(cell) * 4 / 3 * np.pi * 6.0**3
    assert len(positions) * neighbors > 2**31
    count, nodes = internals.divided(positions, cell, **reach)
    assert count == 2
    assert nodes < len(positions)
    assert internals.divided(positions[::2], cell, **reach)[0] == 0


def test_batches() -> None:
    systems = [system_of("slab"), system_of("open"), system_of("slab", seed=5)]
    model = opened(MACE, 2, systems[0])
    counts = np.cumsum([0, *(len(s["types"]) for s in systems)])
    found = model.evaluate_batch(
        counts,
        np.concatenate([s["types"] for s in systems]),
        np.concatenate([s["positions"] for s in systems]),
        cells=np.array([s["cell"] for s in systems]),
        periodic=np.array([s["periodic"] for s in systems]),
        virial=True,
    )
    whole = _core.Model(MACE)
    for number, system in enumerate(systems):
        want = whole.evaluate(**system, virial=True)
        rows = slice(counts[number], counts[number + 1])
        np.testing.assert_allclose(found["forces"][rows], want["forces"], rtol=0, atol=1e-11)
        np.testing.assert_allclose(found["virial"][number], want["virial"], rtol=0, atol=1e-10)
        assert found["energy"][number] == pytest.approx(want["energy"], abs=1e-10)


def test_errors_name_atoms_of_the_system() -> None:
    system = system_of("periodic")
    model = opened(MACE, 3, system)
    system["positions"][7] = system["positions"][250]
    with pytest.raises(_core.EngineError, match=r"atoms (7 and 250|250 and 7) are at the same"):
        model.evaluate(**system)
    system["types"][11] = 9
    with pytest.raises(_core.EngineError, match="the type of atom 11 is 9"):
        model.evaluate(**system)
    system["types"][11] = 0
    system["positions"][7] = np.nan
    with pytest.raises(_core.EngineError, match="atom 7"):
        model.evaluate(**system)


def test_domains_that_are_too_small() -> None:
    model = _core.Model(MACE, memory="0.2 MB")
    said = (
        r"memory is 0\.2 MB, too little for the smallest domains of 300 atoms: set it to [\d.]+ MB"
    )
    with pytest.raises(_core.EngineError, match=said) as error:
        model.evaluate(**system_of("periodic"))
    least = str(error.value).split("set it to ")[1].removesuffix(" or more")
    _core.Model(MACE, memory=least).evaluate(**system_of("periodic"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "GB",
        "-1 GB",
        "101 %",
        "0 %",
        "4 gb",
        "nan GB",
        "1e9",
        "9 TB",
        "1e300 TB",
        "1e-9 MB",
    ],
)
def test_memory_that_means_nothing(text: str) -> None:
    if not text:
        _core.Model(MACE, memory=text)
        return
    with pytest.raises(
        _core.EngineError, match=r"memory is '.*', (expected a share|and cpu .* has)"
    ):
        _core.Model(MACE, memory=text)


def test_calculators() -> None:
    """The option of the calculator; packages of a committee share the memory."""
    positions, types, cell = box((12, 5, 5))
    atoms = Atoms(numbers=np.where(types, 8, 1), positions=positions, cell=cell, pbc=True)
    atoms.calc = MDCGCalculator(MACE)
    want = atoms.get_forces(), atoms.get_stress(), atoms.get_potential_energies()
    system = {"positions": positions, "types": types, "cell": cell, "periodic": (True,) * 3}
    size = report(opened(MACE, 2, system))["memory_bytes"]
    calc = MDCGCalculator(MACE, memory=f"{size / 1e6:.6f} MB")
    calc.get_forces(atoms)
    assert "domains, " in str(calc.report())
    atoms.calc = calc
    for got, whole in zip(
        (atoms.get_forces(), atoms.get_stress(), atoms.get_potential_energies()), want, strict=True
    ):
        np.testing.assert_allclose(got, whole, rtol=0, atol=1e-11)
    both = MDCGCalculator([MACE, MACE], memory=f"{2 * size / 1e6:.3f} MB")
    np.testing.assert_allclose(both.get_forces(atoms), want[0], rtol=0, atol=1e-11)
    assert all(part["domains"] > 1 for part in both.report().packages)
    with pytest.raises(ValueError, match="memory is 'much', expected a share"):
        MDCGCalculator(MACE, memory="much")
    with pytest.raises(TypeError, match=r"memory is 0\.9, expected a text"):
        MDCGCalculator(MACE, memory=0.9)  # type: ignore[arg-type]
