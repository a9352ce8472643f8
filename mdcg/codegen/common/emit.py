"""What all emitters share: descriptions of kernels, templates, and pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from ..._version import __version__
from ...plan.contraction import HostContractionPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE, HostPlan
from ...problem import ConvProblem, SymmetricContractionProblem
from .expression import LinearForm, Statement, Sum, Term, print_statements

__all__ = [
    "ENGINE_ROW_BYTES",
    "CudaEntry",
    "CudaKernel",
    "HostKernel",
    "argument_struct",
    "attribute_gradients",
    "host_head",
    "kernel_head",
    "power_of_two",
    "resident_blocks",
    "scalar_type",
    "store_lane_sums",
    "template",
]

# Rows of the engine are padded to whole multiples of this.
ENGINE_ROW_BYTES = 64

# 32-bit registers of a multiprocessor, and the blocks that it can hold.
_REGISTERS = 65536
_MAX_BLOCKS = 32

# Types of addresses; others are constant rows of T.
_TYPES = {
    **dict.fromkeys(("order", "row_ptr", "sender", "place", "types", "sender_type"), "const int*"),
    **dict.fromkeys(("live", "num_live"), "const int*"),
    **dict.fromkeys(("out", "dx", "dy", "dw", "dg", "de"), "T*"),
    "length": "const double*",
    "places": "const mdcg::TableEntry*",
    "short_edges": "int*",
}


@dataclass(frozen=True)
class HostKernel:
    """Text of a CPU kernel and what its launcher must know.

    Attributes
    ----------
    source : str
        C++17 for gcc or clang that includes the C library and intrinsics only.
    arguments : tuple of str
        Names of the 64-bit values of ``arg``, in order: addresses, or sizes for names starting with
        ``n_``.
    scratch_bytes : int
        Scratch memory per thread, 64-byte aligned.
    packed_in1, packed_out : int
        Items of a packed row of node features and of output.
    """

    source: str
    arguments: tuple[str, ...]
    scratch_bytes: int
    packed_in1: int
    packed_out: int


@dataclass(frozen=True)
class CudaEntry:
    """One CUDA kernel of a program.

    Attributes
    ----------
    name : str
        Operation, pass and number, such as ``conv_table_forward_0``: what profilers show.
    threads : int
        Threads per block.
    shared_bytes : int
        Dynamic shared memory per block.
    rows : int
        Receivers, or runs of input rows, per block.
    early : bool
        The kernel may start before the one launched before it has ended, and ends after it.
    """

    name: str
    threads: int
    shared_bytes: int
    rows: int
    early: bool = False


@dataclass(frozen=True)
class CudaKernel:
    """Text of the CUDA kernels of one pass and what their launcher must know.

    Attributes
    ----------
    source : str
        CUDA C++17 without includes: all kernels in one program.
    entries : tuple of CudaEntry
        To be launched one after the other.
    arguments : tuple of str
        Names of the 64-bit values of the only parameter, in order: addresses, or sizes for names
        starting with ``n_``.
    packed_in1 : int
        Items of a packed row of node features.
    packs : bool
        Rows of node features are read in packed form.
    run : int
        1 for convolutions; else length of a run of input rows.
    zeroed : tuple of str
        Results that must be zeros before the launch, of "out", "dx", "dy", "dw".
    programs : tuple of str
        The same kernels as programs of one entry each, which compile side by side; empty:
        ``source`` is not divided.
    copies : str
        Program that packs and unpacks node rows, the same for all passes; empty: in ``source``.
    """

    source: str
    entries: tuple[CudaEntry, ...]
    arguments: tuple[str, ...]
    packed_in1: int
    packs: bool
    run: int
    zeroed: tuple[str, ...]
    programs: tuple[str, ...] = ()
    copies: str = ""


@lru_cache(maxsize=64)
def template(path: str) -> str:
    """Return a file of C++ or CUDA text that kernels contain.

    Parameters
    ----------
    path : str
        Relative to ``mdcg/codegen``, such as ``"common/host_prelude.hpp"``.
    """
    text = files("mdcg.codegen").joinpath(path).read_text(encoding="utf-8")
    return text.replace("#pragma once\n", "")


def scalar_type(dtype: str) -> str:
    """Return the C type of "float32" or "float64"."""
    return "float" if dtype == "float32" else "double"


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n`` and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def host_head(
    problem: ConvProblem | SymmetricContractionProblem,
    title: str,
    plan: HostPlan | HostContractionPlan,
    arguments: Iterable[str],
    **defines: int,
) -> list[str]:
    """Return the title, the definitions and the prelude that a CPU kernel starts with."""
    itemsize = ITEMSIZE[problem.dtype]
    defines = {
        "L": plan.lanes,
        "MDCG_ITEM_BYTES": itemsize,
        "MDCG_VECTOR_BYTES": itemsize * plan.lanes,
        **defines,
    }
    return [
        f"// mdcg {__version__}, problem {problem.key()}, {title}",
        f"// {plan}",
        f"// arg: {', '.join(arguments)}",
        f"typedef {scalar_type(problem.dtype)} T;",
        *(f"#define {name} {value}" for name, value in defines.items()),
        template("common/host_prelude.hpp"),
    ]


# -- CUDA -----------------------------------------------------------------------------------------


def argument_struct(
    names: Iterable[str], types: Mapping[str, str] | None = None, *, integer: str = "Long"
) -> str:
    """Print the type of the only parameter of CUDA kernels.

    Parameters
    ----------
    names : iterable of str
        Those that start with ``n_`` are numbers, others are addresses.
    types : mapping, optional
        Types of addresses beside those that mean the same in all kernels.
    integer : str
        Type of numbers.
    """
    types = {**_TYPES, **(types or {})}
    fields = [
        f"    {integer} {name};"
        if name.startswith("n_")
        else f"    {types.get(name, 'const T*')} __restrict__ {name};"
        for name in names
    ]
    return "\n".join(["struct Arguments {", *fields, "};"])


def resident_blocks(threads: int, registers: int) -> int:
    """Return how many blocks of threads with so many registers a multiprocessor holds; 0 for 0."""
    if not registers:
        return 0
    return max(1, min(_MAX_BLOCKS, _REGISTERS // (threads * registers)))


def kernel_head(name: str, threads: int, blocks: int = 0) -> str:
    """Print the first line of a kernel.

    Parameters
    ----------
    name : str
    threads : int
        Threads per block.
    blocks : int
        Blocks per multiprocessor that registers must leave room for; 0: the compiler's choice.
    """
    bounds = f"{threads}, {blocks}" if blocks else str(threads)
    return f'extern "C" __global__ void __launch_bounds__({bounds}) {name}(const Arguments p) {{'


def attribute_gradients(
    forms: Iterable[LinearForm], letter: str, name: Callable[[int], str]
) -> list[str]:
    """Print the sums that turn gradients of nonzeros into gradients of edge attributes.

    Parameters
    ----------
    forms : iterable of LinearForm
        The nonzeros of a path.
    letter : str
        First letter of the names of their gradients.
    name : callable
        From an edge attribute to the name of its gradient.
    """
    terms: dict[int, list[Term]] = {}
    for n, form in enumerate(forms):
        for b, value in form.terms:
            terms.setdefault(b, []).append((value, (f"{letter}{n}",)))
    return print_statements(
        [Statement(name(b), Sum.of(found), add=True) for b, found in sorted(terms.items())]
    )


def store_lane_sums(number: int, count: int, size: int, store: str) -> list[str]:
    """Print the sum of array ``dy<number>`` over the lanes of a warp, and its store.

    Parameters
    ----------
    number : int
    count : int
        Values that are stored.
    size : int
        Length of the array, a power of two up to 32.
    store : str
        Statement that stores ``{sum}``, the value of index ``{at}``.
    """
    lanes = WARP // size
    guard = [f"lane % {lanes} == 0"] if lanes > 1 else []
    guard += [f"lane < {count * lanes}"] if count < size else []
    condition = f"if ({' && '.join(guard)}) " if guard else ""
    return [
        f"const T sum{number} = reduce(dy{number}, lane);",
        condition + store.format(at=f"lane / {lanes}", sum=f"sum{number}"),
    ]
