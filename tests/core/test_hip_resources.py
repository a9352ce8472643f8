"""Kernels for AMD's GPUs compile, without one: registers, shared and local memory of the code."""

from __future__ import annotations

import itertools
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmark.cases import CASES, fully_connected

from mdcg import _core
from mdcg.errors import KernelCompileError
from mdcg.package.cuda_kernels import cuda_passes
from mdcg.package.kernel_file import _engine_texts
from mdcg.runtime.hiprtc import compile_hip, find_hiprtc

from ..processes import printed_by
from .test_cuda_resources import distinct

TARGETS = ("gfx90a", "gfx942")
MAX_SHARED = 65536  # bytes of a block
MAX_REGISTERS = 512  # vector registers and accumulation registers of a lane
# Bytes of local memory of a lane at most, for each version of the compiler: that of ROCm 5.2, and
# from LLVM 17 (ROCm 5.7) on.
LOCAL_BYTES = {
    "mace-large": (600, 260),
    "nequip-benzene": (400, 200),
    "sevennet-l3i5-main": (520, 200),
}
MOST_LOCAL_BYTES = (160, 200)
OF_WEIGHTS, OF_CONTRACTIONS = (440, 440), (540, 540)

#: Convolutions of the benchmark that the engine has: their paths are ``uvu``.
MODELS = [name for name in distinct() if CASES[name].builder is not fully_connected]
DTYPES = ("float32", "float64")
#: In float64, those whose blocks need more shared memory than there is: with tables, and without.
REFUSED = {
    *((name, "silu") for name in ("nequip-benzene", "nequip-oam-like", "sevennet-l3i5-main")),
    ("nequip-oam-like", "relu"),
}
QUICK = {("mace-medium", "float32", "gfx90a"), ("nequip-water", "float32", "gfx90a")}


@pytest.fixture(autouse=True)
def compiler(request: pytest.FixtureRequest) -> None:
    """Skip where there is no compiler, or where it does not know the test's target."""
    try:
        library, path = find_hiprtc()
    except KernelCompileError as error:
        pytest.skip(str(error))
    if "target" not in request.fixturenames:
        return
    target = request.getfixturevalue("target")
    if int(target.removeprefix("gfx"), 16) not in library.architectures:
        pytest.skip(f"{path} does not compile for {target}")


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


def resources_of(code: bytes, target: str) -> dict[str, Resources]:
    """Read the notes of a code object, by the names of kernels."""
    assert code[:4] == b"\x7fELF"
    at = code.index(b"AMDGPU\0")
    _, size, kind = struct.unpack("<III", code[at - 12 : at])
    assert kind == 32  # NT_AMDGPU_METADATA
    notes, end = unpacked(code[at + 8 : at + 8 + size])
    assert end == size
    assert notes["amdhsa.target"].startswith(f"amdgcn-amd-amdhsa--{target}")
    return {
        kernel[".name"]: Resources(
            kernel[".vgpr_count"],
            kernel[".private_segment_fixed_size"],
            kernel[".group_segment_fixed_size"],
            kernel[".max_flat_workgroup_size"],
        )
        for kernel in notes["amdhsa.kernels"]
    }


def check_passes(
    layer: dict[str, Any], target: str, names: set[str], local: tuple[int, int]
) -> None:
    """Compile all kernels of a layer for AMD's devices, and check what they need."""
    passes, texts = cuda_passes([layer], (), amd=True)
    assert {one["pass"] for one in passes} == names
    for one in passes:
        found: dict[str, Resources] = {}
        for key in one["programs"]:
            code = compile_hip(texts[key], target)
            found |= resources_of(code, target)
        clang = re.search(rb"clang version (\d+)", code)
        assert clang is not None
        limit = local[0 if int(clang[1]) < 17 else 1]
        for entry in one["entries"]:
            used = found[entry["name"]]
            where = f"{target}, {one['pass']}, {entry['name']}: {used}"
            shared = used.shared_bytes + entry["shared_bytes"]
            assert used.registers <= MAX_REGISTERS, where
            assert entry["max_warp_groups"] * shared <= MAX_SHARED, where
            assert entry["max_warp_groups"] * entry["threads"] <= used.threads <= 1024, where
            assert used.local_bytes <= limit, where


