"""A patched model is the same model: state, copies, pickles, dtypes, training, and the way back."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import mdcg
from mdcg import UnsupportedProblemError, patch_model, unpatch_model
from mdcg.errors import MdcgError
from mdcg.patch import is_patched

from ..processes import printed_by
from .conftest import shape_of


@pytest.fixture
def patched(stock: torch.nn.Module) -> torch.nn.Module:
    found = copy.deepcopy(stock)
    patch_model(found)
    return found


def same_state(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(torch.equal(first[n], second[n]) for n in first)


# ---- the same model ----


def test_state_dict_and_parameters(stock: torch.nn.Module, patched: torch.nn.Module) -> None:
    assert type(patched) is type(stock)
    assert same_state(patched, stock)
    assert [n for n, _ in patched.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert [n for n, _ in patched.named_buffers()] == [n for n, _ in stock.named_buffers()]
    assert isinstance(patched.interactions[1].conv_tp, type(stock.interactions[1].conv_tp))


def test_parameters_stay_the_same_objects(model: torch.nn.Module) -> None:
    before = [id(p) for p in model.parameters()]
    blocks = [id(m) for m in model.modules()]
    patch_model(model)
    assert [id(p) for p in model.parameters()] == before
    assert [id(m) for m in model.modules()] == blocks


def test_unpatching_leaves_nothing(model: torch.nn.Module) -> None:
    before = shape_of(model)
    patch_model(model)
    assert is_patched(model)
    assert unpatch_model(model) == 6
    assert not is_patched(model)
    assert shape_of(model) == before
    assert unpatch_model(model) == 0


def test_patching_twice_says_so(patched: torch.nn.Module, systems: Any, evaluate: Any) -> None:
    system = systems(patched)[0]
    before = evaluate(patched, system)["forces"]
    report = patch_model(patched)
    assert {layer.status for layer in report.patched} == {"already patched"}
    assert report.complete
    # Only to rounding: TorchScript, which e3nn uses, optimises code after its first calls.
    again = evaluate(patched, system)["forces"]
    torch.testing.assert_close(again, before, rtol=1e-12, atol=1e-12)
    assert unpatch_model(patched) == 6


def test_a_new_layer_in_a_patched_model_is_patched(
    stock: torch.nn.Module, patched: torch.nn.Module
) -> None:
    patched.interactions[1].conv_tp = copy.deepcopy(stock.interactions[1].conv_tp)
    statuses = [layer.status for layer in patch_model(patched).patched]
    assert sorted(statuses) == ["already patched"] * 5 + ["patched"]


def test_state_dict_of_another_model_is_followed(build: Any, systems: Any, evaluate: Any) -> None:
    source, target = build(seed=21), build(seed=22)
    patch_model(target)
    target.load_state_dict(source.state_dict())
    for system in systems(source)[:2]:
        want, got = evaluate(source, system)["forces"], evaluate(target, system)["forces"]
        assert float((got - want).detach().abs().max()) < 1e-13


@pytest.mark.parametrize(
    "how", ["deepcopy", "pickle", "torch.save", "load_model", "copy of a copy"]
)
def test_copies(
    how: str, patched: torch.nn.Module, systems: Any, evaluate: Any, tmp_path: Path
) -> None:
    if how == "deepcopy":
        other = copy.deepcopy(patched)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(patched))
    elif how == "copy of a copy":
        other = copy.deepcopy(pickle.loads(pickle.dumps(copy.deepcopy(patched))))
    else:
        torch.save(patched, tmp_path / "patched.model")
        if how == "torch.save":
            other = torch.load(tmp_path / "patched.model", weights_only=False)
        else:
            other = mdcg.patch.load_model(tmp_path / "patched.model")
    assert is_patched(other)
    assert same_state(other, patched)
    for system in systems(patched)[:2]:
        want, got = evaluate(patched, system), evaluate(other, system)
        assert all(torch.equal(got[name], want[name]) for name in want)
    # unpatching a copy does not unpatch the original
    assert unpatch_model(other) == 6
    assert is_patched(patched)


def test_pickle_holds_text_only_for_the_problem(patched: torch.nn.Module) -> None:
    for block in patched.interactions:
        stock_keys = {"_mdcg_problem"}
        added = {n: v for n, v in block.conv_tp.__dict__.items() if n in stock_keys}
        assert json.loads(added["_mdcg_problem"])["paths"]
        assert block.__dict__["conv_fusion"] == "mdcg"


def test_loads_in_a_process_that_does_not_know_mdcg(
    patched: torch.nn.Module, tmp_path: Path
) -> None:
    """MACE's own calculator loads a patched model without importing mdcg first."""
    torch.save(patched, tmp_path / "patched.model")
    code = (
        "from mace.calculators import MACECalculator\n"
        f"c = MACECalculator({str(tmp_path / 'patched.model')!r}, device='cpu')\n"
        "m = c.models[0]\n"
        "print(type(m).__module__, type(m.interactions[0].conv_tp).__module__)\n"
    )
    assert printed_by(code).split()[-2:] == ["mace.modules.models", "mdcg.patch.fused_conv"]


# ---- dtypes ----


def test_dtype_follows(stock: torch.nn.Module, systems: Any, evaluate: Any, agree: Any) -> None:
    system = systems(stock)[1]
    patched = copy.deepcopy(stock)
    patch_model(patched)
    single = copy.deepcopy(stock).float()
    agree(evaluate(patched.float(), system), evaluate(single, system), 2e-4)
    assert evaluate(patched, system)["forces"].dtype == torch.float32
    # Back to float64: the buffers of both models have been rounded in the same way.
    agree(evaluate(patched.double(), system), evaluate(single.double(), system), 1e-12)
    assert evaluate(patched.to("cpu"), system)["forces"].dtype == torch.float64


