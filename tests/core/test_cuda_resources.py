"""Machine code of every CUDA bench problem: it compiles, fits the device, and spills as planned.

NVRTC alone is needed, no GPU: its assembler tells registers and local memory of every kernel.
Spilled bytes depend on the assembler, so they are compared for one version of it.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from benchmark.cases import CASES

from mdcg.codegen import CudaKernel, KernelSpec, emit_cuda
from mdcg.plan import CudaDevice, CudaPlan, CudaTile, plan_cuda
from mdcg.plan.device import CAPPED_BYTES
from mdcg.problem import ConvProblem
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..emulator.emulator import built

FORWARD = KernelSpec("forward", True)
BACKWARD = KernelSpec("backward", True, ("x", "y", "w"))
DOUBLE = KernelSpec("double_backward", True, ("x", "y", "w"), ("x", "y", "w"))
# Passes of training and forces; other architectures compile the longest three.
PASSES = {
    80: (FORWARD, BACKWARD, DOUBLE),
    90: (
        FORWARD,
        BACKWARD,
        KernelSpec("backward", True, ("y", "w")),
        DOUBLE,
        KernelSpec("double_backward", True, ("g",), ("x", "y", "w")),
    ),
    100: (FORWARD, BACKWARD, DOUBLE),
}

# Further architectures of some problems: sm_90 stands for the others, whose compilation is long.
FURTHER = {"mace-large": 80, "mace-medium-l2": 100, "nequip-water": 80, "diffdock-l1": 100}
# For a quick run: one problem of each framework, and one with fully connected paths.
QUICK = {"mace-medium-l2", "nequip-water", "diffdock-l1"}

# The version of NVRTC for which `spill_bytes` of plans were counted.
COUNTED_WITH = (13, 5)

REGISTER_FILE = 65536  # 32-bit registers of a multiprocessor
MAX_REGISTERS = 255


@dataclass(frozen=True)
class Resources:
    """Registers and bytes of local memory per thread of one kernel."""

    registers: int
    local_bytes: int


def resources_of(log: str) -> dict[str, Resources]:
    """Read the assembler's report, by the names of kernels."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        name = part.partition("'")[0]
        registers = re.search(r"Used (\d+) registers", part)
        frame = re.search(r"(\d+) bytes stack frame", part)
        assert registers is not None, part
        assert frame is not None, part
        found[name] = Resources(int(registers[1]), int(frame[1]))
    return found


def programs(kernel: CudaKernel) -> tuple[str, ...]:
    return (*kernel.programs, kernel.copies) if kernel.programs else (kernel.source,)


def limits(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> tuple[int, int]:
    """Return bytes of local memory and registers that the plan allows."""
    if any(path.mode == "uvw" for path in problem.paths):
        tile = plan.uvw
        registers = {
            "forward": tile.registers,
            "backward": tile.gradient_registers,
            "double_backward": tile.double_registers,
        }
        return tile.spill_bytes, registers[spec.kind]
    used = tile_of(plan, spec)
    return used.spill_bytes, used.registers


def tile_of(plan: CudaPlan, spec: KernelSpec) -> CudaTile:
    summing = spec.kind == "forward" or spec.wants == ("g",)
    if summing:
        return plan.forward
    return plan.double_backward if spec.kind == "double_backward" else plan.backward


def distinct() -> list[str]:
    """Return names of cases with different problems, the first of each."""
    first: dict[str, str] = {}
    for name, case in CASES.items():
        first.setdefault(case.problem().key(), name)
    return list(first.values())


@lru_cache(maxsize=1)
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))


