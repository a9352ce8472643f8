"""Shared by all emitters: descriptions of kernels, templates, and pieces of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from ..._version import __version__
from ...plan.contraction import HostContractionPlan
from ...plan.device import CudaPlan
from ...plan.host import ITEMSIZE, HostPlan
from ...problem import ConvProblem, Irreps, SymmetricContractionProblem
from .tables import kernel_file

__all__ = [
    "ENGINE_ROW_BYTES",
    "CudaEntry",
    "CudaKernel",
    "HostKernel",
    "cuda_head",
    "engine_stride",
    "host_head",
    "kernel_head",
    "packed_row",
    "power_of_two",
    "resident_blocks",
    "scalar_type",
    "template",
    "title",
]

# Rows of the engine are padded to whole multiples of this.
ENGINE_ROW_BYTES = 64

# 32-bit registers of a multiprocessor, and the blocks that it can hold.
_REGISTERS = 65536
_MAX_BLOCKS = 32


def engine_stride(mul: int, dtype: str) -> int:
    """Return the channels of a component in a row of the engine, padding included."""
    align = ENGINE_ROW_BYTES // ITEMSIZE[dtype]
    return -(-mul // align) * align


@dataclass(frozen=True)
class HostKernel:
    """Text of a CPU kernel and what its launcher must know."""

    source: str  # C++17 for gcc or clang that includes the C library and intrinsics only
    # names of the 64-bit values of ``arg``, in order: addresses, or sizes for names starting with
    # ``n_``
    arguments: tuple[str, ...]
    scratch_bytes: int  # scratch memory per thread, 64-byte aligned
    # items of a packed row of node features and of output
    packed_in1: int
    packed_out: int


@dataclass(frozen=True)
class CudaEntry:
    """One CUDA kernel of a program."""

    name: str  # operation, pass and number, such as ``conv_table_forward_0``; profilers show it
    threads: int  # threads per warp group; a block has one group, or as many as the caller asks for
    shared_bytes: int  # dynamic shared memory per warp group
    rows: int  # receivers, or runs of input rows, per block
    # the kernel may start before the previous kernel has ended, and ends after it
    early: bool = False
    stream: int = 0  # kernels of different streams may run beside each other
    max_warp_groups: int = 1  # most warp groups per block


@dataclass(frozen=True)
class CudaKernel:
    """Text of the CUDA kernels of one pass, and what their launcher must know."""

    source: str  # CUDA C++17 without includes: all kernels in one program
    entries: tuple[CudaEntry, ...]  # to be launched one after the other
    # names of the 64-bit values of the only parameter, in order: addresses, or sizes for names
    # starting with ``n_``
    arguments: tuple[str, ...]
    packed_in1: int  # items of a packed row of node features
    packs: bool  # rows of node features are read in packed form
    run: int  # 1 for convolutions; else length of a run of input rows
    # results that must be zeros before the launch, from "out", "dx", "dy", "dw"
    zeroed: tuple[str, ...]
    # the same kernels as programs of one entry each, which compile at the same time; empty: compile
    # ``source``
    programs: tuple[str, ...] = ()
    # program that packs and unpacks node rows, the same for all passes; empty: in ``source``
    copies: str = ""
    degree: int | None = None  # degree of the polynomials in the table that the kernels read
    singles: int = 0  # float64 kernels read so many of the highest coefficients in float32
    # estimated blocks per multiprocessor, for backward passes that read tables
    resident: int = 1

    @property
    def sources(self) -> tuple[str, ...]:
        """The programs that operators load; the one that copies node rows is last."""
        return (*self.programs, self.copies) if self.programs else (self.source,)


@lru_cache(maxsize=64)
def template(path: str) -> str:
    """Return a file of C++ or CUDA text that kernels contain, such as common/host_prelude.hpp."""
    text = files("mdcg.codegen").joinpath(path).read_text(encoding="utf-8")
    return re.sub(r'#pragma once\n|#include "kernels/.*"\n', "", text)


def packed_row(irreps: Irreps, padded: Callable[[int], int]) -> tuple[int, tuple[int, ...]]:
    """Return items of a packed row and where each block starts, from padded multiplicities.

    Packed rows are component-major, their multiplicities whole vectors.
    """
    offsets, total = [], 0
    for block in irreps:
        offsets.append(total)
        total += block.ir.dim * padded(block.mul)
    return total, tuple(offsets)


def scalar_type(dtype: str) -> str:
    """Return the C type of "float32" or "float64"."""
    return "float" if dtype == "float32" else "double"


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n`` and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def title(problem: ConvProblem | SymmetricContractionProblem, kernel: str) -> str:
    """Return the first line of a text; `kernel` says which kernel of the problem it is."""
    return f"// mdcg {__version__}, problem {problem.key()}, {kernel}"


def host_head(
    problem: ConvProblem | SymmetricContractionProblem,
    kernel: str,
    plan: HostPlan | HostContractionPlan,
    arguments: Iterable[str],
    **defines: int,
) -> list[str]:
    """Return the start of a CPU kernel: title, definitions and prelude."""
    size = ITEMSIZE[problem.dtype] * plan.lanes
    found: dict[str, object] = {"L": plan.lanes, "MDCG_VECTOR_BYTES": size, **defines}
    if size in (16, 32, 64):
        width = {16: "", 32: "256", 64: "512"}[size]
        kind = "ps" if problem.dtype == "float32" else "pd"
        found["MDCG_INTRINSIC(name)"] = f"_mm{width}_##name##{kind}"
    return [
        title(problem, kernel),
        f"// {plan}",
        f"// arg: {', '.join(arguments)}",
        f"typedef {scalar_type(problem.dtype)} T;",
        *(f"#define {name} {value}" for name, value in found.items()),
        template("common/host_prelude.hpp"),
    ]


# -- CUDA -----------------------------------------------------------------------------------------


def cuda_head(problem: ConvProblem, kernel: str, plan: CudaPlan, file: str) -> list[str]:
    """Return the start of CUDA kernels of a plan: title, definitions and the file of templates."""
    atomics = plan.vector_atomics and problem.dtype == "float32"
    return [
        title(problem, kernel),
        f"// {plan}",
        f"typedef {scalar_type(problem.dtype)} T;",
        f"#define MDCG_VECTOR_ATOMICS {int(atomics)}",
        kernel_file(file),
    ]


def resident_blocks(threads: int, registers: int) -> int:
    """Return how many blocks a multiprocessor has registers for; 0 if `registers` is 0."""
    if not registers:
        return 0
    return max(1, min(_MAX_BLOCKS, _REGISTERS // (threads * registers)))


def kernel_head(name: str, threads: int, blocks: int = 0, *, argument: str = "Arguments") -> str:
    """Print the first line of a kernel.

    `blocks` is the number of blocks per multiprocessor that registers must leave room for; 0: the
    compiler's choice.
    """
    bounds = f"{threads}, {blocks}" if blocks else str(threads)
    return f'extern "C" __global__ void __launch_bounds__({bounds}) {name}(const {argument} p) {{'
