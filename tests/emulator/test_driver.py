"""The emulated driver: memory, launches, streams, capture, faults, and refusals."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from .emulator import run_emulated

START = """
import ctypes
import os
import numpy as np
from driver import CudaStatus, Driver, Kernels

def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except CudaStatus as error:
        return error.status
    return 0

driver = Driver()
"""


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code with a `driver`; it must succeed."""
    done = run_emulated("-c", START + textwrap.dedent(code), **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("memory", ["1000000", "0:1000000"])
def test_memory_runs_out_and_is_freed(memory: str) -> None:
    code = """
        first = driver.allocate(600_000)
        assert refused(driver.allocate, 600_000) == 2  # CUDA_ERROR_OUT_OF_MEMORY
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        assert (free.value, total.value) == (400_000, 1_000_000)
        driver.cuMemFree_v2(first)
        second = driver.allocate(600_000)
        assert second.value % 256 == 0
        assert np.isnan(driver.fetch(second, np.empty(75_000))).all()  # never zeros by chance
        assert refused(driver.cuMemFree_v2, ctypes.c_void_p(12345)) == 1
        host = np.zeros(4)
        address = host.ctypes.data_as(ctypes.c_void_p)
        assert refused(driver.write, address, host) == 1  # not on the device
        assert refused(driver.fetch, second, np.empty(600_001, np.int8)) == 1
        driver.cuMemsetD8Async(second, 7, ctypes.c_size_t(8), None)
        assert (driver.fetch(second, np.empty(8, np.int8)) == 7).all()
        driver.cuCtxPopCurrent_v2(None)
        assert refused(driver.allocate, 8) == 201  # CUDA_ERROR_INVALID_CONTEXT
    """
    run(code, EMULATED_CUDA_MEMORY=memory)


def test_memory_that_changes() -> None:
    """The limit may apply to all devices, or to another device than the current one."""
    code = """
        first = driver.allocate(600_000)
        os.environ["EMULATED_CUDA_MEMORY"] = "1:8"
        driver.allocate(600_000)
        os.environ["EMULATED_CUDA_MEMORY"] = "0:8"
        assert refused(driver.allocate, 8) == 2
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        assert (free.value, total.value) == (0, 8)
        driver.cuMemFree_v2(first)
    """
    run(code)


KERNELS = r'''
kernels = Kernels(driver, """
extern "C" __global__ void __launch_bounds__(1024) scale(double* x, double by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
extern "C" __global__ void __launch_bounds__(64) few(double* x) { x[0] = 1; }
extern "C" __global__ void dynamic(double* x) {
    extern __shared__ double s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
""")
host = np.arange(40.0)
x = driver.on_device(host)
size = ctypes.c_size_t(host.nbytes)
'''


def test_launches_out_of_range_are_refused() -> None:
    code = """
        by, n = ctypes.c_double(2), ctypes.c_int(40)
        kernels.launch("scale", 5, 8, x, by, n)
        assert (driver.fetch(x, host) == 2 * host).all()
        assert refused(kernels.launch, "scale", 1, 1025, x, by, n) == 1
        assert refused(kernels.launch, "scale", 0, 64, x, by, n) == 1
        assert refused(kernels.launch, "few", 1, 65, x) == 1  # more than its launch bounds
        kernels.launch("few", 1, 64, x)
        kernels.launch("dynamic", 1, 40, x, shared=50_000)
        assert refused(kernels.launch, "dynamic", 1, 40, x, shared=250_000) == 1
        assert refused(driver.made, "cuModuleGetFunction", kernels.module, b"absent") == 500
        # the same through the library's own binding
        from mdcg import _core
        from mdcg.runtime.nvrtc import compile_cuda
        cubin, _ = compile_cuda('extern "C" __global__ void k(long long n) {}', "sm_90")
        module = _core.CudaModule(0, cubin)
        module.launch(module.function("k", 0), 1, 1024, 0, 0, [1])
        try:
            module.launch(module.function("k", 0), 1, 1056, 0, 0, [1])
        except _core.CudaError as error:
            assert error.code == 1 and "CUDA_ERROR_INVALID_VALUE" in str(error)
        else:
            raise AssertionError("it was launched")
    """
    run(KERNELS + textwrap.dedent(code))


def test_what_capture_forbids() -> None:
    code = """
        by, n = ctypes.c_double(3), ctypes.c_int(40)
        graph = ctypes.c_void_p()
        stream, other = (driver.made("cuStreamCreate", 1) for _ in range(2))

        def captured(expected, function, *arguments, end=901):
            driver.cuStreamBeginCapture_v2(stream, 1)
            status = refused(function, *arguments)
            assert status == expected, (function, status)
            status = refused(driver.cuStreamEndCapture, stream, ctypes.byref(graph))
            assert status == end, (function, status)
            assert bool(graph.value) == (end == 0)

        captured(900, driver.allocate, 8)
        captured(900, driver.cuStreamSynchronize, stream)
        captured(0, kernels.launch, "scale", 1, 64, x, by, n, end=0)
        assert (driver.fetch(x, host) == 3 * host).all()  # another stream's work ran at once
        assert refused(driver.cuStreamBeginCapture_v2, None, 1) == 900
        assert refused(driver.cuStreamEndCapture, stream, ctypes.byref(graph)) == 1

        def fork():
            event = driver.made("cuEventCreate", 2)
            driver.cuEventRecord(event, stream)
            driver.cuStreamWaitEvent(other, event, 0)
            driver.cuMemsetD8Async(x, 0, size, other)

        captured(0, fork, end=904)  # never joined again
        assert (driver.fetch(x, host) == 3 * host).all()
        event = driver.made("cuEventCreate", 0)
        driver.cuEventRecord(event, other)
        captured(905, driver.cuStreamWaitEvent, stream, event, 0)
        captured(0, driver.cuEventRecord, event, stream, end=0)
        assert refused(driver.cuStreamWaitEvent, other, event, 0) == 907
    """
    run(KERNELS + textwrap.dedent(code))


def test_work_that_runs_late() -> None:
    """With EMULATED_CUDA_LATE=1 a result does not exist until the program waits for it."""
    code = """
        by, n = ctypes.c_double(2), ctypes.c_int(40)
        stream, other = (driver.made("cuStreamCreate", 1) for _ in range(2))
        done = driver.made("cuEventCreate", 0)
        pinned = driver.made("cuMemHostAlloc", size, 0)
        seen = np.ctypeslib.as_array((ctypes.c_double * 40).from_address(pinned.value))
        seen[:] = 0
        ordinary = host + 1
        from_host = ordinary.ctypes.data_as(ctypes.c_void_p)
        driver.cuMemcpyHtoDAsync_v2(x, from_host, size, stream)
        ordinary[:] = 0  # has been read
        kernels.launch("scale", 1, 64, x, by, n, stream=stream)
        driver.cuEventRecord(done, stream)
        driver.cuStreamWaitEvent(other, done, 0)
        driver.cuMemcpyDtoHAsync_v2(pinned, x, size, other)
        assert (seen == 0).all() and (driver.fetch(x, host) == host).all()  # another stream
        seconds = ctypes.c_float()
        assert refused(driver.cuEventElapsedTime, ctypes.byref(seconds), done, done) == 600
        driver.cuStreamSynchronize(other)
        assert (seen == 2 * (host + 1)).all()
        driver.cuEventElapsedTime(ctypes.byref(seconds), done, done)
        kernels.launch("scale", 1, 64, x, by, n, stream=stream)
        driver.cuMemFree_v2(driver.allocate(8))  # waits for all
        assert (driver.fetch(x, host) == 4 * (host + 1)).all()
        driver.cuMemFreeHost(pinned)
    """
    run(KERNELS + textwrap.dedent(code), EMULATED_CUDA_LATE="1")


@pytest.mark.parametrize("waits", [True, False])
def test_captured_work_that_runs_late(waits: bool) -> None:
    """With EMULATED_CUDA_LATE=1 captured work without a dependency runs too early."""
    code = f"""
        stream, other = (driver.made("cuStreamCreate", 1) for _ in range(2))
        begun, filled, ended = (driver.made("cuEventCreate", 0) for _ in range(3))
        y = driver.allocate(8 * 40)
        driver.cuMemcpyHtoDAsync_v2(y, host.ctypes.data_as(ctypes.c_void_p), size, stream)
        driver.cuStreamBeginCapture_v2(stream, 1)
        driver.cuEventRecord(begun, stream)
        driver.cuStreamWaitEvent(other, begun, 0)
        driver.cuMemsetD8Async(x, 0, size, stream)
        driver.cuEventRecord(filled, stream)
        if {waits}:
            driver.cuStreamWaitEvent(other, filled, 0)
        driver.cuMemcpyDtoDAsync_v2(x, y, size, other)
        driver.cuEventRecord(ended, other)
        driver.cuStreamWaitEvent(stream, ended, 0)
        made = ctypes.c_void_p()
        driver.cuStreamEndCapture(stream, ctypes.byref(made))
        graph = driver.made("cuGraphInstantiateWithFlags", made, ctypes.c_ulonglong(0))
        driver.cuGraphLaunch(graph, stream)
        driver.cuStreamSynchronize(stream)
        assert (driver.fetch(x, host) == (host if {waits} else 0)).all()
    """
    run(KERNELS + textwrap.dedent(code), EMULATED_CUDA_LATE="1")


def fault(text: str, status: int, *, block: int = 64, shared: int = 0) -> str:
    """Run a kernel that fails; return the message."""
    code = f"""
        kernels = Kernels(driver, '''extern "C" __global__ void wrong(float* x) {{ {text} }}''')
        x = driver.allocate(4 * 64)
        kernels.launch("wrong", 2, {block}, x, shared={shared})
        assert refused(driver.cuStreamSynchronize, None) == {status}
        assert refused(driver.allocate, 8) == {status}  # nothing works any more
    """
    return run(code).stderr


def test_faults_of_kernels() -> None:
    said = fault("x[threadIdx.x] = x[threadIdx.x + 4096];", 700)
    assert "emulated kernel wrong, block " in said
    assert "illegal address" in said
    assert "past the end of an allocation of 256 bytes" in fault(
        "if (threadIdx.x == 64) x[64] = 0;", 700, block=65
    ) + fault("x[-1] = 0;", 700).replace("before", "past the end of")
    assert "past its dynamic shared memory" in fault(
        "extern __shared__ float s[]; s[threadIdx.x] = 0;", 700, shared=252
    )
    assert "1 at a barrier, 31 for lanes" in fault(
        "if (threadIdx.x == 0) __syncthreads(); else __syncwarp();", 702
    )
    assert "in different operations" in fault(
        "if (threadIdx.x % 2) __syncwarp(); else __any_sync(~0u, 1);", 719
    )
    assert "misaligned" in fault("__ldg((const float4*)(x + 1));", 719)
    assert "misaligned" in fault("*(float4*)(x + 1) = float4{};", 719)


def test_what_is_not_known_is_refused() -> None:
    code = """
        from mdcg.errors import KernelCompileError
        def compiles(text):
            try:
                Kernels(driver, 'extern "C" __global__ void k(float* x) { %s }' % text)
            except KernelCompileError as error:
                return str(error)
            return ""
        assert "PTX that is not emulated: barrier.cluster.arrive" in compiles(
            'asm volatile("barrier.cluster.arrive.aligned;");')
        assert "not emulated: @p" in compiles('asm("@p st.global.f32 [%0], 0f;" :: "l"(x));')
        assert "was not declared" in compiles("x[0] = y;")
    """
    run(code)


def test_graphs_are_updated_to_the_same_kinds_of_nodes() -> None:
    code = """
        stream = driver.made("cuStreamCreate", 1)
        y = driver.on_device(host)

        def kernel(by):
            kernels.launch("scale", 1, 64, x, ctypes.c_double(by), ctypes.c_int(40), stream=stream)

        def copy():
            driver.cuMemcpyDtoDAsync_v2(y, x, size, stream)

        def fill():
            driver.cuMemsetD8Async(x, 0, size, stream)

        def graph(*work):
            driver.cuStreamBeginCapture_v2(stream, 1)
            for call in work:
                call()
            made = ctypes.c_void_p()
            driver.cuStreamEndCapture(stream, ctypes.byref(made))
            return made

        def updated(*work):
            result = (ctypes.c_void_p * 3)(7)
            status = refused(driver.cuGraphExecUpdate_v2, run, graph(*work), result)
            return status, (result[0] or 0) & 0xffffffff

        run = driver.made("cuGraphInstantiateWithFlags",
                          graph(lambda: kernel(3), copy, fill), ctypes.c_ulonglong(0))
        assert updated(lambda: kernel(3), copy) == (910, 2)  # TOPOLOGY_CHANGED
        assert updated(lambda: kernel(3), fill, copy) == (910, 3)  # NODE_TYPE_CHANGED
        assert updated(copy, lambda: kernel(3), fill) == (910, 3)
        assert updated(lambda: kernel(5), copy, fill) == (0, 0)
        driver.cuGraphLaunch(run, stream)
        driver.cuStreamSynchronize(stream)
        assert (driver.fetch(y, host) == 5 * host).all()
        assert (driver.fetch(x, host) == 0).all()
    """
    run(KERNELS + textwrap.dedent(code))
