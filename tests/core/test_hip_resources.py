"""Kernels for AMD's GPUs compile, without one: registers, shared and local memory of the code."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from benchmark.cases import CASES

from mdcg import _core
from mdcg.codegen.conv.table import emit_table_conv
from mdcg.errors import KernelCompileError
from mdcg.package.cuda_kernels import padded_problem
from mdcg.runtime.hiprtc import WAVEFRONT_PER_WARP, compile_hip, find_hiprtc

TARGET = "gfx90a"
MAX_SHARED = 65536  # bytes of a block
MAX_REGISTERS = 512  # vector registers and accumulation registers of a lane
# Bytes of local memory of a lane that the compiler of ROCm 5.2 uses at most.
LOCAL_BYTES = {"mace-large": 600, "nequip-benzene": 400}
MOST_LOCAL_BYTES = 160

MODELS = (
    *("mace-small", "mace-medium", "mace-medium-l2", "mace-large"),
    *("nequip-water", "nequip-lips", "nequip-aspirin", "nequip-toluene", "nequip-benzene"),
    "nequip-oam-like",
)
QUICK = {("mace-medium", "float32"), ("nequip-water", "float32")}


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        find_hiprtc()
    except KernelCompileError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Resources:
    """What a lane or a block of a kernel needs."""

    registers: int
    local_bytes: int
    shared_bytes: int  # without what a launch adds
    threads: int


def unpacked(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the msgpack value at a position, and the position behind it."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind in (0xC2, 0xC3):
        return kind == 0xC3, at
    if 0xCC <= kind <= 0xCF:
        size = 1 << kind - 0xCC
        return int.from_bytes(data[at : at + size], "big"), at + size
    if kind < 0x90 or kind in (0xDE, 0xDF):
        count, at = counted(data, at, kind, 0x80, 0xDE, 2)
        found = {}
        for _ in range(count):
            key, at = unpacked(data, at)
            found[key], at = unpacked(data, at)
        return found, at
    if kind < 0xA0 or kind in (0xDC, 0xDD):
        count, at = counted(data, at, kind, 0x90, 0xDC, 2)
        items = []
        for _ in range(count):
            item, at = unpacked(data, at)
            items.append(item)
        return items, at
    if kind < 0xC0 or kind in (0xD9, 0xDA, 0xDB):
        count, at = counted(data, at, kind, 0xA0, 0xD9, 1)
        return data[at : at + count].decode(), at + count
    raise AssertionError(f"msgpack type {kind:#x}")


def counted(data: bytes, at: int, kind: int, short: int, long: int, size: int) -> tuple[int, int]:
    """Return a number of items, which is in the type or in the bytes behind it."""
    if kind < long:
        return kind - short, at
    size <<= kind - long
    return int.from_bytes(data[at : at + size], "big"), at + size


def resources_of(code: bytes) -> dict[str, Resources]:
    """Read the notes of a code object, by the names of kernels."""
    assert code[:4] == b"\x7fELF"
    at = code.index(b"AMDGPU\0")
    _, size, kind = struct.unpack("<III", code[at - 12 : at])
    assert kind == 32  # NT_AMDGPU_METADATA
    notes, end = unpacked(code[at + 8 : at + 8 + size])
    assert end == size
    assert notes["amdhsa.target"].startswith(f"amdgcn-amd-amdhsa--{TARGET}")
    return {
        kernel[".name"]: Resources(
            kernel[".vgpr_count"],
            kernel[".private_segment_fixed_size"],
            kernel[".group_segment_fixed_size"],
            kernel[".max_flat_workgroup_size"],
        )
        for kernel in notes["amdhsa.kernels"]
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in QUICK else [pytest.mark.slow])
        for name in MODELS
        for dtype in ("float32", "float64")
        if dtype == "float32" or name.startswith("mace")
    ],
)
def test_convolutions(name: str, dtype: str) -> None:
    problem = padded_problem(CASES[name].problem().with_dtype(dtype))
    for kind in ("forward", "backward"):
        kernel = emit_table_conv(
            problem, kind, wants_x=True, normalization="component", most_shared=MAX_SHARED
        )
        code = compile_hip(WAVEFRONT_PER_WARP + kernel.source, TARGET)
        found = resources_of(code)
        # of ROCm before 6; hiprtc itself tells version 9.0 for many versions of ROCm
        clang = re.search(rb"clang version (\d+)", code)
        limited = clang is not None and int(clang[1]) < 17
        for entry in kernel.entries:
            used = found[entry.name]
            where = f"{name}, {dtype}, {kind}, {entry.name}: {used}"
            assert used.registers <= MAX_REGISTERS, where
            assert used.shared_bytes + entry.shared_bytes <= MAX_SHARED, where
            assert 2 * entry.threads <= used.threads <= 1024, where
            if limited:
                assert used.local_bytes <= LOCAL_BYTES.get(name, MOST_LOCAL_BYTES), where


DEFINES = {
    "dispersion.cuh": "#define REFERENCES_USED 5\n#define ZERO_DAMPING 0\n",
    "edge_sum.cuh": "#define DEGREE 5\n",
}


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(
    "file",
    [
        *("cell_list", "copies", "edge_lists", "ewald", "geometry", "multipoles", "nodes"),
        *("pair_energy", "particle_mesh", "points", "row_sums", "sender_sums", "sort", "systems"),
        *("total_charge", "dispersion", "edge_sum"),
    ],
)
def test_fixed_kernels(file: str, dtype: str) -> None:
    text = _core.kernel_source(f"{file}.cuh")
    defines = DEFINES.get(f"{file}.cuh", "")
    found = resources_of(compile_hip(f"{defines}typedef {dtype} T;\n{text}", TARGET))
    assert found
    for name, used in found.items():
        assert used.registers <= MAX_REGISTERS, f"{name}: {used}"
        assert used.shared_bytes <= MAX_SHARED, f"{name}: {used}"
        assert used.local_bytes <= 96, f"{name}: {used}"


def test_products() -> None:
    """Blocks of products of matrices fit in plain arithmetic, which AMD's GPUs use."""
    from ..engine.cuda_device import gemm_shared_bytes, gemm_text, gemm_tiles

    for dtype in ("float32", "float64"):
        found = resources_of(compile_hip(gemm_text(dtype, "gemm_plain"), TARGET))
        for name, numbers in gemm_tiles(dtype, "gemm_plain"):
            used = found[name]
            assert used.registers <= MAX_REGISTERS, f"{name}: {used}"
            shared = gemm_shared_bytes(dtype, "gemm_plain", numbers)
            assert used.shared_bytes + shared <= MAX_SHARED, f"{name}: {used}"


def test_another_architecture() -> None:
    """An architecture that the compiler does not know is refused in one sentence."""
    text = f"typedef float T;\n{_core.kernel_source('copies.cuh')}"
    message = r"hiprtc .* does not compile for gfx999, only for .*gfx90a.*: install a later ROCm"
    with pytest.raises(KernelCompileError, match=message):
        compile_hip(text, "gfx999")


def test_a_rejected_text() -> None:
    with pytest.raises(KernelCompileError, match=r"rejected a generated kernel for gfx90a \("):
        compile_hip("this is no program", TARGET)
