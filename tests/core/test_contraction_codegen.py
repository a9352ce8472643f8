"""Generated text of symmetric contractions: programs, machine code by NVRTC."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mdcg
from mdcg.codegen.common.expression import Statement
from mdcg.codegen.common.straight_line import Program
from mdcg.codegen.contraction.cuda import emit_contraction_cuda
from mdcg.codegen.contraction.host import emit_contraction_host
from mdcg.codegen.contraction.program import ContractionSpec, contraction_groups
from mdcg.plan import CudaDevice, HostDevice
from mdcg.plan.contraction import (
    CudaContractionPlan,
    HostContractionPlan,
    plan_contraction_cuda,
    plan_contraction_host,
)
from mdcg.problem import Polynomial, SymmetricContractionProblem
from mdcg.runtime import find_nvrtc
from mdcg.runtime.nvrtc import compile_cuda

from ..covering import covering
from .contraction_helpers import random_contraction

V3 = HostDevice("x86-64-v3", l2_bytes=1024 * 1024)

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


def host_text(problem: SymmetricContractionProblem, spec: ContractionSpec) -> str:
    return emit_contraction_host(problem, plan_contraction_host(problem, V3), spec).source


def cuda_text(problem: SymmetricContractionProblem, spec: ContractionSpec) -> str:
    plan = plan_contraction_cuda(problem, CudaDevice(90))
    return emit_contraction_cuda(problem, plan, spec).source


@pytest.mark.parametrize("spec", [*SPECS.values(), *MORE], ids=str)
def test_text_starts_with_what_it_is(spec: ContractionSpec) -> None:
    for text in (host_text(PROBLEM, spec), cuda_text(PROBLEM, spec)):
        first, second, third = text.splitlines()[:3]
        assert first == f"// mdcg {mdcg.__version__}, problem {PROBLEM.key()}, kernel {spec}"
        assert "ContractionPlan" in second
        assert third.startswith("// arg: n_rows, x, w")


def test_different_kernels_have_different_text() -> None:
    texts = {host_text(PROBLEM, spec).partition("#include")[2] for spec in (*SPECS.values(), *MORE)}
    assert len(texts) == len(SPECS) + len(MORE)


@pytest.mark.parametrize("spec", [*SPECS.values(), *MORE], ids=str)
def test_constants_are_exact(spec: ContractionSpec) -> None:
    problem = random_contraction()
    for text, pattern in (
        (host_text(problem, spec), r"splat\(T\(([^)]*)\)\)"),
        (cuda_text(problem, spec), r"T\((0x[^)]*)\)"),
    ):
        found = re.findall(pattern, text)
        assert found
        assert all(value.startswith("0x1.") and float.fromhex(value) > 0 for value in found)


def test_gradients_not_wanted_leave_no_code() -> None:
    only_x = host_text(PROBLEM, ContractionSpec("backward", True, ("x",)))
    assert "mdcg_sum" not in only_x
    assert "dw" not in re.search(r"// arg: (.*)", only_x)[1]  # type: ignore[index]
    assert "*(VU*)(dc +" not in only_x
    assert "*(VU*)(dc +" in host_text(PROBLEM, SPECS["backward"])


# -- programs -------------------------------------------------------------------------------------


def run(statements: list[Statement], values: dict[str, float]) -> dict[str, float]:
    """Execute statements on numbers."""
    known = dict(values)
    for s in statements:
        value = sum(k * np.prod([known[f] for f in fs]) for k, fs in s.value.terms)
        known[s.target] = value + (known.get(s.target, 0.0) if s.add else 0.0)
    return known


def numbers(problem: SymmetricContractionProblem) -> dict[str, float]:
    rng = np.random.default_rng(3)
    sizes = {"x": problem.dim_in, "a": problem.dim_in, "g": problem.dim_out}
    sizes |= {"c": problem.num_coefficients, "b": problem.num_coefficients}
    return {f"{n}{i}": float(rng.normal()) for n, size in sizes.items() for i in range(size)}


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_programs_compute_the_polynomials(degree: int) -> None:
    problem = random_contraction(degree=degree, per_block=8, terms=9)
    known = numbers(problem)
    for group in contraction_groups(problem, ContractionSpec("forward", True)):
        known = run(group, known)
    want = np.zeros(problem.dim_out)
    for r, p in enumerate(problem.polynomials):
        for m, terms in enumerate(p.components):
            value = sum(v * np.prod([known[f"x{i}"] for i in ix]) for v, ix in terms)
            want[problem.out_offset(p.i_out) + m] += known[f"c{r}"] * value
    got = [known.get(f"o{m}", 0.0) for m in range(problem.dim_out)]
    assert np.allclose(got, want, rtol=1e-12, atol=1e-12)


def test_coupled_features_are_found() -> None:
    """(x . x)(x . y) three times over needs x . x once: 3 + 3 products, not 9 of degree three."""
    terms = [
        tuple((1.0, (*sorted((i, i)), 3 + j)) for i in range(3) for j in range(3)) for _ in range(1)
    ]
    problem = SymmetricContractionProblem.build(
        "4x1o+4x1o", "4x0e", [Polynomial(0, tuple(terms))], dtype="float64"
    )
    statements = [s for g in contraction_groups(problem, SPECS["forward"]) for s in g]
    # multiplications, and additions but those of single products, as fused multiply-adds
    operations = 0
    for statement in statements:
        for n, (k, factors) in enumerate(statement.value.terms):
            products = len(factors) - 1 + (abs(k) != 1.0)
            operations += max(products, int(n > 0 or statement.add))
    assert operations <= 12


def test_tangents_and_adjoints_of_a_program() -> None:
    program = Program()
    square = program.let([(1.0, ("x", "x")), (2.0, ("y",))])
    cube = program.let([(3.0, (square, "x")), (-1.0, ("z",))])
    moved = program.tangents({"x": "u"})[cube]
    program.emit("moved", [(1.0, (moved,))])
    for name, terms in program.adjoints({cube: [(1.0, ("g",))]}, ["x", "y", "z"]).items():
        program.emit(f"d{name}", terms)
    found = run(program.statements(), {"x": 2.0, "y": 3.0, "z": 5.0, "u": 7.0, "g": 11.0})
    # 3 x (x x + 2 y) - z
    assert found["moved"] == pytest.approx((9 * 4 + 6 * 3) * 7)
    assert (found["dx"], found["dy"], found["dz"]) == pytest.approx((54 * 11, 12 * 11, -11))
    assert program.let([(1.0, ("x", "x")), (2.0, ("y",))]) == square
    assert program.let([(1.0, ("y",))]) == "y"
    assert program.let([(1.0, ("y",)), (-1.0, ("y",))]) == ""
    assert "unused" not in {s.target for s in program.statements()}


# -- CUDA -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def architectures() -> list[int]:
    return find_nvrtc()[0].architectures


@covering(
    capability=[80, 90, 100],
    dtype=["float32", "float64"],
    shape=[("33x0e+33x1o", "33x0e+33x1o", 3), ("64x0e+64x1o+64x2e+64x3o", "64x0e", 4)],
)
def test_kernels_compile(
    capability: int, dtype: str, shape: tuple[str, str, int], architectures: list[int]
) -> None:
    if capability not in architectures:
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sideways", True), "kernel kind is 'sideways'"),
        (("backward", True, ("w", "x")), "must be distinct, in the order x, w, g"),
        (("double_backward", True, ("x",), ("x", "x")), "must be distinct"),
    ],
)
def test_bad_specs_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContractionSpec(*arguments)  # type: ignore[arg-type]
