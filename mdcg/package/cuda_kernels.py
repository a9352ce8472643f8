"""Writes the text of a package's convolution and contraction kernels.

Operands are the engine's rows: component-major blocks, multiplicities rounded up to 64 bytes. CUDA
text is the same for all devices of compute capability 8.0 or later, and AMD's compiler reads it,
too; the compiler adapts it to the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..codegen import CudaKernel, KernelSpec, emit_cuda, emit_engine_conv
from ..codegen.common.emit import engine_stride
from ..codegen.contraction.cuda import emit_engine_contraction_cuda
from ..codegen.contraction.engine import emit_engine_contraction
from ..codegen.conv.table import LEAST_SHARED, emit_table_conv
from ..errors import UnsupportedProblemError
from ..plan import CudaDevice, plan_cuda
from ..plan.contraction import plan_contraction_cuda
from ..problem import ConvProblem, Irreps, SymmetricContractionProblem
from ..runtime.hiprtc import WAVEFRONT_PER_WARP

#: Passes of a layer. A convolution reads weights per edge, or a table of weights by length.
PASSES = ("forward", "backward", "table_forward", "table_backward")

# The oldest device with the asynchronous copies that kernels use.
_DEVICE = CudaDevice(80)
# The oldest device of each class, and the bytes of shared memory that a block can have on all
# devices of the class. Since H100, data-centre devices have more than others.
_SHARED = ((_DEVICE, LEAST_SHARED), (CudaDevice(90), 220 * 1024), (CudaDevice(120), LEAST_SHARED))

# AMD's devices, and the threads and the bytes of shared memory that a block can have there.
_HIP, _HIP_THREADS, _HIP_SHARED = CudaDevice(0x900), 1024, 64 * 1024


def padded_problem(problem: ConvProblem) -> ConvProblem:
    """Return a convolution of the engine's padded rows: ``ir_mul``, multiples of 64 bytes."""

    def padded(irreps: Irreps) -> Irreps:
        return Irreps.from_pairs(
            (engine_stride(b.mul, problem.dtype), b.ir.l, b.ir.p) for b in irreps
        )

    return replace(
        problem,
        irreps_in1=padded(problem.irreps_in1),
        irreps_out=padded(problem.irreps_out),
        layout="ir_mul",
        _w3j={},
    )


def host_source(layer: Mapping[str, Any]) -> str | None:
    """Return the C++ text of a layer's kernel, or None if the layer has none."""
    if layer["type"] == "contraction":
        return emit_engine_contraction(SymmetricContractionProblem.from_json(layer["problem"]))
    if layer["type"] != "conv":
        return None
    return emit_engine_conv(ConvProblem.from_json(layer["problem"]))