def conv_layer(name: str, dtype: str, activation: str) -> dict[str, Any]:
    return {
        "type": "conv",
        "problem": CASES[name].problem().with_dtype(dtype).to_json(),
        "x": "x",
        "radial": {"layers": [{"activation": activation}]},
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "dtype", "target"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in itertools.product(MODELS, DTYPES, TARGETS)
    ],
)
def test_convolutions_with_tables(name: str, dtype: str, target: str) -> None:
    local = LOCAL_BYTES.get(name, MOST_LOCAL_BYTES)
    names = {"table_forward", "table_backward"}
    if dtype == "float64" and (name, "silu") in REFUSED:
        names = set()
    check_passes(conv_layer(name, dtype, "silu"), target, names, local)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "nequip-water" else [pytest.mark.slow])
        for name in MODELS
    ],
)
def test_convolutions_with_weights_of_edges(name: str, dtype: str, target: str) -> None:
    """Where no table can hold the weights, they are computed for each edge."""
    names = {"forward", "backward"}
    if dtype == "float64" and (name, "relu") in REFUSED:
        names = set()
    check_passes(conv_layer(name, dtype, "relu"), target, names, OF_WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("results", ["128x0e", "128x0e+128x1o", "128x0e+128x1o+128x2e"])
def test_contractions(results: str, dtype: str, target: str) -> None:
    """Those of MACE-MP-0 small, medium and large."""
    pytest.importorskip("mace")
    from e3nn.o3 import Irreps
    from mace.modules.symmetric_contraction import SymmetricContraction

    from mdcg.patch.fused_contraction import fold_contraction

    layer = SymmetricContraction(
        Irreps("128x0e+128x1o+128x2e+128x3o"), Irreps(results), correlation=3, num_elements=2
    )
    problem = fold_contraction(layer).problem.with_dtype(dtype)
    check_passes(
        {"type": "contraction", "problem": problem.to_json()},
        target,
        {"forward", "backward"},
        OF_CONTRACTIONS,
    )


DEFINES = {
    "dispersion.cuh": "#define REFERENCES_USED 5\n#define ZERO_DAMPING 0\n",
    "edge_sum.cuh": "#define DEGREE 5\n",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(
    "file",
    [
        *("cell_list", "copies", "edge_lists", "ewald", "geometry", "multipoles", "nodes"),
        *("pair_energy", "particle_mesh", "points", "row_sums", "sender_sums", "sort", "systems"),
        *("total_charge", "dispersion", "edge_sum"),
    ],
)
def test_fixed_kernels(file: str, dtype: str, target: str) -> None:
    text = _core.kernel_source(f"{file}.cuh")
    defines = DEFINES.get(f"{file}.cuh", "")
    found = resources_of(compile_hip(f"{defines}typedef {dtype} T;\n{text}", target), target)
    assert found
    for name, used in found.items():
        assert used.registers <= MAX_REGISTERS, f"{name}: {used}"
        assert used.shared_bytes <= MAX_SHARED, f"{name}: {used}"
        assert used.local_bytes <= 96, f"{name}: {used}"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "package",
    [
        *("mace_water_float32", "mace_water_float64", "nequip_water_float32"),
        *("nequip_water_float64", "mace_les_water_float64", "mace_polar_water_float64"),
        "mace_charged_water_float64",
    ],
)
def test_programs_of_packages(package: str, target: str) -> None:
    """All that the engine compiles for a package is accepted."""
    path = Path(__file__).parents[1] / "data" / f"{package}.mdcg"
    content = json.loads(_core.kernel_problem(str(path)))
    passes, texts = cuda_passes(content["layers"], content["tensors"], amd=True)
    for text in (texts | _engine_texts(path, target, passes)).values():
        assert resources_of(compile_hip(text, target), target)


@pytest.mark.parametrize("target", TARGETS)
def test_products(target: str) -> None:
    """Blocks of products of matrices fit in plain arithmetic, which AMD's GPUs use."""
    from ..engine.cuda_device import gemm_shared_bytes, gemm_text, gemm_tiles

    for dtype in ("float32", "float64"):
        found = resources_of(compile_hip(gemm_text(dtype, "gemm_plain"), target), target)
        for name, numbers in gemm_tiles(dtype, "gemm_plain"):
            used = found[name]
            assert used.registers <= MAX_REGISTERS, f"{name}: {used}"
            shared = gemm_shared_bytes(dtype, "gemm_plain", numbers)
            assert used.shared_bytes + shared <= MAX_SHARED, f"{name}: {used}"


THREADS = r"""
from concurrent.futures import ThreadPoolExecutor
from mdcg import _core
from mdcg.runtime.hiprtc import compile_hip
text = "typedef float T;\n" + _core.kernel_source("copies.cuh")
with ThreadPoolExecutor(2) as pool:
    print(len(set(pool.map(lambda _: compile_hip(text, "gfx90a"), range(6)))))
"""


def test_threads_that_begin_at_once() -> None:
    """The compiler of ROCm 5.2 ends a process in which two threads use it."""
    assert printed_by(THREADS) == "1\n"


def test_another_architecture() -> None:
    """An architecture that the compiler does not know is refused in one sentence."""
    text = f"typedef float T;\n{_core.kernel_source('copies.cuh')}"
    message = r"hiprtc .* does not compile for gfx999, only for .*gfx90a.*: install a later ROCm"
    with pytest.raises(KernelCompileError, match=message):
        compile_hip(text, "gfx999")


def test_a_rejected_text() -> None:
    with pytest.raises(KernelCompileError, match=r"rejected a generated kernel for gfx90a \("):
        compile_hip("this is no program", "gfx90a")
