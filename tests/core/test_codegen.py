"""Generated C++ text: what must hold for every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mdcg
from mdcg.codegen import HostKernel, KernelSpec, emit_host
from mdcg.codegen.common.emit import template
from mdcg.codegen.conv.table import LEAST_SHARED, emit_table_conv
from mdcg.codegen.conv.table_blocks import GROUP, MAX_STREAMS
from mdcg.errors import UnsupportedProblemError
from mdcg.plan import HostDevice, HostPlan, plan_host
from mdcg.plan.table_conv import TableConvPlan, TableConvTile
from mdcg.problem import ConvProblem

from .helpers import ALL, mixed_problem, printed_everywhere, small_problem, usual_specs

V3 = HostDevice("x86-64-v3", l2_bytes=1024 * 1024)

UVU = ConvProblem.build(
    "8x0e+8x1o", "0e+1o", "8x0e+8x1o", [(0, 0, 0), (0, 1, 1), (1, 0, 1, "uvu", False), (1, 1, 0)]
)
UVW = ConvProblem.build("3x1o", "2x1o", "5x0e+3x1e", [(0, 0, 0, "uvw"), (0, 0, 1)], dtype="float64")

CASES = {
    "uvu_forward": (UVU, KernelSpec("forward", True)),
    "uvu_backward": (UVU, KernelSpec("backward", True, ("x", "y", "w"))),
    "uvu_double_backward": (UVU, KernelSpec("double_backward", True, ALL, ("x", "y", "w"))),
    "uvu_backward_paired": (UVU, KernelSpec("backward", True, ("x", "y", "w"), paired=True)),
    "uvw_forward": (UVW, KernelSpec("forward", True)),
    "uvw_backward_rows": (UVW, KernelSpec("backward", False, ("x", "w"))),
}


def emitted(problem: ConvProblem, spec: KernelSpec) -> HostKernel:
    return emit_host(problem, plan_host(problem, V3), spec)


def without_prelude(source: str) -> str:
    """Return what is generated, without the vector type that is the same file in every kernel."""
    prelude = template("common/host_prelude.hpp")
    assert source.count(prelude) == 1
    return source.replace(prelude, "// (prelude.hpp)\n").replace(mdcg.__version__, "VERSION")


def without_header(source: str) -> str:
    return "\n".join(source.splitlines()[3:])


def test_text_is_the_same_in_every_process_and_on_every_processor() -> None:
    """Else no cached kernel would be found. Sets depend on the hash seed, BLAS on the processor."""
    code = (
        "import hashlib, numpy\n"
        "from helpers import mixed_problem, usual_specs\n"
        "from mdcg.codegen import emit_host\n"
        "from mdcg.codegen.contraction.program import ContractionSpec\n"
        "from mdcg.codegen.contraction.host import emit_contraction_host\n"
        "from mdcg.plan import HostDevice, plan_host\n"
        "from mdcg.plan.contraction import plan_contraction_host\n"
        "from mdcg.problem import FoldedTensors, wigner_3j\n"
        "problem, device = mixed_problem(), HostDevice('x86-64-v3')\n"
        "plan = plan_host(problem, device)\n"
        "text = ''.join(emit_host(problem, plan, s).source for s in usual_specs())\n"
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


def test_different_kernels_have_different_text() -> None:
    specs = [
        *usual_specs(),
        KernelSpec("backward", True, ("x",)),
        KernelSpec("backward", True, ("y",)),
        KernelSpec("double_backward", True, ("w",), ("y",)),
        KernelSpec("double_backward", True, ("w",), ("x",)),
    ]
    problems = [
        mixed_problem(),
        mixed_problem(layout="ir_mul"),
        mixed_problem(dtype="float64"),
        mixed_problem(shared_weights=True),
        mixed_problem(flipped=((1, 1, 1),)),
        mixed_problem(rounded=((1, 1, 1),)),
    ]
    texts = {without_header(emitted(p, s).source) for p in problems for s in specs}
    assert len(texts) == len(problems) * len(specs)


@pytest.mark.parametrize("spec", usual_specs(), ids=str)
def test_constants_are_exact(spec: KernelSpec) -> None:
    """Coefficients are written as hexadecimal floats: no digit is lost, in any locale."""
    source = without_header(emitted(mixed_problem(dtype="float64"), spec).source)
    literals = re.findall(r"splat\(T\(([^)]*)\)\)", source)
    assert literals
    for literal in literals:
        assert literal.startswith("0x1.")
        assert float.fromhex(literal) > 0


def test_gradients_not_wanted_leave_no_code() -> None:
    problem = small_problem()
    everything = without_prelude(emitted(problem, KernelSpec("backward", True, ALL[:3])).source)
    only_x = emitted(problem, KernelSpec("backward", True, ("x",)))
    assert {"dx", "dx_rows"} <= set(only_x.arguments)
    assert not {"dy", "dw"} & set(only_x.arguments)
    text = without_prelude(only_x.source)
    for name in ("attribute_gradient", "dwv", "dw_base", "dy_base"):
        assert name not in text
        assert name in everything


@pytest.mark.parametrize("spec", usual_specs(), ids=str)
def test_scratch_grows_with_the_problem(spec: KernelSpec) -> None:
    small, wide = emitted(small_problem(), spec), emitted(WIDE, spec)
    assert small.scratch_bytes % 64 == 0
    # scratch of a backward convolution holds no channels, only nonzeros
    channels = spec.kind == "forward" or not spec.conv
    assert wide.scratch_bytes > small.scratch_bytes if channels else wide.scratch_bytes > 0
    assert (wide.packed_in1, wide.packed_out) == (8 * small.packed_in1, 8 * small.packed_out)


WIDE = ConvProblem.build(
    "64x0e+64x1o", "0e+1o", "64x0e+64x1o", [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
)


def test_packed_rows_hold_whole_vectors() -> None:
    problem = ConvProblem.build("5x0e+3x1o", "0e", "5x0e+3x1o", [(0, 0, 0), (1, 0, 1)])
    kernel = emit_host(problem, HostPlan("x86-64-v3", 4, 16), KernelSpec("forward", True))
    assert kernel.packed_in1 == 8 + 3 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("sideways", True),
            "kernel kind is 'sideways', expected one of forward, backward, double",
        ),
        (("backward", True, ("w", "x")), r"\('w', 'x'\) must be distinct, in the order x, y, w, g"),
        (("backward", True, ("x", "x")), "must be distinct"),
        (("double_backward", True, ("x",), ("y", "x")), "must be distinct"),
    ],
)
def test_bad_specs_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelSpec(*arguments)  # type: ignore[arg-type]


def test_names_of_specs() -> None:
    assert str(KernelSpec("forward", False)) == "tp_forward"
    assert str(KernelSpec("backward", True, ("x", "w"))) == "conv_backward_wants_xw"
    spec = KernelSpec("double_backward", True, ("w", "g"), ("x", "y"))
    assert str(spec) == "conv_double_backward_given_xy_wants_wg"


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
    """Kernels have shared memory for as many receivers as the engine's groups have."""
    header = Path(__file__).parents[2] / "csrc/engine/cuda/device_edges.hpp"
    assert f"GROUP = {GROUP};" in header.read_text()


