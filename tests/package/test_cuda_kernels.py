"""CUDA kernels of packages: entries, and machine code by NVRTC."""

from __future__ import annotations

import pytest

from mdcg.package.cuda_kernels import cuda_passes
from mdcg.runtime.nvrtc import compile_cuda

from ..core.contraction_helpers import random_contraction
from ..engine.problems import build


def test_equal_layers_share_programs() -> None:
    problem = build("4x0e", "1x0e+1x1o", "4x0e+4x1o", "float64")
    layers = [{"type": "conv", "problem": problem.to_json(), "x": "x"}] * 2
    entries, texts = cuda_passes(layers, ())
    assert [entry["layer"] for entry in entries] == [0, 0, 1, 1]
    assert entries[0]["programs"] == entries[2]["programs"]
    assert set(texts) == {name for entry in entries for name in entry["programs"]}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_programs_compile(dtype: str, target: str) -> None:
    """The text is the same for all devices."""
    problem = build("9x0e+9x1o", "1x0e+1x1o", "9x0e+9x1o", dtype)
    contraction = random_contraction("5x0e+5x1o", "5x0e", 2, dtype=dtype)
    layers = [
        {"type": "conv", "problem": problem.to_json(), "x": "x"},
        {"type": "conv", "problem": problem.to_json(), "x_table": "x"},
        {"type": "contraction", "problem": contraction.to_json()},
    ]
    passes, texts = cuda_passes(layers, ())
    assert len(passes) == 6
    for text in texts.values():
        cubin, _ = compile_cuda(text, target)
        assert cubin.startswith(b"\x7fELF")
