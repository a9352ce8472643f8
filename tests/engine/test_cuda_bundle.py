"""Machine code for devices in packages: made without a device, run without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg import _core
from mdcg.errors import KernelCompileError, UnsupportedProblemError
from mdcg.package import Package
from mdcg.package.bundle import add_binaries, check_targets

from .case_runs import run_cases_emulated, run_cases_on_a_device
from .cuda_cases import DATA, with_kernels
from .test_program import two_layers

TARGETS = ["sm_80", "sm_90", "sm_100"]
CASES = "cuda_bundle_cases.py"


def test_emulated() -> None:
    run_cases_emulated(CASES)


@pytest.mark.parametrize("capability", ["80", "86", "89", "100", "120"])
def test_emulated_on_other_devices(capability: str) -> None:
    """With the shared memory that they have; 8.6 and 8.9 run what was made for 8.0."""
    only = ("-k", "no_compiler and float32 and plain")
    run_cases_emulated(CASES, options=only, EMULATED_CUDA_CAPABILITY=capability)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.mdcg")), ids=lambda path: path.stem)
def test_packages_are_compiled_for_all_devices(path: Path, tmp_path: Path) -> None:
    """On a machine that has none of them."""
    package = Package.open(path)
    with_kernels(package, tmp_path / path.name)
    add_binaries(package, TARGETS)
    package.check()
    binaries = package.manifest["cuda_binaries"]
    keys = [{b["key"] for b in binaries if b["target"] == target} for target in TARGETS]
    assert len(keys[0]) > 8
    assert len(binaries) == sum(map(len, keys))
    for binary in binaries:
        assert bytes(package.tensors[binary["tensor"]][:4]) == b"\x7fELF"


def test_texts_need_no_device_and_are_the_engines_and_the_packages(tmp_path: Path) -> None:
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    texts = _core.cuda_texts(str(path), "sm_90")
    assert len({key for key, *_ in texts}) == len(texts)
    sources = {text for _, _, text, _ in texts}
    package = Package.open(path)
    for kernel in package.manifest["cuda_kernels"]:
        assert {package.text(name) for name in kernel["programs"]} <= sources
    assert any("typedef double T;" in text for text in sources)
    with pytest.raises(_core.EngineError, match="target is 'x', expected one such as 'sm_90'"):
        _core.cuda_texts(str(path), "x")


def test_what_cannot_be_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, kind, sentence in (
        ("sm_70", UnsupportedProblemError, "--bundle sm_70: kernels need devices of compute cap"),
        ("sm_999", KernelCompileError, "--bundle sm_999: NVRTC .* does not compile for it, expect"),
        ("gfx90a", UnsupportedProblemError, "--bundle gfx90a: no such target, expected any of nat"),
    ):
        with pytest.raises(kind, match=sentence):
            check_targets([target])
    package = two_layers().package()
    add_binaries(package, ["native"])
    before = package.to_bytes()
    with pytest.raises(UnsupportedProblemError, match=r"^--bundle sm_90: layer .*CUDA kernel"):
        add_binaries(package, ["sm_90"])
    assert package.to_bytes() == before
