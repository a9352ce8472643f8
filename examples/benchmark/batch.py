"""Energies and forces of many small structures: one by one, in batches, and in TorchSim."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.collections import g2

from mdcg import MDCGCalculator, Package
from mdcg.bench import checkpoint
from mdcg.bench.model import Settings
from mdcg.cli._common import names
from mdcg.cli.bench import add_command
from mdcg.patch._frameworks import default_dtype

from .models import load, require_model
from .programs import tell_skipped

_HELP = """\
Time energies and forces of molecules and crystals of 8 to 60 atoms: mdcg's calculator one by one,
its `batch`, mdcg as a model of TorchSim, and TorchSim's own MACE model (with cuEquivariance on a
GPU) at the best size of its batches. Lists of neighbours are part of the time; TorchSim's states
are made beforehand."""

_FEWEST_ATOMS, _MOST_ATOMS = 8, 60
_VACUUM = 8.0  # Å around molecules: TorchSim's states are periodic as a whole, or not at all
#: Atoms that TorchSim is given at once; the fastest counts.
_BATCH_ATOMS = (500, 2000, 8000, 32000)


@dataclass(frozen=True)
class Task:
    """A model in torch, the package made of it, structures, and where they are evaluated."""

    model: torch.nn.Module
    package: Path
    images: Sequence[Atoms]
    device: str


def structures(count: int, symbols: Sequence[str], seed: int = 0) -> list[Atoms]:
    """Return molecules of ASE's collection g2 and crystals, displaced at random, of 8 to 60 atoms.

    Raises
    ------
    ValueError
        There is none of these elements.
    """
    rng, known = np.random.default_rng(seed), set(symbols)
    sources = []
    for atoms in map(molecule, g2.names):
        if len(atoms) >= _FEWEST_ATOMS and known.issuperset(atoms.symbols):
            atoms.center(vacuum=_VACUUM)
            atoms.pbc = True
            sources.append(atoms)
    for name, lattice, a in (("Cu", "fcc", 3.6), ("Fe", "bcc", 2.87), ("Si", "diamond", 5.43)):
        if name in known:
            cell = bulk(name, lattice, a=a, cubic=True)
            sizes = [n for n in range(1, 31) if _FEWEST_ATOMS <= n * len(cell) <= _MOST_ATOMS]
            sources += [cell.repeat((n, 1, 1)) for n in sizes]
    if not sources:
        raise ValueError(f"no structure is made of {' '.join(symbols)}: choose another model")
    found = []
    for number in rng.integers(len(sources), size=count):
        atoms = sources[number].copy()
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        found.append(atoms)
    return found


def _one_by_one(task: Task) -> Iterator[Callable[[], np.ndarray]]:
    calc = MDCGCalculator(task.package, device=task.device)

    def run() -> np.ndarray:
        energies = []
        for atoms in task.images:
            calc.calculate(atoms, ["energy", "forces"])
            energies.append(calc.results["energy"])
        return np.array(energies)

    yield run


def _batch(task: Task) -> Iterator[Callable[[], np.ndarray]]:
    calc = MDCGCalculator(task.package, device=task.device)
    yield lambda: np.array([found["energy"] for found in calc.batch(task.images)])


def _in_torchsim(task: Task, model: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """States are made beforehand; lists of neighbours are part of the model's time."""
    import torch_sim as ts

    for size in sizes:
        states, group = [], []
        for number, atoms in enumerate(task.images):
            group.append(atoms)
            if sum(map(len, group)) >= size or number + 1 == len(task.images):
                states.append(ts.io.atoms_to_state(group, model.device, model.dtype))
                group = []

        def run(states: list[Any] = states) -> np.ndarray:
            found = [model(state) for state in states]
            return torch.cat([each["energy"] for each in found]).cpu().numpy()

        yield run


