"""Files of kernels for devices: made without a device, run without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load

from mdcg import _core
from mdcg.package.kernel_file import compile_kernels

from .case_runs import run_cases_emulated, run_cases_on_a_device
from .cuda_cases import DATA
from .kernel_files import manifest_of
from .test_program import two_layers

CASES = "cuda_bundle_cases.py"


@pytest.mark.slow
def test_emulated() -> None:
    run_cases_emulated(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["86", "120"])
def test_emulated_on_other_devices(capability: str) -> None:
    """Files of kernels work on devices of other capabilities, such as 8.6 with code for 8.0."""
    only = ("-k", "no_compiler and float32 and plain")
    run_cases_emulated(CASES, options=only, EMULATED_CUDA_CAPABILITY=capability)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("mace_water_float32", ["sm_80", "sm_100"]),
        ("mace_water_float64", ["sm_90"]),
        ("nequip_water_float64", ["sm_80"]),
    ],
)
def test_packages_are_compiled_for_all_devices(
    name: str, targets: list[str], tmp_path: Path
) -> None:
    """All kernels of a package are compiled for several devices without having one."""
    file = tmp_path / "k.mdcg-kernels"
    file.write_bytes(compile_kernels(DATA / f"{name}.mdcg", targets))
    manifest, tensors = manifest_of(file), load(file.read_bytes())
    codes = [manifest["devices"][target]["code"] for target in targets]
    assert len(codes[0]) > 8
    assert {tuple(sorted(code)) for code in codes} == {tuple(sorted(codes[0]))}
    assert {key for each in manifest["passes"] for key in each["programs"]} < set(codes[0])
    assert set(tensors) == {name for code in codes for name in code.values()}
    assert all(bytes(tensor[:4]) == b"\x7fELF" for tensor in tensors.values())


def test_targets_of_texts(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    with pytest.raises(_core.EngineError, match="target is 'x', expected one such as 'sm_90'"):
        _core.cuda_kernel_sources(str(tmp_path / "p.mdcg"), "x", "[]")
