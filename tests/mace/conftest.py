"""Fixtures: small random MACE models, checkpoints, and comparisons of models."""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("mace") is None:
    pytest.skip("mace-torch is not installed: pip install 'mdcg[mace]'", allow_module_level=True)

import torch

from mdcg.errors import installed_version
from mdcg.patch import model_info
from mdcg.patch._frameworks import default_dtype, import_mace
from mdcg.patch.models import complete_cell, mace_batch, neighbor_list
from mdcg.patch.systems import Structure

from ..outputs import DATA, ROOT, Outputs, agree, data_dir, systems

__all__ = ["agree", "data_dir", "systems"]  # fixtures

import_mace()  # because `import mace` changes the environment

PUBLIC = (
    "mace_spice_2022.model",
    "xtb_committee1.model",
    "xtb_committee2.model",
    "xtb_committee3.model",
    "xtb_solvent_swa.model",
)
E3NN = tuple(int(part) for part in (installed_version("e3nn") or "0.0").split(".")[:2])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under e3nn 0.6, deselect tests that do not depend on the version: they run under 0.4.4."""
    if E3NN < (0, 5):
        return
    here = Path(__file__).parent
    out = [i for i in items if here in i.path.parents and not i.get_closest_marker("e3nn")]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """Return a function from the name of a checkpoint to its path, or a skip."""

    def find(name: str) -> Path:
        if "e3nn044" not in name and E3NN < (0, 5):
            pytest.skip(
                f"{name} was written under e3nn 0.6, whose classes e3nn 0.4.4 does not have"
            )
        return DATA / name

    return find


@pytest.fixture
def water(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a checkpoint of water, the only file in its folder."""
    path = tmp_path / "water.model"
    shutil.copy(checkpoint("mace_water_e3nn044.model"), path)
    return path


def listing(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="session")
def public_checkpoint() -> Callable[[str], Path]:
    """Return a function from the name of a published checkpoint to its path, or a skip."""

    def find(name: str) -> Path:
        folders = [os.environ.get("MDCG_TEST_PUBLIC", ""), str(ROOT.parent / "shared/data/public")]
        for folder in filter(None, folders):
            if (Path(folder) / name).is_file():
                return Path(folder) / name
        pytest.skip(f"{name} is not here: set MDCG_TEST_PUBLIC to the folder of public checkpoints")

    return find


def build_model(
    first: str = "RealAgnosticInteractionBlock",
    rest: str = "RealAgnosticResidualInteractionBlock",
    *,
    model_class: str = "ScaleShiftMACE",
    dtype: torch.dtype = torch.float64,
    seed: int = 3,
    **changes: Any,
) -> torch.nn.Module:
    """Return a small random MACE model; `changes` go to its constructor."""
    from e3nn import o3
    from mace import modules

    settings: dict[str, Any] = {
        "r_max": 4.0,
        "num_bessel": 4,
        "num_polynomial_cutoff": 5,
        "max_ell": 2,
        "interaction_cls": getattr(modules, rest, None) or getattr(modules.blocks, rest),
        "interaction_cls_first": getattr(modules, first, None) or getattr(modules.blocks, first),
        "num_interactions": 2,
        "num_elements": 2,
        "hidden_irreps": o3.Irreps("4x0e+4x1o"),
        "MLP_irreps": o3.Irreps("4x0e"),
        "atomic_energies": np.array([-1.5, -7.25]),
        # few neighbours: with many, errors in the higher correlations would be too small to see
        "avg_num_neighbors": 3.0,
        "atomic_numbers": [1, 8],
        "correlation": 2,
        "gate": torch.nn.functional.silu,
        "radial_MLP": [8, 8],
    }
    if model_class == "ScaleShiftMACE":
        settings |= {"atomic_inter_scale": 1.3, "atomic_inter_shift": 0.2}
    settings |= changes
    places = (modules, modules.models, modules.extensions)
    kind = next(getattr(at, model_class) for at in places if hasattr(at, model_class))
    with torch.random.fork_rng(devices=[]), default_dtype(dtype):
        torch.manual_seed(seed)
        model: torch.nn.Module = kind(**settings)
        _shake(model)
    return model


def _shake(model: torch.nn.Module) -> None:
    """Give parameters that start at constants random values, so that they matter."""
    for parameter in model.parameters():
        values = parameter.detach()
        if values.numel() and bool((values == values.flatten()[0]).all()):
            values.add_(0.3 * torch.randn_like(values))


@pytest.fixture(scope="session")
def build() -> Callable[..., torch.nn.Module]:
    """Return :func:`build_model`."""
    return build_model


def evaluate_model(
    model: torch.nn.Module, system: Structure, *, head: str | None = None, **options: Any
) -> Outputs:
    """Return all tensors that a model gives, with forces and stress if it has them."""
    info = model_info(model)
    edge_index, unit_shifts = neighbor_list(system.positions, system.cell, system.pbc, info.r_max)
    cell = complete_cell(system.cell, system.pbc) if any(system.pbc) else system.cell
    batch = mace_batch(
        info,
        system.atomic_numbers,
        system.positions,
        cell,
        system.pbc,
        edge_index,
        unit_shifts,
        head=head,
    )
    if hasattr(model, "atomic_energies_fn"):
        options = {"compute_force": True, "compute_stress": any(system.pbc), **options}
    found = model(batch, **options)
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Outputs]:
    """Return :func:`evaluate_model`."""
    return evaluate_model


@pytest.fixture(scope="module")
def stock(build: Any) -> torch.nn.Module:
    """Return a model that no test changes."""
    return build()


@pytest.fixture
def model(stock: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(stock)


def shape_of(module: torch.nn.Module) -> list[tuple[str, type, list[str]]]:
    return [
        (name, type(m), sorted(m.__dict__))
        for name, m in module.named_modules()
        if not isinstance(m, torch.jit.ScriptModule)
    ]


@pytest.fixture
def global_state() -> Iterator[None]:
    """Fail if a test leaves a different global state behind."""

    def look() -> tuple[Any, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.random.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            torch.serialization.get_safe_globals(),
            {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        )

    before = look()
    yield
    assert look() == before
