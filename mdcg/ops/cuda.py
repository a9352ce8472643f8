"""Runs the generated CUDA kernels of one problem on torch tensors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

import torch

from .. import _core
from ..codegen import CudaKernel, KernelSpec, emit_cuda
from ..codegen.cuda import COPY_THREADS
from ..codegen.spec import DERIVATIVES
from ..errors import DeviceError, UnsupportedProblemError
from ..plan import CudaDevice, CudaPlan, plan_cuda
from ..problem import ConvProblem
from ..runtime import load_cuda_kernel
from .cuda_graph import CudaGraph, cuda_graph

__all__ = ["CudaKernels", "aligned", "cuda_device", "cuda_kernels", "graph_on_device"]

Tensors = dict[str, torch.Tensor]

# Vector loads need whole 16-byte words.
_ALIGNMENT = 16

_MAX_ROWS = 2**31 - 64


@lru_cache(maxsize=64)
def cuda_device(index: int) -> CudaDevice:
    """Return the description of a CUDA device.

    Raises
    ------
    DeviceError
        The driver is missing, or it has no such device.
    """
    try:
        return CudaDevice(_core.cuda_compute_capability(index))
    except RuntimeError as error:
        raise DeviceError(
            f"CUDA device {index} cannot be used ({error}): install the NVIDIA driver, or move the "
            "tensors to the CPU"
        ) from error


@dataclass(frozen=True)
class _Loaded:
    """Kernels of one pass on one device."""

    kernel: CudaKernel
    module: _core.CudaModule
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
        self._lock = threading.Lock()

    def load(self, spec: KernelSpec) -> _Loaded:
        """Return the kernels of a pass, compiling them if no cache holds them."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        kernel = emit_cuda(self.problem, self.plan, spec)
        cubin = load_cuda_kernel(kernel.source, self.plan.target)
        try:
            module = _core.CudaModule(self.index, cubin)
            loaded = _Loaded(
                kernel,
                module,
                tuple(module.function(e.name, e.shared_bytes) for e in kernel.entries),
                module.function("mdcg_pack_in1", 0),
                module.function("mdcg_unpack_in1", 0),
            )
        except RuntimeError as error:
            raise DeviceError(
                f"a kernel for {self.plan.target} cannot be loaded on CUDA device {self.index} "
                f"({error}): give a plan for this device, or none"
            ) from error
        with self._lock:
            return self._loaded.setdefault(spec, loaded)

    # -- the three passes -----------------------------------------------------------------------

    def forward(self, operands: Tensors, graph: CudaGraph | None) -> torch.Tensor:
        """Return the output, shape (n_receivers or n_rows, irreps_out.dim)."""
        spec = KernelSpec("forward", graph is not None)
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
        for part in (tuple(n for n in wants if n != "g"), tuple(n for n in wants if n == "g")):
            if part:
                spec = KernelSpec("double_backward", graph is not None, part, given)
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
        tensors = {name: aligned(tensor) for name, tensor in operands.items()}
        tensors |= {letters[name]: aligned(tensor) for name, tensor in cotangents.items()}
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


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor whose memory starts at a whole vector."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


@lru_cache(maxsize=512)
def cuda_kernels(problem_json: str, plan_json: str, index: int) -> CudaKernels:
    """Return the kernels of a problem on a device; ``plan_json`` empty: the automatic plan."""
    plan = CudaPlan.from_json(plan_json) if plan_json else None
    return CudaKernels(ConvProblem.from_json(problem_json), index, plan)


def graph_on_device(
    x: torch.Tensor,
    sender: torch.Tensor | None,
    receiver: torch.Tensor | None,
    num_receivers: int,
) -> CudaGraph | None:
    """Return the order of the operator's edges; None where it has none."""
    if sender is None or receiver is None:
        return None
    return cuda_graph(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)
