"""The rooms of the package and who may import whom, file sizes, and what may stand in no file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from .processes import printed_by

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mdcg"
MAX_LINES = 600

# Single modules at the top of the package. Errors and version may be imported everywhere.
EVERYWHERE = {"errors", "_version"}

# room -> rooms and single modules of mdcg that it may import besides itself and EVERYWHERE.
ROOMS: dict[str, set[str]] = {
    "problem": {"_core"},
    "plan": {"problem"},
    "codegen": {"problem", "plan", "_core"},
    "runtime": {"_core", "env"},
    "ops": {"problem", "plan", "codegen", "runtime", "_core", "env"},
    "patch": {"_core", "ops", "problem", "env"},
    "package": {"problem", "plan", "codegen", "runtime", "patch", "_core", "env"},
    "calculators": {"_core", "runtime", "package", "patch", "ops", "problem", "env"},
    "bench": {"runtime", "patch", "package", "calculators", "_core", "env", "lammps_plugin"},
    "cli": {
        *("problem", "plan", "codegen", "runtime", "ops", "patch", "package", "calculators"),
        *("bench", "_core", "env", "lammps_plugin"),
    },
    # Single modules follow the same rule.
    "__init__": {"problem", "ops", "patch", "package", "calculators"},
    "__main__": {"cli"},
    "_core": set(),
    "_version": set(),
    "env": set(),
    "nequip_extension": {"patch"},
    "lammps_plugin": {"runtime", "_core"},
    "openmm": {"calculators"},
    "torchsim": {"_core", "calculators"},
    "errors": set(),
}

# room -> packages besides the standard library. Frameworks: see FRAMEWORKS.
THIRD_PARTY: dict[str, set[str]] = {
    "problem": {"numpy"},
    "plan": {"numpy"},
    "codegen": {"numpy"},
    "runtime": {"numpy"},
    "ops": {"numpy", "torch"},
    "patch": {"numpy", "torch", "ase"},
    "package": {"ase", "numpy", "safetensors", "scipy", "torch"},
    "calculators": {"numpy", "torch", "ase"},
    "bench": {"ase", "numpy", "scipy", "torch"},
    "cli": {"numpy", "torch", "ase", "matplotlib", "tqdm"},
    "openmm": {"numpy", "ase", "openmm"},
    "torchsim": {"numpy", "torch", "torch_sim"},
}

# Host frameworks are optional: imported inside functions, in the rooms and files named here.
FRAMEWORKS = {
    *("mace", "nequip", "e3nn", "sevenn", "nequix"),
    *("cuequivariance", "cuequivariance_torch", "cuequivariance_ops_torch", "openequivariance"),
    "graph_longrange",
    "tad_dftd3",
    "tad_mctc",
}
FRAMEWORK_ROOMS = {"patch", "package", "nequip_extension"}

# The generator's rooms are deterministic and touch nothing outside their arguments.
PURE_ROOMS = {"problem", "plan", "codegen"}
IMPURE_MODULES = {
    *("builtins", "ctypes", "datetime", "fcntl", "glob", "http", "importlib", "io", "logging"),
    *("mmap", "multiprocessing", "os", "pathlib", "pickle", "platform", "random", "secrets"),
    *("shelve", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile"),
    *("threading", "time", "urllib", "uuid"),
}
# The templates of kernels are real files beside the generator; reading them is no input.
PACKAGE_TEXT = "importlib.resources"
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "id", "hash"}

# Loading these takes seconds, so `import mdcg` and reading arguments must not.
HEAVY = {"torch", "ase", "matplotlib", "scipy"} | FRAMEWORKS

# Assembled from pieces, so that this file does not contain what it looks for.
REGISTRIES = re.compile(
    "|".join(
        (
            r"py" + r"pi\.org",
            r"python" + r"hosted\.org",
            r"download\.py" + r"torch\.org",
            r"anaconda" + r"\.(?:org|com)",
            r"npm" + r"js\.(?:org|com)",
            r"crates" + r"\.io",
            r"(?:extra-)?index" + r"-url",
            r"find" + r"-links",
            r"/sim" + r"ple/",
        )
    ),
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Import:
    """One import: dotted absolute name, line, and whether it runs when the module is loaded."""

    name: str
    line: int
    at_load: bool

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    @property
    def room(self) -> str | None:
        """The room or module of mdcg that is imported; None for the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else None


