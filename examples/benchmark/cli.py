"""The command ``python examples/benchmark``, the only module of this folder that prints."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mdcg.bench.report import write_json
from mdcg.cli._common import names
from mdcg.cli.bench import make_systems, model_arguments, run, show_models, start

from . import comparison
from .cases import CASES, DEFAULT_CASES, DEFAULT_CUDA, Case, find_cases

_CONV_HELP = """\
Time one convolution layer: gather, tensor product, sum over the edges of each receiver. The
implementations run in turns in one process; their results are compared with float64. Passes: fwd
(value), fwd+bwd (gradients of all three inputs), fwd+bwd+dbl (gradients of the squared norm of the
first two gradients). On a GPU times are those between two CUDA events, one call each, from an idle
device; memory is what torch allocates during a call, inputs added."""

_MODEL_HELP = """\
Time energy and forces of models as `python -m mdcg bench model` does, beside the models as mace or
NequIP converts them to cuEquivariance (cueq) and OpenEquivariance (oeq), and variants of the
engine: its radial networks not tabulated (engine-exact), and products with weights on a GPU in
engine-tf32 and -bf16. The last two, and models that MACE (torch.compile) and NequIP
(nequip-compile, ahead of time) compile themselves (compiled, and for NequIP compiled-oeq), run only
where --impl names them. MODEL is small, medium or large (random weights, the shapes of MACE-MP-0),
off-medium or mpa-medium (those of MACE-OFF23 and MACE-MPA-0), nequip-s, -m, -l or -xl (those of
NequIP's foundation models) or a checkpoint."""

_DYNAMICS_HELP = """\
Time molecular dynamics at constant energy with a MACE checkpoint in float32: mdcg's package in
ASE's VelocityVerlet, and FastMACE in its own loop on the device. Milliseconds per step, with the
integrator and neighbour lists; loading, compiling and 200 steps before are not counted. Use a
trained model and a structure near equilibrium: where atoms fly apart, each step makes a list."""

_BATCH_HELP = """\
Time energies and forces of molecules and crystals of 8 to 60 atoms: mdcg's calculator one by one,
its `batch`, mdcg as a model of TorchSim, and TorchSim's own MACE model (with cuEquivariance on a
GPU) at the best size of its batches. Lists of neighbours are part of the time; TorchSim's states
are made beforehand."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python examples/benchmark", description="Compare mdcg with other packages."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, summary: str, text: str = "") -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        text = text or f"{summary[:1].upper()}{summary[1:]}."
        return commands.add_parser(name, help=summary, description=text, formatter_class=form)

    conv = command("conv", "time one layer beside other packages", _CONV_HELP)
    default = ",".join(DEFAULT_CASES)
    conv.add_argument("--case", type=names, metavar="NAME,...", help="layer shapes: names, "
        f"wildcards or all (default {default}; on a GPU nine of three kinds)")  # fmt: skip
    conv.add_argument("--passes", type=names, metavar="PASS,...", help="default: all three")
    conv.add_argument("--list", action="store_true", help="list layer shapes")
    model_arguments(conv)
    model = command("model", "time whole models beside other packages", _MODEL_HELP)
    model.add_argument("model", nargs="+", metavar="MODEL", help="by name, or a checkpoint")
    model_arguments(model)
    model.add_argument("--head", help="head of a model with several")
    model.add_argument("--stress", action="store_true", help="the stress too")
    dynamics = command("dynamics", "time dynamics beside FastMACE", _DYNAMICS_HELP)
    dynamics.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of MACE")
    dynamics.add_argument("structure", metavar="STRUCTURE", help="any file that ASE reads")
    dynamics.add_argument("--copies", type=names, default=["1", "3"], metavar="N,...",
        help="repeats the structure so often along each axis (default 1,3)")  # fmt: skip
    dynamics.add_argument("--steps", type=int, default=2000, help="default 2000")
    dynamics.add_argument("--timestep", type=float, default=0.5, help="fs (default 0.5)")
    dynamics.add_argument("--temperature", type=float, default=300.0, help="K (default 300)")
    dynamics.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    dynamics.add_argument("--impl", type=names, metavar="NAME,...", help="mdcg, fastmace")
    dynamics.add_argument("--json", metavar="FILE", help="write all numbers")
    batch = command("batch", "time many small structures at once beside TorchSim", _BATCH_HELP)
    batch.add_argument("model", metavar="MODEL", help="of MACE, as in `model`")
    batch.add_argument("--structures", type=int, default=1000, help="default 1000")
    batch.add_argument("--repeats", type=int, default=3, help="the fastest counts (default 3)")
    batch.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    batch.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    batch.add_argument("--impl", type=names, metavar="NAME,...", help="one-by-one, batch, "
        "torchsim-mdcg, torchsim-mace")  # fmt: skip
    package = command("package", "convert a model with random weights, for `mdcg bench lammps`")
    package.add_argument("model", metavar="MODEL", help="as in `model`")
    package.add_argument("-o", "--output", required=True, type=Path, metavar="FILE.mdcg")
    package.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    engine = command("engine-conv", "time one convolution of the engine on one core of the CPU")
    engine.add_argument("--case", type=names, default=DEFAULT_CASES[:2], metavar="NAME,...")
    engine.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    table = command(
        "table",
        "print results of `model` or `dynamics` as Markdown; later files replace earlier ones",
    )
    plot = command(
        "plot", "draw results of `model` or `dynamics` for one model against the number of atoms"
    )
    for one in (table, plot):
        one.add_argument("results", nargs="+", metavar="RESULT.json")
    plot.add_argument("-o", "--output", required=True, metavar="FILE", help=".svg, .png or .pdf")
    plot.add_argument("--model", metavar="MODEL", help="default: the one with most sizes")
    plot.add_argument("--dtype", help="default: the one with most sizes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, which is 1 if something could not be measured."""
    options = _parser().parse_args(argv)
    commands = {
        "conv": _conv,
        "model": _model,
        "dynamics": _dynamics,
        "batch": _batch,
        "package": _package,
        "engine-conv": _engine_conv,
    }
    return run(options, commands.get(options.command, _show))


def _conv(options: argparse.Namespace) -> int:
    if options.list:
        for case in CASES.values():
            print(f"{case.name:20} {case.irreps_in1} (x) {case.irreps_in2}, {case.origin}")
        return 0
    layers = _layers(options)
    from . import conv, passes, peers, roofline

    chosen = peers.choose_peers(options.impl, options.device)
    wanted = options.passes or passes.PASSES
    if unknown := set(wanted) - set(passes.PASSES):
        known = ", ".join(passes.PASSES)
        raise ValueError(f"pass {unknown.pop()!r} is unknown, expected one of {known}")
    systems = make_systems(options)
    result = start(options)
    if not options.impl:
        _tell_skipped(peers.skipped_peers(options.device))
    rates: dict[str, tuple[float, float]] = {}
    for case, dtype in layers:
        if dtype not in rates:
            import torch

            clock = conv.conv_clock(options.device)
            rates[dtype] = roofline.machine_rates(getattr(torch, dtype), options.device, clock)
        for atoms in systems:
            _progress(f"{case.name} {dtype}")
            graph = conv.make_graph(case, atoms, options.device)
            how = {"passes": wanted, "repeats": options.repeats, "check": not options.no_check}
            section = conv.measure(case, dtype, graph, chosen, rates[dtype], **how)
            shared = {key: value for key, value in section.items() if not isinstance(value, list)}
            for kind in ("rows", "refused"):
                result[kind] += [{**shared, **one} for one in section[kind]]
            print("\n" + conv.table(section, Path(options.system).name), flush=True)
            if options.json:
                write_json(options.json, result)
    return int(any(one["failed"] for one in result["refused"]))


def _layers(options: argparse.Namespace) -> list[tuple[Case, str]]:
    """Return layer shapes and their types."""
    if options.device == "cuda" and not options.case and not options.dtype:
        return [(CASES[name], dtype) for name, dtype in DEFAULT_CUDA]
    cases = find_cases(options.case or DEFAULT_CASES)
    return [(case, dtype) for case in cases for dtype in options.dtype or ("float32",)]


def _model(options: argparse.Namespace) -> int:
    from mdcg.bench import checkpoint
    from mdcg.bench.model import Settings, measure

    from . import models

    for name in options.model:
        _known(name)
    for impl in options.impl or ():
        if impl not in models.IMPLS:
            known = ", ".join(models.IMPLS)
            raise ValueError(f"implementation {impl!r} is unknown, expected one of {known}")
    on_request = (*models.COMPILED, *models.ENGINES[1:])
    wanted = options.impl or [impl for impl in models.IMPLS if impl not in on_request]
    reasons = {impl: models.missing(impl, options.device) for impl in wanted}
    systems = make_systems(options)
    settings = Settings.of(options)
    result = start(options)
    _tell_skipped({impl: reason for impl, reason in reasons.items() if reason})
    code = 0
    for name in options.model:
        for dtype in options.dtype or (None,):
            _progress(name)
            model = checkpoint.ready(_load(name, dtype), dtype, options.device)
            exact = None if options.no_check else checkpoint.exact(model, settings)
            with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
                makers = models.makers(model, Path(folder), settings)
                chosen = {impl: makers[impl] for impl in wanted if reasons[impl] is None}
                sections = measure(chosen, systems, settings, exact)
                code = show_models(options, result, Path(name).name, sections)
    return code


def _known(name: str) -> None:
    from . import models

    if name not in models.NAMES and not Path(name).is_file():
        known = ", ".join(models.NAMES)
        raise ValueError(f"model {name!r} is neither {known} nor a file: check the path")


def _load(name: str, dtype: str | None) -> Any:
    from mdcg.bench import checkpoint

    from . import models

    if name in models.NAMES:
        return models.build(name, dtype or "float32")
    return checkpoint.load(name)


def _dynamics(options: argparse.Namespace) -> int:
    import ase.io

    from mdcg import env
    from mdcg.bench.report import document
    from mdcg.bench.timing import torch_cuda

    from . import dynamics

    if unknown := set(options.impl or ()) - set(dynamics.PROGRAMS):
        known = ", ".join(dynamics.PROGRAMS)
        raise ValueError(f"program {unknown.pop()!r} is unknown, expected one of {known}")
    for file in (options.checkpoint, Path(options.structure)):
        if not file.is_file():
            raise ValueError(f"{file} does not exist: check the path")
    reasons = {name: dynamics.missing(name, options.device) for name in dynamics.PROGRAMS}
    _tell_skipped({name: reason for name, reason in reasons.items() if reason})
    structure = ase.io.read(options.structure)
    how = {"checkpoint": str(options.checkpoint), "threads": env.threads() or "all"}
    result = document("dynamics", vars(options) | how, torch_cuda())
    shared = {"model": options.checkpoint.stem, "system": Path(options.structure).stem}
    for copies in options.copies:
        atoms = dynamics.with_velocities(structure, int(copies), options.temperature)
        run = dynamics.Run(
            options.checkpoint, atoms, options.device, options.steps, options.timestep
        )
        for name in options.impl or dynamics.PROGRAMS:
            if reasons[name] is None:
                row = dynamics.measure(name, run)
                milliseconds = 1e3 * row["seconds"]["median"]
                print(f"{name:10} {row['atoms']:>9,} atoms {milliseconds:9.4f} ms/step", flush=True)
                result["rows"].append({**shared, **row})
                if options.json:
                    write_json(options.json, result)
    return 0


def _batch(options: argparse.Namespace) -> int:
    import numpy as np

    from mdcg import Package
    from mdcg.bench import checkpoint
    from mdcg.bench.model import Settings

    from . import batch

    if unknown := set(options.impl or ()) - set(batch.PROGRAMS):
        known = ", ".join(batch.PROGRAMS)
        raise ValueError(f"program {unknown.pop()!r} is unknown, expected one of {known}")
    _known(options.model)
    reasons = {name: batch.missing(name, options.device) for name in batch.PROGRAMS}
    _tell_skipped({name: reason for name, reason in reasons.items() if reason})
    model = checkpoint.ready(_load(options.model, options.dtype), options.dtype, options.device)
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        package = checkpoint.convert(
            model, Path(folder) / "model.mdcg", Settings(device=options.device)
        )
        symbols = Package.open(package).manifest["type_names"]
        images = batch.structures(options.structures, symbols)
        atoms, want = sum(map(len, images)), None
        print(f"{len(images)} structures, {atoms:,} atoms, {options.dtype}, {options.device}")
        task = batch.Task(model, package, images, options.device)
        for name in options.impl or batch.PROGRAMS:
            if reasons[name] is not None:
                continue
            row = batch.measure(name, task, options.repeats)
            want = row["energies"] if want is None else want
            error = np.abs((row["energies"] - want) / list(map(len, images))).max()
            each = 1e3 * row["seconds"] / len(images)
            print(
                f"{name:14} {each:9.4f} ms per structure {each * len(images) * 1e3 / atoms:9.3f} "
                f"us per atom, energies to {error:.0e} eV per atom",
                flush=True,
            )
    return 0


def _package(options: argparse.Namespace) -> int:
    from mdcg.bench import checkpoint
    from mdcg.bench.model import Settings

    _known(options.model)
    model = checkpoint.ready(_load(options.model, options.dtype), options.dtype, "cpu")
    checkpoint.convert(model, options.output, Settings())
    return 0


def _engine_conv(options: argparse.Namespace) -> int:
    from .engine_conv import table

    for case in find_cases(options.case):
        print(table(case.name, case.problem(options.dtype)), flush=True)
    return 0


def _show(options: argparse.Namespace) -> int:
    found = comparison.read_results(options.results)
    if options.command == "table":
        print(comparison.markdown_table(found))
    else:
        comparison.draw(options.output, found, options.model, options.dtype)
    return 0


def _tell_skipped(reasons: dict[str, str]) -> None:
    if reasons:
        print("not measured: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))


def _progress(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)
