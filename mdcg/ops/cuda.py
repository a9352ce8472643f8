"""Runs the generated CUDA kernels of one problem on torch tensors."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..codegen import CudaKernel, KernelSpec, emit_cuda
from ..codegen.cuda import COPY_THREADS
from ..codegen.spec import DERIVATIVES
from ..errors import MdcgError, UnsupportedProblemError
from ..plan import CudaPlan, plan_cuda
from ..problem import ConvProblem
from ..runtime import start_cuda_kernel
from .cuda_graph import CudaGraph, cuda_graph
from .cuda_program import CudaProgram, cuda_device

__all__ = ["CudaKernels", "cuda_device", "cuda_kernels", "graph_on_device", "start_conv"]

Tensors = dict[str, torch.Tensor]

# Vector loads need whole 16-byte words.
_ALIGNMENT = 16

_MAX_ROWS = 2**31 - 64


@dataclass(frozen=True)
class _Loaded:
    """Kernels of one pass on one device."""

    kernel: CudaKernel
    module: CudaProgram
    functions: tuple[int, ...]
    pack_in1: int
    unpack_in1: int


class CudaKernels:
    """All kernels of one problem on one device, loaded when first used.

    Parameters
    ----------
    problem : ConvProblem
    index : int
        Of the device, as torch counts them.
    plan : CudaPlan, optional
        Default: :func:`mdcg.plan.plan_cuda` for the device.
    """

    def __init__(self, problem: ConvProblem, index: int, plan: CudaPlan | None = None) -> None:
        self.problem = problem
        self.index = index
        self.plan = plan if plan is not None else plan_cuda(problem, cuda_device(index))
        self.dtype = getattr(torch, problem.dtype)
        # node rows that are in packed form already
        self._plain = problem.layout == "ir_mul" and all(
            self.plan.padded(block.mul) == block.mul for block in problem.irreps_in1
        )
        self._loaded: dict[KernelSpec, _Loaded] = {}
        self._emitted: dict[KernelSpec, CudaKernel] = {}
        self._lock = threading.Lock()

    def start(self, *specs: KernelSpec) -> None:
        """Begin compiling passes on threads, without waiting; :meth:`load` raises what fails."""
        for spec in specs:
            if spec not in self._loaded and spec not in self._emitted:
                with suppress(MdcgError):
                    for source in self._sources(self._emit(spec)):
                        start_cuda_kernel(source, self.plan.target)

    def _emit(self, spec: KernelSpec) -> CudaKernel:
        kernel = self._emitted.get(spec) or emit_cuda(self.problem, self.plan, spec)
        return self._emitted.setdefault(spec, kernel)

    def _sources(self, kernel: CudaKernel) -> tuple[str, ...]:
        """Return the programs of a pass, the one with the copies of node rows last."""
        if not kernel.programs:
            return (kernel.source,)
        return (*kernel.programs, kernel.copies)

    def load(self, spec: KernelSpec) -> _Loaded:
        """Return the kernels of a pass, compiling them if no cache holds them."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        kernel = self._emit(spec)
        program = CudaProgram(self.index, self.plan.target, self._sources(kernel))
        divided = bool(kernel.programs)
        loaded = _Loaded(
            kernel,
            program,
            tuple(
                program.function(number if divided else 0, entry.name, entry.shared_bytes)
                for number, entry in enumerate(kernel.entries)
            ),
            program.function(-1, "mdcg_pack_in1", 0),
            program.function(-1, "mdcg_unpack_in1", 0),
        )
        with self._lock:
            return self._loaded.setdefault(spec, loaded)

    # -- the three passes -----------------------------------------------------------------------

    def forward(self, operands: Tensors, graph: CudaGraph | None) -> torch.Tensor:
        """Return the output, shape (n_receivers or n_rows, irreps_out.dim)."""
        spec = KernelSpec("forward", graph is not None)
        wants = tuple(name for name, operand in operands.items() if operand.requires_grad)
        if wants and spec not in self._loaded:
            # the gradients asked for later: their kernels compile while this pass does and runs
            self.start(spec, KernelSpec("backward", graph is not None, wants))
        return self._run(spec, operands, {}, graph)["out"]

    def backward(
        self, operands: Tensors, graph: CudaGraph | None, wants: tuple[str, ...]
    ) -> Tensors:
        """Return the gradients of ``<g, out>`` named in ``wants`` ("x", "y", "w")."""
        return self._run(KernelSpec("backward", graph is not None, wants), operands, {}, graph)

    def double_backward(
        self,
        operands: Tensors,
        cotangents: Tensors,
        graph: CudaGraph | None,
        wants: tuple[str, ...],
    ) -> Tensors:
        """Return gradients of ``phi(a,y,w,g) + phi(x,b,w,g) + phi(x,y,c,g)`` named in ``wants``.

        The gradient of g is summed on receivers like an output, by kernels of its own.
        """
        given = tuple(name for name in DERIVATIVES if name in cotangents)
        found: Tensors = {}
        parts = (tuple(n for n in wants if n != "g"), tuple(n for n in wants if n == "g"))
        conv = graph is not None
        specs = [KernelSpec("double_backward", conv, part, given) for part in parts if part]
        self.start(*specs)
        for spec in specs:
            found |= self._run(spec, operands, cotangents, graph)
        if "out" in found:
            found["g"] = found.pop("out")
        return found

    # -- launching ------------------------------------------------------------------------------

    def _run(
        self, spec: KernelSpec, operands: Tensors, cotangents: Tensors, graph: CudaGraph | None
    ) -> Tensors:
        loaded = self.load(spec)
        kernel = loaded.kernel
        letters = {"x": "xa", "y": "yb", "w": "wc"}
        tensors = {name: _aligned(tensor) for name, tensor in operands.items()}
        tensors |= {letters[name]: _aligned(tensor) for name, tensor in cotangents.items()}
        x = tensors["x"]
        rows = x.shape[0]
        if graph is not None:
            runs = graph.num_receivers
            tensors |= {"order": graph.order, "sender": graph.sender, "row_ptr": graph.row_ptr}
            for name in ("x", "xa"):
                if name in tensors and not self._plain:
                    tensors[name] = self._pack(loaded, tensors[name])
        else:
            if rows > _MAX_ROWS:
                raise UnsupportedProblemError(
                    f"the batch has {rows} rows, and the CUDA kernels count to {_MAX_ROWS}: "
                    "split it"
                )
            runs = -(-rows // kernel.run)
        results = self._results(spec, tensors, x, rows if graph is None else runs, kernel)
        values = {name: tensor.data_ptr() for name, tensor in (tensors | results).items()}
        values["n_rows"] = rows if graph is None else runs
        arguments = [values[name] for name in kernel.arguments]
        stream = torch.cuda.current_stream(self.index).cuda_stream
        for entry, function in zip(kernel.entries, loaded.functions, strict=True):
            blocks = -(-runs // entry.rows)
            loaded.module.launch(
                function, blocks, entry.threads, entry.shared_bytes, stream, arguments
            )
        found = {name.removeprefix("d"): tensor for name, tensor in results.items()}
        if graph is not None and "x" in spec.wants and not self._plain:
            plain = torch.empty_like(operands["x"])
            self._copy(loaded.unpack_in1, loaded, found["x"], plain)
            found["x"] = plain
        return found

    def _results(
        self, spec: KernelSpec, tensors: Tensors, x: torch.Tensor, rows: int, kernel: CudaKernel
    ) -> Tensors:
        shapes: dict[str, torch.Size | tuple[int, ...]] = {}
        for name in spec.wants:
            shapes["out" if name == "g" else f"d{name}"] = tensors[name].shape
        if spec.kind == "forward":
            shapes["out"] = (rows, self.problem.irreps_out.dim)
        return {
            name: (x.new_zeros if name in kernel.zeroed else x.new_empty)(shape)
            for name, shape in shapes.items()
        }

    def _pack(self, loaded: _Loaded, rows: torch.Tensor) -> torch.Tensor:
        packed = rows.new_empty(rows.shape[0], loaded.kernel.packed_in1)
        self._copy(loaded.pack_in1, loaded, rows, packed)
        return packed

    def _copy(
        self, function: int, loaded: _Loaded, source: torch.Tensor, target: torch.Tensor
    ) -> None:
        rows = source.shape[0]
        blocks = -(-rows * loaded.kernel.packed_in1 // COPY_THREADS)
        stream = torch.cuda.current_stream(self.index).cuda_stream
        arguments = [source.data_ptr(), target.data_ptr(), rows]
        loaded.module.launch(function, blocks, COPY_THREADS, 0, stream, arguments)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor whose memory starts at a whole vector."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


@lru_cache(maxsize=512)
def cuda_kernels(problem_json: str, plan_json: str, index: int) -> CudaKernels:
    """Return the kernels of a problem on a device; ``plan_json`` empty: the automatic plan."""
    plan = CudaPlan.from_json(plan_json) if plan_json else None
    return CudaKernels(ConvProblem.from_json(problem_json), index, plan)


def start_conv(problem: ConvProblem, device: torch.device) -> None:
    """Begin compiling what a first convolution on a CUDA device needs, without waiting.

    For models whose layers are known before they run: all compile side by side. On other devices
    nothing is done, and what fails is raised by the call that needs it.
    """
    if device.type != "cuda":
        return
    with suppress(MdcgError):
        index = device.index if device.index is not None else torch.cuda.current_device()
        cuda_kernels(problem.to_json(), "", index).start(KernelSpec("forward", True))


def graph_on_device(
    x: torch.Tensor,
    sender: torch.Tensor | None,
    receiver: torch.Tensor | None,
    num_receivers: int,
) -> CudaGraph | None:
    """Return the order of the operator's edges; None where it has none."""
    if sender is None or receiver is None:
        return None
    if sender.shape != receiver.shape:  # a compiled program has sorted them
        return CudaGraph.unpacked(sender, receiver.shape[0], num_receivers)
    return cuda_graph(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)
