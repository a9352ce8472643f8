"""The modifier ``enable_mdcg`` in NequIP's own tools."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.patch import is_patched, load_model
from mdcg.patch.nequip_files import nequip_state

from ..processes import printed_by

installed = [point.value for point in entry_points(group="nequip.extension")]
needs_entry_point = pytest.mark.skipif(
    "mdcg.nequip_extension" not in installed, reason="mdcg is not installed, only on the path"
)

CONFIG = """
run: [train]
data:
  _target_: nequip.data.datamodule.ASEDataModule
  seed: 1
  split_dataset: {file_path: alloy_ase.xyz, train: 0.8, val: 0.1, test: 0.1}
  transforms:
    - _target_: nequip.data.transforms.ChemicalSpeciesToAtomTypeMapper
      model_type_names: [Cu, Ag, Au, Ni]
    - _target_: nequip.data.transforms.NeighborListTransform
      r_max: 4.0
  train_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 2}
  val_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 2}
  test_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 2}
trainer:
  _target_: lightning.Trainer
  accelerator: cpu
  max_epochs: 3
  logger: false
  enable_progress_bar: false
  callbacks:
    - _target_: lightning.pytorch.callbacks.ModelCheckpoint
      dirpath: ${hydra:runtime.output_dir}
      filename: best
      monitor: val0_epoch/weighted_sum
training_module:
  _target_: nequip.train.EMALightningModule
  loss:
    _target_: nequip.train.EnergyForceStressLoss
    per_atom_energy: true
    coeffs: {total_energy: 1.0, forces: 1.0, stress: 1.0}
  val_metrics:
    _target_: nequip.train.EnergyForceStressMetrics
    coeffs: {total_energy_mae: 1.0, forces_mae: 1.0, stress_mae: 1.0}
  train_metrics: ${training_module.val_metrics}
  test_metrics: ${training_module.val_metrics}
  optimizer: {_target_: torch.optim.Adam, lr: 0.01}
  model:
"""
MODEL = """
_target_: nequip.model.NequIPGNNModel
seed: 7
model_dtype: float64
type_names: [Cu, Ag, Au, Ni]
r_max: 4.0
l_max: 1
parity: false
num_layers: 2
num_features: [4, 2]
avg_num_neighbors: 8.0
radial_mlp_width: 8
per_type_energy_shifts: 0.0
per_type_energy_scales: 1.0
"""
MODIFIED = "_target_: nequip.model.modify\nmodifiers:\n  - modifier: enable_mdcg\nmodel:\n"


def indented(text: str, width: int) -> str:
    return "".join(f"{' ' * width}{line}\n" for line in text.strip().splitlines())


def modify(model: torch.nn.Module) -> torch.nn.Module:
    import mdcg.nequip_extension  # noqa: F401  what the entry point does

    with nequip_state():
        from nequip.model.modify_utils import modify as nequip_modify

        changed: torch.nn.Module = nequip_modify(model, [{"modifier": "enable_mdcg"}])
    return changed


def test_modifier_of_a_model(build: Any) -> None:
    from nequip.model import modify_utils

    import mdcg.nequip_extension  # noqa: F401

    model = build("parity")
    found = modify_utils.get_all_modifiers(model)
    assert modify_utils.is_model_modifier(found["enable_mdcg"])
    assert not modify_utils.is_persistent_model_modifier(found["enable_mdcg"])
    assert {"enable_OpenEquivariance", "enable_mdcg"} <= set(found)
    assert "enable_mdcg" not in modify_utils.get_all_modifiers(torch.nn.Linear(1, 1))
    assert is_patched(modify(model))
    assert is_patched(modify(model))  # applying it twice is harmless


def test_modifier_of_a_package(package: Path) -> None:
    """The modifier patches a package, whose classes are copies without mdcg."""
    assert is_patched(modify(load_model(package)))


@needs_entry_point
@pytest.mark.slow
def test_training_with_the_modifier(tool: Any, training_folder: Path, tmp_path: Path) -> None:
    """NequIP's trainer gives the same weights with and without the modifier."""
    weights = []
    for name, model in (
        ("plain", indented(MODEL, 4)),
        ("modified", indented(MODIFIED, 4) + indented(MODEL, 6)),
    ):
        (tmp_path / f"{name}.yaml").write_text(CONFIG + model)
        done = tool(
            "nequip-train",
            *("-cp", tmp_path, "-cn", name, f"hydra.run.dir={tmp_path / name}"),
            folder=training_folder,
        )
        assert (tmp_path / name / "best.ckpt").exists(), done.stderr[-3000:]
        assert ("patched 3 of 3 layers" in done.stdout + done.stderr) == (name == "modified")
        content = torch.load(tmp_path / name / "best.ckpt", weights_only=False)
        weights.append(content["state_dict"])
    plain, modified = weights
    assert list(plain) == list(modified)
    for key, value in plain.items():
        if isinstance(value, torch.Tensor) and value.numel() and value.is_floating_point():
            scale = float(value.abs().max()) + 1e-12
            assert float((modified[key] - value).abs().max()) / scale < 1e-9, key
    # NequIP saves models without modifiers, so the loaded model is not patched.
    assert not is_patched(load_model(tmp_path / "modified" / "best.ckpt"))


