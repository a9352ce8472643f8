"""The generated kernel of contractions: values and gradients against the polynomials themselves."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from mdcg.codegen import emit_engine_contraction
from mdcg.problem import SymmetricContractionProblem
from mdcg.runtime.compiler import load_host_kernel

from ..core.contraction_helpers import random_contraction
from ..covering import covering


class Block(ctypes.Structure):
    _fields_ = [
        ("num_nodes", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("coefficients", ctypes.c_void_p),
        ("typed", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("dx", ctypes.c_void_p),
        ("accumulate", ctypes.c_int64),
    ]


def padded(rows: NDArray, channels: int) -> NDArray:
    """Return rows [..., components, channels] with channels rounded up to 64 bytes, aligned."""
    stride = -(-channels * rows.itemsize // 64) * 64 // rows.itemsize
    shape = (*rows.shape[:-1], stride)
    count = int(np.prod(shape))
    memory = np.zeros(count + 64 // rows.itemsize, dtype=rows.dtype)
    start = -memory.ctypes.data % 64 // rows.itemsize
    out = memory[start : start + count].reshape(shape)
    out[..., :channels] = rows
    return out


def oracle(
    problem: SymmetricContractionProblem, x: torch.Tensor, coefficients: torch.Tensor
) -> torch.Tensor:
    out = [torch.zeros_like(x[:, 0]) for _ in range(problem.dim_out)]
    for r, polynomial in enumerate(problem.polynomials):
        for m, terms in enumerate(polynomial.components):
            for value, indices in terms:
                at = problem.out_offset(polynomial.i_out) + m
                out[at] = out[at] + value * coefficients[:, r] * x[:, list(indices)].prod(dim=1)
    return torch.stack(out, dim=1)


@covering(
    shape=[
        ("16x0e+16x1o+16x2e", "16x0e+16x1o", 3),
        ("7x0e+7x1o", "7x1o+7x0e+7x2e", 2),
        ("33x0e", "33x0e", 4),
    ],
    dtype=["float64", "float32"],
    target=["native", "x86-64"],
)
def test_kernel(shape: tuple[str, str, int], dtype: str, target: str) -> None:
    rng = np.random.default_rng(3)
    problem = random_contraction(*shape, dtype=dtype)
    flags = ("-march=native",) if target == "native" else ()
    library = load_host_kernel(emit_engine_contraction(problem), target=target, flags=flags)
    n, types, channels = 5, 3, problem.channels
    kinds = np.array([2, 0, 1, 1, 2], dtype=np.int32)
    x = rng.normal(size=(n, problem.dim_in, channels)).astype(dtype)
    coefficients = rng.normal(size=(types, problem.num_coefficients, channels)).astype(dtype)
    g = rng.normal(size=(n, problem.dim_out, channels)).astype(dtype)
    start = rng.normal(size=x.shape).astype(dtype)

    arrays = [padded(a, channels) for a in (x, coefficients, g, np.zeros_like(g), start)]
    px, pc, pg, out, dx = arrays
    block = Block(
        n, *(a.ctypes.data for a in (kinds, px, pc)), 1, *(a.ctypes.data for a in (out, pg, dx)), 1
    )

    def run(name: str) -> None:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.symbol(name))
        function(ctypes.addressof(block))

    run("mdcg_contraction_forward")
    run("mdcg_contraction_backward")

    xt = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    want = oracle(problem, xt, torch.tensor(coefficients, dtype=torch.float64)[kinds])
    want.backward(torch.tensor(g, dtype=torch.float64))
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    scale = float(want.detach().abs().max())
    assert np.abs(out[..., :channels] - want.detach().numpy()).max() < tolerance * scale
    gradient = xt.grad.numpy() + start
    assert np.abs(dx[..., :channels] - gradient).max() < tolerance * np.abs(gradient).max()
    for array in (out, dx):
        assert not array[..., channels:].any()  # padding stays zero

    block.accumulate = 0
    run("mdcg_contraction_backward")
    gradient = xt.grad.numpy()
    assert np.abs(dx[..., :channels] - gradient).max() < tolerance * np.abs(gradient).max()


def test_info() -> None:
    problem = random_contraction("5x0e+5x1o", "5x1o", 2)
    text = emit_engine_contraction(problem)
    assert text == emit_engine_contraction(problem)
    library = load_host_kernel(text, target="x86-64", flags=())
    info = (ctypes.c_int64 * 6).from_address(library.symbol("mdcg_contraction_info"))
    align = 64 // (4 if problem.dtype == "float32" else 8)
    n = problem.num_coefficients
    assert list(info) == [1, 64 // align, 4 * align, 3 * align, n * align, n]
