"""Nequix models: their files, elements, inputs and outputs."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import CheckpointError, MissingDependencyError, installed_version
from ._frameworks import default_dtype, import_e3nn_o3, import_nequix

#: Attribute of the model with the atomic numbers of its file, which its class does not keep.
_NUMBERS = "mdcg_atomic_numbers"
#: Entries that the configuration of every file has, and those that a message may name.
KEYS = {"atomic_numbers", "hidden_irreps", "radial_mlp_size", "avg_n_neighbors"}
_MOST_TEXT = 1_000_000  # characters of a configuration; real ones have some thousand


def is_nequix(model: torch.nn.Module) -> bool:
    """Whether a model is a complete Nequix model."""
    return type(model).__name__ == "NequixTorch"


def has_nequix_head(path: Path) -> bool:
    """Whether a file begins with a line that is the configuration of a Nequix model."""
    with path.open("rb") as file:
        line = file.readline(_MOST_TEXT)
    try:
        config = json.loads(line)
    except ValueError:
        return False
    return isinstance(config, dict) and config.keys() >= KEYS


def load_nequix_checkpoint(path: Path) -> torch.nn.Module:
    """Load the model of a file of Nequix: weights of jax (``.nqx``) or of torch (``.pt``).

    Nothing in such a file is run. CheckpointError says why the library cannot build the model.
    """
    import_nequix()
    with path.open("rb") as file:
        config = json.loads(file.readline())
        of_jax = file.read(6) == b"\x93NUMPY"
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with torch.random.fork_rng(devices=[]), default_dtype(torch.float32):
                model: torch.nn.Module = (_of_jax if of_jax else _of_torch)(path)
    except MissingDependencyError:
        raise
    except Exception as error:  # the configuration can hold anything
        text = str(error).strip().splitlines() or [""]
        raise CheckpointError(
            f"{path} cannot be read by Nequix {installed_version('nequix')} "
            f"({type(error).__name__}: {text[0][:200]})"
        ) from error
    # the library numbers species in ascending order
    setattr(model, _NUMBERS, tuple(sorted(map(int, config["atomic_numbers"]))))
    return model.eval()


def _of_torch(path: Path) -> Any:
    from nequix.torch_impl import model as nequix

    return nequix.load_model(str(path))[0]


def _of_jax(path: Path) -> Any:
    import_nequix("torch_impl.utils")
    from nequix.model import load_model
    from nequix.torch_impl.utils import convert_model_jax_to_torch

    model, config = load_model(str(path))
    numbers = config["atomic_numbers"]
    # energies of atoms are among the weights of jax, and in the configuration of older files only
    energies = np.asarray(model.atom_energies, dtype=np.float64).reshape(-1).tolist()
    config = {**config, "atom_energies": dict(zip(map(str, numbers), energies, strict=True))}
    return convert_model_jax_to_torch(model, config, False)[0]


def nequix_elements(model: torch.nn.Module) -> tuple[int, ...]:
    """Return the atomic numbers, in the order of the species.

    TypeError says that the model did not come from a file that mdcg has read.
    """
    found = getattr(model, _NUMBERS, None)
    if found is None:
        raise TypeError(
            "this NequixTorch has no atomic numbers, which only its file holds: give the file, or "
            "load it with mdcg.load_model"
        )
    return tuple(found)


def compute_in(model: Any, dtype: torch.dtype) -> None:
    """Build the products of a Nequix model, which have no weights, with constants of a dtype."""
    o3 = import_e3nn_o3()
    with default_dtype(dtype), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer in model.layers:
            old = layer.tp
            rows = [(i.i_in1, i.i_in2, i.i_out, i.connection_mode, True) for i in old.instructions]
            layer.tp = o3.TensorProduct(
                old.irreps_in1, old.irreps_in2, old.irreps_out, rows,
                shared_weights=False, internal_weights=False,
            )  # fmt: skip
            product = layer.gate.scalars_gates_vectors_elemwise
            layer.gate.scalars_gates_vectors_elemwise = o3.ElementwiseTensorProduct(
                product.irreps_in1, product.irreps_in2
            )
    model.to(model.atom_energies.device)


def nequix_inputs(
    device: torch.device,
    dtype: torch.dtype,
    species: NDArray[np.int64],  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike | None,  # [3, 3], rows are vectors, Å; None for open systems
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers
    unit_shifts: ArrayLike,  # [num_edges, 3]
) -> dict[str, torch.Tensor | None]:
    """Return the arguments of a Nequix model's ``forward`` for one structure, by name.

    Edges are in the format of :func:`~mdcg.patch.models.neighbor_list`; Nequix's vectors point to
    the senders.
    """

    def real(values: Any) -> torch.Tensor:
        return torch.as_tensor(np.array(values, np.float64)).to(device, dtype)

    def whole(values: Any) -> torch.Tensor:
        return torch.as_tensor(np.array(values, np.int64)).to(device)

    shifts, count = -np.asarray(unit_shifts, np.float64), len(species)
    return {
        "species": whole(species),
        "positions": real(positions),
        "edge_attr": real(shifts),
        "edge_index": whole(edge_index),
        "cell": None if cell is None else real(cell)[None],
        "n_node": whole([count]),
        "n_edge": whole([len(shifts)]),
        "n_graph": whole(np.zeros(count)),
    }


def nequix_outputs(found: tuple[torch.Tensor, ...], has_cell: bool) -> dict[str, torch.Tensor]:
    """Return the outputs of a Nequix model under MACE's names."""
    energies, forces, stress = found
    outputs = {"energy": energies.sum().reshape(1), "node_energy": energies, "forces": forces}
    return outputs | ({"stress": stress} if has_cell else {})
