"""CUDA C++ source of one pass of a symmetric contraction: a thread per node and channel.

A warp takes 32 channels of one node. It looks at the node's attributes once: those of one species
point at its coefficients, others are mixed in the thread's own memory, so nothing has to be known
on the host. Nothing is included, so that NVRTC needs no headers.
"""

from __future__ import annotations

from collections import Counter

from ...plan.contraction import CudaContractionPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import SymmetricContractionProblem
from ..common.emit import CudaEntry, CudaKernel, argument_struct, kernel_head, scalar_type, title
from ..common.expression import Statement, print_statements
from .program import ContractionSpec, arguments, contraction_groups, operand_names

__all__ = ["ContractionBody", "emit_contraction_cuda"]

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
    """Writes what a thread does with channel ``u`` of node ``n``, and the kernel around it."""

    names_lane = True

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

    # -- the kernel around it ---------------------------------------------------------------------

    @property
    def channels(self) -> int:
        """Channels of a row of the operands."""
        return self.problem.channels

    def arguments(self) -> tuple[str, ...]:
        """Return the names of the kernel's arguments."""
        return arguments(self.spec)

    def definitions(self) -> list[str]:
        """Return what stands before the kernel."""
        return [
            f"#define CHANNELS {self.problem.channels}",
            f"#define COEFFICIENTS {self.problem.num_coefficients}",
            _HEAD,
            _MIX if self.spec.mixed else "",
        ]

    def guards(self) -> list[str]:
        """Return the lines after which thread ``lane`` has work to do."""
        lines = ["if (n >= p.n_rows) return;"]
        if self.spec.mixed:
            species = "only_species(p.y + n * p.n_species, int(p.n_species), lane)"
            lines.append(f"const int species = {species};")
        if self.channels % WARP:
            lines.append(f"if (u >= {self.channels}) return;")
        return lines

    def kernel(self, plan: CudaContractionPlan, kernel: str) -> CudaKernel:
        """Print the program; `kernel` says which kernel of the problem it is."""
        chunks = -(-self.channels // WARP)
        warps = plan.threads // WARP
        name = f"contraction_{self.spec.kind}"
        lane = f"threadIdx.x % {WARP}"
        lines = []
        if self.names_lane:
            lines, lane = [f"const int lane = {lane};"], "lane"
        lines += [
            f"const Long job = Long(blockIdx.x) * {warps} + threadIdx.x / {WARP};",
            f"const Long n = job / {chunks};",
            f"const int u = int(job % {chunks}) * {WARP} + {lane};",
            *self.guards(),
            *self.write(),
        ]
        parts = [
            title(self.problem, kernel),
            f"// {plan}",
            f"// arg: {', '.join(self.arguments())}",
            f"typedef {scalar_type(self.problem.dtype)} T;",
            *self.definitions(),
            argument_struct(self.arguments()),
            kernel_head(name, plan.threads, plan.blocks),
            *(f"    {line}" for line in lines),
            "}",
            "",
        ]
        return CudaKernel(
            source="\n".join(parts),
            entries=(CudaEntry(name, plan.threads, 0, warps),),
            arguments=self.arguments(),
            packed_in1=self.channels * self.problem.dim_in,
            packs=False,
            run=chunks,
            zeroed=(),
        )


def emit_contraction_cuda(
    problem: SymmetricContractionProblem, plan: CudaContractionPlan, spec: ContractionSpec
) -> CudaKernel:
    """Generate the CUDA text of one kernel.

    It has one entry, whose ``rows`` are nodes times groups of 32 channels per block.
    """
    return ContractionBody(problem, spec).kernel(plan, f"kernel {spec}")
