"""The C interface through ctypes, with ranks in threads that exchange ghosts."""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mdcg

Array = NDArray[Any]
_P, _I64, _SIZE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, _P, _P, ctypes.c_int, ctypes.c_int)

SUM = ctypes.CFUNCTYPE(ctypes.c_int, _P, _P, _I64)
EXCHANGE_ROWS = ctypes.CFUNCTYPE(ctypes.c_int, _P, _P, _P, ctypes.c_int)


class Struct(ctypes.Structure):
    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Options(Struct):
    _fields_ = [
        ("size", _SIZE),
        ("device", ctypes.c_char_p),
        ("kernels", ctypes.c_char_p),
        ("threads", ctypes.c_int),
        ("skin", ctypes.c_double),
        ("precision", ctypes.c_char_p),
        ("dispersion", ctypes.c_char_p),
        ("damping", ctypes.c_char_p),
        ("dispersion_cutoff", ctypes.c_double),
        ("memory", ctypes.c_char_p),
        ("memory_models", ctypes.c_int),
    ]


class ListNumbers(ctypes.Structure):
    _fields_ = [("edges", _I64), ("shifts", _I64)]


class System(Struct):
    _fields_ = [
        ("size", _SIZE),
        ("num_local", _I64),
        ("num_nodes", _I64),
        ("positions", _P),
        ("types", _P),
        ("num_edges", _I64),
        ("sender", _P),
        ("receiver", _P),
        ("shifts", _P),
        ("cell", _P),
        ("periodic", _P),
        ("list", ctypes.POINTER(ListNumbers)),
        ("make_edges", ctypes.c_int),
        ("image", _P),
        ("num_images", _I64),
        ("image_shifts", _P),
        ("skin", ctypes.c_double),
        ("num_copies", _I64),
        ("copy_node", _P),
        ("copy_image", _P),
        ("energy_weights", _P),
        ("num_inner", _I64),
        ("inputs", _P),
    ]


class Batch(Struct):
    _fields_ = [
        ("size", _SIZE),
        ("num_systems", _I64),
        ("first_node", _P),
        ("positions", _P),
        ("types", _P),
        ("cells", _P),
        ("periodic", _P),
        ("on_device", ctypes.c_int),
        ("inputs", _P),
    ]


class Results(Struct):
    _fields_ = [
        ("size", _SIZE),
        ("energy", _P),
        ("energies", _P),
        ("forces", _P),
        ("virial", _P),
        ("virials", _P),
        ("descriptors", _P),
    ]


class Communicator(Struct):
    _fields_ = [
        ("size", _SIZE),
        ("context", _P),
        ("forward", EXCHANGE),
        ("reverse", EXCHANGE),
        ("num_sent", _I64),
        ("sent", _P),
        ("forward_rows", EXCHANGE_ROWS),
        ("reverse_rows", EXCHANGE_ROWS),
        ("rank", ctypes.c_int),
        ("num_ranks", ctypes.c_int),
        ("num_peers", _I64),
        ("peers", _P),
        ("gather", EXCHANGE_ROWS),
        ("sum", SUM),
    ]


def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(Path(mdcg.__file__).parent / "libmdcg.so"))
    lib.mdcg_last_error.restype = lib.mdcg_report.restype = ctypes.c_char_p
    return lib


