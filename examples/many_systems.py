"""
Many crystals at once with TorchSim
===================================

Relaxes copper crystals of different sizes, cells and vacancies together, atoms and cells, and then
runs all of them at one temperature. TorchSim has the algorithms; mdcg evaluates all crystals of a
step in one pass.

    pip install ".[torchsim,bench]"        # in the clone
    python examples/many_systems.py
    python examples/many_systems.py --device cuda --structures 2000

Writes ``output/many_systems.png``: energies before and after, and the temperature.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch_sim as ts
from ase import Atoms
from ase.build import bulk

from mdcg.torchsim import MDCGModel

EXAMPLES = Path(__file__).resolve().parent


def crystals(count: int, seed: int = 0) -> list[Atoms]:
    """Return strained copper crystals of 4 to 32 atoms, half of which lack an atom."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        atoms = bulk("Cu", "fcc", a=3.6, cubic=True).repeat(rng.integers(1, 3, size=3))
        if number % 2:
            del atoms[rng.integers(len(atoms))]
        strain = np.eye(3) + rng.normal(scale=0.02, size=(3, 3))
        atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        found.append(atoms)
    return found


class Temperatures(ts.TrajectoryReporter):
    """Keeps temperatures (K) of all systems at every step, and writes no files."""

    def __init__(self) -> None:
        super().__init__(None)
        self.found: list[np.ndarray] = []

    def report(self, state: ts.SimState, step: int, model: MDCGModel | None = None) -> list:
        parts = {name: getattr(state, name) for name in ("masses", "momenta", "system_idx")}
        self.found.append(ts.quantities.calc_temperature(**parts).cpu().numpy())
        return []


def plot(
    path: Path,
    before: np.ndarray,
    after: np.ndarray,
    temperatures: np.ndarray,
    timestep: float,
    thermostat: float,
) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    bins = np.histogram_bin_edges(np.concatenate([before, after]), 30)
    left.hist(before, bins, color="#f2b5a7", label="before relaxation")
    left.hist(
        after, bins, color="#4878a8", histtype="step", linewidth=1.6, label="after relaxation"
    )
    left.set(xlabel="energy per atom (eV)", ylabel="number of crystals")
    left.locator_params("x", nbins=5)
    left.yaxis.get_major_locator().set_params(integer=True)
    left.legend(frameon=False)
    times = timestep * np.arange(1, len(temperatures) + 1)
    mean = temperatures.mean(axis=1)
    error = temperatures.std(axis=1) / np.sqrt(temperatures.shape[1])
    right.axhline(thermostat, color="0.5", linestyle="--", linewidth=1.0, label="thermostat")
    right.plot(times, mean, color="#4878a8", label="mean of all crystals")
    right.fill_between(
        times, mean - error, mean + error, color="#4878a8", alpha=0.3, label="standard error"
    )
    right.set(xlabel="t (ps)", ylabel="temperature (K)", ylim=(0, None), xlim=(0, None))
    right.legend(frameon=False, loc="lower right")
    figure.suptitle(f"{temperatures.shape[1]} copper crystals")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Relaxation and dynamics of many crystals.")
    add = parser.add_argument
    add("--package", type=Path, default=EXAMPLES / "data" / "copper.mdcg")
    add("--device", help="cpu or cuda; default: a GPU if there is one")
    add("--structures", type=int, default=40)
    add("--steps", type=int, default=500, help="of dynamics")
    add("--timestep", type=float, default=0.002, help="of dynamics, in ps")
    add("--temperature", type=float, default=300.0, help="of the thermostat, in K")
    add("--out", type=Path, default=EXAMPLES / "output")
    options = parser.parse_args(arguments)

    model = MDCGModel(options.package, options.device)
    start = ts.initialize_state(crystals(options.structures), model.device, model.dtype)
    sizes = start.system_idx.bincount()
    before = (model(start)["energy"] / sizes).cpu().numpy()
    print(f"{start.n_systems} crystals, {start.n_atoms} atoms, on {model.device}")

    # the engine cuts what is too large for the memory; this only bounds what TorchSim holds
    batches = ts.InFlightAutoBatcher(model, memory_scales_with="n_atoms", max_memory_scaler=100_000)
    begin = time.perf_counter()
    relaxed = ts.optimize(
        start,
        model,
        optimizer=ts.frechet_cell_fire,
        convergence_fn=ts.generate_force_convergence_fn(0.02),
        max_steps=1000,
        autobatcher=batches,
        pbar={"desc": "relaxed", "disable": False},
    )
    seconds = time.perf_counter() - begin
    after = (relaxed.energy / sizes).cpu().numpy()
    print(f"relaxed in {seconds:.1f} s: {before.mean():.4f} -> {after.mean():.4f} eV per atom")

    temperatures = Temperatures()
    begin = time.perf_counter()
    ts.integrate(
        relaxed,
        model,
        integrator=ts.nvt_langevin,
        n_steps=options.steps,
        temperature=options.temperature,
        timestep=options.timestep,
        trajectory_reporter=temperatures,
    )
    seconds = (time.perf_counter() - begin) / max(1, options.steps)
    print(f"dynamics: {1e3 * seconds:.2f} ms per step of all crystals")
    found = options.out / "many_systems.png"
    kept = np.array(temperatures.found)
    plot(found, before, after, kept, options.timestep, options.temperature)
    print(f"wrote {found}")


if __name__ == "__main__":
    main()
