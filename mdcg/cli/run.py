"""``mdcg run``: dynamics or a relaxation of one structure, with ASE."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MdcgError, MissingDependencyError, installation
from ._common import (
    UsageError,
    heavy_work,
    positive,
    positive_integer,
    require_file,
    require_package,
)
from .patch import dtype_argument

if TYPE_CHECKING:
    from ase import Atoms

_DESCRIPTION = """\
Run molecular dynamics, or relax a structure, with a package, or with a checkpoint or a published
model, which is converted once, into the cache, and compared with the original. Writes the
trajectory PREFIX.traj, the log PREFIX.log, and PREFIX.png with energy and temperature."""

_EPILOG = """\
examples:
  mdcg run water.mdcg water.xyz --md nvt --temperature 300 --steps 1000
  mdcg run water.mdcg water.traj --md nve --timestep 0.5 --steps 2000 --output longer
  mdcg run mace-mpa-0 crystal.cif --relax --cell --fmax 0.01
  mdcg run mace-omol ion.xyz --md nvt --charge -1 --spin 1

nve is velocity Verlet; nvt the thermostat of Bussi, Donadio and Parrinello (relaxation time
100 fs); npt the isotropic barostat of Martyna, Tobias and Klein (100 fs and 1 ps). Velocities of
the structure are kept; where it has none, they are drawn for the temperature. Ctrl-C ends the run
after its step, and all files hold what was computed until then.

exit codes: 0 ok, 1 the structure fell apart or is not relaxed yet (the files hold the steps),
            and those of mdcg convert
