"""CUDA kernels without a GPU: text, and machine code made by NVRTC."""

from __future__ import annotations

import re

import pytest

from mdcg.bench.cases import CASES
from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.errors import KernelCompileError
from mdcg.plan import CudaDevice, CudaPlan, CudaTile, plan_cuda
from mdcg.problem import ConvProblem
from mdcg.runtime import find_nvrtc, load_cuda_kernel
from mdcg.runtime.nvrtc import compile_cuda

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
    try:
        return find_nvrtc()[0].architectures
    except KernelCompileError as error:
        pytest.skip(f"NVRTC: {error}")


@pytest.mark.parametrize(
    "name", ["mace-medium-l1", "mace-medium-l2", "nequip-water", "nequix-first"]
)
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_bench_problems_compile(name: str, capability: int, architectures: list[int]) -> None:
    if capability not in architectures:
        pytest.skip(f"this NVRTC does not know sm_{capability}")
    problem = CASES[name].problem()
    plan = plan_cuda(problem, CudaDevice(capability))
    for spec in SPECS[0], SPECS[2], SPECS[4]:
        cubin, _ = compile_cuda(emit_cuda(problem, plan, spec).source, plan.target)
        assert cubin.startswith(b"\x7fELF"), spec


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("shared_weights", [False, True])
def test_every_pass_compiles(
    dtype: str, layout: str, shared_weights: bool, architectures: list[int]
) -> None:
    problem = small(5, dtype=dtype, layout=layout, shared_weights=shared_weights)
    plan = plan_cuda(problem, CudaDevice(90))
    for spec in SPECS:
        compile_cuda(emit_cuda(problem, plan, spec).source, plan.target)


def test_text_depends_on_problem_plan_and_pass_alone() -> None:
    problem = CASES["mace-medium-l2"].problem()
    plan = plan_cuda(problem, CudaDevice(90))
    texts = {spec: emit_cuda(problem, plan, spec).source for spec in SPECS}
    again = ConvProblem.from_json(problem.to_json())
    copy = CudaPlan.from_json(plan.to_json())
    assert copy == plan
    for spec, text in texts.items():
        assert emit_cuda(again, copy, spec).source == text
        assert text.startswith("// mdcg ")
        assert "#include" not in text
    assert len(set(texts.values())) == len(SPECS)


def test_every_path_is_in_one_kernel_each() -> None:
    """Weight columns that the kernels read are all columns, each once."""
    problem = CASES["nequip-lips"].problem()
    for warps in (1, 2, 8):
        tile = CudaTile(channels=2, components=24, warps=warps)
        plan = CudaPlan(90, tile, tile)
        kernel = emit_cuda(problem, plan, SPECS[0])
        columns = re.findall(r"n_w\d+ = load_stream\(p\.w \+ e \* \d+ \+ (\d+) ", kernel.source)
        assert sorted(map(int, columns)) == sorted(problem.weight_offsets)
        assert all(entry.threads <= max(32 * warps, 32) for entry in kernel.entries)
        assert all(entry.shared_bytes <= 48 * 1024 for entry in kernel.entries)


def test_vector_atomics_are_used_where_the_device_has_them() -> None:
    problem = CASES["mace-medium-l1"].problem()
    for capability, flag in ((80, 0), (90, 1), (100, 1)):
        plan = plan_cuda(problem, CudaDevice(capability))
        assert f"#define MDCG_VECTOR_ATOMICS {flag}\n" in emit_cuda(problem, plan, SPECS[2]).source


def test_nvrtc_that_is_too_old_says_so(architectures: list[int]) -> None:
    with pytest.raises(KernelCompileError, match=r"does not compile for sm_999.*install"):
        compile_cuda("", "sm_999")


def test_missing_nvrtc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_NVRTC_LIB", "/nonexistent/libnvrtc.so")
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(KernelCompileError, match="MDCG_NVRTC_LIB cannot be used"):
            find_nvrtc()
        monkeypatch.delenv("MDCG_NVRTC_LIB")
        monkeypatch.setattr("mdcg.runtime.nvrtc._candidates", lambda: iter(()))
        with pytest.raises(KernelCompileError, match="pip install nvidia-cuda-nvrtc"):
            find_nvrtc()
    finally:
        find_nvrtc.cache_clear()


def test_kernels_are_kept_on_disk(
    architectures: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("mdcg.runtime.nvrtc._cubins", {})
    problem = small(3)
    source = emit_cuda(problem, plan_cuda(problem, CudaDevice(90)), SPECS[0]).source
    cubin = load_cuda_kernel(source, "sm_90")
    monkeypatch.setattr("mdcg.runtime.nvrtc._cubins", {})
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    assert load_cuda_kernel(source, "sm_90") == cubin
    with pytest.raises(KernelCompileError, match="MDCG_DISABLE_JIT"):
        load_cuda_kernel(source + "\n", "sm_90")


@pytest.mark.parametrize(
    "fields",
    [
        {"channels": 3},
        {"batch": 33},
        {"warps": 0},
        {"components": 0},
        {"registers": 256},
        {"rows": 16},
    ],
)
def test_impossible_tiles_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="tile has"):
        CudaTile(**{"channels": 2, "components": 64, **fields})


def test_a_plan_for_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="not one for CUDA"):
        CudaPlan.from_json('{"level": "generic"}')
