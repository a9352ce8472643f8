"""Models that cannot be patched are refused with a reason and stay unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import mdcg
from mdcg import PatchReport, UnsupportedProblemError, VerificationError, patch_model, unpatch_model
from mdcg.patch import inspect_model
from mdcg.patch import layers as adapter

from .conftest import shape_of

CONV, PRODUCT = "interactions.1.conv_tp", "products.1.symmetric_contractions"
LAYERS = ("interactions.0.conv_tp", CONV, "products.0.symmetric_contractions", PRODUCT)


def test_report_of_what_would_be_done(model: torch.nn.Module) -> None:
    before = shape_of(model)
    report = inspect_model(model)
    assert isinstance(report, PatchReport)
    assert {layer.status for layer in report.patchable} == {"can be patched"}
    assert report.complete
    assert shape_of(model) == before
    json.dumps(report.to_dict())


class OldBlock(torch.nn.Module):
    """A block of mace-torch from before conv_fusion."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.conv_tp = block.conv_tp

    def forward(self, node_feats: torch.Tensor) -> torch.Tensor:
        return node_feats


def of_another_package(name: str) -> torch.nn.Module:
    kind = type(name, (torch.nn.Module,), {})
    kind.__module__ = "cuequivariance_torch.operations"
    return kind()  # type: ignore[no-any-return]


def replaced(layer: Any) -> None:
    layer.forward = layer.forward


def spoil_conv(block: Any, how: str) -> None:
    from e3nn import o3

    if how == "forward replaced":
        replaced(block.conv_tp)
    elif how == "conv_fusion of another":
        block.conv_fusion = "atomic"
    elif how == "cuequivariance":
        block.conv_tp = of_another_package("SegmentedPolynomial")
    elif how == "another class":
        block.conv_tp = o3.FullyConnectedTensorProduct("2x0e", "1x0e", "2x0e")
    elif how == "half precision":
        block.conv_tp.to(torch.bfloat16)
    elif how == "mode":
        paths = [(0, 0, 0, "uuu", True)]
        block.conv_tp = o3.TensorProduct("2x0e", "2x0e", "2x0e", paths, shared_weights=False)


def spoil_product(block: Any, how: str) -> None:
    layer = block.symmetric_contractions
    if how == "forward replaced":
        replaced(layer)
    elif how == "cuequivariance":
        block.symmetric_contractions = of_another_package("SymmetricContraction")
    elif how == "another class":
        block.symmetric_contractions = torch.nn.Identity()
    elif how == "half precision":
        layer.to(torch.bfloat16)
    elif how == "parts replaced":
        replaced(layer.contractions[0])
    elif how == "other shape":
        zeros = torch.zeros(2, 9, 1, dtype=torch.float64)
        layer.contractions[0].register_buffer("U_matrix_1", zeros)


REFUSALS = {
    (CONV, "old block"): "install mace-torch 0.3.15",
    (CONV, "forward replaced"): "forward has been replaced",
    (CONV, "conv_fusion of another"): "'atomic'",
    (CONV, "cuequivariance"): "already accelerated by cuEquivariance",
    (CONV, "another class"): "FullyConnectedTensorProduct",
    (CONV, "half precision"): "bfloat16",
    (CONV, "mode"): "uuu",
    (PRODUCT, "forward replaced"): "forward has been replaced",
    (PRODUCT, "cuequivariance"): "already accelerated by cuEquivariance",
    (PRODUCT, "another class"): "expected a SymmetricContraction of mace",
    (PRODUCT, "half precision"): "bfloat16",
    (PRODUCT, "parts replaced"): "expected mace's own Contraction",
    (PRODUCT, "other shape"): "does not fit",
}


def test_the_version_named_is_the_one_that_is_installed_with_mdcg() -> None:
    root = Path(__file__).resolve().parents[2]
    bound = re.search(r'"mace-torch>=([\d.]+)"', (root / "pyproject.toml").read_text())
    assert bound is not None
    assert REFUSALS[CONV, "old block"].endswith(bound[1])


