"""Generated convolution kernels of the engine against plain einsum and autograd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark.engine_conv import (
    EngineKernel,
    aligned,
    pad_rows,
    pad_weights,
    unpad_rows,
)
from numpy.typing import NDArray

from mdcg.codegen.conv.engine import emit_engine_conv
from mdcg.ops.reference import conv_reference
from mdcg.plan import EnginePlan
from mdcg.problem import ConvProblem

from .problems import build

Array = NDArray[Any]

RTOL = {"float64": 1e-12, "float32": 2e-5}


def harmonics(l_max: int) -> str:
    return "+".join(f"1x{degree}{'eo'[degree % 2]}" for degree in range(l_max + 1))


PROBLEMS = {
    "scalars": ("5x0e", harmonics(3), "5x0e+5x1o+5x2e+5x3o"),
    "medium": ("32x0e+32x1o", harmonics(3), "32x0e+32x1o+32x1o+32x2e+32x2e+32x3o+32x3o"),
    "odd": ("3x0e+17x1o+33x2e", harmonics(2), "3x1o+17x0e+17x1o+33x0e+33x1o+33x2e+17x2e"),
    "repeated": ("8x1o+8x1o+4x0e+8x1e", harmonics(2), "8x0e+8x0e+8x2e+4x0e+4x1o+8x1e+8x1o"),
    "high": ("16x0e+2x4e+40x3o", harmonics(4), "16x4e+2x0e+2x4e+40x0e+40x3o+40x4e"),
    "empty blocks": ("0x0e+6x1o", harmonics(1), "0x1o+6x0e+6x1e+6x2e"),
}


@dataclass
class Operands:
    sender: Array
    receiver: Array
    x: Array  # [nodes][features]
    y: Array  # [edges][components]
    g: Array
    hidden: Array
    w2: Array
    table: Array
    knot: Array
    basis: Array
    slope: Array


def random_operands(problem: ConvProblem, hidden: int, edges: int, seed: int = 0) -> Operands:
    rng = np.random.default_rng(seed)
    nodes, local, rows = 9, 6, 23

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(problem.dtype)

    receiver = np.sort(rng.integers(0, local, edges)).astype(np.int32)
    return Operands(
        sender=rng.integers(0, nodes, edges).astype(np.int32),
        receiver=receiver,
        x=normal(nodes, problem.irreps_in1.dim),
        y=normal(edges, problem.irreps_in2.dim),
        g=normal(local, problem.irreps_out.dim),
        hidden=normal(edges, hidden),
        w2=normal(hidden, problem.weight_numel),
        table=normal(rows, problem.weight_numel),
        knot=rng.integers(0, rows - 3, edges).astype(np.int32),
        basis=normal(3, edges),
        slope=normal(3, edges),
    )


def expected(problem: ConvProblem, operands: Operands, table: bool) -> dict[str, Array]:
    """Evaluate in double: outputs and the gradients of their product with g."""
    leaves = {
        name: torch.tensor(getattr(operands, name), dtype=torch.float64, requires_grad=True)
        for name in ("x", "y", "hidden")
    }
    length = torch.zeros(len(operands.sender), dtype=torch.float64, requires_grad=True)
    if table:
        basis = torch.tensor(operands.basis + 0.0, dtype=torch.float64)
        moved = basis + length * torch.tensor(operands.slope, dtype=torch.float64)
        rows = torch.tensor(operands.table, dtype=torch.float64)
        knot = torch.tensor(operands.knot).long()
        steps = [rows[knot + j + 1] - rows[knot + j] for j in range(3)]
        weights = rows[knot] + sum(moved[j][:, None] * steps[j] for j in range(3))
    else:
        weights = leaves["hidden"] @ torch.tensor(operands.w2, dtype=torch.float64)
    out = conv_reference(
        problem,
        leaves["x"],
        leaves["y"],
        weights,
        torch.tensor(operands.sender),
        torch.tensor(operands.receiver),
        num_receivers=len(operands.g),
    )
    names = {"dx": leaves["x"], "dy": leaves["y"]}
    names |= {"d_length": length} if table else {"d_hidden": leaves["hidden"]}
    phi = (out * torch.tensor(operands.g, dtype=torch.float64)).sum()
    gradients = torch.autograd.grad(phi, list(names.values()))
    found = {"out": out, **dict(zip(names, gradients, strict=True))}
    return {name: value.detach().numpy() for name, value in found.items()}


def evaluate(
    kernel: EngineKernel, operands: Operands, table: bool, *, order: Array, dx: bool = True
) -> dict[str, Array]:
    """Walk the edges in blocks; what a kernel must write is NaN before, and so is its scratch."""
    problem, dtype, capacity = kernel.problem, kernel.dtype, kernel.edges
    edges = len(order)
    components, inputs = problem.irreps_in2.dim, operands.hidden.shape[1]
    x = pad_rows(operands.x, problem.irreps_in1)
    g = pad_rows(operands.g, problem.irreps_out)
    out, dx_rows = aligned(g.shape, dtype), aligned(x.shape, dtype)
    w2 = np.zeros((kernel.hidden_stride, problem.weight_numel), dtype)
    w2[:inputs] = operands.w2
    w2 = pad_weights(w2, problem)
    w2_t = aligned((kernel.weight_width, kernel.hidden_stride), dtype)
    w2_t[...] = w2.transpose(0, 2, 1).reshape(w2_t.shape)
    rows = pad_weights(operands.table, problem)
    # in double kernels take differences themselves
    steps = pad_weights(np.diff(operands.table, axis=0, append=operands.table[:1]), problem)
    found: dict[str, Array] = {
        "dy": np.zeros((edges, components)),
        "d_hidden": np.zeros((edges, inputs)),
        "d_length": np.zeros(edges),
    }

    def columns(values: Array, chosen: Array) -> Array:
        padded = aligned((len(values), capacity), dtype)
        padded[:, : len(chosen)] = values[:, chosen]
        return padded

    for start in range(0, edges, capacity):
        chosen = order[start : start + capacity]
        count = len(chosen)
        hidden = aligned((capacity, kernel.hidden_stride), dtype)
        hidden[:count, :inputs] = operands.hidden[chosen]
        written = {
            "d_harmonics": aligned((components, capacity), dtype),
            "d_hidden": aligned((capacity, kernel.hidden_stride), dtype),
            "d_length": aligned((capacity,), dtype),
        }
        for array in (*written.values(), kernel.scratch.view(dtype)):
            array[...] = np.nan
        common: dict[str, Any] = {
            "num_edges": count,
            "sender": np.ascontiguousarray(operands.sender[chosen]),
            "receiver": np.ascontiguousarray(operands.receiver[chosen]),
            "harmonics": columns(operands.y.T, chosen),
            "x": x,
        }
        if table:
            common |= {
                "table": rows,
                "steps": steps if dtype == np.float32 else None,
                "table_rows": rows.shape[1],
                "knot": np.ascontiguousarray(operands.knot[chosen]),
                "basis": columns(operands.basis, chosen),
                "slope": columns(operands.slope, chosen),
            }
        else:
            common |= {"hidden": hidden, "w2": w2, "w2_t": w2_t}
        suffix = "_table" if table else ""
        kernel.call(f"forward{suffix}", **common, out=out)
        kernel.scratch.view(dtype)[...] = np.nan
        kernel.call(f"backward{suffix}", **common, g=g, dx=dx_rows if dx else None, **written)
        found["dy"][chosen] = written["d_harmonics"].T[:count]
        found["d_hidden"][chosen] = written["d_hidden"][:count, :inputs]
        found["d_length"][chosen] = written["d_length"][:count]
    found["out"] = unpad_rows(out, problem.irreps_out)
    found["dx"] = unpad_rows(dx_rows, problem.irreps_in1)
    del found["d_hidden" if table else "d_length"]
    return found


def check(found: dict[str, Array], wanted: dict[str, Array], rtol: float) -> None:
    for name, value in wanted.items():
        scale = np.abs(value).max(initial=1e-300)
        error = np.abs(found[name] - value).max(initial=0) / scale
        assert error < rtol, f"{name}: relative error {error:.1e}"


def walk(operands: Operands, backward: bool) -> Array:
    """Receiver-major, or by blocks of senders as a backward pass goes."""
    keys = (operands.receiver, operands.sender // 4) if backward else (operands.receiver,)
    return np.lexsort(keys)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_matches_einsum(name: str, dtype: str) -> None:
    problem = build(*PROBLEMS[name], dtype)
    kernel = EngineKernel(problem, 11, plan=EnginePlan(edges=48))
    for edges in (1, 5, 131):
        operands = random_operands(problem, 11, edges, edges)
        for table in (False, True):
            wanted = expected(problem, operands, table)
            for backward in (False, True):
                order = walk(operands, backward)
                check(evaluate(kernel, operands, table, order=order), wanted, RTOL[dtype])
            del wanted["dx"]
            found = evaluate(kernel, operands, table, order=order, dx=False)
            check(found, wanted, RTOL[dtype])
            assert not found["dx"].any()


@pytest.mark.parametrize("flags", [("-march=x86-64",), ("-march=x86-64-v3",)])
def test_instruction_sets(flags: tuple[str, ...]) -> None:
    problem = build(*PROBLEMS["odd"])
    kernel = EngineKernel(problem, 64, flags=flags)
    operands = random_operands(problem, 64, 200)
    order = walk(operands, True)
    for table in (False, True):
        wanted = expected(problem, operands, table)
        check(evaluate(kernel, operands, table, order=order), wanted, RTOL["float64"])


@pytest.mark.parametrize("plan", [EnginePlan(48, 1, 3), EnginePlan(144, 4, 20)], ids=str)
def test_plans(plan: EnginePlan) -> None:
    problem = build(*PROBLEMS["medium"])
    kernel = EngineKernel(problem, 16, plan=plan)
    operands = random_operands(problem, 16, 300)
    order = walk(operands, True)
    for table in (False, True):
        wanted = expected(problem, operands, table)
        check(evaluate(kernel, operands, table, order=order), wanted, RTOL["float64"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scalars_of_few_senders_take_one_product_per_group(dtype: str) -> None:
    """Groups as long as a block, of one edge, cut by the block's end; padded and odd hidden."""
    for irreps, hidden in (("5x0e+20x0e", 11), ("16x0e", 128)):
        out = "+".join(f"{mul}x{l}{'eo'[l % 2]}" for l in range(4) for mul in (5, 20, 16))
        problem = build(irreps, harmonics(3), out, dtype)
        kernel = EngineKernel(problem, hidden, table=False, plan=EnginePlan(edges=48))
        for edges, senders in ((48, 1), (47, 2), (150, 1), (150, 3), (40, 9)):
            operands = random_operands(problem, hidden, edges, edges + senders)
            operands.sender %= senders
            order = np.lexsort((operands.sender, operands.receiver))
            wanted = expected(problem, operands, False)
            del wanted["dx"]
            found = evaluate(kernel, operands, False, order=order, dx=False)
            check(found, wanted, RTOL[dtype])