def reports(kernels: list[CudaKernel], target: str) -> list[dict[str, Resources]]:
    """Compile the programs of all kernels side by side; resources by names, per kernel."""

    def compiled(source: str) -> dict[str, Resources]:
        """Compile a text, or read the report of an earlier run."""

        def build(folder: Path) -> None:
            cubin, log = compile_cuda(source, target, "--ptxas-options=-v")
            assert cubin.startswith(b"\x7fELF")
            (folder / "log").write_text(log)

        what = (source, target, str(find_nvrtc()[0].version))
        return resources_of((built("resources", what, (), build) / "log").read_text())

    futures = [[pool().submit(compiled, text) for text in programs(k)] for k in kernels]
    return [
        {name: value for future in parts for name, value in future.result().items()}
        for parts in futures
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "capability"),
    [
        pytest.param(name, capability, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in distinct()
        for capability in (90, *((FURTHER[name],) if name in FURTHER else ()))
    ],
)
def test_bench_problems(name: str, capability: int) -> None:
    problem = CASES[name].problem()
    plan = plan_cuda(problem, CudaDevice(capability))
    specs = PASSES[capability]
    kernels = [emit_cuda(problem, plan, spec) for spec in specs]
    for spec, kernel, report in zip(specs, kernels, reports(kernels, plan.target), strict=True):
        spill_bytes, registers = limits(problem, plan, spec)
        assert {entry.name for entry in kernel.entries} <= set(report)
        for entry in kernel.entries:
            used = report[entry.name]
            where = f"{name}, {spec}, {entry.name}: {used}"
            if find_nvrtc()[0].version == COUNTED_WITH:
                assert used.local_bytes <= spill_bytes, where
            assert used.registers <= MAX_REGISTERS, where
            blocks = 1
            if registers:
                blocks = max(1, REGISTER_FILE // (entry.threads * registers))
            assert used.registers * entry.threads * blocks <= REGISTER_FILE, where


def test_tiles_of_mace_spill_next_to_nothing() -> None:
    """Plans of MACE spill no register, except where a cap spills outside of the edge loop."""
    for name, case in CASES.items():
        problem = case.problem()
        if name.startswith("mace"):
            plan = plan_cuda(problem, CudaDevice(90))
            assert plan.forward.spill_bytes == plan.forward.registers == 0
            for tile in (plan.backward, plan.double_backward):
                assert tile.spill_bytes == (CAPPED_BYTES if tile.registers else 0)
            assert '"spill_bytes":0' in plan.to_json()
            assert "spill_bytes=0" in str(plan)


def test_a_kernel_that_spills_is_noticed() -> None:
    """The report shows spills of a kernel with too few registers."""
    problem = CASES["mace-large"].problem()
    tile = CudaTile(channels=4, components=255, registers=64)
    plan = CudaPlan(90, tile, tile, tile)
    (report,) = reports([emit_cuda(problem, plan, BACKWARD)], plan.target)
    assert max(used.local_bytes for used in report.values()) > tile.spill_bytes
    assert max(used.registers for used in report.values()) <= 64


def test_programs_of_single_kernels_are_those_of_the_whole() -> None:
    problem = CASES["nequip-lips"].problem()
    plan = plan_cuda(problem, CudaDevice(90))
    for spec in (FORWARD, BACKWARD):
        kernel = emit_cuda(problem, plan, spec)
        assert len(kernel.programs) == len(kernel.entries) > 1
        for entry, program in zip(kernel.entries, kernel.programs, strict=True):
            assert re.findall(r"__global__ .* (\w+)\(const", program) == [entry.name]
            assert program[program.index("struct Kernel") :].strip() in kernel.source
        whole = resources_of(compile_cuda(kernel.source, "sm_90", "--ptxas-options=-v")[1])
        (parts,) = reports([kernel], "sm_90")
        assert parts == whole


def test_kernels_of_a_pass_overlap_where_the_order_of_sums_is_free() -> None:
    problem = CASES["mace-large"].problem()
    plan = plan_cuda(problem, CudaDevice(90))

    def early(plan: CudaPlan) -> list[bool]:
        return [entry.early for entry in emit_cuda(problem, plan, BACKWARD).entries]

    assert early(plan) == [False, True, True]
    assert early(plan.with_changes(deterministic=True)) == [False] * 3
    assert early(plan_cuda(problem, CudaDevice(80))) == [False] * 3


def test_copies_are_one_program_for_all_passes() -> None:
    problem = ConvProblem.build("5x0e+5x1o", "0e+1o", "5x0e", [(0, 0, 0), (1, 1, 0)])
    plan = plan_cuda(problem, CudaDevice(90))
    texts = {emit_cuda(problem, plan, spec).copies for spec in PASSES[90]}
    assert len(texts) == 1
    assert "mdcg_pack_in1" in texts.pop()
