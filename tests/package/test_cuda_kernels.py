"""CUDA kernels of packages: their entries."""

from __future__ import annotations

from mdcg.package.cuda_kernels import cuda_passes

from ..engine.problems import build


def test_equal_layers_share_programs() -> None:
    problem = build("4x0e", "1x0e+1x1o", "4x0e+4x1o", "float64")
    layers = [{"type": "conv", "problem": problem.to_json(), "x": "x"}] * 2
    entries, texts = cuda_passes(layers, ())
    assert [entry["layer"] for entry in entries] == [0, 0, 1, 1]
    assert entries[0]["programs"] == entries[2]["programs"]
    assert set(texts) == {name for entry in entries for name in entry["programs"]}
