"""CUDA kernels without a GPU: text, and machine code made by NVRTC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.errors import UnsupportedProblemError
from mdcg.plan import (
    CudaDevice,
    CudaPlan,
    CudaTile,
    CudaUvwTile,
    HostDevice,
    HostPlan,
    plan_cuda,
    plan_host,
)
from mdcg.plan.contraction import CudaContractionPlan, HostContractionPlan
from mdcg.problem import ConvProblem
from mdcg.runtime.nvrtc import compile_cuda

from ..covering import covering
from .helpers import mixed_problem, usual_specs

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


@covering(dtype=["float32", "float64"], layout=["mul_ir", "ir_mul"], shared_weights=[False, True])
def test_every_pass_compiles(dtype: str, layout: str, shared_weights: bool) -> None:
    problem = small(5, dtype=dtype, layout=layout, shared_weights=shared_weights)
    plan = plan_cuda(problem, CudaDevice(90))
    kernels = [
        emit_cuda(problem, plan.with_changes(deterministic=deterministic), spec)
        for spec in SPECS
        for deterministic in (False, True)
    ]
    mixed = mixed_problem(dtype=dtype, layout=layout, shared_weights=shared_weights)
    of_mixed = plan_cuda(mixed, CudaDevice(90)).with_changes(deterministic=dtype == "float64")
    kernels += [emit_cuda(mixed, of_mixed, spec) for spec in usual_specs()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda kernel: compile_cuda(kernel.source, plan.target), kernels))


def test_too_many_copies_are_refused_in_one_sentence() -> None:
    problem = ConvProblem.build("4x0e", "20000x0e", "3x0e", [(0, 0, 0, "uvw")])
    with pytest.raises(UnsupportedProblemError, match=r"20000 copies .* split the block"):
        emit_cuda(
            problem, plan_cuda(problem, CudaDevice(90)), KernelSpec("backward", False, ("x",))
        )


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


@pytest.mark.parametrize(
    "fields", [{"warps": 3}, {"warps": 32}, {"words": 0}, {"scratch": 0}, {"registers": 256}]
)
def test_impossible_tiles_of_weight_matrices_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="uvw tile has"):
        CudaUvwTile(**fields)


def test_a_plan_for_another_device_is_refused() -> None:
    device = plan_cuda(small(), CudaDevice(90))
    host = plan_host(small(), HostDevice("x86-64-v3"))
    with pytest.raises(ValueError, match="is not a CudaPlan"):
        CudaPlan.from_json(host.to_json())
    with pytest.raises(ValueError, match="is not a HostPlan"):
        HostPlan.from_json(device.to_json())
    with pytest.raises(ValueError, match="is not a HostContractionPlan"):
        HostContractionPlan.from_json(CudaContractionPlan(90).to_json())
