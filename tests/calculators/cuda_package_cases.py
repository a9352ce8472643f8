"""Trained checkpoints, as packages on a device, against the original models.

pytest does not collect this file. test_cuda_calculators.py runs it on an emulated or real device.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mdcg.errors import VerificationError
from mdcg.package import ConversionOptions, convert_model
from mdcg.package.verification import verify_package
from mdcg.patch import load_model

DATA = Path(__file__).resolve().parents[1] / "data"
CHECKPOINTS = [
    ("mace_water_e3nn044.model", "float64"),
    ("mace_alloy_density_e3nn044.model", "float32"),
]
if importlib.util.find_spec("nequip") is not None:
    CHECKPOINTS += [("nequip_water.ckpt", "float32"), ("nequip_alloy.ckpt", "float64")]
#: For float64, relative to the limits of verify_package. Found: 0.013 for short pairs, else 0.001.
LIMIT = 0.03


@pytest.mark.parametrize(("name", "dtype"), CHECKPOINTS)
def test_checkpoints(name: str, dtype: str, tmp_path: Path) -> None:
    model, path = load_model(DATA / name), tmp_path / "model.mdcg"
    convert_model(model, ConversionOptions(dtype=dtype)).save(path)
    check = verify_package(path, model, device="cuda")
    assert (check.dtype, check.device) == (dtype, "cuda")
    assert check.passed, str(check)
    assert {row.quantity for row in check.deviations} == {"energy", "forces", "stress"}
    if dtype == "float64":
        assert max(row.error / row.limit for row in check.deviations) < LIMIT, str(check)


if importlib.util.find_spec("sevenn") is not None:
    from ..sevennet.conftest import MODELS, build_model, config_of

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("name", ["like the published", "of May 2024"])
    def test_sevennet(name: str, dtype: str, tmp_path: Path) -> None:
        """Tables with a break and solid harmonics, in models of SevenNet."""
        model, path = build_model(config_of(**MODELS[name])), tmp_path / "model.mdcg"
        convert_model(model, ConversionOptions(dtype=dtype)).save(path)
        check = verify_package(path, model, device="cuda")
        assert check.passed, str(check)
        if dtype == "float64":
            assert max(row.error / row.limit for row in check.deviations) < LIMIT, str(check)


if all(map(importlib.util.find_spec, ("nequix", "jax", "jraph"))):
    from ..nequix.test_nequix import config_of as nequix_config
    from ..nequix.test_nequix import write_file

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_nequix(dtype: str, tmp_path: Path) -> None:
        """Norms of whole rows between convolutions, also over blocks of several degrees."""
        model = load_model(write_file(tmp_path / "m.pt", nequix_config(n_layers=2)))
        package, path = convert_model(model, ConversionOptions(dtype=dtype)), tmp_path / "p.mdcg"
        assert [each["type"] for each in package.layers].count("rms_norm") == 2
        package.save(path)
        check = verify_package(path, model, device="cuda")
        assert check.passed, str(check)
        if dtype == "float64":
            assert max(row.error / row.limit for row in check.deviations) < LIMIT, str(check)


def test_a_device_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Verification on a device that does not exist fails instead of using the CPU."""
    model = load_model(DATA / CHECKPOINTS[0][0])
    convert_model(model).save(tmp_path / "a.mdcg")
    with pytest.raises(VerificationError, match=r"does not open the package: .*'cuda:99'"):
        verify_package(tmp_path / "a.mdcg", model, device="cuda:99")
