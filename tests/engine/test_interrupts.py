"""Ctrl-C while kernels are compiled, while another process compiles them, and in an evaluation."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import read

from mdcg import KernelCompileError, _core
from mdcg._version import __version__
from mdcg.runtime.compiler import build_host_kernels, load_host_kernel

from .capi import Rank

pytestmark = pytest.mark.compiler(whole=True)

DATA = Path(__file__).parents[2] / "examples" / "data"
PACKAGE, WATER = DATA / "water.mdcg", DATA / "water192.xyz"
# An interrupt should take one second; busy machines take longer. Each job takes longer than this.
SECONDS = 10.0

# Prints the interrupting exception and its time, then results of the same calculator.
CALCULATOR = """
import hashlib, json, signal, sys, time
from ase.calculators.calculator import CalculationFailed
from ase.io import read
from mdcg import MDCGCalculator
class Ended(Exception): pass
def end(*_):
    for use in (calculator.report, lambda: calculator.get_forces(atoms)):
        try:
            use()
        except (ValueError, CalculationFailed) as error:
            assert "a signal handler that has interrupted" in str(error)
        else:
            print("the handler was not refused", flush=True)
    raise Ended
signal.signal(signal.SIGUSR1, end)
package, structure, cells = sys.argv[1:]
atoms = read(structure)
calculator = MDCGCalculator(package, threads=1)
many = atoms.repeat(json.loads(cells))
if len(many) > len(atoms):
    many.set_cell(0.65 * many.cell.array, scale_atoms=True)  # more neighbours
    calculator.get_forces(atoms)
    calculator.reset()
print("begin", flush=True)
try:
    calculator.get_forces(many)
    print("finished", flush=True)
except (KeyboardInterrupt, Ended) as error:
    print(type(error).__name__, time.monotonic(), flush=True)
input()
calculator.reset()
forces, energy = calculator.get_forces(atoms), calculator.get_potential_energy(atoms)
print(json.dumps([hashlib.sha256(forces.tobytes()).hexdigest(), energy, str(calculator.report())]))
"""
# The same output for a patched layer, whose kernels Python compiles.
LAYER = """
import hashlib, json, sys, time
import torch
from helpers import random_graph, random_operands, small_problem
from mdcg.ops import conv
from mdcg.runtime.compiler import statistics
problem, graph = small_problem(), random_graph(20, 20, 150)
operands = random_operands(problem, 20, 150)
print("begin", flush=True)
try:
    conv(problem, *operands, graph.sender, graph.receiver)
    print("finished", flush=True)
except KeyboardInterrupt as error:
    print(type(error).__name__, time.monotonic(), flush=True)
input()
found = conv(problem, *operands, graph.sender, graph.receiver).numpy()
digest = hashlib.sha256(found.tobytes()).hexdigest()
print(json.dumps([digest, 0.0, f"{statistics().loaded} loaded"]))
"""
# The same output for kernels of devices.
NVRTC = """
import json, time
from mdcg.runtime.cuda_build import load_cuda_kernels
texts = ["// %d" % k for k in range(3)]
print("begin", flush=True)
try:
    load_cuda_kernels(texts, "sm_90")
    print("finished", flush=True)
except KeyboardInterrupt as error:
    print(type(error).__name__, time.monotonic(), flush=True)
