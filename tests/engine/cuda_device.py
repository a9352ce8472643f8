"""A CUDA device without torch: memory through the driver, kernels from the engine's text."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg import _core
from mdcg.runtime.nvrtc import compile_cuda

CSRC = Path(__file__).resolve().parents[2] / "csrc"
ITEM = {"float32": "float", "float64": "double"}


def raw_text(name: str) -> str:
    """Return what a file of csrc/engine/cuda/text puts between its delimiters."""
    text = (CSRC / "engine/cuda/text" / name).read_text()
    return text[text.index('R"CUDA(') + len('R"CUDA(') : text.rindex(')CUDA"')]


def program(dtype: str, names: tuple[str, ...], defines: str = "") -> str:
    """Return the text as CudaKernels::fixed puts it together."""
    head = f"{defines}\ntypedef {ITEM[dtype]} T;\ntypedef long long Long;\n"
    return head + raw_text("common.cuh") + "".join(raw_text(name) for name in names)


def gemm_tiles(dtype: str) -> list[tuple[str, str, list[int]]]:
    """Return kernel, macro and numbers of the tiles that csrc/engine/cuda/gemm.cpp names."""
    source = (CSRC / "engine/cuda/gemm.cpp").read_text()
    found = re.search(rf"TILES<{ITEM[dtype]}>\{{(.*?);", source, re.DOTALL)
    assert found is not None
    rows = re.findall(r'\{"(\w+)", "(\w+)", ((?:\d+, )+)[\d.]+\}', found[1])
    assert rows
    return [
        (name, macro, [int(n) for n in numbers.split(", ")[:-1]]) for name, macro, numbers in rows
    ]


def gemm_defines(dtype: str) -> str:
    """Return the macros that CudaGemm puts before its text."""
    lines = []
    for _, macro, numbers in gemm_tiles(dtype):
        lines.append(f"#define {macro} {', '.join(map(str, numbers[:5]))}")
        lines.append(f"#define {macro}_BLOCKS {numbers[5]}")
    return "\n".join(lines)


def texts(dtype: str) -> dict[str, str]:
    """Return the programs of products and of node layers."""
    nodes = ("activation.cuh", "gate.cuh", "nodes.cuh", "rows.cuh")
    return {
        name: program(dtype, ("gemm.cuh", f"{name}.cuh", "gemm_kernels.cuh"), gemm_defines(dtype))
        for name in ("gemm_plain", "gemm_tensor")
    } | {
        "nodes": program(dtype, nodes),
    }


class Device:
    """Device 0; everything is on the default stream and waited for."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.allocated: list[int] = []

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.driver, name)(*arguments)
        assert status == 0, f"{name} returned {status}"

    def upload(self, array: NDArray[Any]) -> int:
        """Return the address of a copy."""
        array = np.ascontiguousarray(array)
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(max(1, array.nbytes))
        self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        self.allocated.append(address.value)
        if array.nbytes:
            source = ctypes.c_void_p(array.ctypes.data)
            self.call("cuMemcpyHtoD_v2", address, source, ctypes.c_size_t(array.nbytes))
        return address.value

    def download(self, address: int, like: NDArray[Any]) -> NDArray[Any]:
        """Return what is there, of shape and type of `like`."""
        self.call("cuCtxSynchronize")
        out = np.empty_like(like)
        target = ctypes.c_void_p(out.ctypes.data)
        self.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(out.nbytes))
        return out

    def release(self) -> None:
        for address in self.allocated:
            self.call("cuMemFree_v2", ctypes.c_uint64(address))
        self.allocated.clear()

    def launch(
        self, text: str, kernel: str, blocks: int, threads: int, arguments: ctypes.Structure
    ) -> None:
        module = self.module(text)
        raw = bytes(arguments)
        words = np.frombuffer(raw + b"\0" * (-len(raw) % 8), np.int64).tolist()
        module.launch(module.function(kernel, 0), blocks, threads, 0, 0, words)

    @staticmethod
    @cache
    def module(text: str) -> Any:
        cubin, _ = compile_cuda(text, f"sm_{_core.cuda_compute_capability(0)}")
        return _core.CudaModule(0, cubin)


def structure(**fields: tuple[Any, Any]) -> ctypes.Structure:
    """Return a struct of C from names with (type, value)."""
    kinds = [(name, kind) for name, (kind, _) in fields.items()]
    made = type("Arguments", (ctypes.Structure,), {"_fields_": kinds})
    return made(*(value for _, value in fields.values()))  # type: ignore[no-any-return]
