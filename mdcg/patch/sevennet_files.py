"""SevenNet models: their files, properties, inputs and outputs."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..errors import CheckpointError, installed_version
from ._frameworks import default_dtype, import_sevennet


def is_sevennet(model: torch.nn.Module) -> bool:
    """Whether a model is a complete SevenNet model."""
    return type(model).__name__ == "AtomGraphSequential"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's notices about accelerators and conversions from a user's terminal."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def load_sevennet_checkpoint(path: Path) -> torch.nn.Module:
    """Load the model of a checkpoint, which the library repairs where it is old.

    CheckpointError says why the library cannot build the model.
    """
    import_sevennet()
    from sevenn.checkpoint import SevenNetCheckpoint

    try:
        with _quiet(), torch.random.fork_rng(devices=[]):
            checkpoint = SevenNetCheckpoint(path)
            state = checkpoint.model_state_dict
            dtype = next(t.dtype for t in state.values() if t.is_floating_point())
            # models of accelerators become models of e3nn
            with default_dtype(dtype):
                model: torch.nn.Module = checkpoint.build_model()
    except Exception as error:  # the configuration can name anything
        text = str(error).strip().splitlines() or [""]
        raise CheckpointError(
            f"{path} cannot be read by SevenNet {installed_version('sevenn')} "
            f"({type(error).__name__}: {text[0]})"
        ) from error
    model = model.to(dtype).eval()
    compute_in(model, dtype)
    return model


def sevennet_elements(model: Any) -> tuple[int, ...]:
    """Return the atomic numbers, in the order of the types; 0 of universal models is none."""
    return tuple(z for z in sorted(model.type_map, key=model.type_map.__getitem__) if z > 0)


def sevennet_modals(model: Any) -> tuple[str, ...]:
    """Return the names of the fidelities, in the order of their numbers."""
    found = model.modal_map or {}
    return tuple(sorted(found, key=found.__getitem__))


def compute_in(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Make a SevenNet model compute in the dtype of its weights throughout.

    Its one-hot encodings are float32, and so are the 3j symbols, and their products with path
    weights, that its convolutions were built with.
    """
    for module in list(model.modules()):
        if type(module).__name__ == "OnehotEmbedding":
            module.__dict__.pop("forward", None)
        if dtype != torch.float64:
            continue
        if type(module).__name__ == "OnehotEmbedding":
            module.forward = _with_double_one_hot(module, module.forward)
        elif type(module).__name__ == "IrrepsConvolution":
            _renew_product(module)


def _renew_product(convolution: Any) -> None:
    """Build the tensor product of a convolution, which has no weights of its own, in float64."""
    before = convolution.convolution
    with default_dtype(torch.float64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        product = convolution.convolution_cls(**convolution.convolution_kwargs)
    convolution.convolution = product.to(before.output_mask.device).train(before.training)


def _with_double_one_hot(module: Any, original: Any) -> Any:
    def forward(data: Any) -> Any:
        data = original(data)
        for key in (module.key_output, module.key_additional_output):
            if key is not None:
                data[key] = data[key].double()
        return data

    return forward


def sevennet_batch(
    model: Any,
    dtype: torch.dtype,
    atomic_numbers: ArrayLike,  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike,  # [3, 3], rows are vectors, Å
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers
    unit_shifts: ArrayLike,  # [num_edges, 3], integers
    modal: str | None,
) -> Any:
    """Build the argument of a SevenNet model's ``forward`` for one structure.

    Edges are in the format of :func:`~mdcg.patch.models.neighbor_list`; SevenNet's row 0 has the
    receivers, and its vectors point to the senders.
    """
    from sevenn.atom_graph_data import AtomGraphData

    points, edges = np.asarray(positions, np.float64), np.asarray(edge_index, np.int64)
    shifts = np.asarray(unit_shifts, np.float64) @ np.asarray(cell, np.float64)
    vectors = points[edges[0]] - points[edges[1]] - shifts
    numbers = torch.from_numpy(np.array(atomic_numbers, np.int64))
    volume = torch.tensor([abs(np.linalg.det(np.asarray(cell)))], dtype=dtype)
    batched = bool(model.is_batch_data)
    data = AtomGraphData(
        x=numbers,
        atomic_numbers=numbers,
        pos=torch.from_numpy(points).to(dtype),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges[::-1])),
        edge_vec=torch.from_numpy(vectors).to(dtype),
        cell_volume=volume if batched else volume[0],
        num_atoms=torch.tensor([len(numbers)]),
        batch=torch.zeros(len(numbers), dtype=torch.int64),
    )
    if model.modal_map:
        data["data_modality"] = [modal] if batched else modal
    return data


def sevennet_outputs(found: Mapping[str, torch.Tensor], periodic: bool) -> dict[str, torch.Tensor]:
    """Return the outputs of a SevenNet model under MACE's names."""
    outputs = {
        "energy": found["inferred_total_energy"].reshape(-1),
        "forces": found["inferred_force"],
    }
    if periodic:
        xx, yy, zz, xy, yz, zx = -found["inferred_stress"].reshape(6)
        outputs["stress"] = torch.stack([xx, xy, zx, xy, yy, yz, zx, yz, zz]).reshape(1, 3, 3)
    return outputs
