"""mdcg-patch writes outputs whole or not at all, and overwrites nothing unless it is told to."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.cli.main import main as mdcg_main
from mdcg.cli.patch import main
from mdcg.patch import is_patched, load_model

from .conftest import listing


def test_failed_verification_writes_nothing(water: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = [str(water), "-o", str(tmp_path / "a.model"), "--atol-forces", "1e-30"]
    assert main(arguments) == 3
    text, log = capsys.readouterr()
    assert "FAIL" in text
    assert "self-images" in text  # the whole table
    assert "nothing was written" in log
    assert listing(tmp_path) == ["water.model"]
    assert main([*arguments, "--json"]) == 3
    result = json.loads(capsys.readouterr().out)
    assert result["error"]["exit_code"] == 3
    assert not result["verification"]["passed"]


def test_failed_verification_keeps_what_was_there(water: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.model"
    output.write_text("precious")
    arguments = [str(water), "-o", str(output), "--force", "--atol-forces", "1e-30"]
    assert main(arguments) == 3
    assert output.read_text() == "precious"
    assert main([str(water), "-o", str(output), "--force", "--no-verify"]) == 0
    assert is_patched(load_model(output))


@pytest.mark.parametrize(
    "kind", ["same", "symlink", "hard link", "dotted", "through a folder link"]
)
def test_the_input_is_never_overwritten(
    kind: str, water: Path, tmp_path: Path, capsys: Any
) -> None:
    before = water.read_bytes()
    target = tmp_path / "target.model"
    if kind == "same":
        target = water
    elif kind == "symlink":
        target.symlink_to(water)
    elif kind == "hard link":
        os.link(water, target)
    elif kind == "dotted":
        (tmp_path / "sub").mkdir()
        target = tmp_path / "sub" / ".." / "water.model"
    else:
        (tmp_path / "sub").symlink_to(tmp_path)
        target = tmp_path / "sub" / "water.model"
    assert main([str(water), "-o", str(target), "--force", "--no-verify"]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert water.read_bytes() == before


def test_existing_outputs(water: Path, tmp_path: Path, capsys: Any) -> None:
    for taken in ("a.model", "b.model.report.json"):
        (tmp_path / taken).write_text("precious")
        output = tmp_path / taken.removesuffix(".report.json")
        assert main([str(water), "-o", str(output)]) == 2
        assert "--force" in capsys.readouterr().err
        assert (tmp_path / taken).read_text() == "precious"


def test_all_that_is_wrong_is_said_at_once(water: Path, tmp_path: Path, capsys: Any) -> None:
    for name in ("a.model", "a.mdcg"):
        (tmp_path / name).write_text("precious")
    taken = "exists already: name another output or use --force; --"
    head = "--head is 'foo', expected one of: Default"
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--head", "foo"]) == 2
    log = capsys.readouterr().err
    assert taken in log
    assert head in log
    arguments = ["-o", str(tmp_path / "a.mdcg"), "--head", "foo", "--types", "O", "Si"]
    assert main([str(water), *arguments]) == 2
    log = capsys.readouterr().err
    assert taken in log
    assert f"{head}; --types names Si, which the model" in log
    arguments = ["-o", str(tmp_path / "a.mdcg"), "--types", "O"]
    assert main([str(water), *arguments]) == 2
    assert "a.mdcg exists already" in capsys.readouterr().err


@pytest.mark.parametrize("taken", ["a.model", "a.model.report.json"])
def test_two_runs_at_once(
    taken: str, water: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another process writes during the run is overwritten only with --force."""
    check = mdcg.patch.verify_patch

    def meanwhile(*args: Any, **options: Any) -> Any:
        (tmp_path / taken).write_text("precious")
        return check(*args, **options)

    monkeypatch.setattr(mdcg.patch, "verify_patch", meanwhile)
    assert main([str(water), "-o", str(tmp_path / "a.model")]) == 2
    assert "was written by another process in the meantime" in capsys.readouterr().err
    assert (tmp_path / taken).read_text() == "precious"
    assert listing(tmp_path) == sorted([taken, "water.model"])
    assert main([str(water), "-o", str(tmp_path / "a.model"), "--force"]) == 0
    assert is_patched(load_model(tmp_path / "a.model"))


