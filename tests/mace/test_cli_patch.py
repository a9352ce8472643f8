"""mdcg-patch: what it prints and writes, what it refuses, and with which exit code."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg.cli import jobs
from mdcg.cli.patch import main
from mdcg.patch import is_patched, load_model, model_info, model_record

from ..processes import printed_by
from .conftest import listing


@pytest.fixture(scope="module")
def heads_file(build: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads") / "heads.model"
    model = build(
        heads=["low", "high"],
        atomic_energies=np.array([[-1.5, -7.25], [-1.0, -7.0]]),
        atomic_inter_scale=[1.3, 0.9],
        atomic_inter_shift=[0.2, -0.1],
    )
    torch.save(model, path)
    return path


USES = ("patching in place", "package on CPUs", "package on GPUs", "package in LAMMPS")


def run_process(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mdcg", "patch", *map(str, args)],
        capture_output=True,
        text=True,
        **options,
    )


# ---- success ----


def test_patches_and_verifies(water: Path, tmp_path: Path, capsys: Any) -> None:
    digest = hashlib.sha256(water.read_bytes()).hexdigest()
    output = tmp_path / "fast.model"
    assert main([str(water), "-o", str(output)]) == 0
    text, log = capsys.readouterr()
    lines = text.splitlines()
    assert lines[0] == "water.model: ScaleShiftMACE, H O, r_max 4 Å, float64, heads: Default"
    assert "interactions.1.conv_tp" in text
    assert any(line.startswith("verify (cpu, float64, 7 systems)") for line in lines)
    assert lines[-3].endswith("PASS")
    assert "with --dtype float32 its generated kernels would be 1.8 times as fast" in lines[-2]
    assert lines[-1].startswith(f"wrote {output} (6 of 6 layers patched; checked on 7 structures")
    assert lines[-1].endswith(f'In ASE: atoms.calc = mdcg.MDCGCalculator("{output}")')
    assert "wrote" not in log
    assert listing(tmp_path) == ["fast.model", "fast.model.report.json", "water.model"]
    assert hashlib.sha256(water.read_bytes()).hexdigest() == digest

    report = json.loads((tmp_path / "fast.model.report.json").read_text())
    assert report["record"]["source_sha256"] == digest
    assert report["record"]["versions"]["torch"] == version("torch")
    assert report["verification"]["passed"]
    assert {row["status"] for row in report["report"]["layers"]} == {"patched"}
    model = load_model(output)
    assert is_patched(model)
    assert model_record(model) == report["record"]
    assert model_info(model).default_head == "Default"
    plain = torch.load(output, weights_only=False)
    assert is_patched(plain)


def test_json(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "fast.pt"
    assert main([str(water), "-o", str(output), "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "fast.pt.report.json").read_text())
    assert result["model"]["elements"] == ["H", "O"]
    assert result["verification"]["passed"]


def test_other_dtype(water: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "single.model"
    assert main([str(water), "-o", str(output), "--dtype", "float32"]) == 0
    assert "original itself" in capsys.readouterr().out
    assert model_info(load_model(output)).dtype == torch.float32


def test_without_verification(
    water: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mdcg.patch, "verify_patch", lambda *args, **options: 1 / 0)
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--no-verify"]) == 0
    assert "not verified" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.model.report.json").read_text())["verification"] is None


def test_patching_a_patched_file(water: Path, tmp_path: Path, capsys: Any) -> None:
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--no-verify"]) == 0
    assert main([str(tmp_path / "a.model"), "-o", str(tmp_path / "b.model")]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "b.model"), "--info"]) == 0
    text = capsys.readouterr().out
    assert "written by mdcg-patch" in text
    assert "already patched" in text


def test_info(water: Path, tmp_path: Path, capsys: Any) -> None:
    assert main([str(water), "--info"]) == 0
    text = capsys.readouterr().out
    assert "can be patched" in text
    assert text.splitlines()[-4:] == [f"{use}: supported" for use in USES]
    assert main([str(water), "--info", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["supported"] == dict.fromkeys(USES, True)
    assert result["reasons"] == {}
    assert result["model"] == {
        "class": "ScaleShiftMACE",
        "framework": "mace",
        "elements": ["H", "O"],
        "atomic_numbers": [1, 8],
        "r_max": 4.0,
        "dtype": "float64",
        "heads": ["Default"],
    }
    assert [row["paths"] for row in result["report"]["layers"]] == [3, 3, 7, 1, 9, 4]
    assert listing(tmp_path) == ["water.model"]


@pytest.mark.parametrize(
    ("changes", "supported", "reason"),
    [
        ({"gate": torch.sign}, USES[:1], "activation 'sign'"),
        (
            {"model_class": "AtomicDipolesMACE", "atomic_energies": None, "MLP_irreps": "4x1o"},
            USES[:3],
            "the model gives dipoles and no energies",
        ),
    ],
)
def test_info_tells_each_use(
    changes: dict[str, Any],
    supported: tuple[str, ...],
    reason: str,
    build: Any,
    tmp_path: Path,
    capsys: Any,
) -> None:
    from e3nn import o3

    if "MLP_irreps" in changes:
        changes = {**changes, "MLP_irreps": o3.Irreps(changes["MLP_irreps"])}
    torch.save(build(**changes), tmp_path / "odd.model")
    assert main([str(tmp_path / "odd.model"), "--info", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {use for use, yes in result["supported"].items() if yes} == set(supported)
    assert set(result["supported"]) == set(USES)
    assert all(reason in text for text in result["reasons"].values())
    assert main([str(tmp_path / "odd.model"), "--info"]) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.endswith(": supported") for line in lines] == [use in supported for use in USES]


def test_info_of_a_model_that_reads_a_charge(build: Any, tmp_path: Path, capsys: Any) -> None:
    charge = {"type": "categorical", "per": "graph", "in_dim": 1, "emb_dim": 4, "num_classes": 5}
    model = build(embedding_specs={"total_charge": {**charge, "offset": 2}})
    torch.save(model, tmp_path / "charged.model")
    assert main([str(tmp_path / "charged.model"), "--info"]) == 0
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert lines[:4] == [f"{use}: supported" for use in USES]
    assert lines[4] == (
        "reads of each structure: total_charge (defaults: --set total_charge=VALUE)"
    )


@pytest.mark.parametrize("name", ["a.model", "a.mdcg"])
def test_each_stage_is_said_when_it_begins(
    name: str, water: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdcg.patch import verify

    said: list[str] = []
    evaluate = verify.evaluate_outputs

    def evaluated(*args: Any) -> Any:
        said.extend(capsys.readouterr().err.splitlines())
        return evaluate(*args)

    monkeypatch.setattr(verify, "evaluate_outputs", evaluated)
    arguments = [str(water), "-o", str(tmp_path / name), "--json"]
    assert main(arguments) == 0
    text, log = capsys.readouterr()
    assert json.loads(text)["verification"]["passed"]
    stages = ["loading water.model", "patching; kernels"]
    if name == "a.mdcg":
        stages = ["loading water.model", "converting"]
    stages += [f"verification: the original on structure {n} of 7" for n in range(1, 8)]
    told = iter(said)
    for stage in stages:
        assert any(line.startswith(f"mdcg: {stage}") for line in told), (stage, said)
    last = log.splitlines()[-1]
    assert last == f"mdcg: writing {tmp_path / name}"
    said.clear()
    assert main([*arguments, "--force", "-q"]) == 0
    assert [*said, capsys.readouterr().err] == [""]


@pytest.mark.parametrize("arguments", [["-o", "a.model", "--no-verify"], ["--info"]])
@pytest.mark.parametrize("level", [[], ["-q"]])
def test_warning_about_pickles(
    level: list[str],
    arguments: list[str],
    water: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mdcg.patch import loader

    monkeypatch.setattr(loader, "_warned", False)
    monkeypatch.chdir(water.parent)
    assert main([str(water), *arguments, *level]) == 0
    assert capsys.readouterr().err.count("untrusted") == 1


# ---- heads ----


def test_several_heads(heads_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "fast.model"
    assert main([str(heads_file), "-o", str(output)]) == 2
    assert "low, high" in capsys.readouterr().err
    assert main([str(heads_file), "-o", str(output), "--head", "middle"]) == 2
    assert "expected one of: low, high" in capsys.readouterr().err
    assert listing(tmp_path) == []
    assert main([str(heads_file), "-o", str(output), "--head", "high"]) == 0
    model = load_model(output)
    assert model.heads == ["low", "high"]
    assert model_info(model).head_index(None) == 1
    # patching the output again keeps its default head
    assert main([str(output), "-o", str(tmp_path / "again.model")]) == 0
    assert model_info(load_model(tmp_path / "again.model")).default_head == "high"


def test_heads_in_info(heads_file: Path, capsys: Any) -> None:
    assert main([str(heads_file), "--info"]) == 0
    assert "heads: low, high" in capsys.readouterr().out


def test_names_of_heads_are_shown_and_not_obeyed(build: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "heads.model"
    energies = np.array([[-1.5, -7.25], [-1.0, -7.0]])
    heads = {"atomic_inter_scale": [1.3, 0.9], "atomic_inter_shift": [0.2, -0.1]}
    model = build(heads=["lo\x1b[31m\nw", "high"], atomic_energies=energies, **heads)
    torch.save(model, path)
    assert main([str(path), "--info"]) == 0
    assert r"heads: lo\x1b[31m\nw, high" in capsys.readouterr().out
    arguments = ["-o", str(tmp_path / "a.mdcg"), "--no-verify", "--head", r"lo\x1b[31m\nw"]
    assert main([str(path), *arguments]) == 0
    assert "\x1b" not in capsys.readouterr().out


# ---- failures ----


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["IN"],
        ["IN", "--info", "-o", "a.model"],
        ["IN", "-o", "a.model", "--dtype", "float16"],
        ["IN", "-o", "a.model", "--atol-forces", "-1"],
        ["IN", "-o", "a.model", "-v", "-q"],
    ],
)
def test_usage(arguments: list[str], water: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(water) if a == "IN" else a for a in arguments])
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_missing_input(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "no.model"), "--info"]) == 2
    assert capsys.readouterr().err == f"mdcg-patch: {tmp_path / 'no.model'}: no such file\n"
    assert main([str(tmp_path / "no.model"), "--info", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


def test_unsupported_files(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "water_compiled.model"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    for arguments in (["--info"], ["-o", str(tmp_path / "a.model")]):
        assert main([str(path), *arguments]) == 4
        assert "(water.model)" in capsys.readouterr().err
    assert listing(tmp_path) == ["water_compiled.model"]


def test_unsupported_layers(build: Any, tmp_path: Path, capsys: Any) -> None:
    model = build()
    model.interactions[1].conv_fusion = "atomic"
    path, output = tmp_path / "odd.model", tmp_path / "a.model"
    torch.save(model, path)
    assert main([str(path), "-o", str(output)]) == 4
    text, log = capsys.readouterr()
    assert "--allow-partial" in log
    assert "can be patched" in text
    assert "'atomic'" in text
    assert main([str(path), "-o", str(output), "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["error"]["exit_code"] == 4
    assert not result["report"]["complete"]
    assert main([str(path), "--info"]) == 0
    text = capsys.readouterr().out
    assert "'atomic'" in text
    reason = "1 of 6 layers cannot be patched (--allow-partial patches the others)"
    assert f"patching in place: in part, {reason}\n" in text
    assert main([str(path), "--info", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["supported"]["patching in place"] is False
    assert result["reasons"]["patching in place"] == reason
    # A partly patched model of this kind cannot run: its second block passes e3nn four arguments.
    assert main([str(path), "-o", str(output), "--allow-partial"]) == 3
    assert listing(tmp_path) == ["odd.model"]
    assert main([str(path), "-o", str(output), "--allow-partial", "--no-verify"]) == 0
    assert "5 of 6 layers patched" in capsys.readouterr().out


def test_no_cuda(water: Path, tmp_path: Path, capsys: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--device", "cuda"]) == 5
    assert "use the device cpu or install" in capsys.readouterr().err
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--device", "quantum"]) == 2
    assert listing(tmp_path) == ["water.model"]


@pytest.mark.parametrize("name", ["a.model", "a.mdcg"])
def test_numbers_that_are_not_finite(name: str, build: Any, tmp_path: Path, capsys: Any) -> None:
    model = build()
    model.interactions[1].conv_tp_weights.layer0.weight.data[0, 0] = float("nan")
    torch.save(model, tmp_path / "nan.model")
    assert main([str(tmp_path / "nan.model"), "-o", str(tmp_path / name), "-q"]) == 4
    text, log = capsys.readouterr()
    assert text == ""
    assert f"{tmp_path / 'nan.model'} has NaN or infinity in interactions.1.conv_tp_weights" in log
    assert listing(tmp_path) == ["nan.model"]


def test_bugs_are_not_hidden(water: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(jobs, "headline", fail)
    with pytest.raises(ZeroDivisionError):
        main([str(water), "-o", str(tmp_path / "a.model")])
    assert listing(tmp_path) == ["water.model"]


@pytest.mark.usefixtures("global_state")
def test_no_global_state_is_touched(water: Path, tmp_path: Path) -> None:
    out, err = sys.stdout, sys.stderr
    main([str(water), "-o", str(tmp_path / "a.model")])
    assert (sys.stdout, sys.stderr) == (out, err)


# ---- as a process ----


def test_arguments_are_parsed_before_heavy_imports() -> None:
    code = (
        "import sys\n"
        "from mdcg.cli.patch import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "try: main(['a.model'])\n"
        "except SystemExit: pass\n"
        "assert main(['/no/such/file', '--info']) == 2\n"
        "heavy = {'torch', 'numpy', 'ase', 'e3nn', 'mace'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    printed_by(code)


def test_help_and_version_are_quick() -> None:
    for argument in ("--help", "--version"):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            done = run_process(argument)
            times.append(time.perf_counter() - started)
            assert done.returncode == 0
        assert min(times) < 0.5
    assert done.stdout == f"mdcg-patch {mdcg.__version__}\n"


def test_stdout_is_the_result_only(water: Path, tmp_path: Path) -> None:
    done = run_process(water, "-o", tmp_path / "a.model", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]["passed"]
    assert "untrusted" in done.stderr


def test_terminal_without_unicode(water: Path) -> None:
    done = run_process(water, "--info", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "r_max 4 ?" in done.stdout
    assert "uequivariance" not in done.stdout + done.stderr, "MACE's notice is left out"


def test_no_compiler(water: Path, tmp_path: Path) -> None:
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("CXX", "MDCG_CXX")},
        "PATH": str(tmp_path),
        "MDCG_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = run_process(water, "-o", tmp_path / "a.model", env=environment)
    assert done.returncode == 5, done.stderr
    assert "no C++ compiler was found" in done.stderr
    assert "Traceback" not in done.stderr
    assert "a.model" not in listing(tmp_path)


def test_without_torch(water: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No torch', name='torch')\n")
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = run_process(water, "--info", "-q", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("\n") == 1
    assert "'torch' is not installed" in done.stderr
