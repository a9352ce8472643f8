"""Every interaction block and model class of mace-torch gives the same with fused convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from mdcg import MDCGCalculator, patch_model, unpatch_model
from mdcg.patch import PatchReport, verify_patch
from mdcg.patch._frameworks import default_dtype

from ..outputs import ROOT
from .conftest import build_model

BLOCKS = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
    "RealAgnosticAttResidualInteractionBlock",
    "RealAgnosticResidualNonLinearInteractionBlock",
)
TOLERANCE = 1e-12
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _mixes_species(name: str, module: torch.nn.Module) -> bool:
    return name.endswith("skip_tp") and type(module).__name__ == "FullyConnectedTensorProduct"


@pytest.fixture
def check(systems: Any, evaluate: Any, agree: Any) -> Callable[..., PatchReport]:
    """Patch a copy of a model and compare it on all structures, value by value."""

    def run(model: torch.nn.Module, *, layers: int = 2, **options: Any) -> PatchReport:
        patched = copy.deepcopy(model)
        report = patch_model(patched)
        skips = [name for name, module in model.named_modules() if _mixes_species(name, module)]
        # each layer has a convolution and a product
        assert len(report.patched) == 2 * layers + len(skips)
        assert report.complete
        for system in systems(model):
            want = evaluate(model, system, **options)
            got = evaluate(patched, system, **options)
            agree(got, want, TOLERANCE, f"{type(model).__name__} on {system.name}:")
        assert unpatch_model(patched) == len(report.patched)
        for system in systems(model)[:2]:
            want, got = evaluate(model, system, **options), evaluate(patched, system, **options)
            for name, value in want.items():
                assert torch.equal(got[name], value), (
                    f"{name} is not bit-identical after unpatching"
                )
        return report

    return run


@pytest.mark.e3nn
def test_every_block_of_mace_is_in_the_list() -> None:
    from mace.modules import blocks

    found = {
        name
        for name, kind in vars(blocks).items()
        if isinstance(kind, type)
        and issubclass(kind, blocks.InteractionBlock)
        and kind is not blocks.InteractionBlock
    }
    assert found == set(BLOCKS)


@pytest.mark.e3nn
@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str, build: Any, check: Any) -> None:
    first = block if "AttResidual" not in block else BLOCKS[0]
    check(build(first, block))


@pytest.mark.parametrize("block", [BLOCKS[1], BLOCKS[5]])
def test_block_in_single_precision(
    block: str, build: Any, systems: Any, evaluate: Any, agree: Any
) -> None:
    model = build(BLOCKS[0], block, dtype=torch.float32)
    patched = copy.deepcopy(model)
    patch_model(patched)
    for system in systems(model):
        agree(evaluate(patched, system), evaluate(model, system), 2e-4, system.name)


@pytest.mark.e3nn
def test_high_degrees(build: Any, check: Any) -> None:
    """A model with max_ell 3, correlation 3 and L 2 agrees; wrong constants would show here."""
    from e3nn import o3

    check(
        build(
            max_ell=3,
            correlation=3,
            hidden_irreps=o3.Irreps("2x0e+2x1o+2x2e"),
            avg_num_neighbors=3.0,
        )
    )


@pytest.mark.e3nn
def test_signs_of_3j_symbols_are_the_models_own(
    build: Any, check: Any, systems: Any, evaluate: Any
) -> None:
    """Layers use the 3j signs in the model's buffers, which differ between e3nn 0.4 and 0.5."""
    from e3nn import o3

    model = build(
        use_so3=True,
        hidden_irreps=o3.Irreps("2x0e+2x1e+2x2e"),
        avg_num_neighbors=0.5,
    )
    state = model.state_dict()
    names = [n for n in state if ".conv_tp." in n and n.endswith(("_1_2_2", "_2_1_2", "_2_2_1"))]
    assert len(names) == 3
    for name in names:
        state[name] = -state[name]
    other = copy.deepcopy(model)
    other.load_state_dict(state)
    system = systems(model)[0]
    ours, theirs = (evaluate(m, system)["forces"].detach() for m in (model, other))
    assert float((ours - theirs).abs().max() / ours.abs().max()) > 1e-4
    keys = [
        {layer.name: layer.problem_key for layer in check(m).patched}["interactions.1.conv_tp"]
        for m in (model, other)
    ]
    assert keys[0] != keys[1]


