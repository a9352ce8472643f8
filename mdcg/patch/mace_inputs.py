"""The inputs of MACE models: the dictionary that ``forward`` takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from .. import _core
from ..errors import printable
from .record import model_record


@dataclass(frozen=True)
class ModelInfo:
    """The properties of a MACE or NequIP model that its inputs depend on."""

    model_class: str  # such as "ScaleShiftMACE"; "GraphModel" for all models of NequIP
    atomic_numbers: tuple[int, ...]  # in the order of MACE's one-hot columns; empty for NequIP
    r_max: float  # cutoff in Å
    heads: tuple[str, ...]  # ("Default",) for NequIP, and for MACE files older than heads
    # MACE: of the parameters. NequIP: of the network; positions and energies are always float64.
    dtype: torch.dtype
    device: torch.device  # of the parameters
    # Extra inputs of a MACE model (`embedding_specs`): "graph" or "node", "categorical" or
    # "continuous", number of columns.
    graph_features: Mapping[str, tuple[str, str, int]]
    default_head: str | None = None  # the one that mdcg-patch was told to make the default
    type_names: tuple[str, ...] = ()  # of NequIP's atom types, in the order of their numbers
    # [num_types, num_types], in Å for a receiver of the first type and a sender of the second,
    # where NequIP's types have different cutoffs
    cutoffs: NDArray[np.float64] | None = None

    @property
    def is_nequip(self) -> bool:
        return bool(self.type_names)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of atoms that structures are made of: atomic numbers, or types of NequIP."""
        return self.atomic_numbers or tuple(range(len(self.type_names)))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Chemical symbols of the elements, or names of the types."""
        from ase.data import chemical_symbols

        return self.type_names or tuple(chemical_symbols[z] for z in self.atomic_numbers)

    def head_index(self, head: str | None) -> int:
        """Return the position of a head; None stands for the default or the only one."""
        names = ", ".join(self.heads)
        if head is None:
            head = self.default_head
        if head is None:
            if len(self.heads) > 1:
                raise ValueError(
                    f"the model has {len(self.heads)} heads ({names}): name one with head="
                )
            return 0
        if head not in self.heads:
            if self.is_nequip:
                raise ValueError(f"head {head!r} is not in the model: NequIP models have no heads")
            raise ValueError(f"head {head!r} is not in the model, expected one of: {names}")
        return self.heads.index(head)

    def species(self, atomic_numbers: ArrayLike) -> NDArray[np.int64]:
        """Return the one-hot column of every atom; raise ValueError for an unknown element."""
        numbers = np.asarray(atomic_numbers, dtype=np.int64).reshape(-1)
        known = np.asarray(self.atomic_numbers, dtype=np.int64)
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known, numbers, sorter=order)
        columns = order[np.minimum(place, len(known) - 1)]
        wrong = known[columns] != numbers
        if wrong.any():
            got = ", ".join(str(z) for z in sorted(set(numbers[wrong].tolist())))
            want = ", ".join(str(z) for z in self.atomic_numbers)
            raise ValueError(f"atomic number {got} is not in the model, expected any of: {want}")
        return np.asarray(columns, dtype=np.int64)


def mace_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a MACE model, or raise TypeError."""
    for name in ("atomic_numbers", "r_max"):
        if not hasattr(model, name):
            raise TypeError(
                f"{type(model).__name__} has no {name}, expected a MACE or NequIP model"
            )
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)
    numbers: Any = model.atomic_numbers
    r_max: Any = model.r_max
    heads = getattr(model, "heads", None) or ["Default"]
    return ModelInfo(
        model_class=printable(type(model).__name__),
        atomic_numbers=tuple(int(z) for z in numbers),
        r_max=float(r_max),
        heads=tuple("Default" if head is None else printable(str(head)) for head in heads),
        dtype=torch.float32 if reference is None else reference.dtype,
        device=torch.device("cpu") if reference is None else reference.device,
        graph_features=_graph_features(model),
        default_head=model_record(model).get("head"),
    )


def _graph_features(model: torch.nn.Module) -> dict[str, tuple[str, str, int]]:
    specs: Mapping[str, Mapping[str, Any]] = getattr(model, "embedding_specs", None) or {}
    return {
        name: (str(spec["per"]), str(spec["type"]), int(spec.get("in_dim", 1)))
        for name, spec in specs.items()
    }


def check_shapes(n_nodes: int, positions: Any, edge_index: Any, shifts: Any, cell: Any) -> None:
    """Raise ValueError if an array of a structure has the wrong shape."""
    n_edges = edge_index.shape[-1]
    for name, array, want in (
        ("positions", positions, (n_nodes, 3)),
        ("edge_index", edge_index, (2, n_edges)),
        ("unit_shifts", shifts, (n_edges, 3)),
        ("cell", cell, (3, 3)),
    ):
        if tuple(array.shape) != want:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {want}")


