"""CUDA C++ source of one pass of a symmetric contraction: a thread per node and channel.

A warp takes 32 channels of one node. It looks at the node's attributes once: those of one species
point at its coefficients, others are mixed in the thread's own memory, so nothing has to be known
on the host. Nothing is included, so that NVRTC needs no headers.
"""

from __future__ import annotations

from collections import Counter

from ..._version import __version__
from ...plan.contraction import CudaContractionPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import SymmetricContractionProblem
from ..common.emit import CudaEntry, CudaKernel, argument_struct, kernel_head, scalar_type
from ..common.expression import Statement, print_statements
from .program import ContractionSpec, arguments, contraction_groups, operand_names

__all__ = ["ContractionBody", "contraction_kernel", "emit_contraction_cuda"]

_HEAD = """\
typedef long long Long;

struct alignas(16) Quad {
    T v[16 / sizeof(T)];
};

// Number of the species that a node is of, or -1 for a mixture; all lanes of a warp together.
static __device__ __forceinline__ int only_species(const T* y, int n_species, int lane) {
    int found = 0, count = 0;
    bool mixed = false;
    for (int s = lane; s < n_species; s += 32) {
        const T value = __ldg(y + s);
        if (value == T(0)) continue;
        found = s;
        mixed |= ++count > 1 || value != T(1);
    }
    const unsigned owners = __ballot_sync(0xffffffffu, count > 0);
    if (__any_sync(0xffffffffu, mixed) || __popc(owners) != 1) return -1;
    return __shfl_sync(0xffffffffu, found, __ffs(owners) - 1);
}
"""

_MIX = """\
// Coefficients of one channel of a node of several species.
static __device__ __noinline__ void mix(const T* y, int n_species, const T* w, T* sum) {
    for (int r = 0; r < COEFFICIENTS; ++r) sum[r] = 0;
    for (int s = 0; s < n_species; ++s) {
        const T value = y[s];
        if (value == T(0)) continue;
        for (int r = 0; r < COEFFICIENTS; ++r)
            sum[r] += value * w[(Long(s) * COEFFICIENTS + r) * CHANNELS];
    }
}
"""


