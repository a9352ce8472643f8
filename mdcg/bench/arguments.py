"""Arguments of the command ``python -m mdcg bench``."""

from __future__ import annotations

import argparse
from pathlib import Path

from .cases import DEFAULT_CASES
from .jobs import DTYPES, MODEL_IMPLS, PASSES
from .process import ALLOCATORS
from .systems import ORDERS

__all__ = ["make_parser"]

_CONV_HELP = """\
Time one convolution layer: gather, tensor product, sum over the edges of each receiver. The
implementations run in turns in one process; their results are compared with float64; peak memory is
measured in one process per implementation. Passes: fwd (value), fwd+bwd (gradients of all three
inputs), fwd+bwd+dbl (gradients of the squared norm of the first two gradients).

On a GPU (--device cuda) cuEquivariance and OpenEquivariance run too where they are installed; times
are those between two CUDA events, one call each, from an idle device; "GPU ms" is while its kernels
run, without what they wait for the host, from a profiler that runs after all timing; memory is what
torch allocates during a call, inputs added."""

_MODEL_HELP = """\
Time energy and forces of a model, as it is and after mdcg.patch_model, in turns in one
process. The neighbour list is made before and not counted. MODEL is small, medium or large (random
weights, 89 elements, the shapes of MACE-MP-0), off-medium or mpa-medium (those of MACE-OFF23, 10
elements, and of MACE-MPA-0, with Agnesi transform, density and ZBL), nequip-s, -m, -l or -xl
(random weights, 87 elements, the shapes of NequIP's foundation models, stress included) or a
checkpoint file. The engine runs the model as a package, as in dynamics: positions come from the
host at every step and results go back, and the neighbour list holds.

On a GPU (--device cuda) a model also runs as mace or NequIP converts it to cuEquivariance and
OpenEquivariance, where installed; everything computes the stress too; all sizes of one model are
measured in one process; and all times are the host's, each step being waited for. An implementation
that runs out of memory is left out at that size. For one size, "GPU ms" is while kernels run, from
a profiler that runs after all timing. `bench table` and `bench plot` show what --json wrote:

  python -m mdcg bench model medium --device cuda --atoms 192,1536,5184,24000 --json a.json
  python -m mdcg bench model medium --device cuda --atoms 1029000 --impl engine --no-check \\
      --json b.json
  python -m mdcg bench table a.json b.json
  python -m mdcg bench plot a.json b.json -o times.svg"""

_TABLE_HELP = """\
Print a Markdown table of what `bench model --json` wrote: milliseconds per step and memory of each
model and size. Where several files have the same, the last one counts."""

_PLOT_HELP = """\
Draw what `bench model --json` wrote of one model: milliseconds per step, and microseconds per atom
and step, against the number of atoms."""

_LAMMPS_HELP = """\
Time pair_style mdcg in the installed LAMMPS, one thread per rank: the pair time of a step against
the engine's own time for the same system in this process, the exchange of rows between
layers (a part of the pair time), LAMMPS' communication, and what a new neighbour list costs: making
it, and the pair time of that step beyond that of others. Milliseconds of one rank on average.
With --device cuda each rank takes a device; --system iron has the sizes of published timings
(54, 686, 2662, 6750, 13718 atoms); --weak gives each rank as many atoms; --exchange peer lets rows
of ghosts go from device to device instead of through the host. dE/atom: the largest difference of
the potential energy from that on one rank, eV per atom (with --weak, of the first step)."""

