"""Threads: children of a fork, and the state after memory has run out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ..processes import printed_by
from .problems import build
from .small_package import SmallPackage

WATER = Path(__file__).parents[2] / "examples" / "data"


# Freed memory returns to the system and threads share one arena, so that a limit of memory has
# the same effect in every repetition. The arena of a second thread would reserve 64 MB.
GIVES_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
}


FORK = """
import os, signal, sys
import numpy as np
from ase.io import read
from mdcg import MDCGCalculator, _core
package, structure = sys.argv[1:]
def calculator():
    return MDCGCalculator(package, kernels="generic", threads=2)
def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills, also inside of a library
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
atoms = read(structure).repeat((2, 2, 1))
assert len(atoms) >= 768
moved = atoms.copy()
moved.positions[0] += 1.0
"""


@pytest.mark.parametrize(
    "case",
    [
        # the list is made again, the model evaluated by the one that the parent has used
        "atoms.calc = calculator(); atoms.get_forces()\n"
        "def work():\n    atoms.positions[:] = moved.positions\n"
        "    return np.isfinite(atoms.get_forces()).all()",
        # a model that only the child opens
        "atoms.calc = calculator(); atoms.get_forces()\n"
        "def work():\n    moved.calc = calculator()\n"
        "    return np.isfinite(moved.get_forces()).all()",
        # only a neighbour list has used threads
        "lists = [_core.NeighborList(5.0, 0.5) for _ in range(2)]\n"
        "lists[0].update(atoms.positions, atoms.cell.array, atoms.pbc, 2)\n"
        "def work():\n"
        "    lists[1].update(moved.positions, atoms.cell.array, atoms.pbc, 2)\n"
        "    return lists[1].num_edges > 0",
        # the child requests threads
        "model = _core.Model(package, kernels='generic', threads=2)\n"
        "types = (atoms.numbers == 8).astype(np.int32)\n"
        "def evaluate():\n"
        "    return model.evaluate(atoms.positions, types, cell=atoms.cell.array,\n"
        "                          periodic=[True] * 3)['forces']\n"
        "before = evaluate()\n"
        "def work():\n    model.set_threads(2)\n    return np.array_equal(evaluate(), before)",
    ],
    ids=["moved", "opened", "list", "set_threads"],
)
def test_a_forked_child_has_one_thread(case: str) -> None:
    code = FORK + case + "\nin_a_child(work)\n"
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz")


@pytest.mark.parametrize(
    "work",
    [
        # the model and the list are opened again
        "    return np.allclose(calc.get_forces(atoms), want, rtol=0, atol=1e-9)",
        # the model inside the calculator raises an error
        "    try:\n        calc._backend._members[0].model.report()\n"
        "    except RuntimeError as error:\n"
        "        return 'forked while another thread' in str(error)",
    ],
    ids=["calculator", "model"],
)
def test_a_fork_during_an_evaluation(work: str) -> None:
    """A child forked during an evaluation does not wait for the parent's thread."""
    code = (
        FORK
        + """
import threading, time
atoms = atoms.repeat((1, 1, 4))
calc = calculator()
want = calc.get_forces(atoms)
calc.reset()
thread = threading.Thread(target=calc.get_forces, args=(atoms,))
thread.start()
while not calc._backend._evaluates.locked(): time.sleep(1e-4)
time.sleep(0.1)
assert calc._backend._evaluates.locked(), "the evaluation is over"
def work():
"""
        + work
        + "\nin_a_child(work)\nthread.join()\n"
    )
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz")


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user of a process needs root")
def test_threads_that_cannot_be_started() -> None:
    """Threads that cannot be started are an error and do not end the process."""
    code = """
import os, resource, sys
import numpy as np
from ase.io import read
from mdcg import MDCGCalculator, _core
package, structure = sys.argv[1:]
atoms = read(structure).repeat((2, 2, 2))
def calculator(threads):
    return MDCGCalculator(package, kernels="generic", threads=threads)
calcs = [calculator(threads) for threads in (1, 8)]
want = calcs[0].get_forces(atoms)
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
failed, most = 0, resource.getrlimit(resource.RLIMIT_NPROC)[1]
for limit in range(1, 12):
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, most))
    try:
        found = calcs[1].get_forces(atoms)
        assert np.array_equal(found, want)
    except MemoryError as error:
        failed += 1
        assert " threads are wanted and the system starts " in str(error), error
        calcs[1]._backend._members[0].model.set_threads(1)
        calcs[1]._backend._threads = 1
        assert np.array_equal(calcs[1].get_forces(atoms), want)
        calcs[1]._backend._members[0].model.set_threads(8)
        calcs[1]._backend._threads = 8
        calcs[1].reset()
assert 5 < failed < 11, failed
"""
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz")


