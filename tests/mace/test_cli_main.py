"""mdcg: environment, cache, self-test, and the way to the other commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg import _core
from mdcg.cli import env, selftest, selftest_engine
from mdcg.cli.main import main, make_parser
from mdcg.runtime.cache import cache_dir

from ..outputs import DATA


def test_environment(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mdcg"]["version"] == mdcg.__version__
    assert report["packages"]["torch"][0].isdigit()
    assert "MDCG_CACHE_DIR" in report["variables"]
    assert report["kernel cache"]["folder"].startswith(os.environ["MDCG_CACHE_DIR"])
    assert report["kernel cache"]["writable"] is True
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    for word in ("compiler:", "cpu:", "kernel cache:", "variables:", "e3nn"):
        assert word in text
    monkeypatch.setenv("MDCG_CXX", "/no/such/compiler -O1")
    assert main(["env"]) == 0
    assert "none (the C++ compiler '/no/such/compiler' named by" in capsys.readouterr().out


def test_environment_survives_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("broken")

    for name in ("_core", "_compiler", "_cache", "_instruction_set", "_gpus", "_driver", "_nvrtc"):
        monkeypatch.setattr(env, name, fail)
    monkeypatch.setattr(env.platform, "platform", fail)
    report = env.collect()
    assert "RuntimeError: broken" in env.show(report)


def test_environment_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that choose devices are reported, and devices that cannot be used have a line."""
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ROCM_PATH")
    for name in names:
        monkeypatch.setenv(name, f"of {name}")

    def parse(name: str) -> int:
        if name == "hip:3":
            raise RuntimeError("there are three")
        return int(name.removeprefix("hip:"))

    def target(number: int) -> str:
        if number == 1:
            raise RuntimeError("it does not name its architecture")
        return "gfx90a"

    monkeypatch.setattr(_core, "parse_device", parse)
    monkeypatch.setattr(_core, "device_target", target)
    monkeypatch.setattr(_core, "device_name", lambda number: f"card {number}")
    report = env.collect()
    assert report["gpu"]["AMD devices"] == [
        "gfx90a card 0",
        "hip:1 cannot be used (it does not name its architecture)",
        "gfx90a card 2",
    ]
    assert {name: report["variables"][name] for name in names} == {n: f"of {n}" for n in names}


def test_environment_of_the_sources() -> None:
    """Without the compiled core, env says so once and reports other values as unknown."""
    sources = Path(__file__).resolve().parents[2]
    if list((sources / "mdcg").glob("_core*.so")):
        pytest.skip("the sources are installed in place")
    command = [sys.executable, "-m", "mdcg", "env"]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has no compiled core: start Python in another folder") == 1
    assert done.stdout.count("unknown (the compiled core is missing)") > 3