"""

# Options of one kind of run, and their defaults.
_OF_DYNAMICS = {"timestep": 0.5, "temperature": 300.0}
_OF_RELAXATION = {"fmax": 0.05, "cell": False}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="dynamics or a relaxation of a structure",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="package (.mdcg), checkpoint or the name of a published model",
    )
    add("structure", type=Path, help="file that ASE reads, of which the last frame is taken")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--md", choices=("nve", "nvt", "npt"), help="molecular dynamics")
    kind.add_argument("--relax", action="store_true", help="move atoms to where forces vanish")
    add("--steps", type=positive_integer, metavar="N",
        help="steps of dynamics (default 1000), or the most of a relaxation (500)")  # fmt: skip
    add("--timestep", type=positive, metavar="FS", help="in fs (default 0.5, right for hydrogen)")
    add("--temperature", type=positive, metavar="K", help="in K (default 300)")
    add("--pressure", type=_number, metavar="BAR", help="of npt and --cell, in bar (default 0)")
    add("--fmax", type=positive, metavar="F",
        help="largest force of a relaxed structure in eV/Å (default 0.05)")  # fmt: skip
    add("--cell", action="store_true", default=None, help="relax the cell, too")
    add("--seed", type=_whole, default=0, metavar="N", help="of velocities and nvt (default 0)")
    model = parser.add_argument_group("model")
    model.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:N, hip or hip:N")
    model.add_argument("--skin", type=_number, metavar="Å", help="of neighbour lists (default 1)")
    text = "of a checkpoint with several heads; of a package, it must be its own"
    model.add_argument("--head", metavar="NAME", help=text)
    text = "of a checkpoint (default: its own)"
    model.add_argument("--dtype", type=dtype_argument, metavar="{float32,float64}", help=text)
    inputs = parser.add_argument_group(
        "inputs",
        "numbers that some models read of the structure; they replace those of its file, but "
        "not components of a vector such as external_field",
    )
    inputs.add_argument("--charge", type=_number, metavar="Q", help="total charge in e")
    inputs.add_argument("--spin", type=_number, metavar="M", help="spin multiplicity, 2S+1")
    inputs.add_argument("--input", type=_setting, action="append", default=[],
        metavar="NAME=VALUE", help="any other, as mdcg info lists them")  # fmt: skip
    files = parser.add_argument_group("files")
    files.add_argument("-o", "--output", type=Path, metavar="PREFIX",
        help="start of their names (default: the name of the structure)")  # fmt: skip
    files.add_argument("--format", choices=("traj", "xyz"), default="traj",
        help="of the trajectory: ASE's own (default) or extended xyz")  # fmt: skip
    files.add_argument("--interval", type=positive_integer, metavar="N",
        help="write every N steps (default 10; 1 in relaxations)")  # fmt: skip
    files.add_argument("--overwrite", action="store_true", help="replace files of an earlier run")
    parser.set_defaults(run=run, program="mdcg run", refuse=parser.error)


def _number(text: str) -> float:
    with suppress(ValueError):
        if isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")


def _setting(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), _number(value)


def _whole(text: str) -> int:
    with suppress(ValueError):
        if int(text) >= 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")


def run(options: argparse.Namespace) -> None:
    """Check all that can be checked, open the model, and run."""
    _complete(options)
    require_file(options.structure)
    files = _files(options)
    for module in ("matplotlib", "ase"):
        if find_spec(module) is None:
            raise MissingDependencyError(
                f"mdcg run needs {module}, which is not installed: {installation(module)}"
            )
    with heavy_work(logging.INFO):
        atoms = _structure(options)
        _attach(atoms, options)
        from .simulation import simulate

        summary = simulate(atoms, options, files)
    print(summary)


def _complete(options: argparse.Namespace) -> None:
    """Refuse options of the other kind of run, and set defaults."""
    kind, others, own = ("--md", _OF_RELAXATION, _OF_DYNAMICS)
    if options.relax:
        kind, others, own = ("--relax", _OF_DYNAMICS, _OF_RELAXATION)
    for name in others:
        if getattr(options, name) is not None:
            options.refuse(f"--{name} does not apply to {kind}")
    for name, value in own.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.pressure is not None and not (options.cell or options.md == "npt"):
        options.refuse("--pressure is for --md npt and for --relax --cell")
    options.pressure = options.pressure or 0.0
    options.steps = options.steps or (500 if options.relax else 1000)
    options.interval = options.interval or (1 if options.relax else 10)


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files of the run, by kind, none of which may exist."""
    prefix = options.output or Path(options.structure.stem)
    if not prefix.name or prefix.is_dir():
        raise UsageError(f"--output is {prefix}, a folder, expected the start of file names")
    if not os.access(prefix.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"the folder of {prefix} does not exist or cannot be written to")
    suffixes = {"trajectory": options.format, "log": "log", "plot": "png"}
    files = {kind: prefix.with_name(f"{prefix.name}.{end}") for kind, end in suffixes.items()}
    inputs = [path for path in (options.structure, Path(options.model)) if path.exists()]
    for file in files.values():
        if not os.path.lexists(file):
            continue
        if any(file.exists() and file.samefile(path) for path in inputs):
            raise UsageError(f"{file} is an input, which is never overwritten: name --output")
        if not options.overwrite:
            raise UsageError(f"{file} exists already: name another --output or use --overwrite")
        if not file.is_file():
            raise UsageError(f"{file} is not a regular file: name another --output")
    return files


def _structure(options: argparse.Namespace) -> Atoms:
    """Read the structure, and check that the run is possible with its cell."""
    from ..bench.systems import read_structure

    try:
        atoms = read_structure(str(options.structure), index=-1)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not len(atoms):
        raise UsageError(f"{options.structure} has no atoms: give a structure with some")
    if options.md == "npt" and not (atoms.cell.rank == 3 and atoms.pbc.all()):
        raise UsageError(
            f"{options.structure} is not periodic in three directions, which --md npt needs: use "
            "--md nvt"
        )
    if options.cell and not (atoms.cell.rank == 3 and atoms.pbc.any()):
        raise UsageError(
            f"{options.structure} has no cell of three vectors that is periodic, which --cell "
            "needs: leave it out"
        )
    return atoms


