"""mdcg-patch IN -o OUT.mdcg: what it writes, checks and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3

from mdcg.cli.patch import main
from mdcg.package import ConversionOptions, Package, convert_model
from mdcg.package.verification import verify_package
from mdcg.patch import load_model
from mdcg.runtime.nvrtc import find_nvrtc

from ..engine.kernel_files import manifest_of
from ..processes import printed_by
from .conftest import PUBLIC, build_model, listing


def codes_of(kernels: Path) -> dict[str, int]:
    """Return how many binaries a file of kernels has for each kind of device."""
    devices = manifest_of(kernels)["devices"]
    return {target: len(found["code"]) for target, found in devices.items()}


def test_converts_and_verifies(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "water.mdcg"
    assert main([str(water), "-o", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "water.model: ScaleShiftMACE, H O, r_max 4 Å, float64, heads: Default"
    assert lines[1].startswith("converted: H O, float64, 18 layers")
    assert lines[2].startswith("verify (cpu, float64, 7 systems)")
    assert lines[2].endswith("PASS")
    assert "with --dtype float32 it would be about 2.4 times as fast on a GPU" in lines[-2]
    assert re.fullmatch(
        rf"wrote {output} \(0.\d\d MB, float64; checked on 7 structures"
        rf'\)\.  In ASE: atoms.calc = mdcg.MDCGCalculator\("{output}"\); '
        rf"in LAMMPS: pair_style mdcg, pair_coeff \* \* {output} <elements of types 1, 2, \.\.\.>",
        lines[-1],
    )
    assert listing(tmp_path) == ["water.mdcg", "water.mdcg.report.json", "water.model"]
    report = json.loads((tmp_path / "water.mdcg.report.json").read_text())
    assert report["verification"]["passed"]
    for row in report["verification"]["deviations"]:
        assert row["error"] < {"eV/atom": 1e-11, "eV/Å": 1e-10, "eV/Å³": 1e-11}[row["unit"]]
    package = Package.open(output)
    assert package.manifest["verification"]["passed"]
    assert package.manifest["source"]["sha256"] == report["record"]["source_sha256"]

    first = output.read_bytes()
    assert main([str(water), "-o", str(output), "--force", "-q"]) == 0
    assert output.read_bytes() == first


def test_tables_are_no_worse_than_single_precision(
    water: Path, tmp_path: Path, capsys: Any
) -> None:
    output = tmp_path / "water.mdcg"
    assert main([str(water), "-o", str(output), "--dtype", "float32"]) == 0
    text = capsys.readouterr().out
    assert "2 tabulated" in text
    assert "--dtype float32" not in text
    rows = json.loads((tmp_path / "water.mdcg.report.json").read_text())["verification"]
    forces = [row for row in rows["deviations"] if row["quantity"] == "forces"]
    assert max(r["error"] for r in forces) < max(r["own_error"] for r in forces)


def steep_model() -> torch.nn.Module:
    """Return a model with small radial outputs that are steep beside large ones that are not.

    The linear layer behind them makes all equally important, as training may.
    """
    small, width = 1e-4, 8
    model: Any = build_model(
        r_max=4.5,
        num_bessel=8,
        num_elements=4,
        atomic_numbers=[1, 6, 7, 8],
        atomic_energies=np.array([0.3, 0.6, 0.9, 1.2]),
        hidden_irreps=o3.Irreps(f"{width}x0e"),
        MLP_irreps=o3.Irreps("8x0e"),
        avg_num_neighbors=6.0,
        radial_MLP=[16, 16],
    )
    for block in model.interactions:
        first, middle, last = (layer.weight.data for layer in block.conv_tp_weights)
        first[:, 8:] *= 6.0
        middle[:8, 8:] = middle[8:, :8] = 0.0
        last[8:, width:] = last[:8, :width] = 0.0
        last[:, :width] *= small
        block.linear.weight.data[: width * width] /= small
    return model


def test_no_output_of_a_table_is_worse_than_single_precision(tmp_path: Path) -> None:
    """Errors of tables are below twice the original's own float32 error, also for odd pairs."""
    model = steep_model()
    convert_model(model, ConversionOptions(dtype="float32")).save(tmp_path / "steep.mdcg")
    check = verify_package(tmp_path / "steep.mdcg", model, kernels="generic")
    assert {"short pairs", "stretched pairs"} < {row.system for row in check.deviations}
    for quantity in ("energy", "forces"):
        rows = [row for row in check.deviations if row.quantity == quantity]
        assert max(row.error for row in rows) < 2.0 * max(row.own_error or 0.0 for row in rows)


