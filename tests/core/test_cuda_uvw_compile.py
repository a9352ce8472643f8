"""CUDA kernels of paths with weight matrices without a GPU: text, and machine code by NVRTC."""

from __future__ import annotations

import re

import pytest
from benchmark.cases import CASES

from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.errors import UnsupportedProblemError
from mdcg.plan import CudaDevice, CudaUvwTile, plan_cuda
from mdcg.problem import ConvProblem
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..covering import covering
from .helpers import ALL, check_cuda_texts, mixed_problem, printed_tables, usual_specs


@pytest.fixture(scope="module")
def architectures() -> list[int]:
    return find_nvrtc()[0].architectures


def emitted(problem: ConvProblem, spec: KernelSpec) -> str:
    return emit_cuda(problem, plan_cuda(problem, CudaDevice(90)), spec).source


@covering(dtype=["float32", "float64"], layout=["mul_ir", "ir_mul"], shared_weights=[False, True])
def test_every_pass_of_mixed_modes_compiles(
    dtype: str, layout: str, shared_weights: bool, architectures: list[int]
) -> None:
    problem = mixed_problem(dtype=dtype, layout=layout, shared_weights=shared_weights)
    plan = plan_cuda(problem, CudaDevice(90)).with_changes(deterministic=dtype == "float64")
    for spec in usual_specs():
        compile_cuda(emit_cuda(problem, plan, spec).source, "sm_90")


def test_text_depends_on_problem_plan_and_pass_alone() -> None:
    problem = mixed_problem()
    plan = plan_cuda(problem, CudaDevice(90))
    check_cuda_texts(problem, plan, usual_specs())


@pytest.mark.parametrize("scratch", [500, 4000, 100_000])
def test_turns_cover_every_weight_once(scratch: int) -> None:
    """Columns of the stacks' rows, whatever the shared memory."""
    problem = CASES["diffdock-l2"].problem()
    plan = plan_cuda(problem, CudaDevice(90)).with_changes(uvw=CudaUvwTile(scratch=scratch))
    kernel = emit_cuda(problem, plan, KernelSpec("forward", True))
    columns: list[int] = []
    tables = printed_tables(kernel.source)
    stacks = [members for name, members in tables.items() if name.startswith("Stack")]
    for stack in stacks:
        for row in range(stack["ROWS"]):
            first, column = max(segment for segment in stack["SEGMENT"] if segment[0] <= row)
            start = column + (row - first) * stack["MUL"]
            columns += range(start, start + stack["MUL"])
    assert sorted(columns) == list(range(problem.weight_numel))
    assert len(stacks) >= 4
    assert all(entry.shared_bytes <= 48 * 1024 for entry in kernel.entries)


def test_deterministic_kernels_add_to_rows_of_their_own() -> None:
    problem = mixed_problem(shared_weights=True)
    plan = plan_cuda(problem, CudaDevice(90)).with_changes(deterministic=True)
    kernel = emit_cuda(problem, plan, KernelSpec("backward", True, ALL[:3]))
    assert kernel.zeroed == ("dw",)
    assert kernel.entries[0].threads == 32  # several warps would add to the same row
    found = printed_tables(kernel.source)["Kernel"]
    assert found["DETERMINISTIC"]
    # gradients of features and attributes are summed in shared memory, and then stored
    assert found["DX"] >= 0
    assert found["DY"] >= 0


def test_weights_are_not_read_where_only_their_gradient_is_wanted() -> None:
    problem = CASES["diffdock-l1"].problem()

    def vectors(wanted: str) -> tuple[bool, bool]:
        text = emitted(problem, KernelSpec("backward", False, (wanted,)))
        kernel = printed_tables(text)["Kernel"]
        return kernel["LEFT_W"] >= 0, kernel["PULL_W"] >= 0

    assert vectors("w") == (True, False)
    assert vectors("x") == (False, True)


def test_double_backward_reads_each_matrix_once() -> None:
    source = emitted(
        CASES["diffdock-l1"].problem(), KernelSpec("double_backward", True, ALL, ALL[:3])
    )
    stacks = re.findall(r"Stack\d+_\d+", source[source.index("run_uvw<Kernel") :])
    assert len(set(stacks)) == len(stacks) == 4
    kernel = printed_tables(source)["Kernel"]
    assert all(kernel[name] >= 0 for name in ("LEFT_W", "LEFT_C", "PULL_W", "PULL_C"))


def test_too_many_copies_are_refused_in_one_sentence() -> None:
    problem = ConvProblem.build("4x0e", "20000x0e", "3x0e", [(0, 0, 0, "uvw")])
    with pytest.raises(UnsupportedProblemError, match=r"20000 copies .* split the block"):
        emitted(problem, KernelSpec("backward", False, ("x",)))


@pytest.mark.parametrize(
    "fields", [{"warps": 3}, {"warps": 32}, {"words": 0}, {"scratch": 0}, {"registers": 256}]
)
def test_impossible_tiles_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="uvw tile has"):
        CudaUvwTile(**fields)