input()
print(json.dumps([str(load_cuda_kernels(texts, "sm_90")), 0.0, "machine code"]))
"""


class HangingCompiler:
    """A compiler that hangs with a child process while a file exists, and ignores signals."""

    def __init__(self, folder: Path) -> None:
        self.hangs, self.notes, self.path = folder / "hangs", folder / "notes", folder / "compiler"
        self.hangs.touch()
        self.path.write_text(
            f"#!/bin/sh\nif [ -e '{self.hangs}' ]; then trap '' INT TERM; echo run >> "
            f"'{self.notes}'; sleep 300; exit 1; fi\nexec c++ \"$@\"\n"
        )
        self.path.chmod(0o755)

    def wait(self) -> None:
        """Wait until it has been started."""
        end = time.monotonic() + 60
        while not self.notes.exists() or not self.notes.read_text().endswith("\n"):
            assert time.monotonic() < end, "no compiler was started"
            time.sleep(0.02)

    def living(self) -> list[int]:
        """Return the processes of all its runs, with children, that have not ended."""
        mark, found = f"MDCG_CXX={self.path}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() not in ("compiler", "sleep"):
                    continue
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def check_ended(self, cache: Path) -> None:
        """Check that no process and no temporary file is left; busy machines need some time."""
        end = time.monotonic() + 5
        while self.living() or list(cache.glob("*/tmp/*")):
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[HangingCompiler]:
    found = HangingCompiler(tmp_path)
    yield found
    for process in found.living():
        os.kill(process, signal.SIGKILL)


def environment(cache: Path, **more: str) -> dict[str, str]:
    helpers = os.pathsep.join([str(Path(__file__).parents[1] / "core"), *sys.path])
    names = {"MDCG_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": helpers}
    return {**os.environ, **names, **more}


class Child:
    """A process in a new session, which prints when it begins."""

    def __init__(self, code: str, *arguments: object, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a run in the background of a shell ignores it, which children would inherit
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.expect("begin")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def expect(self, word: str) -> str:
        line = self.line()
        assert line.startswith(word), f"the child said {line!r}, expected {word}"
        return line.removeprefix(word)

    def interrupt(self, number: signal.Signals, send: Callable[[int, int], None]) -> None:
        """Send a signal, and check that the work ends."""
        start = time.monotonic()
        send(self.process.pid, number)
        name = "Ended" if number == signal.SIGUSR1 else "KeyboardInterrupt"
        seconds = float(self.expect(name)) - start
        assert seconds < SECONDS, f"interrupted after {seconds:.1f} s"

    def results(self) -> list[Any]:
        """Return its results after the interrupt."""
        stdout, _ = self.process.communicate("\n", timeout=120)
        assert self.process.returncode == 0
        found: list[Any] = json.loads(stdout)
        return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A full cache, and results of processes that were not interrupted."""
    cache = tmp_path_factory.mktemp("reference")
    found: dict[str, Any] = {"cache": cache}
    for code, arguments in ((CALCULATOR, (PACKAGE, WATER, [1, 1, 1])), (LAYER, ())):
        child = Child(code, *arguments, **environment(cache))
        child.expect("finished")
        found[code] = child.results()
    return found


def without_one(full: Path, cache: Path, target: str) -> Path:
    """Return a copy of a cache without one kernel and the files that are made from it."""
    shutil.copytree(full, cache)
    kernels = [path.parent for path in (cache / __version__).glob(f"{target}*/*/kernel.so")]
    for folder in (min(kernels), *(cache / __version__).glob("*/*/package.mdcg-kernels")):
        shutil.rmtree(folder if folder.is_dir() else folder.parent)
    return cache


BOTH = [os.kill, os.killpg]


@pytest.mark.parametrize("send", BOTH)
@pytest.mark.parametrize("code", [CALCULATOR, LAYER], ids=["calculator", "layer"])
def test_compilation(
    compiler: HangingCompiler,
    reference: dict[str, Any],
    tmp_path: Path,
    code: str,
    send: Callable[[int, int], None],
) -> None:
    arguments = (PACKAGE, WATER, [1, 1, 1]) if code == CALCULATOR else ()
    target = "native" if code == CALCULATOR else _core.instruction_set_level()
    cache = without_one(reference["cache"], tmp_path / "cache", target)
    variables = environment(cache, MDCG_CXX=str(compiler.path))
    compiling = Child(code, *arguments, **variables)
    compiler.wait()
    waiting = Child(code, *arguments, **variables)
    time.sleep(0.5)
    for child in (waiting, compiling):
        assert compiler.notes.read_text() == "run\n", "both processes have compiled"
        child.interrupt(signal.SIGINT, send)
    compiler.check_ended(cache)
    compiler.hangs.unlink()
    for child in (waiting, compiling):
        digest, energy, kernels = child.results()
        assert [digest, energy] == reference[code][:2]
        assert "generic" not in kernels
        assert ("native" if code == CALCULATOR else "1 loaded") in kernels


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, os.kill), (signal.SIGINT, os.killpg), (signal.SIGUSR1, os.kill)],
    ids=["process", "group", "another exception"],
)
def test_evaluation(
    reference: dict[str, Any], number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    child = Child(CALCULATOR, PACKAGE, WATER, [5, 4, 8], **environment(reference["cache"]))
    time.sleep(1.5)
    child.interrupt(number, send)
    digest, energy, kernels = child.results()
    assert [digest, energy] == reference[CALCULATOR][:2]
    assert "generic" not in kernels


def test_hosts_in_c() -> None:
    """A model that was interrupted at several places gives the same bits afterwards."""
    atoms = read(WATER).repeat((4, 4, 3))  # takes several polling intervals
    edges = _core.NeighborList(6.0, 0.0)
    edges.update(atoms.positions, None, (False,) * 3)
    numbers = {8: 1, 1: 0}
    system = {
        "positions": atoms.positions,
        "types": np.array([numbers[z] for z in atoms.numbers]),
        "sender": edges.sender,
        "receiver": edges.receiver,
    }
    rank = Rank(str(PACKAGE), np.arange(len(atoms)), np.zeros(0, np.int64))
    calls: list[int] = []
    poll = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
        lambda _: calls.append(1) or len(calls) == last
    )

    def evaluate() -> list[bytes]:
        return [v.tobytes() for v in rank.evaluate(system, None, ("energy", "forces")).values()]

    want = evaluate()
    for last in (1, 2, 4):
        calls.clear()
        rank.lib.mdcg_set_interrupt(poll, None)
        with pytest.raises(RuntimeError, match="the host has interrupted the call: the model can"):
            evaluate()
        rank.lib.mdcg_set_interrupt(None, None)
        assert len(calls) == last
        assert evaluate() == want
    calls.clear()
    rank.lib.mdcg_set_interrupt(poll, None)
    python = {name: system[name] for name in ("positions", "types")}
    assert np.isfinite(_core.Model(str(PACKAGE)).evaluate(**python)["energy"])
    rank.lib.mdcg_set_interrupt(None, None)
    assert not calls, "the function of a program in C interrupts Python"
    rank.close()


