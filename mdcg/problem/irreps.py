"""Irreducible representations of O(3) and their multiplicities, without any framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_TERM = re.compile(r"^(?:(\d+)x)?(\d+)([eo])$")


@dataclass(frozen=True, order=True)
class Irrep:
    """Irrep of O(3): degree ``l >= 0`` and parity ``p`` (1 even, -1 odd)."""

    l: int
    p: int

    def __post_init__(self) -> None:
        if self.l < 0 or self.p not in (1, -1):
            raise ValueError(f"irrep has l={self.l}, p={self.p}, expected l >= 0 and p = 1 or -1")

    @property
    def dim(self) -> int:
        """Number of components, ``2 l + 1``."""
        return 2 * self.l + 1

    def __str__(self) -> str:
        return f"{self.l}{'e' if self.p == 1 else 'o'}"


@dataclass(frozen=True)
class MulIrrep:
    """``mul`` copies of one irrep, starting at column ``offset`` of the feature row."""

    mul: int
    ir: Irrep
    offset: int

    @property
    def dim(self) -> int:
        """Number of columns, ``mul * (2 l + 1)``."""
        return self.mul * self.ir.dim

    def __str__(self) -> str:
        return f"{self.mul}x{self.ir}"


@dataclass(frozen=True)
class Irreps:
    """An ordered list of irreps with multiplicities, such as ``"128x0e+128x1o"``.

    Order and repetition matter: nothing is sorted or merged.
    """

    blocks: tuple[MulIrrep, ...]  # consecutive

    @classmethod
    def parse(cls, text: str) -> Irreps:
        """Parse e3nn's notation, or raise ValueError; an empty string has dimension 0."""
        pairs = []
        for term in filter(None, (part.strip() for part in text.split("+"))):
            match = _TERM.match(term)
            if match is None:
                raise ValueError(
                    f"irreps term {term!r} in {text!r}: expected a form such as '8x1o'"
                )
            mul, l, parity = match.groups()
            pairs.append((int(mul or 1), int(l), 1 if parity == "e" else -1))
        return cls.from_pairs(pairs)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int, int]]) -> Irreps:
        """Build from ``(mul, l, p)`` triples, or raise ValueError."""
        blocks, offset = [], 0
        for mul, l, p in pairs:
            if mul < 0:
                raise ValueError(f"irreps have multiplicity {mul}, expected 0 or more")
            block = MulIrrep(int(mul), Irrep(int(l), int(p)), offset)
            blocks.append(block)
            offset += block.dim
        return cls(tuple(blocks))

    @property
    def dim(self) -> int:
        """Length of a feature row."""
        return self.blocks[-1].offset + self.blocks[-1].dim if self.blocks else 0

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> MulIrrep:
        return self.blocks[index]

    def __iter__(self) -> Iterator[MulIrrep]:
        return iter(self.blocks)

    def __str__(self) -> str:
        return "+".join(str(block) for block in self.blocks)
