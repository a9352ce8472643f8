"""Which kernel of a problem: pass, gather and sum or not, operands present, results wanted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COTANGENTS", "DERIVATIVES", "KINDS", "KernelSpec", "cuda_arguments"]

KINDS = ("forward", "backward", "double_backward")

# Names of the operands of the 4-linear form phi(x, y, w, g) = <g, TP(x, y, w)>.
DERIVATIVES = ("x", "y", "w", "g")

# Names of their cotangents in the arguments of kernels.
COTANGENTS = {"x": "xa", "y": "yb", "w": "wc"}


@dataclass(frozen=True)
class KernelSpec:
    """One generated kernel.

    Parameters
    ----------
    kind : {"forward", "backward", "double_backward"}
        Value; gradients of ``phi`` with respect to x, y, w; gradients of
        ``phi(a, y, w, g) + phi(x, b, w, g) + phi(x, y, c, g)`` with respect to x, y, w, g.
    conv : bool
        True: rows are gathered from senders and summed on receivers. False: one output row per
        input row.
    wants : tuple of str
        Gradients to compute, of ``DERIVATIVES``; empty for forward.
    given : tuple of str
        Cotangents present in a double backward: "x" for a, "y" for b, "w" for c.
    paired : bool
        Edges read their weights from a row that the two directions of one edge share, and sum
        their gradients in it; forward and backward convolutions only.
    """

    kind: str
    conv: bool
    wants: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    paired: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kernel kind is {self.kind!r}, expected one of {', '.join(KINDS)}")
        if self.paired and (self.kind == "double_backward" or not self.conv):
            raise ValueError("only forward and backward convolutions take weights of pairs")
        for names in (self.wants, self.given):
            if tuple(sorted(set(names), key=DERIVATIVES.index)) != names:
                raise ValueError(f"{names} must be distinct, in the order {', '.join(DERIVATIVES)}")

    @property
    def operation(self) -> str:
        """What the names of CUDA kernels begin with."""
        return "conv" if self.conv else "tensor_product"

    def has(self, name: str) -> bool:
        """Return whether the cotangent of an operand is given."""
        return name in self.given

    def wanted(self, name: str) -> bool:
        """Return whether the gradient with respect to an operand is wanted."""
        return name in self.wants

    def __str__(self) -> str:
        rows = "conv" if self.conv else "tp"
        parts = [f"{rows}_{self.kind}"]
        if self.given:
            parts.append("given_" + "".join(self.given))
        if self.wants:
            parts.append("wants_" + "".join(self.wants))
        if self.paired:
            parts.append("paired")
        return "_".join(parts)


def cuda_arguments(spec: KernelSpec, deterministic: bool) -> tuple[str, ...]:
    """Return names of addresses and sizes in the order of the CUDA kernels' parameter."""
    names = ["order", "sender", "row_ptr"] if spec.conv else []
    if spec.conv and spec.wanted("x") and deterministic:
        names.append("place")
    names += ["n_rows", "x", "y", "w"]
    if spec.kind != "forward":
        names.append("g")
    names += [COTANGENTS[name] for name in spec.given]
    if spec.kind == "forward":
        return (*names, "out")
    return (*names, *("out" if name == "g" else f"d{name}" for name in spec.wants))
