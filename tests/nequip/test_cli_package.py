"""``mdcg-patch`` from NequIP checkpoints to packages, verified against the original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mdcg.cli.patch import main
from mdcg.package import Package

from .conftest import DATA

LIMITS = {"eV/atom": 1e-11, "eV/Å": 1e-10, "eV/Å³": 1e-11}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["nequip_water", "nequip_alloy"])
def test_converts_and_verifies(name: str, dtype: str, tmp_path: Path) -> None:
    """Checkpoints in float32 and in float64 convert to packages that pass verification."""
    output = tmp_path / f"{name}.mdcg"
    assert main([str(DATA / f"{name}.ckpt"), "-o", str(output), "--dtype", dtype, "-q"]) == 0
    package = Package.open(output)
    assert package.dtype == dtype
    assert package.manifest["verification"]["passed"]
    report = json.loads((tmp_path / f"{name}.mdcg.report.json").read_text())
    deviations = report["verification"]["deviations"]
    assert {row["quantity"] for row in deviations} == {"energy", "forces", "stress"}
    for row in deviations:
        if dtype == "float64":
            assert row["error"] < LIMITS[row["unit"]]
    if dtype == "float32":
        forces = [row for row in deviations if row["quantity"] == "forces"]
        # With tables, the engine is as accurate as the original in float32.
        assert max(r["error"] for r in forces) < 1.5 * max(r["own_error"] for r in forces)
