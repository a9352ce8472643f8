"""The check after patching: structures, inputs of the model, limits, and what it must not miss."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import VerificationError, patch_model
from mdcg.patch import mace_batch, model_info, neighbor_list, verify_patch
from mdcg.patch.models import ModelInfo, complete_cell
from mdcg.patch.systems import Structure, verification_systems

CELLS = {
    "cubic": np.eye(3) * 4.0,
    "triclinic": np.array([[4.0, 0.0, 0.0], [1.5, 4.0, 0.0], [-1.0, 2.0, 5.0]]),
    "left-handed": np.array([[0.0, 4.0, 0.0], [4.0, 0.0, 1.0], [1.0, 1.0, 4.0]]),
}


def test_neighbor_list_without_edges() -> None:
    for count in (0, 1):
        edges, shifts = neighbor_list(np.zeros((count, 3)), np.zeros((3, 3)), (False,) * 3, 3.0)
        assert edges.shape == (2, 0)
        assert shifts.shape == (0, 3)


def test_cells_without_volume() -> None:
    flat = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
    with pytest.raises(ValueError, match="no volume"):
        complete_cell(flat, (True, True, True))
    assert abs(np.linalg.det(complete_cell(flat, (True, False, True)))) == pytest.approx(1.0)
    assert np.array_equal(complete_cell(CELLS["triclinic"], (True,) * 3), CELLS["triclinic"])


def test_structures() -> None:
    systems = verification_systems([1, 8, 26], 5.0)
    again = verification_systems([1, 8, 26], 5.0)
    names = ("cubic", "triclinic", "slab", "self-images", "molecule", "short pairs")
    assert [s.name for s in systems] == [*names, "stretched pairs"]
    for system, other in zip(systems, again, strict=True):
        assert np.array_equal(system.positions, other.positions)
        edges, shifts = neighbor_list(system.positions, system.cell, system.pbc, 5.0)
        assert edges.shape[1] > 8
        if system.name == "self-images":
            assert ((edges[0] == edges[1]) & shifts.any(axis=1)).any()
        if system.name == "molecule":
            assert set(range(9)) - set(edges[0].tolist()) == {8}
        else:
            assert set(edges[0].tolist()) == set(range(len(system.atomic_numbers)))
        lengths = np.linalg.norm(_vectors(system, edges, shifts), axis=1)
        assert lengths.min() > (0.4 if system.name == "short pairs" else 1.0)
        if "pairs" in system.name:
            assert len(lengths) == len(system.atomic_numbers), "no atom sees two others"
            kinds = system.atomic_numbers[edges]
            assert len(set(zip(*kinds.tolist(), strict=True))) == 9
            assert lengths.min() < (0.8 if system.name == "short pairs" else 2.0)
            assert lengths.max() > (2.0 if system.name == "short pairs" else 4.9)
    every = verification_systems(list(range(1, 90)), 6.0)
    assert len({int(z) for s in every for z in s.atomic_numbers}) > 27


def _vectors(system: Structure, edges: Any, shifts: Any) -> Any:
    return system.positions[edges[1]] - system.positions[edges[0]] + shifts @ system.cell


def test_batch_is_what_mace_itself_would_make(build: Any, systems: Any) -> None:
    """The batch equals that of mace's own data pipeline, up to the order of edges."""
    from mace import data, tools

    model = build(heads=["a", "b"], atomic_energies=np.array([[-1.0, -2.0], [-1.5, -7.0]]),
                  atomic_inter_scale=[1.0, 1.0], atomic_inter_shift=[0.0, 0.0])  # fmt: skip
    info = model_info(model)
    for system in systems(model)[:2]:
        config = data.Configuration(
            atomic_numbers=system.atomic_numbers,
            positions=system.positions,
            properties={},
            property_weights={},
            cell=system.cell.copy(),
            pbc=tuple(system.pbc),
            head="b",
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            theirs = data.AtomicData.from_config(
                config, tools.AtomicNumberTable([1, 8]), cutoff=info.r_max, heads=["a", "b"]
            )
        finally:
            torch.set_default_dtype(before)
        edge_index, shifts = neighbor_list(system.positions, system.cell, system.pbc, info.r_max)
        ours = mace_batch(
            info,
            system.atomic_numbers,
            system.positions,
            system.cell,
            system.pbc,
            edge_index,
            shifts,
            head="b",
        )
        for name in ("positions", "node_attrs", "cell", "pbc", "rcell"):
            assert torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-12), name
            assert ours[name].shape == theirs[name].shape, name
        assert int(ours["head"]) == int(theirs["head"]) == 1
        assert float(ours["volume"]) == pytest.approx(float(theirs["volume"]))
        rows = [
            sorted(map(tuple, torch.cat([d["edge_index"].T, d["unit_shifts"]], 1).tolist()))
            for d in (ours, theirs)
        ]
        assert rows[0] == rows[1]
        gap = ours["shifts"] - ours["unit_shifts"] @ ours["cell"]
        assert float(gap.abs().max()) < 1e-12


def make_info(**changes: Any) -> ModelInfo:
    values: dict[str, Any] = {
        "model_class": "MACE",
        "atomic_numbers": (8, 1, 26),
        "r_max": 4.0,
        "heads": ("a", "b"),
        "dtype": torch.float64,
        "device": torch.device("cpu"),
        "graph_features": {},
    }
    return ModelInfo(**{**values, **changes})


