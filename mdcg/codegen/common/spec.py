"""Which kernel of a problem: pass, gather and sum or not, operands present, results wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["COTANGENTS", "DERIVATIVES", "KernelSpec", "PassSpec"]

KINDS = ("forward", "backward", "double_backward")

# Names of the operands of the 4-linear form phi(x, y, w, g) = <g, TP(x, y, w)>.
DERIVATIVES = ("x", "y", "w", "g")

# Names of their cotangents in the arguments of kernels.
COTANGENTS = {"x": "xa", "y": "yb", "w": "wc"}


class PassSpec:
    """Base of the descriptions of kernels."""

    # names of the operands' cotangents in the arguments of kernels
    cotangents: ClassVar[Mapping[str, str]]
    kind: str
    wants: tuple[str, ...]
    given: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kernel kind is {self.kind!r}, expected one of {', '.join(KINDS)}")
        order = [*self.cotangents, "g"]
        for names in (self.wants, self.given):
            if tuple(sorted(set(names), key=order.index)) != names:
                raise ValueError(f"{names} must be distinct, in the order {', '.join(order)}")

    def has(self, name: str) -> bool:
        """Return whether the cotangent of an operand is given."""
        return name in self.given

    def wanted(self, name: str) -> bool:
        """Return whether the gradient with respect to an operand is wanted."""
        return name in self.wants

    def tensors(self, *operands: str) -> list[str]:
        """Return the names of all operands, of cotangents and of results, as arguments."""
        if self.kind == "forward":
            return [*operands, "out"]
        given = [self.cotangents[name] for name in self.given]
        return [*operands, "g", *given, *(f"d{name}" for name in self.wants)]

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results in the arguments of kernels; "out" is the gradient of g, too."""
        if self.kind == "forward":
            return ("out",)
        return tuple("out" if name == "g" else f"d{name}" for name in self.wants)

    def _text(self, *parts: str) -> str:
        gradients = {"given": self.given, "wants": self.wants}
        return "_".join([*parts, *(f"{k}_{''.join(n)}" for k, n in gradients.items() if n)])


@dataclass(frozen=True)
class KernelSpec(PassSpec):
    """One generated kernel."""

    cotangents = COTANGENTS
    # value; gradients of ``phi`` with respect to x, y, w; with respect to x, y, w, g those of
    # ``phi(a, y, w, g) + phi(x, b, w, g) + phi(x, y, c, g)``
    kind: str
    # rows are gathered from senders and summed on receivers; else one output row per input row
    conv: bool
    wants: tuple[str, ...] = ()  # gradients to compute, of ``DERIVATIVES``; empty for forward
    # cotangents present in a double backward: "x" for a, "y" for b, "w" for c
    given: tuple[str, ...] = ()
    # edges read their weights from a row that the two directions of one edge share, and sum their
    # gradients in it; forward and backward convolutions only
    paired: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.paired and (self.kind == "double_backward" or not self.conv):
            raise ValueError("only forward and backward convolutions take weights of pairs")

    def __str__(self) -> str:
        text = self._text(f"{'conv' if self.conv else 'tp'}_{self.kind}")
        return f"{text}_paired" if self.paired else text
