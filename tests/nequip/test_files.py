"""NequIP's files: loading, mdcg-patch, and what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg import MDCGCalculator
from mdcg.cli.patch import main as mdcg_patch
from mdcg.errors import CheckpointError, MissingDependencyError, UnsupportedProblemError
from mdcg.package import convert_model
from mdcg.patch import (
    inspect_model,
    is_patched,
    load_model,
    model_info,
    model_record,
    verify_patch,
)
from mdcg.patch.nequip_files import write_nequip_package


def test_checkpoint_has_the_averaged_weights(data_dir: Path) -> None:
    """A loaded checkpoint has the exponential moving average of the weights, as in NequIP."""
    path = data_dir / "nequip_alloy.ckpt"
    raw = torch.load(path, weights_only=False)["state_dict"]
    averaged = [raw[f"ema.ema_weight_{n}"] for n in range(sum("ema_weight" in key for key in raw))]
    model = load_model(path)
    parameters = list(model.parameters())
    assert len(parameters) == len(averaged)
    assert all(torch.equal(a, b) for a, b in zip(parameters, averaged, strict=True))
    assert not torch.equal(
        parameters[0], raw["model.sole_model.model.func.type_embed.embed_module.weight"]
    )
    assert not model.training
    info = model_info(model)
    assert info.symbols == ("Cu", "Ag", "Au", "Ni")
    assert (info.r_max, info.dtype) == (4.5, torch.float32)


def test_patch_a_checkpoint(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = data_dir / "nequip_water.ckpt", tmp_path / "water.pt"
    assert mdcg_patch([str(source), "-o", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "nequip_water.ckpt: GraphModel, H O, r_max 4 Å, float64\n" in printed
    assert "7 systems" in printed
    assert "PASS" in printed
    last = printed.splitlines()[-1]
    assert last.startswith(f"wrote {target} (5 of 5 layers patched; checked on 7 structures)")
    report = json.loads((tmp_path / "water.pt.report.json").read_text())
    assert report["verification"]["passed"]
    assert {d["quantity"] for d in report["verification"]["deviations"]} == {
        "energy",
        "forces",
        "stress",
    }
    assert report["record"]["versions"]["nequip"]
    model = load_model(target)
    assert is_patched(model)
    assert model_record(model)["source"] == "nequip_water.ckpt"
    assert MDCGCalculator(target).is_patched
    # patch the output again
    assert mdcg_patch([str(target), "-o", str(tmp_path / "again.pt"), "-q"]) == 0
    assert mdcg_patch([str(target), "--info", "--json"]) == 0
    described = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert described["model"]["framework"] == "nequip"
    assert described["supported"]


def test_patch_a_package(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], systems: Any
) -> None:
    target = tmp_path / "fast.nequip.zip"
    assert mdcg_patch([str(package), "-o", str(target), "-q"]) == 0
    assert "PASS" in capsys.readouterr().out
    model = load_model(target)
    assert is_patched(model)
    assert model_record(model)["source"] == package.name
    assert verify_patch(load_model(package), model).passed
    # NequIP's own loader gives the patched model, too
    from mdcg.patch.nequip_files import nequip_state

    with nequip_state():
        from nequip.model.saved_models.load_utils import load_saved_model

        assert is_patched(load_saved_model(str(target)))
    # the rest of the file is unchanged
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(target) as new:
        assert old.namelist() == new.namelist()
        changed = {name for name in old.namelist() if old.read(name) != new.read(name)}
    assert {name.partition("/")[2] for name in changed} == {
        "model/eager_model.pkl",
        ".data/extern_modules",
    }
    assert mdcg_patch([str(target), "-o", str(tmp_path / "again.nequip.zip"), "-q"]) == 0


def test_a_package_patches_no_layer_that_was_refused(package: Path, tmp_path: Path) -> None:
    names = [layer.name for layer in inspect_model(load_model(package)).patchable]
    target = tmp_path / "part.nequip.zip"
    write_nequip_package(package, target, {"layers": names[:2]})
    report = inspect_model(load_model(target))
    assert [layer.name for layer in report.layers if layer.status == "already patched"] == names[:2]
    assert {layer.name for layer in report.layers if layer.status == "can be patched"} == set(
        names[2:]
    )


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("package", "x.pt", "is a NequIP package, whose classes are inside it: name the output"),
        ("package", "x.ckpt", "nequip-compile take the modifier enable_mdcg instead"),
        ("checkpoint", "x.nequip.zip", "is not a NequIP package: name the output *.pt"),
    ],
)
def test_outputs_that_do_not_fit(
    source: str,
    target: str,
    said: str,
    package: Path,
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = package if source == "package" else data_dir / "nequip_alloy.ckpt"
    assert mdcg_patch([str(path), "-o", str(tmp_path / target)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_dtype_is_fixed(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(data_dir / "nequip_alloy.ckpt")
    arguments = [source, "-o", str(tmp_path / "x.pt"), "--dtype", "float64"]
    assert mdcg_patch(arguments) == 2
    assert "was built in float32 (model_dtype of its configuration)" in capsys.readouterr().err


def test_failed_verification_writes_nothing(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mdcg.patch.fused_scatter import FusedTensorProductScatter

    stock = FusedTensorProductScatter.forward
    monkeypatch.setattr(
        FusedTensorProductScatter,
        "forward",
        lambda *args, **named: (1 + 1e-5) * stock(*args, **named),
    )
    source = str(data_dir / "nequip_water.ckpt")
    assert mdcg_patch([source, "-o", str(tmp_path / "x.pt")]) == 3
    assert "FAIL" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


# ---- what is refused ----


def torchscript(path: Path) -> None:
    class Nequip(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    Nequip.__module__ = "nequip.nn"
    torch.jit.save(torch.jit.script(Nequip()), path)


def compiled(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.nequip/data/aotinductor/model/x.wrapper.so", b"")


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (torchscript, "old.pth", "compiled TorchScript, whose layers cannot be swapped: give the"),
        (compiled, "x.nequip.pt2", "compiled by AOTInductor, whose kernels are fixed: give the"),
    ],
)
def test_refused_files(
    make: Any, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(CheckpointError, match=said):
        load_model(path)
    assert mdcg_patch([str(path), "--info"]) == 4
    assert said in capsys.readouterr().err


def test_package_of_another_name(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "package.zip"
    path.write_bytes(package.read_bytes())
    with pytest.raises(CheckpointError, match=r"needs a name that ends in \.nequip\.zip: rename"):
        load_model(path)


def test_checkpoint_that_cannot_be_built(data_dir: Path, tmp_path: Path) -> None:
    content = torch.load(data_dir / "nequip_alloy.ckpt", weights_only=False)
    content["hyper_parameters"]["model"]["num_layers"] = 2
    path = tmp_path / "other.ckpt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"cannot be read by NequIP 0\.19.*use the version"):
        load_model(path)


def with_target(data_dir: Path, path: Path, model: dict[str, Any]) -> Path:
    """Return a checkpoint whose configuration builds another model."""
    content = torch.load(data_dir / "nequip_alloy.ckpt", weights_only=False)
    content["hyper_parameters"]["model"] = model
    torch.save(content, path)
    return path


def test_checkpoint_of_a_package_that_is_not_installed(data_dir: Path, tmp_path: Path) -> None:
    path = with_target(data_dir, tmp_path / "other.ckpt", {"_target_": "not_there.Model"})
    with pytest.raises(MissingDependencyError, match=r"not installed: pip install not_there$"):
        load_model(path)


@pytest.mark.parametrize("kind", ["checkpoint", "package"])
def test_allegro_is_not_supported(
    kind: str, data_dir: Path, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Allegro models are refused without running any code of the file."""
    if kind == "checkpoint":
        target = {"_target_": "allegro.model.AllegroModel"}
        path = with_target(data_dir, tmp_path / "a.ckpt", target)
    else:
        path = tmp_path / "a.nequip.zip"
        with zipfile.ZipFile(package) as old, zipfile.ZipFile(path, "w") as new:
            for item in old.infolist():
                data = old.read(item)
                if item.filename.endswith("model/eager_model.pkl"):
                    data = data.replace(
                        b"cnequip.nn.interaction_block\n", b"callegro.nn._allegro\n"
                    )
                new.writestr(item, data)
    for arguments in (["--info"], ["-o", str(tmp_path / "a.mdcg")]):
        assert mdcg_patch([str(path), *arguments, "-q"]) == 4
        said = f"{path} is an Allegro model, which mdcg does not support: give a MACE or NequIP"
        assert capsys.readouterr().err == f"mdcg-patch: {said} model\n"


