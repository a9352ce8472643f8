"""Types of the compiled core (csrc/python)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__version__: str

class SharedLibrary:
    """A shared library opened at run time."""

    def __init__(self, path: str) -> None: ...
    def symbol(self, name: str) -> int: ...

class Pairing:
    """Rows of one or two edges: those that are the two directions of one."""

    def rows(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return the row of every edge, and the first and the second edge of every row."""
    def holds(
        self,
        directions: int,
        direction_stride: int,
        features: int,
        num_features: int,
        itemsize: int,
    ) -> bool: ...

class Edges:
    """A graph's edges in the orders kernels walk; addresses are of int32 or int64 arrays."""

    def __init__(
        self,
        sender: int,
        receiver: int,
        num_edges: int,
        itemsize: int,
        num_senders: int,
        num_receivers: int,
        edges_per_task: int,
    ) -> None: ...
    def same(
        self,
        sender: int,
        receiver: int,
        num_edges: int,
        itemsize: int,
        num_senders: int,
        num_receivers: int,
    ) -> bool: ...
    def by_receiver(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]: ...
    def by_block(
        self, block_size: int
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
    ]: ...
    def pairs(
        self,
        directions: int,
        direction_stride: int,
        features: int,
        num_features: int,
        itemsize: int,
    ) -> Pairing: ...
    def by_pair(
        self, pairing: Pairing, block_size: int
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
    ]: ...

def launch(
    function: int, arg: Sequence[int], num_tasks: int, num_threads: int, scratch_bytes: int
) -> None: ...
def launch_rounds(
    function: int,
    arg: Sequence[int],
    round_ptr: int,
    num_rounds: int,
    num_threads: int,
    scratch_bytes: int,
) -> None: ...
def instruction_set_level() -> str: ...
def l2_cache_bytes() -> int: ...

class CudaError(RuntimeError):
    """What the CUDA driver refused; ``code`` is its number."""

    code: int

class Nvrtc:
    """NVIDIA's run-time compiler, opened by path."""

    def __init__(self, path: str) -> None: ...
    @property
    def version(self) -> tuple[int, int]: ...
    @property
    def architectures(self) -> list[int]: ...
    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bool, bytes, str]:
        """Return whether the source was accepted, the machine code, and the log."""

class CudaModule:
    """Machine code loaded on one device."""

    def __init__(self, device: int, cubin: bytes) -> None: ...
    def function(self, name: str, shared_bytes: int) -> int: ...
    def resources(self, function: int) -> list[int]:
        """Return registers and bytes of local memory per thread, and static shared memory."""
    def launch(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared_bytes: int,
        stream: int,
        arguments: Sequence[int],
        early: bool = False,
    ) -> None: ...

def cuda_compute_capability(device: int) -> int: ...
def cuda_driver_version() -> int:
    """Return the version of CUDA the driver is made for, as 1000 * major + 10 * minor."""
