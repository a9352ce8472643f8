"""The cache of kernels: who may have written what is run, and what becomes of broken entries."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mdcg._version import __version__

from ..processes import child_environment

pytestmark = pytest.mark.compiler(whole=True)

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

CODE = """
import ctypes, logging, os, sys
from mdcg.runtime.compiler import load_host_kernel, statistics
logging.basicConfig(format="%(message)s")
user, *names = sys.argv[1:]
if user:
    os.setgroups([]), os.setgid(int(user)), os.setuid(int(user))
for name in names:
    source = f'extern "C" int {name}() {{ return 42; }}'
    library = load_host_kernel(source, target="generic", flags=(), symbols=(name,))
    assert ctypes.CFUNCTYPE(ctypes.c_int)(library.symbol(name))() == 42
print(statistics().compiled)
"""


# Start of the line that a process prints once, before it compiles.
COMPILING = "mdcg is compiling kernels"


class Cache:
    """Processes that share one private cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "cache"

    def start(
        self, *names: str, user: str = "", umask: int = -1, **env: str
    ) -> subprocess.Popen[str]:
        place = {"MDCG_CACHE_DIR": str(self.root), "TMPDIR": str(self.folder)}
        return subprocess.Popen(
            [sys.executable, "-c", CODE, user, *(names or ("answer",))],
            env=child_environment(**{"MDCG_CXX": None, "CXX": None, **place, **env}),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=umask,
        )

    def run(self, *names: str, user: str = "", umask: int = -1, **env: str) -> tuple[int, str]:
        """Return how many kernels a new process compiled, and its warnings of the cache."""
        process = self.start(*names, user=user, umask=umask, **env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, f"exit status {process.returncode}: {err}"
        assert not [*self.folder.glob("mdcg-kernels-*")], "the folder of an ended process is left"
        *warnings, said = err.splitlines() if int(out) else [*err.splitlines(), COMPILING]
        assert said.startswith(COMPILING)
        return int(out), "\n".join(warnings)

    @property
    def version(self) -> Path:
        return self.root / __version__

    @property
    def binary(self) -> Path:
        (found,) = self.version.glob("*/*/kernel.so")
        return found

    def script(self, body: str) -> str:
        """Write a compiler."""
        path = self.folder / "our-c++"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    cache = Cache(tmp_path_factory.mktemp("template"))
    assert cache.run() == (1, "")
    return cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path)


@pytest.fixture
def filled(template: Cache, cache: Cache) -> Cache:
    """A cache with one kernel."""
    shutil.copytree(template.root, cache.root)
    return cache


