"""Small random SevenNet models as packages, against the original in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.errors import UnsupportedProblemError
from mdcg.package.convert import ConversionOptions, convert_model
from mdcg.package.verification import package_reference, verify_package
from mdcg.patch import load_model, model_info

from .conftest import (
    MODAL_MODELS,
    MODALS,
    MODELS,
    build_model,
    config_of,
    modal_config,
    write_checkpoint,
)


def compare(path: Path, model: torch.nn.Module, options: ConversionOptions) -> None:
    """Compare energies, forces and stress with those of the model, relative to their sizes.

    Radial networks are evaluated, and then their tables.
    """
    reference = None
    for radial in ("exact", "table"):
        package = convert_model(model, replace(options, radial=radial))
        package.save(path)
        reference = reference or package_reference(package, model, head=options.head)
        report = verify_package(path, model, reference=reference, kernels="generic")
        assert report.passed, str(report)
        sizes = {
            (known.system.name, name): known.size(name)
            for known in reference.structures
            for name in known.truth
        }
        assert max(sizes.values()) > 0.1  # eV per atom, eV/Å or eV/Å³: not everything is zero
        for d in report.deviations:
            assert d.error <= 1e-10 * sizes[d.system, d.quantity], str(report)


@pytest.mark.parametrize("name", MODELS)
def test_same_results(name: str, tmp_path: Path) -> None:
    compare(tmp_path / "p.mdcg", build_model(config_of(**MODELS[name])), ConversionOptions())


@pytest.mark.parametrize(
    ("name", "modal"),
    [("all", "PBE"), ("all", "low"), ("shift alone", "R2SCAN"), ("scale and biases", "low")],
)
def test_modals(name: str, modal: str, tmp_path: Path) -> None:
    model = build_model(modal_config(**MODAL_MODELS[name]))
    assert model_info(model).heads == tuple(MODALS)
    compare(tmp_path / "p.mdcg", model, ConversionOptions(head=modal))


def test_modals_differ() -> None:
    model = build_model(modal_config(**MODAL_MODELS["all"]))
    found = [convert_model(model, ConversionOptions(head=modal)) for modal in MODALS]
    assert [package.manifest["head"] for package in found] == MODALS
    assert len({package.to_bytes() for package in found}) == len(MODALS)


def test_single_precision(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m.pth", config_of(**MODELS["of May 2024"]))
    model = load_model(path)
    package = convert_model(model)
    assert package.dtype == "float32"
    package.save(tmp_path / "p.mdcg")
    assert verify_package(tmp_path / "p.mdcg", model).passed


def test_facts(tmp_path: Path) -> None:
    model = load_model(write_checkpoint(tmp_path / "m.pth", config_of(("O", "Fe", "H"))))
    info = model_info(model)
    assert info.symbols == ("Fe", "H", "O")
    assert info.heads == ("Default",)
    package = convert_model(model, ConversionOptions(types=("O", "H")))
    manifest = package.manifest
    assert manifest["architecture"] == "sevennet"
    assert manifest["edge_vector"] == "sender_minus_receiver"
    assert (manifest["type_names"], manifest["atomic_numbers"]) == (["H", "O"], [1, 8])
    assert len(manifest["descriptors"]) == 3


def test_some_of_the_types(tmp_path: Path) -> None:
    for name in ("parity", "biases"):
        model = build_model(config_of(**MODELS[name]))
        compare(tmp_path / "p.mdcg", model, ConversionOptions(types=("Fe", "H")))


def test_a_universal_model_leaves_out_number_zero(tmp_path: Path) -> None:
    """Universal models count all numbers from 0, which is no element."""
    from sevenn.util import chemical_species_preprocess

    universal = chemical_species_preprocess([], universal=True)
    config = config_of(**universal, shift=-1.0, scale=2.0, self_connection_type="linear")
    model = build_model(config)
    info = model_info(model)
    assert info.atomic_numbers == tuple(range(1, 119))
    compare(tmp_path / "p.mdcg", model, ConversionOptions(types=("O", "Og")))


def test_trained_frequencies_and_denominators(tmp_path: Path) -> None:
    model: Any = build_model(config_of(train_denominator=True, train_shift_scale=True))
    with torch.no_grad():
        model.edge_embedding.basis_function.coeffs.mul_(1.1)
        for number in range(3):
            model.get_submodule(f"{number}_convolution").denominator.mul_(0.7)
    compare(tmp_path / "p.mdcg", model, ConversionOptions())


def test_conversion_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model = load_model(write_checkpoint(tmp_path / "m.pth", config_of()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    convert_model(model, ConversionOptions(dtype="float64"))
    assert model_info(model).dtype == torch.float32
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_reading_changes_no_global_state(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m.pth", config_of())
    random, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    load_model(path)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_default_dtype() == dtype


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_radial": "elu"}, "0_convolution.weight_nn.layer0 uses the activation 'elu'"),
        (
            {"readout_as_fcn": True, "readout_fcn_activation": "elu"},
            r"readout_FCN.fcn.layer0 uses the activation 'elu'",
        ),
    ],
)
def test_what_has_no_layer_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedProblemError, match=message):
        convert_model(build_model(config_of(**{"readout_fcn_hidden_neurons": [6], **changes})))


def test_unknown_modules_are_named() -> None:
    model: Any = build_model(config_of())
    model.prepand_module("dropout", torch.nn.Dropout())
    with pytest.raises(UnsupportedProblemError, match="dropout is a Dropout, which packages do"):
        convert_model(model)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, r"3 modals \(PBE, R2SCAN, low\)"),
        ("scan", "modal 'scan' .* one of: PBE, R2SCAN, low"),
    ],
)
def test_modals_are_listed(head: str | None, message: str) -> None:
    model = build_model(modal_config())
    with pytest.raises(ValueError, match=message):
        convert_model(model, ConversionOptions(head=head))


def test_a_model_of_one_modal_needs_none(tmp_path: Path) -> None:
    config = modal_config(_modal_map={"PBE": 0}, _number_of_modalities=1, shift=0.5, scale=1.5)
    model = build_model(config)
    assert model_info(model).heads == ("PBE",)
    compare(tmp_path / "p.mdcg", model, ConversionOptions())


def test_modals_of_a_model_without_any() -> None:
    with pytest.raises(ValueError, match="modal 'PBE' is not in the model"):
        convert_model(build_model(config_of()), ConversionOptions(head="PBE"))
