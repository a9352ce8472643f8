"""Describes one kernel of a problem: its pass, its operands, and the results that are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["COTANGENTS", "DERIVATIVES", "KernelSpec", "PassSpec"]

KINDS = ("forward", "backward", "double_backward")

# Names of the operands of the 4-linear form phi(x, y, w, g) = <g, TP(x, y, w)>.
DERIVATIVES = ("x", "y", "w", "g")

# Names of the operands' cotangents in the arguments of kernels.
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
        """Return the argument names of all operands, cotangents and results."""
        if self.kind == "forward":
            return [*operands, "out"]
        given = [self.cotangents[name] for name in self.given]
        return [*operands, "g", *given, *(f"d{name}" for name in self.wants)]

    @property
    def results(self) -> tuple[str, ...]:
        """Argument names of the results; the gradient with respect to g is "out" too."""
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
    # forward: the product. backward: gradients of ``phi`` with respect to x, y, w.
    # double_backward: gradients of ``phi(a, y, w, g) + phi(x, b, w, g) + phi(x, y, c, g)`` with
    # respect to x, y, w, g.
    kind: str
    # whether rows are gathered from senders and summed on receivers; else each row is one product
    conv: bool
    wants: tuple[str, ...] = ()  # gradients to compute, from ``DERIVATIVES``; forward: empty
    # cotangents present in a double backward: "x" for a, "y" for b, "w" for c
    given: tuple[str, ...] = ()
    # the two directions of an edge share a row of weights, and sum their gradients in it; only in
    # forward and backward convolutions
    paired: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.paired and (self.kind == "double_backward" or not self.conv):
            raise ValueError("only forward and backward convolutions take weights of pairs")

    def __str__(self) -> str:
        text = self._text(f"{'conv' if self.conv else 'tp'}_{self.kind}")
        return f"{text}_paired" if self.paired else text
