"""Symmetric contractions: polynomials of node features, weighted per species."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError
from .irreps import Irreps
from .reduction import monomials, reduce_rows, symmetrize
from .text import ProblemText, check_dtype

# (coefficient, ascending indices of the input components that are multiplied)
Monomial = tuple[float, tuple[int, ...]]

# The highest correlation order that kernels are generated for.
MAX_DEGREE = 4

_FORMAT = 1
# Entries below this, relative to the largest entry, are rounding errors when tensors are reduced.
_TOLERANCE = {"float32": 2e-6, "float64": 1e-11}
# Largest error of a reduction, relative to the largest entry; MACE's tensors have 2e-7 and 5e-15.
_MAX_LOSS = {"float32": 2e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Polynomial:
    """A vector of polynomials that share one coefficient."""

    i_out: int  # index of the output block in irreps_out
    components: tuple[tuple[Monomial, ...], ...]  # [2l+1], the monomials of each component

    @property
    def nnz(self) -> int:
        return sum(len(terms) for terms in self.components)


@dataclass(frozen=True)
class SymmetricContractionProblem(ProblemText):
    r"""Polynomials of each node's features, channel by channel, weighted by its species.

    .. math:: out_{n,c,m} = \sum_r \Big(\sum_s a_{n,s}\, k_{s,r,c}\Big)\, P_{r,m}(x_{n,c})

    Parameters
    ----------
    irreps_in, irreps_out : Irreps
        Blocks of node features and of the output; all have the same multiplicity, the channels.
    polynomials : tuple of Polynomial
        In the order of the coefficients k.
    dtype : {"float32", "float64"}
        Type of all operands and of the arithmetic.

    Attributes
    ----------
    channels, dim_in, dim_out : int
        Multiplicity, and components per channel of features and output.

    Raises
    ------
    ValueError
        Multiplicities differ, or an index does not fit.
    UnsupportedProblemError
        A monomial has more than four factors.

    Examples
    --------
    >>> square = Polynomial(0, (((1.0, (0, 0)),),))
    >>> problem = SymmetricContractionProblem.build("8x0e", "8x0e", [square])
    >>> problem.channels, problem.degree, problem.nnz
    (8, 2, 1)
    """

    irreps_in: Irreps
    irreps_out: Irreps
    polynomials: tuple[Polynomial, ...]
    dtype: str = "float32"
    channels: int = field(init=False, repr=False, compare=False)
    dim_in: int = field(init=False, repr=False, compare=False)
    dim_out: int = field(init=False, repr=False, compare=False)
    _json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        muls = {block.mul for irreps in (self.irreps_in, self.irreps_out) for block in irreps}
        if len(muls) != 1 or not len(self.irreps_in):
            raise ValueError(
                f"irreps {self.irreps_in} and {self.irreps_out} have multiplicities "
                f"{sorted(muls)}, expected one for all blocks"
            )
        # not cached properties, because torch.compile cannot trace those
        object.__setattr__(self, "channels", muls.pop())
        for name, irreps in (("dim_in", self.irreps_in), ("dim_out", self.irreps_out)):
            object.__setattr__(self, name, sum(block.ir.dim for block in irreps))
        for number, polynomial in enumerate(self.polynomials):
            self._check(number, polynomial)
        self._set_text()

    def _check(self, number: int, polynomial: Polynomial) -> None:
        where = f"polynomial {number}"
        if not 0 <= polynomial.i_out < len(self.irreps_out):
            raise ValueError(
                f"{where}: irreps_out has {len(self.irreps_out)} blocks, got {polynomial.i_out}"
            )
        wanted = self.irreps_out[polynomial.i_out].ir.dim
        if len(polynomial.components) != wanted:
            raise ValueError(f"{where}: {len(polynomial.components)} components, expected {wanted}")
        for value, indices in (term for terms in polynomial.components for term in terms):
            if len(indices) > MAX_DEGREE:
                raise UnsupportedProblemError(
                    f"{where} has degree {len(indices)}, and kernels are generated up to degree "
                    f"{MAX_DEGREE}: keep the original layer for it"
                )
            inside = all(0 <= i < self.dim_in for i in indices)
            if not indices or not inside or tuple(sorted(indices)) != indices:
                raise ValueError(
                    f"{where}: monomial {indices}, expected ascending indices below {self.dim_in}"
                )
            if not np.isfinite(value) or value == 0.0:
                raise ValueError(f"{where}: factor {value}, expected a finite one that is not zero")

    @classmethod
    def build(
        cls,
        irreps_in: str,
        irreps_out: str,
        polynomials: Iterable[Polynomial],
        *,
        dtype: str = "float32",
    ) -> SymmetricContractionProblem:
        """Build from strings."""
        return cls(Irreps.parse(irreps_in), Irreps.parse(irreps_out), tuple(polynomials), dtype)

    @property
    def num_coefficients(self) -> int:
        """Number of polynomials, and of coefficients per species and channel."""
        return len(self.polynomials)

    @property
    def degree(self) -> int:
        """Largest number of factors, the correlation order."""
        terms = (t for p in self.polynomials for c in p.components for t in c)
        return max((len(indices) for _, indices in terms), default=0)

    @property
    def nnz(self) -> int:
        """Number of monomials of all polynomials."""
        return sum(polynomial.nnz for polynomial in self.polynomials)

    def out_offset(self, i_out: int) -> int:
        """Return the first component of an output block, per channel."""
        return sum(block.ir.dim for block in self.irreps_out.blocks[:i_out])

    def with_dtype(self, dtype: str) -> SymmetricContractionProblem:
        """Return the same problem for operands of another dtype."""
        return self if dtype == self.dtype else replace(self, dtype=dtype)

    def derivative(self) -> SymmetricContractionProblem:
        """Return the problem of directional derivatives: input (x, a), output ``dP(x)/dx a``.

        Derivatives of every order are again problems of this kind.
        """
        found = []
        for polynomial in self.polynomials:
            components = []
            for terms in polynomial.components:
                total: dict[tuple[int, ...], float] = {}
                for value, indices in terms:
                    for position, index in enumerate(indices):  # the product rule
                        others = indices[:position] + indices[position + 1 :]
                        key = (*others, index + self.dim_in)
                        total[key] = total.get(key, 0.0) + value
                components.append(tuple((v, k) for k, v in sorted(total.items())))
            found.append(Polynomial(polynomial.i_out, tuple(components)))
        pairs = [(b.mul, b.ir.l, b.ir.p) for b in self.irreps_in]
        doubled = Irreps.from_pairs(pairs + pairs)
        return SymmetricContractionProblem(doubled, self.irreps_out, tuple(found), self.dtype)

    def _data(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "kind": "symmetric_contraction",
            "irreps_in": str(self.irreps_in),
            "irreps_out": str(self.irreps_out),
            "polynomials": [
                [p.i_out, [[[float(v).hex(), *ix] for v, ix in terms] for terms in p.components]]
                for p in self.polynomials
            ],
            "dtype": self.dtype,
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> SymmetricContractionProblem:
        if (data["format"], data["kind"]) != (_FORMAT, "symmetric_contraction"):
            raise ValueError(f"format {data['format']} {data['kind']}, expected {_FORMAT}")
        polynomials = (
            Polynomial(
                i_out,
                tuple(
                    tuple((float.fromhex(v), tuple(ix)) for v, *ix in terms) for terms in components
                ),
            )
            for i_out, components in data["polynomials"]
        )
        return cls.build(data["irreps_in"], data["irreps_out"], polynomials, dtype=data["dtype"])

    def __str__(self) -> str:
        return (
            f"SymmetricContractionProblem {self.key()}: {self.irreps_in} -> {self.irreps_out}, "
            f"degree {self.degree}, {self.num_coefficients} polynomials, {self.nnz} monomials, "
            f"{self.dtype}"
        )


@dataclass(frozen=True)
class FoldedTensors:
    """A problem, and the matrix that turns the weights of all paths into its coefficients."""

    problem: SymmetricContractionProblem
    # [num_coefficients, num_paths], with the paths of all tensors in sequence:
    # coefficients[s, r, c] = sum_k combination[r, k] weights[s, k, c]
    combination: NDArray[np.float64]
    # largest error of an entry of the tensors after the reduction; nan if read from text
    error: float = field(default=float("nan"), compare=False)

    @classmethod
    def fold(
        cls,
        irreps_in: str,
        irreps_out: str,
        tensors: Iterable[tuple[int, NDArray[Any]]],
        *,
        dtype: str,
    ) -> FoldedTensors:
        """Reduce the coupling tensors of a model to independent polynomials, exactly.

        `tensors` has pairs of an output block and a tensor [2l+1, dim_in, ..., dim_in, num_paths],
        in the order of the weights. Tensors need not be symmetric, nor paths independent. `dtype`
        is that of the stored tensors: entries that differ by its rounding count as equal.
        """
        combinations: list[NDArray[np.float64]] = []
        polynomials: list[Polynomial] = []
        error = 0.0
        for i_out, tensor in tensors:
            tensor = np.asarray(tensor, dtype=np.float64)
            degree = tensor.ndim - 2
            if degree > MAX_DEGREE:
                raise UnsupportedProblemError(
                    f"correlation order {degree} has no generated kernel, only 1 to {MAX_DEGREE} "
                    "do: keep the original layer"
                )
            dense = symmetrize(tensor, degree)
            paths, dim, count = dense.shape
            flat = dense.reshape(paths, -1)
            basis, combination = reduce_rows(flat, _TOLERANCE[dtype])
            if flat.size:
                lost = float(np.max(np.abs(combination.T @ basis - flat)))
                largest = float(np.max(np.abs(tensor)))
                if not lost <= _MAX_LOSS[dtype] * largest:  # also true for nan
                    raise UnsupportedProblemError(
                        f"the coupling tensor of order {degree} for output block {i_out} was "
                        f"reduced with an error of {lost:.0e} beside entries up to {largest:.0e}, "
                        f"expected at most {_MAX_LOSS[dtype]:.0e} of them in {dtype}: its paths "
                        "are nearly but not quite dependent; load the model in float64, or keep "
                        "the original layer"
                    )
                error = max(error, lost)
            combinations.append(combination)
            products = monomials(tensor.shape[1], degree)
            for row in basis.reshape(-1, dim, count):
                polynomials.append(Polynomial(i_out, _sparse(row, products)))
        block_diagonal = np.zeros((len(polynomials), sum(part.shape[1] for part in combinations)))
        r = k = 0
        for part in combinations:
            block_diagonal[r : r + part.shape[0], k : k + part.shape[1]] = part
            r, k = r + part.shape[0], k + part.shape[1]
        problem = SymmetricContractionProblem.build(irreps_in, irreps_out, polynomials, dtype=dtype)
        return cls(problem, block_diagonal, error)

    def to_json(self) -> str:
        entries = [
            [int(r), int(k), float(self.combination[r, k]).hex()]
            for r, k in np.argwhere(self.combination)
        ]
        data = {
            "problem": self.problem.to_json(),
            "shape": self.combination.shape,
            "combination": entries,
        }
        return json.dumps(data, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> FoldedTensors:
        """Rebuild from :meth:`to_json`; raise ValueError if the text is of another format."""
        try:
            data = json.loads(text)
            combination = np.zeros(data["shape"])
            for r, k, value in data["combination"]:
                combination[r, k] = float.fromhex(value)
            problem = SymmetricContractionProblem.from_json(data["problem"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(
                f"the text is not a reduced symmetric contraction ({error!r}): patch the original "
                "model again with this version"
            ) from error
        return cls(problem, combination)


def _sparse(
    rows: NDArray[np.float64], products: Sequence[tuple[int, ...]]
) -> tuple[tuple[Monomial, ...], ...]:
    return tuple(
        tuple((float(row[q]), products[int(q)]) for q in np.flatnonzero(row)) for row in rows
    )