def test_allegro_in_memory(data_dir: Path) -> None:
    model = load_model(data_dir / "nequip_alloy.ckpt")
    for name in [name for name, _ in model.named_modules()]:
        if name.endswith("convnet"):
            other = torch.nn.Identity()
            other.__class__ = type("Allegro_Module", (torch.nn.Identity,), {})
            other.__class__.__module__ = "<torch_package_0>.allegro.nn._allegro"
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, other)
    with pytest.raises(UnsupportedProblemError, match="is an Allegro model, which mdcg does not"):
        inspect_model(model)
    with pytest.raises(UnsupportedProblemError) as caught:
        convert_model(model)
    assert "patching it in place" not in str(caught.value)


@pytest.mark.parametrize(
    ("loader", "field", "original"),
    [
        ("ModelFromCheckpoint", "checkpoint_path", "/old/original.ckpt"),
        ("ModelFromPackage", "package_path", "/old/original.nequip.zip"),
    ],
)
def test_fine_tuned_checkpoint_whose_original_moved(
    loader: str, field: str, original: str, data_dir: Path, tmp_path: Path
) -> None:
    """The error for a fine-tuned checkpoint names its missing original and no other cause."""
    target = {"_target_": f"nequip.model.{loader}", field: original}
    path = with_target(data_dir, tmp_path / "fine.ckpt", target)
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert "cannot be read by NequIP 0.19" in str(caught.value)
    assert f"`{original}` is not found" in str(caught.value)
    assert "use the version of NequIP" not in str(caught.value)
