"""Compares outputs of torch models, and knows the folder of the small checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mdcg.patch import model_info
from mdcg.patch.systems import Structure, verification_systems

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
Outputs = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of the small checkpoints."""
    return DATA


def assert_outputs_agree(got: Outputs, want: Outputs, tolerance: float, where: str = "") -> None:
    """Compare all outputs, relative to the largest entry of each."""
    assert set(got) == set(want)
    for name, value in want.items():
        if not value.numel() or not value.is_floating_point():
            continue
        scale = max(float(value.detach().abs().max()), 1e-3)
        error = float((got[name].detach() - value.detach()).abs().max()) / scale
        assert error <= tolerance, f"{where} {name}: relative error {error:.2e} > {tolerance:.0e}"


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Return :func:`assert_outputs_agree`."""
    return assert_outputs_agree


@pytest.fixture(scope="session")
def systems() -> Callable[[torch.nn.Module], tuple[Structure, ...]]:
    """Return a function from a model to structures of its elements or types."""

    def make(model: torch.nn.Module) -> tuple[Structure, ...]:
        info = model_info(model)
        return verification_systems(info.kinds, info.r_max, symbols=info.symbols, seed=11)

    return make
