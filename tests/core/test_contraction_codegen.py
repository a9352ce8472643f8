"""Generated text of symmetric contractions: programs, machine code by NVRTC."""

from __future__ import annotations

import pytest

from mdcg.codegen.contraction.cuda import emit_contraction_cuda
from mdcg.codegen.contraction.program import ContractionSpec, contraction_groups
from mdcg.plan import CudaDevice, HostDevice
from mdcg.plan.contraction import (
    CudaContractionPlan,
    HostContractionPlan,
    plan_contraction_cuda,
    plan_contraction_host,
)
from mdcg.problem import Polynomial, SymmetricContractionProblem
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..covering import covering
from .contraction_helpers import random_contraction

DOT = tuple((1.0, (i, i)) for i in (1, 2, 3))
# an invariant of second order, one of third order and a vector
PROBLEM = SymmetricContractionProblem.build(
    "8x0e+8x1o",
    "8x0e+8x1o",
    [
        Polynomial(0, (DOT,)),
        Polynomial(0, (tuple((0.5, (0, *ix)) for _, ix in DOT),)),
        Polynomial(1, tuple(((2.0, (0, i)),) for i in (1, 2, 3))),
    ],
)
SPECS = {
    "forward": ContractionSpec("forward", True),
    "backward": ContractionSpec("backward", True, ("x", "w")),
    "double_backward": ContractionSpec("double_backward", True, ("x", "w", "g"), ("x", "w")),
}
MORE = (
    ContractionSpec("forward", False),
    ContractionSpec("backward", True, ("x",)),
    ContractionSpec("backward", False, ("x", "w")),
    ContractionSpec("double_backward", False, ("w", "g"), ("w",)),
)


# -- programs -------------------------------------------------------------------------------------


def test_coupled_features_are_found() -> None:
    """(x . x)(x . y) is computed from two dot products, not from 9 terms of third order."""
    terms = [
        tuple((1.0, (*sorted((i, i)), 3 + j)) for i in range(3) for j in range(3)) for _ in range(1)
    ]
    problem = SymmetricContractionProblem.build(
        "4x1o+4x1o", "4x0e", [Polynomial(0, tuple(terms))], dtype="float64"
    )
    statements = [s for g in contraction_groups(problem, SPECS["forward"]) for s in g]
    # Count multiplications, and additions that cannot be fused with one.
    operations = 0
    for statement in statements:
        for n, (k, factors) in enumerate(statement.value.terms):
            products = len(factors) - 1 + (abs(k) != 1.0)
            operations += max(products, int(n > 0 or statement.add))
    assert operations <= 12


# -- CUDA -----------------------------------------------------------------------------------------


@covering(
    capability=[80, 90, 100],
    dtype=["float32", "float64"],
    shape=[("33x0e+33x1o", "33x0e+33x1o", 3), ("64x0e+64x1o+64x2e+64x3o", "64x0e", 4)],
)
def test_kernels_compile(capability: int, dtype: str, shape: tuple[str, str, int]) -> None:
    if capability not in find_nvrtc()[0].architectures:
        pytest.skip(f"this NVRTC does not know sm_{capability}")
    problem = random_contraction(*shape, dtype=dtype)
    plan = plan_contraction_cuda(problem, CudaDevice(capability))
    for spec in (*SPECS.values(), *MORE):
        cubin, _ = compile_cuda(emit_contraction_cuda(problem, plan, spec).source, plan.target)
        assert cubin.startswith(b"\x7fELF"), spec


# -- plans and names ------------------------------------------------------------------------------


def test_plans_are_text_and_back() -> None:
    problem = random_contraction("128x0e+128x1o", "128x0e")
    host = plan_contraction_host(problem, HostDevice("x86-64-v4"))
    assert HostContractionPlan.from_json(host.to_json()) == host
    assert host.lanes == 8
    assert plan_contraction_host(random_contraction(), HostDevice("x86-64-v4")).lanes == 8
    narrow = random_contraction("3x0e", "3x0e", dtype="float32")
    assert plan_contraction_host(narrow, HostDevice("x86-64-v4")).lanes == 4
    cuda = plan_contraction_cuda(problem, CudaDevice(90))
    assert CudaContractionPlan.from_json(cuda.to_json()) == cuda
    assert (cuda.threads, cuda.target) == (128, "sm_90")
    assert plan_contraction_cuda(narrow, CudaDevice(90)).threads == 32
    assert "lanes=8" in str(host)
    assert "threads=128" in str(cuda)
    with pytest.raises(ValueError, match="48 threads"):
        CudaContractionPlan(90, threads=48)