@pytest.fixture
def open_cache(cache: Cache) -> Iterator[Cache]:
    """A cache in folders that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cache.folder, cache.root = Path(folder), Path(folder, "cache")
        yield cache


def sign(binary: Path, content: bytes) -> None:
    """Replace a file and its digest."""
    binary.unlink()
    binary.write_bytes(content)
    binary.chmod(0o600)
    binary.with_name("kernel.sha256").write_text(hashlib.sha256(content).hexdigest())


# -- who may have written it ----------------------------------------------------------------------


def test_folders_and_files_are_private(cache: Cache) -> None:
    cache.root = cache.folder / "new" / "cache"
    assert cache.run(umask=0) == (1, "")
    made = [cache.folder / "new", *(cache.folder / "new").rglob("*")]
    assert len(made) > 8
    assert {path for path in made if path.stat().st_mode & 0o077} == set()
    assert cache.run(umask=0) == (0, "")


def levels(cache: Cache) -> dict[str, Path]:
    key = cache.binary.parent
    folders = {"root": cache.root, "version": cache.version, "target": key.parent, "key": key}
    return {**folders, "file": cache.binary, "digest": key / "kernel.sha256"}


@pytest.mark.parametrize("level", ["root", "target", "key", "file", "digest"])
@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda path: path.chmod(path.stat().st_mode | 0o020), "run 'chmod go-w {path}'"),
        pytest.param(
            lambda path: os.chown(path, STRANGER, -1),
            f"{{path}} are not used, because it belongs to user {STRANGER}, expected user 0",
            marks=needs_root,
        ),
    ],
    ids=["group", "stranger"],
)
def test_what_others_can_write_is_not_run(
    filled: Cache, level: str, change: Callable[[Path], None], advice: str
) -> None:
    path = levels(filled)[level]
    change(path)
    compiled, warning = filled.run("answer", "another")
    assert compiled == 2
    assert warning.count("\n") == 0, "one warning in a process"
    assert advice.format(path=path) in warning
    assert "set MDCG_CACHE_DIR to a folder of your own" in warning


@needs_root
@pytest.mark.parametrize("level", ["root", "target", "key", "file"])
def test_links_of_others_are_not_followed(filled: Cache, level: str) -> None:
    """Links that belong to another user are not followed, even to good files."""
    path = levels(filled)[level]
    path.rename(filled.folder / "elsewhere")
    path.symlink_to(filled.folder / "elsewhere")
    os.chown(path, STRANGER, -1, follow_symlinks=False)
    compiled, _ = filled.run()
    assert compiled == 1


def test_a_root_that_is_an_own_link_is_used(cache: Cache) -> None:
    (cache.folder / "elsewhere").mkdir(mode=0o700)
    cache.root.symlink_to(cache.folder / "elsewhere")
    assert cache.run() == (1, "")
    assert cache.run() == (0, "")


@pytest.mark.parametrize("name", ["tmp", "locks", "target", "lock"])
def test_links_are_not_written_through(filled: Cache, name: str) -> None:
    target = filled.binary.parents[1]
    shutil.rmtree(target)
    (lock,) = (filled.version / "locks").iterdir()
    link = {"target": target, "lock": lock}.get(name, filled.version / name)
    link.unlink() if name == "lock" else shutil.rmtree(link, ignore_errors=True)
    victim = filled.folder / "victim"
    if name != "lock":
        victim.mkdir()
    link.symlink_to(victim)  # the lock's link is dangling
    compiled, warning = filled.run()
    assert compiled == 1
    assert not victim.exists() if name == "lock" else list(victim.iterdir()) == []
    assert ("cannot be written" in warning) == (name != "lock")


@needs_root
def test_a_cache_of_root_serves_all_users(open_cache: Cache) -> None:
    cache = open_cache
    assert cache.run() == (1, "")
    subprocess.run(["chmod", "-R", "a+rX", cache.root], check=True)
    cache.folder.chmod(0o1777)
    assert cache.run(user=str(STRANGER)) == (0, "")
    compiled, warning = cache.run("answer", "another", user=str(STRANGER))
    assert compiled == 1
    assert f"the kernel cache {cache.root} cannot be written" in warning


@needs_root
def test_a_cache_that_everybody_can_write_runs_nothing(open_cache: Cache) -> None:
    """Kernels in a cache that other users can write are not used, with a warning."""
    cache = open_cache
    cache.root.mkdir()
    cache.root.chmod(0o1777)
    cache.folder.chmod(0o1777)
    compiled, warning = cache.run(user=str(STRANGER))
    assert (compiled, f"run 'chmod go-w {cache.root}'" in warning) == (1, True)
    assert list(cache.root.iterdir()) == []
    cache.root.chmod(0o755)
    os.chown(cache.root, STRANGER, -1)
    assert cache.run(user=str(STRANGER)) == (1, "")
    compiled, warning = cache.run()
    assert (compiled, f"it belongs to user {STRANGER}" in warning) == (1, True)


# -- broken entries -------------------------------------------------------------------------------


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("")


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def as_key_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


def cut(length: float, signed: bool) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        whole = path.read_bytes()
        short = whole[: int(length * len(whole)) if isinstance(length, float) else length]
        sign(path, short)
        if not signed:
            path.with_name("kernel.sha256").write_text(hashlib.sha256(whole).hexdigest())

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "folder": as_folder,
    "fifo": as_fifo,
    "missing": Path.unlink,
    "file for a folder": as_key_file,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "digest as a folder": lambda path: as_folder(path.with_name("kernel.sha256")),
    "digest as a fifo": lambda path: as_fifo(path.with_name("kernel.sha256")),
    "no digest": lambda path: path.with_name("kernel.sha256").unlink(),
    **{f"cut at {n}": cut(n, False) for n in (0, 0.6, -1)},
    **{f"cut at {n}, signed": cut(n, True) for n in (30, 100, 1000, 0.3, 0.6, 0.9, -1)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_entries_are_made_again(filled: Cache, damage: str) -> None:
    """Damaged entries are compiled again; each load runs in a process that it might crash."""
    whole = filled.binary.read_bytes()
    DAMAGES[damage](filled.binary)
    assert filled.run() == (1, "")
    assert filled.binary.read_bytes() == whole


# -- what processes leave -------------------------------------------------------------------------


def in_tmp(cache: Cache) -> list[Path]:
    return [*(cache.version / "tmp").iterdir()]


def test_killed_processes_leave_nothing(cache: Cache) -> None:
    for name in ("one", "two", "two"):
        killed = cache.start(name, MDCG_CXX=cache.script("kill -9 $PPID"))
        killed.communicate(timeout=60)
        assert killed.returncode == -9
    assert in_tmp(cache) != []
    old, new = (cache.version / "tmp" / f"key.{host}.unique" for host in ("old", "new"))
    for folder in (old, new):  # folders of another host, whose locks may be invisible here
        folder.mkdir()
    os.utime(old, (time.time() - 1e6,) * 2)
    assert cache.run("one") == (1, "")
    assert in_tmp(cache) == [new]


def test_folders_of_living_processes_stay(cache: Cache) -> None:
    go = cache.folder / "go"
    slow = cache.script(f'while [ ! -e {go} ]; do sleep 0.05; done; exec c++ "$@"')
    first = cache.start("slow", MDCG_CXX=slow)
    while not (cache.version / "tmp").exists() or not in_tmp(cache):
        assert first.poll() is None
        time.sleep(0.02)
    before = in_tmp(cache)
    assert cache.run("quick") == (1, "")
    assert in_tmp(cache) == before
    go.touch()
    out, err = first.communicate(timeout=60)
    assert (out, err.count("\n"), err.startswith(COMPILING)) == ("1\n", 1, True)


def test_private_folders_of_killed_processes_are_removed(cache: Cache) -> None:
    cache.root.write_text("a file")  # a file, so the cache cannot be created
    killed = cache.start(MDCG_CXX=cache.script("kill -9 $PPID"))
    killed.communicate(timeout=60)
    (left,) = cache.folder.glob("mdcg-kernels-*")
    os.utime(left, (time.time() - 1000,) * 2)
    compiled, warning = cache.run()  # removes the folder
    assert (compiled, "cannot be written" in warning) == (1, True)


def test_a_relative_folder_that_looks_like_an_option(cache: Cache) -> None:
    cache.root = cache.folder / "-Wcache"
    assert cache.run(MDCG_CACHE_DIR="-Wcache") == (1, "")
    assert cache.binary.is_file()
