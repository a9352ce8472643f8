"""After the first steps nothing is allocated: a C program counts malloc and mmap."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from .symmetry import DATA
from .test_c_api import compile_c

WAYS = (
    *("cell, list kept", "cell, new list", "cell, all results", "cell, energy alone"),
    *("edges given", "same edges", "large cell"),
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the program replaces malloc by means of glibc")
    path = tmp_path_factory.mktemp("allocations") / "allocations"
    compile_c(Path(__file__).parent / "allocations.c", path)
    return path


@pytest.mark.parametrize(
    ("name", "kernels", "threads"),
    [
        ("mace_water_float64", "generated", 1),
        ("mace_water_float32", "generated", 2),
        ("mace_water_float64", "generic", 3),
        ("nequip_water_float32", "generated", 1),
        ("nequip_water_float32", "generated", 3),
        ("mace_les_water_float64", "generic", 2),
    ],
)
def test_steps_allocate_nothing(program: Path, name: str, kernels: str, threads: int) -> None:
    done = subprocess.run(
        [program, DATA / f"{name}.mdcg", kernels, str(threads)],
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert int(found.pop("opening")) > 500, "the engine's allocations are not seen"
    assert found == dict.fromkeys(WAYS, "0")
