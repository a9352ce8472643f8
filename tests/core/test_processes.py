"""Several processes and one cache; kernels without a compiler; other compilers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mdcg import _core
from mdcg.codegen import emit_host
from mdcg.plan import HostDevice, plan_host

from ..processes import child_environment, run_python
from .helpers import mixed_problem, usual_specs

pytestmark = pytest.mark.compiler(whole=True)

PACKAGE = Path(__file__).parents[1] / "data" / "mace_water_float64.mdcg"

# Prints digests of the results of all passes.
RUN = """
import hashlib, json, sys
import torch
from helpers import derivatives, mixed_problem, random_graph, random_operands
from mdcg.ops import conv
from mdcg.runtime.compiler import statistics
problem, graph = mixed_problem(), random_graph(20, 20, 150)
x, y, w = random_operands(problem, 20, 150, grad=True)
found = derivatives(conv(problem, x, y, w, graph.sender, graph.receiver), [x, y, w], order=2)
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in found.values()))
print(json.dumps([digest.hexdigest(), statistics().compiled, statistics().loaded]))
"""


def logging_compiler(tmp_path: Path) -> Path:
    """Write a compiler that notes every call."""
    path = tmp_path / "our-c++"
    path.write_text(f'#!/bin/sh\necho call >>"{tmp_path}/calls"\nexec c++ "$@"\n')
    path.chmod(0o755)
    return path


def test_processes_at_once_compile_each_kernel_once(tmp_path: Path) -> None:
    environment = child_environment(
        MDCG_CACHE_DIR=str(tmp_path / "cache"), MDCG_CXX=str(logging_compiler(tmp_path))
    )
    command = [sys.executable, "-c", RUN]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    results = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        results.append(json.loads(stdout))
    assert len({digest for digest, _, _ in results}) == 1
    assert [loaded for _, _, loaded in results] == [3, 3, 3]
    # forward, backward and double backward
    assert sum(compiled for _, compiled, _ in results) == 3
    assert (tmp_path / "calls").read_text().count("call") == 3

    # A process without a compiler gets the same results from the cache.
    alone = {"MDCG_CACHE_DIR": str(tmp_path / "cache"), "MDCG_DISABLE_JIT": "1", "MDCG_CXX": None}
    found = json.loads(run_python(RUN, **alone, PATH=str(tmp_path), CXX=None))
    assert found == [results[0][0], 0, 3]


def test_forked_child(tmp_path: Path) -> None:
    """A forked child can run kernels in one thread after its parent used several."""
    code = (
        "import multiprocessing, torch\n"
        "from helpers import random_graph, random_operands, small_problem\n"
        "from mdcg.ops import conv\n"
        "problem, graph = small_problem(), random_graph(150, 150, 2500)\n"
        "operands = random_operands(problem, 150, 2500)\n"
        "def run(threads):\n"
        "    torch.set_num_threads(threads)\n"
        "    return conv(problem, *operands, graph.sender, graph.receiver)\n"
        "want = run(3)\n"
        "def child(): exit(0 if torch.equal(run(1), want) else 7)\n"
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start(); process.join(60); print(process.exitcode); process.kill()\n"
    )
    assert run_python(code) == "0\n"


CHECK = (
    "from helpers import check_conv, mixed_problem, random_graph\n"
    "for dtype in ('float32', 'float64'):\n"
    "    check_conv(mixed_problem(dtype=dtype), random_graph(20, 25, 150))\n"
    "print('agrees')\n"
)


@pytest.mark.parametrize("name", ["clang++"])
def test_other_compilers(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    assert run_python(CHECK, MDCG_CACHE_DIR=str(tmp_path), MDCG_CXX=name) == "agrees\n"


def test_compiler_warnings() -> None:
    """Generated C++ causes no warnings under -Wall, except for unused variables."""
    compiler = shutil.which("c++") or pytest.skip("no compiler named c++")
    problem = mixed_problem()
    for spec in usual_specs():
        source = emit_host(problem, plan_host(problem, HostDevice("x86-64-v3")), spec).source
        done = subprocess.run(
            [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wno-psabi", "-x", "c++", "-"],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        warnings = [line for line in done.stderr.splitlines() if "warning:" in line]
        assert done.returncode == 0
        assert [w for w in warnings if "unused-variable" not in w] == [], spec


# Makes a kernel file with dummy contents.
MAKE = """
from mdcg._core import KernelCache
cache = KernelCache("host", "kernel.so")
made = cache.make("0" * 32, lambda folder: (folder / "kernel.so").write_text("code"))
found = cache.find("0" * 32)
print((found.path, found.binary) == (made.path, b"code"))
"""


def test_file_systems_without_locks(tmp_path: Path) -> None:
    source, library = tmp_path / "flock.c", tmp_path / "flock.so"
    source.write_text(
        "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    variables = {"MDCG_CACHE_DIR": str(tmp_path / "cache"), "LD_PRELOAD": str(library)}
    assert run_python(MAKE, **variables) == "True\n"


# Begins to make a kernel and stops itself, like Ctrl-Z.
STOPPED = """
import os, signal, sys
from mdcg._core import KernelCache
target, binary, key = sys.argv[1:]
KernelCache(target, binary).make(key, lambda folder: os.kill(os.getpid(), signal.SIGSTOP))
"""


def test_others_go_on_without_a_stopped_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped process is named, and after a timeout kernels are made without it."""
    target = _core.host_target("native")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MDCG_COMPILE_TIMEOUT", "1")
    monkeypatch.setenv("MDCG_PYTHON", "false")
    of_package = _core.kernel_key(_core.kernel_problem(str(PACKAGE)))

    def make_in_python() -> None:
        cache = _core.KernelCache(target, "kernel.so")
        cache.make("0" * 32, lambda folder: (folder / "kernel.so").write_text("code"))

    def make_in_the_engine() -> None:
        """Let the engine start Python, which is replaced by a program that fails."""
        model = _core.Model(str(PACKAGE), threads=1)
        model.prepare()
        assert "generic, because /" in model.summary()
        assert "false -m mdcg kernels ended with status 1" in model.summary()

    for make, binary, key in (
        (make_in_python, "kernel.so", "0" * 32),
        (make_in_the_engine, "package.mdcg-kernels", of_package),
    ):
        command = [sys.executable, "-W", "ignore", "-c", STOPPED, target, binary, key]
        with subprocess.Popen(command) as stopped:
            os.waitpid(stopped.pid, os.WUNTRACED)
            make()
            stopped.kill()
        waits, goes_on = caplog.messages
        caplog.clear()
        assert waits.startswith(f"mdcg waits for process {stopped.pid} on ")
        assert waits.endswith(
            ", which is making the same kernels but is stopped; after 1 s (MDCG_COMPILE_TIMEOUT) "
            "mdcg makes them in this process"
        )
        assert goes_on.startswith(f"process {stopped.pid} on ")
        assert goes_on.endswith(
            "has not made the kernels in 1 s, so mdcg makes them in this process"
        )
