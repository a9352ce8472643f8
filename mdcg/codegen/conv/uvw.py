"""Kernels of problems with weight matrices (mode ``uvw``): turns, bodies and stacks as tables.

``csrc/kernels/conv/uvw.cuh`` has the kernel, :mod:`mdcg.codegen.conv.uvw_layout` says which paths
share a warp's memory at a time.
"""

from __future__ import annotations

from ...plan import CudaPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import CudaEntry, CudaKernel, cuda_head, kernel_head, resident_blocks
from ..common.lowering import LoweredProblem, lower
from ..common.spec import KernelSpec
from ..common.tables import Table, argument_names, constants, kernel_file
from .path_tables import Constants, components, pass_constants, path_tables
from .rows import row_kernels
from .uvw_layout import Body, Stack, UvwLayout

__all__ = ["emit_uvw"]

_FILE = "conv/uvw.cuh"

# A memory request of a warp should read at least two whole sectors.
_MIN_CONTIGUOUS = 64

_MAX_BATCH = 8


class _Kernel:
    """The kernel of one pass."""

    def __init__(self, lowered: LoweredProblem, plan: CudaPlan, spec: KernelSpec) -> None:
        self.lowered, self.problem, self.spec = lowered, lowered.problem, spec
        self.plan, self.tile = plan, plan.uvw
        self.layout = UvwLayout.of(lowered, plan, spec)
        self.itemsize = ITEMSIZE[self.problem.dtype]
        self.places = self.layout.places
        self.sums = "out" in spec.results
        self.writes_weights = spec.wanted("w") and "left_w" in self.places

    def constants(self) -> Constants:
        """Return the constants of the kernel; -1 marks absent vectors and rows."""
        names = ("left_w", "left_c", "pull_w", "pull_c", "out", "dx", "dy")
        return {
            **pass_constants(self.lowered, self.plan, self.spec),
            "X_ROW": self.problem.irreps_in1.dim,
            "DX_ROW": self.layout.widths["dx"],
            "WARPS": self.layout.warps,
            "ITEMS": self.layout.items,
            **{name.upper(): self.places.get(name, -1) for name in names},
        }

    def body(self, body: Body) -> Constants:
        """Return the constants of a body."""
        problem, in1 = self.problem, body.in1
        paths = [piece.path for piece in body.pieces]
        outputs: list[tuple[int, int, bool]] = []
        first_output: dict[int, int] = {}
        nonzeros: dict[int, int] = {}
        terms: list[tuple[int, float]] = []
        ends = [0]
        for path in paths:
            if path.i_out not in first_output:
                first_output[path.i_out] = len(outputs)
                starts, stride = components(path.out, problem.layout)
                outputs += [(start, stride, False) for start in starts]
            if path.coupling.num_nonzeros and path.first_nonzero not in nonzeros:
                nonzeros[path.first_nonzero] = len(ends) - 1
                for form in self.lowered.forms(path):
                    terms += form.terms
                    ends.append(len(terms))
        x_start, x_stride = components(in1, problem.layout)
        dx_start, dx_stride = x_start, x_stride
        if packed := self.layout.packed.get(body.i_in1):
            dx_start, dx_stride = [packed[0] + a * packed[1] for a in range(in1.ir.dim)], 1
        columns = self.lowered.attributes(paths)
        copy = 0  # distance of the copies of the block of edge attributes
        for block in problem.irreps_in2:
            if columns and block.offset <= columns[0] < block.offset + block.dim:
                copy = block.ir.dim
        return {
            "MATRICES": body.mode == "uvw",
            "FIRST": body.first,
            "LAST": body.last,
            "COPIES": paths[0].mul2,
            "COPY": copy,
            "X_START": Table("int", x_start),
            "X_STRIDE": x_stride,
            "DX_START": Table("int", dx_start),
            "DX_STRIDE": dx_stride,
            **path_tables(
                self.lowered, paths, first_output, nonzeros, lambda path: path.weight_offset
            ),
            "BASE": Table("int", [piece.base for piece in body.pieces]),
            "OUTPUT": Table("Output", outputs),
            "NONZEROS": max(1, len(ends) - 1),
            "FIRST_TERM": Table("int", ends if len(ends) > 1 else [0, 0]),
            "TERMS": Table("Term", terms),
        }

    def stack(self, stack: Stack) -> Constants:
        """Return the constants of a stack."""
        starts, stride = components(stack.out, self.problem.layout)
        return {
            "ROWS": stack.rows,
            "MUL": stack.out.mul,
            "C": stack.out.ir.dim,
            **self.shape(stack),
            "CHANNEL": stride,
            "COMPONENT": starts[1] - starts[0] if len(starts) > 1 else 0,
            "DIRECT": self.sums and "out" not in self.places,
            "BASE": stack.base,
            "OUT": stack.out.offset,
            "SEGMENTS": len(stack.segments),
            "SEGMENT": Table("Segment", stack.segments),
        }

    def shape(self, stack: Stack) -> dict[str, int]:
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

    @property
    def registers(self) -> int:
        """Largest number of registers per thread."""
        if self.spec.kind == "double_backward":
            return self.tile.double_registers
        return self.tile.gradient_registers if self.writes_weights else self.tile.registers

    def source(self, name: str) -> str:
        """Return the whole text."""
        texts, turns = [constants("Kernel", str(self.spec), self.constants())], []
        for t, turn in enumerate(self.layout.turns):
            lists: dict[str, list[str]] = {"Body": [], "Stack": []}
            for body in turn.bodies:
                lists["Body"].append(f"Body{t}_{len(lists['Body'])}")
                comment = f"{body.in1}, channels {body.first} to {body.last}, mode {body.mode}"
                texts.append(constants(f"{lists['Body'][-1]} : Kernel", comment, self.body(body)))
            for stack in turn.stacks:
                lists["Stack"].append(f"Stack{t}_{len(lists['Stack'])}")
                comment = f"{stack.rows} rows into {stack.out}"
                texts.append(constants(lists["Stack"][-1], comment, self.stack(stack)))
            members = ", ".join(f"List<{', '.join(names)}>" for names in lists.values())
            turns.append(f"Turn<{members}>")
        threads = self.layout.warps * WARP
        kernel = [
            kernel_head(name, threads, resident_blocks(threads, self.registers)),
            f"    run_uvw<{', '.join(['Kernel', *turns])}>(p);",
            "}",
        ]
        head = cuda_head(self.problem, str(self.spec), self.plan, _FILE)
        parts = [*head, row_kernels(self.problem, self.plan), *texts, "\n".join(kernel)]
        return "\n\n".join(parts) + "\n"

    def zeroed(self) -> tuple[str, ...]:
        """Return results that must start at zero: the kernel adds to them, or leaves parts out."""
        adds_inputs = self.spec.conv and not self.plan.deterministic
        found = {
            "out": "out" not in self.places,
            "dx": "dx" not in self.places or adds_inputs,
            "dy": "dy" not in self.places,
            "dw": not self.writes_weights or self.problem.shared_weights,
        }
        return tuple(name for name, zero in found.items() if zero and name in self.spec.results)


def emit_uvw(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernel of one pass. It reads rows of node features in the user's layout.

    Raises
    ------
    UnsupportedProblemError
        A block of edge attributes has more copies than a CUDA block can take.
    """
    kernel = _Kernel(lower(problem), plan, spec)
    name = f"{'conv' if spec.conv else 'tensor_product'}_{spec.kind}_0"
    warps = kernel.layout.warps
    shared = warps * kernel.layout.items * kernel.itemsize
    return CudaKernel(
        source=kernel.source(name),
        entries=(CudaEntry(name, warps * WARP, shared, 1),),
        arguments=argument_names(kernel_file(_FILE), "Arguments"),
        packed_in1=kernel.layout.widths["dx"],
        packs=False,
        run=1 if spec.conv else warps,
        zeroed=kernel.zeroed(),
    )
