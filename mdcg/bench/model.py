"""Measures energy and forces of whole models; all of it runs in a benchmark process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols

from ..errors import DeviceError, MdcgError
from ..patch import (
    NequipInfo,
    load_model,
    mace_batch,
    model_info,
    nequip_batch,
    patch_model,
    unpatch_model,
)
from ..patch.hosts import copy_in_dtype
from .conv import refusal
from .engine_models import EngineModel, engine_model, engine_step
from .gpu import device_times, release_memory
from .jobs import MODEL_IMPLS, NEQUIP_PRESETS, SIZES, VARIANTS, ModelJob
from .layer import default_dtype
from .nequip_models import build_nequip
from .systems import System, fragment, make_system, neighbours
from .timing import clock_for, interleave, peak_memory, stopwatch

__all__ = ["build_mace", "converted", "measure_memory", "measure_timing"]

# NequIP's own names of its accelerations.
_NEQUIP_MODIFIERS = {"cueq": "enable_CuEquivariance", "oeq": "enable_OpenEquivariance"}

Results = Mapping[str, torch.Tensor]


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


def load_model_of(job: ModelJob) -> torch.nn.Module:
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


def _variant(impl: str, model: torch.nn.Module, job: ModelJob) -> tuple[Any, str]:
    """Return the model as an implementation has it, and what patching or opening it said."""
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
        engine = engine_model(impl, model, job.head)
        return engine, engine.report
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


def _step(
    model: Any, system: System, head: str | None, r_max: float
) -> tuple[Callable[[], Results], int, int]:
    """Return a function for one evaluation, the number of edges, and the bytes of its inputs."""
    if isinstance(model, EngineModel):
        return engine_step(model, system)
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
            head=head,
        )
    except ValueError as error:
        raise ValueError(
            f"the model cannot evaluate {system.name}: {error}: choose --system or --head"
        ) from error

    def evaluate() -> Results:
        # forward overwrites entries of the dictionary
        results: Results = model(dict(batch), training=False, compute_force=True)
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
        return {"energy": found["total_energy"], "forces": found["forces"]}

    return evaluate, len(edges), sum(tensor.nbytes for tensor in batch.values())


def measure_timing(job: ModelJob) -> dict[str, Any]:
    """Time energy and forces, unpatched and patched side by side, on one graph.

    The neighbour list and the conversion of the structure are outside of the timed span.

    Returns
    -------
    dict
        ``atoms``, ``edges``, ``dtype``, ``rows``: one per implementation, and ``refused``:
        implementation and reason of what could not be timed.
    """
    clock = clock_for(job.device)
    system = make_system(job.system, job.atoms)
    model = load_model_of(job)
    info = model_info(model)
    spent: dict[str, float] = {}
    with stopwatch(spent, "float64"):
        exact = _exact(job, model, system, info.r_max) if job.check else None
    refused: list[dict[str, Any]] = []
    reports: dict[str, str] = {}
    steps: dict[str, Callable[[], Results]] = {}
    results: dict[str, tuple[float, torch.Tensor]] = {}
    nbytes: dict[str, int] = {}
    n_edges = 0
    for impl in job.impls:
        try:
            with stopwatch(spent, f"convert {impl}"):
                variant, reports[impl] = _variant(impl, model, job)
                step, n_edges, nbytes[impl] = _step(variant, system, job.head, info.r_max)
            with stopwatch(spent, f"first {impl}"):
                results[impl] = _energy_forces(step())
            steps[impl] = step
        except Exception as error:
            if job.device == "cpu" and impl in ("e3nn", "mdcg", "engine"):
                raise
            refused.append(refusal(impl, error))
        release_memory()
    options = {} if job.device == "cpu" else {"sample_seconds": 0.0}
    base = results.get("e3nn")
    with stopwatch(spent, "timing"):
        timings = interleave(steps, clock, repeats=job.repeats, warmup=job.warmup, **options)
    more = {}
    for impl, step in steps.items() if job.device == "cuda" else ():
        with stopwatch(spent, f"kernels {impl}"):
            more[impl] = _on_device(step, nbytes[impl])
    rows = []
    for impl, timing in timings.items():
        energy, forces = results[impl]
        row: dict[str, Any] = {
            "impl": impl,
            "seconds": timing.as_dict(),
            "energy": energy,
            "max_force": float(forces.abs().max()),
            "patch_report": reports[impl],
            **more.get(impl, {}),
        }
        for suffix, other in (("e3nn", base), ("float64", exact)):
            if other is None:
                continue
            row[f"energy_difference_{suffix}"] = abs(energy - other[0]) / len(system)
            row[f"force_difference_{suffix}"] = float((forces - other[1]).abs().max())
        rows.append(row)
    return {
        "atoms": len(system),
        "edges": n_edges,
        "model_class": info.model_class,
        "dtype": str(info.dtype).removeprefix("torch."),
        "r_max": info.r_max,
        "torch_threads": torch.get_num_threads(),
        "rows": rows,
        "refused": refused,
        "spent": {name: round(seconds, 2) for name, seconds in spent.items()},
    }


def _on_device(step: Callable[[], object], nbytes: int) -> dict[str, Any]:
    """Return memory and kernel times of an evaluation on a CUDA device that has run before."""
    peak = peak_memory(step, device="cuda")
    return {
        "memory": {
            "operand_bytes": nbytes,
            "extra_bytes": peak.extra_bytes,
            "peak_bytes": nbytes + peak.extra_bytes,
            "method": peak.method,
        },
        **device_times(step).as_dict(),
    }


def _energy_forces(results: Results) -> tuple[float, torch.Tensor]:
    if results.get("energy") is None or results.get("forces") is None:
        raise MdcgError("the model gives no energy and forces: nothing to time, give another model")
    return float(results["energy"].sum()), results["forces"].detach().double().cpu()


def _exact(
    job: ModelJob, model: torch.nn.Module, system: System, r_max: float
) -> tuple[float, torch.Tensor] | None:
    """Evaluate the unpatched model in float64, if there is memory for that.

    A model in float64 is compared with what is timed as ``e3nn`` anyway.
    """
    if model_info(model).dtype == torch.float64:
        return None
    step, _, _ = _step(copy_in_dtype(model, torch.float64), system, job.head, r_max)
    try:
        return _energy_forces(step())
    except torch.OutOfMemoryError:
        return None
    finally:
        release_memory()


def measure_memory(job: ModelJob, impl: str) -> dict[str, Any]:
    """Measure the peak memory of one evaluation above the loaded model.

    Returns
    -------
    dict
        Bytes of the inputs, of everything above them, and the method.
    """
    if job.device != "cpu":
        raise DeviceError(f"device is {job.device!r}, but memory is measured on the CPU only")
    system = make_system(job.system, job.atoms)
    model = load_model_of(job)
    r_max = model_info(model).r_max
    variant, _ = _variant(impl, model, job)
    del model
    # same code paths on a few atoms, next to no memory
    warm, _, _ = _step(variant, fragment(system), job.head, r_max)
    for _ in range(job.warmup):
        warm()
    step, _, nbytes = _step(variant, system, job.head, r_max)
    peak = peak_memory(step)
    return {
        "operand_bytes": nbytes,
        "extra_bytes": peak.extra_bytes,
        "peak_bytes": nbytes + peak.extra_bytes,
        "method": peak.method,
    }
