"""Generated CUDA kernels on the host, for tests of their arithmetic where there is no GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mdcg.codegen import KernelSpec, emit_cuda
from mdcg.codegen.packing import packed_row
from mdcg.ops import cuda
from mdcg.problem import ConvProblem
from mdcg.runtime import find_compiler

_TEMPLATE = Path(__file__).with_suffix(".hpp")

_ADD = """
MDCG_INLINE void add(float* p, float a) { *p += a; }
MDCG_INLINE void add(double* p, double a) { *p += a; }
template <int N> MDCG_INLINE void add(T* p, Vec<N> a) {
    for (int k = 0; k < N; ++k) p[k] += a.v[k];
}

"""

_COPIES = """
MDCG_INLINE void copy_some(T* to, const T* from, int bytes) {
    emulator::aligned((const Quad*)to);
    *(Quad*)to = Quad{};
    if (bytes) std::memcpy(to, emulator::aligned((const Quad*)from), bytes);
}
MDCG_INLINE void copy_once(T* to, const T* from, int bytes) { copy_some(to, from, bytes); }
MDCG_INLINE void copy_commit() {}
"""
_WAIT = "template <int N> MDCG_INLINE void copy_wait() { __syncwarp(); }\n\n"


def host_text(source: str, kernel: str = "mdcg_run_0") -> str:
    """Return C++ text that runs a kernel of a CUDA text; PTX becomes its meaning."""
    if "MDCG_INLINE" in source:
        source = _replaced(source, "MDCG_INLINE void add(float* p", "// ---- strided chan", _ADD)
        source = _replaced(
            source, "MDCG_INLINE unsigned shared_a", "template <int N, int S", _COPIES
        )
        source = _replaced(source, "template <int N> MDCG_INLINE void copy_wait", "// ---- ", _WAIT)
    # barriers of some warps of a block: not reached here
    source = re.sub(r"asm volatile\(.*?\);", 'emulator::fail("PTX");', source, flags=re.DOTALL)
    source = source.replace(
        "extern __shared__ Quad shared_memory[];",
        "Quad* const shared_memory = (Quad*)emulator::shared_memory;",
    )
    text = _TEMPLATE.read_text().replace("@SOURCE@", source)
    return text.replace("ARGUMENTS", "Arguments").replace("KERNEL", kernel)


def _replaced(source: str, first: str, after: str, text: str) -> str:
    start = source.index(first)
    return source[:start] + text + source[source.index(after, start) :]


class _Module:
    """Stands for a loaded module; launching runs the kernel at once."""

    launches = 0

    def launch(
        self,
        function: Any,
        blocks: int,
        threads: int,
        shared: int,
        stream: int,
        values: list[int],
        *,
        early: bool = False,
    ) -> None:
        _Module.launches += 1
        packed = (ctypes.c_longlong * len(values))(*values)
        function.emulate(packed, ctypes.c_longlong(blocks), threads, shared, _Module.launches)


class EmulatedKernels(cuda.CudaKernels):
    """The kernels of a problem, compiled for the host.

    Parameters
    ----------
    folder : Path
        Where compiled kernels go.
    problem, plan
        As for :class:`mdcg.ops.cuda.CudaKernels`; the plan must be given.
    """

    def __init__(self, folder: Path, problem: ConvProblem, plan: Any) -> None:
        super().__init__(problem, 0, plan)
        self.folder = folder

    def start(self, *specs: KernelSpec) -> None:
        """Compile nothing for a GPU."""

    def _launch_rows(self, loaded: Any, function: int, arguments: list[int], stream: int) -> None:
        raise AssertionError("kernels of matrices take node rows as they are")

    def _node_rows(
        self, loaded: Any, packed: torch.Tensor, like: torch.Tensor, graph: Any, stream: int
    ) -> torch.Tensor:
        """Sum packed rows of edges by sender, where the kernel gives such."""
        if "place" not in loaded.kernel.arguments:
            return packed
        by_edge = packed[graph.by_sender().place.long()]
        summed = torch.zeros(like.shape[0], packed.shape[1], dtype=packed.dtype)
        summed.index_add_(0, graph.sender.long(), by_edge)
        row, starts = packed_row(self.problem.irreps_in1, self.plan)
        assert row == packed.shape[1]
        parts = []
        for block, start in zip(self.problem.irreps_in1, starts, strict=True):
            pad = self.plan.padded(block.mul)
            columns = summed[:, start : start + block.ir.dim * pad]
            part = columns.reshape(-1, block.ir.dim, pad)[:, :, : block.mul]
            if self.problem.layout == "mul_ir":
                part = part.transpose(1, 2)
            parts.append(part.flatten(1))
        return torch.cat(parts, dim=1)

    def load(self, spec: KernelSpec) -> Any:
        """Return a kernel of the host."""
        if spec not in self._loaded:
            kernel = emit_cuda(self.problem, self.plan, spec)
            assert len(kernel.entries) == 1
            path = self.folder / f"{self.problem.key()}_{len(list(self.folder.iterdir()))}.cpp"
            path.write_text(host_text(kernel.source))
            library = path.with_suffix(".so")
            flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-w", "-fno-strict-aliasing"]
            command = [*find_compiler(), *flags, str(path), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:2000]
            function: Any = ctypes.CDLL(str(library))
            self._loaded[spec] = cuda._Loaded(kernel, _Module(), (function,), 0, 0, 0)  # type: ignore[arg-type]
        return self._loaded[spec]


def host_graph(sender: torch.Tensor, receiver: torch.Tensor, num_receivers: int) -> Any:
    """Return edges by receiver, as :class:`mdcg.ops.cuda_graph.CudaGraph` holds them."""
    ordered, order = torch.sort(receiver, stable=True)
    place = torch.argsort(torch.argsort(sender[order], stable=True)).int()
    return SimpleNamespace(
        by_sender=lambda: SimpleNamespace(place=place),
        order=order.int(),
        sender=sender.int()[order],
        row_ptr=torch.searchsorted(ordered, torch.arange(num_receivers + 1), out_int32=True),
        num_receivers=num_receivers,
    )


@pytest.fixture
def no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the launcher a stream where torch has none."""
    monkeypatch.setattr(cuda, "current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
