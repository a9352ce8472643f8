"""Nequix: files of jax and torch, and packages against the original in float64."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import e3nn
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

import mdcg
from mdcg import MDCGCalculator
from mdcg.cli.main import main
from mdcg.errors import CheckpointError, UnsupportedProblemError
from mdcg.package.convert import ConversionOptions, convert_model
from mdcg.package.verification import package_reference, verify_package
from mdcg.patch import load_model, model_info
from mdcg.patch._frameworks import default_dtype, import_nequix
from mdcg.patch.checkpoint_kind import NEQUIX, checkpoint_kind
from mdcg.patch.model_names import find_checkpoint

#: Options of models that give other layers, or layers of other shapes.
MODELS: dict[str, dict[str, Any]] = {
    "like the published": {},
    "without norms": {"layer_norm": False},
    "one layer": {"n_layers": 1},
    "even channels": {"hidden_irreps": "5x0e+5x1o+5x2e+5x3o", "lmax": 3, "n_layers": 2},
    "of both parities": {"hidden_irreps": "9x0e+3x1o+2x1e+2x2e", "radial_mlp_layers": 1},
    "scalars": {"hidden_irreps": "7x0e", "radial_polynomial_p": 2.5},
}
ENERGIES = {"1": -1.25, "8": -4.5, "26": -8.0}


def config_of(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a small model of H, O and Fe, as files hold it."""
    return {
        "atomic_numbers": [1, 8, 26],
        "atom_energies": ENERGIES,
        "hidden_irreps": "8x0e+4x1o+3x2e",
        "lmax": 2,
        "cutoff": 4.0,
        "n_layers": 3,
        "radial_basis_size": 6,
        "radial_mlp_size": 8,
        "radial_mlp_layers": 2,
        "radial_polynomial_p": 6.0,
        "mlp_init_scale": 4.0,
        "index_weights": False,
        "layer_norm": True,
        "shift": -0.3,
        "scale": 1.4,
        "avg_n_neighbors": 9.5,
        **changes,
    }


def write_file(path: Path, config: dict[str, Any]) -> Path:
    """Write a small random model: a ``.nqx`` or, by its suffix, a ``.pt``."""
    import_nequix()
    from nequix.torch_impl.model import NequixTorch, save_model

    options = {k: v for k, v in config.items() if k not in ("atomic_numbers", "atom_energies")}
    energies = [config["atom_energies"][str(n)] for n in config["atomic_numbers"]]
    with default_dtype(torch.float32), torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = NequixTorch(n_species=len(energies), atom_energies=energies, **options)
        for layer in model.layers:
            if layer.layer_norm is not None:
                for weight in layer.layer_norm.affine_weight:
                    torch.nn.init.uniform_(weight, 0.5, 1.5)
    if path.suffix == ".pt":
        save_model(str(path), model, config)
        return path
    from nequix.model import save_model as save_for_jax
    from nequix.torch_impl.utils import convert_model_torch_to_jax

    save_for_jax(str(path), *convert_model_torch_to_jax(model, config, False))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("nequix") / "small.pt", config_of())


@pytest.mark.parametrize("name", MODELS)
def test_same_results(name: str, tmp_path: Path) -> None:
    """Networks and their tables give energies, forces and stress within 1e-10 of the original."""
    model = load_model(write_file(tmp_path / "m.pt", config_of(**MODELS[name])))
    options, reference = ConversionOptions(dtype="float64"), None
    for radial in ("exact", "table"):
        package = convert_model(model, replace(options, radial=radial))
        package.save(tmp_path / "p.mdcg")
        reference = reference or package_reference(package, model)
        report = verify_package(tmp_path / "p.mdcg", model, reference=reference, kernels="generic")
        assert report.passed, str(report)
        sizes = {(k.system.name, q): k.size(q) for k in reference.structures for q in k.truth}
        assert max(sizes.values()) > 0.1  # not everything is zero
        for d in report.deviations:
            assert d.error <= 1e-10 * sizes[d.system, d.quantity], str(report)


