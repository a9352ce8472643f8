"""MACE models as packages, evaluated by the reference and by the engine, against the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import patch_model
from mdcg.cli.package_info import describe_package
from mdcg.errors import CheckpointError, UnsupportedProblemError
from mdcg.package import ConversionOptions, Package, convert_checkpoint, convert_model
from mdcg.patch import load_model
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.models import complete_cell, neighbor_list
from mdcg.patch.systems import Structure, verification_systems

from ..engine.programs import evaluate_both
from .conftest import build_model, evaluate_model

AGNOSTIC = "RealAgnosticInteractionBlock"
RESIDUAL = "RealAgnosticResidualInteractionBlock"
DENSITY = "RealAgnosticDensityInteractionBlock"
DENSITY_RESIDUAL = "RealAgnosticDensityResidualInteractionBlock"
ATTENTION = "RealAgnosticAttResidualInteractionBlock"
NONLINEAR = "RealAgnosticResidualNonLinearInteractionBlock"

HEADS: dict[str, Any] = {
    "heads": ["low", "middle", "high"],
    "atomic_energies": np.array([[-1.5, -7.25], [-2.0, -8.0], [-3.0, -9.0]]),
    "atomic_inter_scale": np.array([1.3, 1.1, 0.9]),
    "atomic_inter_shift": np.array([0.1, 0.2, -0.3]),
}


def evaluate_package(package: Package, system: Structure) -> Any:
    """Return what reference and engine give for a structure of the package's elements."""
    edge_index, unit = neighbor_list(system.positions, system.cell, system.pbc, package.r_max)
    cell = complete_cell(system.cell, system.pbc)
    numbers = package.atomic_numbers
    assert numbers is not None
    types = [numbers.index(int(z)) for z in system.atomic_numbers]
    return evaluate_both(package, system.positions, types, *edge_index, unit @ cell)


def compare(
    model: torch.nn.Module, package: Package, head: str | None = None, *, forces: bool = True
) -> None:
    """Compare energy of each atom, forces and stress with those of the model, in float64."""
    assert package.dtype == "float64"
    assert package.atomic_numbers is not None
    largest = 0.0
    for system in verification_systems(package.atomic_numbers, package.r_max, seed=5):
        found = evaluate_package(package, system)
        with default_dtype(torch.float64):  # mace uses the default type
            outputs = evaluate_model(model, system, head=head)
        want = {name: value.detach() for name, value in outputs.items()}
        energy = float(want["energy"])
        assert abs(found.energy - energy) <= 1e-12 * max(1.0, abs(energy)), system.name
        size = max(1.0, float(want["node_energy"].abs().max()))
        assert float((found.energies - want["node_energy"]).abs().max()) <= 1e-12 * size
        if not forces:
            continue
        force = float(want["forces"].abs().max())
        error = float((found.forces - want["forces"]).abs().max())
        assert error <= 1e-10 * max(1.0, force), system.name
        largest = max(largest, force)
        if system.periodic:
            volume = abs(np.linalg.det(complete_cell(system.cell, system.pbc)))
            assert float((-found.virial / volume - want["stress"]).abs().max()) <= 1e-10
    assert largest > 1e-3 or not forces  # vanishing forces would prove nothing


@pytest.mark.e3nn
@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (AGNOSTIC, RESIDUAL),
        (RESIDUAL, RESIDUAL),
        (DENSITY, DENSITY_RESIDUAL),
        (DENSITY_RESIDUAL, DENSITY_RESIDUAL),
        (ATTENTION, ATTENTION),
        (NONLINEAR, NONLINEAR),
    ],
)
@pytest.mark.parametrize("cutoff_on_weights", [False, True])
def test_interaction_blocks(first: str, rest: str, cutoff_on_weights: bool) -> None:
    model = build_model(first, rest, apply_cutoff=not cutoff_on_weights)
    compare(model, convert_model(model))


def _irreps(text: str) -> Any:
    from e3nn import o3

    return o3.Irreps(text)


