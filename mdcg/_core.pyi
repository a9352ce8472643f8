"""Types of the compiled core (csrc/python/module.cpp)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__version__: str

class SharedLibrary:
    """A shared library opened at run time."""

    def __init__(self, path: str) -> None: ...
    def symbol(self, name: str) -> int: ...

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
