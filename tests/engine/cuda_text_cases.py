"""Fixed kernels of the CUDA engine against NumPy.

No file of tests by its name: test_cuda_text.py runs it in a process of its own, where the device is
an emulated one, or a real one.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from .cuda_device import Device, gemm_shared_bytes, gemm_tiles, structure, texts

Array = NDArray[Any]
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
PRODUCTS = pytest.mark.parametrize(
    ("dtype", "text"),
    [("float32", "gemm_plain"), ("float64", "gemm_plain"), ("float64", "gemm_tensor")],
)
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}
POINTER, INT, LONG, DOUBLE = ctypes.c_uint64, ctypes.c_int, ctypes.c_longlong, ctypes.c_double


@pytest.fixture
def device() -> Iterator[Device]:
    found = Device()
    yield found
    found.release()


# ---- products ------------------------------------------------------------------------------------


class Part(ctypes.Structure):
    """The struct of csrc/kernels/gemm.hpp."""

    _fields_ = tuple((name, INT) for name in ("at", "step", "depth", "row"))


class Product(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("a", "b", "c", "list", "bias", "bias_types")),
        *((name, INT) for name in ("a_width", "c_width", "c_step", "batch", "columns", "rows")),
        *((name, INT) for name in ("first_block", "add", "first_part", "parts")),
    )


class Products(ctypes.Structure):
    _fields_ = (("product", Product * 16), ("part", Part * 64), ("count", INT))


def padded(n: int, dtype: str) -> int:
    items = 64 // np.dtype(dtype).itemsize
    return -(-n // items) * items


class Case:
    """c (+)= a @ b for some nodes, each with components, and what it should be."""

    def __init__(
        self, rng: np.random.Generator, dtype: str, nodes: int, batch: int,
        depths: tuple[int, ...], columns: int, *, listed: bool = False, add: bool = False,
        biases: int = 0
    ) -> None:  # fmt: skip
        self.depths, self.add, self.batch = depths, add, batch
        self.steps, self.c_step = [padded(d, dtype) + 16 for d in depths], padded(columns, dtype)
        total = 2 * nodes + 3 if listed else nodes
        self.list = rng.permutation(total)[:nodes].astype(np.int32) if listed else None
        # what stands behind the shared dimension must not be seen
        parts = [rng.normal(size=(total, batch, step)).astype(dtype) for step in self.steps]
        for part, depth in zip(parts, depths, strict=True):
            part[..., depth:] = np.nan
        self.a = np.concatenate(
            [np.zeros((total, 16), dtype), *(p.reshape(total, -1) for p in parts)], axis=1
        )
        b = rng.normal(size=(sum(depths), columns)).astype(dtype)
        self.b = np.zeros((len(b), self.c_step), dtype)
        self.b[:, :columns] = b
        self.c = rng.normal(size=(total, batch, self.c_step)).astype(dtype)
        self.bias = rng.normal(size=(biases, self.c_step)).astype(dtype)
        self.types = rng.integers(0, max(1, biases), total).astype(np.int32)
        rows = np.arange(nodes) if self.list is None else self.list
        used = [p[rows, :, :d] for p, d in zip(parts, depths, strict=True)]
        left = np.concatenate([np.zeros((nodes, batch, 0)), *used], axis=2)
        product = np.einsum("nmk,kj->nmj", left.astype(np.longdouble), self.b)
        if biases:
            product += self.bias[self.types[rows] if biases > 1 else 0 * rows][:, None, :]
        self.want = self.c.astype(np.longdouble)
        self.want[rows] = product + (self.c[rows] if add else 0)
        self.rows = rows

    def fill(self, device: Device, arguments: Products, number: int, block: int, part: int) -> None:
        self.address = device.upload(self.c)
        arguments.product[number] = Product(
            device.upload(self.a), device.upload(self.b), self.address,
            0 if self.list is None else device.upload(self.list),
            device.upload(self.bias) if len(self.bias) else 0,
            device.upload(self.types) if len(self.bias) > 1 else 0,
            self.a.shape[1], self.batch * self.c_step, self.c_step, self.batch, self.c_step,
            len(self.rows) * self.batch, block, self.add, part, len(self.depths),
        )  # fmt: skip
        at, row = 16, 0
        for i, (step, depth) in enumerate(zip(self.steps, self.depths, strict=True)):
            arguments.part[part + i] = Part(at, step, depth, row)
            at, row = at + self.batch * step, row + depth

    def blocks(self, numbers: list[int]) -> int:
        return -(-len(self.rows) * self.batch // numbers[0]) * -(-self.c_step // numbers[1])


def run_products(
    device: Device, text: str, dtype: str, tile: int, cases: list[Case]
) -> list[Array]:
    name, unit, numbers = gemm_tiles(dtype)[tile]
    unit = "Plain" if text == "gemm_plain" else unit if text == "gemm" else "Tensor"
    arguments = Products()
    blocks = parts = 0
    for i, case in enumerate(cases):
        case.fill(device, arguments, i, blocks, parts)
        blocks += case.blocks(numbers)
        parts += len(case.depths)
    arguments.count = len(cases)
    rows, columns, _, _, warp_rows, warp_columns, groups = numbers[:7]
    threads = 32 * (rows // warp_rows) * (columns // warp_columns) * groups
    shared = gemm_shared_bytes(dtype, unit, numbers)
    device.launch(texts(dtype)[text], name, blocks, threads, arguments, shared)
    return [device.download(case.address, case.c) for case in cases]


def close(got: Array, want: Array, dtype: str) -> None:
    scale = max(1e-3, float(np.abs(want).max(initial=0.0)))
    error = float(np.abs(got - want).max(initial=0.0)) / scale
    assert error < TOLERANCE[dtype], f"relative error {error:.1e}"


@PRODUCTS
@pytest.mark.parametrize("tile", range(4))
def test_products(
    device: Device, rng: np.random.Generator, text: str, dtype: str, tile: int
) -> None:
    """Several in one launch: tails of all three sizes, parts, lists, components, sums, biases."""
    cases = [
        Case(rng, dtype, 41, 3, (7,), 5),
        Case(rng, dtype, 150, 1, (33, 1, 130), 140, add=True),
        Case(rng, dtype, 29, 5, (64, 40), 64, listed=True),
        Case(rng, dtype, 1, 1, (1,), 1, listed=True, add=True, biases=1),
        Case(rng, dtype, 130, 1, (16,), 16, biases=3),
        Case(rng, dtype, 20, 1, (9, 3), 16, listed=True, biases=4),
        Case(rng, dtype, 9, 3, (), 20),
    ]
    for case, got in zip(cases, run_products(device, text, dtype, tile, cases), strict=True):
        close(got, case.want, dtype)


@pytest.mark.parametrize(("text", "unit"), [("gemm_tf32", 2.0**-11), ("gemm_bf16", 2.0**-8)])
@pytest.mark.parametrize("tile", range(4))
def test_rounded_products(
    device: Device, rng: np.random.Generator, text: str, unit: float, tile: int
) -> None:
    """The errors are those of the rounding: neither larger nor smaller."""
    cases = [
        Case(rng, "float32", 41, 3, (7,), 5),
        Case(rng, "float32", 150, 1, (33, 1, 130), 140, add=True),
        Case(rng, "float32", 29, 5, (64, 40), 64, listed=True),
        Case(rng, "float32", 130, 1, (16,), 16, biases=3),
    ]
    for case, got in zip(cases, run_products(device, text, "float32", tile, cases), strict=True):
        scale = float(np.abs(case.want).max())
        error = float(np.abs(got - case.want).max()) / scale
        assert 0.05 * unit < error < 2 * unit, f"relative error {error:.1e}"


@PRODUCTS
def test_a_row_does_not_depend_on_the_tile(
    device: Device, rng: np.random.Generator, text: str, dtype: str
) -> None:
    case = Case(rng, dtype, 37, 1, (40, 20), 24)
    tiles = [i for i, (_, _, numbers) in enumerate(gemm_tiles(dtype)) if numbers[6] == 1]
    first, *others = [run_products(device, text, dtype, tile, [case])[0] for tile in tiles]
    assert others
    for other in others:
        assert np.array_equal(first, other)


# ---- gate ----------------------------------------------------------------------------------------

ACTIVATIONS = ("none", "silu", "tanh", "sigmoid", "relu", "abs", "ssp")


def activate(kind: int, x: Array) -> tuple[Array, Array]:
    """Return value and slope in double."""
    x = x.astype(np.float64)
    s = 1 / (1 + np.exp(-x))
    return {
        "none": (x, np.ones_like(x)),
        "silu": (x * s, s * (1 + x * (1 - s))),
        "tanh": (np.tanh(x), 1 - np.tanh(x) ** 2),
        "sigmoid": (s, s * (1 - s)),
        "relu": (np.maximum(x, 0), (x > 0) * 1.0),
        "abs": (np.abs(x), np.sign(x)),
        "ssp": (np.logaddexp(x, 0) - np.log(2), s),
    }[ACTIVATIONS[kind]]


class Blocks:
    """Rows of blocks (channels, components), padded."""

    def __init__(self, dtype: str, *shapes: tuple[int, int]) -> None:
        self.shapes, self.dtype = shapes, dtype
        self.stride = [padded(mul, dtype) for mul, _ in shapes]
        sizes = [dim * stride for (_, dim), stride in zip(shapes, self.stride, strict=True)]
        self.offset = np.cumsum([0, *sizes]).tolist()
        self.width = self.offset[-1]

    def view(self, rows: Array, block: int) -> Array:
        """Return [nodes][components][channels] of a block."""
        (mul, dim), stride = self.shapes[block], self.stride[block]
        part = rows[:, self.offset[block] : self.offset[block + 1]]
        return part.reshape(-1, dim, stride)[..., :mul]

    def random(self, rng: np.random.Generator, nodes: int) -> Array:
        rows = np.zeros((nodes, self.width), self.dtype)
        for block, (mul, dim) in enumerate(self.shapes):
            self.view(rows, block)[:] = rng.normal(size=(nodes, dim, mul))
        return rows

    def table(self, uses: list[tuple[int, int]], entries: list[int]) -> Array:
        return np.array(
            [
                (self.offset[b], self.stride[b], mul, dim, *uses[b], entries[b])
                for b, (mul, dim) in enumerate(self.shapes)
            ],
            np.int32,
        )

    def channels(self) -> Array:
        return np.repeat(np.arange(len(self.shapes), dtype=np.int32), self.stride)


@DTYPES
@pytest.mark.parametrize("kind", range(len(ACTIVATIONS)), ids=ACTIVATIONS)
@pytest.mark.parametrize("add", [False, True])
def test_gate(device: Device, rng: np.random.Generator, dtype: str, kind: int, add: bool) -> None:
    """Block 0 of x is activated and gates blocks 1 and 2; block 3 is read by nothing."""
    nodes = 13
    x_rows = Blocks(dtype, (19, 1), (5, 3), (4, 5), (3, 1))
    out_rows = Blocks(dtype, (5, 3), (19, 1), (4, 5))
    # in, out, gate, offset, activation, factor
    entries = [(0, 1, -1, 0, kind, 1.3), (1, 0, 0, 10, kind, 0.7), (2, 2, 0, 12, 3, 1.9)]
    uses = [[0, 1, 2], [1], [2], []]
    bounds = np.cumsum([0, *map(len, uses)]).tolist()
    packed = np.zeros(len(entries), [("i", np.int32, 6), ("f", np.float64)])
    for row, entry in zip(packed, entries, strict=True):
        row["i"], row["f"] = (*entry[:5], 0), entry[5]
    x, g, dx = x_rows.random(rng, nodes), out_rows.random(rng, nodes), x_rows.random(rng, nodes)
    junk = np.full((nodes, out_rows.width), np.nan, dtype)
    if not add:
        dx = np.full_like(dx, np.nan)

    # what it should be
    out, want = np.zeros(junk.shape), (dx if add else np.zeros_like(dx)).astype(np.float64)
    for source, to, gate, offset, function, factor in entries:
        mul = x_rows.shapes[source][0]
        first = x_rows.view(x, source if gate < 0 else gate)[:, :, offset : offset + mul]
        value, slope = (factor * part for part in activate(function, first))
        dy = out_rows.view(g, to).astype(np.float64)
        if gate < 0:
            out_rows.view(out, to)[:] = value
            x_rows.view(want, source)[:] += dy * slope
        else:
            there = x_rows.view(x, source).astype(np.float64)
            out_rows.view(out, to)[:] = value * there
            x_rows.view(want, source)[:] += value * dy
            dot = (there * dy).sum(axis=1, keepdims=True)
            x_rows.view(want, gate)[:, :, offset : offset + mul] += dot * slope

    at_out, at_dx = device.upload(junk), device.upload(dx)
    blocks = x_rows.table(list(itertools.pairwise(bounds)), [-1] * 4)
    out_blocks = out_rows.table([(0, 0)] * 3, [1, 0, 2])
    numbers = np.concatenate([np.array(u, np.int32) for u in uses])
    tables = [device.upload(part) for part in (blocks, out_blocks, packed, numbers)]
    for kernel, rows in (("gate_forward", out_rows), ("gate_backward", x_rows)):
        channels = rows.channels()
        threads = nodes * len(channels)
        arguments = structure(
            x=(POINTER, device.upload(x)),
            out=(POINTER, at_out),
            g=(POINTER, device.upload(g)),
            dx=(POINTER, at_dx),
            x_blocks=(POINTER, tables[0]),
            out_blocks=(POINTER, tables[1]),
            entries=(POINTER, tables[2]),
            uses=(POINTER, tables[3]),
            columns=(POINTER, device.upload(channels)),
            threads=(INT, threads),
            channels=(INT, len(channels)),
            x_width=(INT, x_rows.width),
            out_width=(INT, out_rows.width),
            add=(INT, add),
        )
        device.launch(texts(dtype)["nodes"], kernel, -(-threads // 256), 256, arguments)
    close(device.download(at_out, junk), out, dtype)
    close(device.download(at_dx, dx), want, dtype)


# ---- normalize -----------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("add", [False, True])
def test_normalize(device: Device, rng: np.random.Generator, dtype: str, add: bool) -> None:
    nodes, alpha, beta = 11, 0.9, 0.4
    rows, scalar = Blocks(dtype, (37, 1), (5, 3)), Blocks(dtype, (1, 1))
    x, g, dx = (rows.random(rng, nodes) for _ in range(3))
    density, d_density = (scalar.random(rng, nodes) ** 2 for _ in range(2))
    if not add:
        dx, d_density = np.full_like(dx, np.nan), np.full_like(d_density, np.nan)
    s = 1 / (beta * density[:, :1].astype(np.float64) + alpha)
    want_dx = s * g + (dx if add else 0)
    want_density = (d_density if add else np.zeros_like(density)).astype(np.float64)
    want_density[:, :1] -= beta * s**2 * (x * g.astype(np.float64)).sum(1, keepdims=True)
    at_out, at_dx, at_density = (device.upload(part) for part in (dx, dx, d_density))
    arguments = structure(
        x=(POINTER, device.upload(x)),
        density=(POINTER, device.upload(density)),
        out=(POINTER, at_out),
        g=(POINTER, device.upload(g)),
        dx=(POINTER, at_dx),
        d_density=(POINTER, at_density),
        count=(LONG, nodes),
        width=(INT, rows.width),
        density_width=(INT, scalar.width),
        add_x=(INT, add),
        add_density=(INT, add),
        alpha=(DOUBLE, alpha),
        beta=(DOUBLE, beta),
    )
    for kernel in ("normalize_forward", "normalize_backward"):
        device.launch(texts(dtype)["nodes"], kernel, -(-nodes * 32 // 256), 256, arguments)
    close(device.download(at_out, dx), s * x, dtype)
    close(device.download(at_dx, dx), want_dx, dtype)
    close(device.download(at_density, d_density), want_density, dtype)
