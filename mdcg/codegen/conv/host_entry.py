"""Writes the C++ entry point of a kernel: the rows of a task, and the pointers of each edge."""

from __future__ import annotations

from collections.abc import Iterable

from ...plan import HostPlan
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import packed_row
from ..common.lowering import lower
from ..common.spec import KernelSpec

__all__ = ["ENTRY", "EntryWriter"]

ENTRY = "mdcg_run"


def _declarations(arguments: Iterable[str]) -> list[str]:
    integers = dict.fromkeys(("order", "sender", "receiver", "weight_row"), "int32_t")
    integers |= dict.fromkeys(("row_ptr", "task_ptr"), "int64_t")
    lines = []
    for i, name in enumerate(arguments):
        if name.startswith("n_"):
            lines.append(f"    const int64_t {name} = arg[{i}];")
        elif name in integers:
            lines.append(
                f"    const {integers[name]}* const {name} = (const {integers[name]}*)arg[{i}];"
            )
        else:
            lines.append(f"    T* const {name}_base = (T*)arg[{i}];")
    return lines


class EntryWriter:
    """Writes the entry of one kernel.

    The path functions need `uvw_items` items of scratch. Each of `groups` is a list of statements
    for one edge. It runs for all edges of a batch before the next group begins.
    """

    def __init__(
        self,
        problem: ConvProblem,
        plan: HostPlan,
        spec: KernelSpec,
        uvw_items: int,
        groups: list[list[str]],
    ) -> None:
        self.problem = problem
        self.plan = plan
        self.spec = spec
        self.groups = groups
        self.in_items, _ = packed_row(problem.irreps_in1, plan.padded)
        self.out_items, _ = packed_row(problem.irreps_out, plan.padded)
        self.tiled = spec.kind == "double_backward" or spec.paired
        self.weight_stride = 0 if problem.shared_weights else problem.weight_numel
        self.scratch: list[str] = []
        self.scratch_bytes = 0
        self.edge: dict[str, str] = {}  # name: expression of a pointer that an edge uses
        self.before: list[str] = []  # statements before those of an edge
        self.after: list[str] = []  # statements after them
        self.loads: list[str] = []  # statements at the start of a batch of L edges
        self._operands(uvw_items)

    def write(self, arguments: tuple[str, ...]) -> tuple[str, int]:
        """Return the text, and the bytes of scratch that a thread needs."""
        if not self.spec.conv:
            body = self._rows()
        elif self.spec.kind == "forward":
            body = self._receivers()
        else:
            body = self._blocks()
        lines = [
            f'extern "C" void {ENTRY}(const int64_t* arg, int64_t task, char* scratch) {{',
            *_declarations(arguments),
            *self.scratch,
            *(f"    {line}" for line in body),
            "}",
        ]
        return "\n".join(lines), self.scratch_bytes

    def _take(self, name: str, items: int, kind: str = "T") -> None:
        """Name a 64-byte aligned piece of the thread's scratch memory."""
        self.scratch.append(
            f"    {kind}* const {name} = ({kind}*)(scratch + {self.scratch_bytes});"
        )
        self.scratch_bytes += -(-items * ITEMSIZE[self.problem.dtype] // 64) * 64

    # -- operands of an edge --------------------------------------------------------------------

    def _operands(self, uvw_items: int) -> None:
        """Name edge attributes, nonzeros, weights and their gradients."""
        spec, plan, edge, take = self.spec, self.plan, self.edge, self._take
        nonzeros = max(1, lower(self.problem).num_nonzeros) * plan.lanes
        take("yt", max(1, self.problem.irreps_in2.dim) * plan.lanes)
        take("m_batch", nonzeros)
        take("z", max(1, uvw_items))
        weight_row = "(int64_t)weight_row[id[k]]" if spec.paired else "id[k]"
        edge |= {"m": "m_batch + k", "w": f"w_base + {weight_row} * {self.weight_stride}"}
        self.loads += ["load_attributes(y_base, id, n, yt);", "nonzeros(yt, m_batch);"]
        if "y" in spec.given:
            take("mb_batch", nonzeros)
            edge["mb"] = "mb_batch + k"
            self.loads += ["load_attributes(yb_base, id, n, yt);", "nonzeros(yt, mb_batch);"]
        if "w" in spec.given:
            edge["wc"] = f"wc_base + id[k] * {self.weight_stride}"
        if "y" in spec.wants:
            take("p", nonzeros, "V")
            target = f"dy_base + id[k] * {max(1, self.problem.irreps_in2.dim)}"
            self.after.append(f"attribute_gradient(p, {target});")
        if "w" in spec.wants:
            # shared weights: one row per task, summed by the caller in task order
            row = "part" if self.problem.shared_weights else weight_row
            edge["dw"] = f"dw_base + {row} * {self.problem.weight_numel}"
            if spec.paired:
                self._sum_pairs()
        if self.weight_stride and plan.prefetch_edges:
            later = f"e + k + {plan.prefetch_edges}"
            row = f"(int64_t)order[{later}]" if spec.conv else f"({later})"
            row = f"(int64_t)weight_row[order[{later}]]" if spec.paired else row
            self.before.append(
                f"const T* ahead = w_base + ({later} < stop ? {row} : 0) * {self.weight_stride};"
            )

    def _sum_pairs(self) -> None:
        """Make the second edge of a row add its gradients to those of the first, just before it."""
        self._take("zeros", self.problem.weight_numel)
        self.before += [
            "const bool again = e + k > first && weight_row[order[e + k - 1]] == "
            "weight_row[id[k]];",
            f"const T* old = again ? {self.edge['dw']} : zeros;",
        ]

    def _gathered(self, name: str, index: str, items: int) -> str:
        return f"{name}_base + (int64_t){index}[e + k] * {items}"

    # -- loops of a task ------------------------------------------------------------------------

    def _batch(self, end: str) -> list[str]:
        """Return lines that evaluate edges ``e`` to ``end``, at most L."""
        source = "order[e + k]" if self.spec.conv else "e + k"
        pointers = [f"    T* const {name} = {place};" for name, place in self.edge.items()]
        lines = [
            f"const int n = {end} - e < L ? (int)({end} - e) : L;",
            "int64_t id[L];",
            f"for (int k = 0; k < n; ++k) id[k] = {source};",
            *self.loads,
        ]
        for group in self.groups:
            lines.append("for (int k = 0; k < n; ++k) {")
            lines += [f"    {line}" for line in self.before]
            lines += pointers
            lines += [f"    {line}" for line in group]
            lines += [f"    {line}" for line in self.after]
            lines.append("}")
        return lines

    def _finish(self) -> list[str]:
        streams = "w" in self.spec.wants and not self.problem.shared_weights
        streams = streams and not self.spec.paired
        return ["stream_fence();"] if streams and self.plan.streaming_stores else []

    def _part(self, expression: str) -> list[str]:
        shared = "w" in self.spec.wants and self.problem.shared_weights
        return [f"const int64_t part = {expression};"] if shared else []

    def _receivers(self) -> list[str]:
        """Forward convolution: a task has whole receivers, and sums a row in scratch."""
        self._take("acc", max(1, self.out_items))
        self.edge |= {"x": self._gathered("x", "sender", self.in_items), "o": "acc"}
        return [
            "const int64_t last_row = task_ptr[task + 1], stop = row_ptr[last_row];",
            "(void)stop;",
            "for (int64_t row = task_ptr[task]; row < last_row; ++row) {",
            f"    zero<{self.out_items}>(acc);",
            "    const int64_t end = row_ptr[row + 1];",
            "    for (int64_t e = row_ptr[row]; e < end; e += L) {",
            *(f"        {line}" for line in self._batch("end")),
            "    }",
            f"    unpack_out(acc, out_base + row * {self.problem.irreps_out.dim});",
            "}",
        ]

    def _blocks(self) -> list[str]:
        """Backward: a task is a block of senders. Others: tiles of a round share no rows."""
        wants, edge = self.spec.wants, self.edge
        edge["x"] = self._gathered("x", "sender", self.in_items)
        edge["g"] = self._gathered("g", "receiver", self.out_items)
        if "x" in self.spec.given:
            edge["xa"] = self._gathered("xa", "sender", self.in_items)
        if "x" in wants:
            # an edge's paths are summed first: adding each to the large total would lose digits
            self._take("edge_dx", max(1, self.in_items))
            edge["dx"] = "edge_dx"
            self.before.append(f"zero<{self.in_items}>(edge_dx);")
            total = self._gathered("dx", "sender", self.in_items)
            self.after.append(f"add<{self.in_items}>(edge_dx, {total});")
        if "g" in wants:
            edge["o"] = self._gathered("dg", "receiver", self.out_items)
        head: list[str] = []
        tail: list[str] = []
        if self.tiled:
            first, stop = "task_ptr[2 * task]", "task_ptr[2 * task + 1]"
            # tiles of one round have different blocks of senders
            part = self._part("sender[task_ptr[2 * task]] / n_block")
        else:
            first, stop = "task_ptr[task]", "task_ptr[task + 1]"
            part = self._part("task")
        if "x" in wants and not self.tiled:
            head = [
                "const int64_t first_row = task * n_block;",
                "const int64_t after = first_row + n_block;",
                "const int64_t last_row = after < n_rows ? after : n_rows;",
                "for (int64_t r = first_row; r < last_row; ++r) "
                f"zero<{self.in_items}>(dx_base + r * {self.in_items});",
            ]
            tail = [
                "for (int64_t r = first_row; r < last_row; ++r) "
                f"unpack_in1(dx_base + r * {self.in_items}, "
                f"dx_rows_base + r * {self.problem.irreps_in1.dim});"
            ]
        if self.spec.paired and "w" in wants:
            items = self.problem.weight_numel
            head = [
                f"for (int i = 0; i < {items}; ++i) zeros[i] = 0;",
                f"const int64_t first = {first};",
            ]
            first = "first"
        return [*head, *part, *self._edges(first, stop), *tail, *self._finish()]

    def _edges(self, first: str, stop: str) -> list[str]:
        return [
            f"const int64_t stop = {stop};",
            f"for (int64_t e = {first}; e < stop; e += L) {{",
            *(f"    {line}" for line in self._batch("stop")),
            "}",
        ]

    def _rows(self) -> list[str]:
        """Batched product: packs operands of a row into scratch, and unpacks its results."""
        spec, problem = self.spec, self.problem
        forward = spec.kind == "forward"
        sides = {
            "in1": (self.in_items, problem.irreps_in1.dim),
            "out": (self.out_items, problem.irreps_out.dim),
        }
        # (name in the statements of an edge, argument, side, whether it exists, whether a result)
        for name, argument, side, used, result in (
            ("x", "x", "in1", True, False),
            ("g", "g", "out", not forward, False),
            ("xa", "xa", "in1", spec.has("x"), False),
            ("o", "out", "out", forward, True),
            ("dx", "dx", "in1", spec.wanted("x"), True),
            ("o", "dg", "out", spec.wanted("g"), True),
        ):
            if not used:
                continue
            items, dim = sides[side]
            row, place = f"row_{name}", f"{argument}_base + id[k] * {dim}"
            self._take(row, max(1, items))
            self.edge[name] = row
            if result:
                self.before.append(f"zero<{items}>({row});")
                self.after.append(f"unpack_{side}({row}, {place});")
            else:
                self.before.append(f"pack_{side}({place}, {row});")
        last = "const int64_t last = (task + 1) * n_task_rows;"
        loop = self._edges("task * n_task_rows", "(last < n_rows ? last : n_rows)")
        return [last, *self._part("task"), *loop, *self._finish()]