def python_modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def absolute_names(node: ast.AST, path: Path) -> list[str]:
    """Return what a statement or call imports, as absolute dotted names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = path.relative_to(ROOT).parent.parts
            kept = package[: len(package) - node.level + 1]
            base = ".".join((*kept, base) if base else kept)
        if base == "mdcg" or not node.module:  # the room, or the module, is among the names
            return [f"{base}.{alias.name}" for alias in node.names]
        return [base]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        name = node.args[0].value
        if called in ("import_module", "__import__") and isinstance(name, str) and name:
            return [name if not name.startswith(".") else f"mdcg{name}"]
    return []


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path) -> list[Import]:
    """Return all imports of a module, those inside functions and strings included."""

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for name in absolute_names(node, path):
            yield Import(name, getattr(node, "lineno", 0), at_load)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            at_load = False
        at_load = at_load and not for_type_checkers(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_load)

    return list(walk(ast.parse(path.read_text(encoding="utf-8")), True))


def all_imports() -> list[tuple[Path, str, Import]]:
    return [(path, room_of(path), found) for path in python_modules() for found in imports(path)]


def tracked_files() -> list[Path]:
    """Return the files under version control or about to be; without git, the source folders'."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        folders = [ROOT / name for name in ("mdcg", "csrc", "tests", "examples")]
        found = [*ROOT.glob("*.*"), *(path for each in folders for path in each.rglob("*"))]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_every_room_has_a_rule() -> None:
    unknown = {room_of(path) for path in python_modules()} - set(ROOMS)
    assert not unknown, f"rooms without a rule in ROOMS: {sorted(unknown)}"


