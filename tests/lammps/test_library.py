"""Functions that the plugin needs of libmdcg.so and LAMMPS, and errors if they are missing."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mdcg
from mdcg.lammps_plugin import build, find_lammps
from mdcg.runtime.compiler import find_compiler

from .lmp import environment, head, package, run_input, water, write_data

LIBRARY = Path(mdcg.__file__).parent / "libmdcg.so"
INCLUDE = Path(mdcg.__file__).parent / "include"
if not INCLUDE.is_dir():
    INCLUDE = Path(mdcg.__file__).parents[1] / "csrc" / "include"
ABI = re.findall(r"define MDCG_ABI_VERSION (\d+)", (INCLUDE / "mdcg.h").read_text())[0]
NAMES = (
    "version",
    "last_error",
    "last_error_about",
    "printable",
    "find_device",
    "open",
    "open_same",
    "set_notice",
    "prepare",
    "check_peers",
    "close",
    "describe",
    "descriptor_width",
    "evaluate",
    "summary",
)


def compile_c(target: Path, text: str, *options: str) -> Path:
    source = target.with_suffix(".c")
    source.write_text(text)
    command = [*find_compiler(), "-x", "c", str(source), *options, "-o", str(target), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def refused(folder: Path, text: str, ranks: int = 1) -> str:
    """Run with a library compiled from C; the reason is one sentence, said once."""
    made = compile_c(folder / "other.so", text, "-shared", "-fPIC")
    write_data(folder / "test.data", water(1))
    env = environment() | {"MDCG_LIBRARY": str(made)}
    output = run_input(
        folder, head(package("mace", "float64")) + "run 0\n", env=env, check=False, ranks=ranks
    )
    assert output.code != 0
    reasons = re.findall(r"pair_style mdcg: (.*)", output.text)
    assert len(reasons) == 1, output.text
    assert str(made) in reasons[0]
    return str(reasons[0])


def test_other_library(tmp_path: Path) -> None:
    reason = refused(tmp_path, "int anything(void) { return 1; }\n")
    assert "is not mdcg's library" in reason
    assert "MDCG_LIBRARY" in reason


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_interface_version(tmp_path: Path, ranks: int) -> None:
    reason = refused(tmp_path, "int mdcg_abi_version(void) { return 7; }\n", ranks)
    assert f"interface version 7, this plugin was compiled for {ABI}: compile it again" in reason


@pytest.mark.parametrize("missing", NAMES)
def test_missing_function(tmp_path: Path, missing: str) -> None:
    text = f"int mdcg_abi_version(void) {{ return {ABI}; }}\n"
    text += "".join(f"int mdcg_{name}(void) {{ return 8; }}\n" for name in NAMES if name != missing)
    reason = refused(tmp_path, text)
    assert f"has no function mdcg_{missing}: it is another version" in reason


def test_lammps_without_its_c_interface(tmp_path: Path) -> None:
    """The plugin is refused with a reason by a LAMMPS that does not export its C interface."""
    plugin = build(find_lammps())
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(plugin)], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r" U (\w+)$", listed, re.MULTILINE)
    stubs = [name for name in names if "LAMMPS_NS" in name or name.startswith("MPI_")]
    assert any(name.startswith("_ZTI") for name in stubs)
    program = "".join(f"char {name}[4096];\n" for name in stubs)
    program += """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
  void *plugin = dlopen(argv[1], RTLD_LAZY);
  if (!plugin) return fprintf(stderr, "%s\\n", dlerror()), 1;
  void (*init)(void *, void *, void *) = dlsym(plugin, "lammpsplugin_init");
  char memory[4096] = {0};
  init(memory, plugin, NULL);
  return 0;
}
"""
    host = compile_c(tmp_path / "host", program, "-rdynamic")
    done = subprocess.run([str(host), str(plugin)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "WARNING: pair_style mdcg is refused: this LAMMPS does not export its C interface: use one "
        "built as a shared library\n"
    )


class Info(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("r_max", ctypes.c_double),
        ("num_types", ctypes.c_int),
        ("type_names", ctypes.c_void_p),
        ("atomic_numbers", ctypes.c_void_p),
        ("double_precision", ctypes.c_int),
        ("num_exchanges", ctypes.c_int),
        ("manifest", ctypes.c_char_p),
        ("exchange_bytes", ctypes.c_int),
        ("digest", ctypes.c_char_p),
        ("has_energy", ctypes.c_int),
        ("has_charges", ctypes.c_int),
        ("num_inputs", ctypes.c_int),
        ("input_names", ctypes.c_void_p),
        ("input_defaults", ctypes.c_void_p),
        ("is_long_range", ctypes.c_int),
    ]


# Components exchanged before each layer but the first; MACE has 16 channels, NequIP 8.
EXCHANGED = {"mace": [1 + 3], "nequip": [1 + 3 + 5, 1 + 3 + 3 + 5 + 5]}


def widths(name: str, item: int) -> list[int]:
    """Channels are rounded up to 64 bytes, 16 floats or 8 doubles."""
    channels = {"mace": 16, "nequip": 16 if item == 4 else 8}[name]
    return [components * channels for components in EXCHANGED[name]]


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("name", ["mace", "nequip"])
def test_rows_that_are_announced(name: str, dtype: str, item: int) -> None:
    library = ctypes.CDLL(str(LIBRARY))
    model, info = ctypes.c_void_p(), Info(size=ctypes.sizeof(Info))
    path = os.fsencode(package(name, dtype))
    assert library.mdcg_open(path, None, ctypes.byref(model)) == 0
    assert library.mdcg_describe(model, ctypes.byref(info)) == 0
    assert info.double_precision == (item == 8)
    assert info.num_exchanges == len(widths(name, item))
    assert info.exchange_bytes == max(widths(name, item)) * item
    library.mdcg_close(model)


@pytest.mark.parametrize("name", ["mace", "mace_les"])
def test_long_range_sums_are_announced(name: str) -> None:
    library = ctypes.CDLL(str(LIBRARY))
    model, info = ctypes.c_void_p(), Info(size=ctypes.sizeof(Info))
    assert library.mdcg_open(os.fsencode(package(name, "float64")), None, ctypes.byref(model)) == 0
    assert library.mdcg_describe(model, ctypes.byref(info)) == 0
    assert (info.is_long_range, info.has_charges) == ((1, 1) if name == "mace_les" else (0, 0))
    library.mdcg_close(model)


# Logs each exchanged row and each package opened from a file. All other
# functions are those of libmdcg.so, which it is linked to.
SPY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "mdcg.h"
static void *real(const char *name) {
  static void *library;
  if (!library) library = dlopen(getenv("SPY_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}
static const mdcg_communicator *theirs;
static void note(const char *what, int width, int item) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/spy.%d", getenv("SPY_FOLDER"), (int)getpid());
  FILE *file = fopen(path, "a");
  fprintf(file, "%s %d %d\n", what, width, item);
  fclose(file);
}
static int forward(void *context, void *rows, int width, int item) {
  note("forward", width, item);
  return theirs->forward(context, rows, width, item);
}
static int reverse(void *context, void *rows, int width, int item) {
  note("reverse", width, item);
  return theirs->reverse(context, rows, width, item);
}
const char *mdcg_version(void) { return getenv("SPY_VERSION"); }
mdcg_status mdcg_open(const char *path, const mdcg_options *options, mdcg_model **model) {
  mdcg_status (*f)(const char *, const mdcg_options *, mdcg_model **) = real("mdcg_open");
  note("open", 0, 0);
  return f(path, options, model);
}
mdcg_status mdcg_evaluate(mdcg_model *m, const mdcg_system *s, const mdcg_communicator *c,
                          const mdcg_results *r) {
  mdcg_status (*f)(mdcg_model *, const mdcg_system *, const mdcg_communicator *,
                   const mdcg_results *) = real("mdcg_evaluate");
  note("evaluate", (int)s->num_local, (int)s->num_nodes);
  if (!c) return f(m, s, c, r);
  mdcg_communicator mine = *c;
  theirs = c;
  mine.forward = forward;
  mine.reverse = reverse;
  return f(m, s, &mine, r);
}
"""


