"""Whole models as their implementations evaluate them; all runs in a benchmark process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols

from ..patch import (
    NequipInfo,
    load_model,
    mace_batch,
    model_info,
    nequip_batch,
    patch_model,
    unpatch_model,
)
from ..patch._frameworks import default_dtype
from .engine_models import EnginePackage, EngineStep, engine_package
from .jobs import MODEL_IMPLS, NEQUIP_PRESETS, SIZES, VARIANTS, ModelJob
from .nequip_models import build_nequip
from .systems import System, neighbours

__all__ = ["Results", "build_mace", "converted", "job_model", "model_step", "variant_of"]

# NequIP's own names of its accelerations.
_NEQUIP_MODIFIERS = {"cueq": "enable_CuEquivariance", "oeq": "enable_OpenEquivariance"}

Results = Mapping[str, torch.Tensor | None]


def build_mace(size: str, dtype: torch.dtype, *, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """Build a MACE model with random weights in the shape of a MACE-MP-0 model.

    89 elements, 128 channels, r_max 6 Å, 10 Bessel functions, max_ell 3, correlation 3, 2 layers.

    Parameters
    ----------
    size : str
        ``"small"`` (128x0e), ``"medium"`` (+128x1o), ``"large"`` (+128x2e), or hidden irreps; or a
        medium model that differs: ``"off-medium"`` as MACE-OFF23, ``"mpa-medium"`` as MACE-MPA-0.
    dtype : torch.dtype
        Of the parameters; torch's default dtype is the same before and after.
    seed : int
        Of the weights; the global generator keeps its state.
    **changes
        Other arguments of ``ScaleShiftMACE``.
    """
    modules = _mace_modules()
    o3 = import_module("e3nn.o3")
    options: dict[str, Any] = {
        "r_max": 6.0,
        "num_bessel": 10,
        "num_polynomial_cutoff": 5,
        "max_ell": 3,
        "interaction_cls": modules.RealAgnosticResidualInteractionBlock,
        "interaction_cls_first": modules.RealAgnosticResidualInteractionBlock,
        "num_interactions": 2,
        "hidden_irreps": o3.Irreps(SIZES["medium"] if size in VARIANTS else SIZES.get(size, size)),
        "MLP_irreps": o3.Irreps("16x0e"),
        # sqrt of the true number: messages of random sign then have size 1, and every order of the
        # product contributes to the forces that are compared
        "avg_num_neighbors": 9.0,
        "atomic_numbers": list(range(1, 90)),
        "correlation": 3,
        "gate": torch.nn.functional.silu,
        "atomic_inter_scale": 1.0,
        "atomic_inter_shift": 0.0,
        **VARIANTS.get(size, {}),
        **changes,
    }
    for name in ("interaction_cls", "interaction_cls_first"):
        if isinstance(options[name], str):
            options[name] = getattr(modules, options[name])
    count = len(options["atomic_numbers"])
    options = {"num_elements": count, "atomic_energies": np.zeros(count), **options}
    with default_dtype(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = modules.ScaleShiftMACE(**options)
    return model.to(dtype)


def _mace_modules() -> Any:
    from ..patch._frameworks import import_mace

    import_mace()
    return import_module("mace.modules")


def job_model(job: ModelJob) -> torch.nn.Module:
    """Return the unpatched model in the wanted dtype, without parameter gradients."""
    if job.model in (*SIZES, *VARIANTS):
        model = build_mace(job.model, getattr(torch, job.dtype or "float32"), seed=job.seed)
    elif job.model in NEQUIP_PRESETS:
        dtype = getattr(torch, job.dtype or "float32")
        model = build_nequip(NEQUIP_PRESETS[job.model], dtype, seed=job.seed)
    else:
        model = load_model(job.model)
        unpatch_model(model)
        if job.dtype is not None:
            model = model.to(getattr(torch, job.dtype))
    model = model.to(job.device).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def variant_of(impl: str, model: torch.nn.Module, job: ModelJob, folder: Path) -> tuple[Any, str]:
    """Return the model as an implementation has it, and what patching it said."""
    if impl not in MODEL_IMPLS:
        raise ValueError(
            f"implementation {impl!r} is unknown, expected one of {', '.join(MODEL_IMPLS)}"
        )
    if impl == "e3nn":
        return model, ""
    if impl == "mdcg":
        patched = copy.deepcopy(model)
        return patched, str(patch_model(patched))
    if impl.startswith("engine"):
        return engine_package(impl, model, job, folder), ""
    return converted(impl, model, job.device), ""


def converted(impl: str, model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Convert a model to another package's layers, with mace's converter or NequIP's modifier.

    Parameters
    ----------
    impl : {"cueq", "oeq"}
    model : torch.nn.Module
        It is not changed.
    device : str
        Convolutions are fused on ``"cuda"`` only.
    """
    if isinstance(model_info(model), NequipInfo):
        result = _modified(_NEQUIP_MODIFIERS[impl], copy.deepcopy(model)).to(device)
    else:
        dtype = next(model.parameters()).dtype
        converter = import_module(f"mace.cli.convert_e3nn_{impl}")
        with default_dtype(dtype):  # the converter sets it
            result = converter.run(copy.deepcopy(model), device=device)
        result = result.to(device=device, dtype=dtype)
    result = result.eval()
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    return result