def test_gradients_are_finite_differences() -> None:
    problem = build(*PROBLEMS["odd"])
    kernel = EngineKernel(problem, 7)
    operands = random_operands(problem, 7, 60)
    order = walk(operands, False)
    gradients = evaluate(kernel, operands, False, order=order)
    rng, step = np.random.default_rng(1), 1e-4
    for name, gradient in (("x", "dx"), ("y", "dy"), ("hidden", "d_hidden")):
        start = getattr(operands, name)
        direction = rng.standard_normal(start.shape)
        values = []
        for sign in (1, -1):
            setattr(operands, name, start + sign * step * direction)
            out = evaluate(kernel, operands, False, order=order)["out"]
            values.append((out * operands.g).sum())
        setattr(operands, name, start)
        slope = (values[0] - values[1]) / (2 * step)
        along = (gradients[gradient] * direction).sum()
        assert slope == pytest.approx(along, rel=1e-8)


def test_a_receiver_split_over_blocks_adds_up_in_order() -> None:
    """Same edges, other blocks: the same sums up to rounding; same blocks: the same bits."""
    problem = build(*PROBLEMS["medium"], "float32")
    operands = random_operands(problem, 8, 400)
    order = walk(operands, False)
    first = EngineKernel(problem, 8, plan=EnginePlan(edges=96))
    other = EngineKernel(problem, 8, plan=EnginePlan(edges=48))
    one, two = (evaluate(first, operands, False, order=order) for _ in range(2))
    for name in one:
        assert np.array_equal(one[name], two[name])
    check(evaluate(other, operands, False, order=order), {"out": one["out"]}, 2e-6)


