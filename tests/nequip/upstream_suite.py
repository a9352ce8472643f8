"""NequIP's own tests of energy models, run on models that are patched.

They come with nequip and need its global state, so test_upstream.py runs this file in a separate
process. The models are those of its ``tests/unit/model/test_nequip_model.py``, and one
with the shapes of the presets, in the widths of conftest.py: other tests compile their kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nequip.utils.unittests.conftest import *  # noqa: F403
from nequip.utils.unittests.model_tests_basic import EnergyModelTestsMixin

from mdcg.patch import patch_model

TYPES = ["H", "C", "O"]
COMMON = {
    "_target_": "nequip.model.NequIPGNNModel",
    "seed": 123,
    "type_names": TYPES,
    "r_max": 4.0,
    "avg_num_neighbors": 20.0,
    "l_max": 2,
    "parity": True,
    "num_layers": 2,
    "num_features": 4,
    "radial_mlp_depth": 1,
    "radial_mlp_width": 8,
    "per_type_energy_shifts": {"H": 3.45, "C": 5.67, "O": 7.89},
}
ZBL = {
    "_target_": "nequip.nn.pair_potential.ZBL",
    "chemical_species": TYPES,
    "units": "metal",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "cutoffs": {"per_edge_type_cutoff": {"H": 2.0, "C": {"H": 4.0, "C": 3.5, "O": 3.7}, "O": 3.9}},
    "unequal": {"parity": False, "num_features": [7, 2, 3], "pair_potential": ZBL},
    "preset-like": {
        "num_layers": 3,
        "l_max": 3,
        "parity": False,
        "num_features": [9, 4, 2, 3],
        "type_embed_num_features": 5,
        "per_type_energy_scales": {"H": 0.5, "C": 1.5, "O": 2.5},
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
