"""Many structures, one by one and at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmark import batch
from benchmark.cli import main

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"


def test_structures() -> None:
    images = batch.structures(50, ["C", "H", "O", "Cu"])
    assert len(images) == 50
    assert all(8 <= len(atoms) <= 60 and atoms.pbc.all() for atoms in images)
    assert {len(set(atoms.symbols)) for atoms in images} > {1}
    again = batch.structures(50, ["C", "H", "O", "Cu"])
    assert all(np.array_equal(a.positions, b.positions) for a, b in zip(images, again, strict=True))
    with pytest.raises(ValueError, match="no structure is made of O H"):
        batch.structures(1, ["O", "H"])


def test_programs_agree(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    pytest.importorskip("torch_sim", exc_type=ImportError)
    model = Path(__file__).parents[1] / "data" / "mace_alloy_density_e3nn044.model"
    options = ["--structures", "5", "--repeats", "1", "--device", "cpu", "--dtype", "float64"]
    assert main(["batch", str(model), *options]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(batch.PROGRAMS)
    assert all(float(row[-4]) < 1e-6 and 0 < float(row[1]) < 1e5 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.model"], "'none.model' is neither"),
        ([str(DATA / "water.model"), "--impl", "slow"], "program 'slow' is unknown"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", *arguments, "--device", "cpu"]) == 2
    assert sentence in capsys.readouterr().err
