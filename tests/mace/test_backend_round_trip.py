"""Cases that mace-torch uses to test accelerators: models are converted and converted back.

Its ``tests/test_cueq_oeq.py`` converts a model to cuEquivariance or OpenEquivariance and back, and
compares energy, forces, stress and the gradients of every parameter of all three. These are its
cases (four first blocks, three hidden irreps, usual and reduced coupling tensors, a perturbed
diamond) for models that are patched and unpatched.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import patch_model, unpatch_model
from mdcg.patch.models import copy_model
from mdcg.patch.systems import Structure

from .conftest import Outputs

FIRST_BLOCKS = (
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticResidualNonLinearInteractionBlock",
)
HIDDEN = ("32x0e+32x1o", "32x0e+32x1o+32x2e", "32x0e")
LIMITS = {torch.float64: 1e-11, torch.float32: 1e-4}


@pytest.fixture(scope="module")
def diamond() -> Structure:
    """Return eight atoms, moved at random; mace repeats them to 64, which feel the same."""
    from ase.build import bulk

    atoms = bulk("C", "diamond", a=3.567, cubic=True)
    atoms.positions += np.random.default_rng(42).uniform(-0.1, 0.1, atoms.positions.shape)
    return Structure(
        "diamond", atoms.numbers, atoms.positions, np.asarray(atoms.cell.array), (True, True, True)
    )


def case(build: Any, first: str, hidden: str, dtype: torch.dtype, **changes: Any) -> Any:
    """Return the model of a case."""
    from e3nn import o3

    settings: dict[str, Any] = {
        "r_max": 5.0,
        "num_bessel": 8,
        "num_polynomial_cutoff": 6,
        "max_ell": 3,
        "num_elements": 1,
        "hidden_irreps": o3.Irreps(hidden),
        "MLP_irreps": o3.Irreps("16x0e"),
        "atomic_energies": np.array([1.0]),
        "avg_num_neighbors": 8,
        "atomic_numbers": [6],
        "correlation": 3,
        "radial_type": "bessel",
        "radial_MLP": [64, 64, 64],
        "atomic_inter_scale": 1.0,
        "atomic_inter_shift": 0.0,
        "use_agnostic_product": False,
        "use_last_readout_only": False,
        "use_reduced_cg": False,
    }
    return build(first, dtype=dtype, seed=42, **settings | changes)


def reduce_couplings(model: Any) -> int:
    """Give every contraction fewer, independent paths, as files of ``use_reduced_cg`` have.

    mace can make them only if cuEquivariance is installed.

    Returns
    -------
    int
        Number of paths that were left out.
    """
    left_out = 0
    parts = [p for block in model.products for p in block.symmetric_contractions.contractions]
    for part in parts:
        for order in range(1, part.correlation + 1):
            name = f"U_matrix_{order}"
            old = getattr(part, name)
            paths = old.shape[-1]
            axes = range(old.dim() - 1 - order, old.dim() - 1)
            rest = range(old.dim() - 1 - order)
            # weights see the part that is symmetric in the features, which has fewer dimensions
            symmetric = sum(old.permute(*rest, *p, -1) for p in permutations(axes))
            left, sizes, _ = torch.linalg.svd(symmetric.reshape(-1, paths), full_matrices=False)
            kept = int((sizes > 1e-8 * sizes.max()).sum()) if paths else 0
            part.register_buffer(name, left[:, :kept].reshape(*old.shape[:-1], kept).contiguous())
            left_out += paths - kept
            owner, key = (part, "weights_max")
            if order < part.correlation:
                owner, key = part.weights, str(part.correlation - 1 - order)
            weights = getattr(owner, key).detach()
            setattr(owner, key, torch.nn.Parameter(weights[:, :kept].clone()))
    return left_out


def results(model: Any, system: Structure, evaluate: Any) -> tuple[Outputs, Outputs]:
    """Return outputs and the gradients of the energy in all parameters."""
    out = evaluate(model, system, training=True)
    named = dict(model.named_parameters())
    energy = out["energy"].sum()
    found = torch.autograd.grad(energy, list(named.values()), allow_unused=True)
    return out, {name: g for name, g in zip(named, found, strict=True) if g is not None}


def there_and_back(model: Any, system: Structure, evaluate: Any, agree: Any) -> None:
    dtype = model.atomic_energies_fn.atomic_energies.dtype
    out, gradients = results(model, system, evaluate)
    assert float(out["forces"].detach().abs().max()) > 1e-3
    changed = copy_model(model)
    # The state is the copy's: e3nn 0.6 adds constants to the state when it unpickles.
    before = {name: value.clone() for name, value in changed.state_dict().items()}
    report = patch_model(changed)
    assert report.complete
    for got, want in zip(results(changed, system, evaluate), (out, gradients), strict=True):
        agree(got, want, LIMITS[dtype], "patched:")
    assert unpatch_model(changed) == len(report.patched)
    back, its_gradients = results(changed, system, evaluate)
    # TorchScript changes its code during the first calls, so results agree only to rounding.
    agree(back, out, LIMITS[dtype], "unpatched:")
    agree(its_gradients, gradients, LIMITS[dtype], "unpatched:")
    state = changed.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("first", "hidden", "reduced"),
    [(block, HIDDEN[k % 3], k % 2 == 1) for k, block in enumerate(FIRST_BLOCKS)],
)
def test_double_precision(
    first: str,
    hidden: str,
    reduced: bool,
    diamond: Structure,
    build: Any,
    evaluate: Any,
    agree: Any,
) -> None:
    model = case(build, first, hidden, torch.float64)
    if reduced:
        assert reduce_couplings(model) >= 23 - 8
    there_and_back(model, diamond, evaluate, agree)


def test_agnostic_product_and_last_readout(
    diamond: Structure, build: Any, evaluate: Any, agree: Any
) -> None:
    """A model with the agnostic product and with only the last readout survives the round trip."""
    changes = {"use_agnostic_product": True, "use_last_readout_only": True}
    model = case(build, FIRST_BLOCKS[0], HIDDEN[0], torch.float64, **changes)
    there_and_back(model, diamond, evaluate, agree)


def test_a_wrong_layer_is_noticed(
    diamond: Structure, build: Any, evaluate: Any, agree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative error of 1e-6 in one kind of layer makes the comparison fail."""
    from mdcg.patch.fused_conv import FusedConvTensorProduct

    right = FusedConvTensorProduct.forward
    monkeypatch.setattr(
        FusedConvTensorProduct, "forward", lambda *args, **named: right(*args, **named) * (1 + 1e-6)
    )
    model = case(build, FIRST_BLOCKS[0], HIDDEN[2], torch.float64)
    with pytest.raises(AssertionError, match="patched:"):
        there_and_back(model, diamond, evaluate, agree)
