"""Models with random weights, and their implementations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmark import models

from mdcg.bench.checkpoint import exact, ready
from mdcg.bench.model import Settings, measure
from mdcg.bench.systems import make_system


def test_random_model_leaves_no_trace() -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    changes = {"max_ell": 1, "correlation": 1, "atomic_numbers": [1, 8]}
    one, two = (models.build_mace("4x0e", "float64", **changes) for _ in range(2))
    assert torch.get_default_dtype() == dtype
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
        assert value.dtype == torch.float64 or not value.is_floating_point()


@pytest.mark.slow
# NequIP warns with advice on settings
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("framework", ["mace", "nequip"])
def test_all_implementations_agree(framework: str, tmp_path: Path) -> None:
    """All implementations that run on a CPU agree on a small model."""
    pytest.importorskip(framework, exc_type=ImportError)
    if framework == "mace":
        changes = {"max_ell": 1, "correlation": 2, "atomic_numbers": [1, 8], "r_max": 4.0}
        built = models.build_mace("8x0e+8x1o", "float32", **changes)
    else:
        built = models.build("nequip-s")
    settings = Settings(stress=True, repeats=1)
    model = ready(built, None, "cpu")
    loaders = models.loaders(model, tmp_path, settings)
    chosen = {name: loaders[name] for name in models.IMPLS if not models.missing(name, "cpu")}
    (found,) = measure(chosen, [make_system("water", 24)], settings, exact(model, settings))
    assert found["refused"] == []
    assert [row["impl"] for row in found["rows"]] == list(chosen)
    assert {"original", "patched", "engine"} <= set(chosen)
    for row in found["rows"]:
        assert row["forces_difference_float64"] < 1e-4
        assert row["stress"]