def spying(folder: Path) -> dict[str, str]:
    """Return an environment in which LAMMPS opens the library through the spy."""
    options = ["-shared", "-fPIC", f"-I{INCLUDE}", f"-Wl,--no-as-needed,{LIBRARY}"]
    spy = compile_c(folder / "spy.so", SPY, *options)
    paths = {"MDCG_LIBRARY": str(spy), "SPY_LIBRARY": str(LIBRARY), "SPY_FOLDER": str(folder)}
    return environment() | paths | {"SPY_VERSION": "1.0"}


def test_ranks_with_different_libraries(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(1))
    text = head(package("mace", "float64")) + "run 0\n"
    first = "export SPY_VERSION=1.$PMI_RANK"
    output = run_input(tmp_path, text, env=spying(tmp_path), ranks=2, first=first, check=False)
    assert output.code != 0
    reason = "libmdcg.so is not the same on all ranks (version 1.0 on rank 0, 1.1 on rank 1): "
    assert output.text.count(reason) == 1, output.text


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("name", ["mace", "nequip"])
def test_rows_that_travel(tmp_path: Path, name: str, dtype: str, item: int, ranks: int) -> None:
    """Ranks exchange features before each layer but the first, and their gradients, per width.

    A rank receives one row per atom, for any number of its periodic images.
    """
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(package(name, dtype)) + "fix nve all nve\nrun 2\n"
    run_input(tmp_path, text, env=spying(tmp_path), ranks=ranks)
    seen = [path.read_text().splitlines() for path in tmp_path.glob("spy.[0-9]*")]
    assert len(seen) == ranks
    local = 0
    for lines in seen:
        found = [line for line in lines if line.startswith("evaluate")]
        assert found == [found[0]] * 3
        local += int(found[0].split()[1])
        assert int(found[0].split()[2]) == len(atoms)
        want = Counter([*found, "open 0 0"])
        if ranks > 1:
            for width in widths(name, item):
                want |= Counter({f"{way} {width} {item}": 3 for way in ("forward", "reverse")})
        assert Counter(lines) == want
    assert local == len(atoms)


