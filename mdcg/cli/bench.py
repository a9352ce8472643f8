"""The command ``mdcg bench``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .. import env
from ..errors import DeviceError, MdcgError
from ._common import UsageError, names, positive_integer, require_package

_MODEL_HELP = """\
Time energy and forces of a model on this machine: the original checkpoint, the patched model, and
the engine, in turns in one process. The neighbour list is made beforehand and not counted. In each
step the engine takes positions from the host and returns results to it, as in dynamics. A package
(.mdcg) is timed in the engine alone, without torch. On a GPU each step is waited for, and timed by
the host's clock. An implementation that runs out of GPU memory is left out at that size."""

_LAMMPS_HELP = """\
Time pair_style mdcg in the installed LAMMPS, with one thread or one GPU per rank, and the engine
alone in this process. Times are averaged over ranks: the whole step, the pair style, the part of it
in which ranks exchange rows between layers, LAMMPS' communication, a new neighbour list, and what
the pair style takes longer in the step with a new list. dE is the largest difference of the
potential energy from that on one rank (with --weak, of the first step)."""

_STARTUP_HELP = """\
Time `import mdcg` and opening a package in fresh processes: once with an empty cache of kernels, so
that they are compiled, and several times with a full one."""

# The size of published GPU timings: 436,904 edges at 6 Å.
_GPU_ATOMS = 5184


def add_parser(commands: Any) -> None:
    """Add the command and its subcommands."""
    text = "time models, the pair style and the start of a process"
    parser = commands.add_parser("bench", help=text, description="Time models.")
    parser.set_defaults(run=lambda options: parser.print_help(), program="mdcg bench")
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    model = add_command(kinds, "model", "energy and forces", _MODEL_HELP, _bench_model)
    model.add_argument("model", nargs="+", metavar="FILE", help="checkpoints and packages")
    model_arguments(model)
    add = add_command(kinds, "lammps", "pair_style mdcg", _LAMMPS_HELP, _bench_lammps).add_argument
    add("package", type=Path, metavar="FILE.mdcg", help="with the elements of the system")
    _system_arguments(add)
    add(
        "--exchange",
        choices=("auto", "host", "peer"),
        default="auto",
        help="how ranks exchange rows (default auto: peer where it is possible)",
    )
    add("--weak", action="store_true", help="as many atoms for each rank, instead of for all")
    add("--ranks", type=_counts, default=(1, 2), metavar="N,...", help="default 1,2")
    add("--steps", type=positive_integer, default=10, metavar="N", help="timed steps (default 10)")
    startup = add_command(kinds, "startup", "importing and opening", _STARTUP_HELP, _bench_startup)
    add = startup.add_argument
    add("package", type=Path, metavar="FILE.mdcg", help="a package")
    add("--repeats", type=positive_integer, default=5, metavar="N", help="processes (default 5)")
    add("--json", metavar="FILE", help="write all numbers")


def add_command(
    commands: Any, name: str, summary: str, text: str, measure: Callable[[Any], int | None]
) -> argparse.ArgumentParser:
    """Add a command that measures something, and return its parser."""

    def run(options: argparse.Namespace) -> int | None:
        package = getattr(options, "package", None)
        if package is not None:
            require_package(package)
        result = getattr(options, "json", None)
        if result and not os.access(Path(result).absolute().parent, os.W_OK | os.X_OK):
            raise UsageError(f"the folder of {result} does not exist or cannot be written to")
        try:
            return measure(options)
        except ValueError as error:
            if isinstance(error, MdcgError):
                raise
            raise UsageError(str(error)) from error

    form = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser
    parser = commands.add_parser(name, help=summary, description=text, formatter_class=form)
    parser.set_defaults(run=run)
    return parser


def model_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of commands that measure models."""
    measuring_arguments(command)
    command.add_argument("--head", help="head of a model with several")
    command.add_argument("--stress", action="store_true", help="the stress too")
    command.add_argument("--memory", default="", metavar="SIZE",
        help="memory of the engine, such as '92 %%'; larger systems in domains")  # fmt: skip


def measuring_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of commands that measure in this process."""
    add = command.add_argument
    _system_arguments(add)
    add(
        "--impl",
        type=names,
        metavar="NAME,...",
        help="such as original,patched,engine (default: all)",
    )
    add("--dtype", type=names, metavar="DTYPE,...", help="float32 or float64 (default: as it is)")
    add("--repeats", type=positive_integer, default=10, metavar="N", help="samples (default 10)")
    add("--threads", type=positive_integer, default=env.threads() or env.usable_cores(),
        metavar="N", help="default: OMP_NUM_THREADS, or all cores")  # fmt: skip


