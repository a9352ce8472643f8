"""The long-range sum of charges against direct sums in torch, in cells and open systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import _core

from ..covering import covering
from .cells import CELLS
from .long_range import (
    BOXES,
    NUMBERS,
    check_derivatives,
    check_open_systems_of_several_ranks,
    check_ranks,
    check_threads,
    close,
    of_types,
    package,
    reference,
    system,
)
from .programs import R_MAX, Program, open_model
from .reference import ewald


@covering(
    box=list(BOXES), numbers=list(NUMBERS), own=["kept", "removed"], dtype=["float64", "float32"]
)
def test_results(tmp_path: Path, box: str, numbers: str, own: str, dtype: str) -> None:
    of = package(dtype, numbers, own)
    model = open_model(of, tmp_path / "p.mdcg")
    s = system(BOXES[box])
    want = reference(of, s)
    limit = {"float64": 1e-10, "float32": 3e-5}[dtype]
    got = model.evaluate(**s, virial=True, descriptors=True)
    close(got["energies"], want.energies.numpy(), limit, "energies")
    close(got["forces"], want.forces.numpy(), limit, "forces")
    close(got["virial"], want.virial.numpy(), limit, "virial")
    close(got["descriptors"][:, -1:], want.values["charges"].numpy(), limit, "charges")
    assert np.array_equal(model.evaluate(**s, forces=False)["energies"], got["energies"])


def test_one_number_of_threads_is_as_good_as_another(tmp_path: Path) -> None:
    s = system(np.diag([21.0, 12.0, 11.0]), nodes=210)
    check_threads(package(), tmp_path / "p.mdcg", s)


@pytest.mark.parametrize("box", ["triclinic", "left-handed", "edges of ten spacings"])
def test_images_and_cells_that_change(tmp_path: Path, box: str) -> None:
    """Far away, wrapped or in another cell of the lattice, a crystal is the same."""
    model = open_model(package(), tmp_path / "p.mdcg")
    s = system(BOXES[box])
    want = model.evaluate(**s, virial=True)
    model.evaluate(**{**s, "cell": 1.01 * s["cell"]})
    cells = np.random.default_rng(1).integers(-2, 3, (len(s["types"]), 3))
    others = [
        {**s, "positions": s["positions"] + 1000.0},
        {**s, "positions": s["positions"] + cells @ s["cell"]},
        {**s, "cell": s["cell"][[1, 0, 2]]},
    ]
    for other in others:
        got = model.evaluate(**other, virial=True)
        for name, value in want.items():
            close(np.asarray(got[name]), np.asarray(value), 1e-10, name)


def test_differences_of_energies(tmp_path: Path) -> None:
    model = open_model(package(), tmp_path / "p.mdcg")
    s = system(1.03 * CELLS["triclinic"])
    check_derivatives(model, s, forces={"abs": 1e-7}, virial={"abs": 1e-7})


def test_fixed_waves(tmp_path: Path) -> None:
    """The integers of the first cell are kept, and the energy is smooth where waves enter."""
    path = tmp_path / "p.mdcg"
    charges = np.array([0.4, -0.8, 0.1])
    s = system(0.999 * BOXES["edges of ten spacings"])
    kept = open_model(of_types(charges), path, fixed_waves=True)
    free = open_model(of_types(charges), path)

    def at(model: Any, scale: float, **wanted: Any) -> Any:
        now = {name: scale * s[name] for name in ("positions", "cell")}
        return model.evaluate(**{**s, **now}, **wanted)

    def jump(model: Any) -> float:
        """Return what the energy of an atom lacks to be a parabola near a cube of ten spacings."""
        e = [at(model, (1 + k * 1e-5) / 0.999, forces=False)["energy"] for k in (-3, -1, 1, 3)]
        return float(abs(e[3] - 3 * e[2] + 3 * e[1] - e[0]) / len(s["types"]))

    assert np.array_equal(at(kept, 1.0)["forces"], at(free, 1.0)["forces"])
    assert jump(free) > 1e-6
    assert jump(kept) < 1e-9
    scale = 1.002 / 0.999
    got = at(kept, scale, virial=True)
    q, r, cell, first = (
        torch.tensor(x)
        for x in (charges[s["types"]], scale * s["positions"], scale * s["cell"], s["cell"])
    )
    r.requires_grad_()
    want = ewald(q, r, cell, *NUMBERS["usual"], True, first)
    (slope,) = torch.autograd.grad(want.sum(), r)
    close(got["energies"], want.detach().numpy(), 1e-11, "energies")
    close(got["forces"], -slope.numpy(), 1e-11, "forces")
    e = [at(kept, scale * (1 + k * 1e-4), forces=False)["energy"] for k in (-2, -1, 1, 2)]
    pressure = (8 * (e[2] - e[1]) - (e[3] - e[0])) / 12e-4
    assert pressure == pytest.approx(-np.trace(got["virial"].reshape(3, 3)), rel=1e-8)


def test_refusals_of_fixed_waves(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    model = open_model(package(), path, fixed_waves=True)
    s = system(CELLS["triclinic"])
    with pytest.raises(_core.EngineError, match="cell vectors"):
        model.evaluate(**{**s, "cell": np.ones((3, 3))})  # no first cell, because it failed
    turned = np.array([[0.6, 0.8, 0.0], [-0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])
    want = model.evaluate(**s)["energy"]
    got = model.evaluate(s["positions"] @ turned, s["types"], cell=s["cell"] @ turned,
                         periodic=(True, True, True))  # fmt: skip
    assert got["energy"] == pytest.approx(want, rel=1e-12)
    message = r"this cell is strained by 2[89]\.\d % from it, expected at most 25 % and the same"
    with pytest.raises(_core.EngineError, match=message):
        model.evaluate(**{**s, "cell": s["cell"] * 1.155})
    open_system = {"positions": s["positions"], "types": s["types"]}
    assert np.isfinite(model.evaluate(**open_system)["energy"])
    with pytest.raises(_core.EngineError, match="fixed_waves is set, and a batch has cells of its"):
        model.evaluate_batch(
            first_node=np.array([0, len(s["types"])]), positions=s["positions"], types=s["types"],
            cells=s["cell"][None], periodic=np.ones((1, 3), bool),
        )  # fmt: skip
    p = Program(3, "float64")
    p.readout(p.features(7))
    with pytest.raises(
        _core.EngineError, match=r"fixed_waves is set, and the network of .* has no"
    ):
        open_model(p.package(), path, fixed_waves=True)


def test_lists_of_neighbours(tmp_path: Path) -> None:
    """A list that is given brings its cell; edges with shifts alone do not."""
    model = open_model(package(), tmp_path / "p.mdcg")
    for box in ("triclinic", "open"):
        s = system(BOXES[box])
        near = _core.NeighborList(R_MAX, 0.5)
        near.update(s["positions"], s.get("cell", np.zeros((3, 3))), s.get("periodic", [False] * 3))
        got = model.evaluate(s["positions"], s["types"], edges=near)
        want = model.evaluate(**s)
        close(got["forces"], want["forces"], 1e-12, "forces")
    edges = (near.sender, near.receiver, near.shifts)
    with pytest.raises(_core.EngineError, match=r"system is given without a cell, expected"):
        model.evaluate(s["positions"], s["types"], edges=edges)


@pytest.mark.parametrize("cuts", [(0.5,), (0.0,), (0.3, 0.7), (0.4, 0.4)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    check_ranks(package(), tmp_path / "p.mdcg", system(CELLS["triclinic"], nodes=24), cuts, sums=1)


def test_open_systems_of_several_ranks(tmp_path: Path) -> None:
    check_open_systems_of_several_ranks(package(), tmp_path / "p.mdcg")


@pytest.mark.parametrize("threads", [1, 3])
def test_batches(tmp_path: Path, threads: int) -> None:
    """Threads share the systems of a batch; each system has the bits that it has alone."""
    open_model(package(), tmp_path / "p.mdcg")
    model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic", threads=threads)
    boxes = ("triclinic", "cubic", "open", "small", "left-handed", "large")
    systems = [
        system({**BOXES, "large": 34.0 * np.eye(3)}[box], 600 if box == "large" else 13, seed=i)
        for i, box in enumerate(boxes)
    ]
    batch = {
        "first_node": np.cumsum([0, *(len(s["types"]) for s in systems)]),
        "positions": np.concatenate([s["positions"] for s in systems]),
        "types": np.concatenate([s["types"] for s in systems]),
        "cells": np.stack([s.get("cell", np.eye(3)) for s in systems]),
        "periodic": np.stack([np.full(3, "cell" in s) for s in systems]),
    }
    want = [model.evaluate(**s, virial=True) for s in systems]
    for _ in range(2):
        got = model.evaluate_batch(**batch, virial=True)
        assert np.array_equal(got["forces"], np.concatenate([each["forces"] for each in want]))
        assert np.array_equal(got["energy"], [each["energy"] for each in want])
        assert np.array_equal(got["virial"], [each["virial"] for each in want])
    batch["periodic"][0, 2] = False
    with pytest.raises(_core.EngineError, match="periodic along 2 directions, expected 0 or 3"):
        model.evaluate_batch(**batch)
    with pytest.raises(_core.EngineError, match="no virials of single atoms"):
        model.evaluate_batch(**batch, virials=True)


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    model = open_model(package(), path)
    s = system(CELLS["triclinic"])

    def refuse(message: str, **changes: Any) -> None:
        with pytest.raises(_core.EngineError, match=message) as error:
            model.evaluate(**{**s, **changes})
        assert "\n" not in str(error.value)

    refuse("periodic along 2 directions, expected 0 or 3: ", periodic=(True, True, False))
    refuse("no virials of single atoms: ask for the virial of the system", virials=True)
    refuse("does not support energy_weights", energy_weights=np.ones(len(s["types"])))
    refuse(r"up to 5\.\d+e\+09 waves .* expected at most 2\.68e\+08", cell=np.eye(3) * 2200.0)
    with pytest.raises(_core.EngineError, match=r"memory is '90 %'.*not divided into domains"):
        _core.Model(str(path), kernels="generic", memory="90 %")
    for name, value in (("sigma", 0.0), ("spacing", -2.5), ("own_part", "some")):
        damaged = package()
        damaged.layers[-1][name] = value
        with pytest.raises(_core.EngineError, match=f"ewald.: field {name} is .*{value}"):
            open_model(damaged, path)


def test_reference_of_two_charges() -> None:
    """The reference itself: in large cells the sum tends to that of an open system."""
    q = torch.tensor([0.7, -0.7], dtype=torch.float64)
    r = torch.tensor([[0.0, 0.0, 0.0], [1.3, 0.4, -0.2]], dtype=torch.float64)
    numbers = (1.0, 1.0, 90.4756)
    far = float(ewald(q, r, None, *numbers, True).sum())
    for length, limit in ((20.0, 1e-2), (40.0, 1.5e-3)):
        box = length * torch.eye(3, dtype=torch.float64)
        assert float(ewald(q, r, box, *numbers, True).sum()) == pytest.approx(far, rel=limit)