def _modified(modifier: str, model: torch.nn.Module) -> torch.nn.Module:
    from ..patch.nequip_files import nequip_state

    with nequip_state():
        modify = import_module("nequip.model.modify_utils").modify
        result: torch.nn.Module = modify(model, [{"modifier": modifier}])
        return result


def model_step(
    model: Any, system: System, job: ModelJob, r_max: float
) -> tuple[Callable[[], Results], int, int]:
    """Return a function for one evaluation, the number of edges, and the bytes of its inputs."""
    if isinstance(model, EnginePackage):
        engine = EngineStep(model, system, stress=job.stress)
        return engine, engine.num_edges, engine.nbytes
    info = model_info(model)
    # MACE's own lists are sorted by sender, NequIP's by receiver
    order = "receiver" if isinstance(info, NequipInfo) else "sender"
    edges = neighbours(system, r_max, order=order, threads=torch.get_num_threads())
    if isinstance(info, NequipInfo):
        return _nequip_step(model, info, system, edges)
    try:
        batch = mace_batch(
            info,
            system.numbers,
            system.positions,
            system.cell,
            system.periodic,
            np.stack([edges.sender, edges.receiver]),
            edges.shifts,
            head=job.head,
        )
    except ValueError as error:
        raise ValueError(
            f"the model cannot evaluate {system.name}: {error}: choose --system or --head"
        ) from error

    def evaluate() -> Results:
        # forward overwrites entries of the dictionary
        results: Results = model(
            dict(batch), training=False, compute_force=True, compute_stress=job.stress
        )
        return results

    return evaluate, len(edges), sum(tensor.nbytes for tensor in batch.values())


def _nequip_step(
    model: torch.nn.Module, info: NequipInfo, system: System, edges: Any
) -> tuple[Callable[[], Results], int, int]:
    names = [chemical_symbols[number] for number in system.numbers]
    unknown = sorted(set(names) - set(info.type_names))
    if unknown:
        raise ValueError(
            f"the model cannot evaluate {system.name}: it does not know {', '.join(unknown)}: "
            "choose --system"
        )
    batch = nequip_batch(
        info,
        [info.type_names.index(name) for name in names],
        system.positions,
        system.cell,
        np.stack([edges.sender, edges.receiver]),
        edges.shifts,
    )

    def evaluate() -> Results:
        found = model(dict(batch))
        return {
            "energy": found["total_energy"],
            "forces": found["forces"],
            "stress": found.get("stress"),
        }

    return evaluate, len(edges), sum(tensor.nbytes for tensor in batch.values())