def _readout(name: str) -> Any:
    from mace import modules

    return getattr(modules.blocks, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_interactions": 1},
        {"num_interactions": 3, "correlation": [3, 2, 1]},
        {"correlation": 4, "max_ell": 1},
        {"radial_type": "gaussian"},
        {"distance_transform": "Soft"},
        {"distance_transform": "Agnesi", "pair_repulsion": True, "r_max": 3.0},
        {"model_class": "MACE", "pair_repulsion": True},
        {"hidden_irreps": "4x0e+4x0o+4x1o+4x1e"},
        {"use_so3": True, "hidden_irreps": "4x0e+4x1e"},
        {"use_last_readout_only": True},
        {"keep_last_layer_irreps": True},
        {"use_agnostic_product": True},
        {"gate": torch.tanh},
        {"gate": torch.abs},
        {"gate": None},
        {"readout_cls": "NonLinearBiasReadoutBlock"},
        {"radial_MLP": []},
    ],
    ids=lambda changes: "-".join(str(key) for key in changes),
)
def test_settings(changes: dict[str, Any]) -> None:
    settings = dict(changes)
    if "hidden_irreps" in settings:
        settings["hidden_irreps"] = _irreps(settings["hidden_irreps"])
    if "readout_cls" in settings:
        settings["readout_cls"] = _readout(settings["readout_cls"])
    model = build_model(RESIDUAL, **settings)
    compare(model, convert_model(model))


@pytest.mark.e3nn
def test_signs_of_couplings() -> None:
    # Couplings whose sign depends on e3nn's version need max_ell 3 and hidden irreps with L > 0.
    model = build_model(RESIDUAL, max_ell=3, correlation=3, hidden_irreps=_irreps("3x0e+3x1o+3x2e"))
    compare(model, convert_model(model))


@pytest.mark.e3nn
def test_nonlinear_block_with_other_edge_irreps() -> None:
    model = build_model(
        NONLINEAR,
        NONLINEAR,
        num_interactions=3,
        hidden_irreps=_irreps("4x0e+4x1o+4x2e"),
        edge_irreps=_irreps("2x0e+2x1o+2x2e"),
        use_edge_irreps_first=True,
        use_agnostic_product=True,
        apply_cutoff=False,
    )
    compare(model, convert_model(model))


@pytest.mark.parametrize("head", HEADS["heads"])
@pytest.mark.parametrize("readout", ["NonLinearReadoutBlock", "NonLinearBiasReadoutBlock"])
def test_heads(head: str, readout: str) -> None:
    model = build_model(readout_cls=_readout(readout), **HEADS)
    package = convert_model(model, ConversionOptions(head=head))
    assert package.head == head
    compare(model, package, head)


