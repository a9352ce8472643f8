"""Runs LAMMPS on small systems and reads back what it found."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mdcg import MDCGCalculator

DATA = Path(__file__).resolve().parents[1] / "data"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MASSES = {"H": 1.008, "O": 15.999, "Ar": 39.95}
TOLERANCE = {"float64": 1e-10, "float32": 5e-5}
BAR = 1.6021765e6  # LAMMPS' bar in eV/Å^3, units metal
TIMEOUT = 120
PRESSURE = {"Pxx", "Pyy", "Pzz", "Pxy", "Pxz", "Pyz"}

Array = NDArray[np.float64]


def package(name: str, dtype: str) -> Path:
    return DATA / f"{name}_water_{dtype}.mdcg"


def environment() -> dict[str, str]:
    """Return the environment that LAMMPS runs in: one thread, and the libraries of pip's MPICH."""
    from mdcg.lammps_plugin import build, find_lammps

    env = {name: value for name, value in os.environ.items() if name != "LAMMPS_PLUGIN_PATH"}
    env |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    # There may be more ranks than cores, so waiting ranks must not spin.
    env |= {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    env["LAMMPS_PLUGIN_PATH"] = str(build(find_lammps()).parent)
    env["LD_LIBRARY_PATH"] = str(_prefix() / "lib")
    return env


def executable() -> Path:
    spec = util.find_spec("lammps")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lmp"


def _prefix() -> Path:
    """Return the environment with LAMMPS and MPICH; 'both' has the packages of 'mace'."""
    return executable().parents[4]


def launcher(ranks: int) -> list[str]:
    return [] if ranks == 1 else [str(_prefix() / "bin" / "mpiexec"), "-n", str(ranks)]


def water(n: int = 3, *, spacing: float = 3.1036, seed: int = 1) -> Atoms:
    """Return n^3 molecules of any orientation on a cubic grid, O H H each."""
    rng = np.random.default_rng(seed)
    molecule = np.array([[0.0, 0.0, 0.0], [0.757, 0.586, 0.0], [-0.757, 0.586, 0.0]])
    positions = []
    for place in np.ndindex(n, n, n):
        rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        positions.append((np.array(place) + 0.5) * spacing + molecule @ rotation.T)
    atoms = Atoms("OHH" * n**3, np.concatenate(positions), cell=[n * spacing] * 3, pbc=True)
    atoms.wrap()
    return atoms


def molecule_in_a_corner() -> Atoms:
    """Return a molecule in a large open box: of four ranks along x one has ghosts alone."""
    atoms = water(1, seed=8)
    atoms.positions += 0.8 - atoms.positions.min(axis=0)
    atoms.positions[:, 0] += 4.0
    atoms.set_cell([24.0] * 3)
    atoms.pbc = False
    return atoms


def water_with_a_short_edge() -> Atoms:
    """Return a box with an edge, on the first of two ranks, too short for radial tables."""
    atoms = water(3, seed=3)
    inside = np.argmin(np.abs(atoms.positions - [2.0, 4.6, 4.6]).sum(axis=1))
    atoms.positions[inside + 1] = atoms.positions[inside] + [0.05, 0.0, 0.0]
    return atoms


def flat_water() -> Atoms:
    """Return a layer of molecules in a box so low that periodic images along z would touch it."""
    rng = np.random.default_rng(3)
    positions = []
    for place in np.ndindex(2, 2):
        angle = rng.uniform(0.0, 2.0 * np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        molecule = np.array([[0.0, 0.0], [0.757, 0.586], [-0.757, 0.586]]) @ turn
        positions.append((np.array(place) + 0.5) * 3.3 + molecule)
    flat = np.concatenate(positions)
    atoms = Atoms("OHH" * 4, np.column_stack([flat, np.zeros(len(flat))]), cell=[6.6, 6.6, 2.0])
    atoms.set_celldisp([0.0, 0.0, -1.0])  # LAMMPS wants the atoms inside
    atoms.pbc = (True, True, False)
    atoms.wrap()
    return atoms


def write_data(path: Path, atoms: Atoms, types: Sequence[str] = ("H", "O")) -> None:
    """Write a data file; the cell must be lower triangular, as LAMMPS wants it."""
    cell, low = atoms.cell.array, atoms.get_celldisp().ravel()
    assert np.allclose(cell, np.tril(cell))
    lines = ["made for tests", "", f"{len(atoms)} atoms", f"{len(types)} atom types", ""]
    for k, axis in enumerate("xyz"):
        lines.append(f"{low[k]:.17g} {low[k] + cell[k, k]:.17g} {axis}lo {axis}hi")
    if cell[1, 0] or cell[2, 0] or cell[2, 1]:
        lines.append(f"{cell[1, 0]:.17g} {cell[2, 0]:.17g} {cell[2, 1]:.17g} xy xz yz")
    lines += ["", "Masses", ""]
    lines += [f"{i} {MASSES[name]}" for i, name in enumerate(types, 1)]
    lines += ["", "Atoms # atomic", ""]
    for i, (symbol, (x, y, z)) in enumerate(zip(atoms.symbols, atoms.positions, strict=True), 1):
        lines.append(f"{i} {types.index(symbol) + 1} {x:.17g} {y:.17g} {z:.17g}")
    path.write_text("\n".join(lines) + "\n")


def write_molecules(path: Path, atoms: Atoms) -> None:
    write_data(path, atoms)
    count = len(atoms) // 3
    lines = with_columns(path, "bond", lambda k: f"{k // 3 + 1}")
    lines[2] += (
        f"\n{2 * count} bonds\n1 bond types\n2 extra bond per atom\n4 extra special per atom"
    )
    lines += ["", "Bonds", ""]
    for m in range(count):
        lines += [f"{2 * m + h} 1 {3 * m + 1} {3 * m + 1 + h}" for h in (1, 2)]
    path.write_text("\n".join(lines) + "\n")


def with_columns(path: Path, style: str, columns: Callable[[int], str]) -> list[str]:
    """Return the lines of a data file for another atom_style, columns added after the id."""
    lines = path.read_text().replace("Atoms # atomic", f"Atoms # {style}").splitlines()
    start = lines.index(f"Atoms # {style}") + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    for k in range(end - start):
        number, rest = lines[start + k].split(maxsplit=1)
        lines[start + k] = f"{number} {columns(k)} {rest}"
    return lines


@dataclass
class Output:
    """The printed text and the files of one LAMMPS run."""

    code: int
    text: str
    folder: Path
    runs: list[dict[str, Array]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, float]:
        """Thermodynamic output at the end of the last run."""
        return {name: float(column[-1]) for name, column in self.runs[-1].items()}

    def dump(self, name: str = "out.dump") -> list[Array]:
        """Return per-atom columns of each frame, sorted by number as LAMMPS wrote them."""
        frames: list[Array] = []
        lines = (self.folder / name).read_text().splitlines()
        while lines:
            count = int(lines[3])
            frames.append(np.array([line.split() for line in lines[9 : 9 + count]], dtype=float))
            lines = lines[9 + count :]
        return frames


def thermo_tables(text: str) -> list[dict[str, Array]]:
    tables: list[dict[str, Array]] = []
    names: list[str] | None = None
    rows: list[list[float]] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["Step"]:
            names, rows = words, []
        elif line.startswith("Loop time") and names is not None:
            tables.append(dict(zip(names, np.array(rows).T, strict=True)))
            names = None
        elif names is not None and len(words) == len(names):
            try:
                rows.append([float(word) for word in words])
            except ValueError:
                continue  # a warning between the rows
    return tables


def run_input(
    folder: Path,
    text: str,
    *,
    ranks: int = 1,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    check: bool = True,
    first: str = "",
) -> Output:
    """Run an input; what hangs is ended and fails.

    `first` are commands of a shell that each rank runs before; PMI_RANK is its number.
    """
    (folder / "in.test").write_text(text)
    command = [*launcher(ranks), *(["sh", "-c", f'{first}\nexec "$0" "$@"'] if first else [])]
    command += [str(executable()), "-in", "in.test", "-log", "none", *options]
    for _ in range(3):
        process = subprocess.run(
            command,
            cwd=folder,
            env=env or environment(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
        # On busy machines MPICH's launcher itself was seen to end before LAMMPS has begun.
        if process.returncode == 0 or "LAMMPS (" in process.stdout:
            break
    printed = process.stdout + process.stderr
    if check:
        assert process.returncode == 0, printed[-4000:]
    return Output(process.returncode, printed, folder, thermo_tables(process.stdout))


THERMO = """
compute epot all pe/atom
compute vir all stress/atom NULL virial
compute p all pressure NULL virial
compute esum all reduce sum c_epot
compute vsum all reduce sum c_vir[*]
thermo_style custom step pe etotal vol c_esum c_p[*] c_vsum[*]
thermo_modify format float %.17g lost error
thermo 1
"""
DUMP = """
dump d all custom 1 out.dump id fx fy fz c_epot c_vir[*]
dump_modify d sort id format float %.17g
"""


def nve(every: int) -> str:
    """Return the lines of a trajectory, of which every so many steps are printed."""
    return f"""
thermo_style custom step pe ke etotal pxx pyy pzz pxy pxz pyz
thermo_modify format float %.17g
thermo {every}
timestep 0.0003
velocity all create 300 4711 loop geom
fix nve all nve
"""


def head(
    model: Path,
    *,
    boundary: str = "p p p",
    units: str = "metal",
    types: str = "H O",
    before: str = "",
    data: str = "test.data",
    settings: str = "",
) -> str:
    """Return the beginning of an input."""
    return f"""
units {units}
atom_style atomic
atom_modify map yes
boundary {boundary}
newton on
{before}
read_data {data}
pair_style {" ".join(["mdcg", settings]).strip()}
pair_coeff * * {model} {types}
neighbor 1.0 bin
"""


def single_point(
    folder: Path, atoms: Atoms, model: Path, *, ranks: int = 1, **given: str
) -> Output:
    """Evaluate once: global and per-atom energy and virial, forces."""
    write_data(folder / "test.data", atoms)
    return run_input(folder, head(model, **given) + THERMO + DUMP + "run 0\n", ranks=ranks)


def reference(atoms: Atoms, model: Path, **options: Any) -> dict[str, Any]:
    """Return what ASE finds with the same package."""
    atoms = atoms.copy()
    atoms.calc = MDCGCalculator(model, threads=1, skin=1.0, **options)  # LAMMPS' neighbor 1.0
    found = {
        "energy": atoms.get_potential_energy(),
        "energies": atoms.get_potential_energies(),
        "forces": atoms.get_forces(),
    }
    if all(atoms.pbc):
        # LAMMPS' order: xx yy zz xy xz yz
        found["virial"] = -atoms.get_stress()[[0, 1, 2, 5, 4, 3]] * atoms.get_volume()
    return found


def compare(output: Output, want: dict[str, Any], tolerance: float) -> None:
    """Compare with ASE, and sums over atoms with the whole."""
    last, atoms = output.last, output.dump()[-1]
    scale = max(1.0, np.abs(want["energies"]).sum())
    force = max(1.0, np.abs(want["forces"]).max())
    np.testing.assert_allclose(last["PotEng"], want["energy"], rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(atoms[:, 4], want["energies"], rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(atoms[:, 1:4], want["forces"], rtol=0, atol=tolerance * force)
    assert np.abs(atoms[:, 1:4].sum(axis=0)).max() < tolerance * force * len(atoms)
    virial = np.array([last[f"c_p[{k}]"] for k in range(1, 7)]) * last["Volume"] / BAR
    spread = max(1.0, np.abs(atoms[:, 5:]).sum() / BAR)
    np.testing.assert_allclose(last["c_esum"], last["PotEng"], rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(-atoms[:, 5:].sum(axis=0) / BAR, virial, rtol=0, atol=1e-11 * spread)
    if "virial" in want:
        np.testing.assert_allclose(virial, want["virial"], rtol=0, atol=tolerance * spread)


def same(got: Output, want: Output, tolerance: float = 1e-10) -> None:
    """Check what two runs printed; the components of the pressure are compared as one tensor."""
    assert len(got.runs) == len(want.runs)
    for mine, other in zip(got.runs, want.runs, strict=True):
        assert list(mine) == list(other)
        largest = {name: float(np.abs(column).max()) for name, column in other.items()}
        pressure = max((largest[name] for name in PRESSURE & set(other)), default=0.0)
        for name, column in other.items():
            scale = max(1.0, pressure if name in PRESSURE else largest[name])
            np.testing.assert_allclose(
                mine[name], column, rtol=0, atol=tolerance * scale, err_msg=name
            )


STRAIN = """
compute p all pressure NULL virial
fix numdiff all numdiff/virial 1 1e-5
compute born all born/matrix numdiff 1e-5 p
thermo_style custom step vol c_p[*] f_numdiff[*] c_born[*]
thermo_modify format float %.17g
run 0
"""
NAN_FORCE = """
group four id 4
variable nan equal exp(1000)*0
fix nve all nve
fix push four addforce v_nan 0 0
run 2
"""
LATE_EXCLUSION = """
group late empty
neigh_modify exclude group late all every 1 delay 0 check no
run 1
group late id 1
run 1 pre no
"""
VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def check_strain(
    folder: Path,
    model: Path,
    ranks: int,
    *,
    atoms: Atoms | None = None,
    skewed: bool = True,
    change: Callable[[str], str] = str,
    env: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """Check commands that strain atoms and ghosts in a box that stays as it is.

    `change` makes another input of that for the CPU, and `options` are ASE's. Pressures are those
    of the virial, and second derivatives of the energy by Green's strain those that ASE finds with
    a strained cell.
    """
    atoms = water(2, seed=3) if atoms is None else atoms
    if skewed:
        shear = np.array([[1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [-0.1, 0.2, 1.0]])
        atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    write_data(folder / "test.data", atoms)
    last = run_input(folder, change(head(model) + STRAIN), ranks=ranks, env=env).last
    pressure = np.array([last[f"c_p[{k}]"] for k in (1, 2, 3, 6, 5, 4)])
    numdiff = np.array([last[f"f_numdiff[{k}]"] for k in range(1, 7)])
    np.testing.assert_allclose(numdiff, pressure, rtol=0, atol=1e-7 * np.abs(pressure).max())
    born = np.array([last[f"c_born[{k}]"] for k in range(1, 22)])
    want = strain_derivatives(atoms, model, **options)
    order = [(k, k) for k in range(6)] + [(i, j) for i in range(6) for j in range(i + 1, 6)]
    expected = np.array([want[pair] for pair in order])
    np.testing.assert_allclose(born, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def strain_derivatives(atoms: Atoms, model: Path, **options: Any) -> Array:
    """Return d2E/deta_i deta_j [6, 6] in eV, eta Green's strain in Voigt's order."""
    calculator, step = MDCGCalculator(model, threads=1, **options), 1e-5
    found = np.zeros((6, 6))
    for column, (a, b) in enumerate(VOIGT):
        for sign in (1, -1):
            metric = np.eye(3)  # I + 2 eta
            metric[a, b] += sign * step
            metric[b, a] += sign * step
            values, vectors = np.linalg.eigh(metric)
            stretch = vectors @ np.diag(np.sqrt(values)) @ vectors.T
            strained = atoms.copy()
            strained.set_cell(atoms.cell.array @ stretch, scale_atoms=True)
            strained.calc = calculator
            back = np.linalg.inv(stretch)
            stress = back @ strained.get_stress(voigt=False) @ back  # second Piola-Kirchhoff
            work = strained.get_volume() * stress
            found[:, column] += sign * np.array([work[k] for k in VOIGT]) / (2 * step)
    return found
