"""Makes the packages that these tests run:

    python tests/lammps/make_packages.py

needs mdcg with MACE and NequIP (the environment that ``bash tests/run.sh both`` makes), and
tad-dftd3. The same checkpoints give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from mdcg.package import ConversionOptions
from mdcg.package.convert import convert_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    # mace_water_float64.mdcg and nequip_water_float32.mdcg have format 1, which must still open.
    for name, suffix, dtype in (
        ("mace_water", "model", "float32"),
        ("nequip_water", "ckpt", "float64"),
    ):
        source = ROOT / "tests" / "data" / f"{name}.{suffix}"
        package = convert_checkpoint(source, ConversionOptions(dtype=dtype, dispersion="pbe"))
        package.save(source.with_name(f"{name}_{dtype}.mdcg"))


if __name__ == "__main__":
    main()