def test_rooms_import_only_the_rooms_allowed() -> None:
    wrong = [
        f"{where(path, found.line)}: {room} may not import mdcg.{found.room}"
        for path, room, found in all_imports()
        if found.top == "mdcg"
        and found.room is not None
        and found.room not in {room} | ROOMS.get(room, set()) | EVERYWHERE
        and (PACKAGE / found.room).with_suffix(".py").exists() | (PACKAGE / found.room).is_dir()
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions and for type checkers count too, those of whole rooms do not."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in python_modules()}
    below: dict[str, set[str]] = {}
    for path in python_modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        below[name] = {found.name for found in imports(path)} & modules
    found = set()
    for name in below:
        reached, new = set(), below[name]
        while new:
            reached |= new
            new = set().union(*(below[each] for each in new)) - reached
        found |= {name} if name in reached else set()
    assert not found, sorted(found)


def test_rooms_import_only_the_packages_allowed() -> None:
    known = set(sys.stdlib_module_names) | {"mdcg"} | FRAMEWORKS
    wrong = [
        f"{where(path, found.line)}: {room} may not import {found.top}"
        for path, room, found in all_imports()
        if found.top not in known and found.top not in THIRD_PARTY.get(room, set())
    ]
    assert not wrong, "\n".join(wrong)


def test_frameworks_are_imported_lazily_and_only_in_adapters() -> None:
    wrong = [
        f"{where(path, found.line)}: {found.top} must be imported inside a function of "
        f"{', '.join(sorted(FRAMEWORK_ROOMS))}"
        for path, room, found in all_imports()
        if found.top in FRAMEWORKS and (found.at_load or room not in FRAMEWORK_ROOMS)
    ]
    assert not wrong, "\n".join(wrong)


def test_generator_rooms_do_no_input_or_output() -> None:
    wrong = []
    for path in python_modules():
        if room_of(path) not in PURE_ROOMS:
            continue
        wrong += [
            f"{where(path, found.line)}: imports {found.name}"
            for found in imports(path)
            if found.top in IMPURE_MODULES and found.name != PACKAGE_TEXT
        ]
        wrong += [
            f"{where(path, node.lineno)}: calls {node.func.id}()"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module", ["mdcg", "mdcg.cli", "mdcg.problem", "mdcg.plan", "mdcg.codegen"]
)
def test_import_brings_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    loaded = printed_by(code).split()
    assert not loaded, f"import {module} loads {loaded}"


def test_library_never_prints_or_exits() -> None:
    wrong = [
        f"{where(path, node.lineno)}: {ast.unparse(node.func)}() in a library module"
        for path in python_modules()
        if room_of(path) not in ("cli", "__main__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "exit", "quit", "input", "sys.exit", "os._exit")
    ]
    assert not wrong, "\n".join(wrong)


def test_own_variables_are_read_in_one_module() -> None:
    read = re.compile(r"""(?:environ(?:\.get|\.pop|\.setdefault)?|getenv)[\[(]['"]MDCG_""")
    wrong = [
        f"{where(path, node.lineno)}: read variables of mdcg in mdcg/env.py"
        for path in python_modules()
        if room_of(path) != "env"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Subscript, ast.Call)) and read.search(ast.unparse(node))
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


# csrc folder -> what its headers and sources may include from elsewhere in csrc.
CSRC: dict[str, set[str]] = {
    "include": set(),
    "core": {"core"},
    "kernels": {"kernels"},
    "engine": {"core", "engine", "kernels"},
    "python": {"core", "engine", "kernels", "python"},
}
TORCH_HEADER = re.compile(r"torch/|ATen/|c10/|caffe2/")
PYTHON_HEADER = re.compile(r"pybind11/|Python\.h")
GPU_HEADER = re.compile(r"cuda(_runtime|_runtime_api)?\.h|nvrtc\.h|cublas\w*\.h")
# Everything else reaches devices through core/device.hpp.
DRIVER_HEADER = "core/cuda_functions.hpp"
DRIVER_SOURCES = {"cuda_device.cpp", "cuda_memory.cpp"}
# A library that holds a libstdc++ of its own crashes where it prints a number through these.
STREAM_HEADER = re.compile(r"\w*(stream|streambuf)$|iomanip$|ios(fwd)?$|locale$|print$|format$")


def test_csrc_includes() -> None:
    wrong = []
    paths = [path for top in ("csrc", "lammps_plugin") for path in sorted((ROOT / top).rglob("*"))]
    for path in paths:
        if path.suffix not in (".cpp", ".hpp", ".h", ".cu", ".cuh"):
            continue
        folder = path.relative_to(ROOT / "csrc").parts[0] if ROOT / "csrc" in path.parents else ""
        text = path.read_text(encoding="utf-8")
        for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
            bad = any(p.match(header) for p in (TORCH_HEADER, GPU_HEADER, STREAM_HEADER))
            bad = bad or (folder != "python" and PYTHON_HEADER.match(header))
            other = header.split("/")[0]
            bad = bad or (other in CSRC and other not in CSRC.get(folder, {other}))
            bad = bad or (header == DRIVER_HEADER and path.name not in DRIVER_SOURCES)
            if bad:
                wrong.append(f"{path.relative_to(ROOT)}: includes {header}")
    assert not wrong, "\n".join(wrong)


# Rooms of the engine, each with the rooms below it that its files may include. Files of the engine
# itself (".") hold what runs a program, and the interface that operations implement.
ENGINE_ROOMS: dict[str, set[str]] = {
    "package": {"."},
    "kernels": {".", "package"},
    "backend/cpu": {"edges"},
    "edges": {".", "package", "backend/cpu"},
    "neighbors": {".", "backend/cpu"},
    "cuda": {".", "package", "kernels", "backend/cpu", "edges", "neighbors"},
    ".": {"package", "kernels", "backend/cpu", "neighbors", "cuda"},
    "ops/node": {".", "package", "kernels", "backend/cpu", "cuda"},
    "ops/conv": {".", "package", "kernels", "backend/cpu", "edges", "cuda", "ops/node"},
    "ops/pair": {".", "package", "backend/cpu", "edges", "neighbors", "cuda", "ops/node"},
    "ops/system": {".", "package", "backend/cpu", "edges", "neighbors", "cuda"},
}


def test_rooms_of_the_engine() -> None:
    engine = ROOT / "csrc" / "engine"

    def engine_room(path: str) -> str:
        return next((room for room in ENGINE_ROOMS if path.startswith(room + "/")), ".")

    wrong = []
    for path in sorted(engine.rglob("*.?pp")):
        name = path.relative_to(engine).as_posix()
        room = engine_room(name)
        for header in re.findall(r'#include "engine/([^"]+)"', path.read_text(encoding="utf-8")):
            if engine_room(header) not in ENGINE_ROOMS[room] | {room}:
                wrong.append(f"{name} includes {header}")
    assert not wrong, "\n".join(wrong)


# Kernels are files of csrc/kernels: Python prints their tables, and `emit` the line of an
# instance.
PRINTS_CUDA = {"common/emit.py"}  # the line that instantiates a template
CUDA_WORD = re.compile(
    r"__(?:global|shared|device)__|__syncthreads|__shfl|__ldg|(?:thread|block)Idx"
)


def test_python_prints_no_text_of_kernels() -> None:
    folder = PACKAGE / "codegen"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if CUDA_WORD.search(path.read_text(encoding="utf-8"))
    }
    assert found - PRINTS_CUDA == set()
    assert PRINTS_CUDA - found == set(), "these print no CUDA any more"