@pytest.mark.parametrize(("layer", "how"), REFUSALS)
def test_refusals(layer: str, how: str, model: Any) -> None:
    if how == "old block":
        model.interactions[1] = OldBlock(model.interactions[1])
    elif layer == CONV:
        spoil_conv(model.interactions[1], how)
    else:
        spoil_product(model.products[1], how)
    before, reason = shape_of(model), REFUSALS[layer, how]
    with pytest.raises(UnsupportedProblemError, match=reason) as caught:
        patch_model(model)
    assert "\n" not in str(caught.value)
    assert shape_of(model) == before
    assert not inspect_model(model).complete

    report = patch_model(model, allow_partial=True)
    assert [row.name for row in report.patched if "skip_tp" not in row.name] == [
        name for name in LAYERS if name != layer
    ]
    assert reason in report.refused[0].reason
    assert reason in str(report)
    assert not report.complete
    assert unpatch_model(model) == len(report.patched)
    assert shape_of(model) == before


def test_nothing_to_patch_is_an_error_even_in_part(model: torch.nn.Module) -> None:
    for block in model.interactions:
        block.conv_fusion = "atomic"
    for product in model.products:
        product.symmetric_contractions.forward = product.symmetric_contractions.forward
    with pytest.raises(UnsupportedProblemError, match="4 of 6"):
        patch_model(model, allow_partial=True)


def test_not_a_mace_model() -> None:
    with pytest.raises(UnsupportedProblemError, match="expected a model of one of these"):
        patch_model(torch.nn.Linear(2, 2))
    calculator = type("MACECalculator", (), {"models": []})()
    with pytest.raises(TypeError, match=r"calculator\.models\[0\]"):
        patch_model(calculator)


def test_wrong_kernel_is_noticed(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong kernel in the second layer is found, and the first layer is unpatched again."""
    from mdcg.patch import probe

    calls = []

    def wrong(problem: Any, *args: Any) -> torch.Tensor:
        calls.append(problem)
        return mdcg.conv(problem, *args) * (1.0 if len(calls) == 1 else -1.0)

    before = shape_of(model)
    monkeypatch.setattr(probe, "conv", wrong)
    with pytest.raises(VerificationError, match=CONV):
        patch_model(model)
    assert len(calls) == 2
    assert shape_of(model) == before
    calls.clear()
    report = patch_model(model, allow_partial=True)
    assert [row.name for row in report.patched if "skip_tp" not in row.name] == [
        name for name in LAYERS if name != CONV
    ]
    assert "differs from the stock layer" in report.refused[0].reason


def test_wrong_gradient_is_noticed(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdcg.patch import probe

    def without_gradient(problem: Any, x: Any, *args: Any) -> torch.Tensor:
        return mdcg.conv(problem, x.detach(), *args) + 0.0 * x.sum()

    monkeypatch.setattr(probe, "conv", without_gradient)
    with pytest.raises(VerificationError, match="gradient of node_feats"):
        patch_model(model)


def test_failure_while_changing_is_undone(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, name: str, value: Any) -> None:
        if name == "conv_fusion" and self is model.interactions[1]:
            raise KeyboardInterrupt
        torch.nn.Module.__setattr__(self, name, value)

    before = shape_of(model)
    monkeypatch.setattr(type(model.interactions[1]), "__setattr__", fail)
    with pytest.raises(KeyboardInterrupt):
        patch_model(model)
    monkeypatch.undo()
    assert shape_of(model) == before


def test_no_compiler_is_an_error_and_changes_nothing(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise mdcg.KernelCompileError("no C++ compiler was found")

    before = shape_of(model)
    monkeypatch.setattr(adapter, "probe_conv", fail)
    with pytest.raises(mdcg.KernelCompileError):
        patch_model(model, allow_partial=True)
    assert shape_of(model) == before


def test_patching_in_inference_mode(model: torch.nn.Module) -> None:
    with torch.inference_mode():
        assert patch_model(model).complete
