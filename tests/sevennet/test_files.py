"""Files of SevenNet: which are read, which are refused, and what the command says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.cli.main import main
from mdcg.errors import CheckpointError
from mdcg.package.convert import ConversionOptions, convert_model
from mdcg.package.verification import verify_package
from mdcg.patch import load_model, model_info
from mdcg.patch.checkpoint_kind import SEVENNET, checkpoint_kind

from .conftest import MODALS, build_model, config_of, modal_config, write_checkpoint

MADE_FOR_LAMMPS = r"was made from a SevenNet model for LAMMPS: give the checkpoint \(.pth\)"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of a small model of several modals."""
    return write_checkpoint(tmp_path_factory.mktemp("files") / "small.pth", modal_config())


def test_kind(checkpoint: Path) -> None:
    assert checkpoint_kind(checkpoint) == SEVENNET
    assert model_info(load_model(checkpoint)).heads == tuple(MODALS)


def test_a_model_in_double_precision(tmp_path: Path) -> None:
    config = config_of()
    state = build_model(config).state_dict()
    torch.save({"config": config, "model_state_dict": state}, tmp_path / "m.pth")
    model = load_model(tmp_path / "m.pth")
    assert model_info(model).dtype == torch.float64
    for dtype in ("float32", "float64"):
        convert_model(model, ConversionOptions(dtype=dtype)).save(tmp_path / "p.mdcg")
        assert verify_package(tmp_path / "p.mdcg", model, kernels="generic").passed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file["model_state_dict"].popitem(), r"cannot be read by SevenNet \S+ \(Runt"),
        (lambda file: file["config"].pop("version"), r"cannot be read by SevenNet \S+ \("),
        (lambda file: file["config"].update(act_radial="cubic"), r"\(KeyError: 'cubic'\)"),
    ],
)
def test_damaged_checkpoints(change: Any, message: str, checkpoint: Path, tmp_path: Path) -> None:
    file = torch.load(checkpoint, weights_only=False)
    change(file)
    torch.save(file, tmp_path / "damaged.pth")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path / "damaged.pth")


def test_nan_is_found(checkpoint: Path, tmp_path: Path) -> None:
    file = torch.load(checkpoint, weights_only=False)
    next(iter(file["model_state_dict"].values())).fill_(float("nan"))
    torch.save(file, tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match="has NaN or infinity in "):
        load_model(tmp_path / "nan.pth")


def test_files_for_lammps_are_refused(tmp_path: Path) -> None:
    class Deployed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    # TorchScript keeps code under the name of the module of a class
    Deployed.__module__ = "sevenn.nn.sequential"
    serial = tmp_path / "deployed_serial.pt"
    torch.jit.script(Deployed()).save(serial)
    with pytest.raises(CheckpointError, match=MADE_FOR_LAMMPS):
        load_model(serial)
    parallel = tmp_path / "deployed_parallel"
    parallel.mkdir()
    serial.rename(parallel / "deployed_parallel_0.pt")
    for path in (parallel, parallel / "deployed_parallel_0.pt"):
        with pytest.raises(CheckpointError, match=MADE_FOR_LAMMPS):
            load_model(path)


def test_files_for_mliap_are_refused(tmp_path: Path) -> None:
    from sevenn.nn.linear import AtomReduce

    torch.save(AtomReduce("a", "b"), tmp_path / "mliap.pt")  # any class of the library
    with pytest.raises(CheckpointError, match=MADE_FOR_LAMMPS):
        load_model(tmp_path / "mliap.pt")


def test_one_package_per_modal(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--modal", "--head"):
        output = tmp_path / f"{option}.mdcg"
        assert main(["patch", str(checkpoint), "-o", str(output), option, "low"]) == 0
        assert "checked on 7 structures" in capsys.readouterr().out
        assert main(["patch", str(output), "--info"]) == 0
        assert "(sevennet)" in capsys.readouterr().out
    first, second = (tmp_path / f"{option}.mdcg" for option in ("--modal", "--head"))
    assert first.read_bytes() == second.read_bytes()
    for given, message in (
        ([], "the model has 3 modals: name one of them with --modal: PBE, R2SCAN, low"),
        (["--modal", "scan"], "--modal is 'scan', expected one of: PBE, R2SCAN, low"),
    ):
        assert main(["patch", str(checkpoint), "-o", str(tmp_path / "x.mdcg"), *given]) == 2
        assert message in capsys.readouterr().err


def test_information(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", str(checkpoint), "--info"]) == 0
    text = capsys.readouterr().out
    assert "modals: PBE, R2SCAN, low" in text
    for use in ("patching in a program", "package on CPUs", "package on GPUs", "in LAMMPS"):
        assert f"{use}: supported" in text


def test_names_of_published_models(capsys: pytest.CaptureFixture[str]) -> None:
    for name, modals in (("7net-0", "modals: Default"), ("SevenNet-MF-0", "modals: R2SCAN, PBE")):
        assert main(["patch", name, "--info"]) == 0
        text = capsys.readouterr().out
        assert "89 elements, r_max 5 Å, float32" in text
        assert modals in text


def test_patched_files_are_not_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["patch", str(checkpoint), "-o", str(tmp_path / "x.pt")]) == 4
    assert "makes packages only: name the output OUT.mdcg" in capsys.readouterr().err
