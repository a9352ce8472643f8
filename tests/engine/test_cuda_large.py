"""Values with more numbers than 32 bits count, on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mdcg.package import Package

from .cuda_device import Device
from .cuda_large_cases import (
    check_copies,
    copies_beyond,
    gated_program,
    liquid,
    trained_model,
    wide_program,
)

FEW = 10  # copies along each axis: enough to know what memory an atom takes


@pytest.mark.parametrize(
    ("make", "copies"), [(wide_program, 22), (gated_program, 22), (trained_model, 33)]
)
def test_numbers_of_copies(make: Callable[[], Package], copies: int) -> None:
    """copies_beyond finds how often 192 atoms are repeated; the boxes take 54, 41 and 120 GB."""
    assert copies_beyond(make(), liquid()) == copies


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("make", [wide_program, gated_program, trained_model])
def test_more_numbers_than_32_bits_count(tmp_path: Path, make: Callable[[], Package]) -> None:
    package, box = make(), liquid()
    copies = copies_beyond(package, box)
    used = check_copies(package, tmp_path / "p.mdcg", box, FEW)["bytes"]
    needed, free = used * (copies / FEW) ** 3, Device().memory()[0]
    if free < needed:
        pytest.skip(f"takes {needed / 1e9:.0f} GB of the device, {free / 1e9:.0f} GB are free")
    check_copies(package, tmp_path / "p.mdcg", box, copies)