def test_inputs_and_their_defaults(tmp_path: Path, capsys: Any) -> None:
    """Inputs are verified with several values, and described with their defaults."""
    number = {"per": "graph", "in_dim": 1, "emb_dim": 4}
    charge = {**number, "type": "categorical", "num_classes": 5, "offset": 2}
    specs = {"total_charge": charge, "elec_temp": {**number, "type": "continuous"}}
    model, output = tmp_path / "charged.model", tmp_path / "charged.mdcg"
    torch.save(build_model(embedding_specs=specs, use_embedding_readout=True), model)
    expected = "total_charge, a whole number from -2 to 2, "
    for given, texts in (
        (
            [],
            (f"{expected}which must be given: it has no default", "elec_temp, a finite number, w"),
        ),
        (
            ["--set", "total_charge=-1", "--set", "elec_temp=300.5"],
            (f"{expected}default -1", "elec_temp, a finite number, default 300.5"),
        ),
    ):
        assert main([str(model), "-o", str(output), "--force", *given]) == 0
        said = capsys.readouterr().out
        assert main([str(output), "--info"]) == 0
        info = capsys.readouterr().out
        for text in texts:
            assert said.count(f"reads of each structure: {text}") == 1
            assert info.count(f"reads of each structure: {text}") == 1
        assert "verification: passed" in info
    for wrong, message in (
        ("total_charge=3", "--set: total_charge is 3, expected a whole number from -2 to 2"),
        ("total_charge=0.5", "--set: total_charge is 0.5, expected a whole number from -2 to 2"),
        ("total_charge=x", "--set is 'total_charge=x', expected NAME=VALUE with a number"),
        ("total_charge=nan", "--set"),
    ):
        try:
            code = main([str(model), "-o", str(output), "--force", "--set", wrong])
        except SystemExit as error:
            code = error.code
        assert code == 2
        assert message in capsys.readouterr().err