def test_environment_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch')\n")
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [sys.executable, "-m", "mdcg", "env"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_cache(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    other = tmp_path / "not-mine.txt"
    other.write_text("precious")
    folder = tmp_path / mdcg.__version__ / "x86-64" / "abc"
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(bytes(2_000_000))
    (folder / "kernel.sha256").touch()  # marks a complete entry
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / mdcg.__version__}\n"
    assert main(["cache", "size"]) == 0
    assert capsys.readouterr().out == "1 compiled files, 2.0 MB\n"
    assert main(["cache"]) == 0
    said = f"{tmp_path / mdcg.__version__}: 1 compiled files, 2.0 MB ('mdcg cache clear'"
    assert capsys.readouterr().out.startswith(said)
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "deleted 1 compiled files, 2.0 MB\n"
    assert not folder.exists()
    assert other.read_text() == "precious"
    assert main(["cache", "size"]) == 0
    assert capsys.readouterr().out == "0 compiled files, 0.0 MB\n"


def test_a_cache_that_keeps_nothing(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that write to the cache fail with the reason if the cache cannot be used."""
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for place, reason in {
        "/proc/nope": "the kernel cache /proc/nope cannot be written",
        str(tmp_path / "file"): f"the kernel cache {tmp_path}/file cannot be written",
        str(tmp_path / "open"): f"kernels in {tmp_path}/open are not used, because other users",
    }.items():
        monkeypatch.setenv("MDCG_CACHE_DIR", place)
        assert main(["env", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)["kernel cache"]
        assert report["writable"] is False
        assert report["warning"].startswith(reason)
        package = str(DATA / "mace_water_float32.mdcg")
        for command in (["kernels", package, "--target", "native"], ["lammps"]):
            assert main(command) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"mdcg: {reason}")
            assert captured.err.count("\n") == 1


def test_no_folder_can_be_written() -> None:
    """Commands end with one line if neither the cache nor the temporary folder is writable."""
    nowhere = {"MDCG_CACHE_DIR": "/proc/nope", "TMPDIR": "/proc/nope"}
    package = str(DATA / "mace_water_float32.mdcg")
    for command in (["kernels", package, "--target", "native"], ["lammps"]):
        done = subprocess.run(
            [sys.executable, "-m", "mdcg", *command],
            env=os.environ | nowhere,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1


def test_a_cache_that_others_delete_too(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = shutil.rmtree
    calls = []

    def delete_late(path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(2, "No such file or directory", "another")
        delete(path)

    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    (cache_dir() / "native").mkdir(parents=True)
    monkeypatch.setattr("shutil.rmtree", delete_late)
    assert main(["cache", "clear"]) == 0
    assert not cache_dir().exists()


def test_a_cache_that_cannot_be_deleted(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    cache_dir().mkdir()
    monkeypatch.setattr("shutil.rmtree", refuse)
    assert main(["cache", "clear"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cannot be deleted (Permission denied: " in captured.err


def test_selftest(capsys: Any) -> None:
    assert main(["selftest", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["passed"]
    assert {case["dtype"] for case in results["cases"]} == {"float32", "float64"}
    assert not any("skipped" in case for case in results["cases"] if case["device"] == "cpu")
    for case in results["cases"]:
        for label in ("forward", "backward", "double backward"):
            if label in case or not case["case"].startswith("engine"):
                assert 0.0 <= case[label] <= case["limit"]
    assert selftest.show(results).endswith("selftest: PASS")


def test_selftest_without_a_compiler_and_torch(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDCG_CXX", "no-such-compiler")
    assert main(["selftest"]) == 0
    shown = capsys.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines() if line.endswith(" ok")] == (
        ["engine, generic kernels"] * 2
    )
    reason = "skipped: the C++ compiler 'no-such-compiler' named by MDCG_CXX or CXX was not found"
    assert shown.count(reason) == 3
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["selftest", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["cases"][-1]
    assert last["case"] == "patched models"
    assert last["skipped"].startswith("the package 'torch' is not installed: pip install ")


def test_selftest_notices_wrong_forces(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, *args: Any, **options: Any) -> Any:
        found = dict(right(self, *args, **options))
        return found | {"forces": found["forces"] * 1.0001}

    right = selftest_engine._core.Model.evaluate
    monkeypatch.setenv("MDCG_CXX", "no-such-compiler")
    monkeypatch.setattr(selftest_engine._core.Model, "evaluate", wrong)
    assert main(["selftest"]) == 3
    assert capsys.readouterr().out.endswith("selftest: FAIL\n")


@pytest.mark.parametrize("name", ["conv", "symmetric_contraction"])
def test_selftest_notices(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdcg import ops

    right = getattr(ops, name)
    monkeypatch.setattr(ops, name, lambda *args: right(*args) * 1.001)
    assert main(["selftest"]) == 3
    assert capsys.readouterr().out.endswith("selftest: FAIL\n")


def test_usage(capsys: Any) -> None:
    for arguments in (["fly"], ["cache", "burn"], ["env", "--loud"], ["info", "a", "-o", "b"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_help_without_arguments(arguments: list[str], capsys: Any) -> None:
    assert main(arguments) == 0
    text, log = capsys.readouterr()
    assert text.startswith("usage: mdcg")
    assert log == ""


@pytest.mark.parametrize("command", ["convert", "info", "kernels", "patch", "run"])
def test_commands_that_need_arguments_explain_themselves(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command])
    assert caught.value.code == 0
    text, log = capsys.readouterr()
    assert text.startswith(f"usage: mdcg {command}")
    assert log == ""


def test_the_command_and_the_module_are_one_program() -> None:
    scripts = {point.name: point for point in distribution("mdcg").entry_points}
    assert scripts["mdcg"].load() is main
    done = subprocess.run([sys.executable, "-m", "mdcg"], capture_output=True, text=True)
    assert done.stdout == make_parser().format_help()
    commands = ("convert", "info", "run", "kernels", "bench", "env", "selftest", "cache")
    found = re.findall(r"^    (\w+) ", done.stdout, re.MULTILINE)
    assert found[: len(commands)] == list(commands)


def test_convert_and_info_are_parts_of_mdcg_patch(water: Path, tmp_path: Path, capsys: Any) -> None:
    """Both spellings print the same text, and write the same bytes."""
    texts = []
    for words in (["info", str(water)], ["patch", str(water), "--info"]):
        assert main([*words, "-q"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""
    files = [tmp_path / "convert.mdcg", tmp_path / "patch.mdcg"]
    for file in files:
        assert main([file.stem, str(water), "-o", str(file), "-q", "--no-verify"]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    capsys.readouterr()
    for words, program in ((["info"], "mdcg info"), (["convert", "-o", "b.mdcg"], "mdcg convert")):
        assert main([*words, str(tmp_path / "no.model")]) == 2
        assert capsys.readouterr().err == f"{program}: {tmp_path / 'no.model'}: no such file\n"


@pytest.mark.parametrize(
    "command",
    [
        ["kernels", "FILE", "--target", "native"],
        ["bench", "startup", "FILE"],
        ["bench", "lammps", "FILE"],
        ["bench", "model", "FILE"],
        ["patch", "FILE", "--info"],
    ],
    ids=" ".join,
)
def test_missing_files(command: list[str], tmp_path: Path, capsys: Any) -> None:
    for name, words in (("no.mdcg", "no.mdcg"), ("a" * 300 + ".mdcg", "File name too long")):
        path = str(tmp_path / name)
        assert main([path if word == "FILE" else word for word in command]) == 2
        log = capsys.readouterr().err
        assert words in log
        assert log.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [["kernels", "FILE", "--target", "native"], ["bench", "startup", "FILE"]],
    ids=" ".join,
)
def test_checkpoints_in_the_place_of_packages(command: list[str], water: Path, capsys: Any) -> None:
    assert main([str(water) if word == "FILE" else word for word in command]) == 2
    said = f"{water} is not a package: convert a checkpoint first, mdcg convert {water} -o OUT.mdcg"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "model", "a", "--repeats", "x"], "'x' is not a positive whole number"),
        (["bench", "model", "a", "--atoms", "3,-1"], "'-1' is not a positive whole number"),
        (["patch", "a", "-o", "b", "--atol-forces", "nan"], "'nan' is not a positive number"),
        (["patch", "a", "-o", "b", "--atol-forces", "small"], "'small' is not a positive number"),
    ],
)
def test_numbers_of_the_command_line(arguments: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


def test_version(capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mdcg {mdcg.__version__}\n"


def test_other_commands(capsys: Any, tmp_path: Path) -> None:
    for arguments in (["bench", "--help"], ["patch", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
    assert "mdcg-patch" in capsys.readouterr().out
    assert main(["patch", str(tmp_path / "no.model"), "--info"]) == 2


def test_expected_errors_are_sentences(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise mdcg.KernelCompileError("no C++ compiler was found")

    monkeypatch.setattr(selftest, "compare", fail)
    assert main(["selftest"]) == 5
    assert capsys.readouterr().err == "mdcg: no C++ compiler was found\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    for command in ("env", "cache size", "kernels none.mdcg --target native"):
        line = f"{sys.executable} -m mdcg {command} {closed}"
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        assert done.returncode == (2 if "kernels" in command else 0)
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["env"],
        ["cache", "path"],
        ["--help"],
        ["patch", "WATER", "--info", "-q"],
        ["patch", "--help"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_is_no_error(command: list[str], water: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [str(water) if word == "WATER" else word for word in command]
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "mdcg", *words], stdout=pipe, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_an_output_that_is_full() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "mdcg", "env"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("mdcg: cannot write standard output, a temporary file or")
    assert done.stderr.count("\n") == 1
