"""pair_style mdcg device cuda where memory is short or a device is lost: all ranks end, none hangs.

Each rank has an emulated device, and that of one of them fails: from the start, or from a command
on that sets a variable of the emulator in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .lmp import NAN_FORCE, Output, head, nve, run_input, same, water, write_data
from .test_cuda import emulated, models
from .test_cuda_peers import on

__all__ = ["models"]  # a fixture

Models = Callable[..., Path]

pytestmark = pytest.mark.timeout(300)
WAYS = pytest.mark.parametrize("way", ["host", "peer"])
LOST = "device cuda:{} was lost .* CUDA_ERROR_ILLEGAL_ADDRESS.: start the process again to use it"
SHORT = (
    "(out of memory on device cuda:{0}: .* are free"
    "|an evaluation needs .* of memory on cuda:{0}, and may take .*)"
    ": evaluate a smaller system, or use more devices"
)
LATER = """
run 2
shell putenv EMULATED_CUDA_MEMORY={}:1
replicate 1 2 1
run 2
"""


def run_on_two(folder: Path, text: str, ranks: int, **changes: str) -> Output:
    settings = emulated(EMULATED_CUDA_DEVICES="2", **changes)
    return run_input(folder, text, ranks=ranks, env=settings, check=False)


def assert_says(output: Output, reason: str, failing: int) -> None:
    """Check that every line about an error has the reason, and that there is one."""
    assert output.code != 0
    found = re.findall(r"(?:ERROR(?: on proc \d)?|rank \d): pair_style mdcg: (.*)", output.text)
    assert found, output.text
    for line in found:
        assert re.match(f"(?:rank {failing}: )?{reason.format(failing)}", line), output.text


def runs(*rows: tuple[str, int, int, str]) -> pytest.MarkDecorator:
    """Parametrize a test by exchange, number of ranks, failing rank and one more setting."""
    return pytest.mark.parametrize(("way", "ranks", "failing", "how"), rows)


@runs(
    ("host", 1, 0, ""),
    ("host", 2, 0, "late"),
    ("host", 2, 1, ""),
    ("peer", 2, 0, ""),
    ("peer", 2, 1, "late"),
)
def test_lost_device(
    tmp_path: Path, models: Models, way: str, ranks: int, failing: int, how: str
) -> None:
    """If one rank loses its device during a run, all ranks end with the reason."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on(way, head(models("mace")) + nve(every=1))
    text += f'run 6 every 3 "shell putenv EMULATED_CUDA_FAULT={failing}"\n'
    output = run_on_two(tmp_path, text, ranks, EMULATED_CUDA_LATE="1" if how else "")
    assert_says(output, LOST, failing)
    assert re.search(r"^ +3 ", output.text, re.MULTILINE)
    assert not re.search(r"^ +4 ", output.text, re.MULTILINE)


@runs(("host", 1, 0, ""), ("host", 2, 1, ""), ("peer", 2, 0, ""))
def test_lost_from_the_start(
    tmp_path: Path, models: Models, way: str, ranks: int, failing: int, how: str
) -> None:
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on(way, head(models("mace")) + "run 0\n")
    assert_says(run_on_two(tmp_path, text, ranks, EMULATED_CUDA_FAULT=str(failing)), LOST, failing)


@runs(
    ("host", 1, 0, "later"),
    ("host", 2, 0, "when the model is loaded"),
    ("host", 2, 1, "in the first step"),
    ("host", 2, 0, "later"),
    ("peer", 2, 1, "when the model is loaded"),
    ("peer", 2, 0, "in the first step"),
    ("peer", 2, 1, "later"),
)
def test_out_of_memory(
    tmp_path: Path, models: Models, way: str, ranks: int, failing: int, how: str
) -> None:
    """If the device of one rank runs out of memory, at any time, all ranks end with the reason."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on(way, head(models("mace"))) + nve(every=1)
    limit = f"{failing}:1"
    if how == "later":
        text += LATER.format(failing)
    else:
        if how == "in the first step":
            text += f"shell putenv EMULATED_CUDA_MEMORY={limit}\n"
        text += "run 0\n"
    changes = {"EMULATED_CUDA_MEMORY": limit} if how.startswith("when") else {}
    output = run_on_two(tmp_path, text, ranks, **changes)
    assert_says(output, SHORT, failing)
    assert ("Loop time" in output.text) == (how == "later")


@pytest.mark.parametrize("ranks", [1, 2])
def test_position_that_is_not_a_number(tmp_path: Path, models: Models, ranks: int) -> None:
    """An atom whose position is NaN is named by its ID, also if the device makes the lists."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on("host", head(models("mace"))) + NAN_FORCE
    output = run_on_two(tmp_path, text, ranks)
    assert output.code != 0
    reason = r"pair_style mdcg: (\d+ of \d+ atoms .* is atom 4 at \[|the position of atom 4 is )nan"
    assert re.search(reason, output.text), output.text


@WAYS
def test_the_last_allocation(tmp_path: Path, models: Models, way: str) -> None:
    """At the memory limit of one rank, the run succeeds or ends on both ranks with the reason."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = on(way, head(models("mace")) + "run 0\n")
    want = run_input(tmp_path, head(models("mace")) + "run 0\n")
    little, enough, last = 2e5, 4e6, ""
    for _ in range(9):
        most = (little * enough) ** 0.5
        output = run_on_two(tmp_path, text, 2, EMULATED_CUDA_MEMORY=f"1:{most:.0f}")
        if output.code == 0:
            same(output, want, 1e-6)
            enough = most
        else:
            assert_says(output, SHORT, 1)
            little, last = most, output.text
    assert 2e5 < little < enough < 4e6
    assert ("pair_style mdcg: rank 1: out of memory" in last) == (way == "peer")
