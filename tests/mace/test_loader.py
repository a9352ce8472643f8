"""Checkpoints of any age load under any e3nn that MACE runs on; other files are refused."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import pickle
import shutil
import struct
import sys
import threading
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import CheckpointError, MissingDependencyError, patch_model
from mdcg.patch import load_model, loader, model_info, verify_patch
from mdcg.patch._frameworks import import_nequip
from mdcg.patch.systems import Structure

from ..processes import printed_by
from .conftest import PUBLIC

OWN = (
    "mace_water_e3nn044.model",
    "mace_alloy_density_e3nn044.model",
    "mace_water.model",
    "mace_alloy_density.model",
)


def check_patching(path: Path) -> None:
    model, patched = load_model(path), load_model(path)
    report = patch_model(patched)
    assert report.complete
    check = verify_patch(model, patched)
    assert check.passed, f"\n{check}"
    for name, value in model.state_dict().items():
        assert torch.equal(patched.state_dict()[name], value), name


@pytest.mark.e3nn
@pytest.mark.parametrize("name", OWN)
def test_own_checkpoints(name: str, checkpoint: Any) -> None:
    check_patching(checkpoint(name))


@pytest.mark.e3nn
@pytest.mark.parametrize("name", PUBLIC)
def test_public_checkpoints(name: str, public_checkpoint: Any) -> None:
    check_patching(public_checkpoint(name))


def test_facts_of_a_model(checkpoint: Any) -> None:
    info = model_info(load_model(checkpoint("mace_alloy_density_e3nn044.model")))
    assert info.model_class == "ScaleShiftMACE"
    assert info.atomic_numbers == (28, 29, 47, 79)
    assert info.dtype == torch.float32
    assert info.heads == ("Default",)
    assert info.head_index(None) == 0


@pytest.mark.e3nn
@pytest.mark.parametrize("name", OWN)
def test_energies_and_forces_of_the_trainings(
    name: str, checkpoint: Any, evaluate: Any, data_dir: Path
) -> None:
    """Patched checkpoints reproduce energies, forces and stress stored when they were trained."""
    model = load_model(checkpoint(name))
    patch_model(model)
    tolerance = 1e-9 if model_info(model).dtype == torch.float64 else 2e-4
    for frame in json.loads((data_dir / "mace_references.json").read_text())[name]:
        system = Structure(
            "reference",
            np.array(frame["numbers"]),
            np.array(frame["positions"]),
            np.array(frame["cell"]),
            tuple(frame["pbc"]),
        )
        out = {n: v.detach().double().numpy() for n, v in evaluate(model, system).items()}
        assert out["energy"] == pytest.approx([frame["energy"]], rel=tolerance)
        assert out["forces"] == pytest.approx(np.array(frame["forces"]), abs=tolerance)
        if any(frame["pbc"]):
            voigt = out["stress"][0][[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
            assert voigt == pytest.approx(np.array(frame["stress"]).reshape(-1), abs=tolerance)


@pytest.mark.e3nn
@pytest.mark.usefixtures("global_state")
def test_nothing_global_changes(checkpoint: Any) -> None:
    from e3nn.util.codegen import CodeGenMixin

    before = CodeGenMixin.__setstate__
    load_model(checkpoint("mace_water_e3nn044.model"))
    assert CodeGenMixin.__setstate__ is before


@pytest.mark.e3nn
def test_first_import_of_mace_leaves_the_environment(checkpoint: Any) -> None:
    """Importing mace through mdcg changes no global state of torch, NumPy or the environment."""
    code = (
        "import os, sys, torch\n"
        "import numpy as np\n"
        "watched = lambda: (torch.get_default_dtype(), torch.get_num_threads(),\n"
        "    os.environ.get('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'),\n"
        "    torch.get_rng_state().sum().item(), np.random.get_state()[1].tolist(),\n"
        "    slice in torch.serialization.get_safe_globals())\n"
        "before = watched()\n"
        "import mdcg.patch\n"
        "assert 'mace' not in sys.modules\n"
        f"mdcg.patch.load_model({str(checkpoint('mace_water_e3nn044.model'))!r})\n"
        "assert 'mace' in sys.modules\n"
        "assert watched() == before, watched()\n"
    )
    code = "import warnings\nwarnings.simplefilter('error', FutureWarning)\n" + code
    printed_by(code, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=None)


@pytest.mark.e3nn
def test_threads(checkpoint: Any) -> None:
    """Four threads can load one old checkpoint at once."""
    path, failures = checkpoint("mace_water_e3nn044.model"), []

    def work() -> None:
        try:
            for _ in range(3):
                load_model(path)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.e3nn
def test_old_zip_free_format(checkpoint: Any, tmp_path: Path) -> None:
    path = tmp_path / "old.model"
    model = load_model(checkpoint("mace_water_e3nn044.model"))
    torch.save(model, path, _use_new_zipfile_serialization=False)
    check_patching(path)


def as_from_a_gpu(code: Any) -> Any:
    """Return generated code with its constants marked as being on a GPU."""

    def mark(data: bytes) -> bytes:
        return data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")

    class Pickler(pickle.Pickler):
        def reducer_override(self, found: Any) -> Any:
            if isinstance(found, (torch.UntypedStorage, torch.TypedStorage)):
                function, (data,) = found.__reduce__()
                return function, (mark(data),)
            return NotImplemented

    kind, data = code if isinstance(code, tuple) else ("torchscript", code)
    buffer = io.BytesIO()
    if kind == "fx":
        Pickler(buffer).dump(pickle.loads(data))
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
            for name in old.namelist():
                new.writestr(
                    name, mark(old.read(name)) if name.endswith(".pkl") else old.read(name)
                )
    return (kind, buffer.getvalue()) if isinstance(code, tuple) else buffer.getvalue()


@pytest.mark.e3nn
def test_file_saved_on_a_gpu(checkpoint: Any, tmp_path: Path) -> None:
    """A file saved on a GPU loads without one, although e3nn alone cannot load its constants."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, so that e3nn can load the file, too")
    from e3nn.util.codegen import CodeGenMixin

    class Pickler(pickle.Pickler):
        def reducer_override(self, found: Any) -> Any:
            if not isinstance(found, CodeGenMixin):
                return NotImplemented
            function, arguments, state, *rest = found.__reduce_ex__(2)
            code = {n: as_from_a_gpu(v) for n, v in state.get("__codegen__", {}).items()}
            return function, arguments, {**state, "__codegen__": code}, *rest

    module: Any = types.ModuleType("pickle_as_from_a_gpu")
    module.Pickler = Pickler
    model = load_model(checkpoint("mace_water_e3nn044.model"))
    torch.save(model, tmp_path / "gpu.model", pickle_module=module)
    with pytest.raises((RuntimeError, NotImplementedError), match="CUDA"):
        torch.load(tmp_path / "gpu.model", weights_only=False, map_location="cpu")
    check_patching(tmp_path / "gpu.model")


