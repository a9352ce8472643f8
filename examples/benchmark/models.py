"""Models with random weights in the shapes of published ones, and their implementations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols

from mdcg.bench import checkpoint
from mdcg.bench.checkpoint import TorchStep
from mdcg.bench.model import EngineStep, Maker, Settings
from mdcg.patch import is_nequip
from mdcg.patch._frameworks import default_dtype, import_mace
from mdcg.patch.nequip_files import nequip_state

from .compiled import compiled

# Sizes of the MACE-MP-0 models, all of whose layers have 128 channels.
SIZES = {"small": "128x0e", "medium": "128x0e+128x1o", "large": "128x0e+128x1o+128x2e"}
# Other MACE models of medium size, by what differs from "medium"; classes by their name.
VARIANTS: dict[str, dict[str, Any]] = {
    "off-medium": {
        "r_max": 5.0,
        "num_bessel": 8,
        "atomic_numbers": [1, 6, 7, 8, 9, 15, 16, 17, 35, 53],
        "interaction_cls_first": "RealAgnosticInteractionBlock",
    },
    "mpa-medium": {
        "distance_transform": "Agnesi",
        "pair_repulsion": True,
        "interaction_cls": "RealAgnosticDensityResidualInteractionBlock",
        "interaction_cls_first": "RealAgnosticDensityInteractionBlock",
    },
}
# Shapes of the NequIP foundation models, as NequIP names them.
NEQUIP_PRESETS = {"nequip-s": "S", "nequip-m": "M", "nequip-l": "L", "nequip-xl": "XL"}
NAMES = (*SIZES, *VARIANTS, *NEQUIP_PRESETS)

# Implementations by name: modules that they need, and NequIP's own name of the acceleration.
PEERS = {
    "cueq": (("cuequivariance_torch", "cuequivariance_ops_torch"), "enable_CuEquivariance"),
    "oeq": (("openequivariance",), "enable_OpenEquivariance"),
}
PRECISIONS = ("tf32", "bf16")
# Variants of the engine: radial networks not tabulated; and reduced precision for float32 packages
# on GPUs.
ENGINES = ("engine-exact", *(f"engine-{name}" for name in PRECISIONS))
# The original, or NequIP's model with OpenEquivariance, as its own package compiles it.
COMPILED = ("compiled", "compiled-oeq")
IMPLS = ("original", *PEERS, *COMPILED, "patched", "engine", *ENGINES)


def build(name: str, dtype: str = "float32") -> torch.nn.Module:
    """Build a model of :data:`NAMES`; torch's default dtype and generator stay as they are."""
    if name in NEQUIP_PRESETS:
        return build_nequip(NEQUIP_PRESETS[name], dtype)
    return build_mace(SIZES.get(name, SIZES["medium"]), dtype, **VARIANTS.get(name, {}))


def build_mace(hidden: str, dtype: str, **changes: Any) -> torch.nn.Module:
    """Build a MACE model with given hidden irreps, and in all else in the shape of MACE-MP-0.

    89 elements, r_max 6 Å, 10 Bessel functions, max_ell 3, correlation 3, 2 layers; `changes` are
    other arguments of ``ScaleShiftMACE``.
    """
    import_mace()
    modules, o3 = import_module("mace.modules"), import_module("e3nn.o3")
    options: dict[str, Any] = {
        "r_max": 6.0,
        "num_bessel": 10,
        "num_polynomial_cutoff": 5,
        "max_ell": 3,
        "interaction_cls": "RealAgnosticResidualInteractionBlock",
        "interaction_cls_first": "RealAgnosticResidualInteractionBlock",
        "num_interactions": 2,
        "hidden_irreps": o3.Irreps(hidden),
        "MLP_irreps": o3.Irreps("16x0e"),
        # sqrt of the true number: messages of random sign then have size 1, and every order of the
        # product contributes to the forces that are compared
        "avg_num_neighbors": 9.0,
        "atomic_numbers": list(range(1, 90)),
        "correlation": 3,
        "gate": torch.nn.functional.silu,
        "atomic_inter_scale": 1.0,
        "atomic_inter_shift": 0.0,
        **changes,
    }
    for name in ("interaction_cls", "interaction_cls_first"):
        options[name] = getattr(modules, options[name])
    count = len(options["atomic_numbers"])
    options |= {"num_elements": count, "atomic_energies": np.zeros(count)}
    with default_dtype(getattr(torch, dtype)), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: torch.nn.Module = modules.ScaleShiftMACE(**options)
    return model.to(getattr(torch, dtype))


def build_nequip(preset: str, dtype: str) -> torch.nn.Module:
    """Build a NequIP model: 87 elements, r_max 6 Å, no parity, radial network 8-128."""
    with nequip_state():
        model: torch.nn.Module = import_module("nequip.model").PresetNequIPGNNModel(
            preset=preset,
            seed=0,
            model_dtype=dtype,
            type_names=chemical_symbols[1:88],
            r_max=6.0,
            avg_num_neighbors=9.0,  # as above
        )
    return model


def missing(impl: str, device: str) -> str | None:
    """Return why an implementation cannot run here, or None."""
    if (peer := impl.removeprefix("compiled-")) in PEERS:
        absent = [name for name in PEERS[peer][0] if find_spec(name) is None]
        if absent:
            return f"{', '.join(absent)} is not installed"
        return None if device == "cuda" else "it has kernels for CUDA devices only"
    if device == "cpu" and impl.removeprefix("engine-") in PRECISIONS:
        return "it is a choice on CUDA devices only"
    return None


def makers(model: torch.nn.Module, folder: Path, settings: Settings) -> dict[str, Maker]:
    """Return functions that make the implementations in :data:`IMPLS`."""

    def variant(name: str) -> partial[EngineStep]:
        kind = name.removeprefix("engine-")
        fast = kind in PRECISIONS
        path = folder / f"{name}.mdcg"
        package = checkpoint.convert(model, path, settings, None if fast else kind)
        return partial(EngineStep, package, settings, precision=kind if fast else "")

    def peer(name: str) -> partial[TorchStep]:
        return partial(TorchStep, converted(name, model, settings.device), settings)

    def compiled_peer() -> Callable[[Atoms], TorchStep]:
        if not is_nequip(model):
            raise ValueError("mace does not compile models with OpenEquivariance and forces")
        return compiled(converted("oeq", model, settings.device), folder, settings)

    return {
        **checkpoint.makers(model, folder, settings),
        **{name: partial(peer, name) for name in PEERS},
        "compiled": partial(compiled, model, folder, settings),
        "compiled-oeq": compiled_peer,
        **{name: partial(variant, name) for name in ENGINES},
    }


def converted(impl: str, model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Convert a model to another package's layers, with mace's converter or NequIP's modifier."""
    if is_nequip(model):
        with nequip_state():
            modify = import_module("nequip.model.modify_utils").modify
            result = modify(copy.deepcopy(model), [{"modifier": PEERS[impl][1]}])
    else:
        dtype = next(model.parameters()).dtype
        with default_dtype(dtype):  # the converter sets it
            converter = import_module(f"mace.cli.convert_e3nn_{impl}")
            result = converter.run(copy.deepcopy(model), device=device).to(dtype)
    return checkpoint.ready(result, None, device)
