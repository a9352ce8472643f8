"""Models with random weights in the shapes of published ones, and their implementations."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols

from mdcg.bench import checkpoint
from mdcg.bench.model import EngineStep, Fitting, Loader, Settings, measure, refusal
from mdcg.bench.timing import ratio, release_memory
from mdcg.cli.bench import add_command, make_systems, model_arguments, show_models, start
from mdcg.patch import model_info
from mdcg.patch._frameworks import default_dtype, import_mace
from mdcg.patch.nequip_files import nequip_state

from . import dynamics, programs
from .programs import PEERS, missing, unsuited

_HELP = """\
Time energy and forces of models as `mdcg bench model` does, beside the models as mace, NequIP
or SevenNet converts them to cuEquivariance (cueq), OpenEquivariance (oeq) and FlashTP (flashtp),
Symmetrix-XL (symmetrix, through its ASE calculator) and FastMACE (fastmace, steps of its own loop
from rest). MODEL is
small, medium or large (random weights, the shapes of MACE-MP-0), off-medium or mpa-medium (those
of MACE-OFF23 and MACE-MPA-0), nequip-s, -m, -l or -xl (those of NequIP's foundation models) or a
checkpoint. --impl also takes engine-exact, and aoti and aoti-oeq: NequIP compiled by AOTInductor,
without and with OpenEquivariance. Sizes for which an implementation has too little memory, as
smaller ones showed, are skipped."""

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

IMPLS = ("original", *PEERS, "patched", "engine", "engine-exact")
# These run only where --impl names them: the engine with radial networks as they are, and
# NequIP's compiled forms, which take minutes to compile.
_NAMED = ("engine-exact", "aoti", "aoti-oeq")
# FastMACE's loop: the model may have random weights, so atoms must hardly move.
_TIMESTEP = 0.01  # fs
_ATOMS_TIMES_STEPS = 2_000_000


def add_parser(commands: Any) -> None:
    """Add the commands ``model`` and ``package``."""
    model = add_command(commands, "model", "time whole models beside others", _HELP, run)
    model.add_argument("model", nargs="+", metavar="MODEL", help="by name, or a checkpoint")
    model_arguments(model)
    text = "folder that keeps what other programs convert and compile (default: none)"
    model.add_argument("--work", metavar="FOLDER", help=text)
    text = "convert a model with random weights, for `mdcg bench lammps`"
    package = add_command(commands, "package", text, text, write_package)
    package.add_argument("model", metavar="MODEL", help="as in `model`")
    package.add_argument("-o", "--output", required=True, type=Path, metavar="FILE.mdcg")
    package.add_argument("--dtype", choices=("float32", "float64"), default="float32")


def run(options: argparse.Namespace) -> int:
    """Time models and print a table for each structure."""
    for name in options.model:
        require_model(name)
    wanted = options.impl or [impl for impl in IMPLS if impl not in _NAMED]
    if unknown := set(wanted) - set(IMPLS):
        known = ", ".join(IMPLS)
        raise ValueError(f"implementation {unknown.pop()!r} is unknown, expected one of {known}")
    if options.work is not None and not Path(options.work).is_dir():
        raise ValueError(f"{options.work} is not a folder: make it, or leave --work out")
    absent = {impl: missing(impl, options.device) for impl in wanted}
    systems = make_systems(options)
    symbols = sorted({symbol for atoms in systems for symbol in atoms.symbols})
    settings = Settings.of(options)
    result = start(options)
    code = 0
    for name in options.model:
        for dtype in options.dtype or (None,):
            print(f"  … {name}", file=sys.stderr, flush=True)
            model = load(name, dtype, options.device)
            exact = checkpoint.exact(model, settings)
            with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
                kind = str(model_info(model).dtype).removeprefix("torch.")
                parts = "_".join(Path(name).with_suffix("").parts).strip("/")
                stem = f"{parts}-{kind}-{''.join(symbols)}-{options.device}"
                base = Path(options.work or folder) / stem
                found = loaders(model, name, base, settings, symbols)
                reasons = {impl: absent[impl] or unsuited(impl, model) for impl in wanted}
                chosen = {i: found[i] for i in wanted if reasons[i] is None and i in found}
                sections = measure(chosen, systems, settings, exact)
                sections = _with_refusals(sections, model, reasons)
                if "fastmace" in wanted and reasons["fastmace"] is None:
                    saved = programs.save(model, Path(f"{base}.model"))
                    sections = _beside_fastmace(sections, systems, saved, settings.device)
                code = show_models(options, result, Path(name).name, sections)
    return code


def _with_refusals(
    sections: Iterable[dict[str, Any]], model: torch.nn.Module, reasons: Mapping[str, str | None]
) -> Iterator[dict[str, Any]]:
    """Add facts about the model, and why implementations were not tried."""
    info = model_info(model)
    facts = {"model_class": info.model_class, "r_max": info.r_max, "edges": None}
    facts["dtype"] = str(info.dtype).removeprefix("torch.")
    for section in sections:
        for impl, reason in reasons.items():
            if reason is not None:
                section["refused"].append({"impl": impl, "reason": reason, "failed": False})
        yield {**facts, **section}


def _beside_fastmace(
    sections: Iterable[dict[str, Any]], systems: Sequence[Atoms], saved: Path, device: str
) -> Iterator[dict[str, Any]]:
    """Add FastMACE at each size: steps of its loop from rest, which is its fastest way."""
    fitting = Fitting(device)
    for section, atoms in zip(sections, systems, strict=True):
        release_memory()
        steps = min(1000, max(20, _ATOMS_TIMES_STEPS // len(atoms)))
        task = dynamics.Run(saved, atoms.copy(), device, steps, _TIMESTEP, warm_up=0)
        if why := fitting.why_not("fastmace", len(atoms)):
            section["refused"].append({"impl": "fastmace", "reason": why, "failed": False})
        else:
            try:
                row = dynamics.measure("fastmace", task)
                original = [one for one in section["rows"] if one["impl"] == "original"]
                row["speedup"] = ratio(original[0]["seconds"], row["seconds"]) if original else None
                section["rows"].append(row)
            except Exception as error:  # of any kind: it is another program
                section["refused"].append(refusal("fastmace", error))
        fitting.add(section)
        yield section


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


def loaders(
    model: torch.nn.Module, name: str, base: Path, settings: Settings, symbols: Sequence[str]
) -> dict[str, Loader]:
    """Return functions that make the implementations in :data:`IMPLS`, without FastMACE."""

    def exact() -> partial[EngineStep]:
        package = checkpoint.convert(model, Path(f"{base}.exact.mdcg"), settings, "exact")
        return partial(EngineStep, package, settings)

    own = checkpoint.loaders(model, Path(f"{base}.mdcg"), settings)
    return {**own, "engine-exact": exact, **programs.loaders(model, name, base, settings, symbols)}
