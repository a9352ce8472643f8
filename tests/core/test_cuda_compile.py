"""CUDA kernels without a GPU: text, and machine code made by NVRTC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmark.cases import CASES

from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.plan import (
    CudaDevice,
    CudaPlan,
    CudaTile,
    HostDevice,
    HostPlan,
    plan_cuda,
    plan_host,
)
from mdcg.plan.contraction import CudaContractionPlan, HostContractionPlan
from mdcg.problem import ConvProblem
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..covering import covering
from .helpers import check_cuda_texts, printed_tables

SPECS = (
    KernelSpec("forward", True),
    KernelSpec("forward", False),
    KernelSpec("backward", True, ("x", "y", "w")),
    KernelSpec("backward", False, ("x", "w")),
    KernelSpec("double_backward", True, ("x", "y", "w"), ("x", "y")),
    KernelSpec("double_backward", True, ("g",), ("x", "y", "w")),
    KernelSpec("double_backward", False, ("x", "y", "w", "g"), ("x", "y", "w")),
)

PATHS = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]


def small(mul: int = 8, **options: object) -> ConvProblem:
    rows = f"{mul}x0e+{mul}x1o"
    return ConvProblem.build(rows, "0e+1o", rows, PATHS, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def architectures() -> list[int]:
    return find_nvrtc()[0].architectures  # the tests' own requirements bring it


@covering(dtype=["float32", "float64"], layout=["mul_ir", "ir_mul"], shared_weights=[False, True])
def test_every_pass_compiles(
    dtype: str, layout: str, shared_weights: bool, architectures: list[int]
) -> None:
    problem = small(5, dtype=dtype, layout=layout, shared_weights=shared_weights)
    plan = plan_cuda(problem, CudaDevice(90))
    kernels = [
        emit_cuda(problem, plan.with_changes(deterministic=deterministic), spec)
        for spec in SPECS
        for deterministic in (False, True)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda kernel: compile_cuda(kernel.source, plan.target), kernels))


def test_text_depends_on_problem_plan_and_pass_alone() -> None:
    problem = CASES["mace-medium-l2"].problem()
    plan = plan_cuda(problem, CudaDevice(90))
    check_cuda_texts(problem, plan, SPECS)


def test_every_path_is_in_one_kernel_each() -> None:
    """Weight columns that the kernels read are all columns, each once."""
    problem = CASES["nequip-lips"].problem()
    for warps in (1, 2, 8):
        tile = CudaTile(channels=2, components=24, warps=warps)
        plan = CudaPlan(90, tile, tile, tile)
        kernel = emit_cuda(problem, plan, SPECS[0])
        tables = [printed_tables(text) for text in kernel.programs]
        tasks = [t for found in tables for name, t in found.items() if name.startswith("Task")]
        columns = [column for task in tasks for column in task["WEIGHT_COLUMN"]]
        assert sorted(columns) == sorted(problem.weight_offsets)
        assert all(entry.threads <= max(32 * warps, 32) for entry in kernel.entries)
        assert all(entry.shared_bytes <= 48 * 1024 for entry in kernel.entries)


def test_deterministic_kernels_add_nothing_to_shared_results() -> None:
    """Blocks write what is theirs: no atomic addition but those of one task per kernel."""
    problem = CASES["nequip-lips"].problem()
    tile = CudaTile(channels=2, components=6, warps=8)
    plan = CudaPlan(90, tile, tile, tile)
    sharing = {}
    for deterministic in (False, True):
        used = plan.with_changes(deterministic=deterministic)
        kernel = emit_cuda(problem, used, SPECS[2])
        sharing[deterministic] = False
        for found in map(printed_tables, kernel.programs):
            assert found["Pass"]["DETERMINISTIC"] == deterministic
            tasks = [task for name, task in found.items() if name.startswith("Task")]
            rows = [row for task in tasks for row in task["DX_START"]]
            outputs = [output[0] for task in tasks for output in task["OUTPUT"]]
            sharing[deterministic] |= len(rows + outputs) > len(set(rows)) + len(set(outputs))
    assert sharing == {False: True, True: False}


def test_vector_atomics_are_used_where_the_device_has_them() -> None:
    problem = CASES["mace-medium-l1"].problem()
    for capability, flag in ((80, 0), (90, 1), (100, 1)):
        plan = plan_cuda(problem, CudaDevice(capability))
        assert f"#define MDCG_VECTOR_ATOMICS {flag}\n" in emit_cuda(problem, plan, SPECS[2]).source


@pytest.mark.parametrize(
    "fields",
    [
        {"channels": 3},
        {"batch": 33},
        {"warps": 0},
        {"components": 0},
        {"registers": 256},
        {"spill_bytes": -1},
        {"depth": 3},
    ],
)
def test_impossible_tiles_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="tile has"):
        CudaTile(**{"channels": 2, "components": 64, **fields})


def test_a_plan_for_another_device_is_refused() -> None:
    device = plan_cuda(small(), CudaDevice(90))
    host = plan_host(small(), HostDevice("x86-64-v3"))
    with pytest.raises(ValueError, match="is not a CudaPlan"):
        CudaPlan.from_json(host.to_json())
    with pytest.raises(ValueError, match="is not a HostPlan"):
        HostPlan.from_json(device.to_json())
    with pytest.raises(ValueError, match="is not a HostContractionPlan"):
        HostContractionPlan.from_json(CudaContractionPlan(90).to_json())
