"""Packages on CUDA devices that are missing, full, lost, too old or too new."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from mdcg import _core

from ..emulator.emulator import run_emulated
from .case_runs import at_once_and_late
from .cuda_cases import saved
from .test_program import two_layers


def said(code: str, **changes: str) -> list[str]:
    done = run_emulated("-c", code, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_out_of_memory(tmp_path: Path) -> None:
    """The error is one sentence, and the next system that fits is evaluated."""
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
import numpy as np
from mdcg import _core
model = _core.Model({str(path)!r}, device="cuda")
def step(nodes):
    where = np.stack(np.meshgrid(*[np.arange(nodes) * 1.5] * 3), -1).reshape(-1, 3)
    return model.evaluate(where, np.zeros(len(where)))["energy"]
small = step(2)
for _ in range(2):
    try:
        step(9)
    except _core.EngineError as error:
        print(error.kind, error)
    print(step(2) == small)
"""
    lines = said(code, EMULATED_CUDA_MEMORY=str(4 << 20))
    assert len(lines) == 4
    for line in lines[::2]:
        assert line.startswith("5 out of memory on device cuda:0: ")
        assert "of 4 MiB are free: evaluate a smaller system" in line
    assert lines[1::2] == ["True", "True"]


@at_once_and_late
def test_lost_device(tmp_path: Path, late: str) -> None:
    """The error is one sentence; models on other devices continue."""
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
import os, numpy as np
from mdcg import _core
where = np.random.default_rng(0).uniform(0, 3, (5, 3))
names = ("cuda:0", "cuda:1", "cpu")
models = [_core.Model({str(path)!r}, device=n) for n in names]
step = lambda model: model.evaluate(where, np.zeros(5))["energy"]
want = [step(model) for model in models]
os.environ["EMULATED_CUDA_FAULT"] = "0"
for _ in range(2):
    for model in (models[0], _core.Model({str(path)!r}, device="cuda:0")):
        try:
            step(model)
        except _core.EngineError as error:
            print(error.kind, error)
        del model
    print([step(model) for model in models[1:]] == want[1:])
"""
    lines = said(code, EMULATED_CUDA_DEVICES="2", EMULATED_CUDA_LATE=late)
    assert lines[2::3] == ["True", "True"]
    del lines[2::3]
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("9 device cuda:0 was lost (")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS): start the process again to use it" in line


def test_no_device(tmp_path: Path) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
import numpy as np
from mdcg import _core
for device in ("cuda", "cuda:1"):
    try:
        _core.Model({str(path)!r}, device=device)
    except _core.EngineError as error:
        print(error.kind, error)
print(_core.Model({str(path)!r}).evaluate(np.zeros((1, 3)), np.zeros(1))["energy"] != 0)
"""
    none = said(code, EMULATED_CUDA_DEVICES="0")
    assert [line[:2] for line in none[:2]] == ["9 ", "9 "]
    assert all("device is 'cuda" in line and "device cpu" in line for line in none[:2])
    assert none[2] == "True"
    one = said(code, EMULATED_CUDA_DEVICES="1")
    assert one[0] == "9 device is 'cuda:1', and there is one, cuda:0: choose another one, or " + (
        "device cpu"
    )


def test_no_driver(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        path = saved(two_layers().package(), tmp_path / "p.mdcg")
        with pytest.raises(_core.EngineError, match="device is 'cuda', and there is no CUDA driv"):
            _core.Model(str(path), device="cuda")
    else:
        pytest.skip("this machine has a CUDA driver")


@pytest.mark.parametrize(
    ("capability", "sentence"),
    [
        (
            "61",
            "3 the device has compute capability 6.1, CUDA kernels need 8.0",
        ),
        ("130", "4 NVRTC .*is too old for this card: it does not compile for sm_130, only for"),
    ],
)
def test_cards_that_are_too_old_or_too_new(tmp_path: Path, capability: str, sentence: str) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    code = f"""
from mdcg import _core
model = _core.Model({str(path)!r}, device="cuda")
try:
    model.prepare()
except _core.EngineError as error:
    print(error.kind, error)
"""
    (line,) = said(code, EMULATED_CUDA_CAPABILITY=capability)
    assert re.match(sentence.replace("(", "[(]").replace(")", "[)]"), line), line
