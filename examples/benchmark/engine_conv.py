"""One convolution kernel of the engine, compiled and called block by block: checks and timings."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg.codegen import emit_engine_conv, lower
from mdcg.plan import EnginePlan
from mdcg.problem import ConvProblem, Irreps
from mdcg.runtime import find_compiler

Array = NDArray[Any]

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")
POINTERS = ("sender", "receiver", "harmonics", "hidden", "w2", "w2_t", "table", "steps")
MORE_POINTERS = ("knot", "basis", "slope", "x", "out", "g", "dx", "d_harmonics")
LAST_POINTERS = ("d_hidden", "d_length", "scratch")
_SENDERS_PER_BLOCK = 64
#: Of the splines in tables: TABLE_STEPS of csrc/engine/ops/conv_kernel.hpp.
DEGREE = {"float32": 5, "float64": 9}


class Block(ctypes.Structure):
    """``ConvBlock`` of csrc/engine/ops/conv_kernel.hpp."""

    _fields_ = (
        ("num_edges", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("table_rows", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*MORE_POINTERS, *LAST_POINTERS)),
    )


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros that start at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _stride(mul: int, align: int) -> int:
    return -(-mul // align) * align


def _places(irreps: Irreps, align: int) -> list[tuple[slice, slice, int, int]]:
    """Per block: items of the plain row, items of the padded row, components, multiplicity."""
    found, start = [], 0
    for block in irreps:
        items = block.ir.dim * _stride(block.mul, align)
        plain = slice(block.offset, block.offset + block.ir.dim * block.mul)
        found.append((plain, slice(start, start + items), block.ir.dim, block.mul))
        start += items
    return found


def pad_rows(rows: Array, irreps: Irreps) -> Array:
    """Turn rows ``[2l+1][mul]`` per block into the padded rows of the engine."""
    align = 64 // rows.dtype.itemsize
    places = _places(irreps, align)
    out = aligned((len(rows), places[-1][1].stop if places else 0), rows.dtype)
    for plain, padded, dim, mul in places:
        target = out[:, padded].reshape(len(rows), dim, -1)
        target[:, :, :mul] = rows[:, plain].reshape(len(rows), dim, mul)
        out[:, padded] = target.reshape(len(rows), -1)
    return out


def unpad_rows(rows: Array, irreps: Irreps) -> Array:
    """Undo :func:`pad_rows`; fails if padding is not zero."""
    align = 64 // rows.dtype.itemsize
    out = np.zeros((len(rows), irreps.dim), rows.dtype)
    for plain, padded, dim, mul in _places(irreps, align):
        block = rows[:, padded].reshape(len(rows), dim, -1)
        assert not block[:, :, mul:].any(), "padding is not zero"
        out[:, plain] = block[:, :, :mul].reshape(len(rows), -1)
    return out


def pad_weights(weights: Array, problem: ConvProblem) -> Array:
    """Turn ``[rows][weight_numel]`` into panels ``[width / A][rows][A]``."""
    align = 64 // weights.dtype.itemsize
    columns, start = [], 0
    for path in problem.paths:
        mul = problem.irreps_in1[path.i_in1].mul
        padded = np.zeros((len(weights), _stride(mul, align)), weights.dtype)
        padded[:, :mul] = weights[:, start : start + mul]
        columns.append(padded)
        start += mul
    joined = np.concatenate(columns, axis=1)
    out = aligned((joined.shape[1] // align, len(weights), align), weights.dtype)
    out[...] = joined.reshape(len(weights), joined.shape[1] // align, align).transpose(1, 0, 2)
    return out


class EngineKernel:
    """A compiled convolution.

    `hidden`: inputs of the last linear layer of the radial network, 0 for a table only; `flags`:
    the instruction set.
    """

    def __init__(
        self,
        problem: ConvProblem,
        hidden: int,
        *,
        table: bool = True,
        plan: EnginePlan | None = None,
        flags: Sequence[str] = ("-march=native",),
    ) -> None:
        self.problem = problem
        self.dtype = np.dtype(problem.dtype)
        self.source = emit_engine_conv(problem, hidden, table=table, plan=plan)
        with tempfile.TemporaryDirectory() as folder:
            text, binary = Path(folder) / "conv.cpp", Path(folder) / "conv.so"
            text.write_text(self.source)
            command = [*find_compiler(), *FLAGS, *flags, "-o", str(binary), str(text)]
            start = os.times().children_user
            subprocess.run(command, check=True, timeout=300)
            self.compile_seconds = os.times().children_user - start  # CPU time of the compiler
            self.library = ctypes.CDLL(str(binary))
        info = (ctypes.c_int64 * 8).in_dll(self.library, "mdcg_conv_info")
        self.abi, self.item_bytes, self.edges, self.scratch_bytes = info[:4]
        self.x_width, self.out_width, self.weight_width, self.hidden_stride = info[4:]
        self.scratch = aligned((max(64, self.scratch_bytes),), np.dtype(np.uint8))

    def call(self, name: str, **operands: Array | int | None) -> None:
        """Call ``mdcg_conv_<name>`` on one block."""
        self.function(name)(ctypes.byref(self.block(**operands)))

    def function(self, name: str) -> Any:
        """Return an exported function."""
        return self.library[f"mdcg_conv_{name}"]

    def block(self, **operands: Array | int | None) -> Block:
        """Return the struct that points to the operands; keep them alive."""
        block = Block(scratch=self.scratch.ctypes.data)
        for name, value in operands.items():
            if isinstance(value, np.ndarray):
                setattr(block, name, value.ctypes.data)
            elif value is not None:
                setattr(block, name, value)
        return block


def _peak(dtype: np.dtype[Any]) -> float:
    """Return the FLOP/s one core reaches in a product of matrices that fit its cache."""
    a = np.ones((256, 256), dtype)
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 256**3 / best


def flops_per_edge(problem: ConvProblem, hidden: int) -> dict[str, float]:
    """Return floating-point operations per edge: of the paths and of the weights."""
    forward = backward = 0
    for path in lower(problem).paths:
        c, mul = path.coupling, path.in1.mul
        entries = len(c.entries)
        forward += 2 * mul * (entries + c.dim_in)
        backward += 2 * mul * (2 * entries + 3 * c.dim_in)
    numel, degree = problem.weight_numel, DEGREE[problem.dtype]
    return {
        "forward": forward + 2 * hidden * numel,
        "backward": backward + 4 * hidden * numel,
        "forward_table": forward + 2 * (degree + 1) * numel,
        "backward_table": backward + 4 * (degree + 1) * numel,
    }


def measure(
    problem: ConvProblem, hidden: int, *, nodes: int = 192, edges: int = 16630, repeats: int = 20
) -> tuple[EngineKernel, dict[str, float]]:
    """Return the kernel and the best seconds of each function over a random graph, one core."""
    rng = np.random.default_rng(0)
    kernel = EngineKernel(problem, hidden)
    dtype, capacity = kernel.dtype, kernel.edges

    def random(*shape: int) -> Array:
        out = aligned(shape, dtype)
        out[...] = rng.standard_normal(shape)
        return out

    receiver = np.sort(rng.integers(0, nodes, edges)).astype(np.int32)
    sender = rng.integers(0, nodes, edges).astype(np.int32)
    by_block = np.lexsort((receiver, sender // _SENDERS_PER_BLOCK))
    dim = problem.irreps_in2.dim
    degree, knots = DEGREE[problem.dtype], 171
    rows = knots + degree
    shared: dict[str, Any] = {
        "w2": random(kernel.weight_width, max(1, kernel.hidden_stride)),
        "w2_t": random(kernel.weight_width, max(1, kernel.hidden_stride)),
        "table": random(kernel.weight_width, rows),
        "x": random(nodes, kernel.x_width),
        "out": random(nodes, kernel.out_width),
        "g": random(nodes, kernel.out_width),
        "dx": random(nodes, kernel.x_width),
        "harmonics": random(dim, capacity),
        "hidden": random(capacity, max(1, kernel.hidden_stride)),
        "steps": random(kernel.weight_width, rows),
        "basis": random(degree, capacity),
        "slope": random(degree, capacity),
        "d_harmonics": random(dim, capacity),
        "d_hidden": random(capacity, max(1, kernel.hidden_stride)),
        "d_length": random(capacity),
    }
    keep, seconds = [], {}
    for name in ("forward", "backward", "forward_table", "backward_table"):
        order = by_block if name.startswith("backward") else np.arange(edges)
        blocks = []
        for start in range(0, edges, capacity):
            chosen = order[start : start + capacity]
            mine = [np.ascontiguousarray(a[chosen]) for a in (sender, receiver)]
            knot = rng.integers(0, knots, len(chosen)).astype(np.int32)
            keep += [*mine, knot]
            block = kernel.block(
                num_edges=len(chosen),
                sender=mine[0],
                receiver=mine[1],
                knot=knot,
                table_rows=rows,
                **shared,
            )
            blocks.append(ctypes.pointer(block))
        function = kernel.function(name)
        # timed per block, which a busy machine interrupts less often than a whole pass
        best = [float("inf")] * len(blocks)
        for _ in range(repeats):
            for i, pointer in enumerate(blocks):
                begin = time.perf_counter()
                function(pointer)
                best[i] = min(best[i], time.perf_counter() - begin)
            shared["out"][...] = 0
            shared["dx"][...] = 0
        seconds[name] = sum(best)
    return kernel, seconds


def table(name: str, problem: ConvProblem, hidden: int = 64) -> str:
    """Return milliseconds, and the share of what one core reaches in a matrix product."""
    edges = 16630
    kernel, seconds = measure(problem, hidden, edges=edges)
    peak = _peak(kernel.dtype)
    lines = [f"{name}: peak of one core {peak / 1e9:.0f} GFLOP/s"]
    for function, flops in flops_per_edge(problem, hidden).items():
        share = flops * edges / seconds[function] / peak
        milliseconds = 1e3 * seconds[function]
        lines.append(
            f"  {function:16} {milliseconds:7.2f} ms  {flops:9.0f} FLOP/edge  {share:4.0%}"
        )
    return "\n".join(lines)
