"""Products of matrices on CUDA devices against NumPy; the engine runs all other fixed kernels.

pytest does not collect this file. test_cuda_text.py runs it in a separate process, on an emulated
or a real device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core

from .cuda_device import Device, gemm_shared_bytes, gemm_tiles, texts

Array = NDArray[Any]
PRODUCTS = pytest.mark.parametrize(
    ("dtype", "text"),
    [
        *(("float32", "gemm_plain"), ("float32", "gemm_tensor")),
        *(("float64", "gemm_plain"), ("float64", "gemm_tensor")),
    ],
)
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}
POINTER, INT = ctypes.c_uint64, ctypes.c_int


@pytest.fixture
def device() -> Iterator[Device]:
    found = Device()
    yield found
    found.release()


class Part(ctypes.Structure):
    """The struct of csrc/kernels/gemm.hpp."""

    _fields_ = tuple((name, INT) for name in ("at", "step", "depth", "row"))


class Product(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("a", "b", "images", "c", "list", "bias", "bias_types")),
        *((name, INT) for name in ("a_width", "c_width", "c_step", "batch", "columns", "rows")),
        *((name, INT) for name in ("first_block", "add", "first_part", "parts")),
    )


class Products(ctypes.Structure):
    _fields_ = (("product", Product * 16), ("part", Part * 64), ("count", INT))


def padded(n: int, dtype: str) -> int:
    items = 64 // np.dtype(dtype).itemsize
    return -(-n // items) * items


def images(b: Array) -> Array:
    """Return a matrix in the format of gemm_warpgroup.cuh: slices, tiles, large and small parts."""
    bits = np.pad(b.astype(np.float32), ((0, -len(b) % 32), (0, -b.shape[1] % 64))).view(np.uint32)
    large = ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).view(np.float32)
    both = np.stack([large, bits.view(np.float32) - large])
    # rows: slice, eight, lane, one of two; columns: tile, sixteen, lane, two, one of two
    axes = both.reshape(2, len(bits) // 32, 4, 4, 2, bits.shape[1] // 64, 4, 4, 2, 2)
    return axes.transpose(1, 5, 0, 2, 4, 6, 8, 7, 9, 3)


class Case:
    """A product c (+)= a @ b for some nodes with components, and its expected result."""

    def __init__(
        self, rng: np.random.Generator, dtype: str, nodes: int, batch: int,
        depths: tuple[int, ...], columns: int, *, listed: bool = False, add: bool = False,
        biases: int = 0
    ) -> None:  # fmt: skip
        self.depths, self.add, self.batch = depths, add, batch
        self.steps, self.c_step = [padded(d, dtype) + 16 for d in depths], padded(columns, dtype)
        total = 2 * nodes + 3 if listed else nodes
        self.list = rng.permutation(total)[:nodes].astype(np.int32) if listed else None
        # padding behind the shared dimension must not be read
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
            device.upload(self.a), device.upload(self.b),
            device.upload(images(self.b)), self.address,
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
    name, numbers = gemm_tiles(dtype, text)[tile]
    arguments = Products()
    blocks = parts = 0
    for i, case in enumerate(cases):
        case.fill(device, arguments, i, blocks, parts)
        blocks += case.blocks(numbers)
        parts += len(case.depths)
    arguments.count = len(cases)
    rows, columns, _, _, warp_rows, warp_columns, groups = numbers[:7]
    threads = 32 * (rows // warp_rows) * (columns // warp_columns) * groups
    shared = gemm_shared_bytes(dtype, text, numbers)
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
    """Several products of different shapes and options in one launch equal NumPy's."""
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


def products_of_warpgroups(device: Device, rng: np.random.Generator) -> None:
    """Results equal those of other tiles bit by bit if parts are whole slices."""
    cases = [
        Case(rng, "float32", 41, 3, (32,), 5),
        Case(rng, "float32", 150, 1, (64, 32, 128), 140, add=True),
        Case(rng, "float32", 29, 5, (64, 96), 64, listed=True),
        Case(rng, "float32", 1, 1, (32,), 1, listed=True, add=True, biases=1),
        Case(rng, "float32", 130, 1, (32,), 16, biases=3),
        Case(rng, "float32", 9, 3, (), 20),
    ]
    found = run_products(device, "gemm_warpgroup", "float32", 0, cases)
    for case, got in zip(cases, found, strict=True):
        close(got, case.want, "float32")
        assert np.array_equal(got, run_products(device, "gemm_tensor", "float32", 0, [case])[0])


if _core.cuda_compute_capability(0) == 90:  # cases are left out, not skipped
    test_products_of_warpgroups = products_of_warpgroups


@PRODUCTS
def test_a_row_does_not_depend_on_the_tile(
    device: Device, rng: np.random.Generator, text: str, dtype: str
) -> None:
    case = Case(rng, dtype, 37, 1, (40, 20), 24)
    tiles = [i for i, (_, numbers) in enumerate(gemm_tiles(dtype, text)) if numbers[6] == 1]
    first, *others = [run_products(device, text, dtype, tile, [case])[0] for tile in tiles]
    assert others
    for other in others:
        assert np.array_equal(first, other)