MEMORY = """
import resource, sys
import numpy as np
from mdcg import _core
def limited(bytes, work):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes, hard))
    try:
        work()
    except MemoryError:
        return True
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return False
"""


def test_a_list_runs_out_of_memory() -> None:
    """A neighbour list that runs out of memory is an error, and can be used again."""
    code = (
        MEMORY
        + """
rng = np.random.default_rng(0)
count = 100_000
cell = np.eye(3) * (count / 0.1) ** (1 / 3)
positions = rng.random((count, 3)) * cell[0, 0]
new = _core.NeighborList(5.0, 0.5)
few = positions[:600]
new.update(few, np.eye(3) * 18.2, [True] * 3, 2)
edges = new.num_edges
failed = 0
for megabytes in (4, 12, 20, 50, 110, 200, 300, 400, 600, 800):
    failed += limited(megabytes << 20, lambda: new.update(positions, cell, [True] * 3, 2))
    assert len(new.sender) == len(new.receiver) == len(new.shifts) == new.num_edges
assert 2 < failed < 10, failed
new.update(few, np.eye(3) * 18.2, [True] * 3, 2)
assert new.num_edges == edges
"""
    )
    printed_by(code, **GIVES_BACK)


def rows(channels: int) -> SmallPackage:
    """Return a package of large matrices, some of them by type, and no edges."""
    rng = np.random.default_rng(5)
    p = SmallPackage(["H", "O"], 3.0)
    for name in ("a", "b", "c"):
        p.value(name, f"{channels}x0e")
    p.value("d", "1x0e")
    p.layer("type_rows", out="a", table=p.tensor(rng.normal(size=(2, channels))))
    typed = p.tensor(rng.normal(size=(2, channels, channels)))
    p.layer("linear", x="a", out="b", paths=[{"in": 0, "out": 0, "weight": typed}], bias=[])
    plain = [p.tensor(rng.normal(size=(channels, channels))) for _ in range(2)]
    paths = [{"in": 0, "out": 0, "weight": weight} for weight in plain]
    p.layer("linear", x="b", out="c", paths=paths, bias=[])
    last = p.tensor(rng.normal(size=(channels, 1)))
    p.layer("linear", x="c", out="d", paths=[{"in": 0, "out": 0, "weight": last}], bias=[])
    one, zero = p.tensor(np.ones(1)), p.tensor(np.zeros(1))
    p.layer("energy", x="d", channel=0, scale=one, shift=zero)
    return p


def tables(outputs: int) -> SmallPackage:
    """Return a package of one convolution with large radial tables of three pairs of types."""
    rng = np.random.default_rng(6)
    p = SmallPackage(["H", "O"], 3.0)
    p.value("x", f"{outputs}x0e")
    p.value("a", f"{outputs}x0e")
    p.value("b", "1x0e")
    p.layer("type_rows", out="x", table=p.tensor(rng.normal(size=(2, outputs))))
    radial = {
        "r_max": 3.0,
        "basis": {"kind": "bessel", "weights": p.tensor(np.arange(1.0, 5.0)), "prefactor": 0.8},
        "cutoff": {"kind": "polynomial", "p": 6},
        "layers": [
            {"weight": p.tensor(rng.normal(size=(4, 8))), "activation": "silu"},
            {"weight": p.tensor(rng.normal(size=(8, outputs)))},
        ],
        "sender": p.tensor(rng.normal(size=(2, 8))),
        "receiver": p.tensor(rng.normal(size=(2, 8))),
        "table": {},
    }
    p.layer(
        "conv",
        x="x",
        out="a",
        problem=build(f"{outputs}x0e", "1x0e", f"{outputs}x0e").to_json(),
        radial=radial,
    )
    last = p.tensor(rng.normal(size=(outputs, 1)))
    p.layer("linear", x="a", out="b", paths=[{"in": 0, "out": 0, "weight": last}], bias=[])
    one, zero = p.tensor(np.ones(1)), p.tensor(np.zeros(1))
    p.layer("energy", x="b", channel=0, scale=one, shift=zero)
    return p