def _torchsim_mdcg(task: Task) -> Iterator[Any]:
    from mdcg.torchsim import MDCGModel

    model = MDCGModel(task.package, task.device, compute_stress=False)
    return _in_torchsim(task, model, _BATCH_ATOMS[-1:])


def _torchsim_mace(task: Task) -> Iterator[Any]:
    from torch_sim.models.mace import MaceModel

    network, dtype = task.model, next(task.model.parameters()).dtype
    if task.device != "cpu":  # enable_cueq of TorchSim 0.3 leaves the model on the CPU
        from mace.cli.convert_e3nn_cueq import run

        with default_dtype(dtype):
            network = run(network, device=task.device)
    device = torch.device(task.device)
    model = MaceModel(network, device=device, dtype=dtype, compute_stress=False)
    return _in_torchsim(task, model, _BATCH_ATOMS)


_PROGRAMS: dict[str, Callable[[Task], Iterator[Any]]] = {
    "one-by-one": _one_by_one,
    "batch": _batch,
    "torchsim-mdcg": _torchsim_mdcg,
    "torchsim-mace": _torchsim_mace,
}
PROGRAMS = tuple(_PROGRAMS)


def missing(program: str, device: str) -> str | None:
    """Return why a program cannot run, or None."""
    needed = ("torch_sim",) * program.startswith("torchsim")
    if program == "torchsim-mace" and device != "cpu":
        needed += ("cuequivariance_torch", "cuequivariance_ops_torch")
    absent = [name for name in needed if not find_spec(name)]
    return f"{', '.join(absent)} is not installed" if absent else None


def measure(program: str, task: Task, repeats: int) -> dict[str, Any]:
    """Return the shortest time in seconds and the energies, of the best size of batches.

    Sizes that run out of memory are left out.
    """
    best, energies = np.inf, np.zeros(0)
    for run in _PROGRAMS[program](task):
        try:
            run()  # compiles and takes memory
            for _ in range(repeats):
                start = time.perf_counter()
                energies = run()
                best = min(best, time.perf_counter() - start)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    return {"program": program, "seconds": best, "energies": energies}


def add_parser(commands: Any) -> None:
    """Add the command ``batch``."""
    text = "time many small structures at once beside TorchSim"
    add = add_command(commands, "batch", text, _HELP, run).add_argument
    add("model", metavar="MODEL", help="of MACE, as in `model`")
    add("--structures", type=int, default=1000, help="default 1000")
    add("--repeats", type=int, default=3, help="the fastest counts (default 3)")
    add("--dtype", choices=("float32", "float64"), default="float32")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--impl", type=names, metavar="NAME,...", help=", ".join(PROGRAMS))


def run(options: argparse.Namespace) -> None:
    """Time each program and print a line for it."""
    if unknown := set(options.impl or ()) - set(PROGRAMS):
        known = ", ".join(PROGRAMS)
        raise ValueError(f"program {unknown.pop()!r} is unknown, expected one of {known}")
    require_model(options.model)
    reasons = {name: missing(name, options.device) for name in PROGRAMS}
    tell_skipped(reasons)
    model = load(options.model, options.dtype, options.device)
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        settings = Settings(device=options.device)
        package = checkpoint.convert(model, Path(folder) / "model.mdcg", settings)
        images = structures(options.structures, Package.open(package).manifest["type_names"])
        atoms, want = sum(map(len, images)), None
        print(f"{len(images)} structures, {atoms:,} atoms, {options.dtype}, {options.device}")
        task = Task(model, package, images, options.device)
        for name in options.impl or PROGRAMS:
            if reasons[name] is not None:
                continue
            row = measure(name, task, options.repeats)
            want = row["energies"] if want is None else want
            error = np.abs((row["energies"] - want) / list(map(len, images))).max()
            each = 1e3 * row["seconds"] / len(images)
            print(
                f"{name:14} {each:9.4f} ms per structure {each * len(images) * 1e3 / atoms:9.3f} "
                f"us per atom, energies to {error:.0e} eV per atom",
                flush=True,
            )
