"""MDCGCalculator on emulated devices that run short of memory or are lost; run like cuda_cases.py.

The emulator reads the settings that change here each time it uses them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from mdcg import MDCGCalculator
from mdcg.errors import DeviceError

from ..calculators.kinds import assert_same, results
from ..internals.internals import small_up_to
from .cuda_calculator_cases import crystal, path
from .cuda_cases import NAMES, saved
from .cuda_device import Device
from .test_program import two_layers

__all__ = ["path"]  # a fixture

MEMORY = "EMULATED_CUDA_MEMORY"
LOST = "device cuda:1 was lost ("


def large(seed: int = 5) -> Atoms:
    atoms = bulk("C", "fcc", a=3.6, cubic=True).repeat((3, 2, 2))
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.positions += np.random.default_rng(seed).normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def sentence(kind: type[Exception], function: Callable[[], Any]) -> str:
    """Return the message, of one line, of an exception of exactly this type."""
    with pytest.raises(kind) as error:
        function()
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


#: The driver has no memory, or rows would need more than there is.
SHORT = (
    r"(out of memory on device cuda:0:|an evaluation needs .* of memory on cuda:0, and may take) "
    r".*: evaluate a smaller system, or use more devices(, each with a rank of its own)?"
    r"|\d+ atoms on cuda:0 .*: an evaluation needs .* of memory, and may take .*: "
    r"set memory to '[\d.]+ ([MG]B|%)', and domains of the system are evaluated one after the other"
)


def short(function: Callable[[], Any]) -> None:
    assert re.fullmatch(SHORT, sentence(MemoryError, function))


# -- memory ----------------------------------------------------------------------------------------


def used() -> int:
    """Return the bytes that are allocated on all devices."""
    free, total = Device().memory()
    return total - free


def test_the_error_names_the_option(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atoms = crystal().repeat((4, 3, 3))
    atoms.calc = MDCGCalculator(path, device="cuda")
    monkeypatch.setenv(MEMORY, str(used() + 1_000_000))
    said = (
        rf"{len(atoms)} atoms on cuda:0 \(.*\): an evaluation needs [\d.]+ MB of memory, and may "
    )
    said += r"take .*: set memory to '[\d.]+ MB', and domains of the system are evaluated one .*"
    assert re.fullmatch(said, sentence(MemoryError, atoms.get_forces))


def test_memory_that_ends_anywhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After memory has run out in any allocation, a system that fitted before fits again."""
    systems = [crystal(), crystal(1), large()]
    *small, many = systems
    calc = MDCGCalculator(path, device="cuda")
    want, bytes_of = [], []
    for atoms in systems:
        want.append(results(calc, atoms))
        bytes_of.append(used())
    for atoms, found in zip(systems, want, strict=True):
        assert_same(results(MDCGCalculator(path, kernels="generic"), atoms), found)
    refused = failures = 0
    for most in np.geomspace(bytes_of[0] / 2, 1.3 * bytes_of[2], 12).astype(int):
        calc = MDCGCalculator(path, device="cuda")
        gc.collect()  # handled exceptions keep earlier ones alive
        monkeypatch.setenv(MEMORY, str(most))
        try:
            for k in (0, 1, 0, 1):  # includes captured steps
                assert_same(results(calc, small[k]), want[k], 0.0)
        except MemoryError:
            refused += 1
            short(partial(calc.get_forces, small[0]))
        else:
            try:
                assert_same(results(calc, many), want[2], 0.0)
                break
            except MemoryError:
                failures += 1
            short(partial(calc.get_forces, many))  # also if all memory is free at first
            for k in (0, 1, 0):
                assert_same(results(calc, small[k]), want[k], 0.0)
        monkeypatch.delenv(MEMORY)
        assert_same(results(calc, many), want[2], 0.0)
    else:
        pytest.fail(f"the larger one does not fit into {most} bytes")
    assert refused > 2
    assert failures > 3