@pytest.mark.parametrize("kind", ["rows", "tables"])
def test_a_model_runs_out_of_memory(kind: str, tmp_path: Path) -> None:
    """After an evaluation ran out of memory, the next one gives the right results."""
    package = rows(900) if kind == "rows" else tables(4096)
    path = package.write(tmp_path / "p.mdcg")
    code = (
        MEMORY
        + """
positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.1], [0.0, 1.2, 0.0], [1.3, 0.0, 0.2]])
types = np.array([0, 1, 1, 0], dtype=np.int32)
def opened():
    return _core.Model(sys.argv[1], kernels="generic", threads=1)
def evaluate(model):
    return model.evaluate(positions, types)
want = evaluate(opened())
failed = 0
for megabytes in (2, 3, 5, 8, 11, 15, 20, 26, 33, 41, 50, 60, 80, 100, 150, 250):
    model = opened()
    failed += limited(megabytes << 20, lambda: evaluate(model))
    got = evaluate(model)
    for name in ("energies", "forces"):
        assert np.array_equal(got[name], want[name]), (megabytes, name)
    del model
assert failed > 2, failed
"""
    )
    printed_by(code, path, **GIVES_BACK)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("members", [1, 2])
def test_few_atoms_after_many(members: int, threads: int) -> None:
    """After a large system ran out of memory, a small one can be evaluated."""
    code = (
        MEMORY
        + """
from ase.io import read
from mdcg import MDCGCalculator
package, structure, members, threads = sys.argv[1:]
def calculator():
    return MDCGCalculator([package] * int(members), kernels="generic", threads=int(threads))
few = read(structure)[:9]
many = read(structure).repeat((3, 3, 3))
want = calculator().get_forces(few)
failed = 0
for megabytes in range(12, 60, 4):
    calc = calculator()
    def work():
        global failed
        try:
            calc.get_forces(many)
        except MemoryError:
            failed += 1
            np.testing.assert_array_equal(calc.get_forces(few), want)
    assert not limited(megabytes << 20, work), f"not enough for a few atoms: {megabytes} MB"
assert failed > 1, failed
"""
    )
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz", members, threads, **GIVES_BACK)


def test_threads_of_python_share_a_calculator() -> None:
    """Python threads that share a calculator get the right results."""
    code = """
import sys, threading
import numpy as np
from ase.io import read
from mdcg import MDCGCalculator
package, structure = sys.argv[1:]
backend = MDCGCalculator(package, kernels="generic", threads=1)._backend
atoms = read(structure)
others = [atoms, atoms[:96], atoms[::-1]]
want = [backend.evaluate(each, {"forces"}).forces for each in others]
wrong = []
def work(number):
    for _ in range(12):
        try:
            found = backend.evaluate(others[number], {"forces"}).forces
            if not np.array_equal(found, want[number]):
                wrong.append(number)
        except Exception as error:
            wrong.append(error)
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
"""
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz")


def test_a_list_stays_while_it_is_read() -> None:
    code = """
import sys, threading
import numpy as np
from ase.io import read
from mdcg import _core
package, structure = sys.argv[1:]
model = _core.Model(package, kernels="generic", threads=1)
atoms = read(structure)
positions, cell = atoms.positions, atoms.cell.array
types = (atoms.numbers == 8).astype(np.int32)
new = _core.NeighborList(model.r_max, 0.0)
def update(scale):
    new.update(scale * positions, scale * cell, [True] * 3, 1)
def energies():
    return model.evaluate(positions, types, edges=new, forces=False)["energies"]
allowed = []
for scale in (1.0, 1.6):
    update(scale)
    allowed.append(energies())
assert not np.array_equal(*allowed)
done = threading.Event()
def turn():
    while not done.is_set():
        update(1.6)
        update(1.0)
thread = threading.Thread(target=turn)
thread.start()
try:
    for _ in range(60):
        found = energies()
        assert any(np.array_equal(found, each) for each in allowed)
finally:
    done.set()
    thread.join()
"""
    printed_by(code, WATER / "water.mdcg", WATER / "water192.xyz")