@pytest.mark.parametrize("name", ["a.model", "a.mdcg"])
def test_full_disk(name: str, water: Path, tmp_path: Path, capsys: Any) -> None:
    """A full disk, here a limit on file sizes, leaves the old output unchanged."""
    arguments = [str(water), "-o", str(tmp_path / name), "--no-verify", "--force"]
    assert main(arguments) == 0  # also fills the kernel cache
    before = (tmp_path / name).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        assert main(arguments) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log = capsys.readouterr().err
    assert f"mdcg-patch: cannot write in {tmp_path}: File too large; nothing was written" in log
    assert listing(tmp_path) == [name, f"{name}.report.json", "water.model"]
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("a.onnx", "expected .mdcg, .model or .pt"),
        ("missing/a.model", "does not exist"),
        ("folder.model", "is a folder"),
        ("pipe.model", "is not a regular file"),
    ],
)
def test_bad_outputs(output: str, message: str, water: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "folder.model").mkdir()
    os.mkfifo(tmp_path / "pipe.model")
    assert main([str(water), "-o", str(tmp_path / output), "--force"]) == 2
    log = capsys.readouterr().err
    assert message in log
    assert len(log.strip().splitlines()) == 1


def test_links_stay(water: Path, tmp_path: Path) -> None:
    """An output that is a symbolic link stays one, and its target is written."""
    link, target = tmp_path / "link.model", tmp_path / "target.model"
    link.symlink_to(target)
    target.write_text("old")
    assert main([str(water), "-o", str(link), "--force", "--no-verify"]) == 0
    assert link.is_symlink()
    assert is_patched(load_model(target))
    names = ["link.model", "link.model.report.json", "target.model", "water.model"]
    assert listing(tmp_path) == names


def test_a_terminal_acts_on_no_name(water: Path, tmp_path: Path, capsys: Any) -> None:
    name = "a\x1b[31m\x9b\u202e"
    output = tmp_path / f"{name}.model"
    arguments = [str(water), "-o", str(output), "--no-verify"]
    assert main(arguments) == 0
    assert r"a\x1b[31m\x9b\u202e.model" in capsys.readouterr().out
    assert main([*arguments, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == str(output)
    kernels = ["kernels", f"{tmp_path / name}.mdcg", "--target", "native"]
    for run in (
        lambda: main(arguments),
        lambda: main([*arguments, "--head", name]),
        lambda: main([str(water), "-o", str(output.with_suffix(".onnx"))]),
        lambda: main([*arguments, f"--{name}"]),
        lambda: main([*arguments, "--set", name]),
        lambda: mdcg_main([*kernels, name]),
        lambda: mdcg_main(kernels),
    ):
        with suppress(SystemExit):
            run()
        printed = "".join(capsys.readouterr())
        assert r"\x1b[31m\x9b" in printed or r"\u001b[31m\u009b" in printed, printed
        assert not {"\x1b", "\x9b", "\u202e"} & set(printed)


@pytest.mark.parametrize("suffix", [".model", ".mdcg"])
def test_long_names(suffix: str, water: Path, tmp_path: Path, capsys: Any) -> None:
    """A report name of 255 bytes is written, and a longer one is refused before any output."""
    stem = "a" + "é" * 100 + "a" * (42 - len(suffix))
    name = f"{stem}{suffix}"
    assert main([str(water), "-o", str(tmp_path / name), "--no-verify", "-q"]) == 0
    assert f"wrote {tmp_path / name}" in capsys.readouterr().out
    assert listing(tmp_path) == [name, f"{name}.report.json", "water.model"]
    for longer in (f"a{name}", "a" * 300 + suffix):
        assert main([str(water), "-o", str(tmp_path / longer), "--no-verify", "-q"]) == 2
        log = capsys.readouterr().err
        assert f"has {len(longer.encode()) + 12} bytes, expected at most 255: choose a" in log
        assert log.count("\n") == 1
    assert main([str(tmp_path / ("a" * 300 + ".model")), "--info"]) == 2
    assert capsys.readouterr().err.endswith(": File name too long\n")
    assert len(listing(tmp_path)) == 3


def test_folder_that_cannot_be_written(water: Path, capsys: Any) -> None:
    """A folder that cannot be written, here /proc, is named in the error."""
    assert main([str(water), "-o", "/proc/a.model", "--no-verify"]) == 2
    assert "cannot write in /proc" in capsys.readouterr().err


def test_interrupted(water: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mdcg.patch, "verify_patch", stop)
    assert main([str(water), "-o", str(tmp_path / "a.model")]) == 130
    assert listing(tmp_path) == ["water.model"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_nothing(name: str, water: Path, tmp_path: Path) -> None:
    handler = "default_int_handler" if name == "SIGINT" else "SIG_DFL"
    code = (
        "import os, signal, sys, time, mdcg.patch\n"
        "from mdcg.cli.patch import main\n"
        # processes started by nohup inherit ignored signals, so the handler is set here
        f"signal.signal(signal.{name}, signal.{handler})\n"
        "def stop(*args, **options):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    time.sleep(60)\n"
        "mdcg.patch.verify_patch = stop\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = [sys.executable, "-c", code, str(water), "-o", str(tmp_path / "a.model")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert f"stopped by {name}: nothing was written and no temporary file" in done.stderr
    assert listing(tmp_path) == ["water.model"]
