"""Calls of one calculator in any order, each against a calculator that has done nothing before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import InputError
from hypothesis import Phase, given, settings

from mdcg import MDCGCalculator

from .kinds import EMULATED, Kind, assert_same, box, dimer, kinds

ENGINE_EXAMPLES, TORCH_EXAMPLES = 8 if EMULATED else 150, 8
#: Relative; Hessians are differences of forces over 1e-3 Å.
LIMIT, HESSIAN_LIMIT = 1e-10, 1e-6


def pairs(order: tuple[int, ...] = (0, 1, 2, 3)) -> Atoms:
    """Return two H2 molecules out of each other's reach, their atoms in some order."""
    return Atoms("H4", [[0, 0, 0], [0.9, 0, 0], [20, 0, 0], [20.9, 0, 0]])[list(order)]


#: Some have equal numbers of atoms and edges, but different neighbours.
STRUCTURES: tuple[Callable[[], Atoms], ...] = (
    pairs,
    lambda: pairs((0, 2, 1, 3)),
    box,
    lambda: box()[[3, 0, 4, 1, 5, 2]],
    dimer,
    lambda: Atoms("OH", [[0, 0, 0], [0, 0, 30.0]]),
)


def moving(atoms: Atoms) -> Atoms:
    atoms.set_velocities(np.random.default_rng(5).normal(scale=0.02, size=(len(atoms), 3)))
    return atoms


structures = st.integers(0, len(STRUCTURES) - 1)
single = st.tuples(
    st.sampled_from(["energy", "forces", "stress", "descriptors", "heat flux"]),
    structures,
    st.sampled_from([0.0, 0.01, 0.7]),  # displacement within the skin, or beyond
    st.sampled_from([1.0, 1.001, 1.1]),  # scale of the cell
)
calls = st.one_of(
    single,
    single,
    st.tuples(st.just("batch"), st.lists(structures, min_size=1, max_size=3)),
    st.tuples(st.just("hessian")),
    st.tuples(st.sampled_from(["copy", "pickle"])),
    st.tuples(st.sampled_from(["coincident", "unknown", "nowhere", "bad batch"]), structures),
)


def evaluate(calc: MDCGCalculator, call: tuple[Any, ...]) -> dict[str, Any]:
    """Return the results of a call: none for an invalid one, after checking that it fails."""
    name, *given = call
    if name == "batch":
        found = calc.batch([STRUCTURES[n]() for n in given[0]], ["energy", "forces"])
        return {f"{key} {n}": each[key] for n, each in enumerate(found) for key in each}
    if name == "hessian":
        return {name: calc.get_hessian(pairs()[:2])}
    atoms = STRUCTURES[given[0]]()
    if name in ("coincident", "unknown", "nowhere", "bad batch"):
        if name == "unknown":
            atoms.symbols[0] = "U"
        elif name == "nowhere":
            atoms.positions[-1, 1] = np.nan
        else:
            atoms.positions[0] = atoms.positions[1]
        with pytest.raises(InputError):
            calc.batch([pairs(), atoms]) if name == "bad batch" else calc.get_forces(atoms)
        return {}
    _, moved, length = given
    atoms.positions += moved * np.sin(np.arange(3.0 * len(atoms))).reshape(-1, 3)
    atoms.set_cell(length * atoms.cell.array, scale_atoms=True)
    if name == "descriptors":
        return {name: calc.get_descriptors(atoms)}
    if name == "heat flux":
        return {name: calc.get_heat_flux(moving(atoms))}
    return {name: calc.get_property(name, atoms)}


def possible(kind: Kind, call: tuple[Any, ...]) -> bool:
    if call[0] == "stress":
        return bool(STRUCTURES[call[1]]().pbc.all())
    # copies of a calculator of a checkpoint read the file again, which takes seconds
    return kind.engine or call[0] not in ("descriptors", "heat flux", "copy", "pickle")


@pytest.mark.parametrize("kind", kinds())
def test_calls_in_any_order(kind: Kind) -> None:
    known: dict[str, dict[str, Any]] = {}
    examples = ENGINE_EXAMPLES if kind.engine else TORCH_EXAMPLES
    unused = kind.make(**(kind.generic if kind.on_cpu else {}))

    def alone(call: tuple[Any, ...]) -> dict[str, Any]:
        """Return the result of the call in a new calculator."""
        if repr(call) not in known:
            calc = kind.on_the_cpu()
            if kind.engine:
                calc = copy.deepcopy(calc)
            calc.reset()
            calc.neighbors.reset()
            known[repr(call)] = evaluate(calc, call)
        return known[repr(call)]

    @settings(max_examples=examples, phases=(Phase.generate, Phase.shrink))
    @given(st.lists(calls.filter(lambda call: possible(kind, call)), min_size=2, max_size=8))
    def check(sequence: list[tuple[Any, ...]]) -> None:
        calc = copy.deepcopy(unused) if kind.engine else unused
        for call in sequence:
            if call[0] == "copy":
                calc = copy.deepcopy(calc)
            elif call[0] == "pickle":
                calc = pickle.loads(pickle.dumps(calc))
            else:
                limit = HESSIAN_LIMIT if call[0] == "hessian" else LIMIT
                assert_same(evaluate(calc, call), alone(call), limit)

    check()
