"""Runs the generated CPU kernels of one problem on torch tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from ..codegen import emit_host
from ..codegen.common.spec import COTANGENTS, KernelSpec
from ..codegen.conv.host import ROWS_PER_TASK
from ..codegen.conv.host_entry import ENTRY
from ..plan import HostPlan, plan_host
from ..problem import ConvProblem
from .graph import MAX_SHARED_BLOCKS, Blocks, Graph, Pairs, PairTiles
from .kernels import HostProgram, Kernels, Tensors, host_device, kernel_spec

__all__ = ["HostKernels", "host_device", "host_kernels"]

_COPIES = ("mdcg_pack_in1", "mdcg_pack_out", "mdcg_unpack_in1", "mdcg_unpack_out")

# Side of the product that the rows of an operand belong to.
_SIDES = {"x": "in1", "xa": "in1", "g": "out"}


class HostKernels(Kernels[KernelSpec, HostProgram]):
    """All kernels of one problem under one plan, loaded when first used.

    Parameters
    ----------
    problem : ConvProblem
    plan : HostPlan, optional
        Default: :func:`mdcg.plan.plan_host` for this machine.
    """

    def __init__(self, problem: ConvProblem, plan: HostPlan | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.plan = plan if plan is not None else plan_host(problem, host_device())
        whole = problem.layout == "ir_mul"
        lanes = self.plan.lanes
        # rows that are in packed form already
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
        wants: tuple[str, ...],
        pairs: Pairs | None = None,
    ) -> Tensors:
        """Run one pass, see :class:`Kernels`; all tensors are contiguous.

        Without a `graph`, every row of the operands gives a row of the output. With `pairs`, which
        a double backward does not take, "w" has a row for each of these pairs of edges.
        """
        given = tuple(name for name in COTANGENTS if name in cotangents) if cotangents else ()
        program = self.load(kernel_spec(kind, graph is not None, wants, given, pairs is not None))
        if kind == "forward" and graph is not None:
            return {"out": self._sum_messages(program, operands, graph, pairs)}
        tensors = operands | {COTANGENTS[name]: tensor for name, tensor in cotangents.items()}
        x = operands["x"]
        rows = x.shape[0]
        if kind == "forward":
            results = {"out": x.new_empty(rows, self.problem.irreps_out.dim)}
        else:
            results = {f"d{name}": torch.empty_like(operands[name]) for name in wants}
        if graph is None:
            self._run_rows(program, tensors | results, rows, results)
        else:
            for name, side in _SIDES.items():
                if name in tensors:
                    tensors[name] = self._pack(program, tensors[name], side)
            if pairs is not None:
                tensors["weight_row"] = pairs.row
                size = graph.block_size(self.plan.senders_per_block)
                self._run_tiles(program, tensors, rows, results, pairs.tiles(size), 0)
            else:
                blocks = graph.blocks(self.plan.senders_per_block, self.problem.shared_weights)
                if kind == "backward":
                    self._run_blocks(program, tensors, rows, results, blocks)
                else:
                    self._run_tiles(program, tensors, rows, results, blocks, blocks.size)
        return {name.removeprefix("d"): tensor for name, tensor in results.items()}

    # -- launching ------------------------------------------------------------------------------

    def _sum_messages(
        self, program: HostProgram, tensors: Tensors, graph: Graph, pairs: Pairs | None
    ) -> torch.Tensor:
        """Run a forward convolution over tasks of whole receivers."""
        rows = graph.num_receivers
        x = self._pack(program, tensors["x"], "in1")
        out = x.new_empty(rows, self.problem.irreps_out.dim)
        values = {
            "n_rows": rows,
            "x": x.data_ptr(),
            "y": tensors["y"].data_ptr(),
            "w": tensors["w"].data_ptr(),
            "out": out.data_ptr(),
            "order": graph.order,
            "sender": graph.sender,
            "row_ptr": graph.row_ptr,
            "task_ptr": graph.task_ptr,
        }
        if pairs is not None:
            values["weight_row"] = pairs.row.data_ptr()
        program.run(values, graph.num_tasks)
        return out

    def _run_rows(
        self, program: HostProgram, tensors: Tensors, rows: int, results: Tensors
    ) -> None:
        """Run a batched product over blocks of rows."""
        shared = -(-rows // MAX_SHARED_BLOCKS) if self.problem.shared_weights else 0
        per_task = max(ROWS_PER_TASK, shared)
        tasks = -(-rows // per_task)
        partial = self._partial_weights(tensors, results, tasks)
        program.run(_addresses(tensors) | {"n_rows": rows, "n_task_rows": per_task}, tasks)
        _sum_partial(partial, results)

    def _run_blocks(
        self, program: HostProgram, tensors: Tensors, rows: int, results: Tensors, blocks: Blocks
    ) -> None:
        """Run a backward pass over blocks of senders, each of which one task takes."""
        tensors = tensors | results
        if "dx" in results:
            tensors |= {"dx": torch.empty_like(tensors["x"]), "dx_rows": results["dx"]}
        partial = self._partial_weights(tensors, results, blocks.num_blocks)
        values = _addresses(tensors) | _edges(blocks, rows, blocks.size)
        program.run(values | {"task_ptr": blocks.block_ptr}, blocks.num_blocks)
        _sum_partial(partial, results)

    def _run_tiles(
        self,
        program: HostProgram,
        tensors: Tensors,
        rows: int,
        results: Tensors,
        order: Blocks | PairTiles,
        size: int,
    ) -> None:
        """Run a pass over tiles: each adds to rows that no other tile of its round touches."""
        sums = {
            f"d{name}": torch.zeros_like(tensors[name]) for name in "xg" if f"d{name}" in results
        }
        tensors = tensors | results | sums
        blocks = order.num_blocks if isinstance(order, Blocks) else 0
        partial = self._partial_weights(tensors, results, blocks)
        values = _addresses(tensors) | _edges(order, rows, size) | {"task_ptr": order.tiles}
        program.run_rounds(values, order.round_ptr, order.num_rounds)
        for name, packed in sums.items():
            side = _SIDES[name.removeprefix("d")]
            self._copy(program, f"mdcg_unpack_{side}", packed, results[name])
        _sum_partial(partial, results)

    def _partial_weights(
        self, tensors: Tensors, results: Tensors, tasks: int
    ) -> torch.Tensor | None:
        """Shared weights: give every task its own row to sum gradients in."""
        if "dw" not in results or not self.problem.shared_weights:
            return None
        tensors["dw"] = results["dw"].new_zeros(max(tasks, 1), self.problem.weight_numel)
        return tensors["dw"]

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


def _addresses(tensors: Tensors) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def _edges(order: Blocks | PairTiles, rows: int, size: int) -> dict[str, int]:
    found = {"n_rows": rows, "n_block": size}
    return found | {name: getattr(order, name) for name in ("order", "sender", "receiver")}


def _sum_partial(partial: torch.Tensor | None, results: Tensors) -> None:
    if partial is not None:
        results["dw"] = partial.sum(0).reshape(results["dw"].shape)


@lru_cache(maxsize=512)
def host_kernels(problem_json: str, plan_json: str) -> HostKernels:
    """Return the kernels of a problem; ``plan_json`` may be empty for the automatic plan."""
    plan = HostPlan.from_json(plan_json) if plan_json else None
    return HostKernels(ConvProblem.from_json(problem_json), plan)
