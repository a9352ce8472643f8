"""A CUDA device without torch: memory from the driver, kernels from the engine's text."""

from __future__ import annotations

import ctypes
import itertools
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core
from mdcg.runtime.nvrtc import compile_cuda

from ..emulator.driver import Driver

CSRC = Path(__file__).resolve().parents[2] / "csrc"
kernel_source = runpy.run_path(str(CSRC / "kernels/embed.py"))["kernel_source"]
ITEM = {"float32": "float", "float64": "double"}


def program(dtype: str, name: str, defines: str = "") -> str:
    """Return the text of a program like CudaKernels::fixed."""
    return f"{defines}\ntypedef {ITEM[dtype]} T;\n" + kernel_source(name)


#: GEMM_BITS of the programs of products, by their names; 0: plain arithmetic.
GEMMS = {
    "float32": {
        "gemm_plain": 0,
        "gemm_tensor": 24,
        "gemm_warpgroup": 24,
    },
    "float64": {"gemm_plain": 0, "gemm_tensor": 53},
}


def gemm_tiles(dtype: str, text: str) -> list[tuple[str, list[int]]]:
    """Return kernel and numbers of the tiles that csrc/engine/cuda/gemm.cpp names."""
    source = (CSRC / "engine/cuda/gemm.cpp").read_text()
    plain = {"float32": "PLAIN_TILES", "float64": "PLAIN_DOUBLE_TILES"}[dtype]
    kind = {"gemm_plain": plain, "gemm_warpgroup": "WARPGROUP_TILE"}.get(
        text, {"float32": "TENSOR_TILES", "float64": "DOUBLE_TILES"}[dtype]
    )
    found = re.search(rf"\b{kind}\{{(.*?);", source, re.DOTALL)
    assert found is not None
    rows = re.findall(r'"(\w+)", "\w+",\s+((?:\d+,\s+)+)[\d.]+,\s+[\d.]+\b', found[1])
    assert len(rows) == found[1].count('"gemm_')
    return [(name, [int(n) for n in numbers.split(",")[:-1]]) for name, numbers in rows]


def gemm_shared_bytes(dtype: str, text: str, numbers: list[int]) -> int:
    """Return the launch parameters of a tile, as in CudaGemm."""
    rows, columns, depth, stages = numbers[:4]
    size = {"float32": 4, "float64": 8}[dtype]
    if text == "gemm_plain":
        a, b = depth + 16 // size, columns
    else:
        a = depth + 8 * (depth % 16 == 0)
        b = 2 * columns if text == "gemm_warpgroup" else columns + 16 // size
    return stages * (rows * a + depth * b) * size


def gemm_text(dtype: str, text: str) -> str:
    """Return a program of products like CudaGemm's."""
    bits = GEMMS[dtype][text]
    unit = {"gemm_plain": "Plain", "gemm_warpgroup": "Warpgroup"}.get(text, "Tensor")
    defines = f"#define GEMM_BITS {bits}\n" if bits else ""
    for name, numbers in gemm_tiles(dtype, text):
        defines += f"#define {name.upper()} {unit}, {', '.join(map(str, numbers[:-1]))}\n"
        defines += f"#define {name.upper()}_BLOCKS {numbers[-1]}\n"
    return program(dtype, "gemm_warpgroup.cuh" if unit == "Warpgroup" else "gemm.cuh", defines)


def texts(dtype: str) -> dict[str, str]:
    """Return programs that the tests' packages do not use in all types."""
    names = ("nodes", "pair_energy", "ewald", "particle_mesh", "multipoles", "total_charge")
    found = {name: program(dtype, f"{name}.cuh") for name in names}
    found["edge_sum"] = program(dtype, "edge_sum.cuh", "#define DEGREE 5\n")
    return found | {name: gemm_text(dtype, name) for name in GEMMS[dtype]}


def device_count() -> int:
    """Return the number of devices of this process."""
    for number in itertools.count():
        try:
            _core.cuda_compute_capability(number)
        except RuntimeError:
            return number
    raise AssertionError


def choose_devices(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with ``devices`` by one device twice, and by two if there are two.

    For use as a module's ``pytest_generate_tests``. Tests are left out rather than skipped.
    """
    if "devices" in metafunc.fixturenames:
        pairs = [(0, 0), (0, 1)][: device_count()]
        metafunc.parametrize("devices", pairs, ids=["same", "two"][: len(pairs)])


class Device(Driver):
    """Device 0; everything is on the default stream and waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[ctypes.c_void_p] = []

    def upload(self, array: NDArray[Any]) -> int:
        """Return the address of a copy."""
        self.allocated.append(self.on_device(array))
        return self.allocated[-1].value or 0

    def download(self, address: int, like: NDArray[Any]) -> NDArray[Any]:
        """Return what is there, of shape and type of `like`."""
        return self.fetch(ctypes.c_void_p(address), like)

    def memory(self) -> tuple[int, int]:
        """Return free bytes and those of the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def release(self) -> None:
        for address in self.allocated:
            self.cuMemFree_v2(address)
        self.allocated.clear()

    def launch(
        self, text: str, kernel: str, blocks: int, threads: int, arguments: ctypes.Structure,
        shared_bytes: int = 0
    ) -> None:  # fmt: skip
        module = self.module(text)
        raw = bytes(arguments)
        words = np.frombuffer(raw + b"\0" * (-len(raw) % 8), np.int64).tolist()
        function = module.function(kernel, shared_bytes)
        module.launch(function, blocks, threads, shared_bytes, 0, words)

    @staticmethod
    @cache
    def module(text: str) -> Any:
        cubin, _ = compile_cuda(text, f"sm_{_core.cuda_compute_capability(0)}")
        return _core.CudaModule(0, cubin)


def structure(**fields: tuple[Any, Any]) -> ctypes.Structure:
    """Return a C struct with fields name=(type, value)."""
    kinds = [(name, kind) for name, (kind, _) in fields.items()]
    made = type("Arguments", (ctypes.Structure,), {"_fields_": kinds})
    return made(*(value for _, value in fields.values()))  # type: ignore[no-any-return]
