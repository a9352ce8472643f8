"""Layer shapes to measure: tensor products of published models, independent of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mdcg.problem import ConvProblem, Irreps

Instruction = tuple[int, int, int, str, bool]
Built = tuple[str, tuple[Instruction, ...]]
Builder = Callable[[str, str, str], Built]

_SH1 = "1x0e+1x1o"
_SH2 = "1x0e+1x1o+1x2e"
_SH3 = "1x0e+1x1o+1x2e+1x3o"


@dataclass(frozen=True)
class Case:
    """One layer shape.

    `target`: irreps that the layer keeps (channelwise, NequIP) or its output (fully connected);
    `origin`: where the shape comes from; `shared_weights`: one weight row for all edges; `batch`:
    number of rows, for layers whose published GPU times are for batches instead of graphs.
    """

    name: str
    irreps_in1: str
    irreps_in2: str
    target: str
    builder: Builder
    origin: str
    shared_weights: bool = False
    batch: int | None = None

    def build(self) -> Built:
        """Return output irreps and instructions ``(i_in1, i_in2, i_out, mode, has_weight)``."""
        return self.builder(self.irreps_in1, self.irreps_in2, self.target)

    def problem(self, dtype: str = "float32") -> ConvProblem:
        """Return the problem with path weights of 1, for its sizes; timed ones come from e3nn."""
        irreps_out, instructions = self.build()
        return ConvProblem.build(
            self.irreps_in1,
            self.irreps_in2,
            irreps_out,
            instructions,
            dtype=dtype,
            shared_weights=self.shared_weights,
        )


def _products(
    irreps1: Irreps, irreps2: Irreps, target: Irreps
) -> list[tuple[int, int, int, int, int]]:
    """List ``(i_in1, i_in2, mul, l, p)`` of every product that the target keeps, in input order."""
    kept = {(block.ir.l, block.ir.p) for block in target}
    found = []
    for i, one in enumerate(irreps1):
        for j, two in enumerate(irreps2):
            parity = one.ir.p * two.ir.p
            for degree in range(abs(one.ir.l - two.ir.l), one.ir.l + two.ir.l + 1):
                if (degree, parity) in kept:
                    found.append((i, j, one.mul, degree, parity))
    return found


def _uvu(irreps_in1: str, irreps_in2: str, target: str) -> tuple[str, list[Instruction]]:
    products = _products(*(Irreps.parse(text) for text in (irreps_in1, irreps_in2, target)))
    # stable: paths of one irrep keep their input order, as separate blocks next to each other
    order = sorted(range(len(products)), key=lambda n: products[n][3:])
    place = {number: position for position, number in enumerate(order)}
    irreps_out = Irreps.from_pairs(products[number][2:] for number in order)
    instructions: list[Instruction] = [
        (i, j, place[number], "uvu", True) for number, (i, j, *_) in enumerate(products)
    ]
    return str(irreps_out), instructions


def nequip(irreps_in1: str, irreps_in2: str, target: str) -> Built:
    """Build as NequIP does: one output block per path, sorted by irrep; weights in input order."""
    irreps_out, instructions = _uvu(irreps_in1, irreps_in2, target)
    return irreps_out, tuple(instructions)


def channelwise(irreps_in1: str, irreps_in2: str, target: str) -> Built:
    """Build as MACE does: like :func:`nequip`, but weights in output order."""
    irreps_out, instructions = _uvu(irreps_in1, irreps_in2, target)
    return irreps_out, tuple(sorted(instructions, key=lambda instruction: instruction[2]))


def fully_connected(irreps_in1: str, irreps_in2: str, target: str) -> Built:
    """Build every allowed ``uvw`` path into the blocks of the target."""
    one, two, out = (Irreps.parse(text) for text in (irreps_in1, irreps_in2, target))
    instructions: list[Instruction] = [
        (i, j, k, "uvw", True)
        for i, a in enumerate(one)
        for j, b in enumerate(two)
        for k, c in enumerate(out)
        if a.ir.p * b.ir.p == c.ir.p and abs(a.ir.l - b.ir.l) <= c.ir.l <= a.ir.l + b.ir.l
    ]
    return str(out), tuple(instructions)


def _parity(mul: int, l_max: int) -> str:
    return "+".join(f"{mul}x{degree}{p}" for degree in range(l_max + 1) for p in "oe")


def _even(l_max: int) -> str:
    return "+".join(f"1x{degree}e" for degree in range(l_max + 1))


def _all_cases() -> Iterable[Case]:
    scalars, vectors = "128x0e", "128x0e+128x1o"
    tensors = "128x0e+128x1o+128x2e"
    natural = "0e+1o+2e+3o"
    mace, suite = "MACE", "OpenEquivariance suite"
    yield Case("mace-small", scalars, _SH3, natural, channelwise, f"{mace} MP-0 small, both layers")
    yield Case(
        "mace-medium-l1", scalars, _SH3, natural, channelwise, f"{mace} MP-0 medium, layer 1"
    )
    yield Case(
        "mace-medium-l2", vectors, _SH3, natural, channelwise, f"{mace} MP-0 medium, layer 2"
    )
    yield Case("mace-large", tensors, _SH3, natural, channelwise, f"{mace} MP-0 large, layer 2")
    yield Case("mace-medium", vectors, _SH3, "0e+1o+2e", channelwise, f"{suite}, drops 3o")

    lips, aspirin, toluene = _parity(32, 2), _parity(64, 1), _parity(64, 2)
    benzene, water = _parity(64, 3), _parity(32, 1)
    oam = "128x0e+64x1o+32x2e+32x3o"
    yield Case("nequip-lips", lips, _SH2, lips, nequip, suite)
    yield Case("nequip-aspirin", aspirin, _SH1, aspirin, nequip, f"{suite}, revMD17")
    yield Case("nequip-toluene", toluene, _SH2, toluene, nequip, f"{suite}, revMD17")
    yield Case("nequip-benzene", benzene, _SH3, benzene, nequip, f"{suite}, revMD17")
    yield Case("nequip-water", water, _SH1, water, nequip, suite)
    yield Case("nequip-oam-like", oam, _SH3, oam, nequip, "NequIP OAM-L, inner layer")

    yield Case("nequix-first", "89x0e", _SH3, natural, nequip, "Nequix MP-1")
    yield Case("nequix-main", oam, _SH3, natural, nequip, "Nequix MP-1")
    yield Case("nequix-last", oam, _SH3, "0e", nequip, "Nequix MP-1")

    even = "128x0e+64x1e+32x2e+32x3e"
    yield Case("sevennet-l3i5-first", scalars, _even(3), even, nequip, "SevenNet-l3i5")
    yield Case("sevennet-l3i5-main", even, _even(3), even, nequip, "SevenNet-l3i5")
    yield Case("sevennet-l3i5-last", even, _even(3), "0e", nequip, "SevenNet-l3i5")

    dock = "10x1o+10x1e+48x0e+48x0o"
    yield Case("diffdock-l1", dock, _SH1, dock, fully_connected, "DiffDock, L=1", batch=50_000)
    yield Case("diffdock-l2", dock, _SH2, dock, fully_connected, "DiffDock, L=2", batch=50_000)
    gate = "64x0e+24x1e+24x1o+16x2e+16x2o"
    yield Case("tetris-1", _SH3, _SH3, gate, fully_connected, "e3nn tetris example, layer 1")
    yield Case("tetris-2", gate, _SH2, "1x0o+6x0e", fully_connected, "e3nn tetris example, layer 2")
    tools = "64x0e+16x1o"
    yield Case("e3tools-conv", tools, _SH1, "80x0e+16x1o", fully_connected, "e3tools")
    yield Case("e3tools-transformer", tools, _SH1, tools, fully_connected, "e3tools", True)


CASES: dict[str, Case] = {case.name: case for case in _all_cases()}
DEFAULT_CASES = ("mace-medium-l1", "mace-medium-l2", "mace-large")
# Default layer shapes and dtypes on a GPU.
DEFAULT_CUDA = (
    ("mace-medium-l1", "float32"),
    ("mace-medium-l2", "float32"),
    ("mace-medium-l2", "float64"),
    ("mace-large", "float32"),
    ("nequip-lips", "float32"),
    ("nequip-benzene", "float32"),
    ("nequip-oam-like", "float32"),
    ("diffdock-l1", "float32"),
    ("diffdock-l2", "float32"),
)


def find_cases(patterns: Sequence[str]) -> list[Case]:
    """Return cases by name, in table order; ``all`` and wildcards such as ``mace-*`` work."""
    wanted: set[str] = set()
    for pattern in patterns:
        hits = [name for name in CASES if pattern == "all" or fnmatchcase(name, pattern)]
        if not hits:
            raise ValueError(f"case {pattern!r} is unknown, expected one of {', '.join(CASES)}")
        wanted.update(hits)
    return [case for name, case in CASES.items() if name in wanted]