@pytest.mark.parametrize("block", [AGNOSTIC, NONLINEAR])
def test_low_rank_adapters_are_merged(block: str) -> None:
    from mace.modules.lora import inject_LoRAs

    model = build_model(block, NONLINEAR if block == NONLINEAR else RESIDUAL)
    inject_LoRAs(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compare(model, convert_model(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_some_of_the_elements() -> None:
    model = build_model(
        DENSITY,
        num_elements=5,
        atomic_energies=np.arange(5.0),
        atomic_numbers=[1, 6, 7, 8, 16],
        distance_transform="Agnesi",
        pair_repulsion=True,
    )
    package = convert_model(model, ConversionOptions(types=("S", "H", "O")))
    assert package.type_names == ["H", "O", "S"]
    assert package.atomic_numbers == [1, 8, 16]
    compare(model, package)
    whole = convert_model(model)
    assert len(whole.to_bytes()) > len(package.to_bytes())
    with pytest.raises(ValueError, match="types Fe are not in the model, expected any of: H C N"):
        convert_model(model, ConversionOptions(types=("H", "Fe")))


def test_chebyshev() -> None:
    # torch gives these functions a zero derivative, so mace's forces are no reference
    model = build_model(radial_type="chebyshev", r_max=1.5)
    package = convert_model(model)
    compare(model, package, forces=False)
    (system, *_) = verification_systems(package.atomic_numbers or [], package.r_max, seed=5)
    found = evaluate_package(package, system)
    step = 1e-4
    for atom, axis in ((0, 0), (3, 2)):
        energies = []
        for sign in (1.0, -1.0):
            positions = system.positions.copy()
            positions[atom, axis] += sign * step
            moved = Structure(
                system.name, system.atomic_numbers, positions, system.cell, system.pbc
            )
            energies.append(float(evaluate_model(model, moved)["energy"].detach()))
        slope = (energies[0] - energies[1]) / (2 * step)
        assert abs(float(found.forces[atom, axis]) + slope) < 1e-5 * max(1.0, abs(slope))


def package_info(package: Package, folder: Path) -> str:
    """Return what ``mdcg-patch --info`` says of a package."""
    package.save(folder / "p.mdcg")
    return describe_package(folder / "p.mdcg")[1]


@pytest.mark.e3nn
@pytest.mark.parametrize(
    "name",
    [
        "mace_water.model",
        "mace_water_e3nn044.model",
        "mace_alloy_density.model",
        "mace_alloy_density_e3nn044.model",
    ],
)
def test_checkpoints(name: str, checkpoint: Callable[[str], Path]) -> None:
    model = load_model(checkpoint(name)).double()
    compare(model, convert_model(model))


@pytest.mark.e3nn
@pytest.mark.parametrize(
    "name",
    ["mace_spice_2022.model", "xtb_solvent_swa.model", "xtb_committee1.model"],
)
def test_public_checkpoints(name: str, public_checkpoint: Callable[[str], Path]) -> None:
    model = load_model(public_checkpoint(name)).double()
    compare(model, convert_model(model))


def test_patched_models_convert_as_if_they_were_not() -> None:
    model = build_model()
    want = convert_model(model).to_bytes()
    patch_model(model)
    assert convert_model(model).to_bytes() == want


@pytest.mark.e3nn
def test_same_bytes(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = checkpoint("mace_water_e3nn044.model")
    first, second = convert_checkpoint(path), convert_checkpoint(path)
    assert first.to_bytes() == second.to_bytes()
    assert first.manifest["source"]["name"] == path.name
    first.save(tmp_path / "a.mdcg")
    again = Package.open(tmp_path / "a.mdcg")
    assert again.to_bytes() == first.to_bytes()
    assert b"torch" not in first.to_bytes()[:8]


def test_type_alone_leaves_no_layers() -> None:
    # embedding, first linear and first skip connection become constants by type
    package = convert_model(build_model(RESIDUAL))
    first = package.layers[0]
    assert first["type"] == "conv"
    assert "x_table" in first
    kinds = [layer["type"] for layer in package.layers]
    assert "type_rows" not in kinds
    assert kinds.count("exchange") == 1


@pytest.mark.parametrize(
    ("model_class", "reason"),
    [
        ("AtomicDielectricMACE", "is an AtomicDielectricMACE: it predicts dipoles and polariz"),
        ("OtherMACE", "is an OtherMACE: only MACE and .* are known"),
    ],
)
def test_other_models_are_refused(model_class: str, reason: str) -> None:
    class Other(torch.nn.Module):
        pass

    model = build_model()
    kind = type(model_class, (type(model),), {})
    model.__class__ = kind
    with pytest.raises(UnsupportedProblemError, match=f"{reason}.*in place instead"):
        convert_model(model)


def test_a_checkpoint_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that changes while it is read is refused."""
    path = tmp_path / "a.model"
    torch.save(build_model(), path)

    def load_and_replace(path: Path) -> Any:
        model = load_model(path)
        torch.save(build_model(), path)
        return model

    monkeypatch.setattr("mdcg.patch.load_model", load_and_replace)
    with pytest.raises(CheckpointError, match=r"a\.model changed while it was read: run the"):
        convert_checkpoint(path)


@pytest.mark.parametrize("value", [float("nan"), 1e200])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    """Weights that are not finite, or that overflow when they are folded, are refused."""
    model: Any = build_model()
    model.interactions[1].conv_tp_weights.layer0.weight.data.fill_(value)
    model.interactions[1].conv_tp_weights.layer1.weight.data.fill_(value)
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        convert_model(model)


def test_foreign_parts_are_refused() -> None:
    model: Any = build_model()

    class Mine(type(model.interactions[1])):  # type: ignore[misc]
        pass

    model.interactions[1].__class__ = Mine
    with pytest.raises(UnsupportedProblemError, match=r"interactions\.1 is a Mine, expected"):
        convert_model(model)
    model = build_model(gate=torch.cos)
    with pytest.raises(UnsupportedProblemError, match="activation 'cos'"):
        convert_model(model)
