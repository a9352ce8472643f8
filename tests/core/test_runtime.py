"""Compiler and kernel cache: the ways they are used, and the ways they fail."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mdcg
from mdcg import KernelCompileError, _core, env
from mdcg.runtime.cache import cache_dir, cache_size, clear_cache
from mdcg.runtime.compiler import find_compiler, load_host_kernel, statistics

from ..processes import run_python

pytestmark = pytest.mark.compiler(whole=True)

TARGET = "generic"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("MDCG_CXX", "CXX", "MDCG_DISABLE_JIT", "MDCG_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def source_of(request_id: str) -> str:
    """Return a tiny kernel that no other test has loaded into this process."""
    return f'// kernel {request_id}\nextern "C" long mdcg_run() {{ return 42; }}\n'


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return source_of(f"{request.node.nodeid} {tmp_path}")


def load(source: str, flags: tuple[str, ...] = (), target: str = TARGET) -> Any:
    return load_host_kernel(source, target=target, flags=flags)


def compiler_script(tmp_path: Path, body: str) -> Path:
    """Write a script that acts as the compiler; $out is its output file."""
    path = tmp_path / "bin" / "our-c++"
    path.parent.mkdir(exist_ok=True)
    find_output = 'prev=; for a in "$@"; do [ "$prev" = -o ] && out=$a; prev=$a; done\n'
    path.write_text(f"#!/bin/sh\n{find_output}{body}\n")
    path.chmod(0o755)
    return path


def kernels() -> list[Path]:
    return sorted(cache_dir().glob("*/*/kernel.so"))


# -- the usual way --------------------------------------------------------------------------------


def test_compiles_once_and_remembers(source: str) -> None:
    before = SimpleNamespace(**vars(statistics()))
    library = load(source)
    assert library.symbol("mdcg_run") != 0
    assert load(source) is library
    assert statistics().compiled == before.compiled + 1
    assert statistics().loaded == before.loaded + 1
    (binary,) = kernels()
    assert binary.with_name("kernel.cpp").read_text() == source
    assert binary.relative_to(cache_dir()).parts[0] == TARGET
    assert cache_dir().name == mdcg.__version__


def test_missing_symbol_is_named(source: str) -> None:
    with pytest.raises(RuntimeError, match=r"no symbol mdcg_walk in .*kernel\.so"):
        load(source).symbol("mdcg_walk")


def test_flags_and_targets_are_kept_apart(source: str) -> None:
    for flags, target in (((), "generic"), (("-O1",), "generic"), (("-O1",), "x86-64-v2")):
        load(source, flags, target)
    assert len(kernels()) == 3 - 1  # in memory, kernels are identified by text and flags only
    assert len({path.parent.name for path in kernels()}) == 2


def test_size_and_clear(source: str) -> None:
    assert cache_size() == (0, 0)
    load(source)
    load(source, ("-O1",))
    count, size = cache_size()
    assert count == 2
    assert size >= sum(path.stat().st_size for path in kernels()) + 2 * len(source)
    clear_cache()
    assert cache_size() == (0, 0)
    assert not cache_dir().exists()
    clear_cache()  # clearing twice is no error
    assert load(source).symbol("mdcg_run") != 0, "loaded kernels stay"


def test_nothing_is_left_over(source: str) -> None:
    load(source)
    assert list((cache_dir() / "tmp").iterdir()) == []
    assert not [p for p in (cache_dir() / "locks").iterdir() if p.suffix != ".lock"]


def test_threads_compile_once(source: str) -> None:
    before = statistics().compiled
    with ThreadPoolExecutor(6) as pool:
        libraries = list(pool.map(lambda _: load(source), range(6)))
    assert all(library is libraries[0] for library in libraries)
    assert statistics().compiled == before + 1


def test_compiling_is_logged(
    source: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="mdcg")
    load(source)
    record = caplog.records[-1]  # after messages that each process logs once
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("compiled kernel for the CPU in ")
    caplog.clear()
    monkeypatch.setenv("MDCG_DEBUG", "1")
    load(source, ("-O1",))
    assert any("kernel.cpp" in record.getMessage() for record in caplog.records)


# -- where the cache is ---------------------------------------------------------------------------


def test_place_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", "/somewhere/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/nobody")
    version = mdcg.__version__
    assert cache_dir() == Path("/somewhere/kernels") / version
    monkeypatch.delenv("MDCG_CACHE_DIR")
    assert cache_dir() == Path("/xdg/mdcg") / version
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/nobody/.cache/mdcg") / version


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("true", True), ("0", False), ("off", False), (" ", False)]
)
def test_switches(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_DISABLE_JIT", text)
    monkeypatch.setenv("MDCG_DEBUG", text)
    assert _core.jit_disabled() is on
    assert env.debug() is on


def test_every_variable_has_a_meaning() -> None:
    assert len({variable.name for variable in env.VARIABLES}) == len(env.VARIABLES) <= 9
    root = Path(__file__).parents[2]
    places = (
        "lammps_plugin/mdcg_library",
        "csrc/engine/kernels/kernel_finder",
        "csrc/core/kernel_cache",
    )
    text = Path(env.__file__).read_text() + "".join(
        (root / f"{place}.cpp").read_text() for place in places
    )
    for variable in env.VARIABLES:
        assert variable.name.startswith("MDCG_")
        assert variable.meaning.endswith(".")
        # once in the table and once where it is read
        assert text.count(f'"{variable.name}"') >= 2, variable.name


# -- compilers ------------------------------------------------------------------------------------


def test_no_compiler(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        KernelCompileError, match=r"no C\+\+ compiler was found \(searched .*\): ins"
    ):
        load(source)
    assert kernels() == []


@pytest.mark.parametrize("name", ["MDCG_CXX", "CXX"])
def test_named_compiler_is_missing(source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "no-such-c++ -O1")
    message = r"the C\+\+ compiler 'no-such-c\+\+' named by MDCG_CXX or CXX was not found: correct"
    with pytest.raises(KernelCompileError, match=message):
        load(source)


def test_named_compiler_is_no_command(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CXX", "g++ '-O1")
    with pytest.raises(
        KernelCompileError, match=r"which is not a command \(No closing quotation\)"
    ):
        load(source)


def test_order_of_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = compiler_script(tmp_path, "exit 1")
    monkeypatch.setenv("CXX", "g++ -DX")
    assert find_compiler() == ["g++", "-DX"]
    monkeypatch.setenv("MDCG_CXX", f"'{script}' --option")
    assert find_compiler() == [str(script), "--option"]
    monkeypatch.setenv("MDCG_CXX", "  ")
    assert find_compiler()[0] in ("c++", "g++", "clang++")
    monkeypatch.setenv("MDCG_CXX", "")
    assert find_compiler() == ["g++", "-DX"]


def test_compiler_rejects_the_text(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = compiler_script(
        tmp_path, 'echo "In file included" >&2; echo "k.cpp:3: error: not today" >&2; exit 1'
    )
    monkeypatch.setenv("MDCG_CXX", str(script))
    with pytest.raises(KernelCompileError) as failure:
        load(source)
    message = str(failure.value)
    assert message.startswith(f"{script} rejected a generated kernel (k.cpp:3: error: not today)")
    assert "set MDCG_CXX to choose another compiler" in message
    (kept,) = (cache_dir() / "tmp").iterdir()
    assert str(kept) in message
    assert kept.read_text() == source
    assert kernels() == []
    monkeypatch.delenv("MDCG_CXX")
    assert load(source).symbol("mdcg_run") != 0, "a failure must not be remembered"


def test_compiler_makes_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDCG_CXX", str(compiler_script(tmp_path, "exit 0")))
    with pytest.raises(KernelCompileError, match=r"rejected a generated kernel \(exit status 0\)"):
        load(source)
    assert kernels() == []


def test_compiler_makes_rubbish(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = compiler_script(tmp_path, 'echo run >>"$0.log"; echo rubbish >"$out"')
    monkeypatch.setenv("MDCG_CXX", str(script))
    with pytest.raises(
        KernelCompileError, match=r"cannot be loaded \(.*\): check that .* allows exe"
    ):
        load(source)
    assert Path(f"{script}.log").read_text() == "run\n" * 2, "made again once, then given up"


def test_compiling_can_be_forbidden(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    message = "kernel [0-9a-f]{32} is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it"
    with pytest.raises(KernelCompileError, match=message):
        load(source)
    assert not cache_dir().exists()


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "No space left"), (None, "No such file or directory")]
)
def test_a_kernel_that_cannot_be_written(number: int | None, reason: str) -> None:
    def build(folder: Path) -> None:
        if number is not None:
            raise OSError(number, os.strerror(number), str(folder))

    cache = _core.KernelCache(TARGET, "kernel.so")
    with pytest.raises(
        KernelCompileError, match=rf"cannot be written \({reason}.*: is the disk fu"
    ):
        cache.make("0" * 32, build)
    assert list((cache_dir() / "tmp").iterdir()) == []
    assert kernels() == []


# -- cached kernels -------------------------------------------------------------------------------

LOAD = (
    "import sys; from mdcg.runtime.compiler import load_host_kernel, statistics\n"
    "load_host_kernel(sys.argv[1], target='generic', flags=(), symbols=('mdcg_run',))\n"
    "print('compiled', statistics().compiled, 'loaded', statistics().loaded)\n"
)


def test_cached_kernel_in_a_read_only_folder(source: str, tmp_path: Path) -> None:
    """A cached kernel loads although no lock can be made."""
    load(source)
    shutil.rmtree(cache_dir() / "locks")
    (cache_dir() / "locks").write_text("")
    log = "import logging, sys; logging.basicConfig(stream=sys.stdout)\n"
    assert run_python(log + LOAD, source) == "compiled 0 loaded 1\n"


def test_a_cached_library_of_something_else_is_made_again(source: str) -> None:
    load("int other;")
    (other,) = kernels()
    load(source)
    (binary,) = (path for path in kernels() if path != other)
    content = other.read_bytes()
    binary.unlink()  # this process has the old one loaded
    binary.write_bytes(content)
    binary.with_name("kernel.sha256").write_text(hashlib.sha256(content).hexdigest())
    for compiled in (1, 0):
        assert run_python(LOAD, source) == f"compiled {compiled} loaded 1\n"


def test_folder_that_cannot_be_written(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(file / "cache"))
    caplog.set_level(logging.WARNING, logger="mdcg")
    assert load(source).symbol("mdcg_run") != 0
    assert load(source, ("-O1",)).symbol("mdcg_run") != 0
    messages = [record.getMessage() for record in caplog.records]
    (warning,) = (each for each in messages if "so that every process compiles its" in each)
    assert warning.startswith(f"the kernel cache {file}/cache cannot be written (")
    assert file.read_text() == ""
    assert cache_size() == (0, 0)