def test_norms_are_layers() -> None:
    """What is tested above has the layer that Nequix needs, with factors for degrees."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        model = load_model(write_file(Path(folder) / "m.pt", config_of()))
    layers = [each for each in convert_model(model).layers if each["type"] == "rms_norm"]
    assert len(layers) == 3
    assert layers[0]["factors"] == pytest.approx([1 / 3, 1 / 3, 1 / 27, 1 / 75])
    assert layers[2]["factors"] == [1.0]


def test_forces_are_derivatives_of_energies(file: Path, tmp_path: Path) -> None:
    convert_model(load_model(file), ConversionOptions(dtype="float64")).save(tmp_path / "p.mdcg")
    atoms = Atoms("OH2FeO", np.random.default_rng(1).uniform(0.0, 3.2, (5, 3)))
    atoms.calc = MDCGCalculator(tmp_path / "p.mdcg")
    forces, step = atoms.get_forces(), 1e-4
    for atom, axis in ((0, 0), (2, 1), (4, 2)):
        energies = []
        for side in (1, -1):
            moved = atoms.copy()
            moved.positions[atom, axis] += side * step
            moved.calc = atoms.calc
            energies.append(moved.get_potential_energy())
        assert (energies[1] - energies[0]) / (2 * step) == pytest.approx(
            forces[atom, axis], abs=1e-6
        )


def test_the_calculation_of_the_library(file: Path, tmp_path: Path) -> None:
    """In float32, results are those of the library's own graph and model."""
    from nequix.torch_impl.model import load_model as load_of_library

    pytest.importorskip("matscipy")
    from nequix.data import atomic_numbers_to_indices, preprocess_graph

    atoms = bulk("Fe", cubic=True) * (2, 1, 1)
    atoms.symbols[1] = "O"
    atoms.rattle(0.1, seed=1)
    model, config = load_of_library(str(file))
    species = atomic_numbers_to_indices(config["atomic_numbers"])
    graph = preprocess_graph(atoms, species, config["cutoff"], False)
    given = {name: torch.as_tensor(np.array(value)) for name, value in graph.items()}
    edges = torch.stack([given["senders"], given["receivers"]]).long()
    zero, cell = torch.zeros(len(atoms), dtype=torch.int64), given["cell"].reshape(1, 3, 3)
    each, forces, stress = model(
        given["species"].long(), given["positions"].float(), given["shifts"].float(), edges,
        cell.float(), given["n_node"], given["n_edge"], zero,
    )  # fmt: skip
    assert main(["patch", str(file), "-o", str(tmp_path / "p.mdcg"), "--dtype", "float32"]) == 0
    atoms.calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert atoms.get_potential_energy() == pytest.approx(float(each.detach().sum()), abs=2e-5)
    want = forces.detach().numpy()
    assert np.abs(atoms.get_forces() - want).max() < 2e-5 * np.abs(want).max()
    whole = stress.detach().numpy()[0]
    assert np.abs(atoms.get_stress(voigt=False) - whole).max() < 5e-5 * np.abs(whole).max()


def test_both_formats_make_one_package(tmp_path: Path) -> None:
    config = config_of(n_layers=2)
    found = []
    for suffix in ("pt", "nqx"):
        path = write_file(tmp_path / f"m.{suffix}", config)
        assert checkpoint_kind(path) == NEQUIX
        found.append(convert_model(load_model(path)).to_bytes())
    assert found[0] == found[1]


def test_facts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = model_info(load_model(file))
    assert (info.symbols, info.framework, info.dtype) == (("H", "O", "Fe"), "nequix", torch.float32)
    manifest = convert_model(load_model(file), ConversionOptions(types=("Fe", "H"))).manifest
    assert manifest["architecture"] == "nequix"
    assert manifest["edge_vector"] == "sender_minus_receiver"
    assert manifest["atomic_numbers"] == [1, 26]
    assert main(["patch", str(file), "--info"]) == 0
    text = capsys.readouterr().out
    assert "H O Fe, r_max 4 Å, float32" in text
    for use in ("package on CPUs", "package on GPUs", "in LAMMPS"):
        assert f"{use}: supported" in text


