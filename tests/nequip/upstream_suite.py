"""NequIP's own tests of energy models, run on models that are patched.

They come with nequip. They want its global state in the process, so test_upstream.py runs this file
in one of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nequip.utils.unittests.conftest import *  # noqa: F403
from nequip.utils.unittests.model_tests_basic import EnergyModelTestsMixin

from mdcg.patch import patch_model

COMMON = {
    "_target_": "nequip.model.NequIPGNNModel",
    "seed": 123,
    "type_names": ["H", "C", "O", "Cu"],
    "r_max": 4.0,
    "avg_num_neighbors": 20.0,
    "radial_mlp_width": 16,
}
CONFIGS = {
    "parity": {"num_layers": 2, "l_max": 2, "parity": True, "num_features": 4},
    "preset-like": {
        "num_layers": 3,
        "l_max": 3,
        "parity": False,
        "num_features": [8, 4, 2, 3],
        "type_embed_num_features": 5,
        "per_type_energy_scales": {"H": 0.5, "C": 1.5, "O": 2.5, "Cu": 3.5},
    },
}


class TestPatched(EnergyModelTestsMixin):
    @pytest.fixture(scope="class", params=CONFIGS)
    @classmethod
    def config(cls, request: Any) -> dict[str, Any]:
        return {**COMMON, **CONFIGS[request.param]}

    @pytest.fixture
    def strict_locality(self) -> bool:
        return False

    @staticmethod
    def make_model(model_config: dict[str, Any], device: Any) -> torch.nn.Module:
        model = EnergyModelTestsMixin.make_model(model_config, device)
        assert len(patch_model(model).patched) >= 3
        return model