@pytest.mark.parametrize(
    ("dtype", "degrees", "mul"),
    [("float32", (3, 4, 4), 64), ("float64", (2, 3, 3), 32), ("float64", (3, 3, 3), 64)],
)
def test_shared_memory_of_warp_groups(dtype: str, degrees: tuple[int, int, int], mul: int) -> None:
    """As many warp_groups of warps as fit into a block."""
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
    """99 KiB per block; what receivers hold is in device memory where that is too little."""
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


@pytest.mark.parametrize(
    ("kind", "channels", "edges"),
    [("forward", ["1", "2"], ["2", "2"]), ("backward", ["2", "2"], [])],
)
def test_what_lanes_take_at_a_time(kind: str, channels: list[str], edges: list[str]) -> None:
    """Channels, and edges of an iteration, of which forward has two.

    The vectors and the scalars of the second layer of MACE medium: the longest kernel comes first.
    """
    paths = [(0, l, l) for l in range(4)]
    paths += [(1, 1, 4), (1, 0, 5), (1, 2, 6), (1, 1, 7), (1, 3, 8), (1, 2, 9)]
    out = "128x0e+128x1o+128x2e+128x3o+128x0e+128x1o+128x1o+128x2e+128x2e+128x3o"
    problem = ConvProblem.build("128x0e+128x1o", "0e+1o+2e+3o", out, paths, layout="ir_mul")
    kernel = emit_table_conv(problem, kind, wants_x=True, normalization="component")
    assert constants(kernel.source, "CHANNELS") == channels
    assert constants(kernel.source, "EDGES_AT_ONCE") == edges
    assert constants(kernel.source, "DIM") == ["3", "1"]


def test_vectors_in_double_precision_are_divided_between_two_kernels() -> None:
    """Of one stream: the first stores gradients of the features, the second adds to them."""
    paths = [(1, 1, 0), (1, 0, 1), (1, 2, 2), (1, 1, 3), (1, 3, 4), (1, 2, 5)]
    out = "128x0e+128x1o+128x1o+128x2e+128x2e+128x3o"
    problem = ConvProblem.build(
        "128x0e+128x1o", "0e+1o+2e+3o", out, paths, layout="ir_mul", dtype="float64"
    )
    kernel = emit_table_conv(problem, "backward", wants_x=True, normalization="component")
    assert [entry.stream for entry in kernel.entries] == [0, 0]
    assert constants(kernel.source, "IS_FIRST_OF_INPUT") == ["true", "false"]
    assert constants(kernel.source, "DIM") == ["3", "3"]


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize(
    ("in1", "out", "paths", "blocks"),
    [
        # every path ends in a block of its own
        ("64x0e+64x1o", "64x0e+64x0e+64x1o+64x1o", [(0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 3)], 2),
        # both features reach the first block
        ("64x0e+64x1o", "64x0e+64x1o", [(0, 0, 0), (1, 1, 0), (1, 0, 1)], 1),
        # the third feature reaches the blocks of the first two, the last has a block of its own
        ("+".join(["64x0e"] * 4), "+".join(["64x0e"] * 3), MERGING, 2),
        # more than there are streams
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
