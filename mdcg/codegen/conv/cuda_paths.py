"""CUDA text of one task: a warp's loop over edges, everything it sums kept in registers."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan import CudaPlan
from ...plan.device import WARP
from ...problem import MulIrrep
from ..common.emit import AttributeSums, packed_row
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec, cuda_arguments
from ..common.uvu import uvu_lines
from .cuda_ring import Ring, RingPlace
from .warp_tasks import TaskSet, WarpTask

__all__ = ["NonzeroTable", "TaskWriter"]


@dataclass(frozen=True)
class NonzeroTable:
    """Where the nonzeros of a kernel's groups lie in the row of an edge, in units of T."""

    # from a group's first nonzero to its place; every group starts at a multiple of 16 bytes
    starts: dict[int, int]
    # distance of the rows of two edges: lanes that write rows in turn meet few bank conflicts
    stride: int
    quad: int  # items of 16 bytes

    @classmethod
    def of(cls, lowered: LoweredProblem, groups: tuple[int, ...], quad: int) -> NonzeroTable:
        """Lay out groups by position."""
        starts, total = {}, 0
        for i in groups:
            group = lowered.groups[i]
            starts[group.first] = total
            total += -(-len(group.forms) // quad) * quad
        stride = total + (quad if total % (2 * quad) == 0 else 0)
        return cls(starts, stride, quad)

    def loads(self, path: LoweredPath, name: str) -> list[str]:
        """Print the loads of a path's nonzeros from row ``name`` into ``name0``, ``name1``, ..."""
        lines = []
        start = self.starts.get(path.first_nonzero, 0)
        for first in range(0, path.coupling.num_nonzeros, self.quad):
            lines.append(f"const Quad {name}q{first} = *(const Quad*)({name} + {start + first});")
            lines += [
                f"const T {name}{first + i} = {name}q{first}.v[{i}];"
                for i in range(min(self.quad, path.coupling.num_nonzeros - first))
            ]
        return lines


@dataclass
class TaskWriter:
    """Prints the function of one task."""

    lowered: LoweredProblem
    plan: CudaPlan
    spec: KernelSpec
    table: NonzeroTable
    batch: int  # edges per evaluation of the nonzeros
    # positions of blocks that several tasks add to
    shared_outputs: set[int]
    shared_inputs: set[int]
    ring: RingPlace

    def __post_init__(self) -> None:
        spec = self.spec
        self.problem = self.lowered.problem
        self.row, self.offsets = packed_row(self.problem.irreps_in1, self.plan.padded)
        self.arguments = cuda_arguments(spec, self.plan.deterministic)
        self.pulls = spec.kind != "forward" and any(spec.wanted(n) for n in "xyw")
        self.sums = spec.kind == "forward" or spec.wanted("g")

    def function(self, name: str, prefix: str, task: WarpTask, kernel: TaskSet) -> str:
        """Return the task's function; ``prefix`` names the helpers of its kernel."""
        spec, conv = self.spec, self.spec.conv
        lines = [
            f"// {task.in1} by {task.chunks} warps, {len(task.paths)} paths",
            f"MDCG_INLINE void {name}(const Arguments& p, T* shared, Long row, int begin, int end, "
            "int lane, int warp, int chunk) {",
            f"    typedef Vec<{task.channels}> V;",
            f"    const int u = (chunk * {WARP} + lane) * {task.channels};",
            f"    const int left = {task.in1.mul} - u;",
            f"    const bool inside = {self._inside(task)};",
        ]
        lines += [f"    {line}" for line in self._state(task)]
        ring = self.ring.rings.get(task)
        before, prologue, head = self._registers(task) if ring is None else self._ringed(task, ring)
        lines += [f"    {line}" for line in before]
        batch, stride = self.batch, self.table.stride
        size = batch * stride
        nonzero_buffers = 4 if spec.has("y") else 2
        dim = self.problem.irreps_in2.dim
        part = kernel.warps * batch * dim
        sync = f"sync_warps<{kernel.warps * WARP}>();"
        lines += [f"    {line}" for line in prologue]
        lines += [
            "    int buffer = 0;",
            f"    for (int first = begin; first < end; first += {batch}) {{",
            f"        const int count = min({batch}, end - first);",
            f"        T* const m_batch = shared + buffer * {size};",
            f"        {prefix}_nonzeros(p, p.y, m_batch, first, count, lane, warp);",
        ]
        if spec.has("y"):
            lines += [
                f"        T* const b_batch = m_batch + {2 * size};",
                f"        {prefix}_nonzeros(p, p.yb, b_batch, first, count, lane, warp);",
            ]
        lines.append(f"        {sync}")
        if spec.wanted("y"):
            lines += [
                f"        T* const parts = shared + {nonzero_buffers * size};",
                f"        if (first > begin) {prefix}_flush(p, parts + (buffer ^ 1) * {part}, "
                f"first - {batch}, {batch}, lane, warp);",
                f"        T* const dy_batch = parts + buffer * {part} + warp * {batch * dim};",
            ]
        lines.append("        for (int k = 0; k < count; ++k) {")
        if "place" in self.arguments:
            head.append("const Long to = p.place[first + k];")
        body = [*head, f"const T* const m = m_batch + k * {stride};"]
        if spec.has("y"):
            body.append(f"const T* const b = b_batch + k * {stride};")
        body += self._edge(task)
        lines += [f"            {line}" for line in body]
        lines += ["        }", "        buffer ^= 1;", "    }"]
        if spec.wanted("y"):
            lines += [
                "    if (begin < end) {",
                f"        {sync}",
                f"        const int first = begin + (end - 1 - begin) / {batch} * {batch};",
                f"        {prefix}_flush(p, shared + {nonzero_buffers * size} + "
                f"(buffer ^ 1) * {part}, first, end - first, lane, warp);",
                "    }",
            ]
        if conv and self.sums:
            lines += [f"    {line}" for line in self._store_outputs(task, "row")]
        if spec.wanted("w") and self.problem.shared_weights:
            for i, path in enumerate(task.paths):
                if path.has_weight:
                    where = f"p.dw + {path.weight_offset + path.v} + u * {path.mul2}"
                    function = "add_some"
                    if self.plan.deterministic:  # a row of sums per block
                        where += f" + row * {self.problem.weight_numel}"
                        function = "store_some"
                    lines.append(
                        f"    {function}<{task.channels}, {path.mul2}>({where}, dw{i}, left);"
                    )
        return "\n".join([*lines, "}"])

    # -- how operands come ----------------------------------------------------------------------

    def _ids(self, number: int | str, index: str) -> str:
        """Text that reads the edge and the sender at a position."""
        if self.spec.conv:
            return f"e{number} = p.order[{index}]; s{number} = p.sender[{index}];"
        return f"e{number} = {index}; s{number} = {index};"

    def _registers(self, task: WarpTask) -> tuple[list[str], list[str], list[str]]:
        """Operands one edge ahead in registers: declarations, start, and head of the loop."""
        prologue = [
            "int e1 = 0, s1 = 0, e2 = 0, s2 = 0;",
            f"if (begin < end) {{ {self._ids(1, 'begin')} fetch(e1, s1); }}",
            f"if (begin + 1 < end) {{ {self._ids(2, 'begin + 1')} }}",
        ]
        head = [
            "const Long e = e1, s = s1;",
            *self._take(task),
            "e1 = e2, s1 = s2;",
            "if (first + k + 1 < end) fetch(e1, s1);",
            f"if (first + k + 2 < end) {{ {self._ids(2, 'first + k + 2')} }}",
        ]
        return self._fetch(task), prologue, head

    def _ringed(self, task: WarpTask, ring: Ring) -> tuple[list[str], list[str], list[str]]:
        """The same with operands in a ring."""
        depth = ring.depth
        place = self.ring
        before = [
            f"T* const ring = shared + {place.start} + warp * {place.items};",
            *ring.copies(),
        ]
        prologue = ["int e2 = 0, s2 = 0;"]
        prologue += [
            f"if (begin + {ahead} < end) {{ {self._ids(2, f'begin + {ahead}')} "
            f"copy({ahead}, e2, s2); }} else copy_commit();"
            for ahead in range(depth - 1)
        ]
        prologue.append(
            f"if (begin + {depth - 1} < end) {{ {self._ids(2, f'begin + {depth - 1}')} }}"
        )
        uses_ids = self.spec.wanted("x") or self.spec.wanted("w")
        if uses_ids:
            prologue += ["int e1 = 0, s1 = 0;", f"if (begin < end) {{ {self._ids(1, 'begin')} }}"]
        head = [
            f"copy_wait<{depth - 2}>();",
            "const int turn = first + k - begin;",
            f"const T* const at = ring + (turn & {depth - 1}) * {ring.entry};",
            *ring.takes(),
            f"if (first + k + {depth - 1} < end) "
            f"copy((turn + {depth - 1}) & {depth - 1}, e2, s2); else copy_commit();",
            f"if (first + k + {depth} < end) {{ {self._ids(2, f'first + k + {depth}')} }}",
        ]
        if uses_ids:
            head += [
                "const Long e = e1, s = s1;",
                f"if (first + k + 1 < end) {{ {self._ids(1, 'first + k + 1')} }}",
            ]
        return before, prologue, head

    # -- registers that active across edges -------------------------------------------------------

    def _state(self, task: WarpTask) -> list[str]:
        lines = self._outputs(task, "row") if self.spec.conv else []
        if self.spec.wanted("w") and self.problem.shared_weights:
            lines += [f"V dw{i} = {{}};" for i, p in enumerate(task.paths) if p.has_weight]
        return lines

    def _outputs(self, task: WarpTask, row: str) -> list[str]:
        """Sums of a row of outputs, and the gradient of one."""
        lines = []
        for i_out, block in task.outputs.items():
            if self.sums:
                lines.append(f"V o_{i_out}[{block.ir.dim}] = {{}};")
            if self.pulls:
                lines.append(f"V g_{i_out}[{block.ir.dim}];")
                lines += [
                    f"g_{i_out}[{c}] = {self._load_plain(task, 'g', 'out', block, c, row)};"
                    for c in range(block.ir.dim)
                ]
        return lines

    def _store_outputs(self, task: WarpTask, row: str) -> list[str]:
        lines = []
        for i_out, block in task.outputs.items():
            function = "add_some" if i_out in self.shared_outputs else "store_some"
            for c in range(block.ir.dim):
                stride, where = self._plain(block, c)
                place = f"p.out + {row} * {self.problem.irreps_out.dim} + {where}"
                lines.append(
                    f"{function}<{task.channels}, {stride}>({place}, o_{i_out}[{c}], left);"
                )
        return lines

    # -- operands of an edge ---------------------------------------------------------------------

    def _inside(self, task: WarpTask) -> str:
        return "true" if task.whole else f"u < {self.plan.padded(task.in1.mul)}"

    def _plain(self, block: MulIrrep, component: int) -> tuple[int, str]:
        """Stride of channels, and place of the lane's first, in a row of the user's layout."""
        if self.problem.layout == "mul_ir":
            return block.ir.dim, f"{block.offset + component} + u * {block.ir.dim}"
        return 1, f"{block.offset + component * block.mul} + u"

    def _load_plain(
        self, task: WarpTask, name: str, side: str, block: MulIrrep, component: int, row: str
    ) -> str:
        irreps = self.problem.irreps_in1 if side == "in1" else self.problem.irreps_out
        stride, where = self._plain(block, component)
        place = f"p.{name} + {row} * {irreps.dim} + {where}"
        return f"load_some<{task.channels}, {stride}>({place}, left)"

    def _load_row(self, task: WarpTask, name: str, a: int) -> str:
        """Component of the sender's features: packed rows for convolutions."""
        if not self.spec.conv:
            return self._load_plain(task, name, "in1", task.in1, a, "s")
        start = self.offsets[task.i_in1] + a * self.plan.padded(task.in1.mul)
        text = f"load(p.{name} + s * {self.row} + {start} + u, V())"
        return text if task.whole else f"inside ? {text} : V{{}}"

    def _whole_vectors(self, task: WarpTask, path: LoweredPath) -> bool:
        n = task.channels
        return path.mul2 == 1 and not (
            path.weight_offset % n or self.problem.weight_numel % n or task.in1.mul % n
        )

    def _weight_row(self, task: WarpTask, path: LoweredPath, name: str) -> str:
        row = "" if self.problem.shared_weights else f"e * {self.problem.weight_numel} + "
        return f"p.{name} + {row}{path.weight_offset + path.v} + u * {path.mul2}"

    def _load_weight(self, task: WarpTask, path: LoweredPath, name: str) -> str:
        where = self._weight_row(task, path, name)
        if not self._whole_vectors(task, path):
            return f"load_some<{task.channels}, {path.mul2}>({where}, left)"
        load = "load" if self.problem.shared_weights else "load_stream"
        text = f"{load}({where}, V())"
        return text if task.whole else f"left > 0 ? {text} : V{{}}"

    def _operands(self, task: WarpTask) -> list[tuple[str, str]]:
        """Names of an edge's registers, and how they are loaded."""
        spec = self.spec
        found = []
        for a in range(task.in1.ir.dim):
            found.append((f"x{a}", self._load_row(task, "x", a)))
            if spec.has("x"):
                found.append((f"a{a}", self._load_row(task, "xa", a)))
        for i, path in enumerate(task.paths):
            if path.has_weight:
                found.append((f"w{i}", self._load_weight(task, path, "w")))
                if spec.has("w"):
                    found.append((f"c{i}", self._load_weight(task, path, "wc")))
        return found

    def _fetch(self, task: WarpTask) -> list[str]:
        """Loads of the next edge, issued before the current one is evaluated."""
        operands = self._operands(task)
        names = ", ".join(f"n_{name} = {{}}" for name, _ in operands)
        return [
            f"V {names};",
            "const auto fetch = [&](Long e, Long s) {",
            *(f"    n_{name} = {text};" for name, text in operands),
            "};",
        ]

    def _take(self, task: WarpTask) -> list[str]:
        return [f"const V {name} = n_{name};" for name, _ in self._operands(task)]

    # -- one edge -------------------------------------------------------------------------------

    def _edge(self, task: WarpTask) -> list[str]:
        spec, lines = self.spec, []
        dim = task.in1.ir.dim
        gradients = AttributeSums(self.lowered.attributes(task.paths) or [0])
        if not spec.conv:
            lines += self._outputs(task, "e")
        if spec.wanted("x"):
            lines += [f"V dx{a} = {{}};" for a in range(dim)]
        if spec.wanted("y"):
            lines += gradients.declare()
        for i, path in enumerate(task.paths):
            lines += ["{", *(f"    {line}" for line in self._path(task, i, path, gradients)), "}"]
        if spec.wanted("x"):
            lines += self._store_inputs(task)
        if spec.wanted("y"):
            place = f"dy_batch[k * {self.problem.irreps_in2.dim}"
            lines += gradients.store(lambda start: f"{place} + {start} + {{at}}] = {{sum}};")
        if not spec.conv and self.sums:
            lines += self._store_outputs(task, "e")
        return lines

    def _store_inputs(self, task: WarpTask) -> list[str]:
        lines = []
        for a in range(task.in1.ir.dim):
            if self.spec.conv:
                start = self.offsets[task.i_in1] + a * self.plan.padded(task.in1.mul)
                function, row = "add", "s"
                if self.plan.deterministic:
                    row = "to"
                    function = "add" if task.i_in1 in self.shared_inputs else "store_stream"
                place = f"p.dx + {row} * {self.row} + {start} + u"
                lines.append(f"if (inside) {function}({place}, dx{a});")
            else:
                function = "add_some" if task.i_in1 in self.shared_inputs else "store_some"
                stride, where = self._plain(task.in1, a)
                place = f"p.dx + s * {self.problem.irreps_in1.dim} + {where}"
                lines.append(f"{function}<{task.channels}, {stride}>({place}, dx{a}, left);")
        return lines

    def _path(
        self, task: WarpTask, number: int, path: LoweredPath, gradients: AttributeSums
    ) -> list[str]:
        spec, c = self.spec, path.coupling
        lines = self.table.loads(path, "m")
        if spec.has("y"):
            lines += self.table.loads(path, "b")
        if path.has_weight:
            lines.append(f"const V wv = w{number};")
            if spec.has("w"):
                lines.append(f"const V cv = c{number};")
        if self.pulls:
            lines += [f"const V g{i} = g_{path.i_out}[{i}];" for i in range(c.dim_out)]
        if spec.wanted("y"):
            lines += [f"V p{s} = {{}};" for s in range(c.num_nonzeros)]
        add_output = f"o_{path.i_out}[{{0}}] += o{{0}};".format
        lines += uvu_lines(c, path.has_weight, spec, "V", add_output)
        if spec.wanted("w") and path.has_weight:
            lines.append(self._store_weight(task, number, path))
        if spec.wanted("y"):
            lines += [f"const T t{s} = total(p{s});" for s in range(c.num_nonzeros)]
            lines += gradients.add(self.lowered.forms(path), "t")
        return lines

    def _store_weight(self, task: WarpTask, number: int, path: LoweredPath) -> str:
        if self.problem.shared_weights:
            return f"dw{number} += dwv;"
        where = self._weight_row(task, path, "dw")
        if not self._whole_vectors(task, path):
            return f"store_some<{task.channels}, {path.mul2}>({where}, dwv, left);"
        guard = "" if task.whole else "if (left > 0) "
        return f"{guard}store_stream({where}, dwv);"