def test_half_precision_is_refused_when_used(patched: torch.nn.Module) -> None:
    conv_tp = patched.half().interactions[0].conv_tp
    rows = [torch.zeros(2, n, dtype=torch.float16) for n in (4, 9, conv_tp.weight_numel)]
    with pytest.raises(ValueError, match="float16"):
        conv_tp(*rows, torch.zeros(2, 2, dtype=torch.int64))
    # After float16, 3j symbols have lost too many digits to be recognised.
    conv_tp = patched.float().interactions[1].conv_tp
    rows = [torch.zeros(2, n) for n in (16, 9, conv_tp.weight_numel)]
    with pytest.raises(UnsupportedProblemError, match="3j"):
        conv_tp(*rows, torch.zeros(2, 2, dtype=torch.int64))


def test_patching_after_a_change_of_dtype(
    stock: torch.nn.Module, systems: Any, evaluate: Any, agree: Any
) -> None:
    rounded = copy.deepcopy(stock).float().double()
    patched = copy.deepcopy(rounded)
    patch_model(patched)
    for system in systems(stock)[:2]:
        agree(evaluate(patched, system), evaluate(rounded, system), 1e-12)


# ---- derivatives ----


def test_energy_only(
    stock: torch.nn.Module, patched: torch.nn.Module, systems: Any, evaluate: Any
) -> None:
    system = systems(stock)[0]
    with torch.no_grad():
        want, got = (
            evaluate(m, system, compute_force=False, compute_stress=False)["energy"]
            for m in (stock, patched)
        )
    assert float((want - got).abs()) < 1e-12


# ---- in company ----


def test_hooks_stay(model: torch.nn.Module, systems: Any, evaluate: Any) -> None:
    seen = []
    model.interactions[1].conv_tp.register_forward_hook(lambda *args: seen.append(1))
    patch_model(model)
    evaluate(model, systems(model)[3])
    assert seen == [1]


@pytest.mark.parametrize("made", ["patched", "pickled", "double"])
def test_torch_compile_sees_one_operator(made: str, patched: torch.nn.Module) -> None:
    """torch.compile makes one graph of a layer that has never been called."""
    if made == "pickled":
        patched = pickle.loads(pickle.dumps(patched))
    elif made == "double":
        patched = patched.float().double()
    conv_tp = patched.interactions[1].conv_tp
    generator = torch.Generator().manual_seed(1)
    x, y, w = (
        torch.randn(rows, n, generator=generator, dtype=torch.float64)
        for rows, n in (
            (4, conv_tp.irreps_in1.dim),
            (6, conv_tp.irreps_in2.dim),
            (6, conv_tp.weight_numel),
        )
    )
    edge_index = torch.randint(0, 4, (2, 6), generator=generator)
    with torch.random.fork_rng(devices=[]):
        compiled = torch.compile(
            lambda *args: conv_tp(*args), backend="aot_eager", fullgraph=True, dynamic=True
        )
        got = compiled(x.requires_grad_(), y, w, edge_index)
    assert torch.equal(got, conv_tp(x, y, w, edge_index))
    (gradient,) = torch.autograd.grad(got.sum(), x)
    assert float(gradient.abs().max()) > 0.0


def test_in_mace_calculator(stock: torch.nn.Module, patched: torch.nn.Module, systems: Any) -> None:
    ase = pytest.importorskip("ase")
    from mace.calculators import MACECalculator

    system = systems(stock)[1]
    results = []
    for model in (stock, patched):
        atoms = ase.Atoms(system.atomic_numbers, system.positions, cell=system.cell, pbc=system.pbc)
        atoms.calc = MACECalculator(
            models=[copy.deepcopy(model)], device="cpu", default_dtype="float64"
        )
        results.append((atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()))
    for want, got in zip(*results, strict=True):
        assert got == pytest.approx(want, rel=1e-11, abs=1e-13)


def test_stock_call_of_a_patched_layer(stock: torch.nn.Module, patched: torch.nn.Module) -> None:
    """Calling a patched layer with three arguments gives the product on rows, as in e3nn."""
    a, b = stock.interactions[1].conv_tp, patched.interactions[1].conv_tp
    generator = torch.Generator().manual_seed(1)
    x, y, w = (
        torch.randn(5, n, generator=generator, dtype=torch.float64)
        for n in (a.irreps_in1.dim, a.irreps_in2.dim, a.weight_numel)
    )
    assert torch.equal(a(x, y, w), b(x, y, w))


@pytest.mark.parametrize("how", ["torch.jit.script", "e3nn"])
def test_torchscript_is_refused_in_one_sentence(how: str, patched: torch.nn.Module) -> None:
    from e3nn.util import jit

    compile_model = jit.compile if how == "e3nn" else torch.jit.script
    with pytest.raises(MdcgError, match=r"mdcg\.unpatch_model") as caught:
        compile_model(patched)
    assert "\n" not in str(caught.value)


def test_torchscript_after_unpatching(patched: torch.nn.Module, tmp_path: Path) -> None:
    from e3nn.util import jit

    unpatch_model(patched)
    buffer = io.BytesIO()
    torch.jit.save(jit.compile(patched), buffer)
    assert buffer.tell() > 0


@pytest.mark.usefixtures("global_state")
def test_no_global_state_is_touched(model: torch.nn.Module) -> None:
    patch_model(model)
    copy.deepcopy(model)
    unpatch_model(model)
