"""Kernels for AMD's devices: which texts they take, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mdcg.errors import KernelCompileError, UnsupportedProblemError
from mdcg.package.cuda_kernels import cuda_passes, programs_for
from mdcg.package.kernel_file import check_targets
from mdcg.runtime import hiprtc

from ..engine.test_conv_layer import two_layers


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Look for hiprtc in each test."""
    hiprtc.find_hiprtc.cache_clear()
    yield
    hiprtc.find_hiprtc.cache_clear()


@pytest.mark.parametrize("table", [True, False])
def test_texts_of_both_vendors(table: bool) -> None:
    manifest = two_layers(table=table).package.manifest
    passes, texts = cuda_passes(manifest["layers"], two_layers(table=table).package.tensors)
    amd = {key for key, text in texts.items() if text.startswith(hiprtc.WAVEFRONT_PER_WARP)}
    of_amd, of_nvidia = programs_for("gfx90a", passes), programs_for("sm_90", passes)
    assert of_amd == amd
    assert of_nvidia == set(texts) - amd
    for one in passes:
        if one["target"] != "gfx900":
            continue
        for entry in one["entries"]:
            assert entry["threads"] % 64 == 0
            assert entry["threads"] * entry["max_warp_groups"] <= 1024
            assert entry["shared_bytes"] * entry["max_warp_groups"] <= 65536


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_HIPRTC_LIB", "/nonexistent/libhiprtc.so")
    with pytest.raises(KernelCompileError, match=r"MDCG_HIPRTC_LIB cannot be used \(.*: correct"):
        hiprtc.find_hiprtc()
    monkeypatch.delenv("MDCG_HIPRTC_LIB")
    monkeypatch.setattr(hiprtc, "_candidates", list)
    with pytest.raises(KernelCompileError, match=r"hiprtc, which .* was not found .*: install"):
        check_targets(["gfx90a"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gfx803", "target gfx803: kernels need gfx900 or later, expected gfx90a and the like"),
        ("gfx", "target gfx is unknown, expected any of native, .*gfx90a and the like for AMD's"),
    ],
)
def test_targets_that_are_refused(target: str, message: str) -> None:
    with pytest.raises(UnsupportedProblemError, match=message):
        check_targets([target])
