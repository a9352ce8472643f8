"""Models with random weights in the shapes of published ones, and their implementations."""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols

from mdcg.bench import checkpoint
from mdcg.bench.checkpoint import TorchStep
from mdcg.bench.model import EngineStep, Loader, Settings, measure
from mdcg.cli.bench import add_command, make_systems, model_arguments, show_models, start
from mdcg.patch import is_nequip
from mdcg.patch._frameworks import default_dtype, import_mace
from mdcg.patch.nequip_files import nequip_state

_HELP = """\
Time energy and forces of models as `python -m mdcg bench model` does, beside the models as mace or
NequIP converts them to cuEquivariance (cueq) and OpenEquivariance (oeq). MODEL is small, medium or
large (random weights, the shapes of MACE-MP-0), off-medium or mpa-medium (those of MACE-OFF23 and
MACE-MPA-0), nequip-s, -m, -l or -xl (those of NequIP's foundation models) or a checkpoint."""

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

# Other packages by name: modules that they need, and NequIP's own name of the acceleration.
PEERS = {
    "cueq": (("cuequivariance_torch", "cuequivariance_ops_torch"), "enable_CuEquivariance"),
    "oeq": (("openequivariance",), "enable_OpenEquivariance"),
}
#: The last one evaluates radial networks as they are; it runs only where --impl names it.
IMPLS = ("original", *PEERS, "patched", "engine", "engine-exact")


def add_parser(commands: Any) -> None:
    """Add the commands ``model`` and ``package``."""
    model = add_command(commands, "model", "time whole models beside others", _HELP, run)
    model.add_argument("model", nargs="+", metavar="MODEL", help="by name, or a checkpoint")
    model_arguments(model)
    text = "convert a model with random weights, for `mdcg bench lammps`"
    package = add_command(commands, "package", text, text, write_package)
    package.add_argument("model", metavar="MODEL", help="as in `model`")
    package.add_argument("-o", "--output", required=True, type=Path, metavar="FILE.mdcg")
    package.add_argument("--dtype", choices=("float32", "float64"), default="float32")


def run(options: argparse.Namespace) -> int:
    """Time models and print a table for each structure."""
    for name in options.model:
        require_model(name)
    wanted = options.impl or IMPLS[:-1]
    if unknown := set(wanted) - set(IMPLS):
        known = ", ".join(IMPLS)
        raise ValueError(f"implementation {unknown.pop()!r} is unknown, expected one of {known}")
    reasons = {impl: missing(impl, options.device) for impl in wanted}
    systems = make_systems(options)
    settings = Settings.of(options)
    result = start(options)
    tell_skipped(reasons)
    code = 0
    for name in options.model:
        for dtype in options.dtype or (None,):
            print(f"  … {name}", file=sys.stderr, flush=True)
            model = load(name, dtype, options.device)
            exact = checkpoint.exact(model, settings)
            with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
                found = loaders(model, Path(folder), settings)
                chosen = {impl: found[impl] for impl in wanted if reasons[impl] is None}
                sections = measure(chosen, systems, settings, exact)
                code = show_models(options, result, Path(name).name, sections)
    return code


def write_package(options: argparse.Namespace) -> None:
    """Write a model as a package."""
    require_model(options.model)
    checkpoint.convert(load(options.model, options.dtype, "cpu"), options.output, Settings())


def require_model(name: str) -> None:
    """Raise ValueError unless a model is known by that name or a file."""
    if name not in NAMES and not Path(name).is_file():
        raise ValueError(f"model {name!r} is neither {', '.join(NAMES)} nor a file: check the path")


def load(name: str, dtype: str | None, device: str) -> torch.nn.Module:
    """Return a model of :data:`NAMES`, or of a checkpoint, on a device and in a dtype."""
    known = name in NAMES
    model = build(name, dtype or "float32") if known else checkpoint.load(name)
    return checkpoint.ready(model, dtype, device)


def tell_skipped(reasons: Mapping[str, str | None]) -> None:
    """Print what is not measured, and why."""
    skipped = [f"{name}: {why}" for name, why in reasons.items() if why is not None]
    if skipped:
        print(f"not measured: {'; '.join(skipped)}")


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
    if impl not in PEERS:
        return None
    absent = [name for name in PEERS[impl][0] if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} is not installed"
    return None if device == "cuda" else "it has kernels for CUDA devices only"


def loaders(model: torch.nn.Module, folder: Path, settings: Settings) -> dict[str, Loader]:
    """Return functions that make the implementations in :data:`IMPLS`."""

    def peer(name: str) -> partial[TorchStep]:
        return partial(TorchStep, converted(name, model, settings.device), settings)

    def exact() -> partial[EngineStep]:
        package = checkpoint.convert(model, folder / "exact.mdcg", settings, "exact")
        return partial(EngineStep, package, settings)

    own = checkpoint.loaders(model, folder, settings) | {"engine-exact": exact}
    return {**own, **{name: partial(peer, name) for name in PEERS}}


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
