"""The Fortran interfaces, which must be those of mdcg.h, and the example in Fortran."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest

import mdcg
from mdcg import MDCGCalculator

from .test_c_api import FOLDER, HEADERS, ROOT, WATER, compile_c

HEADER, MODULE = HEADERS / "mdcg.h", HEADERS / "mdcg.f90"
NUMBERS = {
    "int": "integer(c_int)",
    "mdcg_status": "integer(c_int)",
    "size_t": "integer(c_size_t)",
    "int64_t": "integer(c_int64_t)",
    "double": "real(c_double)",
    "unsigned char": "integer(c_signed_char)",
}


def test_the_module_is_installed() -> None:
    assert (Path(mdcg.__path__[0]) / "include" / "mdcg.f90").read_text() == MODULE.read_text()


# -- the interfaces --------------------------------------------------------------------------------


def split(declarations: str) -> list[str]:
    """Return what commas outside of parentheses separate."""
    parts = re.split(r",\s*(?![^(]*\))", " ".join(declarations.split()))
    return [part for part in parts if part and part != "void"]


def taken_apart(declaration: str) -> tuple[str, str]:
    """Return the type of C and the name that a declaration has."""
    if pointer := re.search(r"\(\*(\w+)\)", declaration):
        return "function", pointer[1]
    *kind, name = declaration.replace("*", "* ").split()
    return " ".join(kind).replace("const ", "").replace(" *", "*"), name


def field_of(declaration: str) -> tuple[str, str]:
    kind, name = taken_apart(declaration)
    name = name.replace("[", "(").replace("]", ")")
    if kind == "function":
        return name, "type(c_funptr)"
    return name, "type(c_ptr)" if kind.endswith("*") else NUMBERS[kind]


def argument_of(declaration: str) -> tuple[str, str]:
    kind, name = taken_apart(declaration)
    if kind in NUMBERS:
        return name, f"{NUMBERS[kind]}, value"
    if kind == "function":
        return name, "type(c_funptr), value"
    if kind == "mdcg_model**":
        return name, "type(c_ptr), intent(out)"
    if kind in ("mdcg_model*", "void*"):
        return name, "type(c_ptr), value"
    if kind in ("char*", "int64_t*"):
        of = "character(kind=c_char)" if kind == "char*" else NUMBERS["int64_t"]
        return f"{name}(*)", f"{of}, intent(in)"
    intent = "in" if declaration.startswith("const") else "inout"
    return name, f"type({kind.removesuffix('*')}), intent({intent})"


def interface_of_c(header: str) -> dict[str, Any]:
    """Return what a header declares, in the words of Fortran."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    found: dict[str, Any] = {}
    (found["version"],) = re.findall(r"#define MDCG_ABI_VERSION (\d+)", text)
    (numbers,) = re.findall(r"typedef enum mdcg_status \{(.*?)\}", text, re.DOTALL)
    found["status"] = [part.strip().lower() for part in numbers.split(",")]
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL):
        fields = []
        for line in filter(None, map(str.strip, body.split(";"))):
            first, *others = split(line)
            kind = first.split()[0]
            fields += [field_of(first), *(field_of(f"{kind} {other}") for other in others)]
        found[name] = fields
    for line in re.findall(r"^MDCG_API (.*?);", text, re.DOTALL | re.MULTILINE):
        before, _, arguments = line.partition("(")
        kind, name = taken_apart(before)
        result = {"void": "", "char*": "type(c_ptr)"}.get(kind) if kind not in NUMBERS else None
        result = NUMBERS[kind] if result is None else result
        found[name] = result, [argument_of(each) for each in split(arguments[:-1])]
    return found


def interface_of_fortran(module: str) -> dict[str, Any]:
    """Return what the module declares; arguments that may be left out are as others."""
    found: dict[str, Any] = {}
    (found["version"],) = re.findall(r"parameter :: mdcg_abi = (\d+)", module)
    found["status"] = re.findall(r"enumerator :: (\w+ = \d+)", module)
    for name, body in re.findall(r"type, bind\(c\) :: (\w+)\n(.*?)end type", module, re.DOTALL):
        lines = (line.strip().partition(" :: ") for line in body.splitlines() if line.strip())
        found[name] = [(rest.partition(" = ")[0], kind) for kind, _, rest in lines]
    routine = r"(function|subroutine) (mdcg_\w+)\(([^)]*)\) bind\(c\)\n +import\n(.*?)end \1"
    for _, name, arguments, body in re.findall(routine, module, re.DOTALL):
        lines = (line.strip().partition(" :: ") for line in body.splitlines() if line.strip())
        declared = {of.partition("(")[0]: (of, kind) for kind, _, of in lines}
        _, result = declared.pop(name, ("", ""))
        kinds = [declared[each] for each in split(arguments)]
        assert len(declared) == len(kinds)
        found[name] = result, [(of, kind.removesuffix(", optional")) for of, kind in kinds]
    return found


