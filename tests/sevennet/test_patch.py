"""SevenNet models whose layers are patched in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import mdcg
from mdcg.errors import UnsupportedProblemError
from mdcg.package.convert import convert_model
from mdcg.patch import is_patched, load_model, verify_patch

from .conftest import MODELS, build_model, config_of, write_checkpoint


@pytest.mark.parametrize("name", ["parity", "biases", "of May 2024"])
def test_same_results(name: str) -> None:
    model = build_model(config_of(**MODELS[name]))
    original = copy.deepcopy(model)
    report = mdcg.patch_model(model)
    convolutions = [row for row in report.patched if row.name.endswith("_convolution")]
    assert len(convolutions) == 3
    assert is_patched(model)
    check = verify_patch(original, model)
    assert check.passed, str(check)
    assert mdcg.unpatch_model(model) == len(report.patched)
    assert not is_patched(model)
    assert type(model.get_submodule("0_convolution")).__name__ == "IrrepsConvolution"


def test_layers_of_the_report() -> None:
    """Convolutions and self-connections of all types are patched; products of gates stay."""
    report = mdcg.patch_model(build_model(config_of(**MODELS["parity"])))
    patched = [f"{n}_self_connection_intro.fc_tensor_product" for n in range(3)]
    patched += [f"{n}_convolution" for n in range(3)]
    assert {row.name for row in report.layers if row.status == "patched"} == {*patched}
    left = {row.name for row in report.layers if row.status != "patched"}
    assert left == {f"{n}_equivariant_gate.gate.mul" for n in range(3)}
    linear = mdcg.patch_model(build_model(config_of(**MODELS["like the published"])))
    assert {row.name for row in linear.patched} == {f"{n}_convolution" for n in range(3)}


def test_gradients_of_parameters() -> None:
    """A patched model can be trained: gradients of its parameters are those of the original."""
    from mdcg.patch import model_info, neighbor_list
    from mdcg.patch.sevennet_files import sevennet_batch

    rng = np.random.default_rng(1)
    positions, cell = rng.uniform(size=(6, 3)) * 5.0, 5.0 * np.eye(3)
    edges = neighbor_list(positions, cell, (True,) * 3, 4.0)
    found = []
    for patched in (False, True):
        model = build_model(config_of()).train()
        if patched:
            mdcg.patch_model(model)
        dtype = model_info(model).dtype
        data = sevennet_batch(model, dtype, [1, 8, 26, 1, 8, 1], positions, cell, *edges, None)
        out = model(data)
        loss = out["inferred_total_energy"].sum() + (out["inferred_force"] ** 2).sum()
        loss.backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) > 20
    for name, gradient in found[0].items():
        scale = max(float(gradient.abs().max()), 1e-6)
        assert float((found[1][name] - gradient).abs().max()) < 1e-9 * scale, name


def test_the_calculator_of_the_library(tmp_path: Path) -> None:
    import warnings

    from ase.build import bulk

    path = write_checkpoint(tmp_path / "m.pth", config_of(**MODELS["like the published"]))
    atoms = bulk("Fe", cubic=True) * (2, 1, 1)
    atoms.symbols[1] = "O"
    atoms.rattle(0.1, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sevenn.calculator import SevenNetCalculator

        atoms.calc = calculator = SevenNetCalculator(str(path), device="cpu")
    want = atoms.get_forces()
    mdcg.patch_model(calculator.model)
    calculator.reset()
    assert 0 < np.abs(atoms.get_forces() - want).max() < 1e-5 * np.abs(want).max()


def test_patched_models_are_converted_as_the_original(tmp_path: Path) -> None:
    model = load_model(write_checkpoint(tmp_path / "m.pth", config_of()))
    want = convert_model(model).to_bytes()
    mdcg.patch_model(model)
    assert convert_model(model).to_bytes() == want
    assert is_patched(model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layer: setattr(layer, "is_parallel", True), "for several ranks of LAMMPS"),
        (
            lambda layer: setattr(layer, "convolution", torch.nn.Identity()),
            "convolution is an Identity, expected an e3nn TensorProduct",
        ),
    ],
)
def test_refusals(change: Callable[[torch.nn.Module], None], reason: str) -> None:
    model = build_model(config_of())
    change(model.get_submodule("1_convolution"))
    with pytest.raises(UnsupportedProblemError, match=f"1_convolution: .*{reason}"):
        mdcg.patch_model(model)
