"""Runs the generated CPU kernels of one problem on torch tensors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

import torch

from .. import _core
from ..codegen import HostKernel, KernelSpec, emit_host
from ..codegen.host import ROWS_PER_TASK
from ..codegen.host_entry import ENTRY
from ..codegen.spec import DERIVATIVES
from ..plan import LEVELS, HostDevice, HostPlan, plan_host
from ..problem import ConvProblem
from ..runtime import load_host_kernel
from .graph import MAX_SHARED_BLOCKS, Graph, Pairs

__all__ = ["HostKernels", "host_device", "host_kernels"]


@lru_cache(maxsize=1)
def host_device() -> HostDevice:
    """Return the description of this machine's CPU."""
    level = _core.instruction_set_level()
    return HostDevice(level=level, l2_bytes=_core.l2_cache_bytes() or HostDevice.l2_bytes)


@dataclass(frozen=True)
class _Loaded:
    """A kernel ready to launch; ``library`` keeps the addresses valid."""

    kernel: HostKernel
    library: _core.SharedLibrary
    run: int
    pack_in1: int
    pack_out: int
    unpack_in1: int
    unpack_out: int


class HostKernels:
    """All kernels of one problem under one plan, loaded when first used.

    Parameters
    ----------
    problem : ConvProblem
    plan : HostPlan, optional
        Default: :func:`mdcg.plan.plan_host` for this machine.
    """

    def __init__(self, problem: ConvProblem, plan: HostPlan | None = None) -> None:
        self.problem = problem
        self.plan = plan if plan is not None else plan_host(problem, host_device())
        self.dtype = getattr(torch, problem.dtype)
        whole = problem.layout == "ir_mul"
        lanes = self.plan.lanes
        # rows that are in packed form already
        self._plain = {
            "in1": whole and all(b.mul % lanes == 0 for b in problem.irreps_in1),
            "out": whole and all(b.mul % lanes == 0 for b in problem.irreps_out),
        }
        self._loaded: dict[KernelSpec, _Loaded] = {}
        self._lock = threading.Lock()

    def load(self, spec: KernelSpec) -> _Loaded:
        """Return a kernel, compiling it if no cache holds it."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        kernel = emit_host(self.problem, self.plan, spec)
        march = LEVELS[self.plan.level][0]
        library = load_host_kernel(
            kernel.source, target=self.plan.level, flags=(march,) if march else ()
        )
        names = ("pack_in1", "pack_out", "unpack_in1", "unpack_out")
        loaded = _Loaded(
            kernel,
            library,
            library.symbol(ENTRY),
            *(library.symbol(f"mdcg_{name}") for name in names),
        )
        with self._lock:
            return self._loaded.setdefault(spec, loaded)

    # -- the three passes -----------------------------------------------------------------------

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        graph: Graph | None,
        pairs: Pairs | None = None,
    ) -> torch.Tensor:
        """Return the output, shape (n_receivers or n_rows, irreps_out.dim).

        With `pairs`, `w` has a row per pair.
        """
        loaded = self.load(KernelSpec("forward", graph is not None, paired=pairs is not None))
        rows = graph.num_receivers if graph is not None else x.shape[0]
        out = torch.empty(rows, self.problem.irreps_out.dim, dtype=self.dtype)
        values = {"n_rows": rows, "y": y.data_ptr(), "w": w.data_ptr(), "out": out.data_ptr()}
        if graph is None:
            values["x"] = x.data_ptr()
            self._run_rows(loaded, values, rows, None)
            return out
        packed = self._pack(loaded, x, "in1")
        if pairs is not None:
            values["weight_row"] = pairs.row.data_ptr()
        values |= {
            "x": packed.data_ptr(),
            "order": graph.order,
            "sender": graph.sender,
            "row_ptr": graph.row_ptr,
            "task_ptr": graph.task_ptr,
        }
        self._launch(loaded, values, graph.num_tasks)
        return out

    def backward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        g: torch.Tensor,
        graph: Graph | None,
        wants: tuple[str, ...],
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of ``<g, out>`` named in ``wants`` ("x", "y", "w")."""
        loaded = self.load(KernelSpec("backward", graph is not None, wants))
        result = self._results(wants, x, y, w, g)
        values = self._addresses({"x": x, "y": y, "w": w, "g": g}, result)
        if graph is None:
            self._run_rows(loaded, values, x.shape[0], result)
            return result
        blocks = graph.blocks(self.plan.senders_per_block, self.problem.shared_weights)
        packed = {"x": self._pack(loaded, x, "in1"), "g": self._pack(loaded, g, "out")}
        values |= {name: tensor.data_ptr() for name, tensor in packed.items()}
        values |= {
            "n_rows": x.shape[0],
            "order": blocks.order,
            "sender": blocks.sender,
            "receiver": blocks.receiver,
            "task_ptr": blocks.block_ptr,
            "n_block": blocks.size,
        }
        if "x" in wants:
            rows = torch.empty_like(packed["x"])
            values |= {"dx": rows.data_ptr(), "dx_rows": result["x"].data_ptr()}
        partial = self._partial_weights(wants, blocks.num_blocks, values)
        self._launch(loaded, values, blocks.num_blocks)
        if partial is not None:
            result["w"] = partial.sum(0).reshape(w.shape)
        return result

    def paired_backward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        g: torch.Tensor,
        graph: Graph,
        pairs: Pairs,
        wants: tuple[str, ...],
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of :meth:`backward` where `w` has a row per pair of edges."""
        loaded = self.load(KernelSpec("backward", True, wants, paired=True))
        result = self._results(wants, x, y, w, g)
        packed = {"x": self._pack(loaded, x, "in1"), "g": self._pack(loaded, g, "out")}
        if "x" in wants:  # sums over tiles
            packed["dx"] = torch.zeros_like(packed["x"])
        tiles = pairs.tiles(graph.block_size(self.plan.senders_per_block))
        values = self._addresses({"y": y, "w": w}, result)
        values |= {name: tensor.data_ptr() for name, tensor in packed.items()}
        values |= {
            "n_rows": x.shape[0],
            "order": tiles.order,
            "sender": tiles.sender,
            "receiver": tiles.receiver,
            "task_ptr": tiles.tiles,
            "n_block": 0,
            "weight_row": pairs.row.data_ptr(),
        }
        self._launch_rounds(loaded, values, tiles.round_ptr, tiles.num_rounds)
        if "x" in wants:
            self._unpack(loaded, packed["dx"], result["x"], "in1")
        return result

    def double_backward(
        self,
        operands: dict[str, torch.Tensor],
        cotangents: dict[str, torch.Tensor],
        graph: Graph | None,
        wants: tuple[str, ...],
    ) -> dict[str, torch.Tensor]:
        """Return gradients of ``phi(a,y,w,g) + phi(x,b,w,g) + phi(x,y,c,g)`` named in ``wants``.

        Parameters
        ----------
        operands : dict
            "x", "y", "w", "g".
        cotangents : dict
            Those present of "x" (a), "y" (b), "w" (c).
        graph : Graph, optional
        wants : tuple of str
            Of "x", "y", "w", "g".
        """
        x, y, w, g = (operands[name] for name in DERIVATIVES)
        given = tuple(name for name in DERIVATIVES if name in cotangents)
        result = self._results(wants, x, y, w, g)
        loaded = self.load(KernelSpec("double_backward", graph is not None, wants, given))
        values = self._addresses(operands, result)
        letters = {"x": "xa", "y": "yb", "w": "wc"}
        values |= {letters[name]: tensor.data_ptr() for name, tensor in cotangents.items()}
        if graph is None:
            self._run_rows(loaded, values, x.shape[0], result)
            return result
        blocks = graph.blocks(self.plan.senders_per_block, self.problem.shared_weights)
        packed = {"x": self._pack(loaded, x, "in1"), "g": self._pack(loaded, g, "out")}
        if "x" in cotangents:
            packed["xa"] = self._pack(loaded, cotangents["x"], "in1")
        # sums over tiles: every tile adds to rows that no other tile of its round touches
        for name in ("x", "g"):
            if name in wants:
                packed[f"d{name}"] = torch.zeros_like(packed[name])
        values |= {name: tensor.data_ptr() for name, tensor in packed.items()}
        values |= {
            "n_rows": x.shape[0],
            "order": blocks.order,
            "sender": blocks.sender,
            "receiver": blocks.receiver,
            "task_ptr": blocks.tiles,
            "n_block": blocks.size,
        }
        partial = self._partial_weights(wants, blocks.num_blocks, values)
        self._launch_rounds(loaded, values, blocks.round_ptr, blocks.num_rounds)
        for name, side in (("x", "in1"), ("g", "out")):
            if name in wants:
                self._unpack(loaded, packed[f"d{name}"], result[name], side)
        if partial is not None:
            result["w"] = partial.sum(0).reshape(w.shape)
        return result

    # -- helpers --------------------------------------------------------------------------------

    def _results(
        self,
        wants: tuple[str, ...],
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        g: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        like = {"x": x, "y": y, "w": w, "g": g}
        return {name: torch.empty_like(like[name]) for name in wants}

    def _addresses(
        self, operands: dict[str, torch.Tensor], result: dict[str, torch.Tensor]
    ) -> dict[str, int]:
        values = {name: tensor.data_ptr() for name, tensor in operands.items()}
        return values | {f"d{name}": tensor.data_ptr() for name, tensor in result.items()}

    def _partial_weights(
        self, wants: tuple[str, ...], tasks: int, values: dict[str, int]
    ) -> torch.Tensor | None:
        """Shared weights: give every task its own row to sum gradients in."""
        if "w" not in wants or not self.problem.shared_weights:
            return None
        partial = torch.zeros(max(tasks, 1), self.problem.weight_numel, dtype=self.dtype)
        values["dw"] = partial.data_ptr()
        return partial

    def _launch(self, loaded: _Loaded, values: dict[str, int], tasks: int) -> None:
        _core.launch(
            loaded.run,
            [values[name] for name in loaded.kernel.arguments],
            tasks,
            torch.get_num_threads(),
            loaded.kernel.scratch_bytes,
        )

    def _launch_rounds(
        self, loaded: _Loaded, values: dict[str, int], round_ptr: int, num_rounds: int
    ) -> None:
        _core.launch_rounds(
            loaded.run,
            [values[name] for name in loaded.kernel.arguments],
            round_ptr,
            num_rounds,
            torch.get_num_threads(),
            loaded.kernel.scratch_bytes,
        )

    def _run_rows(
        self,
        loaded: _Loaded,
        values: dict[str, int],
        rows: int,
        result: dict[str, torch.Tensor] | None,
    ) -> None:
        """Launch a batched product over blocks of rows."""
        per_task = max(
            ROWS_PER_TASK, -(-rows // MAX_SHARED_BLOCKS) if self.problem.shared_weights else 0
        )
        tasks = -(-rows // per_task)
        values |= {"n_rows": rows, "n_task_rows": per_task}
        wants = tuple(result) if result is not None else ()
        partial = self._partial_weights(wants, tasks, values)
        self._launch(loaded, values, tasks)
        if partial is not None and result is not None:
            result["w"] = partial.sum(0).reshape(result["w"].shape)

    def _pack(self, loaded: _Loaded, rows: torch.Tensor, side: str) -> torch.Tensor:
        if self._plain[side]:
            return rows
        items = loaded.kernel.packed_in1 if side == "in1" else loaded.kernel.packed_out
        packed = torch.empty(rows.shape[0], items, dtype=self.dtype)
        entry = loaded.pack_in1 if side == "in1" else loaded.pack_out
        self._launch_copy(entry, rows, packed)
        return packed

    def _unpack(self, loaded: _Loaded, packed: torch.Tensor, rows: torch.Tensor, side: str) -> None:
        entry = loaded.unpack_in1 if side == "in1" else loaded.unpack_out
        self._launch_copy(entry, packed, rows)

    def _launch_copy(self, entry: int, source: torch.Tensor, target: torch.Tensor) -> None:
        rows = source.shape[0]
        arguments = [rows, source.data_ptr(), target.data_ptr()]
        _core.launch(entry, arguments, -(-rows // ROWS_PER_TASK), torch.get_num_threads(), 0)


@lru_cache(maxsize=512)
def host_kernels(problem_json: str, plan_json: str) -> HostKernels:
    """Return the kernels of a problem; ``plan_json`` may be empty for the automatic plan."""
    plan = HostPlan.from_json(plan_json) if plan_json else None
    return HostKernels(ConvProblem.from_json(problem_json), plan)
