"""More than 2^31 elements: no index may be computed in 32 bits.

The large operands are zeros that were never written, so they take address space but no memory. A
few rows before and after the limit are not zero, and must be found at their places.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from mdcg.ops import conv
from mdcg.ops.reference import conv_reference
from mdcg.problem import ConvProblem

from .helpers import assert_close, compile_ahead, generator, usual_specs

pytestmark = pytest.mark.compiler

LIMIT = 2**31
GIB = 2**30


def untouched_zeros(rows: int, columns: int) -> torch.Tensor:
    """Return zeros [rows, columns], float32, that take no memory until written."""
    try:
        return torch.from_numpy(np.zeros((rows, columns), dtype=np.float32))
    except MemoryError:
        pytest.skip(f"no address space for {rows * columns * 4 / GIB:.0f} GiB")


MANY_WEIGHTS = ConvProblem.build(
    "256x0e", "0e", "+".join(["256x0e"] * 8), [(0, 0, i) for i in range(8)]
)
N_EDGES = 2**20 + 300
N_NODES = 50


def edges_with_weights() -> tuple[torch.Tensor, ...]:
    """Return x, y, w, sender, receiver and the edges whose weights are not zero."""
    gen = generator(5)
    first_beyond = LIMIT // MANY_WEIGHTS.weight_numel
    marked = torch.tensor([0, 1, first_beyond // 2, first_beyond - 1, first_beyond, N_EDGES - 1])
    w = untouched_zeros(N_EDGES, MANY_WEIGHTS.weight_numel)
    assert w.numel() > LIMIT
    w[marked] = torch.randn(len(marked), w.shape[1], generator=gen)
    x = torch.randn(N_NODES, 256, generator=gen)
    y = torch.randn(N_EDGES, 1, generator=gen)
    sender, receiver = torch.randint(N_NODES, (2, N_EDGES), generator=gen)
    # marked edges have different receivers
    receiver[marked] = torch.arange(len(marked))
    return x, y, w, sender, receiver, marked


def test_weights() -> None:
    compile_ahead([(MANY_WEIGHTS, usual_specs(True)[:1])])
    x, y, w, sender, receiver, marked = edges_with_weights()
    out = conv(MANY_WEIGHTS, x, y, w, sender, receiver)
    want = conv_reference(
        MANY_WEIGHTS,
        x,
        y[marked],
        w[marked],
        sender[marked],
        receiver[marked],
        num_receivers=N_NODES,
    )
    assert (want[: len(marked)].abs().amax(1) > 0).all()
    assert_close(out, want, 1e-6)


def test_node_features() -> None:
    """Node features with more than 2^31 numbers are read in place, and only rows in use."""
    columns, rows = 1024, LIMIT // 1024 + 70
    problem = ConvProblem.build("1024x0e", "0e", "1024x0e", [(0, 0, 0)], layout="ir_mul")
    compile_ahead([(problem, usual_specs(True)[:1])])
    gen = generator(6)
    x = untouched_zeros(rows, columns)
    assert x.numel() > LIMIT
    sender = torch.tensor([0, LIMIT // columns - 1, LIMIT // columns, rows - 1, 1])
    x[sender] = torch.randn(len(sender), columns, generator=gen)
    receiver = torch.tensor([3, 0, 1, 2, 2])
    y, w = torch.randn(5, 1, generator=gen), torch.randn(5, columns, generator=gen)
    out = conv(problem, x, y, w, sender, receiver, num_receivers=4)
    want = conv_reference(problem, x[sender], y, w, torch.arange(5), receiver, num_receivers=4)
    assert_close(out, want, 1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_of_weights() -> None:
    """The gradient of weights may have more than 2^31 numbers, here 8 GiB."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if available < 14:
        pytest.skip(f"needs 14 GiB of free memory, there are {available:.0f}")
    start = time.monotonic()
    torch.ones(GIB // 8)  # 0.5 GiB
    seconds = 16 * (time.monotonic() - start)
    if seconds > 30:
        pytest.skip(f"this machine takes {seconds:.0f} s to hand out 8 GiB")
    x, y, w, sender, receiver, marked = edges_with_weights()
    w.requires_grad_()
    out = conv(MANY_WEIGHTS, x, y, w, sender, receiver)
    g = torch.randn(out.shape, generator=generator(7))
    (gradient,) = torch.autograd.grad(out, w, g)
    assert gradient.shape == w.shape
    for e in (*marked.tolist(), N_EDGES // 3, N_EDGES - 2):
        want = (x[sender[e]] * y[e] * g[receiver[e]].reshape(8, 256)).reshape(-1)
        assert_close(gradient[e], want, 1e-6, f"edge {e}")
