"""The example with NequIP's checkpoint: patched, and run for a few steps."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from mdcg.cli.patch import main as mdcg_patch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_water_md(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("matplotlib", "tqdm"):
        pytest.importorskip(needed, reason="the examples need mdcg[nequip,bench]")
    spec = importlib.util.spec_from_file_location("water_md", EXAMPLES / "water_md.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    original, patched = EXAMPLES / "data" / "water.ckpt", tmp_path / "patched.pt"
    assert original.stat().st_size < 500_000
    package = tmp_path / "water.mdcg"
    for output in (patched, package):
        assert mdcg_patch([str(original), "-o", str(output), "-q"]) == 0
    arguments = ["--original", str(original), "--patched", str(patched), "--out", str(tmp_path)]
    arguments += ["--package", str(package)]
    module.main([*arguments, "--steps", "6", "--every", "3", "--no-progress"])
    sys.modules.pop("water_md", None)
    assert "times as fast" in capsys.readouterr().out
    results = json.loads((tmp_path / "water.json").read_text())
    for name in ("patched", "engine"):
        assert results[name]["max_force_difference"] < 1e-10
        assert results[name]["max_distance"] < 1e-10


def test_recipe_leaves_no_trace() -> None:
    """The example's checkpoint contains no local paths and does not need mdcg."""
    content = (EXAMPLES / "data" / "water.ckpt").read_bytes()
    for trace in (b"/tmp", b"/home", b"/root", b"enable_mdcg"):
        assert trace not in content
