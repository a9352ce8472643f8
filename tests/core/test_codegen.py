"""Generated C++ text: what must hold for every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdcg.codegen.conv.table import LEAST_SHARED, emit_table_conv
from mdcg.codegen.conv.table_blocks import GROUP, MAX_STREAMS
from mdcg.errors import UnsupportedProblemError
from mdcg.plan.table_conv import TableConvPlan, TableConvTile
from mdcg.problem import ConvProblem

from ..processes import printed_everywhere


def test_text_is_the_same_in_every_process_and_on_every_processor() -> None:
    """Text does not depend on hash seeds or BLAS, so that cached kernels are found again."""
    code = (
        "import hashlib, numpy\n"
        "from helpers import mixed_problem, usual_specs\n"
        "from mdcg.codegen import emit_cuda, emit_host\n"
        "from mdcg.codegen.contraction.program import ContractionSpec\n"
        "from mdcg.codegen.contraction.host import emit_contraction_host\n"
        "from mdcg.plan import CudaDevice, HostDevice, plan_cuda, plan_host\n"
        "from mdcg.plan.contraction import plan_contraction_host\n"
        "from mdcg.problem import FoldedTensors, wigner_3j\n"
        "problem, device = mixed_problem(), HostDevice('x86-64-v3')\n"
        "plan = plan_host(problem, device)\n"
        "text = ''.join(emit_host(problem, plan, s).source for s in usual_specs())\n"
        "plan = plan_cuda(problem, CudaDevice(90))\n"
        "text += ''.join(emit_cuda(problem, plan, s).source for s in usual_specs())\n"
        "shape = (3, 9, 9, 9, 6)\n"
        "tensor = numpy.random.default_rng(0).integers(-3, 4, size=shape).astype(float)\n"
        "sides = ('4x0e+4x1o+4x2e', '4x1o')\n"
        "fold = FoldedTensors.fold(*sides, [(0, tensor)], dtype='float64')\n"
        "plan = plan_contraction_host(fold.problem, device)\n"
        "spec = ContractionSpec('double_backward', True, ('x', 'w', 'g'), ('x', 'w'))\n"
        "text += emit_contraction_host(fold.problem, plan, spec).source + fold.to_json()\n"
        "constants = wigner_3j(2, 4, 3).tobytes() + wigner_3j(3, 3, 3).tobytes()\n"
        "print(hashlib.sha256(text.encode() + constants).hexdigest())\n"
    )
    assert len(printed_everywhere(code)) == 64


@pytest.mark.parametrize(
    ("in1", "in2", "connection", "message"),
    [
        ("6x0e", "0e", ("uvu", True), "rows are 6x0e and 6x0e, expected multiplicities that are"),
        ("8x0e", "0e", ("uvu", False), "has paths that are not uvu"),
        ("8x0e", "1o+0e", ("uvu", True), "expected one harmonic per degree from 0 on"),
        ("5000x0e", "0e", ("uvu", True), "has a block of 5000 channels, more than one CUDA block"),
    ],
)
def test_problems_that_table_convolutions_refuse(
    in1: str, in2: str, connection: tuple[str, bool], message: str
) -> None:
    paths = [(0, len(in2) // 3, 0, *connection)]
    problem = ConvProblem.build(in1, in2, in1, paths, layout="ir_mul")
    with pytest.raises(UnsupportedProblemError, match=message):
        emit_table_conv(problem, "forward", wants_x=True, normalization="component")


def constants(source: str, name: str) -> list[str]:
    """Return the values of a constant in the structs that Python prints, in order."""
    return re.findall(rf"^    static constexpr \w+ {name} = (\w+);$", source, re.MULTILINE)


MERGING = [(0, 0, 0), (1, 0, 1), (2, 0, 0), (2, 0, 1), (3, 0, 2)]


def test_groups_have_one_size() -> None:
    """The size of receiver groups is the same in the generator and in the engine."""
    header = Path(__file__).parents[2] / "csrc/engine/cuda/device_edges.hpp"
    assert f"GROUP = {GROUP};" in header.read_text()


@pytest.mark.parametrize(
    ("dtype", "degrees", "mul"),
    [("float32", (3, 4, 4), 64), ("float64", (2, 3, 3), 32), ("float64", (3, 3, 3), 64)],
)
def test_shared_memory_of_warp_groups(dtype: str, degrees: tuple[int, int, int], mul: int) -> None:
    """The number of warp groups is limited by the shared memory of a block."""
    x, y, out = (range(degree + 1) for degree in degrees)
    name = ["0e", "1o", "2e", "3o", "4e"]
    couplings = [(i, j, k) for i in x for j in y for k in out if (i + j + k) % 2 == 0]
    couplings = [(i, j, k) for i, j, k in couplings if abs(i - j) <= k <= i + j]
    problem = ConvProblem.build(
        "+".join(f"{mul}x{name[i]}" for i in x),
        "+".join(name[j] for j in y),
        "+".join(f"{mul}x{name[k]}" for _, _, k in couplings),
        [(i, j, number) for number, (i, j, _) in enumerate(couplings)],
        layout="ir_mul",
        dtype=dtype,
    )
    kernel = emit_table_conv(problem, "forward", wants_x=True, normalization="component")
    assert min(entry.max_warp_groups for entry in kernel.entries) == 1
    for entry in kernel.entries:
        assert entry.max_warp_groups * entry.shared_bytes <= LEAST_SHARED


def test_tables_of_too_low_a_degree_are_refused() -> None:
    problem = ConvProblem.build("8x0e", "0e", "8x0e", [(0, 0, 0)], layout="ir_mul", dtype="float64")
    with pytest.raises(UnsupportedProblemError, match="degree 3, expected at least 5 in float64"):
        emit_table_conv(
            problem,
            "forward",
            wants_x=False,
            normalization="component",
            plan=TableConvPlan(forward=TableConvTile(degree=3)),
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shared_memory_of_older_devices(dtype: str) -> None:
    """Kernels fit any limit of shared memory; values held for receivers move to device memory."""
    paths = [(1, 1, 0), (1, 0, 1), (1, 2, 2), (1, 1, 3), (1, 3, 4), (1, 2, 5)]
    out = "128x0e+128x1o+128x1o+128x2e+128x2e+128x3o"
    problem = ConvProblem.build(
        "128x0e+128x1o", "0e+1o+2e+3o", out, paths, layout="ir_mul", dtype=dtype
    )
    little = LEAST_SHARED if dtype == "float32" else 64 * 1024
    for most, held in ((little, dtype == "float32"), (220 * 1024, True)):
        kernel = emit_table_conv(
            problem, "backward", wants_x=True, normalization="component", most_shared=most
        )
        assert all(entry.shared_bytes <= most for entry in kernel.entries)
        assert all((int(n) > 0) == held for n in constants(kernel.source, "HELD_ITEMS"))
    with pytest.raises(UnsupportedProblemError, match="more than the 9999 that a device has"):
        emit_table_conv(
            problem, "backward", wants_x=True, normalization="component", most_shared=9999
        )


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize(
    ("in1", "out", "paths", "blocks"),
    [
        # every path ends in a block of its own
        ("64x0e+64x1o", "64x0e+64x0e+64x1o+64x1o", [(0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 3)], 2),
        # both features have paths to the first block
        ("64x0e+64x1o", "64x0e+64x1o", [(0, 0, 0), (1, 1, 0), (1, 0, 1)], 1),
        # the third feature has paths to the blocks of the first two, the last has its own block
        ("+".join(["64x0e"] * 4), "+".join(["64x0e"] * 3), MERGING, 2),
        # more blocks than streams
        ("+".join(["64x0e"] * 6), "+".join(["64x0e"] * 6), [(i, 0, i) for i in range(6)], 6),
    ],
)
def test_kernels_of_different_streams_write_to_different_blocks(
    kind: str, in1: str, out: str, paths: list[tuple[int, int, int]], blocks: int
) -> None:
    problem = ConvProblem.build(in1, "0e+1o", out, paths, layout="ir_mul")
    plan = TableConvPlan(TableConvTile(imbalance=1, warps=2), TableConvTile(warps=2))
    kernel = emit_table_conv(problem, kind, wants_x=True, normalization="component", plan=plan)
    streams = {entry.stream for entry in kernel.entries}
    if kind == "backward":  # gradients of a feature block come from one kernel or one stream
        blocks = len(problem.irreps_in1)
    assert len(streams) == min(blocks, MAX_STREAMS, len(kernel.entries))
    assert streams == set(range(len(streams)))
    if kind == "backward":
        written = [entry.stream for entry in kernel.entries]
        assert constants(kernel.source, "STREAM") == [str(stream) for stream in written]
    assert all(entry.max_warp_groups == (4 if kind == "forward" else 1) for entry in kernel.entries)
