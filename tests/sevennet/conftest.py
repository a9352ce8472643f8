"""Fixtures: small random SevenNet models, and the trained ones that the library brings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("sevenn") is None:
    pytest.skip("sevenn is not installed: pip install 'mdcg[sevennet]'", allow_module_level=True)

import torch

from mdcg.patch._frameworks import default_dtype, import_sevennet

#: Options of models that give other modules or layers of other shapes.
MODELS: dict[str, dict[str, Any]] = {
    "like the published": {
        "is_parity": False,
        "self_connection_type": "linear",
        "cutoff_function": {"cutoff_function_name": "XPLOR", "cutoff_on": 3.4},
    },
    "of May 2024": {
        "is_parity": False,
        "self_connection_type": "linear",
        "cutoff_function": {"cutoff_function_name": "XPLOR", "cutoff_on": 3.4},
        "_normalize_sph": False,
    },
    "parity": {"cutoff_function": {"cutoff_function_name": "poly_cut", "poly_cut_p_value": 5}},
    "biases": {"use_bias_in_linear": True, "self_connection_type": ["nequip", "linear", "nequip"]},
    "readout of several layers": {
        "readout_as_fcn": True,
        "readout_fcn_hidden_neurons": [6, 5],
        "readout_fcn_activation": "tanh",
    },
    "degrees": {"lmax_edge": 3, "lmax_node": 1, "channel": 6},
    "activations": {
        "act_radial": "ssp",
        "act_scalar": {"e": "ssp", "o": "abs"},
        "act_gate": {"e": "ssp", "o": "abs"},
        "weight_nn_hidden_neurons": [9],
    },
    "one shift": {"shift": -1.25, "scale": 1.75, "conv_denominator": 3.0},
}

MODALS = ["PBE", "R2SCAN", "low"]
#: Options of models of several modals.
MODAL_MODELS: dict[str, dict[str, Any]] = {
    "all": dict.fromkeys(
        (
            "use_modal_node_embedding",
            "use_modal_self_inter_intro",
            "use_modal_self_inter_outro",
            "use_modal_output_block",
            "use_modal_wise_shift",
            "use_modal_wise_scale",
        ),
        True,
    ),
    "shift alone": {"use_modal_wise_shift": True},
    "scale and biases": {
        "use_modal_wise_scale": True,
        "use_modal_self_inter_outro": True,
        "use_bias_in_linear": True,
        "is_parity": False,
        "self_connection_type": "linear",
    },
}


def config_of(symbols: tuple[str, ...] = ("H", "O", "Fe"), **changes: Any) -> dict[str, Any]:
    """Return the configuration of a small model."""
    import_sevennet()
    import sevenn
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.util import chemical_species_preprocess

    count = len(symbols)
    return {
        **DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG,
        **chemical_species_preprocess(list(symbols)),
        "version": sevenn.__version__,
        "cutoff": 4.0,
        "channel": 4,
        "lmax": 2,
        "num_convolution_layer": 3,
        "weight_nn_hidden_neurons": [8, 8],
        "conv_denominator": [3.0, 4.0, 5.0],
        "shift": [-1.5 * n for n in range(count)],
        "scale": [1.0 + 0.25 * n for n in range(count)],
        "train_shift_scale": False,
        "train_denominator": False,
        "use_modality": False,
        **changes,
    }


def modal_config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a small model of several modals."""
    count = len(MODALS)
    by_modal = [[m - 1.5 * n for n in range(3)] for m in range(count)]
    config = config_of(
        **{
            "use_modality": True,
            "_modal_map": {name: number for number, name in enumerate(MODALS)},
            "_number_of_modalities": count,
            **dict.fromkeys(MODAL_MODELS["all"], False),
            **changes,
        }
    )
    if config["use_modal_wise_shift"]:
        config["shift"] = by_modal
    if config["use_modal_wise_scale"]:
        config["scale"] = [[2.0 + x for x in row] for row in by_modal]
    return config


def build_model(
    config: dict[str, Any], dtype: torch.dtype = torch.float64, seed: int = 5
) -> torch.nn.Module:
    """Return a small random model, ready to evaluate."""
    import_sevennet()
    from sevenn.model_build import build_E3_equivariant_model

    from mdcg.patch.sevennet_files import compute_in

    with default_dtype(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = build_E3_equivariant_model(dict(config))
    model = model.to(dtype).eval()
    compute_in(model, dtype)
    return model


def write_checkpoint(path: Path, config: dict[str, Any], **options: Any) -> Path:
    """Write a checkpoint of a small random model, as sevenn does."""
    model = build_model(config, torch.float32, **options)
    torch.save({"config": config, "model_state_dict": model.state_dict(), "epoch": 1}, path)
    return path


@pytest.fixture(scope="session")
def pretrained() -> Callable[[str], Path]:
    """Return a function from the name of a model to its checkpoint in the library's wheel."""
    import_sevennet()
    from sevenn.util import pretrained_name_to_path

    return lambda name: Path(pretrained_name_to_path(name))
