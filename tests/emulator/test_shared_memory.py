"""Memory of the emulated driver that two processes share."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from .test_driver import KERNELS, START, run

SHARED = """
import os, subprocess, sys
LAZY = ctypes.c_uint(1)  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
Handle = ctypes.c_ubyte * 64

class ByValue(ctypes.Structure):
    _fields_ = [("bytes", Handle)]

def exported(memory):
    handle = Handle()
    driver.cuIpcGetMemHandle(handle, memory)
    return bytes(handle)

def opened(handle, flags=LAZY):
    made = ByValue(Handle.from_buffer_copy(handle))
    return driver.made("cuIpcOpenMemHandle_v2", made, flags)

def moved(memory, count):
    return ctypes.c_void_p(memory.value + count)

def around(memory):
    base, size = ctypes.c_void_p(), ctypes.c_size_t()
    driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), memory)
    return base.value, size.value

def other_process(handle):
    return subprocess.Popen([sys.executable, "-c", os.environ["OTHER"], handle.hex()],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def answered(other):
    line = other.stdout.readline()
    assert line == "done\\n", (line, other.wait())

def proceed(other):
    other.stdin.write("go on\\n")
    other.stdin.flush()
"""


def run_two(first: str, other: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code that starts another process, with ``other_process``."""
    prelude = START + SHARED
    other = prelude + "\nhandle = bytes.fromhex(sys.argv[1])\n" + KERNELS + textwrap.dedent(other)
    return run(SHARED + KERNELS + textwrap.dedent(first), OTHER=other, **changes)


@pytest.mark.parametrize("late", ["0", "1"])
def test_two_processes_share_memory(late: str) -> None:
    first = """
        stream = driver.made("cuStreamCreate", 1)
        by, n = ctypes.c_double(2), ctypes.c_int(40)
        kernels.launch("scale", 1, 64, x, by, n, stream=stream)  # pending when it is shared
        handle = exported(moved(x, 24))  # the whole allocation
        assert exported(x) == handle
        driver.cuStreamSynchronize(stream)
        free, before, total = (ctypes.c_size_t() for _ in range(3))
        driver.cuMemGetInfo_v2(ctypes.byref(before), ctypes.byref(total))
        other = other_process(handle)
        answered(other)
        assert (driver.fetch(x, host) == 10 * host + 1).all()
        kernels.launch("scale", 1, 64, x, by, n)
        proceed(other)
        answered(other)
        driver.cuMemFree_v2(x)
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        assert free.value == before.value + 320
        proceed(other)
        answered(other)
        assert other.wait() == 0
    """
    other = """
        y = opened(handle)
        driver.cuMemFree_v2(x)
        assert around(moved(y, 319)) == (y.value, 320) and y.value % 256 == 0
        assert (driver.fetch(y, host) == 2 * host).all()
        by, n = ctypes.c_double(5), ctypes.c_int(40)
        kernels.launch("scale", 1, 64, y, by, n)
        staged = driver.allocate(host.nbytes)
        driver.cuMemcpyDtoDAsync_v2(staged, y, size, None)
        driver.write(y, driver.fetch(staged, host) + 1)
        print("done", flush=True)
        input()
        assert (driver.fetch(y, host) == 2 * (10 * host + 1)).all()
        assert refused(driver.fetch, moved(y, 8), host) == 1  # one value too many
        print("done", flush=True)
        input()
        assert np.isnan(driver.fetch(y, host)).all()  # its owner has freed it
        assert refused(opened, handle) == 0 and refused(driver.cuIpcCloseMemHandle, y) == 0
        driver.fetch(y, host)  # open, as it was opened twice
        driver.cuIpcCloseMemHandle(y)
        assert refused(driver.fetch, y, host) == 1
        assert refused(opened, handle) == 205  # CUDA_ERROR_MAP_FAILED
        kernels.launch("scale", 1, 64, y, by, n)
        assert refused(driver.cuStreamSynchronize, None) == 700
        print("done", flush=True)
    """
    done = run_two(first, other, EMULATED_CUDA_LATE=late)
    assert "emulated kernel scale" in done.stderr


def test_writes_beside_memory_of_another_process() -> None:
    first = """
        other = other_process(exported(driver.allocate(504)))
        answered(other)
    """
    other = """
        y = opened(handle)
        kernels.launch("few", 1, 1, moved(y, 504))
        assert refused(driver.cuStreamSynchronize, None) == 700
        print("done", flush=True)
    """
    said = run_two(first, other).stderr
    assert "past the end of an allocation of 504 bytes" in said


def test_shared_memory_that_is_refused() -> None:
    first = """
        handle = exported(x)
        assert refused(opened, handle) == 201  # CUDA_ERROR_INVALID_CONTEXT: its own
        assert refused(opened, bytes(64)) == refused(opened, os.urandom(64)) == 1
        assert refused(exported, moved(x, 320)) == 1
        assert refused(exported, host.ctypes.data_as(ctypes.c_void_p)) == 1
        assert refused(driver.cuIpcCloseMemHandle, x) == 1
        assert around(moved(x, 100)) == (x.value, 320)
        assert refused(around, moved(x, 320)) == 500  # CUDA_ERROR_NOT_FOUND
        os.environ["EMULATED_CUDA_IPC"] = "0"
        assert refused(exported, x) == 801  # CUDA_ERROR_NOT_SUPPORTED
        del os.environ["EMULATED_CUDA_IPC"]
        z = driver.allocate(8)
        gone = exported(z)
        driver.cuMemFree_v2(z)
        other = other_process(handle + gone)
        answered(other)
        assert (driver.fetch(x, host) == host).all()
    """
    other = """
        handle, gone = handle[:64], handle[64:]
        assert refused(opened, handle, ctypes.c_uint(0)) == 1
        assert refused(opened, gone) == 205
        changed = bytearray(handle)
        changed[12] ^= 0x40  # another file
        assert refused(opened, changed) == 205
        for value, status in ("0", 801), ("export", 205):
            os.environ["EMULATED_CUDA_IPC"] = value
            assert refused(opened, handle) == status
        exported(x)  # handles can still be made
        del os.environ["EMULATED_CUDA_IPC"]
        y = opened(handle)
        assert refused(driver.cuMemFree_v2, y) == 1
        assert refused(exported, y) == 1
        assert refused(driver.cuIpcCloseMemHandle, moved(y, 8)) == 1
        stream = driver.made("cuStreamCreate", 1)
        for call in (lambda: opened(handle)), (lambda: driver.cuIpcCloseMemHandle(y)):
            driver.cuStreamBeginCapture_v2(stream, 1)
            assert refused(call) == 900
            graph = ctypes.c_void_p()
            assert refused(driver.cuStreamEndCapture, stream, ctypes.byref(graph)) == 901
        assert (driver.fetch(y, host) == host).all()
        driver.cuIpcCloseMemHandle(y)
        assert refused(driver.cuIpcCloseMemHandle, y) == 1
        print("done", flush=True)
    """
    run_two(first, other)
