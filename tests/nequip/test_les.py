"""Packages of NequIP-LES models: a long-range sum of latent charges beside NequIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nequip.data import AtomicDataDict, register_fields
from nequip.nn import AtomwiseReduce, GraphModuleMixin, ScalarMLP

from mdcg import MDCGCalculator
from mdcg.cli.patch import main
from mdcg.errors import UnsupportedProblemError
from mdcg.package import Package, convert_model
from mdcg.package.convert import ConversionOptions
from mdcg.package.les import set_constants
from mdcg.package.verification import verify_package
from mdcg.patch import patch_model, verify_patch
from mdcg.patch.models import copy_model

from ..lammps.lmp import water

STUBS = Path(__file__).parents[1] / "stubs"
register_fields(node_fields=["LES_q"], graph_fields=["sr_energy", "lr_energy"])


class LatentEwaldSum(GraphModuleMixin, torch.nn.Module):
    """Adds the energy of charges, as the module of this name in NequIP-LES."""

    def __init__(self, irreps_in: Any, arguments: dict[str, Any]) -> None:
        super().__init__()
        from les import Les

        self.field = "LES_q"
        self._init_irreps(irreps_in=irreps_in, irreps_out={"lr_energy": "0e"})
        self.les = Les(arguments)
        self.compute_bec = self.use_dipole = False

    def forward(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        """Return the data with the energy."""
        positions, zeros = data["pos"], torch.zeros(len(data["pos"]), dtype=torch.int64)
        cell = data["cell"] if "cell" in data else torch.zeros(1, 3, 3, dtype=torch.float64)
        found = self.les(data[self.field], positions, cell.view(-1, 3, 3), zeros)
        return {**data, "lr_energy": found["E_lr"].reshape(1, 1)}


class AddEnergy(GraphModuleMixin, torch.nn.Module):
    """Adds both parts of the energy, as the module of this name in NequIP-LES."""

    def __init__(self, irreps_in: Any) -> None:
        super().__init__()
        self._init_irreps(irreps_in=irreps_in, irreps_out={"total_energy": "0e"})

    def forward(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        """Return the data with the energy."""
        return {**data, "total_energy": data["sr_energy"] + data["lr_energy"]}


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUBS))


def model_of(build: Any, name: str = "preset-like", **arguments: Any) -> torch.nn.Module:
    """Return a model with the modules of NequIP-LES behind its own, in the same order."""
    model: torch.nn.Module = build(name)
    network = model.model.func  # type: ignore[union-attr]
    network._modules.pop("total_energy_sum")
    before = network.per_type_energy_scale_shift.irreps_out
    sums = {"reduce": "sum", "field": "atomic_energy", "out_field": "sr_energy"}
    network.append("sr_energy_sum", AtomwiseReduce(irreps_in=before, **sums))
    readout = {"output_dim": 1, "bias": False, "field": "node_features", "out_field": "LES_q"}
    irreps = network.sr_energy_sum.irreps_out
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        mlp = ScalarMLP(forward_weight_init=True, irreps_in=irreps, **readout).double()
    network.append("latent_charge_readout", mlp)
    network.append("lr_energy_sum", LatentEwaldSum(mlp.irreps_out, arguments))
    network.append("total_energy_sum", AddEnergy(network.lr_energy_sum.irreps_out))
    return model


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("preset-like", {}),
        ("per type", {"sigma": 0.8, "dl": 1.7, "remove_self_interaction": False}),
        ("pair potential", {"dl": 2.5}),
    ],
)
def test_results_are_those_of_the_model(
    name: str, arguments: dict[str, Any], build: Any, tmp_path: Path
) -> None:
    model = model_of(build, name, **arguments)
    package = convert_model(model)
    package.save(tmp_path / "p.mdcg")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    assert {"energy", "forces", "stress", "charges"} == {*report.worst()}
    assert report.note == ""  # its own stress is the derivative
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert np.abs(calc.get_property("charges", water(1, seed=2))).min() > 1e-6


def test_constants_of_the_training(build: Any, tmp_path: Path) -> None:
    """Constants that the installed library gives a model can be set at conversion."""
    model = model_of(build)
    options = ConversionOptions(les_factor=90.0474, les_own_part="kept")
    package = convert_model(model, options)
    assert package.layers[-1]["factor"] == 90.0474
    assert package.layers[-1]["own_part"] == "kept"
    assert convert_model(model).layers[-1]["factor"] == 90.4756  # the model stays as it was
    package.save(tmp_path / "p.mdcg")
    assert not verify_package(tmp_path / "p.mdcg", model).passed
    set_constants(model, 90.0474, "kept")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    one = convert_model(model_of(build), ConversionOptions(les_own_part="kept")).layers[-1]
    assert (one["factor"], one["own_part"]) == (90.4756, "kept")
    for wrong, message in (
        ({"les_factor": -1.0}, "the norm factor is -1, expected a number over 0"),
        ({"les_own_part": "some"}, "the own part is 'some', expected 'kept' or 'removed'"),
    ):
        with pytest.raises(ValueError, match=message):
            convert_model(model, ConversionOptions(**wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the model is none of NequIP-LES, whose checkpoints lack"):
        convert_model(build("preset-like"), ConversionOptions(les_factor=90.0))


def test_constants_at_the_command_line(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the constants, and compares with a model that has them, too."""
    monkeypatch.setattr("mdcg.package.convert.load_with_digest", lambda _: (model_of(build), "0"))
    (tmp_path / "m.ckpt").touch()
    constants = ["--les-factor", "90.0474", "--les-own-part", "kept"]
    command = [str(tmp_path / "m.ckpt"), "-o", str(tmp_path / "m.mdcg"), "-q"]
    assert main([*command, *constants]) == 0
    printed = capsys.readouterr().out
    assert "norm factor 90.0474 eV Å/e², own part kept" in printed
    package = Package.open(tmp_path / "m.mdcg")
    assert package.manifest["verification"]["passed"]
    assert package.layers[-1]["own_part"] == "kept"
    monkeypatch.setattr("mdcg.package.convert.load_with_digest", lambda _: (build(), "0"))
    assert main([*command, *constants, "--force"]) == 2
    assert "the model is none of NequIP-LES" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command[:2], str(tmp_path / "m.pt"), *constants])
    assert "--les-factor is an option of .mdcg packages" in capsys.readouterr().err


def test_patched_in_place(build: Any) -> None:
    model = model_of(build)
    patched = copy_model(model)
    patch_model(patched)
    report = verify_patch(model, patched)
    assert report.passed, str(report)


def test_refusals(build: Any) -> None:
    for part, what in (("compute_bec", "Born effective charges"), ("use_dipole", "dipoles")):
        model = model_of(build)
        setattr(model.model.func.lr_energy_sum, part, True)  # type: ignore[union-attr]
        message = f"lr_energy_sum has {what} .{part}., which packages do not have"
        with pytest.raises(UnsupportedProblemError, match=message):
            convert_model(model)
