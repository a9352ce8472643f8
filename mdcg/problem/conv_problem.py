"""The description of one Clebsch-Gordan tensor product, on edges or on rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError
from .irreps import Irreps
from .text import ProblemText, check_dtype
from .wigner import wigner_3j

Degrees = tuple[int, int, int]

MODES = ("uvu", "uvw")
LAYOUTS = ("mul_ir", "ir_mul")
_FORMAT = 1
_W3J_BUFFER = re.compile(r"(?:^|\.)_w3j_(\d+)_(\d+)_(\d+)$")


@dataclass(frozen=True)
class Path:
    """One path (e3nn: instruction) from a block of each input to a block of the output.

    Parameters
    ----------
    i_in1, i_in2, i_out : int
        Positions in ``irreps_in1``, ``irreps_in2``, ``irreps_out``.
    mode : str
        Connection mode: ``"uvu"`` (out index u, weight per (u, v)) or ``"uvw"`` (weight per (u, v,
        w)).
    has_weight : bool
        False: all weights of the path are 1.
    path_weight : float
        Factor of the whole path, normalisation included, as e3nn stores it in ``tp.instructions``.
    """

    i_in1: int
    i_in2: int
    i_out: int
    mode: str
    has_weight: bool
    path_weight: float


@dataclass(frozen=True)
class ConvProblem(ProblemText):
    r"""A tensor product with weighted paths, alone or summed over the edges of a graph.

    .. math:: out_c[u] = \sum_{paths} p \sum_{v,a,b} w_{abc}\, W[u, v]\, x_a[u]\, y_b[v]

    Parameters
    ----------
    irreps_in1, irreps_in2, irreps_out : Irreps
        Node features, edge attributes (spherical harmonics) and output.
    paths : tuple of Path
        In weight order. Several paths may add into one output block.
    layout : {"mul_ir", "ir_mul"}
        Order inside a block of node features and output: ``[mul][2l+1]`` (e3nn) or ``[2l+1][mul]``.
        Edge attributes are always ``mul_ir``.
    dtype : {"float32", "float64"}
        Type of all operands and of the arithmetic.
    shared_weights : bool
        True: one weight row for all edges, False: one row per edge.
    flipped : tuple of (l1, l2, l3)
        Triples whose 3j symbol has the opposite sign of :func:`wigner_3j` (models built on e3nn
        0.4).
    rounded : tuple of (l1, l2, l3)
        Triples whose 3j symbol the model keeps rounded to float32.

    Attributes
    ----------
    weight_offsets : tuple of int
        Column where each path's weights start.
    weight_numel : int
        Length of a weight row.

    Raises
    ------
    ValueError
        An index, parity, degree or multiplicity does not fit.
    UnsupportedProblemError
        A connection mode other than ``uvu`` and ``uvw``.

    Examples
    --------
    >>> problem = ConvProblem.build("8x0e", "0e+1o", "8x0e+8x1o", [(0, 0, 0), (0, 1, 1)])
    >>> problem.weight_numel, problem.nnz
    (16, 4)
    """

    irreps_in1: Irreps
    irreps_in2: Irreps
    irreps_out: Irreps
    paths: tuple[Path, ...]
    layout: str = "mul_ir"
    dtype: str = "float32"
    shared_weights: bool = False
    flipped: tuple[Degrees, ...] = ()
    rounded: tuple[Degrees, ...] = ()
    weight_offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    weight_numel: int = field(init=False, repr=False, compare=False)
    _json: str = field(init=False, repr=False, compare=False)
    _w3j: dict[Degrees, NDArray[np.float64]] = field(
        default_factory=dict, repr=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}, expected one of {', '.join(LAYOUTS)}")
        check_dtype(self.dtype)
        for number, path in enumerate(self.paths):
            self._check_path(number, path)
        # not cached properties, because torch.compile cannot trace those
        sizes = [int(np.prod(self.weight_shape(path))) for path in self.paths]
        starts = tuple(int(n) for n in np.cumsum([0, *sizes]))
        object.__setattr__(self, "weight_offsets", starts[:-1])
        object.__setattr__(self, "weight_numel", starts[-1])
        self._set_text()

    def _check_path(self, number: int, path: Path) -> None:
        where = f"path {number} ({path.i_in1}, {path.i_in2}, {path.i_out}, {path.mode})"
        if path.mode not in MODES:
            raise UnsupportedProblemError(
                f"{where}: connection mode {path.mode!r} has no generated kernel, "
                "only uvu and uvw do: keep the e3nn module for it"
            )
        for index, irreps, name in (
            (path.i_in1, self.irreps_in1, "irreps_in1"),
            (path.i_in2, self.irreps_in2, "irreps_in2"),
            (path.i_out, self.irreps_out, "irreps_out"),
        ):
            if not 0 <= index < len(irreps):
                raise ValueError(f"{where}: {name} has {len(irreps)} blocks, got index {index}")
        in1, in2, out = (
            self.irreps_in1[path.i_in1],
            self.irreps_in2[path.i_in2],
            self.irreps_out[path.i_out],
        )
        if in1.ir.p * in2.ir.p != out.ir.p:
            raise ValueError(f"{where}: parity of {in1.ir} x {in2.ir} does not give {out.ir}")
        if not abs(in1.ir.l - in2.ir.l) <= out.ir.l <= in1.ir.l + in2.ir.l:
            raise ValueError(f"{where}: {in1.ir} x {in2.ir} does not contain {out.ir}")
        if path.mode == "uvu" and in1.mul != out.mul:
            raise ValueError(
                f"{where}: uvu needs equal multiplicities, got {in1.mul} in and {out.mul} out"
            )
        if path.mode == "uvw" and not path.has_weight:
            raise ValueError(f"{where}: uvw without weights is not defined")
        if not np.isfinite(path.path_weight):
            raise ValueError(
                f"{where}: path weight is {path.path_weight}, expected a finite number"
            )

    @classmethod
    def build(
        cls,
        irreps_in1: str,
        irreps_in2: str,
        irreps_out: str,
        paths: Iterable[tuple[Any, ...]],
        **options: Any,
    ) -> ConvProblem:
        """Build from strings and tuples.

        A path is ``(i_in1, i_in2, i_out[, mode[, has_weight[, path_weight]]])``. Defaults are
        ``"uvu"``, True and 1.0; path weights are used as given, without normalisation.
        """
        defaults = ("uvu", True, 1.0)
        full = tuple(Path(*p, *defaults[len(p) - 3 :]) for p in paths)
        in1, in2, out = (Irreps.parse(text) for text in (irreps_in1, irreps_in2, irreps_out))
        return cls(in1, in2, out, full, **options)

    @classmethod
    def from_e3nn(cls, tp: Any, *, dtype: str | None = None, layout: str = "mul_ir") -> ConvProblem:
        """Describe an e3nn ``o3.TensorProduct`` exactly.

        Path weights are the normalised path weights of ``tp.instructions``. Signs and precision of
        the 3j symbols come from the module's buffers, because they differ between e3nn versions.

        Parameters
        ----------
        tp : e3nn.o3.TensorProduct
            Any subclass; e3nn 0.4.4 to 0.6.
        dtype : str, optional
            Default: the dtype of the module's buffers.
        layout : str
            Layout of node features and output. e3nn's is ``"mul_ir"``.

        Returns
        -------
        ConvProblem

        Raises
        ------
        UnsupportedProblemError
            Another connection mode than uvu and uvw, or 3j buffers that are not Wigner 3j symbols.
        """
        paths = (
            (
                int(ins.i_in1),
                int(ins.i_in2),
                int(ins.i_out),
                str(ins.connection_mode),
                bool(ins.has_weight),
                float(ins.path_weight),
            )
            for ins in tp.instructions
        )
        flipped, rounded = _flipped_and_rounded(_w3j_buffers(tp))
        return cls.build(
            str(tp.irreps_in1),
            str(tp.irreps_in2),
            str(tp.irreps_out),
            paths,
            layout=layout,
            dtype=dtype or str(tp.output_mask.dtype).removeprefix("torch."),
            shared_weights=bool(tp.shared_weights),
            flipped=flipped,
            rounded=rounded,
        )

    def degrees(self, path: Path) -> Degrees:
        """Return ``(l1, l2, l3)`` of a path."""
        return (
            self.irreps_in1[path.i_in1].ir.l,
            self.irreps_in2[path.i_in2].ir.l,
            self.irreps_out[path.i_out].ir.l,
        )

    def w3j(self, degrees: Degrees) -> NDArray[np.float64]:
        """Return the 3j symbol used for a triple, shape (2*l1+1, 2*l2+1, 2*l3+1), float64."""
        found = self._w3j.get(degrees)
        if found is None:
            found = wigner_3j(*degrees)
            if degrees in self.flipped:
                found = -found
            if degrees in self.rounded:
                found = found.astype(np.float32).astype(np.float64)
            self._w3j[degrees] = found
        return found

    def weight_shape(self, path: Path) -> tuple[int, ...]:
        """Return the shape of a path's weights, ``(mul1, mul2)`` or ``(mul1, mul2, mul_out)``."""
        if not path.has_weight:
            return (0,)
        shape = (self.irreps_in1[path.i_in1].mul, self.irreps_in2[path.i_in2].mul)
        return shape if path.mode == "uvu" else (*shape, self.irreps_out[path.i_out].mul)

    @cached_property
    def nnz(self) -> int:
        """Number of nonzero 3j entries, summed over paths."""
        return sum(int(np.count_nonzero(self.w3j(self.degrees(path)))) for path in self.paths)

    def with_dtype(self, dtype: str) -> ConvProblem:
        """Return the same problem for operands of another dtype."""
        return self if dtype == self.dtype else replace(self, dtype=dtype, _w3j={})

    def _data(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "irreps_in1": str(self.irreps_in1),
            "irreps_in2": str(self.irreps_in2),
            "irreps_out": str(self.irreps_out),
            "paths": [
                [p.i_in1, p.i_in2, p.i_out, p.mode, int(p.has_weight), float(p.path_weight).hex()]
                for p in self.paths
            ],
            "layout": self.layout,
            "dtype": self.dtype,
            "shared_weights": self.shared_weights,
            "flipped": [list(t) for t in sorted(self.flipped)],
            "rounded": [list(t) for t in sorted(self.rounded)],
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> ConvProblem:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}, expected {_FORMAT}")
        return cls.build(
            data["irreps_in1"],
            data["irreps_in2"],
            data["irreps_out"],
            (
                (i, j, k, mode, bool(weighted), float.fromhex(value))
                for i, j, k, mode, weighted, value in data["paths"]
            ),
            layout=data["layout"],
            dtype=data["dtype"],
            shared_weights=bool(data["shared_weights"]),
            flipped=tuple((a, b, c) for a, b, c in data["flipped"]),
            rounded=tuple((a, b, c) for a, b, c in data["rounded"]),
        )

    def __str__(self) -> str:
        shared = "shared" if self.shared_weights else "per edge"
        return (
            f"ConvProblem {self.key()}: {self.irreps_in1} (x) {self.irreps_in2} -> "
            f"{self.irreps_out}, {len(self.paths)} paths, {self.nnz} nonzeros, "
            f"{self.weight_numel} weights ({shared}), "
            f"{self.dtype}, {self.layout}"
        )