def test_a_package_is_read_once(tmp_path: Path) -> None:
    """Each rank opens a package once for both its network and its dispersion."""
    write_data(tmp_path / "test.data", water(1))
    text = head(package("nequip", "float64"), settings="dispersion pbe") + "run 0\n"
    run_input(tmp_path, text, env=spying(tmp_path), ranks=2)
    seen = [path.read_text().splitlines() for path in tmp_path.glob("spy.[0-9]*")]
    assert [lines.count("open 0 0") for lines in seen] == [1, 1]
    assert [sum(line.startswith("evaluate") for line in lines) for lines in seen] == [2, 2]


AFTER_ERRORS = """
import sys
from lammps import lammps
run = lammps(cmdargs=["-screen", "none", "-log", "none"])
run.commands_string(sys.argv[1])
run.command("run 0")
before = run.get_thermo("pe")
for line in (sys.argv[2] + " H Xx", "run 0", "pair_style mdcg device gpu", "run 0"):
    try:
        run.command(line)
        print("accepted")
    except Exception as error:
        print(str(error).splitlines()[0])
run.commands_string("pair_style mdcg\\n" + sys.argv[2] + " H O\\nrun 0")
print(run.get_thermo("pe") == before)
"""


def test_errors_in_a_program_that_goes_on(tmp_path: Path) -> None:
    """After an error that is an exception, a refused command has changed nothing."""
    write_data(tmp_path / "test.data", water(1))
    model = package("mace", "float64")
    done = subprocess.run(
        [sys.executable, "-c", AFTER_ERRORS, head(model, types="H O"), f"pair_coeff * * {model}"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert "atom type 2 is Xx, which" in said[0]
    assert "coeffs are not set" in said[1]
    assert "device is gpu" in said[2]
    assert "coeffs are not set" in said[3]
    assert said[4] == "True"
