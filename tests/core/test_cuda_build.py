"""CUDA kernels on disk and on threads: made once, side by side, and never failing in silence."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.errors import KernelCompileError, UnsupportedProblemError
from mdcg.ops.cuda import CudaKernels, start_conv
from mdcg.plan import CudaDevice, plan_cuda
from mdcg.problem import ConvProblem
from mdcg.runtime import cuda_build
from mdcg.runtime.cuda_build import discard_cuda_kernel, load_cuda_kernels, start_cuda_kernel

from ..processes import printed_by

PATHS = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]


def load_cuda_kernel(source: str, target: str) -> bytes:
    return load_cuda_kernels([source], target)[0]


def problem(mul: int = 4) -> ConvProblem:
    rows = f"{mul}x0e+{mul}x1o"
    return ConvProblem.build(rows, "0e+1o", rows, PATHS)


def text(number: int) -> str:
    return f'// kernel {number}\nextern "C" __global__ void f(float* p) {{ p[0] = {number}; }}\n'


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give every test an empty cache and a process that has loaded nothing."""
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_build, "_builds", cuda_build._Builds())
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_build, "_builds", cuda_build._Builds())


class Compiler:
    """A stand-in for NVRTC that counts calls, waits and fails on request."""

    def __init__(self, seconds: float = 0.0, fails: bool = False) -> None:
        self.seconds, self.fails = seconds, fails
        self.lock = threading.Lock()
        self.calls = self.running = self.most = 0

    def __call__(self, source: str, target: str) -> tuple[bytes, str]:
        with self.lock:
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.seconds)
        with self.lock:
            self.running -= 1
        if self.fails:
            raise KernelCompileError("no luck")
        return f"{target} {source}".encode(), ""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(cuda_build, "compile_cuda", found)
    return found


def test_kernels_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = load_cuda_kernel(text(1), "sm_90")
    assert cubin.startswith(b"\x7fELF")
    forget(monkeypatch)
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    assert load_cuda_kernel(text(1), "sm_90") == cubin
    with pytest.raises(KernelCompileError, match="MDCG_DISABLE_JIT"):
        load_cuda_kernel(text(2), "sm_90")


def test_side_by_side_and_in_the_order_asked(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_build, "usable_cores", lambda: 4)
    forget(monkeypatch)
    compiler.seconds = 0.2
    sources = [text(i) for i in range(8)]
    found = load_cuda_kernels(sources, "sm_90")
    assert found == [f"sm_90 {source}".encode() for source in sources]
    assert 2 <= compiler.most <= 4  # at most one per core


def test_equal_texts_are_made_once(compiler: Compiler) -> None:
    compiler.seconds = 0.1
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load_cuda_kernel(text(0), "sm_90"), range(8)))
    assert len(set(found)) == 1
    assert compiler.calls == 1
    assert load_cuda_kernel(text(0), "sm_80") != found[0]
    assert compiler.calls == 2


def test_what_fails_on_a_thread_is_raised_by_who_asks(compiler: Compiler) -> None:
    compiler.fails = True
    started = start_cuda_kernel(text(0), "sm_90")
    with pytest.raises(KernelCompileError, match="no luck"):
        load_cuda_kernel(text(0), "sm_90")
    assert started.exception() is not None
    compiler.fails = False  # once the cause is gone, the failure is not remembered
    assert load_cuda_kernel(text(0), "sm_90")


def test_without_more_threads_the_caller_compiles(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert start_cuda_kernel("// alone", "sm_90").done()


def test_a_discarded_kernel_is_made_again(compiler: Compiler) -> None:
    load_cuda_kernel(text(0), "sm_90")
    discard_cuda_kernel(text(0), "sm_90")
    load_cuda_kernel(text(0), "sm_90")
    assert compiler.calls == 2


def test_a_damaged_file_is_made_again(
    compiler: Compiler, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = load_cuda_kernel(text(0), "sm_90")
    (file,) = fresh.glob("*/sm_90/*/kernel.cubin")
    file.write_bytes(cubin[:-1])
    forget(monkeypatch)
    assert load_cuda_kernel(text(0), "sm_90") == cubin
    assert compiler.calls == 2


def _in_child(connection: object) -> None:
    compiler = Compiler()
    cuda_build.compile_cuda = compiler  # type: ignore[assignment]
    connection.send(load_cuda_kernel(text(0), "sm_90"))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads(compiler: Compiler) -> None:
    compiler.seconds = 2.0
    started = start_cuda_kernel(text(1), "sm_90")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(theirs,))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == b"sm_90 " + text(0).encode()
    child.join()
    assert started.result()


def test_a_process_ends_without_compiling_what_nobody_waits_for(tmp_path: Path) -> None:
    script = """
import time
os.sched_getaffinity = lambda pid: {0}
from mdcg.runtime import cuda_build
def slow(source, target):
    time.sleep(0.5)
    print("compiled", flush=True)
    return b"", ""
cuda_build.compile_cuda = slow
cuda_build._reset()
for i in range(20):
    cuda_build.start_cuda_kernel(str(i), "sm_90")
"""
    said = printed_by("import os\nos.dup2(1, 2)\n" + script, MDCG_CACHE_DIR=str(tmp_path))
    assert said.count("mdcg is compiling kernels") == 1
    assert said.count("compiled\n") == said.count("\n") - 1 <= 2


# -- the kernels of a problem ---------------------------------------------------------------------


def test_started_passes_are_compiled_once(compiler: Compiler) -> None:
    plan = plan_cuda(problem(), CudaDevice(90))
    kernels = CudaKernels(problem(), 0, plan)
    forward, backward = KernelSpec("forward", True), KernelSpec("backward", True, ("x", "w"))
    kernels.start(forward, backward)
    kernels.start(forward)
    texts = {emit_cuda(problem(), plan, spec) for spec in (forward, backward)}
    sources = {source for kernel in texts for source in (*kernel.programs, kernel.copies)}
    load_cuda_kernels(sorted(sources), "sm_90")
    assert compiler.calls == len(sources) == sum(len(k.entries) for k in texts) + 1


def test_starting_what_the_emitter_refuses_is_left_to_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise UnsupportedProblemError("not this one")

    monkeypatch.setattr("mdcg.ops.cuda.emit_cuda", refuse)
    kernels = CudaKernels(problem(), 0, plan_cuda(problem(), CudaDevice(90)))
    kernels.start(KernelSpec("forward", True))
    with pytest.raises(UnsupportedProblemError, match="not this one"):
        kernels.load(KernelSpec("forward", True))


def test_layers_of_a_model_start_together(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdcg.ops.cuda.cuda_device", lambda index: CudaDevice(90))
    layers = [problem(5), problem(6), problem(7)]
    for layer in layers:
        start_conv(layer, torch.device("cpu"))
    assert not cuda_build._builds.futures
    for layer in layers:
        start_conv(layer, torch.device("cuda", 0))
    for future in list(cuda_build._builds.futures.values()):
        future.result()
    assert compiler.calls == 2 * len(layers)
