"""Convert many checkpoints and print one table: converted or why not, error, time of a step.

    python examples/convert_models.py mace-mpa-0 OFF24=off24.model ~/models/*.model

Each model is a checkpoint of MACE, NequIP, SevenNet or Nequix, or the name of a published one, by
itself or as NAME=FILE; licences of published models differ. Packages are written to ``output/``
beside this script, or to ``--output``. Loading a checkpoint can run code in it.

Columns: what became of the model (with its first head, where it has several and ``--head`` names
none), the largest difference of forces between package and original in eV/Å on a structure (the
median of those that they are compared on), and milliseconds of an evaluation of energy and forces:
of 192 atoms of water, or else of about 100 atoms of a crystal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.io import read

from mdcg import MDCGCalculator

HERE = Path(__file__).resolve().parent


def named(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    path = Path(file if equals else text).expanduser()
    return (name if equals else path.name.partition(".")[0]), path


def patch(*arguments: object) -> dict[str, Any]:
    """Run mdcg-patch by itself: what one model does to the process does not touch the next.

    Runs in the folder of this script, because in that of the clone Python would import its mdcg.
    """
    code = "import sys; from mdcg.cli.patch import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--json", *map(str, arguments)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = [*done.stderr.strip().splitlines(), f"exit status {done.returncode}"][-1]
        found = {"error": {"message": last}}
    return found


def structure(species: tuple[str, ...]) -> Atoms | None:
    """Return water, or else a crystal of the first element that has one."""
    if {"H", "O"} <= set(species):
        return read(HERE / "data" / "water192.xyz")
    for symbol in species:
        try:
            atoms = bulk(symbol, cubic=True)
        except (ValueError, KeyError, RuntimeError):
            continue
        return atoms.repeat(max(1, round((100 / len(atoms)) ** (1 / 3))))
    return None


def milliseconds(package: Path, device: str) -> str:
    """Return the median of ten evaluations in which the atoms have moved a little."""
    calculator = MDCGCalculator(package, device=device)
    atoms = structure(calculator.species)
    if atoms is None:
        return "-"
    rng, times = np.random.default_rng(0), []
    for _ in range(13):
        atoms.positions += rng.normal(scale=1e-3, size=atoms.positions.shape)
        start = time.perf_counter()
        calculator.get_forces(atoms)
        times.append(time.perf_counter() - start)
    return f"{1e3 * np.median(times[3:]):.2f} ({len(atoms)} atoms)"


def convert(name: str, path: Path, options: argparse.Namespace) -> tuple[str, str, str, str]:
    """Return a row of the table."""
    package = options.output / f"{name}.mdcg"
    model = path.absolute() if path.is_file() else path  # or a name
    arguments: list[object] = [model, "-o", package.absolute(), "--force"]
    if options.dtype:
        arguments += ["--dtype", options.dtype]
    head = options.head
    if head is None:
        heads = patch(model, "--info").get("model", {}).get("heads", [])
        head = heads[0] if len(heads) > 1 else None
    if head is not None:
        arguments += ["--head", head]
    found = patch(*arguments)
    if "error" in found:
        return name, "no", "", str(found["error"]["message"])
    deviations = (found.get("verification") or {}).get("deviations", [])
    errors = [d["error"] for d in deviations if d["quantity"] == "forces"]
    error = np.median(errors or [np.nan])  # atoms that nearly touch have forces of another order
    what = f"yes, {found['package']['dtype']}" + (f", head {head}" if head else "")
    try:
        took = milliseconds(package, options.device)
    except Exception as reason:  # the table tells of every model
        took = f"failed: {' '.join(str(reason).split())[:200]}"
    return name, what, f"{error:.1e}", took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="[NAME=]FILE")
    parser.add_argument("--output", type=Path, default=HERE / "output")
    parser.add_argument("--head", help="of all models")
    parser.add_argument("--dtype", help="float32 or float64; default: as they are")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = [("model", "converted", "error eV/Å", "ms per step, or why not")]
    for number, text in enumerate(options.models, 1):
        name, path = named(text)
        print(f"{number}/{len(options.models)} {name} ...", file=sys.stderr, flush=True)
        rows.append(convert(name, path, options))
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        print("  ".join([*cells, row[3]]).rstrip())


if __name__ == "__main__":
    main()