_STARTUP_HELP = """\
Time `import mdcg` and opening a package in fresh processes: once with an empty cache of kernels, so
that they are compiled, and several times with a full one."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _list(text))


def _limits(text: str) -> tuple[tuple[str, int], ...]:
    pairs = [part.partition("=") for part in _list(text)]
    if not all(name in MODEL_IMPLS and count.isdigit() for name, _, count in pairs):
        raise argparse.ArgumentTypeError(f"{text} is not IMPL=N,...")
    return tuple((name, int(count)) for name, _, count in pairs)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m mdcg bench",
        description="Time mdcg side by side with other implementations.",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="conv|model|lammps|startup|table|plot"
    )
    form = argparse.RawDescriptionHelpFormatter
    conv = commands.add_parser(
        "conv", help="one layer", description=_CONV_HELP, formatter_class=form
    )
    conv.add_argument(
        "--case", type=_list, action="append", metavar="NAME,...",
        help=f"layer shapes: names, wildcards or all (default {','.join(DEFAULT_CASES)}; on a GPU "
        "nine of MACE, NequIP and DiffDock)",
    )  # fmt: skip
    conv.add_argument(
        "--batch", type=_positive, metavar="N",
        help="no graph: a batch of N products (default on a GPU for diffdock-*: 50000)",
    )  # fmt: skip
    conv.add_argument(
        "--passes", type=_list, default=PASSES, metavar="PASS,...", help=f"of {', '.join(PASSES)}"
    )
    conv.add_argument(
        "--order",
        choices=ORDERS,
        default="receiver",
        help="how edges are sorted (default receiver)",
    )
    conv.add_argument("--no-startup", action="store_true", help="skip compile and load times")
    conv.add_argument("--list", action="store_true", help="list layer shapes and implementations")
    model = commands.add_parser(
        "model", help="a whole model", description=_MODEL_HELP, formatter_class=form
    )
    model.add_argument("model", nargs="*", metavar="MODEL", help="default: medium")
    add = model.add_argument
    add("--head", help="head of a model with several")
    add(
        "--stress", action=argparse.BooleanOptionalAction,
        help="the stress too (default: on a GPU)",
    )  # fmt: skip
    add("--packages", metavar="DIR", help="take packages of random models from there, keep them")
    add(
        "--largest", type=_limits, default=(), metavar="IMPL=N,...",
        help="leave an implementation out above N atoms",
    )  # fmt: skip
    add("--turns", metavar="FILE", help="wait while another command that names FILE measures")
    add("--no-kernels", action="store_true", help="skip times of kernels on a GPU")
    add("--no-rates", action="store_true", help="skip the machine's ceilings")
    for command in (conv, model):
        _common(command)
    lammps = commands.add_parser(
        "lammps", help="pair_style mdcg", description=_LAMMPS_HELP, formatter_class=form
    )
    lammps.add_argument(
        "package", metavar="FILE.mdcg|MODEL",
        help="a package with the elements of the system, or a model of `bench model`, converted",
    )  # fmt: skip
    add = lammps.add_argument
    add("--system", choices=("water", "carbon", "iron"), default="water", help="default water")
    add("--atoms", type=_counts, metavar="N,...", help="default 648,5184 of water; 686 of iron")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    add("--exchange", choices=("host", "peer"), default="host", help="of rows (default host)")
    add("--weak", action="store_true", help="as many atoms for each rank, instead of for all")
    add("--ranks", type=_counts, default=(1, 2), metavar="N,...", help="default 1,2")
    add("--steps", type=_positive, default=10, metavar="N", help="timed steps (default 10)")
    add("--json", metavar="FILE", help="write all numbers")
    startup = commands.add_parser(
        "startup", help="importing and opening", description=_STARTUP_HELP, formatter_class=form
    )
    startup.add_argument("package", type=Path, metavar="FILE.mdcg", help="a package")
    add = startup.add_argument
    add("--repeats", type=_positive, default=5, metavar="N", help="processes (default 5)")
    add("--json", metavar="FILE", help="write all numbers")
    table = commands.add_parser(
        "table", help="results as Markdown", description=_TABLE_HELP, formatter_class=form
    )
    plot = commands.add_parser(
        "plot", help="results as a drawing", description=_PLOT_HELP, formatter_class=form
    )
    for command in (table, plot):
        command.add_argument("results", nargs="+", metavar="RESULT.json", help="of bench model")
    add = plot.add_argument
    add("-o", "--output", required=True, metavar="FILE", help=".svg, .png or .pdf")
    add("--model", metavar="MODEL", help="default: the one with most sizes")
    add("--dtype", choices=DTYPES, help="default: the one with most sizes")
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--impl", type=_list, metavar="NAME,...", help="implementations (default: all that can run)"
    )
    add("--dtype", type=_list, metavar="DTYPE,...", help=f"of {', '.join(DTYPES)}")
    add("--system", default="water", metavar="NAME|FILE", help="water, carbon or a structure file")
    add("--atoms", type=_counts, metavar="N,...", help="sizes (default: water 192, on a GPU 5184; "
        "carbon 1000)")  # fmt: skip
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    add("--repeats", type=_positive, default=10, metavar="N", help="samples (default 10)")
    add("--warmup", type=_positive, default=3, metavar="N", help="untimed calls (default 3)")
    add("--threads", type=_positive, metavar="N", help="default: all cores of this process")
    add("--malloc", choices=ALLOCATORS, default="tuned", help="glibc settings of the timed process")
    add("--seed", type=int, default=0, help="of inputs and random weights (default 0)")
    add("--no-check", action="store_true", help="skip the comparison with float64")
    add("--no-memory", action="store_true", help="skip peak memory")
    add("--verbose", action="store_true", help="say what takes its time: mostly compilers")
    add("--json", metavar="FILE", help="write all numbers")
    add("--plot", metavar="FILE", help="draw the times; needs matplotlib")