def _w3j_buffers(tp: Any) -> dict[Degrees, NDArray[Any]]:
    found: dict[Degrees, NDArray[Any]] = {}
    for name, buffer in tp.named_buffers():
        match = _W3J_BUFFER.search(name)
        if match:
            l1, l2, l3 = (int(group) for group in match.groups())
            found[l1, l2, l3] = buffer.detach().cpu().numpy()
    return found


def _flipped_and_rounded(
    buffers: Mapping[Degrees, NDArray[Any]],
) -> tuple[tuple[Degrees, ...], tuple[Degrees, ...]]:
    """Return which 3j buffers of a module have the opposite sign, and which are rounded."""
    flipped, rounded = [], []
    for degrees, buffer in sorted(buffers.items()):
        ours, theirs = wigner_3j(*degrees), buffer.astype(np.float64)
        sign = 1.0 if float(np.sum(ours * theirs)) > 0 else -1.0
        error = float(np.max(np.abs(sign * ours - theirs)))
        if not error <= 1e-6:  # nan too
            raise UnsupportedProblemError(
                f"the module's 3j buffer {degrees} differs from the Wigner 3j symbol by "
                f"{error:.1e}, expected at most a sign: "
                "the checkpoint was made with another basis and cannot be converted"
            )
        if sign < 0:
            flipped.append(degrees)
        if error > 1e-12 or buffer.dtype == np.float32:
            rounded.append(degrees)
    return tuple(flipped), tuple(rounded)
