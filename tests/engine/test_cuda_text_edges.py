"""Kernel text of edges compiles for all devices."""

from __future__ import annotations

import pytest

from ..covering import covering
from .cuda_device import program

# As csrc/engine/cuda/edges/radial_text.cpp prints them, for what is used most.
RADIAL = """
#define EDGES 16
#define THREADS 64
#define BASIS 8
#define BASIS_KIND 0
#define TRANSFORM 1
#define NORMALIZED 0
#define CUTOFF 1
#define CUTOFF_WHOLE 6
#define CUTOFF_ON_BASIS 0
#define TYPED_R_MAX 1
#define LAYERS 2
#define SENDER_TABLE 4096
#define RECEIVER_TABLE -1
#define SENDER_ROWS 0
#define RECEIVER_ROWS 1
#define LAST 32
#define CONSTANT 1
#define STRIDE 48
#define ALIGN 16
#define WIDEST 64
#define KEPT_LAST 1552
#define KEPT_ITEMS 2064
#define KNOTS {}
constexpr int OUT[] = {64, 32}, KIND[] = {1, 2}, NORM[] = {0, 1}, WEIGHT[] = {0, 1024};
constexpr int WEIGHT_T[] = {512, 3072}, BIAS[] = {5120, 5184}, NORM_WEIGHT[] = {5248, 5312};
constexpr int NORM_BIAS[] = {5376, 5440}, FACTOR[] = {5504, 5520}, EPSILON[] = {5536, 5552};
constexpr int KEPT[] = {0, 1024}, KEPT_SCALE[] = {1024, 1536};
"""
HARMONICS = "#define L_MAX {}\n#define THREADS 64\n"


@covering(
    target=["sm_80", "sm_90", "sm_100"],
    dtype=["float32", "float64"],
    text=[
        ("geometry", ""),
        ("edge_sum", ""),
        ("pair_energy", ""),
        ("harmonics", HARMONICS.format(-1)),
        ("harmonics", HARMONICS.format(3)),
        ("radial", RADIAL.replace("{}", "0", 1)),
        ("radial", RADIAL.replace("{}", "256", 1)),
    ],
)
def test_text_compiles(target: str, dtype: str, text: tuple[str, str]) -> None:
    nvrtc = pytest.importorskip("mdcg.runtime.nvrtc")
    from mdcg.errors import KernelCompileError

    try:
        nvrtc.find_nvrtc()
    except KernelCompileError as error:
        pytest.skip(str(error))
    name, defines = text
    cubin, _ = nvrtc.compile_cuda(program(dtype, f"{name}.cuh", defines), target)
    assert cubin.startswith(b"\x7fELF")