@pytest.mark.parametrize("small", [0, 131072])
def test_steps_that_cannot_be_captured(
    path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calc, atoms = MDCGCalculator(path, device="cuda"), crystal()
    with small_up_to(small):
        want = calc.get_forces(atoms)
        monkeypatch.setenv("EMULATED_CUDA_NO_GRAPHS", "1")
        atoms.positions += 1e-9
        assert "cuGraphInstantiateWithFlags" in sentence(
            MemoryError, partial(calc.get_forces, atoms)
        )
        monkeypatch.delenv("EMULATED_CUDA_NO_GRAPHS")
        for _ in range(3):
            atoms.positions += 1e-9
            assert np.abs(calc.get_forces(atoms) - want).max() < 1e-6


def test_memory_comes_back(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committee that runs out of memory, in any package, releases it and can be used again."""
    other = saved(two_layers(seed=1).package(**NAMES), tmp_path / "q.mdcg")
    few, many = crystal(), large()
    want, bytes_of = [], []
    gc.collect()
    gc.disable()
    for atoms in (few, many):
        before = used()
        calc = MDCGCalculator([path, other], device="cuda")
        want.append((calc.get_forces(atoms), calc.get_stress(atoms)))
        bytes_of.append(used() - before)
        del calc
        assert used() == before  # immediately
    gc.enable()
    calc = MDCGCalculator([path, other], device="cuda")
    before = used()
    for most in (1000, (bytes_of[0] + 2 * bytes_of[1]) // 3):
        monkeypatch.setenv(MEMORY, str(before + most))
        for _ in range(2):
            short(partial(calc.get_forces, many))
            short(partial(calc.get_stress, many))
            short(partial(calc.batch, [few, many]))
            if most > bytes_of[0]:
                assert np.array_equal(calc.get_stress(few), want[0][1])
            else:
                short(partial(calc.get_descriptors, few))
    monkeypatch.delenv(MEMORY)
    for atoms, (forces, stress) in zip((few, many), want, strict=True):
        assert np.array_equal(calc.get_forces(atoms), forces)
        assert np.array_equal(calc.get_stress(atoms), stress)


def test_memory_cuts_a_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit into memory is evaluated in parts."""
    images = [crystal(seed) for seed in range(12)]
    want = MDCGCalculator(path, device="cuda").batch(images, ["energy", "forces"])
    gc.collect()
    before = used()
    calc = MDCGCalculator(path, device="cuda")
    calc.batch(images)
    whole = used() - before
    del calc
    gc.collect()
    calc = MDCGCalculator(path, device="cuda")
    monkeypatch.setenv(MEMORY, str(before + 3 * whole // 4))
    for got, each in zip(calc.batch(images), want, strict=True):
        assert_same(got, each, 1e-12)
    assert calc.report().packages[0]["neighbor_lists_built"] > 1


# -- lost devices, the last of all: devices stay lost ----------------------------------------------


def test_lost_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calculators on the device raise errors from then on; all others continue."""
    atoms, moved = crystal(), crystal(1)
    cpu = MDCGCalculator(path, kernels="generic")
    good, lost, idle = (MDCGCalculator(path, device=f"cuda:{k}") for k in (0, 1, 1))
    others = [results(calc, each) for calc in (cpu, good) for each in (atoms, moved)]
    for _ in range(3):  # captured
        lost.reset()
        assert_same(results(lost, atoms), others[2], 0.0)
    monkeypatch.setenv("EMULATED_CUDA_FAULT", "1")
    new = MDCGCalculator(path, device="cuda:1")
    for fault in ("1", ""):
        monkeypatch.setenv("EMULATED_CUDA_FAULT", fault)
        for calc in (lost, idle, new):
            for call in (
                partial(calc.get_forces, moved),
                partial(calc.get_descriptors, moved),
                partial(calc.batch, [moved]),
            ):
                said = sentence(DeviceError, call)
                assert said.startswith(LOST)
                assert said.endswith("models on the cpu and on other devices go on")
        for calc in (cpu, good):
            calc.reset()
        again = [results(calc, each) for calc in (cpu, good) for each in (atoms, moved)]
        for got, want in zip(again, others, strict=True):
            assert_same(got, want, 0.0)
    del lost, idle
    assert np.isfinite(results(MDCGCalculator(path, device="cuda:0"), moved)["energy"])