class Rank:
    """A model and a part of the nodes; `local` and `ghosts` are indices in the whole system."""

    def __init__(
        self,
        path: str,
        local: Array,
        ghosts: Array,
        threads: int = 1,
        device: str = "cpu",
        kernels: str = "generic",
    ) -> None:
        self.lib = library()
        self.local, self.ghosts = local, ghosts
        self.num_inner = 0
        self.nodes = np.concatenate([local, ghosts]).astype(np.int64)
        self.model = _P()
        self.list = ListNumbers()
        self.open(path, self.model, device=device, kernels=kernels, threads=threads)

    def open(
        self,
        path: str,
        model: Any,
        *,
        device: str,
        kernels: str,
        threads: int = 1,
        precision: str = "",
    ) -> None:
        options = Options(
            device=device.encode(),
            kernels=kernels.encode(),
            threads=threads,
            precision=precision.encode(),
        )
        self.check(self.lib.mdcg_open(path.encode(), ctypes.byref(options), ctypes.byref(model)))

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.lib.mdcg_last_error().decode())

    def report(self) -> dict[str, Any]:
        return dict(json.loads(self.lib.mdcg_report(self.model).decode()))

    def close(self) -> None:
        self.lib.mdcg_close(self.model)

    def evaluate(
        self,
        g: dict[str, Array],
        exchange: Any,
        want: tuple[str, ...],
        same_edges: bool = False,
        sent: Array | None = None,
        peers: Array | None = None,
        numbers: ListNumbers | None = None,
    ) -> dict[str, Array]:
        """Evaluate the edges whose receivers are local. Senders are local or ghosts.

        `same_edges` says that they are the edges of the last call; `numbers` replace the numbers
        that identify the list. With "image" and "image_shifts" in `g`, edges have shifts. `sent`
        are the rows to exchange. With "make_edges" the engine makes the edges, and with "copy_node"
        and "copy_image" also the edges of copies. `peers` are rows of mdcg_peer, for rank 0 of 2.
        """
        number = np.full(len(g["positions"]), -1, dtype=np.int64)
        number[self.nodes] = np.arange(len(self.nodes))
        mine = np.isin(g["receiver"], self.local)
        sender = np.ascontiguousarray(number[g["sender"][mine]], dtype=np.int32)
        receiver = np.ascontiguousarray(number[g["receiver"][mine]], dtype=np.int32)
        assert (sender >= 0).all()
        positions = np.ascontiguousarray(g["positions"][self.nodes])
        types = np.ascontiguousarray(g["types"][self.nodes])
        n = len(self.nodes)
        shapes = {
            "energy": (1,),
            "energies": (len(self.local),),
            "forces": (n, 3),
            "virial": (3, 3),
            "virials": (n, 3, 3),
        }
        out = {name: np.zeros(shapes[name]) for name in want}
        if numbers is None:
            numbers = self.list
            numbers.edges, numbers.shifts = numbers.edges if same_edges else 0, 0
        system = System(
            num_local=len(self.local),
            num_nodes=n,
            positions=positions.ctypes.data,
            types=types.ctypes.data,
            num_edges=len(sender),
            sender=sender.ctypes.data,
            receiver=receiver.ctypes.data,
            list=ctypes.pointer(numbers),
            num_inner=self.num_inner,
        )
        if "inputs" in g:
            values = np.ascontiguousarray(g["inputs"], dtype=np.float64)
            system.inputs = values.ctypes.data
        if "image" in g:
            image = np.ascontiguousarray(g["image"][mine], dtype=np.int32)
            shifts = np.ascontiguousarray(g["image_shifts"], dtype=np.float64)
            system.image = image.ctypes.data
            system.num_images, system.image_shifts = len(shifts), shifts.ctypes.data
        if "copy_node" in g:
            copies = [np.ascontiguousarray(g[f"copy_{k}"], np.int32) for k in ("node", "image")]
            table = np.ascontiguousarray(g["image_shifts"], dtype=np.float64)
            system.num_edges, system.sender, system.receiver = 0, None, None
            system.make_edges, system.skin, system.num_copies = 1, g["skin"], len(copies[0])
            system.copy_node, system.copy_image = (c.ctypes.data for c in copies)
            system.num_images, system.image_shifts = len(table), table.ctypes.data
        if "cell" in g:
            cell = np.ascontiguousarray(g["cell"], dtype=np.float64)
            system.cell = cell.ctypes.data
        if g.get("make_edges"):
            system.num_edges, system.sender, system.receiver = 0, None, None
            system.make_edges = 1
        results = Results(**{name: array.ctypes.data for name, array in out.items()})
        communicator = exchange and Communicator(
            forward=EXCHANGE(lambda c, *a: exchange(self, "forward", *a)),
            reverse=EXCHANGE(lambda c, *a: exchange(self, "reverse", *a)),
            sum=SUM(lambda c, *a: exchange.sum(*a)),
        )
        if communicator and sent is not None:
            sent = np.ascontiguousarray(sent, dtype=np.int64)
            self.sent = sent
            communicator.num_sent, communicator.sent = len(sent), sent.ctypes.data
            communicator.forward_rows = EXCHANGE_ROWS(
                lambda c, rows, ghosts, size: exchange.rows(self, "forward", rows, ghosts, size)
            )
            communicator.reverse_rows = EXCHANGE_ROWS(
                lambda c, ghosts, rows, size: exchange.rows(self, "reverse", rows, ghosts, size)
            )
        if communicator and peers is not None:
            peers = np.ascontiguousarray(peers, dtype=np.int64)  # the rank needs 8 bytes, too
            communicator.num_ranks = 2
            communicator.num_peers, communicator.peers = len(peers), peers.ctypes.data
            communicator.gather = EXCHANGE_ROWS(lambda c, *mine: exchange.gather(*mine))
        status = self.lib.mdcg_evaluate(
            self.model,
            ctypes.byref(system),
            ctypes.byref(communicator) if communicator else None,
            ctypes.byref(results),
        )
        self.check(status)
        return out