def _attach(atoms: Atoms, options: argparse.Namespace) -> None:
    """Give the structure a calculator of the model, which must know all its elements."""
    from ase.calculators.calculator import InputError

    from ..calculators import MDCGCalculator

    package = _package(options)
    try:
        _state_inputs(atoms, package, options)
    except InputError as error:
        raise UsageError(f"{options.structure}: {error}") from error
    skin = {} if options.skin is None else {"skin": options.skin}
    own = {"head": options.head, "dtype": options.dtype}
    try:
        calculator = MDCGCalculator(package, device=options.device, **own, **skin)
    except ValueError as error:
        if isinstance(error, MdcgError):
            raise
        raise UsageError(f"{options.model}: {error}") from error
    if not calculator.implemented_properties or "forces" not in calculator.implemented_properties:
        raise UsageError(f"{options.model} gives no forces: give a model of energies")
    missing = sorted(set(atoms.get_chemical_symbols()) - set(calculator.species))
    if missing:
        raise UsageError(
            f"{options.structure} has {', '.join(missing)}, which {options.model} lacks, expected "
            f"any of {' '.join(calculator.species)}: give a model of all its elements"
        )
    atoms.calc = calculator


def _state_inputs(atoms: Atoms, package: Path, options: argparse.Namespace) -> None:
    """Let the structure state the inputs that were given, each of which the package must read.

    `options.stated` becomes the value of each input, by name.
    """
    from ..calculators.stated_inputs import keys_of_input, stated_value
    from ..package.file import Package
    from ..package.inputs import SystemInput

    inputs = [SystemInput.of_entry(entry) for entry in Package.open(package).inputs]
    keys = Counter(key for each in inputs for key in keys_of_input(each.name))
    # several inputs may share a key, which holds a vector
    known = {k: each for each in inputs for k in keys_of_input(each.name) if keys[k] == 1}
    words = [(f"--{name}", name, getattr(options, name)) for name in ("charge", "spin")]
    given = [(word, name, value) for word, name, value in words if value is not None]
    given += [(f"--input {name}", name, value) for name, value in options.input]
    before: dict[str, str] = {}
    for word, name, value in given:
        found = known.get(name)
        if found is None:
            reads = ", ".join(each.name for each in inputs) or "nothing but the atoms"
            raise UsageError(
                f"{word} is given, but {options.model} reads {reads} of a structure: leave it out"
            )
        if found.name in before:
            raise UsageError(
                f"{before[found.name]} and {word} are one input of {options.model}: give one"
            )
        if not found.takes(value):
            raise UsageError(f"{word} is {value:g}, expected {found.expected}")
        before[found.name] = word
        for key in keys_of_input(found.name):
            if key in known:
                atoms.info.pop(key, None)
        atoms.info[found.name] = int(value) if found.whole else value
    options.stated = {}
    for each in inputs:
        stated = stated_value(each.name, atoms.info)
        if stated is None and each.default is None:
            known_words = {"charge": "--charge", "spin": "--spin"}
            own = keys_of_input(each.name)
            word = next((known_words[k] for k in own if k in known_words), f"--input {each.name}=")
            raise UsageError(
                f"{options.structure} states no {each.name}, which {options.model} reads and has "
                f"no default for: give {word}, {each.expected}"
            )
        options.stated[each.name] = each.default if stated is None else stated[1]


def _package(options: argparse.Namespace) -> Path:
    """Return the package of the model; a checkpoint's is made once."""
    from ..package import ConversionOptions
    from ..package.cached import cached_package, named_package
    from ..package.file import is_package
    from ..runtime.cache import is_name

    path, named = Path(options.model), is_name(options.model)
    if is_package(path):
        require_package(path)
        return path
    if not named:
        require_file(path)
    wanted = ConversionOptions(head=options.head, dtype=options.dtype)
    try:
        return named_package(options.model, wanted) if named else cached_package(path, wanted)
    except ValueError as error:
        if isinstance(error, MdcgError):
            raise
        raise UsageError(f"{options.model}: {error}") from error
