"""CUDA kernels of packages, run chunk by chunk as the engine runs them.

For a process with the emulator: arrays of the host serve as memory of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mdcg import _core
from mdcg.ops.reference import conv_reference
from mdcg.package.cuda_kernels import cuda_passes, padded_problem
from mdcg.problem import ConvProblem, Irreps
from mdcg.runtime import load_cuda_kernels

from ..core.contraction_helpers import random_contraction
from ..engine.problems import build

Array = NDArray[Any]

RTOL = {"float64": 1e-12, "float32": 3e-6}


class Kernel:
    """One pass of a layer, loaded on the emulated device."""

    def __init__(self, entry: Mapping[str, Any], programs: Mapping[str, str]):
        self.entry = entry
        texts = [programs[name] for name in entry["programs"]]
        self.modules = [_core.CudaModule(0, cubin) for cubin in load_cuda_kernels(texts, "sm_90")]

    def run(self, rows: int, **values: int) -> None:
        """Launch; values are addresses and numbers."""
        values["n_rows"] = rows
        arguments = [values[name] for name in self.entry["arguments"]]
        for step in self.entry["entries"]:
            blocks = -(-rows * self.entry["run"] // step["rows"])
            module = self.modules[step["program"]]
            function = module.function(step["name"], step["shared_bytes"])
            module.launch(function, blocks, step["threads"], step["shared_bytes"], 0, arguments)


def kernels(layer: dict[str, Any]) -> list[Kernel]:
    """Return both passes of a layer."""
    entries, programs = cuda_passes([layer], ())
    assert [entry["pass"] for entry in entries] == ["forward", "backward"]
    return [Kernel(entry, programs) for entry in entries]


def aligned(shape: tuple[int, ...], dtype: str, value: float = 0.0) -> Array:
    """Return an array at a multiple of 64 bytes."""
    count = int(np.prod(shape))
    memory = np.empty(count + 64, dtype=dtype)
    start = -memory.ctypes.data % 64 // memory.itemsize
    found = memory[start : start + count].reshape(shape)
    found[...] = value
    return found


def padded_rows(rows: Array, irreps: Irreps, wide: Irreps) -> Array:
    """Copy ``ir_mul`` rows to those of padded irreps."""
    found = aligned((len(rows), wide.dim), str(rows.dtype))
    for a, b in zip(irreps, wide, strict=True):
        part = found[:, b.offset : b.offset + b.dim].reshape(len(rows), b.ir.dim, b.mul)
        part[:, :, : a.mul] = rows[:, a.offset : a.offset + a.dim].reshape(
            len(rows), a.ir.dim, a.mul
        )
    return found


def plain_rows(rows: Array, irreps: Irreps, wide: Irreps) -> Array:
    """Undo :func:`padded_rows`; what is left out must be zero."""
    found = np.zeros((len(rows), irreps.dim), rows.dtype)
    for a, b in zip(irreps, wide, strict=True):
        part = rows[:, b.offset : b.offset + b.dim].reshape(len(rows), b.ir.dim, b.mul)
        found[:, a.offset : a.offset + a.dim] = part[:, :, : a.mul].reshape(len(rows), a.dim)
        assert not part[:, :, a.mul :].any()
    return found


def padded_weights(weights: Array, problem: ConvProblem, wide: ConvProblem) -> Array:
    found = aligned((len(weights), wide.weight_numel), str(weights.dtype))
    for path, start, to in zip(
        problem.paths, problem.weight_offsets, wide.weight_offsets, strict=True
    ):
        mul = problem.irreps_in1[path.i_in1].mul
        found[:, to : to + mul] = weights[:, start : start + mul]
    return found


PROBLEMS = {
    "scalars": ("5x0e", "1x0e+1x1o", "5x0e+5x1o", "float64"),
    "vectors": ("8x0e+8x1o", "1x0e+1x1o+1x2e", "8x0e+8x1o+8x1o+8x2e", "float32"),
    "several kernels": ("9x1o+9x0e+3x2e", "1x0e+1x1o+1x2e", "9x0e+9x1o+9x2e+3x0e+9x1e", "float64"),
    "unused blocks": ("4x0e+2x1e", "1x0e+1x1o", "4x1o+3x2e", "float64"),
}


@pytest.mark.parametrize("table", [False, True], ids=["nodes", "types"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_convolution_in_chunks(name: str, table: bool) -> None:
    *irreps, dtype = PROBLEMS[name]
    problem = build(*irreps, dtype)
    wide = padded_problem(problem)
    layer = {"type": "conv", "problem": problem.to_json(), "x_table" if table else "x": "x"}
    forward, backward = kernels(layer)
    size = np.dtype(dtype).itemsize

    rng = np.random.default_rng(5)
    local, nodes, edges = 5, 7, 23
    receiver = np.sort(rng.choice([0, 1, 3, 4], edges)).astype(np.int32)  # node 2 has none
    sender = rng.integers(0, nodes, edges).astype(np.int32)
    row_ptr = np.searchsorted(receiver, np.arange(local + 1)).astype(np.int32)
    order = np.arange(edges, dtype=np.int32)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    plain = {
        "x": draw(nodes, problem.irreps_in1.dim),
        "y": draw(edges, problem.irreps_in2.dim),
        "w": draw(edges, problem.weight_numel),
        "g": draw(local, problem.irreps_out.dim),
    }
    x = padded_rows(plain["x"], problem.irreps_in1, wide.irreps_in1)
    g = padded_rows(plain["g"], problem.irreps_out, wide.irreps_out)
    w = padded_weights(plain["w"], problem, wide)
    out = aligned((local, wide.irreps_out.dim), dtype, np.nan)
    dx = np.zeros(x.shape)
    dy, dw = np.full(plain["y"].shape, np.nan), np.full(w.shape, np.nan)
    for zeroed in forward.entry["zeroed"]:
        assert zeroed == "out"
        out[...] = 0
    for first, last in ((0, 2), (2, 3), (3, 5)):  # receivers
        begin, end = int(row_ptr[first]), int(row_ptr[last])
        count = end - begin
        # what belongs to the edges of a chunk starts with its first one
        chunk = {
            "y": aligned((count, problem.irreps_in2.dim), dtype),
            "w": aligned((count, wide.weight_numel), dtype),
            "dx": aligned((count, wide.irreps_in1.dim), dtype, np.nan),
            "dy": aligned((count, problem.irreps_in2.dim), dtype, np.nan),
        }
        chunk["y"][...], chunk["w"][...] = plain["y"][begin:end], w[begin:end]
        place = np.zeros(edges, np.int32)
        by_sender = np.argsort(sender[begin:end], kind="stable")
        place[begin:end][by_sender] = np.arange(count)
        for zeroed in backward.entry["zeroed"]:
            chunk[zeroed][...] = 0
        values = {n: a.ctypes.data for n, a in {"order": order, "sender": sender, "x": x}.items()}
        values["row_ptr"] = row_ptr.ctypes.data + 4 * first
        values["place"] = place.ctypes.data
        chunk["dw"] = chunk["w"]  # gradients take the place of weights
        for n in ("y", "w", "dy", "dw"):
            values[n] = chunk[n].ctypes.data - begin * chunk[n].shape[1] * size
        values["dx"] = chunk["dx"].ctypes.data
        values["out"] = out[first:].ctypes.data
        values["g"] = g[first:].ctypes.data
        forward.run(last - first, **values)
        backward.run(last - first, **values)
        dy[begin:end], dw[begin:end] = chunk["dy"], chunk["dw"]
        if not table:
            np.add.at(dx, sender[begin:end], chunk["dx"][place[begin:end]])

    leaves = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in plain.items()}
    want = conv_reference(
        problem,
        *(leaves[n] for n in "xyw"),
        torch.tensor(sender).long(),
        torch.tensor(receiver).long(),
        num_receivers=local,
    )
    gradients = torch.autograd.grad((want * leaves["g"]).sum(), [leaves[n] for n in "xyw"])
    found = {"out": plain_rows(out, problem.irreps_out, wide.irreps_out), "dy": dy}
    wanted = {"out": want.detach().numpy(), "dy": gradients[1].numpy()}
    if not table:
        found["dx"] = plain_rows(dx, problem.irreps_in1, wide.irreps_in1)
        wanted["dx"] = gradients[0].numpy()
    for n, value in found.items():
        error = np.abs(value - wanted[n]).max() / np.abs(wanted[n]).max()
        assert error < RTOL[dtype], (n, error)
    wide_dw = padded_weights(gradients[2].numpy(), problem, wide)
    assert np.abs(dw - wide_dw).max() < RTOL[dtype] * np.abs(wide_dw).max()  # zeros between too


@pytest.mark.parametrize("typed", [True, False], ids=["types", "one type"])
@pytest.mark.parametrize(
    ("irreps_in", "irreps_out", "dtype"),
    [
        ("16x0e+16x1o+16x2e", "16x0e+16x1o", "float32"),
        ("7x0e+7x1o", "7x1o+7x0e+7x2e", "float64"),
        ("41x0e", "41x0e", "float64"),
    ],
)
def test_contraction(irreps_in: str, irreps_out: str, dtype: str, typed: bool) -> None:
    problem = random_contraction(irreps_in, irreps_out, 3, dtype=dtype)
    forward, backward = kernels({"type": "contraction", "problem": problem.to_json()})
    rng = np.random.default_rng(3)
    n, channels = 5, problem.channels
    kinds = np.array([2, 0, 1, 1, 2] if typed else [0] * 5, dtype=np.int32)
    align = 64 // np.dtype(dtype).itemsize
    stride = -(-channels // align) * align

    def rows(*shape: int) -> Array:
        found = aligned((*shape, stride), dtype)
        found[..., :channels] = rng.standard_normal((*shape, channels))
        return found

    x, g, start = rows(n, problem.dim_in), rows(n, problem.dim_out), rows(n, problem.dim_in)
    w = rows(3 if typed else 1, problem.num_coefficients)
    out = aligned(g.shape, dtype, np.nan)
    arrays = {"types": kinds, "x": x, "w": w, "g": g, "out": out}
    values = {name: array.ctypes.data for name, array in arrays.items()}
    values["n_types"] = len(w)
    forward.run(n, **values, n_adds=0)

    leaf = torch.tensor(x[..., :channels], dtype=torch.float64, requires_grad=True)
    c = torch.tensor(w[..., :channels], dtype=torch.float64)[torch.tensor(kinds).long()]
    want = torch.zeros(n, problem.dim_out, channels, dtype=torch.float64)
    for r, polynomial in enumerate(problem.polynomials):
        for m, terms in enumerate(polynomial.components):
            for factor, indices in terms:
                at = problem.out_offset(polynomial.i_out) + m
                change = torch.zeros_like(want)
                change[:, at] = 1.0
                value = factor * c[:, r] * leaf[:, list(indices)].prod(dim=1)
                want = want + change * value[:, None]
    want.backward(torch.tensor(g[..., :channels], dtype=torch.float64))
    assert leaf.grad is not None
    for adds in (0, 1):
        dx = start.copy() if adds else aligned(x.shape, dtype, np.nan)
        backward.run(n, **values, dx=dx.ctypes.data, n_adds=adds)
        expected = leaf.grad.numpy() + adds * start[..., :channels]
        error = np.abs(dx[..., :channels] - expected).max()
        assert error < RTOL[dtype] * np.abs(expected).max()
        assert not dx[..., channels:].any()
    error = np.abs(out[..., :channels] - want.detach().numpy()).max()
    assert error < RTOL[dtype] * float(want.detach().abs().max())
    assert not out[..., channels:].any()