class ContractionBody:
    """Writes what a thread does with channel ``u`` of node ``n``."""

    def __init__(self, problem: SymmetricContractionProblem, spec: ContractionSpec) -> None:
        self.problem = problem
        self.spec = spec
        self.groups = contraction_groups(problem, spec)
        self.quad = 16 // ITEMSIZE[problem.dtype]

    def write(self) -> list[str]:
        """Return the lines."""
        problem, spec = self.problem, self.spec
        row = self._row()
        used = {f for g in self.groups for s in g for _, fs in s.value.terms for f in fs}
        lines = self._rows("x", f"p.x + {row}", used)
        if "x" in spec.given:
            lines += self._rows("a", f"p.a + {row}", used)
        lines += self._coefficients("w", "c")
        if "w" in spec.given:
            lines += self._coefficients("b", "b")
        places = self._output_places()
        if spec.kind != "forward":
            lines += [
                f"const T g{m} = __ldg(p.g + {place});"
                for m, place in enumerate(places)
                if f"g{m}" in used
            ]
        result = "out" if spec.kind == "forward" else "dg" if "g" in spec.wants else ""
        if result:
            lines += [f"T o{m} = 0;" for m in range(problem.dim_out)]
        if "x" in spec.wants:
            lines += [f"T dx{i} = 0;" for i in range(problem.dim_in)]
        lines += self._computations()
        if result:
            lines += [f"p.{result}[{place}] = o{m};" for m, place in enumerate(places)]
        if "x" in spec.wants:
            lines += self._store_rows(row)
        return lines

    def _row(self) -> str:
        """Return where a channel's components start in x and its gradient."""
        return f"(n * {self.problem.channels} + u) * {self.problem.dim_in}"

    def _output_places(self) -> list[str]:
        found, first = [], 0
        for block in self.problem.irreps_out:
            dim = block.ir.dim
            start = first * self.problem.channels
            found += [
                f"n * {self.problem.channels * self.problem.dim_out} + {start + m} + u * {dim}"
                for m in range(dim)
            ]
            first += dim
        return found

    def _rows(self, letter: str, address: str, used: set[str]) -> list[str]:
        dim = self.problem.dim_in
        lines = [f"const T* const row_{letter} = {address};"]
        if dim % self.quad:
            return lines + [
                f"const T {letter}{i} = __ldg(row_{letter} + {i});"
                for i in range(dim)
                if f"{letter}{i}" in used
            ]
        for q in range(dim // self.quad):
            lines.append(f"const Quad quad_{letter}{q} = ((const Quad*)row_{letter})[{q}];")
        return lines + [
            f"const T {letter}{i} = quad_{letter}{i // self.quad}.v[{i % self.quad}];"
            for i in range(dim)
        ]

    def _store_rows(self, row: str) -> list[str]:
        dim = self.problem.dim_in
        if dim % self.quad:
            return [f"p.dx[{row} + {i}] = dx{i};" for i in range(dim)]
        return [
            f"((Quad*)(p.dx + {row}))[{q}] = Quad{{{{"
            + ", ".join(f"dx{q * self.quad + j}" for j in range(self.quad))
            + "}};"
            for q in range(dim // self.quad)
        ]

    def _coefficients(self, operand: str, letter: str) -> list[str]:
        place = f"p.{operand} + %s * {self.problem.num_coefficients * self.problem.channels} + u"
        if not self.spec.mixed:
            return [
                f"const T* const {letter} = {place % 'n'};",
                f"constexpr int {letter}_stride = {self.problem.channels};",
            ]
        return [
            f"T mixed_{letter}[{max(self.problem.num_coefficients, 1)}];",
            f"const T* {letter} = {place % 'Long(species)'};",
            f"int {letter}_stride = {self.problem.channels};",
            "if (species < 0) {",
            f"    mix(p.y + n * p.n_species, int(p.n_species), p.{operand} + u, mixed_{letter});",
            f"    {letter} = mixed_{letter};",
            f"    {letter}_stride = 1;",
            "}",
        ]

    def _computations(self) -> list[str]:
        """Group by group; gradients of coefficients go to memory as soon as they are complete."""
        times = Counter(s.target for g in self.groups for s in g if s.add)
        row = f"p.dw[(n * {self.problem.num_coefficients} + %d) * {self.problem.channels} + u]"
        lines, finish = [], []
        wanted = range(self.problem.num_coefficients) if "w" in self.spec.wants else ()
        for r in wanted:
            if times[f"dc{r}"] != 1:
                lines.append(f"T dc{r} = 0;")
                finish.append(f"{row % r} = dc{r};")
        for statements in self.groups:
            inner = [s for s in statements if not s.add]
            lines.append("{")
            for name in operand_names(statements):
                if name[0] in "cb":
                    lines.append(f"    const T {name} = {name[0]}[{name[1:]} * {name[0]}_stride];")
            lines += [f"    {line}" for line in print_statements(inner, declare="const T")]
            for s in statements:
                if not s.add:
                    continue
                alone = s.target.startswith("dc") and times[s.target] == 1
                target = row % int(s.target[2:]) if alone else s.target
                statement = Statement(target, s.value, add=not alone)
                (line,) = print_statements([statement])
                lines.append(f"    {line}")
            lines.append("}")
        return lines + finish


def emit_contraction_cuda(
    problem: SymmetricContractionProblem, plan: CudaContractionPlan, spec: ContractionSpec
) -> CudaKernel:
    """Generate the CUDA text of one kernel.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    plan : CudaContractionPlan
    spec : ContractionSpec

    Returns
    -------
    CudaKernel
        One entry; ``rows`` are nodes times groups of 32 channels per block.
    """
    body = ["if (n >= p.n_rows) return;"]
    if spec.mixed:
        species = "only_species(p.y + n * p.n_species, int(p.n_species), lane)"
        body.append(f"const int species = {species};")
    if problem.channels % WARP:
        body.append(f"if (u >= {problem.channels}) return;")
    return contraction_kernel(
        problem,
        plan,
        spec,
        f"kernel {spec}",
        arguments(spec),
        (
            f"#define CHANNELS {problem.channels}",
            f"#define COEFFICIENTS {problem.num_coefficients}",
            _HEAD,
            _MIX if spec.mixed else "",
        ),
        (*body, *ContractionBody(problem, spec).write()),
        channels=problem.channels,
        lane="lane",
    )


def contraction_kernel(
    problem: SymmetricContractionProblem,
    plan: CudaContractionPlan,
    spec: ContractionSpec,
    title: str,
    names: tuple[str, ...],
    before: tuple[str, ...],
    body: tuple[str, ...],
    *,
    channels: int,
    lane: str = "",
) -> CudaKernel:
    """Print the program of one kernel whose thread is channel ``u`` of node ``n``.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    plan : CudaContractionPlan
    spec : ContractionSpec
    title : str
        Which kernel of the problem it is.
    names : tuple of str
        Arguments.
    before : tuple of str
        Definitions.
    body : tuple of str
        Lines of what a thread does.
    channels : int
        Of a row of the operands.
    lane : str, optional
        Name by which the body knows the thread's lane.

    Returns
    -------
    CudaKernel
    """
    chunks = -(-channels // WARP)
    warps = plan.threads // WARP
    name = f"contraction_{spec.kind}"
    number = f"threadIdx.x % {WARP}"
    lines = [
        *([f"const int {lane} = {number};"] if lane else []),
        f"const Long job = Long(blockIdx.x) * {warps} + threadIdx.x / {WARP};",
        f"const Long n = job / {chunks};",
        f"const int u = int(job % {chunks}) * {WARP} + {lane or number};",
        *body,
    ]
    parts = [
        f"// mdcg {__version__}, problem {problem.key()}, {title}",
        f"// {plan}",
        f"// arg: {', '.join(names)}",
        f"typedef {scalar_type(problem.dtype)} T;",
        *before,
        argument_struct(names),
        kernel_head(name, plan.threads, plan.blocks),
        *(f"    {line}" for line in lines),
        "}",
        "",
    ]
    return CudaKernel(
        source="\n".join(parts),
        entries=(CudaEntry(name, plan.threads, 0, warps),),
        arguments=names,
        packed_in1=channels * problem.dim_in,
        packs=False,
        run=chunks,
        zeroed=(),
    )