class Exchange:
    """Exchanges rows of ranks in threads through one array of the whole system."""

    def __init__(self, ranks: int, nodes: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.lock = threading.Lock()
        self.nodes = nodes
        self.shared: Array = np.zeros(0)
        self.calls: list[str] = []
        self.row_bytes = self.flag = 0

    def __call__(self, rank: Rank, kind: str, rows: int, width: int, itemsize: int) -> int:
        dtype = {4: ctypes.c_float, 8: ctypes.c_double}[itemsize]
        array = np.ctypeslib.as_array(
            ctypes.cast(rows or 1, ctypes.POINTER(dtype)), shape=(len(rank.nodes), width)
        )
        count = len(rank.local)
        if self.barrier.wait() == 0:
            self.shared = np.zeros((self.nodes, width))
            self.calls.append(kind)
        self.barrier.wait()
        with self.lock:
            if kind == "forward":
                self.shared[rank.local] = array[:count]
            else:
                np.add.at(self.shared, rank.ghosts, array[count:])
        self.barrier.wait()
        if kind == "forward":
            array[count:] = self.shared[rank.ghosts]
        else:
            array[:count] += self.shared[rank.local]
        self.barrier.wait()
        return 0

    def sum(self, values: int, count: int) -> int:
        """Replace the integers of each rank by their sum."""
        array = np.ctypeslib.as_array(ctypes.cast(values, ctypes.POINTER(_I64)), shape=(count,))
        if self.barrier.wait() == 0:
            self.shared = np.zeros(count, np.int64)
            self.calls.append("sum")
        self.barrier.wait()
        with self.lock:
            self.shared += array
        self.barrier.wait()
        array[:] = self.shared  # the next call waits before it changes these
        return 0

    def rows(self, rank: Rank, kind: str, sent: int, ghosts: int, size: int) -> int:
        """Exchange only the rows of `rank.sent`; equal ones share the sum that comes back."""
        nodes = rank.sent
        self.row_bytes = size

        def array(address: int, count: int) -> Array:
            items = ctypes.cast(address or 1, ctypes.POINTER(ctypes.c_double))
            return np.ctypeslib.as_array(items, shape=(count, size // 8))

        mine, others = array(sent, len(nodes)), array(ghosts, len(rank.ghosts))
        there = nodes >= 0
        if self.barrier.wait() == 0:
            self.shared = np.zeros((self.nodes, size // 8))
            self.calls.append(kind + "_rows")
        self.barrier.wait()
        with self.lock:
            if kind == "forward":
                assert not mine[~there].any()
                self.shared[rank.local[nodes[there]]] = mine[there]
            else:
                np.add.at(self.shared, rank.ghosts, others)
        self.barrier.wait()
        if kind == "forward":
            others[:] = self.shared[rank.ghosts]
        else:
            count = np.bincount(nodes[there], minlength=len(rank.local))[nodes[there]]
            mine[~there] = np.nan  # rows of no node
            mine[there] = self.shared[rank.local[nodes[there]]] / count[:, None]
        self.barrier.wait()
        return 0
