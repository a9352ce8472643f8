"""Runs the generated CUDA kernels of one problem on torch tensors."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import torch

from ..codegen import CudaKernel, KernelSpec, emit_cuda
from ..codegen.common.spec import COTANGENTS
from ..codegen.conv.rows import ROW_THREADS
from ..errors import MdcgError, UnsupportedProblemError
from ..plan import CudaPlan, plan_cuda
from ..problem import ConvProblem
from ..runtime.cuda_build import start_cuda_kernel
from .graph import CudaGraph, cuda_graph
from .kernels import CudaPass, Kernels, Names, Tensors, cuda_device, kernel_spec

# Vector loads need whole 16-byte words.
_ALIGNMENT = 16

_MAX_ROWS = 2**31 - 64


class _Loaded(CudaPass):
    """Kernels of one pass on one device, and kernels that copy node rows."""

    def __init__(self, index: int, target: str, kernel: CudaKernel) -> None:
        super().__init__(index, target, kernel)
        self.pack_in1, self.unpack_in1, self.sum_in1 = (
            self.program.function(-1, f"mdcg_{step}_in1", 0) for step in ("pack", "unpack", "sum")
        )


class CudaKernels(Kernels[KernelSpec, _Loaded]):
    """The kernels of one problem on CUDA device `index`. Default plan: chosen for the device."""

    def __init__(self, problem: ConvProblem, index: int, plan: CudaPlan | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.index = index
        self.plan = plan if plan is not None else plan_cuda(problem, cuda_device(index))
        self._matrices = any(path.mode == "uvw" for path in problem.paths)
        # node rows that kernels read in the user's layout, or that are packed already
        self._plain = self._matrices or (
            problem.layout == "ir_mul"
            and all(self.plan.padded(block.mul) == block.mul for block in problem.irreps_in1)
        )
        self._emitted: dict[KernelSpec, CudaKernel] = {}

    def start(self, *specs: KernelSpec) -> None:
        """Begin compiling passes on threads, without waiting; :meth:`load` raises their errors."""
        for spec in specs:
            if spec not in self._loaded and spec not in self._emitted:
                with suppress(MdcgError):
                    for source in self._emit(spec).sources:
                        start_cuda_kernel(source, self.plan.target)

    def _emit(self, spec: KernelSpec) -> CudaKernel:
        kernel = self._emitted.get(spec) or emit_cuda(self.problem, self.plan, spec)
        return self._emitted.setdefault(spec, kernel)

    def _make(self, spec: KernelSpec) -> _Loaded:
        return _Loaded(self.index, self.plan.target, self._emit(spec))

    def run(
        self,
        kind: str,
        operands: Tensors,
        cotangents: Tensors,
        graph: CudaGraph | None,
        wants: Names,
    ) -> Tensors:
        """Run one pass, see :class:`Kernels`.

        Without a `graph`, every row of the operands gives a row of the output.
        """
        conv = graph is not None
        given = tuple(name for name in COTANGENTS if name in cotangents)
        parts = [wants]
        if kind == "double_backward" and not self._matrices:
            # The gradient of g is summed on receivers like an output, by separate kernels. With
            # weight matrices there is one kernel, which reads them once for all gradients.
            split = (tuple(n for n in wants if n != "g"), tuple(n for n in wants if n == "g"))
            parts = [part for part in split if part]
        specs = [kernel_spec(kind, conv, part, given) for part in parts]
        later = tuple(name for name, operand in operands.items() if operand.requires_grad)
        if kind == "forward" and later and specs[0] not in self._loaded:
            # kernels of the backward pass that will follow compile at the same time as this pass
            self.start(*specs, kernel_spec("backward", conv, later))
        elif kind == "double_backward":
            self.start(*specs)
        found: Tensors = {}
        for spec in specs:
            found |= self._run(spec, operands, cotangents, graph)
        if kind == "double_backward" and "out" in found:
            found["g"] = found.pop("out")
        return found

    # -- launching ------------------------------------------------------------------------------

    def _run(
        self, spec: KernelSpec, operands: Tensors, cotangents: Tensors, graph: CudaGraph | None
    ) -> Tensors:
        loaded = self.load(spec)
        kernel = loaded.kernel
        tensors = {name: aligned(tensor) for name, tensor in operands.items()}
        tensors |= {COTANGENTS[name]: aligned(tensor) for name, tensor in cotangents.items()}
        n_rows = operands["x"].shape[0]
        if graph is not None:
            n_rows = runs = graph.num_receivers
            tensors |= {"order": graph.order, "sender": graph.sender, "row_ptr": graph.row_ptr}
            if self._by_edge(spec):
                tensors["place"] = graph.by_sender().place
            for name in ("x", "xa"):
                if name in tensors and kernel.packs and not self._plain:
                    tensors[name] = self._pack(loaded, tensors[name])
        else:
            if n_rows > _MAX_ROWS:
                raise UnsupportedProblemError(
                    f"the batch has {n_rows} rows, and the CUDA kernels count to {_MAX_ROWS}: "
                    "split it"
                )
            runs = -(-n_rows // kernel.run)
        shapes: dict[str, torch.Size | tuple[int, ...]] = {
            name: tensors[name.removeprefix("d")].shape for name in spec.results if name != "out"
        }
        if "out" in spec.results:
            shapes["out"] = (n_rows, self.problem.irreps_out.dim)
        if spec.conv and "dx" in shapes:
            rows = tensors["order" if "place" in tensors else "x"].shape[0]
            shapes["dx"] = (rows, kernel.packed_in1)
        if "dw" in shapes and self.problem.shared_weights and self.plan.deterministic:
            shapes["dw"] = (runs, self.problem.weight_numel)
        x = tensors["x"]
        results = {
            name: (x.new_zeros if name in kernel.zeroed else x.new_empty)(shape)
            for name, shape in shapes.items()
        }
        tensors |= results
        values = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        # without overlap in a captured graph, because not every driver can replay it
        overlap = self.plan.overlaps and not torch.cuda.is_current_stream_capturing()
        loaded.launch(runs, values | {"n_rows": n_rows}, overlap=overlap)
        found = {name.removeprefix("d"): tensor for name, tensor in results.items()}
        if "x" in found and graph is not None:
            found["x"] = self._node_rows(loaded, spec, found["x"], operands["x"], graph)
        if "w" in found and found["w"].shape != operands["w"].shape:
            found["w"] = found["w"].sum(0)
        return found

    def _pack(self, loaded: _Loaded, rows: torch.Tensor) -> torch.Tensor:
        packed = rows.new_empty(rows.shape[0], loaded.kernel.packed_in1)
        arguments = [rows.data_ptr(), packed.data_ptr(), rows.shape[0]]
        self._launch_rows(loaded, loaded.pack_in1, arguments)
        return packed

    def _by_edge(self, spec: KernelSpec) -> bool:
        """Return whether the gradient of node features is written per edge, and summed later."""
        return spec.conv and spec.wanted("x") and self.plan.deterministic

    def _node_rows(
        self,
        loaded: _Loaded,
        spec: KernelSpec,
        packed: torch.Tensor,
        like: torch.Tensor,
        graph: CudaGraph,
    ) -> torch.Tensor:
        """Return gradients of node features from packed rows, of nodes or of edges by sender."""
        by_edge = self._by_edge(spec)
        if self._plain and not by_edge:
            return packed
        rows = torch.empty_like(like, memory_format=torch.contiguous_format)
        arguments = [packed.data_ptr(), rows.data_ptr(), rows.shape[0]]
        function = loaded.unpack_in1
        if by_edge:
            arguments.append(graph.by_sender().row_ptr.data_ptr())
            function = loaded.sum_in1
        self._launch_rows(loaded, function, arguments)
        return rows

    def _launch_rows(self, loaded: _Loaded, function: int, arguments: list[int]) -> None:
        blocks = -(-arguments[2] * loaded.kernel.packed_in1 // ROW_THREADS)
        loaded.program.launch(function, (blocks, ROW_THREADS, 0), arguments)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor whose memory is aligned to vectors."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


@lru_cache(maxsize=512)
def cuda_kernels(
    problem_json: str, plan_json: str, index: int, deterministic: bool = False
) -> CudaKernels:
    """Return the kernels of a problem on a device; ``plan_json`` empty: the automatic plan.

    `deterministic` makes any plan deterministic.
    """
    problem = ConvProblem.from_json(problem_json)
    plan = CudaPlan.from_json(plan_json) if plan_json else plan_cuda(problem, cuda_device(index))
    if deterministic:
        plan = plan.with_changes(deterministic=True)
    return CudaKernels(problem, index, plan)


def start_conv(problem: ConvProblem, device: torch.device) -> None:
    """Begin compiling the kernels for a first convolution on a CUDA device, without waiting.

    The kernels of all layers of a model can thus compile at the same time. On other devices this
    does nothing. Errors are raised later, by the call that needs the kernel.
    """
    if device.type != "cuda":
        return
    with suppress(MdcgError):
        index = device.index if device.index is not None else torch.cuda.current_device()
        deterministic = torch.are_deterministic_algorithms_enabled()
        kernels = cuda_kernels(problem.to_json(), "", index, deterministic)
        kernels.start(KernelSpec("forward", True))


def graph_on_device(
    x: torch.Tensor, sender: torch.Tensor | None, receiver: torch.Tensor | None, num_receivers: int
) -> CudaGraph | None:
    """Return the order of the operator's edges, or None if it has no edges."""
    if sender is None or receiver is None:
        return None
    if sender.shape != receiver.shape:  # a compiled program has sorted them
        return CudaGraph.unpacked(sender, receiver.shape[0], x.shape[0], num_receivers)
    return cuda_graph(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)
