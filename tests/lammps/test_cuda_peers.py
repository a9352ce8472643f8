"""pair_style mdcg device cuda on several ranks: rows go through the host, or past it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .lmp import (
    DUMP,
    THERMO,
    TOLERANCE,
    Output,
    compare,
    head,
    molecule_in_a_corner,
    nve,
    package,
    reference,
    run_input,
    same,
    water,
    water_with_a_short_edge,
    write_data,
)
from .test_cuda import emulated, env, hot, models, said

__all__ = ["env", "models"]  # fixtures

Models = Callable[..., Path]

pytestmark = pytest.mark.timeout(300)


def on(exchange: str, text: str) -> str:
    return text.replace("pair_style mdcg", f"pair_style mdcg device cuda exchange {exchange}")


def same_bits(got: Output, want: Output) -> None:
    for mine, other in zip(got.runs, want.runs, strict=True):
        for name, column in other.items():
            assert np.array_equal(mine[name], column), name


@pytest.mark.parametrize(("name", "ranks", "how"), [
    ("mace", 2, ""),
    ("mace", 3, "processors 1 3 1"),
    ("nequip", 2, "comm_style tiled"),
    ("nequip", 4, ""),
])  # fmt: skip
def test_dynamics(
    tmp_path: Path, models: Models, env: Any, name: str, ranks: int, how: str
) -> None:
    """Rows sent from device to device give the same bits as rows sent through the host."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    text = hot(models(name), how)
    same_as = run_input(tmp_path, text.replace(how, "") if how else text)
    late = env | {"EMULATED_CUDA_LATE": "1", "EMULATED_CUDA_DEVICES": "2"}
    host, peer = (
        run_input(tmp_path, on(way, text), ranks=ranks, env=late) for way in ("host", "peer")
    )
    assert "Neighbor list builds = 0" not in peer.text
    assert "rows of ghosts go from device to device" in said(peer)
    assert "rows of ghosts go through the host, because exchange is host" in said(host)
    same_bits(peer, host)
    same(peer, same_as)


def test_larger_windows(tmp_path: Path, models: Models, env: Any) -> None:
    """Exchange between devices works after the number of ghosts grows and a model is reopened."""
    write_data(tmp_path / "test.data", water(1, seed=5))
    text = head(models("mace")) + "thermo_modify format float %.17g\n"
    text += "run 0\nreplicate 3 2 1\nrun 0\n"
    text += f"pair_coeff * * {models('mace')} H O\nrun 0\n"
    want = run_input(tmp_path, text)
    same(run_input(tmp_path, on("peer", text), ranks=2, env=env), want)


@pytest.mark.parametrize("way", ["host", "peer"])
def test_empty_ranks(tmp_path: Path, models: Models, env: Any, way: str) -> None:
    """Results equal ASE's if some ranks have only ghosts or nothing."""
    atoms = molecule_in_a_corner()
    write_data(tmp_path / "test.data", atoms)
    start = head(models("mace"), boundary="f f f", before="processors 4 1 1")
    got = run_input(tmp_path, on(way, start + THERMO + DUMP + "run 0\n"), ranks=4, env=env)
    compare(got, reference(atoms, package("mace", "float64")), 1e-10)


def test_steps_of_empty_ranks(tmp_path: Path, models: Models, env: Any) -> None:
    """Runs with ranks without atoms give the same results with both kinds of exchange."""
    write_data(tmp_path / "test.data", molecule_in_a_corner())
    text = head(models("mace"), boundary="f f f", before="processors 4 1 1")
    text += nve(3) + "run 3\n"
    got = run_input(tmp_path, on("peer", text), ranks=4, env=env)
    same(got, run_input(tmp_path, on("host", text), ranks=4, env=env))