def test_braces_enclose_pragmas_behind_constant_conditions() -> None:
    """NVRTC 13 leaves out statements behind ``if constexpr`` and a pragma without braces."""
    wrong = [
        f"{path.relative_to(ROOT)}: {found.strip()}"
        for path in sorted((ROOT / "csrc/kernels").rglob("*.cuh"))
        for found in re.findall(
            r"\bif constexpr[^;{}]*\)\s*\n#pragma", path.read_text(encoding="utf-8")
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_no_source_file_is_too_long() -> None:
    suffixes = {".py", ".pyi", ".cpp", ".hpp", ".h", ".cu", ".cuh", ".sh", ".toml", ".cmake"}
    wrong = []
    for path in tracked_files():
        if path.suffix in suffixes:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MAX_LINES:
                wrong.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_LINES}")
    assert not wrong, "\n".join(wrong)


# Characters that a document may have, so that a reader finds the present state and no history.
DOCUMENT_SIZES = {
    "README.md": 8_000,
    "CHANGELOG.md": 4_000,
    "CONTRIBUTING.md": 10_000,
    "docs/benchmarks.md": 15_000,
    "docs/design.md": 12_000,
}


@pytest.mark.parametrize(("name", "most"), DOCUMENT_SIZES.items())
def test_documents_are_short(name: str, most: int) -> None:
    found = len((ROOT / name).read_text(encoding="utf-8"))
    assert found <= most, f"{name} has {found} characters, at most {most}"


def test_the_top_level_holds_the_documents_that_belong_there() -> None:
    known = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert {path.name for path in ROOT.glob("*.md")} == known


def defined_in(module: str) -> set[str] | None:
    """Return the names that a module of this tree defines; None for other modules."""
    if module == "mdcg._core":
        return set(dir(pytest.importorskip(module, reason="the compiled module is not built")))
    base = ROOT / Path(*module.split("."))
    places = [base / "__init__.py", base.with_suffix(".py")]
    file = next((path for path in places if path.is_file()), None)
    if file is None:
        return {path.stem for path in base.iterdir()} if base.is_dir() else None
    found = {path.stem for path in base.iterdir()} if base.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and file.name == "__init__.py":
            found.add(str(node.value))  # loaded when it is first asked for
    return found


def test_tests_import_only_what_is_there() -> None:
    """Type checkers do not read tests, and files of cases are imported by other processes."""
    known = cache(defined_in)
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        package = path.relative_to(ROOT).parent.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            if module.split(".")[0] not in ("mdcg", "tests"):
                continue
            names = known(module)
            for alias in node.names:
                if names is None or alias.name not in names:
                    wrong.append(f"{where(path, node.lineno)}: {module} has no {alias.name}")
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_package_registry() -> None:
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # checkpoints and pictures
        if path.suffix in (".xyz", ".svg"):
            continue
        wrong += [
            f"{where(path, number)}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if REGISTRIES.search(line)
        ]
    assert not wrong, "\n".join(wrong)


def written_version() -> str:
    found = re.search(r'__version__ = "([^"]+)"', (PACKAGE / "_version.py").read_text())
    assert found is not None
    return found[1]


def test_version_has_one_source() -> None:
    version = written_version()
    for name in ("pyproject.toml", "CMakeLists.txt"):
        assert version not in re.findall(r'version\W+"?([0-9.]+)', (ROOT / name).read_text())
    # NOTES: the compiled module takes it from the build, so an old build is seen here.
    core = pytest.importorskip("mdcg._core", reason="the compiled module is not built")
    assert getattr(core, "__version__", version) == version


def test_version_tag_and_changelog_agree() -> None:
    command = ["git", "describe", "--tags", "--exact-match", "--match", "v*"]
    tag = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    version, changelog = written_version(), (ROOT / "CHANGELOG.md").read_text()
    assert tag in ("", f"v{version}")
    newest = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0]
    assert newest in ({version} if tag else {version, "Unreleased"})
