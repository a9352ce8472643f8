"""CUDA C++ source of one pass of a problem with weight matrices (mode ``uvw``): a warp per row.

The weights of a row are most of the bytes, so everything is arranged around reading them once. A
warp first multiplies the row's features and attributes to vectors ``left[u, v][c]`` in shared
memory; then the weight matrices stream through its registers, giving outputs, weight gradients and
the gradients of those vectors in one pass; last these are pulled back to features and attributes.
Paths of mode ``uvu`` in the same problem have no matrices and run beside, a lane per channel.
"""

from __future__ import annotations

from ...plan import CudaPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import (
    CudaEntry,
    CudaKernel,
    cuda_head,
    kernel_head,
    resident_blocks,
)
from ..common.lowering import LoweredProblem, lower
from ..common.spec import KernelSpec
from ..common.tables import argument_names, kernel_file
from .rows import row_kernels
from .uvw_body import BodyWriter
from .uvw_layout import Stack, UvwLayout

__all__ = ["emit_uvw"]

# A request of a warp should read whole sectors of memory, two at least.
_MIN_CONTIGUOUS = 64

_MAX_BATCH = 8


class _Writer:
    """Prints the kernel of one pass."""

    def __init__(self, lowered: LoweredProblem, plan: CudaPlan, spec: KernelSpec) -> None:
        self.lowered, self.problem, self.spec = lowered, lowered.problem, spec
        self.plan, self.tile = plan, plan.uvw
        self.results = spec.results
        self.place = spec.conv and spec.wanted("x") and plan.deterministic
        self.layout = UvwLayout.of(lowered, plan, spec)
        self.bodies = BodyWriter(lowered, spec, self.layout)
        self.itemsize = ITEMSIZE[self.problem.dtype]
        self.sums = spec.kind == "forward" or spec.wanted("g")
        self.places = self.layout.places
        uses = {
            "SUM_W": self.sums and "left_w" in self.places,
            "SUM_C": "left_c" in self.places,
            "GRAD_W": spec.wanted("w") and "left_w" in self.places,
            "PULL_W": "pull_w" in self.places,
            "PULL_C": "pull_c" in self.places,
        }
        self.uses = {name for name, used in uses.items() if used}
        # rows of a block then sum gradients of shared weights together, in step
        self.in_step = "GRAD_W" in self.uses and self.problem.shared_weights

    # -- stacks of weight matrices ---------------------------------------------------------------

    def _shape(self, stack: Stack) -> dict[str, int]:
        """Choose how a warp reads a stack.

        N channels per load, G lanes per row, PANEL loads side by side, BATCH rows of lanes at once.
        """
        problem, out = self.problem, stack.out
        n = 16 // self.itemsize
        starts = [offset for _, offset in stack.segments]
        row = 0 if problem.shared_weights else problem.weight_numel
        while any(value % n for value in (out.mul, row, *starts)):
            n //= 2
        vectors = out.mul // n
        words = n * self.itemsize // 4
        panel = max(1, self.tile.words // (words * out.ir.dim))
        found = {}
        for g in range(1, min(WARP, vectors) + 1):
            if g < vectors and g * n * self.itemsize < _MIN_CONTIGUOUS:
                continue
            groups = WARP // g
            steps = -(-stack.rows // groups)
            found[g] = stack.rows * vectors / (steps * -(-vectors // g) * WARP)
        found = found or {min(WARP, vectors): 1.0}
        best = max(found.values())
        good = [g for g, share in found.items() if share >= 0.9 * best]
        g = min(good, key=lambda g: (-(-vectors // g) > panel, g))
        panel = min(panel, -(-vectors // g))
        operands = 1 + ("left_c" in self.places or "pull_c" in self.places)
        batch = max(1, self.tile.words // (panel * words * operands))
        batch = min(batch, _MAX_BATCH, -(-stack.rows // (WARP // g)))
        return {"N": n, "G": g, "PANEL": panel, "BATCH": batch}

    def _stack(self, name: str, stack: Stack) -> str:
        out = stack.out
        plain = self.problem.layout == "mul_ir"
        values = {
            "ROWS": stack.rows,
            "MUL": out.mul,
            "C": out.ir.dim,
            **self._shape(stack),
            "CHANNEL": out.ir.dim if plain else 1,
            "COMPONENT": 1 if plain else out.mul,
        }
        direct = self.sums and "out" not in self.places
        numbers = ", ".join(f"{key} = {value}" for key, value in values.items())
        (_, offset), *rest = stack.segments
        place = f"{offset} + r * {out.mul}"
        before = offset
        for first, start in rest:
            shift = start - first * out.mul - before
            place += f" + (r < {first} ? 0 : {shift})"
            before += shift
        return "\n".join(
            [
                f"// {stack.rows} rows into {out}",
                f"struct {name} {{",
                f"    static constexpr int {numbers};",
                f"    static constexpr bool DIRECT = {str(direct).lower()};",
                "    MDCG_INLINE int offset(int r) {",
                f"        return {place};",
                "    }",
                "};",
            ]
        )

    def _stream(self, name: str, stack: Stack) -> list[str]:
        spec, problem = self.spec, self.problem
        uses = " | ".join(
            use
            for use in ("SUM_W", "SUM_C", "GRAD_W", "PULL_W", "PULL_C")
            if use in self.uses and not (use == "GRAD_W" and self.in_step)
        )
        if not uses:
            return []
        row = "" if problem.shared_weights else f" + e * {problem.weight_numel}"
        c = f"p.wc{row}" if spec.has("w") else "nullptr"
        d = f"p.dw{row}" if "GRAD_W" in self.uses else "nullptr"
        vectors = [
            f"mine + {self.places[key] + stack.base}" if key in self.places else "nullptr"
            for key in ("left_w", "left_c", "pull_w", "pull_c")
        ]
        dim = problem.irreps_out.dim
        vectors.append(
            "nullptr" if spec.kind == "forward" else f"p.g + row * {dim} + {stack.out.offset}"
        )
        if not self.sums:
            vectors.append("nullptr")
        elif "out" in self.places:
            vectors.append(f"mine + {self.places['out'] + stack.out.offset}")
        else:
            vectors.append(f"p.out + row * {dim} + {stack.out.offset}")
        joined = ", ".join(vectors)
        return [f"stream<{name}, {uses}>(p.w{row}, {c}, {d}, Vectors{{{joined}}}, lane);"]

    def _sum_weights(self, name: str, stack: Stack) -> str:
        """Gradient of shared weights from all rows of the block."""
        dim = self.problem.irreps_out.dim
        stride = 0 if self.spec.conv else dim
        left = f"(const T*)shared_memory + {self.places['left_w'] + stack.base}"
        return (
            f"sum_weight_gradients<{name}, {self.layout.warps * WARP}, {self.layout.items}>"
            f"({self.bodies.shared_gradient}, {left}, p.g + first * {dim} + {stack.out.offset}, "
            f"{stride}, count);"
        )

    # -- one row ---------------------------------------------------------------------------------

    def _row(self) -> list[str]:
        """Statements for the row (edge) ``e`` with sender ``s`` and receiver ``row``."""
        lines = []
        for name in ("dx", "dy"):
            if name in self.places:
                lines += self._each(name, f"mine[{self.places[name]} + i] = 0;")
        lines.append("__syncwarp();")
        for t, turn in enumerate(self.layout.turns):
            left = self.bodies.calls(t, "left")
            pull = self.bodies.calls(t, "pull")
            streams = [
                line
                for i, stack in enumerate(turn.stacks)
                for line in self._stream(f"Stack{t}_{i}", stack)
            ]
            inside = [*left, *streams, *(["__syncwarp();"] if streams else []), *pull]
            if self.in_step and turn.stacks:
                lines += [
                    *self._if_active([*left, *streams]),
                    "__syncthreads();",
                    *(
                        self._sum_weights(f"Stack{t}_{i}", stack)
                        for i, stack in enumerate(turn.stacks)
                    ),
                    *self._if_active(pull),
                    "__syncthreads();",
                ]
            else:
                lines += self._if_active(inside)
        stores = []
        for name, index in (("dx", "to"), ("dy", "e")):
            if name in self.places:
                value = f"mine[{self.places[name]} + i]"
                place = f"p.{name} + {index} * {self.layout.widths[name]} + i"
                adds = name == "dx" and self._adds_inputs
                stores += self._each(
                    name, f"add({place}, {value});" if adds else f"({place})[0] = {value};"
                )
        return [*lines, *self._if_active([*stores, "__syncwarp();"])]

    def _if_active(self, lines: list[str]) -> list[str]:
        if not self.in_step or not lines:
            return lines
        return ["if (active) {", *(f"    {line}" for line in lines), "}"]

    def _each(self, name: str, statement: str) -> list[str]:
        """Loop of a warp over an operand's row."""
        return [f"for (int i = lane; i < {self.layout.widths[name]}; i += {WARP}) {statement}"]

    @property
    def _adds_inputs(self) -> bool:
        """Whether edges add to the gradient of their sender's features."""
        return self.spec.conv and not self.place

    def _registers(self) -> int:
        if self.spec.kind == "double_backward":
            return self.tile.double_registers
        return self.tile.gradient_registers if "GRAD_W" in self.uses else self.tile.registers

    def kernel(self, name: str) -> str:
        """Return the kernel."""
        conv, warps, items = self.spec.conv, self.layout.warps, self.layout.items
        threads = warps * WARP
        quad = 16 // self.itemsize
        lines = [
            "extern __shared__ Quad shared_memory[];",
            f"const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};",
            f"T* const mine = (T*)(shared_memory + warp * {items // quad});",
        ]
        if "out" in self.places:
            lines += self._each("out", f"mine[{self.places['out']} + i] = 0;")
        to = "s"
        if self.place:
            to = "active ? p.place[k] : 0" if self.in_step else "p.place[k]"
        body = [f"const Long to = {to};", *self._row()] if "dx" in self.results else self._row()
        if conv:
            lines += [
                "const Long row = blockIdx.x;",
                "const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];",
            ]
            if self.in_step:
                lines += [
                    "const Long first = row;",
                    f"for (int from = begin; from < end; from += {warps}) {{",
                    f"    const int count = min({warps}, end - from), k = from + warp;",
                    "    const bool active = k < end;",
                    "    const Long e = active ? p.order[k] : 0, s = active ? p.sender[k] : 0;",
                ]
            else:
                lines += [
                    # an edge's numbers are loaded while the one before is under way
                    "int next_e = 0, next_s = 0;",
                    "const auto fetch = [&](int k) {",
                    "    if (k < end) next_e = p.order[k], next_s = p.sender[k];",
                    "};",
                    "fetch(begin + warp);",
                    f"for (int k = begin + warp; k < end; k += {warps}) {{",
                    "    const Long e = next_e, s = next_s;",
                    f"    fetch(k + {warps});",
                ]
            lines += [*(f"    {line}" for line in body), "}"]
        else:
            lines += [
                f"const Long first = Long(blockIdx.x) * {warps}, row = first + warp;",
                "const Long e = row, s = row;",
            ]
            if self.in_step:
                lines += [
                    f"const int count = int(min(Long({warps}), p.n_rows - first));",
                    "const bool active = warp < count;",
                ]
            else:
                lines.append("if (row >= p.n_rows) return;")
            lines += body
        if "out" in self.places:
            lines += self._store_out()
        return "\n".join(
            [
                kernel_head(name, threads, resident_blocks(threads, self._registers())),
                *(f"    {line}" for line in lines),
                "}",
            ]
        )

    def _store_out(self) -> list[str]:
        """Write a row's output, or a receiver's: the sum over its warps, always in one order."""
        place, dim = self.places["out"], self.problem.irreps_out.dim
        warps, items = self.layout.warps, self.layout.items
        if not self.spec.conv:
            stores = self._each("out", f"p.out[row * {dim} + i] = mine[{place} + i];")
            return self._if_active(stores)
        return [
            "__syncthreads();",
            f"for (int i = threadIdx.x; i < {dim}; i += {warps * WARP}) {{",
            "    T sum = 0;",
            f"    for (int w = 0; w < {warps}; ++w) "
            f"sum += ((const T*)shared_memory)[w * {items} + {place} + i];",
            f"    p.out[row * {dim} + i] = sum;",
            "}",
        ]

    def source(self, name: str) -> str:
        """Return the whole text."""
        stacks = [
            self._stack(f"Stack{t}_{i}", stack)
            for t, turn in enumerate(self.layout.turns)
            for i, stack in enumerate(turn.stacks)
        ]
        parts = [
            *cuda_head(self.problem, str(self.spec), self.plan, "conv/uvw.cuh"),
            row_kernels(self.problem, self.plan),
            *stacks,
            *self.bodies.functions(),
            self.kernel(name),
        ]
        return "\n\n".join(parts) + "\n"

    def zeroed(self) -> tuple[str, ...]:
        """Results that the kernel adds to, or that it leaves out."""
        found = {
            "out": "out" not in self.places,
            "dx": "dx" not in self.places or self._adds_inputs,
            "dy": "dy" not in self.places,
            "dw": "GRAD_W" not in self.uses or self.problem.shared_weights,
        }
        return tuple(name for name, zero in found.items() if zero and name in self.results)


def emit_uvw(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernel of one pass; it reads rows of node features as they are, never packed.

    Raises
    ------
    UnsupportedProblemError
        A block of edge attributes has more copies than a CUDA block can take.
    """
    writer = _Writer(lower(problem), plan, spec)
    name = f"{'conv' if spec.conv else 'tensor_product'}_{spec.kind}_0"
    warps = writer.layout.warps
    shared = warps * writer.layout.items * writer.itemsize
    return CudaKernel(
        source=writer.source(name),
        entries=(CudaEntry(name, warps * WARP, shared, 1),),
        arguments=argument_names(kernel_file("conv/uvw.cuh"), "Arguments"),
        packed_in1=writer.layout.widths["dx"],
        packs=False,
        run=1 if spec.conv else warps,
        zeroed=writer.zeroed(),
    )