def test_interfaces_are_those_of_the_header() -> None:
    found = interface_of_fortran(MODULE.read_text())
    assert found == interface_of_c(HEADER.read_text())
    assert len(found) == 2 + 9 + 20
    assert found["mdcg_evaluate"] == (
        "integer(c_int)",
        [
            ("model", "type(c_ptr), value"),
            ("system", "type(mdcg_system), intent(in)"),
            ("communicator", "type(mdcg_communicator), intent(in)"),
            ("results", "type(mdcg_results), intent(in)"),
        ],
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MDCG_ABI_VERSION 2", "MDCG_ABI_VERSION 3"),
        ("MDCG_ERROR_DEVICE = 9,", "MDCG_ERROR_DEVICE = 12,"),
        ("int fixed_waves;", "int fixed_waves; int fixed_cell;"),
        ("int64_t num_inner;", "int num_inner;"),
        ("int (*gather)(", "int64_t (*collect)("),
        ("int64_t edges, shifts;", "int64_t shifts, edges;"),
        ("mdcg_model* model, int threads)", "mdcg_model* model, int threads, int nodes)"),
        ("mdcg_model* model, int threads)", "mdcg_model* model, int64_t threads)"),
        ("MDCG_API void mdcg_close", "MDCG_API int mdcg_close"),
        ("mdcg_last_error(void);", "mdcg_last_error(void);\nMDCG_API int mdcg_new(void);"),
    ],
)
def test_a_change_of_the_header_is_noticed(old: str, new: str) -> None:
    header = HEADER.read_text()
    assert header.count(old) == 1
    assert interface_of_c(header.replace(old, new)) != interface_of_fortran(MODULE.read_text())


# -- the example -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dynamics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gfortran")
    if compiler is None:
        pytest.skip("gfortran is not installed: sudo apt install gfortran")
    folder = tmp_path_factory.mktemp("fortran")
    strict = ["-std=f2018", "-Wall", "-Wextra", "-Wconversion", "-Wno-c-binding-type", "-Werror"]
    command = [compiler, *strict, "-J", str(folder), str(MODULE), "examples/dynamics.f90"]
    library = [str(FOLDER / "libmdcg.so"), f"-Wl,-rpath,{FOLDER}"]
    subprocess.run([*command, "-o", str(folder / "dynamics"), *library], cwd=ROOT, check=True)
    return folder / "dynamics"


def test_trajectory_of_the_example_in_c(dynamics: Path, tmp_path: Path) -> None:
    """Both print the same numbers; energy, forces and stress of the last step are ASE's."""
    compile_c(ROOT / "examples" / "dynamics.c", tmp_path / "in_c")
    said = []
    for program in (dynamics, tmp_path / "in_c"):
        last = tmp_path / f"{program.name}.xyz"
        command = [program, WATER / "water.mdcg", WATER / "water192.xyz", "110", last]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said.append(re.sub(r", \d+ lists in 110 steps", "", done.stdout).splitlines()[1:])
    assert said[0] == said[1]
    assert [line.split()[0] for line in said[0]] == ["step", "0", "100", "110", "total"]
    ends = [ase.io.read(tmp_path / f"{name}.xyz") for name in ("dynamics", "in_c")]
    np.testing.assert_allclose(ends[0].positions, ends[1].positions, rtol=0, atol=1e-9)
    energy, forces = ends[0].get_potential_energy(), ends[0].get_forces()
    stress, energies = ends[0].get_stress(), ends[0].get_potential_energies()
    ends[0].calc = MDCGCalculator(WATER / "water.mdcg", skin=0.0)
    ends[0].pbc = True
    assert energy == pytest.approx(ends[0].get_potential_energy(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(forces, ends[0].get_forces(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(energies, ends[0].get_potential_energies(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(stress, ends[0].get_stress(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("package", "file", "steps", "sentence"),
    [
        ("nowhere.mdcg", "water192.xyz", "1", "opening: {}/nowhere.mdcg: cannot be opened: No"),
        ("copper.mdcg", "water192.xyz", "1", "O: the model does not know this type"),
        ("water.mdcg", "nowhere.xyz", "1", "{}/nowhere.xyz: cannot be opened"),
        ("water.mdcg", "water.mdcg", "1", "{}/water.mdcg: the first line is not a number of atoms"),
        ("water.mdcg", "water192.xyz", "many", "many: is not a number of steps"),
    ],
)
def test_example_refuses(
    package: str, file: str, steps: str, sentence: str, dynamics: Path, tmp_path: Path
) -> None:
    command = [dynamics, WATER / package, WATER / file, steps, tmp_path / "last.xyz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(sentence.format(WATER))
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "last.xyz").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("Lattice", "Cell"), 'the second line has no Lattice="ax ay ... cz"'),
        (("192\n", "193\n"), "an atom is missing"),
        (("\nO ", "\nC "), "C: the model does not know this type"),
    ],
)
def test_structures_that_the_example_refuses(
    change: tuple[str, str], sentence: str, dynamics: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start.xyz"
    start.write_text((WATER / "water192.xyz").read_text().replace(*change, 1))
    command = [dynamics, WATER / "water.mdcg", start, "1", tmp_path / "last.xyz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr


def test_geometry_that_the_library_refuses(dynamics: Path, tmp_path: Path) -> None:
    """The library's sentence reaches the user."""
    text = (WATER / "water192.xyz").read_text().splitlines()
    text[3] = " ".join(["H", *text[2].split()[1:]])  # on top of the atom before
    (tmp_path / "start.xyz").write_text("\n".join(text) + "\n")
    command = [dynamics, WATER / "water.mdcg", tmp_path / "start.xyz", "1", tmp_path / "last.xyz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("evaluating: ")
    assert done.stderr.count("\n") == 1