def test_reading_changes_no_global_state(file: Path) -> None:
    random, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    options, precision = e3nn.get_optimization_defaults(), torch.get_float32_matmul_precision()
    load_model(file)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_default_dtype() == dtype
    assert e3nn.get_optimization_defaults() == options
    assert torch.get_float32_matmul_precision() == precision


def test_conversion_leaves_the_model_as_it_is(file: Path) -> None:
    model = load_model(file)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    product = model.layers[0].tp
    convert_model(model, ConversionOptions(dtype="float64"))
    assert model_info(model).dtype == torch.float32
    assert model.layers[0].tp is product
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_damaged_files(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    line, _, weights = data.partition(b"\n")
    config = json.loads(line)
    for changed, message in (
        (data[: len(line) + 200], r"cannot be read by Nequix \S+ \("),
        (line + b"\n", r"cannot be read by Nequix \S+ \("),
        (json.dumps({**config, "lmax": "two"}).encode() + b"\n" + weights, r"cannot be read by Ne"),
        (b'{"a": 1}\n' + weights, "is not a PyTorch checkpoint: give the .model file .* .nqx file"),
    ):
        (tmp_path / "m.pt").write_bytes(changed)
        with pytest.raises(CheckpointError, match=message):
            load_model(tmp_path / "m.pt")


def test_nan_is_found(tmp_path: Path) -> None:
    from nequix.torch_impl.model import load_model as load_of_library
    from nequix.torch_impl.model import save_model

    path = write_file(tmp_path / "m.pt", config_of())
    model, config = load_of_library(str(path))
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    save_model(str(path), model, config)
    with pytest.raises(CheckpointError, match="has NaN or infinity in "):
        load_model(path)


def test_refusals(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = load_model(file)
    assert main(["patch", str(file), "-o", str(tmp_path / "x.pt")]) == 4
    assert "makes packages only: name the output OUT.mdcg" in capsys.readouterr().err
    with pytest.raises(
        UnsupportedProblemError, match="is a Nequix model, which MDCGCalculator runs as a"
    ):
        MDCGCalculator(file)
    with pytest.raises(UnsupportedProblemError, match="layers of Nequix models cannot be patched"):
        mdcg.patch_model(model)
    for change, message in (
        (lambda m: setattr(m.layers[1], "kernel", True), "layers.1 has kernels of OpenEquivari"),
        (lambda m: setattr(m.layers[0], "index_weights", True), "layers.0 has weights for each"),
        (lambda m: setattr(m.layers[2].layer_norm, "centering", True), "layers.2.layer_norm is a"),
    ):
        other: Any = load_model(file)
        change(other)
        with pytest.raises(UnsupportedProblemError, match=message):
            convert_model(other)
    del model.mdcg_atomic_numbers
    with pytest.raises(TypeError, match="NequixTorch has no atomic numbers, which only its file"):
        convert_model(model)


def test_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are those of NequixCalculator, whose cache is asked first; info downloads nothing."""
    import urllib.error
    import urllib.request

    pytest.importorskip("matscipy")

    def offline(url: str, *args: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlretrieve", offline)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".cache/nequix/models/nequix-mp-1.nqx"
    assert main(["info", "nequix-mp-1"]) == 4
    said = (
        f"nequix-mp-1 is a published model that is not on this machine (it is looked for as {file})"
    )
    assert said in capsys.readouterr().err
    assert main(["convert", "nequix-mp-1", "-o", str(tmp_path / "x.mdcg")]) == 4
    said = f"cannot download it (URLError: <urlopen error no network>): it is looked for as {file}"
    assert said in capsys.readouterr().err
    assert main(["info", "nequix-mp"]) == 4
    assert "the nearest names are nequix-mp-1" in capsys.readouterr().err
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, config_of(n_layers=1))
    assert find_checkpoint("Nequix_MP-1") == ("nequix-mp-1", file)
    assert main(["info", "nequix-mp-1"]) == 0
    assert "NequixTorch, H O Fe" in capsys.readouterr().out
