"""The CUDA text of symmetric contractions, run on the host: a thread per lane, warps in turn."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.codegen.contraction import ContractionSpec
from mdcg.codegen.contraction_cuda import emit_contraction_cuda
from mdcg.ops.contraction import symmetric_contraction_reference
from mdcg.plan.contraction import CudaContractionPlan
from mdcg.problem import SymmetricContractionProblem
from mdcg.runtime.compiler import find_compiler

from .contraction_helpers import random_contraction, random_operands
from .helpers import assert_close

# What the kernels use of CUDA; lanes of a warp meet wherever they look at each other.
SHIM = """
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __noinline__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
struct Index { unsigned x; };
struct Warp { std::barrier<> meet{32}; int slots[32]; };
static thread_local Index threadIdx, blockIdx;
static thread_local Warp* warp;
template <typename V> static V __ldg(const V* p) { return *p; }
template <typename F> static auto together(int value, F read) {
    warp->slots[threadIdx.x % 32] = value;
    warp->meet.arrive_and_wait();
    const auto found = read(warp->slots);
    warp->meet.arrive_and_wait();
    return found;
}
static unsigned __ballot_sync(unsigned, bool v) {
    return together(v, [](const int* s) {
        unsigned bits = 0;
        for (int i = 0; i < 32; ++i) bits |= unsigned(s[i] != 0) << i;
        return bits;
    });
}
static bool __any_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) != 0; }
static int __shfl_sync(unsigned, int v, int from) {
    return together(v, [from](const int* s) { return s[from]; });
}
static int __popc(unsigned v) { return __builtin_popcount(v); }
static int __ffs(unsigned v) { return __builtin_ffs(int(v)); }
"""

DRIVER = """
extern "C" void emulate(const int64_t* values, int64_t blocks, int threads) {
    Arguments p;
    memcpy(&p, values, sizeof(p));
    for (int64_t b = 0; b < blocks; ++b)
        for (int first = 0; first < threads; first += 32) {
            Warp shared;
            std::vector<std::thread> lanes;
            for (int i = 0; i < 32; ++i)
                lanes.emplace_back([&, i] {
                    warp = &shared;
                    threadIdx.x = unsigned(first + i);
                    blockIdx.x = unsigned(b);
                    mdcg_run(p);
                });
            for (auto& lane : lanes) lane.join();
        }
}
"""


def emulate(
    problem: SymmetricContractionProblem,
    spec: ContractionSpec,
    tensors: dict[str, torch.Tensor],
    nodes: int,
    folder: Path,
) -> None:
    """Compile a kernel with the shim and run it; results are among the tensors."""
    kernel = emit_contraction_cuda(problem, CudaContractionPlan(90, threads=64), spec)
    source, binary = folder / f"{spec}.cpp", folder / f"{spec}.so"
    source.write_text(SHIM + kernel.source + DRIVER)
    command = [*find_compiler(), "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread"]
    done = subprocess.run(
        [*command, "-o", str(binary), str(source)], capture_output=True, text=True, check=False
    )
    if "barrier" in done.stderr and "No such file" in done.stderr:
        pytest.skip("this C++ compiler has no <barrier>")
    assert done.returncode == 0, done.stderr
    values = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    values |= {"n_rows": nodes, "n_species": tensors["y"].shape[1] if "y" in tensors else 0}
    arguments = (ctypes.c_int64 * len(kernel.arguments))(*(values[n] for n in kernel.arguments))
    entry = kernel.entries[0]
    blocks = -(-nodes * kernel.run // entry.rows)
    ctypes.CDLL(str(binary)).emulate(arguments, ctypes.c_int64(blocks), ctypes.c_int(entry.threads))


def operands(problem: SymmetricContractionProblem, nodes: int) -> dict[str, torch.Tensor]:
    x, k, y = random_operands(problem, nodes, 40)
    y[4] = 0
    y[4, [0, 33]] = 1  # two species that one lane sees
    generator = torch.Generator().manual_seed(3)
    g, a, b = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(x.dtype)
        for shape in ((nodes, problem.channels * problem.dim_out), x.shape, k.shape)
    )
    return {"x": x, "w": k, "y": y, "g": g, "a": a, "b": b}


def expected(problem: SymmetricContractionProblem, given: dict[str, torch.Tensor]) -> Any:
    """Return value, first and second derivatives of the reference, per node for coefficients."""
    exact = {name: tensor.double() for name, tensor in given.items()}
    x, g = (exact[name].requires_grad_() for name in ("x", "g"))
    rows = torch.einsum("ns,src->nrc", exact["y"], exact["w"]).requires_grad_()
    out = symmetric_contraction_reference(problem, x, rows)
    first = torch.autograd.grad(out, (x, rows), g, create_graph=True)
    b = torch.einsum("ns,src->nrc", exact["y"], exact["b"])
    psi = (first[0] * exact["a"]).sum() + (first[1] * b).sum()
    return out, first, torch.autograd.grad(psi, (x, rows, g))


@pytest.mark.parametrize(
    ("into", "out", "dtype"),
    [
        ("33x0e+33x1o", "33x0e+33x1o", "float32"),
        ("7x0e+7x2e", "7x2e", "float64"),
        ("64x0e+64x1o+64x2e+64x3o", "64x1o", "float64"),
    ],
)
def test_kernels_give_what_the_definition_gives(
    into: str, out: str, dtype: str, tmp_path: Path
) -> None:
    problem = random_contraction(into, out, 4, dtype=dtype, per_block=7)
    nodes = 6
    given = operands(problem, nodes)
    value, first, second = expected(problem, given)
    limit = 1e-12 if dtype == "float64" else 2e-5
    width = (nodes, problem.num_coefficients, problem.channels)

    def check(spec: ContractionSpec, wanted: dict[str, torch.Tensor]) -> None:
        nan = float("nan")
        results = {
            name: given["x"].new_full(width if name == "dw" else tensor.shape, nan)
            for name, tensor in wanted.items()
        }
        emulate(problem, spec, given | results, nodes, tmp_path)
        for name, tensor in wanted.items():
            assert_close(results[name], tensor.detach().to(results[name].dtype), limit, name)

    check(ContractionSpec("forward", True), {"out": value})
    check(ContractionSpec("backward", True, ("x", "w")), {"dx": first[0], "dw": first[1]})
    spec = ContractionSpec("double_backward", True, ("x", "w", "g"), ("x", "w"))
    check(spec, {"dx": second[0], "dw": second[1], "dg": second[2]})


def test_coefficients_per_node(tmp_path: Path) -> None:
    problem = random_contraction("5x0e+5x1o", "5x0e", 3)
    given = operands(problem, 6)
    given["w"] = torch.einsum("ns,src->nrc", given.pop("y"), given["w"])
    result = {"out": given["x"].new_empty(6, 5)}
    emulate(problem, ContractionSpec("forward", False), given | result, 6, tmp_path)
    assert_close(
        result["out"], symmetric_contraction_reference(problem, given["x"], given["w"]), 1e-12
    )
