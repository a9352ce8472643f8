"""NequIP models as packages, evaluated by the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import InputError
from ase.neighborlist import neighbor_list

from mdcg import MDCGCalculator
from mdcg.errors import UnsupportedProblemError
from mdcg.package import Package
from mdcg.package.convert import ConversionOptions, convert_model
from mdcg.patch import load_model, nequip_batch, nequip_info, patch_model

from ..engine.programs import evaluate_both
from .conftest import DATA, MODELS


def structure(rng: np.random.Generator, n_types: int, n_nodes: int = 11) -> tuple[Atoms, Any]:
    cell = np.diag([6.0, 7.0, 8.0]) + 0.3 * rng.normal(size=(3, 3))
    positions = rng.uniform(size=(n_nodes, 3)) @ cell
    atoms = Atoms("H" * n_nodes, positions=positions, cell=cell, pbc=(True, True, False))
    return atoms, rng.integers(0, n_types, n_nodes)


def compare(
    model: torch.nn.Module,
    package: Package,
    rng: np.random.Generator,
    tolerance: float,
    **extra: Any,
) -> None:
    """Compare energies, forces and virial with those of the model on a periodic structure."""
    info = nequip_info(model)
    names = package.manifest["type_names"]
    atoms, types = structure(rng, len(names))
    i, j, unit = neighbor_list("ijS", atoms, info.r_max)
    theirs = np.array([info.type_names.index(name) for name in names])[types]
    cell = np.where(np.asarray(atoms.pbc)[:, None], atoms.cell.array, 0.0)
    data = nequip_batch(info, theirs, atoms.positions, cell, np.array([i, j]), unit.astype(float))
    out = model({**data, **extra})
    # The centre of an edge is the receiver; the other end is at its position + unit @ cell.
    found = evaluate_both(package, atoms.positions, types, j, i, -(unit @ atoms.cell.array))
    energies = out["atomic_energy"].detach().numpy().reshape(-1)
    forces = out["forces"].detach().numpy()
    scale = max(1.0, np.abs(energies).max())
    assert np.abs(found.energies.detach().numpy() - energies).max() < tolerance * scale
    scale = np.abs(forces).max()
    assert scale > 1e-3
    assert np.abs(found.forces.numpy() - forces).max() < tolerance * scale


@pytest.mark.parametrize("name", MODELS)
def test_same_energies_and_forces(
    name: str, build: Callable[..., torch.nn.Module], rng: np.random.Generator
) -> None:
    model = build(name)
    package = convert_model(model)
    assert package.manifest["architecture"] == "nequip"
    assert package.manifest["dtype"] == "float64"
    compare(model, package, rng, 1e-11)


@pytest.mark.parametrize(
    "changes",
    [
        {"convnet_resnet": True},
        {"readout_mlp_hidden_layers_depth": 2, "readout_mlp_nonlinearity": "silu"},
        {"radial_mlp_depth": 3},
        {"radial_mlp_depth": 0},
        {"bessel_trainable": True, "num_bessels": 5, "polynomial_cutoff_p": 4},
        {"per_type_energy_scales": None, "per_type_energy_shifts": None},
        {"learnable_shift": True},
        {"convnet_sc": False},
    ],
    ids=lambda changes: " ".join(changes),
)
@pytest.mark.filterwarnings("ignore:Found .per_type_energy:UserWarning")
def test_options_of_the_builder(
    changes: dict[str, Any], build: Callable[..., torch.nn.Module], rng: np.random.Generator
) -> None:
    model = build("preset-like", **changes)
    compare(model, convert_model(model), rng, 1e-11)


def test_some_of_the_types(build: Callable[..., torch.nn.Module], rng: np.random.Generator) -> None:
    for name in ("per type", "pair potential"):
        model = build(name)
        package = convert_model(model, ConversionOptions(types=("O", "H")))
        assert sorted(package.manifest["type_names"]) == ["H", "O"]
        compare(model, package, rng, 1e-11)


def test_categorical_field(
    build: Callable[..., torch.nn.Module], rng: np.random.Generator, tmp_path: Path
) -> None:
    path = tmp_path / "p.mdcg"
    field = {"field": "charge", "num_features": 4, "min": -2, "max": 2}
    from nequip.data import register_fields

    register_fields(graph_fields=["charge"], long_fields=["charge"])
    model = build("preset-like", categorical_graph_field_embed=[field])
    with pytest.raises(ValueError, match="charge is 3, expected a whole number from -2 to 2"):
        convert_model(model, ConversionOptions(graph_fields=(("charge", 3),)))
    with pytest.raises(ValueError, match="the model reads no spin, expected charge"):
        convert_model(model, ConversionOptions(graph_fields=(("charge", 1), ("spin", 3))))
    for charge in (-1, 2):
        package = convert_model(model, ConversionOptions(graph_fields=(("charge", charge),)))
        compare(model, package, np.random.default_rng(3), 1e-11, charge=torch.tensor([[charge]]))
    atoms = ase.build.molecule("H2O")
    calc = MDCGCalculator(model)
    convert_model(model).save(path)
    packed = MDCGCalculator(path)
    for each in (calc, packed):
        for charge in (None, 3, 0.5, "one"):
            atoms.info["charge"] = charge
            with pytest.raises(InputError, match=r"charge.* a whole number from -2 to 2"):
                each.get_forces(atoms)
        atoms.info |= {"charge": 1, "total_charge": 2}
        with pytest.raises(InputError, match="which are one input of the model, expected one val"):
            each.get_forces(atoms)
        del atoms.info["total_charge"]
    found = []
    for key, charge in (("charge", -1), ("total_charge", 2), ("charge", -1)):
        atoms.info = {key: charge}
        found.append(calc.get_potential_energy(atoms))
        assert packed.get_potential_energy(atoms) == pytest.approx(found[-1], rel=1e-11)
    assert abs(found[0] - found[1]) > 1e-6
    assert found[0] == found[2]


@pytest.mark.parametrize("file", ["nequip_water.ckpt", "nequip_alloy.ckpt"])
def test_trained_checkpoints(file: str, rng: np.random.Generator) -> None:
    model = load_model(DATA / file)
    single = nequip_info(model).dtype == torch.float32
    package = convert_model(model)
    assert package.manifest["dtype"] == ("float32" if single else "float64")
    compare(model, package, rng, 2e-5 if single else 1e-11)


def test_patched_models_convert_and_stay_patched(
    build: Callable[..., torch.nn.Module], rng: np.random.Generator
) -> None:
    model = build("parity")
    package = convert_model(model)
    patch_model(model)
    again = convert_model(model)
    assert again.manifest["layers"] == package.manifest["layers"]
    assert all(np.array_equal(again.tensors[k], v) for k, v in package.tensors.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"convnet_nonlinearity_type": "norm"}, "equivariant_nonlin is a NormActivation"),
        (
            {"readout_mlp_hidden_layers_depth": 1, "readout_mlp_nonlinearity": "mish"},
            "uses the activation Mish",
        ),
        (
            {
                "pair_potential": {
                    "_target_": "nequip.nn.pair_potential.LennardJones",
                    "lj_sigma": 1.0,
                    "lj_epsilon": 0.1,
                }
            },
            "pair_potential is a LennardJones",
        ),
    ],
)
def test_refusals_name_the_layer(
    changes: dict[str, Any], message: str, build: Callable[..., torch.nn.Module]
) -> None:
    with pytest.raises(UnsupportedProblemError, match=message) as caught:
        convert_model(build("preset-like", **changes))
    assert "in place instead (name the output .pt, or .nequip.zip" in str(caught.value)


def test_same_bytes_every_time(build: Callable[..., torch.nn.Module], tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.mdcg" for number in range(2)]
    for file in files:
        convert_model(build("parity")).save(file)
    assert files[0].read_bytes() == files[1].read_bytes()
