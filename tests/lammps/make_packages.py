"""Makes the packages that these tests run:

    python tests/lammps/make_packages.py

needs mdcg with MACE and NequIP (the environment that ``bash tests/run.sh both`` makes). The same
checkpoints give the same bytes; needed again when generated kernels have changed their interface.
"""

from __future__ import annotations

from pathlib import Path

from mdcg.package import ConversionOptions
from mdcg.package.convert import convert_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    for name, suffix in (("mace_water", "model"), ("nequip_water", "ckpt")):
        for dtype in ("float64", "float32"):
            source = ROOT / "tests" / "data" / f"{name}.{suffix}"
            # tests put in the kernels that are generated now
            package = convert_checkpoint(source, ConversionOptions(dtype=dtype))
            package.save(source.with_name(f"{name}_{dtype}.mdcg"))


if __name__ == "__main__":
    main()
