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
from .test_library import INCLUDE, LIBRARY, compile_c

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
    assert "rows of ghosts go through the host, because the keyword exchange is host" in said(host)
    same_bits(peer, host)
    same(peer, same_as)


# What libraries between the plugin and libmdcg.so begin with.
START = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "mdcg.h"
static void *real(const char *name)
{
  static void *library;
  if (!library) library = dlopen(getenv("SPY_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}
"""
# Lists of all sizes count as large. Inner nodes must be out of reach of all ghosts, also of their
# copies; their number is noted.
SPY = (
    START
    + r"""
extern int64_t small __asm__("_ZN4mdcg11DeviceEdges16most_small_edgesE");
extern int64_t range __asm__("_ZN4mdcg11DeviceEdges16most_range_edgesE");
extern int64_t filling __asm__("_ZN4mdcg11DeviceEdges14fewest_fillingE");
__attribute__((constructor)) static void set_limits(void) { small = 0, range = 64, filling = 1; }
static int is_near(const mdcg_system *s, int64_t node, const double *at)
{
  double square = 0;
  for (int k = 0; k < 3; k++) {
    const double d = s->positions[3 * node + k] - at[k];
    square += d * d;
  }
  return square < (4.0 + s->skin) * (4.0 + s->skin);
}
mdcg_status mdcg_evaluate(mdcg_model *m, const mdcg_system *s, const mdcg_communicator *c,
                          const mdcg_results *r)
{
  mdcg_status (*f)(mdcg_model *, const mdcg_system *, const mdcg_communicator *,
                   const mdcg_results *) = real("mdcg_evaluate");
  int64_t near = 0;
  if (!s->list->edges)
    for (int64_t i = s->num_local - s->num_inner; i < s->num_local; i++) {
      for (int64_t g = s->num_local; g < s->num_nodes; g++)
        near += is_near(s, i, s->positions + 3 * g);
      for (int64_t g = 0; g < s->num_copies; g++) {
        double at[3];
        for (int k = 0; k < 3; k++)
          at[k] = s->positions[3 * s->copy_node[g] + k] -
                  s->image_shifts[3 * s->copy_image[g] + k];
        if (s->copy_node[g] >= s->num_local) near += is_near(s, i, at);
      }
    }
  char path[4096];
  snprintf(path, sizeof(path), "%s/inner.%d", getenv("SPY_FOLDER"), (int)getpid());
  FILE *file = fopen(path, "a");
  fprintf(file, "%d %d\n", (int)s->num_inner, (int)near);
  fclose(file);
  return f(m, s, c, r);
}
"""
)


def between(folder: Path, text: str) -> dict[str, str]:
    """Return an environment in which LAMMPS opens libmdcg.so through a library of this text."""
    options = ("-shared", "-fPIC", f"-I{INCLUDE}", f"-Wl,--no-as-needed,{LIBRARY}")
    spy = compile_c(folder / "spy.so", text, *options)
    paths = {"MDCG_LIBRARY": str(spy), "SPY_LIBRARY": str(LIBRARY), "SPY_FOLDER": str(folder)}
    settings = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_CUDA_LATE": "1"}
    return emulated(**settings) | paths


@pytest.mark.parametrize(("ranks", "how"), [
    (2, ""), (2, "comm_style tiled"), (4, "processors 2 2 1"),
])  # fmt: skip
def test_work_while_rows_travel(tmp_path: Path, models: Models, ranks: int, how: str) -> None:
    """Nodes without ghosts as neighbours are computed meanwhile; results are those of one rank."""
    write_data(tmp_path / "test.data", water(2, seed=5))
    repeat = "replicate 4 1 1" if ranks == 2 else "replicate 4 4 1"
    text = hot(models("mace"), how).replace("pair_style", f"{repeat}\npair_style")
    text = text.replace("run 12", "run 6" if ranks == 2 else "run 2")
    want = run_input(tmp_path, text.replace(how, "") if how else text)
    env = between(tmp_path, SPY)
    host, peer = (
        run_input(tmp_path, on(way, text), ranks=ranks, env=env) for way in ("host", "peer")
    )
    noted = np.concatenate([np.loadtxt(path) for path in tmp_path.glob("inner.*")])
    assert (noted[:, 0] > 3).all()
    assert not noted[:, 1].any()
    same_bits(peer, host)
    same(peer, want)


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


# Rank 1 writes the number 2 into its window, as the third rank would that the library sees.
WRONG = (
    START
    + r"""
static const mdcg_communicator *theirs;
static int gather(void *context, const void *mine, void *all, int bytes)
{
  const int status = theirs->gather(context, mine, all, bytes);
  memcpy((char *)all + 2 * bytes, (char *)all + bytes, bytes);
  return status;
}
mdcg_status mdcg_check_peers(mdcg_model *m, const mdcg_communicator *c)
{
  mdcg_status (*f)(mdcg_model *, const mdcg_communicator *) = real("mdcg_check_peers");
  mdcg_communicator mine = *c;
  theirs = c;
  mine.gather = gather;
  mine.num_ranks = 3;
  if (c->rank == 1) mine.rank = 2;
  return f(m, &mine);
}
"""
)


def test_memory_that_does_not_hold_what_was_written(tmp_path: Path, models: Models) -> None:
    """Devices whose memory opens, but in which others find other numbers, use the host."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = on("auto", head(models("mace")) + "run 0\n")
    got = run_input(tmp_path, text, ranks=2, env=between(tmp_path, WRONG))
    assert way_of_rows(got) == (
        "through the host, because rank 0: it reads 2 from the device of rank 1, which has written "
        "its rank there"
    )


@pytest.mark.parametrize(("ranks", "settings"), [(1, "device cuda"), (2, "device cpu")])
def test_no_choice(tmp_path: Path, models: Models, ranks: int, settings: str) -> None:
    """The log does not mention rows that no device exchanges."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = head(models("mace"), settings=settings) + "run 0\n"
    assert "rows of ghosts" not in run_input(tmp_path, text, ranks=ranks, env=emulated()).text


@pytest.mark.parametrize("version", ["50221153", "60240000"])
def test_devices_of_amd(tmp_path: Path, models: Models, version: str) -> None:
    """HIP 5 and 6 open memory with different flags; cards of one uuid are told apart."""
    write_data(tmp_path / "test.data", water(2, seed=3))
    changes = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_HIP_UUIDS": "0"}
    env = emulated(**changes, EMULATED_HIP_VERSION=version)
    energies = []
    for device in ("cpu", "hip", "hip:1"):
        text = head(models("mace"), settings=f"device {device}") + "run 0\n"
        output = run_input(tmp_path, text, ranks=2, env=env)
        energies.append(output.last["E_pair"])
        assert ("rows of ghosts go from device to device" in output.text) == (device != "cpu")
        assert ("up to 2 ranks share a device" in output.text) == (device == "hip:1")
        assert "NVIDIA's MPS" not in output.text
    assert np.allclose(energies, energies[0], rtol=1e-12)


@pytest.mark.parametrize(("settings", "reason"), [
    ("exchange mpi device cuda", "exchange is mpi, expected auto, host, or peer (from device to "),
    ("exchange peer", "exchange is peer, and device is auto, expected device cuda or hip"),
    ("exchange peer device cpu", "exchange is peer, and device is cpu, expected device cuda"),
    ("exchange", "keyword exchange needs a value"),
])  # fmt: skip
def test_settings(tmp_path: Path, models: Models, settings: str, reason: str) -> None:
    write_data(tmp_path / "test.data", water(2, seed=3))
    text = head(models("mace")).replace("pair_style mdcg", f"pair_style mdcg {settings}")
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert reason in output.text