@needs_entry_point
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_with_the_modifier(tool: Any, package: Path, tmp_path: Path) -> None:
    """A model compiled by AOTInductor with the modifier gives the original forces."""
    target = tmp_path / "fast.nequip.pt2"
    done = tool(
        "nequip-compile",
        *(package, target, "--mode", "aotinductor", "--device", "cpu", "--target", "ase"),
        *("--modifiers", "enable_mdcg"),
        folder=tmp_path,
    )
    assert target.exists(), done.stderr[-3000:]
    code = f"""
import ase.io, numpy as np, sys
from nequip.integrations.ase import NequIPCalculator
atoms = ase.io.read({str(package.parent / "alloy_ase.xyz")!r})
found = []
for calculator in (
    NequIPCalculator.from_compiled_model({str(target)!r}, "cpu", True),
    NequIPCalculator._from_saved_model({str(package)!r}, "cpu", True),
):
    atoms = atoms.copy()
    atoms.calc = calculator
    found.append(atoms.get_forces())
assert "mdcg.ops" in sys.modules
print("error", np.abs(found[0] - found[1]).max() / np.abs(found[1]).max())
"""
    error = re.search(r"error (\S+)", printed_by(code))
    assert error is not None
    assert float(error[1]) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_training_in_compiled_mode(build: Any) -> None:
    """A model in ``compile_mode: compile`` trains with ``enable_mdcg`` as without.

    Outputs and gradients of a loss of energies and forces agree, also after a step.
    """
    changes = {"num_layers": 2, "l_max": 1, "parity": False, "num_features": [3, 2]}
    plain = build("one layer", **changes).train()
    model = build("one layer", compile_mode="compile", **changes).train()
    assert type(model).__name__ == "CompileGraphModel"
    assert is_patched(modify(model))
    generator = torch.Generator().manual_seed(6)
    frames = []
    with nequip_state():
        from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict

        for atoms in (7, 9):
            frame = {
                "pos": 5.0 * torch.rand(atoms, 3, generator=generator, dtype=torch.float64),
                "cell": 5.0 * torch.eye(3, dtype=torch.float64),
                "pbc": torch.ones(3, dtype=torch.bool),
                "atom_types": torch.arange(atoms) % 3,
            }
            frames.append(compute_neighborlist_(from_dict(frame), r_max=4.0))
    batch = AtomicDataDict.batched_from_list(frames)
    for _ in range(2):
        found = []
        for kind in (plain, model):
            out = kind(dict(batch))
            loss = out["total_energy"].square().mean() + (out["forces"] - 0.1).square().mean()
            named = [(n, p) for n, p in kind.named_parameters() if p.requires_grad]
            gradients = torch.autograd.grad(loss, [p for _, p in named])
            found.append(
                {"energy": out["total_energy"], "forces": out["forces"]}
                | {name: g for (name, _), g in zip(named, gradients, strict=True)}
            )
            with torch.no_grad():
                for (_, parameter), gradient in zip(named, gradients, strict=True):
                    parameter -= 1e-3 * gradient
        want, got = found
        assert list(got) == list(want)
        for name, value in want.items():
            error = (got[name] - value).detach().abs().max() / value.detach().abs().max()
            assert float(error) < 1e-9, name
    ((compiled, _),) = model._compiled_cache[0].values()
    targets = {str(node.target) for node in compiled._orig_mod.graph.nodes}
    assert any(target.startswith("mdcg.conv") for target in targets)