@pytest.mark.e3nn
def test_mace(build: Any, check: Any) -> None:
    check(build(model_class="MACE"))


def test_heads(build: Any, systems: Any, evaluate: Any, agree: Any) -> None:
    model = build(
        heads=["low", "high"],
        atomic_energies=np.array([[-1.5, -7.25], [-1.0, -7.0]]),
        atomic_inter_scale=[1.3, 0.9],
        atomic_inter_shift=[0.2, -0.1],
    )
    patched = copy.deepcopy(model)
    patch_model(patched)
    energies = []
    for head in ("low", "high"):
        for system in systems(model):
            want = evaluate(model, system, head=head)
            agree(evaluate(patched, system, head=head), want, TOLERANCE, f"{head} {system.name}")
        energies.append(float(want["energy"].detach()))
    assert abs(energies[0] - energies[1]) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"pair_repulsion": True, "distance_transform": "Agnesi"},
        {"distance_transform": "Soft", "radial_type": "gaussian"},
        {"apply_cutoff": False, "num_interactions": 3},
        {"num_interactions": 1},
        {"use_agnostic_product": True, "edge_irreps": "3x0e+3x1o", "use_edge_irreps_first": True},
        {"correlation": [3, 1], "keep_last_layer_irreps": True},
        {"use_so3": True, "hidden_irreps": "4x0e+4x1e"},
        {"hidden_irreps": "5x0e"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_variants(changes: dict[str, Any], build: Any, check: Any) -> None:
    from e3nn import o3

    changes = dict(changes)
    for name in ("edge_irreps", "hidden_irreps"):
        if name in changes:
            changes[name] = o3.Irreps(changes[name])
    check(build(**changes), layers=changes.get("num_interactions", 2))


def test_extra_inputs(build: Any, check: Any) -> None:
    specs = {
        "total_spin": {"type": "categorical", "per": "graph", "num_classes": 5, "emb_dim": 3},
        "temperature": {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 3},
        "colour": {"type": "continuous", "per": "node", "in_dim": 2, "emb_dim": 3},
    }
    check(build(embedding_specs=specs, use_embedding_readout=True))


@pytest.mark.parametrize("before", [True, False])
def test_lora(before: bool, build: Any, systems: Any, evaluate: Any, agree: Any) -> None:
    from mace.modules.lora import inject_LoRAs, merge_lora_weights

    plain = build()
    if before:  # patch a fine-tuned model
        inject_LoRAs(plain, rank=2)
    patched = copy.deepcopy(plain)
    patch_model(patched)
    if not before:  # fine-tune a patched model
        for model in (plain, patched):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                inject_LoRAs(model, rank=2)
    generator = torch.Generator().manual_seed(7)
    for name, parameter in plain.named_parameters():
        if "lora" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    patched.load_state_dict(plain.state_dict())
    for system in systems(plain):
        agree(evaluate(patched, system), evaluate(plain, system), TOLERANCE, system.name)
    merge_lora_weights(patched)
    merge_lora_weights(plain)
    agree(evaluate(patched, system), evaluate(plain, system), TOLERANCE, "merged")
    assert unpatch_model(patched) == 6


@pytest.mark.parametrize("kind", ["AtomicDipolesMACE", "AtomicDielectricMACE", "EnergyDipolesMACE"])
def test_dipole_models(kind: str, build: Any, check: Any) -> None:
    from e3nn import o3

    energies = np.array([-1.5, -7.25]) if kind == "EnergyDipolesMACE" else None
    readout = "4x1o" if kind == "AtomicDipolesMACE" else "4x0e+4x1o"
    changes: dict[str, Any] = {"atomic_energies": energies, "MLP_irreps": o3.Irreps(readout)}
    if kind == "AtomicDielectricMACE":
        changes |= {
            "hidden_irreps": o3.Irreps("4x0e+4x1o+4x2e"),
            "MLP_irreps": o3.Irreps("4x0e+4x1o+4x2e"),
            "dipole_only": False,
        }
    check(build(model_class=kind, **changes))


@pytest.fixture(scope="module")
def polar(build: Any) -> torch.nn.Module:
    """Return a PolarMACE with dipoles on atoms and two updates of its charges."""
    pytest.importorskip("graph_longrange", reason="pip install graph-longrange==0.4.0")
    return build(
        model_class="PolarMACE",
        atomic_multipoles_max_l=1,
        field_feature_max_l=1,
        field_feature_widths=[1.0, 1.5],
        num_recursion_steps=2,
        add_local_electron_energy=True,
        atomic_inter_scale=1.3,
        atomic_inter_shift=0.2,
    )


@pytest.mark.e3nn
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_polar(device: str, dtype: torch.dtype, polar: torch.nn.Module) -> None:
    """A patched PolarMACE passes verification, including its charges and dipoles."""
    model = copy.deepcopy(polar).to(device, dtype)
    patched = copy.deepcopy(model)
    report = patch_model(patched)
    assert report.complete
    assert len(report.patched) == 6
    rows = {layer.name: layer for layer in report.layers}
    other = rows["field_dependent_charges_maps.1.dot_products"]
    assert (other.status, other.paths, other.nnz) == ("left as is", 2, 4)
    assert "left as is: works on nodes" in str(report)
    found = verify_patch(model, patched)
    # In float32 the limits follow the rounding of the original, which on one structure can be small
    # by chance, and depends on the processor.
    most = 1.0 if dtype == torch.float64 else 2.0
    assert max(each.error / each.limit for each in found.deviations) <= most, str(found)
    assert set(found.worst()) == {"energy", "forces", "stress", "charges", "dipole"}
    assert len(found.deviations) == 32  # seven structures, three of them without stress


@pytest.mark.e3nn
@pytest.mark.parametrize("device", DEVICES)
def test_polar_in_ase(device: str, polar: torch.nn.Module) -> None:
    """PolarMACE gives MACE's energies and forces, for any charge, spin and external field."""
    from mace.calculators import MACECalculator

    model = copy.deepcopy(polar).to(device)
    patch_model(model)
    liquid = ase.io.read(ROOT / "examples" / "data" / "water192.xyz")[:24]
    liquid.info |= {"charge": 1, "spin": 2, "external_field": [0.0, 0.1, 0.02]}
    slab = liquid.copy()
    slab.pbc = (True, True, False)
    ion = molecule("OH")
    ion.info |= {"charge": -1, "spin": 1}
    with default_dtype(torch.float64):  # MACE makes some constants in torch's default type
        options = {"device": device, "default_dtype": "float64", "model_type": "PolarMACE"}
        theirs = MACECalculator(models=[copy.deepcopy(polar)], **options)
        ours = MDCGCalculator(model)
        for atoms in (liquid, slab, molecule("H2O"), ion):
            want = [theirs.get_property(name, atoms) for name in ("energy", "forces")]
            got = [ours.get_property(name, atoms) for name in ("energy", "forces")]
            np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-10)
            np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-10)
        neutral = liquid.copy()
        neutral.info = {}
        assert abs(ours.get_potential_energy(neutral) - ours.get_potential_energy(liquid)) > 1e-3


def test_autocast() -> None:
    """Under autocast, layers compute in the model's own type."""
    model = build_model(dtype=torch.float32)
    patch_model(model)
    products = [module for name, module in model.named_modules() if name.endswith("conv_tp")]
    layer = products[1]
    rows = [torch.randn(4, layer.irreps_in1.dim), torch.randn(3, layer.irreps_in2.dim)]
    weights, edges = torch.randn(3, layer.weight_numel), torch.tensor([[0, 1, 1], [1, 0, 2]])
    want = layer(*rows, weights, edges)
    contraction = model.products[0].symmetric_contractions
    channels = contraction.irreps_in.count("0e")
    features = torch.randn(4, channels, contraction.irreps_in.dim // channels)
    species = torch.eye(len(model.atomic_numbers))[torch.tensor([0, 1, 1, 0])]
    wanted = contraction(features, species)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(*rows, weights.bfloat16(), edges)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2)
        out = contraction(features, species)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, wanted)
