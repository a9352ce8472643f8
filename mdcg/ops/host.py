"""Runs the generated CPU kernels of one problem on torch tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from ..codegen import emit_host
from ..codegen.common.spec import COTANGENTS, KernelSpec
from ..codegen.conv.host import ROWS_PER_TASK
from ..codegen.conv.host_entry import ENTRY
from ..plan import HostPlan, plan_host
from ..problem import ConvProblem
from .graph import MAX_SHARED_BLOCKS, Graph, Pairs
from .kernels import HostProgram, Kernels, Names, Tensors, host_device, kernel_spec

_COPIES = ("mdcg_pack_in1", "mdcg_pack_out", "mdcg_unpack_in1", "mdcg_unpack_out")

# Side of the product whose rows an operand has.
_SIDES = {"x": "in1", "xa": "in1", "g": "out"}


class _Walk(NamedTuple):
    """Arguments of a launch, its tasks or rounds, parts that sum shared weights, and rounds."""

    values: dict[str, int]
    tasks: int
    parts: int = 0
    round_ptr: int = 0


class HostKernels(Kernels[KernelSpec, HostProgram]):
    """The kernels of one problem for CPUs. Default plan: chosen for this machine."""

    def __init__(self, problem: ConvProblem, plan: HostPlan | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.plan = plan if plan is not None else plan_host(problem, host_device())
        whole = problem.layout == "ir_mul"
        lanes = self.plan.lanes
        # whether rows are packed already
        self._plain = {
            "in1": whole and all(b.mul % lanes == 0 for b in problem.irreps_in1),
            "out": whole and all(b.mul % lanes == 0 for b in problem.irreps_out),
        }

    def _make(self, spec: KernelSpec) -> HostProgram:
        kernel = emit_host(self.problem, self.plan, spec)
        return HostProgram(kernel, self.plan.level, (ENTRY, *_COPIES))

    def run(
        self,
        kind: str,
        operands: Tensors,
        cotangents: Tensors,
        graph: Graph | None,
        wants: Names,
        pairs: Pairs | None = None,
    ) -> Tensors:
        """Run one pass, see :class:`Kernels`; all tensors are contiguous.

        Without a `graph`, every row of the operands gives a row of the output. With `pairs`, "w"
        has a row for each of these pairs of edges; a double backward takes no pairs.
        """
        given = tuple(name for name in COTANGENTS if name in cotangents) if cotangents else ()
        program = self.load(kernel_spec(kind, graph is not None, wants, given, pairs is not None))
        tensors = operands | {COTANGENTS[name]: tensor for name, tensor in cotangents.items()}
        x = operands["x"]
        rows = x.shape[0]
        if kind == "forward":
            rows = rows if graph is None else graph.num_receivers
            results = {"out": x.new_empty(rows, self.problem.irreps_out.dim)}
        else:
            results = {f"d{name}": torch.empty_like(operands[name]) for name in wants}
        if graph is not None:
            for name, side in _SIDES.items():
                if name in tensors:
                    tensors[name] = self._pack(program, tensors[name], side)
            if pairs is not None:
                tensors["weight_row"] = pairs.row
        walk = self._walk(kind, graph, pairs, rows)
        sums: Tensors = {}  # packed rows, unpacked here
        if walk.round_ptr:
            sums = {n: torch.zeros_like(tensors[n[1:]]) for n in ("dx", "dg") if n in results}
        elif graph is not None and "dx" in results:
            tensors |= {"dx_rows": results["dx"]}
            results = results | {"dx": torch.empty_like(tensors["x"])}
        shared = {}
        if self.problem.shared_weights and "dw" in results:
            # every task sums gradients in its own row
            shared["dw"] = x.new_zeros(max(walk.parts, 1), self.problem.weight_numel)
        tensors |= results | sums | shared
        values = {name: tensor.data_ptr() for name, tensor in tensors.items()} | walk.values
        program.run(values, walk.tasks, walk.round_ptr)
        for name, packed in sums.items():
            self._copy(program, f"mdcg_unpack_{_SIDES[name[1:]]}", packed, results[name])
        if shared:
            results["dw"] = shared["dw"].sum(0).reshape(results["dw"].shape)
        if "dx_rows" in tensors:
            results["dx"] = tensors["dx_rows"]
        return {name.removeprefix("d"): tensor for name, tensor in results.items()}

    # -- launching ------------------------------------------------------------------------------

    def _walk(self, kind: str, graph: Graph | None, pairs: Pairs | None, rows: int) -> _Walk:
        """Distribute the rows or the edges over tasks."""
        if graph is None:
            least = -(-rows // MAX_SHARED_BLOCKS) if self.problem.shared_weights else 0
            per_task = max(ROWS_PER_TASK, least)
            tasks = -(-rows // per_task)
            return _Walk({"n_rows": rows, "n_task_rows": per_task}, tasks, tasks)
        if kind == "forward":  # tasks of whole receivers
            receivers = graph.by_receiver
            return _Walk({"n_rows": rows} | receivers.addresses, receivers.lengths["task_ptr"] - 1)
        limit = self.plan.senders_per_block
        size, order = 0, pairs.tiles(graph.block_size(limit)) if pairs is not None else None
        if order is None:
            size, order = graph.blocks(limit, self.problem.shared_weights)
        values = {"n_rows": rows, "n_block": size} | order.addresses
        parts = order.lengths.get("block_ptr", 1) - 1
        if kind == "backward" and pairs is None:
            # a task is a block of senders
            return _Walk(values | {"task_ptr": values["block_ptr"]}, parts, parts)
        # a task is a tile; tiles of one round add to different rows
        rounds = order.lengths["round_ptr"] - 1
        return _Walk(values | {"task_ptr": values["tiles"]}, rounds, parts, values["round_ptr"])

    def _pack(self, program: HostProgram, rows: torch.Tensor, side: str) -> torch.Tensor:
        if self._plain[side]:
            return rows
        kernel = program.kernel
        packed = rows.new_empty(
            rows.shape[0], kernel.packed_in1 if side == "in1" else kernel.packed_out
        )
        self._copy(program, f"mdcg_pack_{side}", rows, packed)
        return packed

    def _copy(
        self, program: HostProgram, name: str, source: torch.Tensor, target: torch.Tensor
    ) -> None:
        rows = source.shape[0]
        arguments = [rows, source.data_ptr(), target.data_ptr()]
        program.call(name, arguments, -(-rows // ROWS_PER_TASK))


@lru_cache(maxsize=512)
def host_kernels(problem_json: str, plan_json: str) -> HostKernels:
    """Return the kernels of a problem; ``plan_json`` may be empty for the automatic plan."""
    plan = HostPlan.from_json(plan_json) if plan_json else None
    return HostKernels(ConvProblem.from_json(problem_json), plan)