def test_signals_of_python_do_not_end_a_call_in_c() -> None:
    """A signal handler of Python runs after a call of the C interface has finished."""
    atoms = read(WATER).repeat((3, 2, 2))
    edges = _core.NeighborList(6.0, 0.0)
    edges.update(atoms.positions, None, (False,) * 3)
    rank = Rank(str(PACKAGE), np.arange(len(atoms)), np.zeros(0, np.int64))
    types = np.array([int(z == 8) for z in atoms.numbers])
    sides = {"sender": edges.sender, "receiver": edges.receiver}
    system = {"positions": atoms.positions, "types": types, **sides}
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()) or 1 / 0)

    def evaluate_until_it_rings() -> None:
        while True:
            rank.evaluate(system, None, ("energy", "forces"))

    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(ZeroDivisionError):
            evaluate_until_it_rings()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(rang) == 1
    rank.close()


def build(text: str) -> tuple[str, str]:
    """Compile several kernels at once, like for packages; return one and the error."""
    try:
        return str(build_host_kernels([text, text + "//"], target="generic", flags=())), ""
    except KernelCompileError as error:
        return "", str(error)


def load(text: str) -> tuple[str, str]:
    """Compile a kernel like for patched layers."""
    try:
        return str(load_host_kernel(text, target="generic", flags=())), ""
    except KernelCompileError as error:
        return "", str(error)


@pytest.mark.parametrize("way", [build, load])
def test_time_limit(
    compiler: HangingCompiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[str], tuple[str, str]],
) -> None:
    text = f'// {tmp_path}\nextern "C" int answer() {{ return 42; }}\n'
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MDCG_CXX", str(compiler.path))
    for wrong in ("soon", "0", "1.5"):
        monkeypatch.setenv("MDCG_COMPILE_TIMEOUT", wrong)
        assert f"MDCG_COMPILE_TIMEOUT is '{wrong}', expected a whole number" in way(text)[1]
    monkeypatch.setenv("MDCG_COMPILE_TIMEOUT", "1")
    path, error = way(text)
    assert not path
    assert "/compiler did not end within 1 s and was stopped: set MDCG_CXX" in error
    compiler.check_ended(tmp_path / "cache")
    compiler.hangs.unlink()
    monkeypatch.delenv("MDCG_COMPILE_TIMEOUT")
    path, error = way(text)
    assert path, error


# What Python asks of NVRTC. A program takes five seconds.
SLOW_NVRTC = """
#include <unistd.h>
#include <cstring>
extern "C" {
int nvrtcVersion(int* a, int* b) { *a = 12, *b = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* n) { *n = 1; return 0; }
int nvrtcGetSupportedArchs(int* known) { *known = 90; return 0; }
const char* nvrtcGetErrorString(int) { return "an error"; }
int nvrtcCreateProgram(void** p, const char*, const char*, int, const char**, const char**) {
    *p = nullptr; return 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int, const char**) { for (int i = 0; i < 50; ++i) usleep(100000);
    return 0; }
int nvrtcGetProgramLogSize(void*, size_t* n) { *n = 1; return 0; }
int nvrtcGetProgramLog(void*, char* text) { *text = 0; return 0; }
int nvrtcGetCUBINSize(void*, size_t* n) { *n = 4; return 0; }
int nvrtcGetCUBIN(void*, char* code) { std::memcpy(code, "code", 4); return 0; }
}
"""


def test_compilation_for_devices(tmp_path: Path) -> None:
    """After an interrupt, NVRTC finishes in the background, and its programs are kept."""
    source, library = tmp_path / "nvrtc.cpp", tmp_path / "libnvrtc.so"
    source.write_text(SLOW_NVRTC)
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True)
    variables = environment(tmp_path / "cache", MDCG_NVRTC_LIB=str(library))
    child = Child(NVRTC, **variables)
    time.sleep(0.5)
    child.interrupt(signal.SIGINT, os.kill)
    found = child.results()[0]
    assert found.count("b'code'") == 3, found