@pytest.mark.e3nn
def test_r_max_of_2022(checkpoint: Any, tmp_path: Path) -> None:
    model = load_model(checkpoint("mace_water_e3nn044.model"))
    del model.r_max
    del model.heads
    model.__dict__["r_max"] = 4.0
    torch.save(model, tmp_path / "old.model")
    again = load_model(tmp_path / "old.model")
    assert torch.equal(again.r_max, torch.tensor(4.0, dtype=torch.float64))
    assert "r_max" in again.state_dict()
    check_patching(tmp_path / "old.model")


def test_a_module_that_is_no_model(build: Any, tmp_path: Path) -> None:
    torch.save(build().products, tmp_path / "part.model")
    with pytest.raises(CheckpointError, match="ModuleList"):
        load_model(tmp_path / "part.model")


def test_untrusted_files_are_warned_of_once(
    checkpoint: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_warned", False)
    with caplog.at_level(logging.WARNING, logger="mdcg"):
        for _ in range(2):
            load_model(checkpoint("mace_water_e3nn044.model"))
    assert len([r for r in caplog.records if "untrusted" in r.message]) == 1


# ---- other files ----


class Evil:
    """A pickle that would run code if it were loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil-was-here",)


@pytest.fixture
def make(tmp_path: Path, build: Any, checkpoint: Any) -> Any:
    """Return a function that makes a file of a kind that is not a pickled MACE model."""

    def run(kind: str) -> Path:
        path = tmp_path / "file.model"
        if kind == "missing":
            return path
        if kind == "folder":
            path.mkdir()
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "text":
            path.write_text("r_max: 5.0\n")
        elif kind == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("readme.txt", "hello")
        elif kind == "truncated":
            path.write_bytes(checkpoint("mace_water_e3nn044.model").read_bytes()[:100_000])
        elif kind == "damaged":
            data = bytearray(checkpoint("mace_water_e3nn044.model").read_bytes())
            data[2_000:60_000] = bytes(58_000)
            path.write_bytes(data)
        elif kind == "sparse":
            path.write_bytes(b"PK\3\4")
            os.truncate(path, 1 << 40)
        elif kind == "large directory":
            end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 1_000_000_000, 4, 0)
            path.write_bytes(b"PK\3\4")
            os.truncate(path, 1_000_000_004)
            with path.open("ab") as file:
                file.write(end)
        elif kind == "large pickle":
            path.write_bytes(b"PK\3\4")
            os.truncate(path, 30_000_000)
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr("m/data.pkl", "x")
            with path.open("rb+") as file:
                file.seek(30_000_000)
                sizes = 30_000_000 + file.read().index(b"PK\1\2") + 20
                file.seek(sizes)
                file.write(struct.pack("<2L", 300_000_000, 300_000_000))
        elif kind == "torchscript":
            path = tmp_path / "water_compiled.model"
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
        elif kind == "lammps":
            path = tmp_path / "water.model-lammps.pt"
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
        elif kind == "state dict":
            torch.save(build().state_dict(), path)
        elif kind == "training checkpoint":
            state = build().state_dict()
            torch.save({"model": state, "optimizer": {}, "epoch": 3}, path)
        elif kind == "lightning":
            torch.save({"pytorch-lightning_version": "2.5", "state_dict": OrderedDict()}, path)
        elif kind == "torch package":
            with torch.package.PackageExporter(path) as exporter:
                exporter.save_text("model", "config.yaml", "r_max: 5.0")
        elif kind == "aoti":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("m/data/aotinductor/model/x.so", "")
        elif kind == "evil":
            torch.save(Evil(), path)
        elif kind == "plain pickle":
            path.write_bytes(pickle.dumps({"a": 1}))
        return path

    return run


REFUSALS = {
    "missing": "no such file",
    "folder": "folder",
    "empty": "is empty",
    "text": "not a PyTorch checkpoint",
    "plain pickle": "not a PyTorch checkpoint",
    "zip": "zip file but not a PyTorch checkpoint",
    "truncated": "truncated or damaged",
    "damaged": "damaged",
    "sparse": "has 1100 GB, expected at most 64 GB",
    "large directory": "damaged .its directory is larger than that of any checkpoint",
    "large pickle": "holds a pickle of 300 MB, expected at most 256 MB",
    "torchscript": r"TorchScript.*give the file it was made from \(water\.model\)",
    "lammps": r"TorchScript.*give the file it was made from \(water\.model\)",
    "state dict": "only tensors.*mace_run_train",
    "training checkpoint": "only tensors.*mace_run_train",
    "lightning": "Lightning checkpoint of another package",
    "torch package": "without a NequIP model",
    "aoti": "AOTInductor",
    "evil": "without a MACE, NequIP or SevenNet model",
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals(kind: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = make(kind)
    with pytest.raises(CheckpointError, match=REFUSALS[kind]) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize(
    ("name", "honest"),
    [("f.model", True), ("f.pt", True), ("f.nequip.zip", True), ("f.model", False)],
)
def test_zip_files_that_unpack_to_much(name: str, honest: bool, tmp_path: Path) -> None:
    """Zip files are refused by the sizes in their directory and are never read beyond these."""
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if "nequip" in name:
            archive.writestr("f/.data/extern_modules", "")
            archive.writestr("f/model/eager_model.pkl", "")
        archive.writestr("f/data.pkl", b"(" * 80_000_000)
        archive.infolist()[-1].file_size = 80_000_000 if honest else 1000
    assert path.stat().st_size < 100_000
    expected = "would unpack to 80 MB, expected at most 16 times" if honest else str(path)
    with pytest.raises(CheckpointError, match=expected):
        load_model(path)


@pytest.mark.e3nn
def test_real_torchscript_of_mace(build: Any, tmp_path: Path) -> None:
    from e3nn.util import jit

    path = tmp_path / "x_compiled.model"
    torch.jit.save(jit.compile(build()), path)
    with pytest.raises(CheckpointError, match=r"x\.model"):
        load_model(path)


@pytest.mark.e3nn
def test_nequip_checkpoint(data_dir: Path) -> None:
    """A NequIP checkpoint loads, or the error names the missing package."""
    path = data_dir / "nequip_water.ckpt"
    if importlib.util.find_spec("nequip") is None:
        with pytest.raises(MissingDependencyError, match=r"'nequip' is not installed: pip install"):
            load_model(path)
    else:
        assert model_info(load_model(path)).symbols == ("H", "O")


@pytest.mark.e3nn
def test_package_that_ends_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence of a package that names no module reaches the user."""
    (tmp_path / "nequip.py").write_text("raise ModuleNotFoundError('this torch is too old')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nequip", raising=False)
    said = r"needs nequip, but its import failed \(this torch is too old\): pip install"
    with pytest.raises(MissingDependencyError, match=said):
        import_nequip()


class Visitor(torch.nn.Module):
    """A class of a package that is missing when the file is loaded."""


def test_missing_package(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("les_of_tomorrow")
    monkeypatch.setitem(sys.modules, "les_of_tomorrow", module)
    monkeypatch.setattr(Visitor, "__module__", "les_of_tomorrow")
    module.Visitor = Visitor  # type: ignore[attr-defined]
    model = build()
    model.visitor = Visitor()
    torch.save(model, tmp_path / "les.model")
    monkeypatch.delitem(sys.modules, "les_of_tomorrow")
    with pytest.raises(MissingDependencyError, match=r"pip install les_of_tomorrow$"):
        load_model(tmp_path / "les.model")


@pytest.mark.e3nn
def test_file_of_a_newer_e3nn(data_dir: Path) -> None:
    """Under e3nn 0.4.4 a file from 0.6 is refused with what to install; under 0.6 it loads."""
    from mdcg.errors import installed_version

    path = data_dir / "mace_water.model"
    if (installed_version("e3nn") or "").startswith("0.4"):
        with pytest.raises(CheckpointError, match=r"need e3nn 0\.6"):
            load_model(path)
    else:
        load_model(path)


def test_the_input_file_is_only_read(checkpoint: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    shutil.copy(checkpoint("mace_water_e3nn044.model"), path)
    path.chmod(0o444)
    before = path.read_bytes()
    load_model(path)
    assert path.read_bytes() == before
