"""Kernels compiled without Python: the cache's rules, many processes at once, errors."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mdcg import _core
from mdcg._version import __version__
from mdcg.runtime.cache import cache_size, clear_cache

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache; the folder of this processor's kernels in it."""
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MDCG_DISABLE_JIT", raising=False)
    return tmp_path / "cache" / __version__ / _core.host_target("native")


def build(*sources: str) -> list[tuple[str, str, bool, float]]:
    return _core.build_kernels(list(sources) or [SOURCE])


def counting_compiler(folder: Path, seconds: float = 0.0) -> tuple[Path, Path]:
    """Return a compiler that notes each of its runs, and its notes."""
    notes, script = folder / "notes", folder / "a compiler"
    script.write_text(f'#!/bin/sh\necho run >> "{notes}"\nsleep {seconds}\nexec c++ "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, notes


def test_compiled_once_then_found(cache: Path) -> None:
    [(path, error, compiled, seconds)] = build()
    assert (error, compiled) == ("", True)
    assert seconds > 0.0
    folder = Path(path).parent
    assert folder.parent == cache
    assert sorted(p.name for p in folder.iterdir()) == ["kernel.cpp", "kernel.sha256", "kernel.so"]
    assert (folder / "kernel.cpp").read_text() == SOURCE
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert (folder / "kernel.sha256").read_text() == digest
    assert _core.SharedLibrary(path).symbol("answer")
    assert build() == [(path, "", False, 0.0)]
    assert not list((cache.parent / "tmp").iterdir())


def test_python_counts_and_clears(cache: Path) -> None:
    build(SOURCE, SOURCE + "//")
    kernels, size = cache_size()
    assert kernels == 2
    assert size > 1000
    clear_cache()
    assert cache_size() == (0, 0)
    assert build()[0][2]


def test_several_at_once_and_errors_of_one(cache: Path) -> None:
    sources = [f"{SOURCE}// {k}\n" for k in range(4)]
    built = build(*sources[:2], "int x = ;\n", *sources[2:])
    assert [bool(each[0]) for each in built] == [True, True, False, True, True]
    error = built[2][1]
    assert "rejected a generated kernel (kernel.cpp:1:9: error:" in error
    assert "set MDCG_CXX" in error
    kept = Path(error.split("source kept in ")[1].split(";")[0])
    assert kept.read_text() == "int x = ;\n"


def test_altered_kernels_are_made_again(cache: Path) -> None:
    [(path, *_)] = build()
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).write_bytes(content)
    assert build()[0][2], "a flipped bit"
    Path(path).write_bytes(Path(path).read_bytes()[:100])
    assert build()[0][2], "cut short"
    (Path(path).parent / "kernel.sha256").unlink()
    assert build()[0][2], "no digest"
    assert not build()[0][2]


def test_other_options_are_other_kernels(cache: Path) -> None:
    native = build()[0][0]
    if not _core.instruction_set_level().startswith("x86-64-v"):
        pytest.skip("levels are of x86-64")
    [(path, error, compiled, _)] = _core.build_kernels([SOURCE], "x86-64-v2")
    assert (error, compiled) == ("", True)
    assert Path(path).parent.parent.name == "x86-64-v2"
    assert Path(path).parent.name != Path(native).parent.name


def test_unknown_levels() -> None:
    with pytest.raises(ValueError, match=r"'x86-64-v9' is no instruction set .* expected native"):
        _core.build_kernels([SOURCE], "x86-64-v9")


def test_compiler_from_the_environment(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, notes = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", f'"{script}" -DA="b c"')
    monkeypatch.setenv("MDCG_CXX", "")
    assert build("#define T(x) #x\nextern const char* t;\n")[0][1] == ""
    assert notes.read_text() == "run\n"
    monkeypatch.setenv("MDCG_CXX", "c++ -DANSWER=7")
    assert build('extern "C" int seven() { return ANSWER; }\n')[0][1] == ""
    assert notes.read_text() == "run\n", "MDCG_CXX comes first"


@pytest.mark.parametrize(
    ("variable", "command", "message"),
    [
        ("MDCG_CXX", "/nonexistent/g++", "'/nonexistent/g\\+\\+' named by MDCG_CXX was not found"),
        ("CXX", "nosuchcompiler -O2", "'nosuchcompiler' named by CXX was not found"),
        ("MDCG_CXX", 'g++ "-O2', "a quote is not closed"),
        ("MDCG_CXX", "false", "rejected a generated kernel \\(exit status 1\\)"),
        ("MDCG_CXX", "/etc/passwd", "was not found"),
    ],
)
def test_unusable_compilers(
    cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str, command: str, message: str
) -> None:
    monkeypatch.delenv("MDCG_CXX", raising=False)
    monkeypatch.setenv(variable, command)
    [(path, error, compiled, _)] = build()
    assert (path, compiled) == ("", False)
    with pytest.raises(RuntimeError, match=message):
        raise RuntimeError(error)


def test_no_compiler_and_disabled(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        for name in ("MDCG_CXX", "CXX"):
            patch.delenv(name, raising=False)
        patch.setenv("PATH", str(tmp_path))
        assert "no C++ compiler was found" in build()[0][1]
    monkeypatch.setenv("MDCG_DISABLE_JIT", " Yes ")
    assert "MDCG_DISABLE_JIT=1 forbids" in build()[0][1]
    monkeypatch.setenv("MDCG_DISABLE_JIT", "off")
    path = build()[0][0]
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    monkeypatch.setenv("MDCG_CXX", "/nonexistent")
    assert build() == [(path, "", False, 0.0)], "a cached kernel needs no compiler"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_cache(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o500)
    assert build()[0][1] == ""


PROGRAM = """
import os, sys
from mdcg import _core
sources = ['extern "C" int answer() { return %d; }\\n' % k for k in range(3)]
for path, error, compiled, seconds in _core.build_kernels(sources):
    assert not error, error
    _core.SharedLibrary(path).symbol("answer")
    print(path, int(compiled))
"""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "MDCG_CACHE_DIR": str(tmp_path / "cache"), **more}


def test_cache_that_cannot_be_made(tmp_path: Path) -> None:
    """A file where the folder should be: kernels go to a folder that the process removes."""
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(tmp_path, TMPDIR=str(tmp_path / "temporary")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "temporary") in done.stdout
    assert list((tmp_path / "temporary").iterdir()) == []


def test_many_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    script, notes = counting_compiler(tmp_path, 0.3)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment(tmp_path, MDCG_CXX=f"'{script}'"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in processes] == [0] * 5
    assert notes.read_text().count("run") == 3
    assert sum(int(line.split()[1]) for line in lines) == 3
    assert len({line.split()[0] for line in lines}) == 3


def test_a_killed_process_leaves_nothing_that_blocks(tmp_path: Path) -> None:
    script, notes = counting_compiler(tmp_path, 30)
    first = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(tmp_path, MDCG_CXX=f"'{script}'")
    )
    while not notes.exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(tmp_path, MDCG_CXX="c++"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_forked_children_compile_and_wait(cache: Path) -> None:
    """A fork after a build, with a folder of its own where the cache cannot be written."""
    build()
    child = os.fork()
    if child == 0:
        good = not build()[0][1] and build(SOURCE + "// child\n")[0][2]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not build(SOURCE + "// child\n")[0][2]


def test_hosts_that_ignore_children(tmp_path: Path) -> None:
    """Some launchers ignore SIGCHLD, and then nobody learns how a compiler ended."""
    program = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