def neighbor_list(
    positions: ArrayLike,  # [num_nodes, 3], Å; need not be wrapped into the cell
    cell: ArrayLike,  # [3, 3], rows are vectors, Å; those of open directions are not used
    pbc: Sequence[bool],
    cutoff: float,  # Å
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs within a cutoff, in both directions and with periodic images.

    The result is ``edge_index`` [2, num_edges], row 0 senders i and row 1 receivers j, and
    ``unit_shifts`` [num_edges, 3], integers S for edge vectors ``r_j - r_i + S @ cell``.
    """
    points = np.ascontiguousarray(positions, dtype=np.float64).reshape(-1, 3)
    near = _core.NeighborList(float(cutoff), 0.0)
    near.update(points, np.asarray(cell, dtype=np.float64), [bool(p) for p in pbc])
    edge_index = np.stack([near.sender, near.receiver]).astype(np.int64)
    vectors = points[edge_index[1]] - points[edge_index[0]] + near.shifts
    # the list reaches a little beyond the cutoff, so that rounding cannot lose an edge
    kept = np.einsum("ij,ij->i", vectors, vectors) < cutoff**2
    return edge_index[:, kept], near.cell_shifts()[kept].astype(np.int64)


def complete_cell(cell: ArrayLike, pbc: Sequence[bool]) -> NDArray[np.float64]:
    """Return a cell whose open directions are unit vectors, normal to the periodic ones."""
    box = np.array(cell, dtype=np.float64).reshape(3, 3)
    periodic = [axis for axis in range(3) if pbc[axis]]
    if np.linalg.matrix_rank(box[periodic]) < len(periodic):
        raise ValueError(
            f"cell {box.tolist()} has no volume along its periodic directions {periodic}"
        )
    # the null space of the periodic rows gives the missing directions
    _, _, basis = np.linalg.svd(np.vstack([box[periodic], np.zeros((1, 3))]))
    missing = iter(basis[len(periodic) :])
    for axis in range(3):
        if axis not in periodic:
            box[axis] = next(missing)
    return box


def mace_batch(
    info: ModelInfo,
    atomic_numbers: ArrayLike,  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike,  # [3, 3], rows are vectors, Å
    pbc: Sequence[bool],
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers, any order
    unit_shifts: ArrayLike,  # [num_edges, 3], integers, zero along open directions
    *,
    head: str | None = None,  # needed if the model has several and no default
    extras: Mapping[str, torch.Tensor] | None = None,  # further entries, or replacements
) -> dict[str, torch.Tensor]:
    """Build the ``data`` argument of a MACE model's ``forward`` for one structure.

    ``forward`` overwrites the entries ``positions`` and ``shifts``: pass ``dict(batch)`` to use a
    batch twice. The determinant of the cell is the volume that the model divides the virial by;
    stress is zero where there is none.
    """
    dtype, device = info.dtype, info.device
    species = torch.from_numpy(info.species(atomic_numbers))
    n_nodes = len(species)
    points = torch.as_tensor(np.array(positions, dtype=np.float64))
    edges = torch.as_tensor(np.asarray(edge_index, dtype=np.int64))
    shifts = torch.as_tensor(np.asarray(unit_shifts, dtype=np.float64))
    box = torch.as_tensor(np.array(cell, dtype=np.float64))
    check_shapes(n_nodes, points, edges, shifts, box)
    volume = torch.linalg.det(box)
    has_volume = math.isfinite(float(volume)) and abs(float(volume)) > 0.0
    reciprocal = 2 * math.pi * torch.linalg.inv(box.mT) if has_volume else torch.zeros_like(box)

    def real(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype=dtype, device=device)

    one_hot = torch.zeros(n_nodes, len(info.atomic_numbers), dtype=torch.float64)
    one_hot[torch.arange(n_nodes), species] = 1.0
    batch = {
        "positions": real(points),
        "node_attrs": real(one_hot),
        "edge_index": edges.to(device),
        "shifts": real(shifts @ box),
        "unit_shifts": real(shifts),
        "cell": real(box),
        "batch": torch.zeros(n_nodes, dtype=torch.int64, device=device),
        "ptr": torch.tensor([0, n_nodes], dtype=torch.int64, device=device),
        "head": torch.tensor([info.head_index(head)], dtype=torch.int64, device=device),
        "pbc": torch.tensor([[bool(p) for p in pbc]], device=device),
        "volume": real(volume.reshape(1)),
        "rcell": real(reciprocal),
        "charges": real(torch.zeros(n_nodes)),
        "total_charge": real(torch.zeros(1)),
        "total_spin": real(torch.ones(1)),
        "external_field": real(torch.zeros(1, 3)),
        "fermi_level": real(torch.zeros(1)),
        "density_coefficients": real(torch.zeros(n_nodes, 1)),
    }
    for name, (per, _, width) in info.graph_features.items():
        if name not in batch:
            batch[name] = real(torch.zeros(1) if per == "graph" else torch.zeros(n_nodes, width))
    if extras:
        batch.update(extras)
    return batch
