"""Fixtures: small random NequIP models, checkpoints, and comparisons of models."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("nequip") is None:
    pytest.skip("nequip is not installed: pip install 'mdcg[nequip]'", allow_module_level=True)

import torch

from mdcg.patch.evaluate import evaluate_structure
from mdcg.patch.models import model_info
from mdcg.patch.nequip_files import nequip_state
from mdcg.patch.systems import Structure

from ..outputs import DATA, Outputs, agree, data_dir, systems

__all__ = ["agree", "data_dir", "systems"]  # fixtures

#: Settings of models that give layers of different shapes.
MODELS: dict[str, dict[str, Any]] = {
    "parity": {"num_layers": 3, "l_max": 2, "parity": True, "num_features": 4},
    "preset-like": {
        "num_layers": 3,
        "l_max": 3,
        "parity": False,
        "num_features": [9, 4, 2, 3],
        "type_embed_num_features": 5,
    },
    "one layer": {"num_layers": 1, "l_max": 1, "parity": False, "num_features": [6, 3]},
    "scalars": {"num_layers": 2, "l_max": 0, "parity": False, "num_features": 5},
    "per type": {
        "num_layers": 2,
        "l_max": 2,
        "parity": False,
        "num_features": [7, 2, 3],
        "avg_num_neighbors": {"H": 3.0, "C": 2.0, "O": 5.0},
        "per_edge_type_cutoff": {"H": 3.0, "C": {"H": 3.5, "C": 4.0, "O": 2.5}, "O": 4.0},
    },
    "pair potential": {
        "num_layers": 2,
        "l_max": 1,
        "parity": True,
        "num_features": 4,
        "pair_potential": {
            "_target_": "nequip.nn.pair_potential.ZBL",
            "units": "metal",
            "chemical_species": ["H", "C", "O"],
        },
    },
}


def build_model(
    name: str = "preset-like", dtype: torch.dtype = torch.float64, **changes: Any
) -> torch.nn.Module:
    """Return a small random NequIP model, ready to evaluate."""
    with nequip_state():
        from nequip.model import NequIPGNNModel

        settings = {
            "seed": 5,
            "model_dtype": str(dtype).removeprefix("torch."),
            "type_names": ["H", "C", "O"],
            "r_max": 4.0,
            "avg_num_neighbors": 3.0,
            "radial_mlp_width": 12,
            "per_type_energy_scales": 1.3,
            "per_type_energy_shifts": {"H": 0.5, "C": -1.5, "O": 2.0},
            **MODELS[name],
            **changes,
        }
        model: torch.nn.Module = NequIPGNNModel(**settings)
    return model.eval()


@pytest.fixture(scope="session")
def build() -> Callable[..., torch.nn.Module]:
    """Return :func:`build_model`."""
    return build_model


def evaluate_model(model: torch.nn.Module, system: Structure) -> Outputs:
    """Return energy, forces and, if there is a cell, stress."""
    return evaluate_structure(model, model_info(model), system)[1]


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Outputs]:
    """Return :func:`evaluate_model`."""
    return evaluate_model


@pytest.fixture(scope="session")
def training_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the few frames that the checkpoints' configurations name."""
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import write

    folder = tmp_path_factory.mktemp("training")
    rng = np.random.default_rng(7)
    for name, symbols in (("water_ase.xyz", "O4H8"), ("alloy_ase.xyz", "Cu3Ag3Au3Ni3")):
        frames = []
        for _ in range(10):
            atoms = Atoms(symbols, cell=3 * [6.0], pbc=True)
            grid = np.stack(np.meshgrid(range(2), range(2), range(3)), axis=-1).reshape(-1, 3)
            atoms.positions = grid * [3.0, 3.0, 2.0] + rng.uniform(-0.3, 0.3, (12, 3))
            forces = rng.normal(size=(12, 3))
            stress = 0.01 * rng.normal(size=6)
            atoms.calc = SinglePointCalculator(
                atoms, energy=float(rng.normal()), forces=forces - forces.mean(0), stress=stress
            )
            frames.append(atoms)
        write(folder / name, frames, format="extxyz")
    return folder


def run_tool(name: str, *arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of NequIP in a subprocess."""
    tool = shutil.which(name, path=str(Path(sys.executable).parent))
    assert tool is not None, f"{name} is not beside {sys.executable}"
    return subprocess.run(
        [tool, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "HYDRA_FULL_ERROR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def tool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return :func:`run_tool`."""
    return run_tool


@pytest.fixture(scope="session")
def package(training_folder: Path) -> Path:
    """Return a package built from the alloy checkpoint."""
    target = training_folder / "alloy.nequip.zip"
    source = DATA / "nequip_alloy.ckpt"
    done = run_tool("nequip-package", "build", source, target, folder=training_folder)
    assert target.exists(), done.stderr
    return target