@pytest.mark.parametrize("way", ["host", "peer"])
def test_short_edges_on_one_rank(tmp_path: Path, models: Models, env: Any, way: str) -> None:
    """An edge that only one rank has too short for most tables gives ASE's results."""
    atoms = water_with_a_short_edge()
    write_data(tmp_path / "test.data", atoms)
    start = head(models("mace", "float32"), before="processors 2 1 1")
    got = run_input(tmp_path, on(way, start + THERMO + DUMP + "run 0\n"), ranks=2, env=env)
    compare(got, reference(atoms, package("mace", "float64")), TOLERANCE["float32"])


@pytest.mark.parametrize(("shared", "reason"), [
    ("0", "rank 0: cuIpcGetMemHandle failed: "),
    ("export", "rank [01]: cuIpcOpenMemHandle failed: "),
])  # fmt: skip
def test_memory_that_is_not_shared(
    tmp_path: Path, models: Models, shared: str, reason: str
) -> None:
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = on("peer", head(models("mace")) + "run 0\n")
    settings = emulated(EMULATED_CUDA_IPC=shared)
    output = run_input(tmp_path, text, ranks=2, env=settings, check=False)
    assert output.code != 0
    assert re.search(
        rf"rows cannot go from device to device \({reason}.*\), expected ranks on one machine, "
        r"each of which sees all their devices: let them pass through the host \(exchange host\)",
        output.text,
    )


# Settings of the emulated devices of each rank, and what the log says about rows of ghosts.
CHOICES = {
    "possible": ("", "from device to device"),
    "no handles": (
        "export EMULATED_CUDA_IPC=0",
        "through the host, because rank 0: cuIpcGetMemHandle failed: .*",
    ),
    "no handles on one rank": (
        'if [ "$PMI_RANK" = 1 ]; then export EMULATED_CUDA_IPC=0; fi',
        "through the host, because rank 1: cuIpcGetMemHandle failed: .*",
    ),
    "no access on one rank": (
        'if [ "$PMI_RANK" = 1 ]; then export EMULATED_CUDA_IPC=export; fi',
        "through the host, because rank 1: cuIpcOpenMemHandle failed: .*",
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choice(tmp_path: Path, models: Models, case: str) -> None:
    """Ranks choose the same way, also where only one of them fails, and rank 0 says it once."""
    first, reason = CHOICES[case]
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = on("auto", head(models("mace")) + nve(1) + "run 3\n")
    env = emulated(EMULATED_CUDA_DEVICES="2")
    got = run_input(tmp_path, text, ranks=2, env=env, first=first)
    assert re.findall("  rows of ghosts go (.*)", got.text) == [way_of_rows(got)]
    assert re.fullmatch(reason, way_of_rows(got))
    short = text.replace(" exchange auto", "")
    default = run_input(tmp_path, short, ranks=2, env=env, first=first)
    assert way_of_rows(default) == way_of_rows(got)
    same_bits(got, run_input(tmp_path, text.replace("auto", "host"), ranks=2, env=env))


def way_of_rows(output: Output) -> str:
    (found,) = re.findall("  rows of ghosts go (.*)", said(output))
    return str(found)


@pytest.mark.parametrize(("ranks", "settings"), [(1, "device cuda"), (2, "device cpu")])
def test_no_choice(tmp_path: Path, models: Models, ranks: int, settings: str) -> None:
    """The log does not mention rows that no device exchanges."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = head(models("mace"), settings=settings) + "run 0\n"
    assert "rows of ghosts" not in run_input(tmp_path, text, ranks=ranks, env=emulated()).text


@pytest.mark.parametrize(("settings", "reason"), [
    ("exchange mpi device cuda", "exchange is mpi, expected auto, host, or peer (from device to "),
    ("exchange peer", "exchange is peer, and device is auto, expected device cuda, or exchange h"),
    ("exchange peer device cpu", "exchange is peer, and device is cpu, expected device cuda"),
    ("exchange", "keyword exchange needs a value"),
])  # fmt: skip
def test_settings(tmp_path: Path, models: Models, settings: str, reason: str) -> None:
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = head(models("mace")).replace("pair_style mdcg", f"pair_style mdcg {settings}")
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert reason in output.text
