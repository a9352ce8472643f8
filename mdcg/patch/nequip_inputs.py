"""The inputs of NequIP models: the dictionary that ``forward`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..errors import printable
from .mace_inputs import ModelInfo, check_shapes


def is_nequip(model: torch.nn.Module) -> bool:
    """Whether a model is a complete NequIP model, from a package or not."""
    return bool(getattr(type(model), "is_graph_model", False))


def nequip_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a NequIP model; raise TypeError if it has no metadata."""
    metadata: Any = getattr(model, "metadata", None)
    if not metadata or "r_max" not in metadata or "type_names" not in metadata:
        raise TypeError(
            f"{type(model).__name__} has no metadata with r_max and type_names, expected a model "
            "built by NequIP 0.7 or newer"
        )
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)
    names = tuple(map(printable, str(metadata["type_names"]).split()))
    text = metadata.get("per_edge_type_cutoff")
    cutoffs = None
    if text:
        cutoffs = np.array([float(part) for part in str(text).split()]).reshape(2 * (len(names),))
    return ModelInfo(
        model_class=printable(type(model).__name__),
        atomic_numbers=(),
        r_max=float(metadata["r_max"]),
        heads=("Default",),
        dtype=_dtype_of(model),
        device=torch.device("cpu") if reference is None else reference.device,
        graph_features={},
        type_names=names,
        cutoffs=cutoffs,
    )


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    # parameters of scale and shift are float64 in all models
    for module in model.modules():
        product = getattr(module, "tp", None)
        if product is not None and hasattr(product, "output_mask"):
            dtype: torch.dtype = product.output_mask.dtype
            return dtype
    found: torch.dtype = getattr(model, "model_dtype", torch.float32)
    return found


def categorical_fields(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Return lowest and highest value of each structure field that a NequIP model embeds."""
    found: dict[str, tuple[int, int]] = {}
    for module in model.modules():
        first = getattr(module, "categorical_graph_field_embed_shifts", None) or {}
        tables: Any = getattr(module, "categorical_graph_field_embed_modules", {})
        for name, lowest in first.items():
            found[name] = (int(lowest), int(lowest) + len(tables[name].weight) - 1)
    return found


def nequip_batch(
    info: ModelInfo,
    types: ArrayLike,  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike | None,  # [3, 3], rows are vectors, Å
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers
    unit_shifts: ArrayLike,  # [num_edges, 3], integers
) -> dict[str, torch.Tensor]:
    """Build the ``data`` argument of a NequIP model's ``forward`` for one structure.

    Edges are those of :func:`~mdcg.patch.mace_inputs.neighbor_list`; NequIP has their rows in the
    other order. Without a cell, the model gives no stress.
    """
    kinds = np.asarray(types, dtype=np.int64).reshape(-1)
    if len(kinds) and not (kinds.min() >= 0 and kinds.max() < len(info.type_names)):
        raise ValueError(
            f"types are {kinds.min()} to {kinds.max()}, expected 0 to {len(info.type_names) - 1} "
            f"for the types {', '.join(info.type_names)}"
        )
    points = np.array(positions, dtype=np.float64)
    edges = np.asarray(edge_index, dtype=np.int64)
    shifts = -np.asarray(unit_shifts, dtype=np.float64)  # NequIP's edges point to the sender
    box = np.zeros((3, 3)) if cell is None else np.array(cell, dtype=np.float64)
    check_shapes(len(kinds), points, edges, shifts, box)
    batch = {
        "pos": torch.from_numpy(points),
        "atom_types": torch.from_numpy(kinds.copy()),
        "edge_index": torch.from_numpy(np.ascontiguousarray(edges[::-1])),
    }
    if cell is not None:
        batch["cell"] = torch.from_numpy(box).reshape(1, 3, 3)
        batch["edge_cell_shift"] = torch.from_numpy(shifts)
    return {name: value.to(info.device) for name, value in batch.items()}


@contextmanager
def without_derivatives(model: torch.nn.Module, wanted: bool) -> Iterator[None]:
    """Switch off forces and stress of a NequIP model for a while, if `wanted`."""
    if not wanted:
        yield
        return
    outputs: Sequence[Any] = [m for m in model.modules() if "do_derivatives" in m.__dict__]
    before = [output.do_derivatives for output in outputs]
    try:
        for output in outputs:
            output.do_derivatives = False
        yield
    finally:
        for output, value in zip(outputs, before, strict=True):
            output.do_derivatives = value


def gives_forces(model: torch.nn.Module) -> bool:
    return any(m.__dict__.get("do_derivatives", False) for m in model.modules())


def as_outputs(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs of a NequIP model under MACE's names."""
    names = {
        "total_energy": "energy",
        "forces": "forces",
        "virial": "virials",
        "stress": "stress",
    }
    outputs = {new: found[old] for old, new in names.items() if old in found and found[old].numel()}
    if "energy" in outputs:
        outputs["energy"] = outputs["energy"].reshape(-1)  # one per structure
    return outputs
