"""Forces for i-PI from ASE; ``bash examples/ipi_water.sh`` starts both."""

from __future__ import annotations

import argparse
from pathlib import Path

from ase.calculators.socketio import SocketClient
from ase.io import read

from mdcg import MDCGCalculator

DATA = Path(__file__).resolve().parent / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, default=DATA / "water.mdcg")
    parser.add_argument("--structure", type=Path, default=DATA / "water192.xyz")
    parser.add_argument("--address", default="mdcg", help="address of ipi_water.xml")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    atoms = read(options.structure)  # elements and cell; positions come from i-PI
    atoms.calc = MDCGCalculator(options.package, device=options.device)
    SocketClient(unixsocket=options.address).run(atoms, use_stress=True)


if __name__ == "__main__":
    main()
