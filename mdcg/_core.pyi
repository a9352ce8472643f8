"""Types of the compiled core (csrc/python)."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

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

class GeometryError(ValueError):
    """Positions or a cell that no neighbour list can be made of."""

class NeighborList:
    """Directed edges up to cutoff + skin, sorted by receiver, sender, cell; arrays are copies."""

    def __init__(self, cutoff: float, skin: float) -> None: ...
    def update(
        self,
        positions: NDArray[np.float64],
        cell: NDArray[np.float64] | None,
        periodic: Sequence[bool] | NDArray[np.bool_],
        threads: int = 0,
    ) -> Literal["none", "shifts", "edges"]:
        """Return what has changed: nothing, the shifts (with the cell), or the edges."""
    def reset(self) -> None: ...
    def release(self) -> None: ...
    @property
    def row_ptr(self) -> NDArray[np.int64]: ...
    @property
    def sender(self) -> NDArray[np.int32]: ...
    @property
    def receiver(self) -> NDArray[np.int32]: ...
    @property
    def shifts(self) -> NDArray[np.float64]: ...
    def cell_shifts(self) -> NDArray[np.int32]: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def cutoff(self) -> float: ...
    @property
    def skin(self) -> float: ...
    @property
    def num_builds(self) -> int: ...
    @property
    def num_updates(self) -> int: ...

class EngineError(RuntimeError):
    """What the engine refused; ``kind`` is a number of mdcg_status (csrc/include/mdcg.h)."""

    kind: int

class Model:
    """A package, opened; threads take it in turns."""

    def __init__(
        self,
        package: str | Model,
        *,
        device: str = "cpu",
        kernels: str = "auto",
        threads: int = 0,
        skin: float = 1.0,
        precision: str = "",
        dispersion: str = "",
        damping: str = "bj",
        dispersion_cutoff: float = 21.16708843612,
    ) -> None:
        """Open a package, or with `dispersion` the dispersion that it holds.

        A model in place of a path is one whose package is opened once more, as it was read then.
        """
    def evaluate(
        self,
        positions: NDArray[np.float64],
        types: NDArray[np.integer[Any]],
        *,
        cell: NDArray[np.float64] | None = None,
        periodic: Sequence[bool] | NDArray[np.bool_] = (False, False, False),
        edges: NeighborList
        | tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], NDArray[np.float64]]
        | None = None,
        same_edges: bool = False,
        same_shifts: bool = False,
        forces: bool = True,
        virial: bool = False,
        virials: bool = False,
        descriptors: bool = False,
        energy_weights: NDArray[np.float64] | None = None,
    ) -> dict[str, Any]:
        """Return energy (float), energies and what was asked for (arrays) by name.

        `same_edges` and `same_shifts` say that edges given as arrays are those of the last call;
        a `NeighborList` says it by itself. What the model still holds of them is not read again.
        With `energy_weights`, one for each node, forces and virials are derivatives of the weighted
        sum of energies.
        """
    def evaluate_batch(
        self,
        first_node: NDArray[np.integer[Any]],
        types: NDArray[np.integer[Any]],
        positions: NDArray[np.float64] | None = None,
        *,
        cells: NDArray[np.float64] | None = None,
        periodic: NDArray[np.bool_] | None = None,
        forces: bool = True,
        virial: bool = False,
        virials: bool = False,
        descriptors: bool = False,
        addresses: dict[str, int] = ...,
    ) -> dict[str, Any]:
        """Evaluate systems that do not interact; energy and virial have a row for each.

        Without `positions` these are read, and the results written, at `addresses` in the memory of
        the model's device, by the names of the results.
        """
    def release(self) -> None: ...
    def prepare(self) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    def report(self) -> str: ...
    def summary(self) -> str: ...
    @property
    def has_energy(self) -> bool: ...
    @property
    def digest(self) -> str: ...
    @property
    def manifest(self) -> str: ...
    @property
    def type_names(self) -> list[str]: ...
    @property
    def atomic_numbers(self) -> list[int]: ...
    @property
    def fixed_inputs(self) -> dict[str, int]: ...
    @property
    def r_max(self) -> float: ...
    @property
    def architecture(self) -> str: ...
    @property
    def model_class(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_exchanges(self) -> int: ...
    @property
    def descriptor_width(self) -> int: ...

class StopFlag:
    """Ends, once set, the processes and locks that threads wait for."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

def run_process(
    command: list[str], seconds: int = 0, stop: StopFlag | None = None
) -> tuple[int, bytes]:
    """Return the exit status of a program, -1 if a signal ended it, and what it printed."""

def set_notice(tell: Callable[[str], object]) -> None:
    """Set what takes the sentences that users should read while a call goes on."""

class FileLock:
    """The right to make kernels; see csrc/core/kernel_cache.hpp."""

    def __init__(self, path: str, stop: StopFlag | None = None) -> None: ...
    @property
    def held(self) -> bool: ...
    def release(self) -> None: ...

def host_target(level: str) -> str: ...
def host_name() -> str: ...
def kernel_cache_root() -> str: ...
def kernel_problem(path: str) -> str:
    """Return all of a package that its kernels depend on, as JSON, after checking the package."""

def kernel_key(problem: str, precision: str = "") -> str: ...
def kernel_generator() -> str: ...

class CachedKernel:
    """A binary of the cache: what was checked is what is loaded."""

    @property
    def folder(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def binary(self) -> bytes: ...
    def load(self) -> SharedLibrary: ...

class KernelCache:
    """Files of the cache, see csrc/core/kernel_cache.hpp."""

    def __init__(self, target: str, binary: str) -> None: ...
    def find(self, key: str) -> CachedKernel | None: ...
    @staticmethod
    def discard(folder: str) -> None: ...
    def writable_folder(self) -> str: ...
    def lock_file(self, folder: str, key: str) -> str: ...
    @staticmethod
    def warning() -> str: ...

def arrays_agree(one: NDArray[Any], other: NDArray[Any], tolerance: float) -> bool:
    """Return whether arrays have the same shape and, up to the tolerance, the same numbers.

    Arrays of the same bytes agree, also where these stand for NaN.
    """

def wigner_3j(l1: int, l2: int, l3: int) -> NDArray[np.float64]: ...
def instruction_set_level() -> str: ...
def read_package(path: str) -> tuple[str, dict[str, NDArray[Any]]]: ...
def check_package_bytes(data: bytes, name: str) -> None: ...
def sha256(data: bytes, *, plain: bool = ...) -> str: ...
def l2_cache_bytes() -> int: ...

class CudaError(RuntimeError):
    """What the CUDA driver refused; ``code`` is its number."""

    code: int

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

def cuda_kernel_sources(
    path: str, target: str, precision: str, passes: str
) -> list[tuple[str, str, str]]:
    """Return key, name and text of the engine's own kernels that a package runs on such devices."""

def cuda_compute_capability(device: int) -> int: ...
def cuda_driver_version() -> int:
    """Return the version of CUDA the driver is made for, as 1000 * major + 10 * minor."""

def cuda_available_version() -> int:
    """Return the same without starting the driver; 0 where there is none."""