def test_info_needs_no_torch(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "water.mdcg"
    assert main([str(water), "-o", str(output), "--no-verify", "--types", "O"]) == 0
    assert "not verified" in capsys.readouterr().out
    code = (
        "import sys; from mdcg.cli.patch import main; main(sys.argv[1:]); "
        "print('torch' in sys.modules)"
    )
    said = printed_by(code, output, "--info")
    assert said.splitlines()[-1] == "False"
    assert "water.mdcg: ScaleShiftMACE (mace), O, r_max 4.0 Å, float64" in said
    assert "verification: not verified" in said
    assert main([str(output), "--info", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["package"]["type_names"] == ["O"]


def test_damaged_packages_are_a_sentence(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "water.mdcg"
    assert main([str(water), "-o", str(output), "--no-verify"]) == 0
    output.write_bytes(output.read_bytes()[:500])
    capsys.readouterr()
    assert main([str(output), "--info"]) == 4
    assert "truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--types", "O"], "--types is an option of .mdcg packages"),
        (["--table"], "--table or --exact is an option of .mdcg packages"),
        (["--bundle", "native"], "--bundle is an option of .mdcg packages"),
        (["--set", "total_charge=0"], "--set is an option of .mdcg packages"),
    ],
)
def test_options_of_packages(
    arguments: list[str], message: str, water: Path, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(water), "-o", str(tmp_path / "a.model"), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_wrong_arguments(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = str(tmp_path / "water.mdcg")
    assert main([str(water), "-o", output, "--types", "O", "Fe"]) == 2
    assert "--types names Fe" in capsys.readouterr().err
    assert main([str(water), "-o", output, "--bundle", "sm_70"]) == 4
    assert "devices of compute capability 8.0 or later" in capsys.readouterr().err
    assert main([str(water), "-o", output, "--head", "no"]) == 2
    capsys.readouterr()
    assert main([str(water), "-o", output, "--set", "total_charge=1"]) == 2
    assert "--set: the model reads no total_charge, expected none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(water), "-o", output, "--set", "spin=1", "--set", "spin=2"])
    assert "--set names spin twice" in capsys.readouterr().err
    assert listing(tmp_path) == ["water.model"]


@pytest.mark.slow
def test_machine_code_for_devices(
    checkpoint: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of density layers are compiled for named devices on a machine without one."""
    output, source = tmp_path / "out.mdcg", checkpoint("mace_alloy_density_e3nn044.model")
    arguments = [str(source), "-o", str(output), "--no-verify", "--precision", "fp32"]
    assert main([*arguments, "--bundle", "sm_80,sm_90,sm_100"]) == 0
    kernels = tmp_path / "out.mdcg-kernels"
    assert f"; {kernels} for sm_80, sm_90, sm_100; not verified)" in capsys.readouterr().out
    assert Package.open(output).dtype == "float32"
    counts = codes_of(kernels)
    output.unlink()
    Path(f"{output}.report.json").unlink()
    assert main([*arguments, "--bundle", "sm_80"]) == 2
    assert f"{kernels} exists already: name another output or" in capsys.readouterr().err
    each = counts["sm_80"]
    # gemm_warpgroup.cuh is compiled only for sm_90 and float32
    assert counts == {"sm_80": each, "sm_90": each + 1, "sm_100": each}
    monkeypatch.setenv("MDCG_NVRTC_LIB", "/nonexistent/libnvrtc.so")
    find_nvrtc.cache_clear()
    assert main([*arguments, "--force", "--bundle", "sm_90"]) == 5
    find_nvrtc.cache_clear()
    assert "named by MDCG_NVRTC_LIB cannot be used" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "target"),
    [
        (name, ("fp32", "fp64")[k % 2], ("sm_90", "sm_80", "sm_100")[k % 3])
        for k, name in enumerate(PUBLIC)
    ],
)
def test_machine_code_of_public_checkpoints(
    name: str, dtype: str, target: str, public_checkpoint: Any, tmp_path: Path
) -> None:
    """Each published checkpoint can be compiled for one kind of device."""
    output = tmp_path / "out.mdcg"
    arguments = [str(public_checkpoint(name)), "-o", str(output), "--no-verify", "-q"]
    assert main([*arguments, "--precision", dtype, "--bundle", target]) == 0
    counts = codes_of(tmp_path / "out.mdcg-kernels")
    assert list(counts) == [target]
    assert counts[target] > 8


def test_precision_is_another_name_of_dtype(water: Path, tmp_path: Path, capsys: Any) -> None:
    made = set()
    for option in ("--dtype", "--precision"):
        for name in ("float32", "fp32"):
            output = tmp_path / f"{option}{name}.mdcg"
            assert main([str(water), "-o", str(output), "--no-verify", option, name]) == 0
            made.add(output.read_bytes())
        with pytest.raises(SystemExit) as caught:
            main([str(water), "-o", str(tmp_path / "a.mdcg"), option, "half"])
        assert caught.value.code == 2
        assert "expected f" in capsys.readouterr().err
    assert len(made) == 1, "equal options make equal packages"


@pytest.mark.parametrize("types", [["O,H"], ["O", "H"], ["H,", " O"]], ids=str)
def test_types_with_and_without_commas(types: list[str], water: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.mdcg"
    assert main([str(water), "-o", str(output), "--no-verify", "-q", "--types", *types]) == 0
    assert Package.open(output).type_names == ["H", "O"]


def test_head_must_be_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "heads.model"
    model = build_model(
        heads=["low", "high"],
        atomic_energies=np.array([[-1.5, -7.25], [-1.0, -7.0]]),
        atomic_inter_scale=[1.3, 0.9],
        atomic_inter_shift=[0.2, -0.1],
    )
    torch.save(model, path)
    assert main([str(path), "-o", str(tmp_path / "a.mdcg")]) == 2
    assert "--head: low, high" in capsys.readouterr().err
    assert main([str(path), "-o", str(tmp_path / "a.mdcg"), "--head", "high"]) == 0
    assert Package.open(tmp_path / "a.mdcg").head == "high"


def test_what_cannot_be_converted_is_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "odd.model"
    torch.save(build_model(gate=torch.sign), path)
    assert main([str(path), "-o", str(tmp_path / "a.mdcg")]) == 4
    error = capsys.readouterr().err
    assert "activation 'sign'" in error
    assert "; you can patch the model in place instead" in error


def test_a_wrong_package_is_not_written(
    water: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdcg.package import mace

    energies = mace._energies
    monkeypatch.setattr(mace, "_energies", lambda *a: (1.0001 * energies(*a)[0], *energies(*a)[1:]))
    assert main([str(water), "-o", str(tmp_path / "a.mdcg")]) == 3
    text, error = capsys.readouterr()
    assert "FAIL" in text
    assert "nothing was written" in error
    assert listing(tmp_path) == ["water.model"]


def test_forces_that_the_original_has_wrong(tmp_path: Path, capsys: Any) -> None:
    """A Chebyshev model converts with a note: torch gives its radial functions no derivative."""
    path = tmp_path / "chebyshev.model"
    torch.save(build_model(radial_type="chebyshev", r_max=1.5), path)
    assert main([str(path), "-o", str(tmp_path / "a.mdcg")]) == 0
    text = capsys.readouterr().out
    assert "MACE's own forces and stress were left out: they are not the gradient" in text
    for word in ("|ΔE|", "|ΔF|", "|Δσ|", "PASS"):
        assert word in text
    check = json.loads((tmp_path / "a.mdcg.report.json").read_text())["verification"]
    assert check["note"] in text
    assert {row["quantity"] for row in check["deviations"]} == {"energy", "forces", "stress"}
    own = load_model(path)
    own.radial_embedding.bessel_fn.__class__.__name__ = "OfMace"  # hides the class from mdcg
    try:
        assert not verify_package(tmp_path / "a.mdcg", own).passed
    finally:
        own.radial_embedding.bessel_fn.__class__.__name__ = "ChebychevBasis"
    assert main([str(path), "-o", str(tmp_path / "a.model")]) == 0
    assert "MACE's forces and stress, which the patched model repeats" in capsys.readouterr().out


# ---- the engine against the original ----


@pytest.mark.parametrize("kernels", ["generic", "generated"])
def test_single_precision(checkpoint: Any, tmp_path: Path, kernels: str) -> None:
    path = checkpoint("mace_alloy_density_e3nn044.model")
    model = load_model(path)
    for radial in ("--exact", "--table"):
        output = tmp_path / f"alloy{radial}.mdcg"
        assert main([str(path), "-o", str(output), radial, "--no-verify", "-q"]) == 0
        check = verify_package(output, model, kernels=kernels)
        assert check.dtype == "float32"
        assert check.passed, str(check)
