"""Runs generated CUDA kernels on arrays of the host: a program for a process with the emulator.

    python run_kernels.py INPUT.npz OUTPUT.npz

The input has the arrays and, as text, what is to be run. Nothing here imports torch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from mdcg import _core
from mdcg.codegen import CudaKernel, KernelSpec, emit_cuda
from mdcg.codegen.contraction import ContractionSpec
from mdcg.codegen.contraction_cuda import emit_contraction_cuda
from mdcg.codegen.cuda_rows import ROW_THREADS
from mdcg.plan import CudaDevice, plan_cuda
from mdcg.plan.contraction import CudaContractionPlan
from mdcg.problem import ConvProblem, SymmetricContractionProblem
from mdcg.runtime import load_cuda_kernels, start_cuda_kernel

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


TARGET = "sm_90"


def sources(kernel: CudaKernel) -> tuple[str, ...]:
    return (*kernel.programs, kernel.copies) if kernel.programs else (kernel.source,)


def emit_convolution(task: dict[str, Any]) -> tuple[ConvProblem, KernelSpec, CudaKernel]:
    problem = ConvProblem.from_json(task["problem"])
    plan = plan_cuda(problem, CudaDevice(90)).with_changes(**task["plan"])
    spec = KernelSpec(task["kind"], True, tuple(task["wants"]))
    return problem, spec, emit_cuda(problem, plan, spec)


def emit_contraction(
    task: dict[str, Any],
) -> tuple[SymmetricContractionProblem, ContractionSpec, CudaKernel]:
    problem = SymmetricContractionProblem.from_json(task["problem"])
    spec = ContractionSpec(task["kind"], True, tuple(task["wants"]))
    plan = CudaContractionPlan(90, threads=64)
    return problem, spec, emit_contraction_cuda(problem, plan, spec)


class Program:
    """The modules of a pass."""

    def __init__(self, kernel: CudaKernel) -> None:
        self.kernel = kernel
        cubins = load_cuda_kernels(sources(kernel), TARGET)
        self.modules = [_core.CudaModule(0, cubin) for cubin in cubins]

    def run(self, runs: int, arguments: list[int]) -> None:
        """Launch all kernels of the pass."""
        for number, entry in enumerate(self.kernel.entries):
            module = self.modules[number if self.kernel.programs else 0]
            function = module.function(entry.name, entry.shared_bytes)
            blocks = -(-runs // entry.rows)
            module.launch(
                function, blocks, entry.threads, entry.shared_bytes, 0, arguments, early=entry.early
            )

    def rows(self, name: str, source: Array, target: Array, *more: Array) -> None:
        """Pack, unpack or sum node rows."""
        function = self.modules[-1].function(name, 0)
        arguments = [address(source), address(target), len(target), *map(address, more)]
        blocks = -(-len(target) * self.kernel.packed_in1 // ROW_THREADS)
        self.modules[-1].launch(function, blocks, ROW_THREADS, 0, 0, arguments)


def address(array: Array) -> int:
    assert array.flags.c_contiguous
    assert array.ctypes.data % 16 == 0, "vector loads need aligned rows"
    return int(array.ctypes.data)


def convolution(task: dict[str, Any], arrays: Arrays) -> Arrays:
    """Run one pass of a convolution; results by the names of their operands, "out" the value."""
    problem, spec, kernel = emit_convolution(task)
    program = Program(kernel)
    dtype = np.dtype(problem.dtype)
    given = {name: arrays[name].astype(dtype) for name in "xywg" if name in arrays}
    sender, receiver, receivers = arrays["sender"], arrays["receiver"], task["num_receivers"]
    order = np.argsort(receiver, kind="stable").astype(np.int32)
    by_sender = np.argsort(sender[order], kind="stable")
    place = np.empty(len(order), np.int32)
    place[by_sender] = np.arange(len(order))
    given |= {
        "order": order,
        "sender": sender[order].astype(np.int32),
        "row_ptr": bounds(receiver[order], receivers),
        "place": place,
    }
    nodes = len(arrays["x"])
    if kernel.packs:
        packed = np.full((nodes, kernel.packed_in1), np.nan, dtype)
        # its number of rows is that of the target
        program.rows("mdcg_pack_in1", given["x"], packed)
        given["x"] = packed
    deterministic = "place" in kernel.arguments
    shapes: dict[str, tuple[int, ...]] = {f"d{name}": given[name].shape for name in spec.wants}
    if spec.kind == "forward":
        shapes = {"out": (receivers, problem.irreps_out.dim)}
    if "dx" in shapes:
        shapes["dx"] = (len(order) if deterministic else nodes, kernel.packed_in1)
    if "dw" in shapes and problem.shared_weights and deterministic:
        shapes["dw"] = (receivers, problem.weight_numel)
    results = {
        name: np.full(shape, 0 if name in kernel.zeroed else np.nan, dtype)
        for name, shape in shapes.items()
    }
    values = given | results
    program.run(
        receivers, [receivers if n == "n_rows" else address(values[n]) for n in kernel.arguments]
    )
    matrices = any(path.mode == "uvw" for path in problem.paths)  # these take rows as they are
    if "dx" in results and (deterministic or not matrices):
        rows = np.full((nodes, problem.irreps_in1.dim), np.nan, dtype)
        if deterministic:
            starts = bounds(sender[order][by_sender], nodes)
            program.rows("mdcg_sum_in1", results["dx"], rows, starts)
        else:
            program.rows("mdcg_unpack_in1", results["dx"], rows)
        results["dx"] = rows
    if "dw" in results and problem.shared_weights and deterministic:
        results["dw"] = results["dw"].sum(0)
    return results


def bounds(in_order: Array, rows: int) -> Array:
    return np.searchsorted(in_order, np.arange(rows + 1)).astype(np.int32)


def contraction(task: dict[str, Any], arrays: Arrays) -> Arrays:
    """Run one pass of a symmetric contraction; the gradient of w is per node."""
    problem, spec, kernel = emit_contraction(task)
    program = Program(kernel)
    dtype = np.dtype(problem.dtype)
    values = {name: arrays[name].astype(dtype) for name in "xwyg" if name in arrays}
    nodes = len(values["x"])
    if spec.kind == "forward":
        results = {"out": np.full((nodes, problem.channels * problem.dim_out), np.nan, dtype)}
    else:
        per_node = (nodes, problem.num_coefficients, problem.channels)
        results = {
            f"d{n}": np.full(per_node if n == "w" else values[n].shape, np.nan, dtype)
            for n in spec.wants
        }
    values |= results
    sizes = {"n_rows": nodes, "n_species": arrays["y"].shape[1]}
    program.run(nodes * kernel.run, [sizes.get(n) or address(values[n]) for n in kernel.arguments])
    return results


def main() -> None:
    with np.load(sys.argv[1]) as file:
        arrays = dict(file)
    results: Arrays = {}
    assert _core.cuda_compute_capability(0) == 90
    tasks = json.loads(str(arrays.pop("tasks")))
    emit = {"convolution": emit_convolution, "contraction": emit_contraction}
    for task in tasks.values():  # several at a time
        for source in sources(emit[task["what"]](task)[-1]):
            start_cuda_kernel(source, TARGET)
    for name, task in tasks.items():
        own = {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}
        run = {"convolution": convolution, "contraction": contraction}[task["what"]]
        results |= {f"{name}/{k}": v for k, v in run(task, own).items()}
    assert "torch" not in sys.modules
    np.savez(sys.argv[2], **results)


if __name__ == "__main__":
    main()