def _system_arguments(add: Callable[..., object]) -> None:
    add("--system", default="water", metavar="NAME|FILE",
        help="water, carbon, iron or a structure file (default water)")  # fmt: skip
    add("--atoms", type=_counts, metavar="N,...", help="sizes of water, carbon or iron")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    add("--json", metavar="FILE", help="write all numbers")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(positive_integer, names(text)))


def make_systems(options: argparse.Namespace) -> list[Any]:
    """Return the structures that the options name, as ASE's Atoms."""
    from ..bench.systems import make_system

    default = _GPU_ATOMS if (options.device, options.system) == ("cuda", "water") else None
    return [make_system(options.system, count) for count in options.atoms or (default,)]


def start(options: argparse.Namespace, *, torch: bool = True) -> dict[str, Any]:
    """Prepare this process for measuring; print the heading, and return the start of the results.

    Raises errors about options, and `DeviceError` if `torch` is needed and finds no CUDA device.
    """
    from ..bench import report
    from ..bench.timing import keep_heap, torch_cuda
    from ..problem.text import dtype_of

    options.dtype = tuple(map(dtype_of, options.dtype or ()))
    if torch:
        import torch as found

        found.set_num_threads(options.threads)
        if options.device == "cuda" and torch_cuda() is None:
            raise DeviceError(
                f"torch {found.__version__} finds no CUDA device: use --device cpu, or see mdcg env"
            )
    keep_heap()
    result = report.document(options.command, vars(options), torch_cuda())
    print(report.header(result), flush=True)
    return result


def show_models(
    options: argparse.Namespace,
    result: dict[str, Any],
    name: str,
    sections: Iterable[Mapping[str, Any]],
) -> int:
    """Print a table for each structure and keep its rows; return 1 if something failed, else 0."""
    from ..bench import report

    for section in sections:
        shared = {key: value for key, value in section.items() if key not in ("rows", "refused")}
        shared |= {"model": name, "system": Path(options.system).name}
        for kind in ("rows", "refused"):
            result[kind] += [{**shared, **row} for row in section[kind]]
        print("\n" + report.model_table(section, name, shared["system"]), flush=True)
        if options.json:
            report.write_json(options.json, result)
    return int(any(one["failed"] for one in result["refused"]))


def _bench_model(options: argparse.Namespace) -> int:
    from ..bench.model import IMPLS, EngineStep, Loader, Settings, measure

    packages = [name for name in options.model if name.endswith(".mdcg")]
    for name in options.model:
        if not Path(name).is_file():
            raise ValueError(f"model {name!r} is not a file: check the path")
        if name in packages and (options.head or options.dtype):
            raise ValueError(f"{name} has its own head and dtype: leave --head and --dtype out")
        known = ("engine",) if name in packages else IMPLS
        if unknown := set(options.impl or ()) - set(known):
            raise ValueError(f"{name} has no {unknown.pop()}, expected one of {', '.join(known)}")
    systems = make_systems(options)
    settings = Settings.of(options)
    result = start(options, torch=len(packages) < len(options.model))
    for name in options.model:
        for dtype in options.dtype or (None,):
            print(f"  … {name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
                loaders: dict[str, Loader]
                loaders = {"engine": partial(partial, EngineStep, Path(name), settings)}
                exact = None
                if name not in packages:
                    from ..bench import checkpoint

                    model = checkpoint.ready(checkpoint.load(name), dtype, options.device)
                    loaders = checkpoint.loaders(model, Path(folder) / "engine.mdcg", settings)
                    exact = checkpoint.exact(model, settings)
                chosen = {impl: loaders[impl] for impl in options.impl or loaders}
                sections = measure(chosen, systems, settings, exact)
                code = show_models(options, result, Path(name).name, sections)
    return code


def _bench_lammps(options: argparse.Namespace) -> None:
    from ..bench import lammps
    from ..bench.systems import make_system

    system, rows = Path(options.system).name, []
    for count in options.atoms or ((648, 5184) if options.system == "water" else (None,)):
        print(f"  … {options.system} {count or ''}", file=sys.stderr, flush=True)
        job = lammps.Job(**{name: getattr(options, name) for name in lammps.Job.__annotations__})
        rows += lammps.measure(make_system(options.system, count), job)
    found = {"benchmark": "lammps", "system": system, "rows": rows}
    _finish(options, found, lammps.table(rows, system))


def _bench_startup(options: argparse.Namespace) -> None:
    from ..bench import startup

    result = startup.measure(options.package, options.repeats)
    _finish(options, {"benchmark": "startup", **result}, startup.table(result))


def _finish(options: argparse.Namespace, result: Mapping[str, Any], table: str) -> None:
    print(table)
    if options.json:
        from ..bench import report

        report.write_json(options.json, result)