def test_only_what_is_asked_for_is_exported() -> None:
    problem = build(*PROBLEMS["scalars"])
    exact = emit_engine_conv(problem, 8, table=False)
    table = emit_engine_conv(problem, 0)
    assert set(re.findall(r"void (mdcg_\w+)", exact)) == {
        "mdcg_conv_forward",
        "mdcg_conv_backward",
    }
    assert set(re.findall(r"void (mdcg_\w+)", table)) == {
        "mdcg_conv_forward_table",
        "mdcg_conv_backward_table",
    }
    kernel = EngineKernel(problem, 0)
    header = (Path(__file__).parents[2] / "csrc/engine/ops/conv_kernel.hpp").read_text()
    assert f"MDCG_CONV_ABI = {kernel.abi};" in header
    assert (kernel.hidden_stride, kernel.item_bytes) == (0, 8)
    operands = random_operands(problem, 0, 30)
    wanted = expected(problem, operands, True)
    check(evaluate(kernel, operands, True, order=walk(operands, True)), wanted, 1e-12)


@pytest.mark.parametrize(
    ("paths", "hidden", "table", "message"),
    [
        ([(0, 0, 0, "uvw")], 8, True, "weighted 'uvu' paths only"),
        ([(0, 0, 0, "uvu", False)], 8, True, "weighted 'uvu' paths only"),
        ([(0, 0, 0)], 0, False, "give the inputs of the last linear"),
    ],
)
def test_errors(paths: list[Any], hidden: int, table: bool, message: str) -> None:
    problem = ConvProblem.build("4x0e", "1x0e", "4x0e", paths)
    with pytest.raises(ValueError, match=message):
        emit_engine_conv(problem, hidden, table=table)


def test_plan_errors() -> None:
    with pytest.raises(ValueError, match="a multiple of 48"):
        EnginePlan(edges=50)