def cuda_passes(
    layers: Sequence[Mapping[str, Any]], tensors: Container[str], *, amd: bool = False
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Write the kernels of a manifest's layers for NVIDIA's devices, or for AMD's.

    Returns the passes of the layers in the format of a kernel file, and the texts by their keys. A
    layer that no kernel supports has no passes: it runs only on CPUs.
    """
    found: list[dict[str, Any]] = []
    programs: dict[str, str] = {}
    devices = ((_HIP, _HIP_SHARED),) if amd else _SHARED
    for number, layer in enumerate(layers):
        for kind in PASSES:
            variants: list[tuple[CudaDevice, CudaKernel, dict[str, int]]] = []
            try:
                for device, shared in devices if kind == "table_backward" else devices[:1]:
                    made = _emit(layer, kind, tensors, shared)
                    if made is not None and amd:
                        made = _for_amd(made[0], wavefronts=layer["type"] == "conv"), made[1]
                    if made is not None and (not variants or made[0] != variants[-1][1]):
                        variants.append((device, *made))
            except UnsupportedProblemError:
                break
            for device, kernel, widths in variants:
                texts = kernel.programs or (kernel.source,)
                programs.update((text_key(text), text) for text in texts)
                found.append(_pass(number, kind, device, kernel, widths))
    return found, programs


def _for_amd(kernel: CudaKernel, *, wavefronts: bool) -> CudaKernel:
    """Return a kernel for AMD's devices; UnsupportedProblemError if no block can hold it.

    With `wavefronts`, each warp is a wavefront with idle lanes.
    """
    entries = []
    for entry in kernel.entries:
        threads = 2 * entry.threads if wavefronts else entry.threads
        fit = min(_HIP_THREADS // threads, _HIP_SHARED // max(1, entry.shared_bytes))
        if fit < 1:
            raise UnsupportedProblemError(
                f"{entry.name} needs a block of {threads} threads and {entry.shared_bytes} bytes "
                f"of shared memory, expected at most {_HIP_THREADS} and {_HIP_SHARED} on AMD's "
                "devices"
            )
        groups = min(entry.max_warp_groups, fit)
        entries.append(replace(entry, threads=threads, max_warp_groups=groups))
    first = WAVEFRONT_PER_WARP if wavefronts else ""
    return replace(
        kernel,
        source=first + kernel.source,
        programs=tuple(first + text for text in kernel.programs),
        entries=tuple(entries),
    )


def _pass(
    number: int, kind: str, device: CudaDevice, kernel: CudaKernel, widths: dict[str, int]
) -> dict[str, Any]:
    return {
        "layer": number,
        "pass": kind,
        "target": device.target,
        "programs": [text_key(text) for text in kernel.programs or (kernel.source,)],
        "entries": [
            {
                "name": entry.name,
                "program": step if kernel.programs else 0,
                "threads": entry.threads,
                "shared_bytes": entry.shared_bytes,
                "rows": entry.rows,
                "stream": entry.stream,
                "max_warp_groups": entry.max_warp_groups,
            }
            for step, entry in enumerate(kernel.entries)
        ],
        "arguments": list(kernel.arguments),
        "zeroed": list(kernel.zeroed),
        "run": kernel.run,
        "widths": widths,
        "resident": kernel.resident,
        **({} if kernel.degree is None else {"degree": kernel.degree, "singles": kernel.singles}),
    }


def text_key(text: str) -> str:
    """Return the key of a text in a kernel file; the engine computes the same."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _emit(
    layer: Mapping[str, Any], kind: str, tensors: Container[str], most_shared: int
) -> tuple[CudaKernel, dict[str, int]] | None:
    """Return a kernel and its operands' items per row; a block may have `most_shared` bytes."""
    if layer["type"] == "conv":
        if kind.startswith("table_") != has_table(layer["radial"], tensors):
            return None
        problem = padded_problem(ConvProblem.from_json(layer["problem"]))
        if kind.startswith("table_"):
            return _emit_table(layer, problem, kind.removeprefix("table_"), most_shared)
        plan = plan_cuda(problem, _DEVICE).with_changes(deterministic=True)
        wants = () if kind == "forward" else ("x", "y", "w") if "x" in layer else ("y", "w")
        kernel = emit_cuda(problem, plan, KernelSpec(kind, True, wants))
        if kernel.packed_in1 != problem.irreps_in1.dim or not kernel.packs:
            raise AssertionError(f"{problem} does not take rows of the engine")
        return kernel, {
            "x": problem.irreps_in1.dim,
            "y": problem.irreps_in2.dim,
            "w": problem.weight_numel,
            "out": problem.irreps_out.dim,
        }
    if layer["type"] == "contraction":
        if kind not in ("forward", "backward"):
            return None
        contraction = SymmetricContractionProblem.from_json(layer["problem"])
        stride = engine_stride(contraction.channels, contraction.dtype)
        kernel = emit_engine_contraction_cuda(
            contraction, plan_contraction_cuda(contraction, _DEVICE), kind
        )
        return kernel, {
            "x": contraction.dim_in * stride,
            "w": contraction.num_coefficients * stride,
            "out": contraction.dim_out * stride,
        }
    return None


def _emit_table(
    layer: Mapping[str, Any], problem: ConvProblem, kind: str, most_shared: int
) -> tuple[CudaKernel, dict[str, int]]:
    """Return the kernel of a convolution whose radial network has a table."""
    kernel = emit_table_conv(
        problem,
        kind,
        wants_x="x" in layer,
        normalization=layer.get("normalization", "component"),
        most_shared=most_shared,
    )
    return kernel, {
        "x": problem.irreps_in1.dim,
        "w": problem.weight_numel,
        "out": problem.irreps_out.dim,
    }


def has_table(radial: Mapping[str, Any], tensors: Container[str]) -> bool:
    """Return whether a radial network has a table, by the rule of ``RadialSpec::has_table``."""
    ends = [radial.get(end) for end in ("sender", "receiver")]
    smooth = all(layer.get("activation") not in ("relu", "abs") for layer in radial["layers"])
    return smooth and all(end is None or end in tensors for end in ends)