def test_heads_and_species() -> None:
    info = make_info()
    assert info.species([26, 8, 1, 8]).tolist() == [2, 0, 1, 0]
    with pytest.raises(ValueError, match="atomic number 7, 92 is not"):
        info.species([1, 92, 7, 7])
    assert info.head_index("b") == 1
    with pytest.raises(ValueError, match=r"2 heads \(a, b\)"):
        info.head_index(None)
    with pytest.raises(ValueError, match="one of: a, b"):
        info.head_index("c")
    assert make_info(default_head="b").head_index(None) == 1
    assert make_info(heads=("a",)).head_index(None) == 0


def test_wrong_shapes() -> None:
    arguments: dict[str, Any] = {
        "atomic_numbers": [1, 8],
        "positions": np.zeros((2, 3)),
        "cell": np.eye(3),
        "pbc": (True,) * 3,
        "edge_index": np.zeros((2, 4), int),
        "unit_shifts": np.zeros((4, 3)),
    }
    mace_batch(make_info(), **arguments, head="a")
    for name, value in (
        ("positions", np.zeros((3, 3))),
        ("cell", np.zeros(3)),
        ("edge_index", np.zeros((4, 2), int)),
        ("unit_shifts", np.zeros((3, 3))),
    ):
        with pytest.raises(ValueError, match=name):
            mace_batch(make_info(), **{**arguments, name: value}, head="a")


def test_model_info_of_something_else() -> None:
    with pytest.raises(TypeError, match="expected a MACE, NequIP or SevenNet model"):
        model_info(torch.nn.Linear(1, 1))


# ---- the comparison ----


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=str)
def pair(request: pytest.FixtureRequest, build: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    original = build(dtype=request.param)
    patched = copy.deepcopy(original)
    patch_model(patched)
    return original, patched


def test_passes(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    original, patched = pair
    for parameter in original.parameters():
        parameter.requires_grad_(True)
    original.train()
    check = verify_patch(original, patched)
    assert check.passed
    assert {d.quantity for d in check.deviations} == {"energy", "forces", "stress"}
    assert len({d.system for d in check.deviations}) == 7
    own = [d.own_error for d in check.deviations]
    assert all(value is None for value in own) == (check.dtype == "float64")
    assert all(p.requires_grad for p in original.parameters())
    assert original.training
    json.dumps(check.to_dict())
    assert "PASS" in check.summary()
    assert "self-images" in str(check)


@pytest.mark.parametrize("what", ["weights", "sign", "forces only"])
def test_notices(
    what: str, pair: tuple[torch.nn.Module, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, patched = pair
    wrong = copy.deepcopy(patched)
    conv_tp: Any = wrong.interactions[1].conv_tp
    if what == "weights":
        wrong.interactions[1].linear_up.weight.data.mul_(1.0 + 1e-3)
    elif what == "sign":
        text = json.loads(conv_tp._mdcg_problem)
        text["flipped"] = [[1, 1, 0]]
        conv_tp._mdcg_problem = json.dumps(text, separators=(",", ":"), sort_keys=True)
    else:
        from mdcg.patch import fused_conv

        def detached(name: str) -> Any:
            call = getattr(fused_conv, name)
            return lambda problem, x, y, *args: call(problem, x, y.detach(), *args)

        # for a radial network per edge, and per pair of edges
        for name in ("conv", "conv_of_pending"):
            monkeypatch.setattr(fused_conv, name, detached(name))
    check = verify_patch(original, wrong)
    assert not check.passed
    assert "FAIL" in check.summary()
    assert "FAIL" in str(check)
    failed = {d.quantity for d in check.deviations if not d.passed}
    assert "forces" in failed
    if what == "forces only":
        assert "energy" not in failed
    elif check.dtype == "float64":
        assert "energy" in failed


def test_nan_fails(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    original, patched = pair
    wrong = copy.deepcopy(patched)
    wrong.interactions[1].linear_up.weight.data.fill_(float("nan"))
    assert not verify_patch(original, wrong).passed


def test_own_limit(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    original, patched = pair
    check = verify_patch(original, patched, atol_forces=1e-30)
    assert not check.passed
    assert {d.quantity for d in check.deviations if not d.passed} == {"forces"}


def test_different_dtypes(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    original, patched = pair
    other = copy.deepcopy(patched)
    other = other.float() if model_info(original).dtype == torch.float64 else other.double()
    with pytest.raises(ValueError, match="expected torch"):
        verify_patch(original, other)


def test_model_that_does_not_run(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    original, patched = pair
    broken = copy.deepcopy(patched)
    del broken.products[1]
    broken.products.append(torch.nn.Linear(1, 1))
    with pytest.raises(VerificationError, match="does not run on the cubic structure"):
        verify_patch(original, broken)


def test_dipoles_are_compared(build: Any) -> None:
    from e3nn import o3

    model = build(
        model_class="AtomicDipolesMACE", atomic_energies=None, MLP_irreps=o3.Irreps("4x1o")
    )
    patched = copy.deepcopy(model)
    patch_model(patched)
    check = verify_patch(model, patched)
    assert check.passed
    assert {d.quantity for d in check.deviations} == {"dipole"}


@pytest.mark.usefixtures("global_state")
def test_no_global_state_is_touched(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    verify_patch(*pair)
