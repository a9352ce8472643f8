"""Times energy and forces of a model in several implementations; needs no torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from ase import Atoms

from .. import _core
from ..calculators.evaluation import require_stress
from ..calculators.package_backend import engine_errors
from ..errors import MdcgError, UnsupportedProblemError
from ..package.inputs import neutral_values
from .timing import (
    clock_for,
    free_bytes,
    interleave,
    peak_bytes,
    ratio,
    release_memory,
    total_bytes,
)

_log = logging.getLogger("mdcg.bench")

IMPLS = ("original", "patched", "engine")
#: Returns an object like :class:`EngineStep`, which evaluates one structure.
MakeStep: TypeAlias = Callable[[Atoms], Any]
#: Loads or converts a model, once for all structures.
Loader: TypeAlias = Callable[[], MakeStep]
_Refused: TypeAlias = "list[dict[str, Any]]"
# The original in float64 is not tried with more atoms: its neighbour list alone takes minutes.
_MOST_EXACT = 100_000


@dataclass(frozen=True)
class Settings:
    """How models are measured; fields have the names of the command's options."""

    device: str = "cpu"
    threads: int = 1
    stress: bool = False
    head: str | None = None
    memory: str = ""
    repeats: int = 10

    @classmethod
    def of(cls, options: Any) -> Settings:
        """Return the settings of parsed arguments."""
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})


def type_numbers(atoms: Atoms, names: Sequence[str]) -> list[int]:
    """Return the type of each atom; refuse elements that have none."""
    unknown = sorted(set(atoms.symbols) - set(names))
    if unknown:
        raise ValueError(f"the model does not know {', '.join(unknown)}: choose another --system")
    number = {name: place for place, name in enumerate(names)}
    return [number[symbol] for symbol in atoms.symbols]


class EngineStep:
    """A package in the engine; a call is a step of dynamics without a new neighbour list.

    Every call takes positions from the host, computes the vectors of the edges, and returns results
    to the host, in eV and Å. The first call also makes the list, which `skin` (Å) widens.
    """

    def __init__(self, package: Path, settings: Settings, atoms: Atoms, skin: float = 0.0) -> None:
        device = "cuda:0" if settings.device == "cuda" else settings.device
        with engine_errors():
            self.info = self.model = _core.Model(
                str(package),
                device=device,
                threads=settings.threads,
                skin=skin,
                memory=settings.memory,
            )
        self._types = np.array(type_numbers(atoms, self.model.type_names), dtype=np.int32)
        self._positions = np.ascontiguousarray(atoms.positions, dtype=np.float64)
        self._cell = {"cell": atoms.cell.array.copy(), "periodic": atoms.pbc.copy()}
        if settings.stress:
            require_stress(atoms, None)
        self._volume = atoms.cell.volume if settings.stress else None
        inputs = json.loads(self.model.manifest).get("inputs") or ()
        neutral = neutral_values({each["name"]: each.get("lowest") for each in inputs})
        self._inputs = [each.get("default", neutral[each["name"]]) for each in inputs]

    def __call__(self) -> dict[str, Any]:
        """Return energy, forces and, if it is wanted, stress."""
        with engine_errors():
            found = self.model.evaluate(
                self._positions,
                self._types,
                virial=self._volume is not None,
                inputs=self._inputs,
                **self._cell,
            )
        if self._volume is not None:
            found["stress"] = found["virial"] / -self._volume
        return found

    def _reported(self, name: str) -> int:
        return int(json.loads(self.model.report()).get(name, 0))

    @property
    def own_bytes(self) -> int:
        """Bytes of the engine's buffers after a call."""
        return self._reported("bytes")

    @property
    def num_edges(self) -> int:
        """Number of edges after a call, 0 in domains; on GPUs it includes edges within the skin."""
        return 0 if self._reported("domains") > 1 else self._reported("edges")


def refusal(impl: str, error: Exception, own: tuple[str, ...] = IMPLS) -> dict[str, Any]:
    """Return why an implementation was not timed.

    ``failed`` is True for errors of implementations in `own`, except lack of memory and unsupported
    models. Errors of other packages are no failures of mdcg.
    """
    reason, failed = " ".join(str(error).split())[:300], impl.startswith(own)
    if isinstance(error, MemoryError):
        reason, failed = f"out of memory: {reason}", False
    elif type(error).__name__ == "OutOfMemoryError":  # of torch
        reason, failed = "out of memory", False
    elif isinstance(error, UnsupportedProblemError):
        failed = False
    else:
        _log.info("%s failed", impl, exc_info=error)
        reason = f"{type(error).__name__}: {reason}"
    return {"impl": impl, "reason": reason, "failed": failed}


@contextmanager
def _refusing(impl: str, refused: _Refused) -> Iterator[None]:
    """Record an error, so that other implementations continue; raise errors of usage."""
    try:
        yield
    except Exception as error:
        if impl in IMPLS and type(error) is ValueError:
            raise
        refused.append(refusal(impl, error))


class Fitting:
    """Says which sizes are too large for an implementation, from what smaller ones took."""

    def __init__(self, device: str) -> None:
        self._room = total_bytes(device)
        self._taken: dict[str, list[tuple[int, int]]] = {}
        self._full: dict[str, int] = {}

    def add(self, section: Mapping[str, Any]) -> None:
        """Keep what the implementations took at one size, and which had too little memory."""
        for row in section["rows"]:
            # only what torch takes is known to grow with the number of atoms
            if row["peak_bytes"] and not row.get("plans_memory"):
                taken = self._taken.setdefault(row["impl"], [])
                taken.append((section["atoms"], row["peak_bytes"]))
        for one in section["refused"]:
            if one["reason"].startswith("out of memory"):
                self._full.setdefault(one["impl"], section["atoms"])

    def why_not(self, impl: str, atoms: int) -> str | None:
        """Return why an implementation cannot evaluate so many atoms, or None."""
        if atoms >= self._full.get(impl, atoms + 1):
            return f"out of memory with {self._full[impl]:,} atoms already"
        taken = self._taken.get(impl, [])
        if len(taken) < 2:
            return None
        (few, less), (many, more) = taken[-2:]
        need = more + (more - less) / max(1, many - few) * (atoms - many)
        if need <= self._room:
            return None
        return f"out of memory: some {need / 1e9:.0f} GB, from what fewer atoms took"


def _as_numpy(results: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name in ("energy", "forces", "stress"):
        value = results.get(name)
        if value is not None:
            value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
            found[name] = np.asarray(value, dtype=np.float64)
    if not {"energy", "forces"} <= set(found):
        raise MdcgError("the model gives no energy and forces: give another model")
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], to: str) -> dict[str, float]:
    """Return the largest differences of two results, in eV per atom, eV/Å and eV/Å³."""
    found = {}
    for name in set(one) & set(other):
        difference = np.abs(one[name].reshape(-1) - other[name].reshape(-1)).max()
        atoms = len(one["forces"]) if name == "energy" else 1
        found[f"{name}_difference_{to}"] = float(difference) / atoms
    return found


def measure(
    loaders: Mapping[str, Loader],
    systems: Iterable[Atoms],
    settings: Settings,
    exact: MakeStep | None = None,
) -> Iterator[dict[str, Any]]:
    """Time energy and forces of all implementations, structure by structure.

    Times leave out making the neighbour list and converting the structure; they include the
    engine's check that its list is still valid. `exact` is the original in float64: all results are
    compared with it if there is enough memory. Each item has facts about model and structure,
    ``rows``, one for each implementation, and ``refused``, with the reason for each implementation
    that has no row.
    """
    refused: _Refused = []
    prepared: dict[str, MakeStep] = {}
    fitting = Fitting(settings.device)
    for impl, make in loaders.items():
        with _refusing(impl, refused):
            prepared[impl] = make()
    for atoms in systems:
        section = _measure_one(atoms, prepared, settings, exact, list(refused), fitting)
        fitting.add(section)
        yield section
        release_memory()


def _measure_one(
    atoms: Atoms,
    prepared: Mapping[str, MakeStep],
    settings: Settings,
    exact: MakeStep | None,
    refused: _Refused,
    fitting: Fitting,
) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    first: dict[str, dict[str, Any]] = {}
    held: dict[str, int] = {}
    fits: dict[str, MakeStep] = {}
    all_of_them = {**({} if exact is None else {"float64": exact}), **prepared}
    for impl, make in all_of_them.items():
        if why := fitting.why_not(impl, len(atoms)):
            refused.append({"impl": impl, "reason": why, "failed": False})
        else:
            fits[impl] = make
    original = fits.pop("float64", None)
    if fits and original is not None and len(atoms) <= _MOST_EXACT:
        with _refusing("float64", refused):
            first["float64"] = _as_numpy(original(atoms)())
    release_memory()
    room = free_bytes()
    for impl, make in fits.items():
        release_memory()
        with _refusing(impl, refused):
            free = free_bytes()
            step = make(atoms)
            first[impl] = _as_numpy(step())
            step()  # on a GPU the engine records this one
            steps[impl] = step
            held[impl] = free - free_bytes()  # what torch keeps included
    rows: list[dict[str, Any]] = []
    timings: dict[str, dict[str, Any]] = {}
    # where memory is too small for all, each would wait for what the one before it frees
    turns = [steps] if sum(held.values()) <= room else [{impl: steps[impl]} for impl in steps]
    for together in turns:
        release_memory()
        with _refusing("all in turns" if len(turns) == 1 else "".join(together), refused):
            clock = clock_for(settings.device)
            timings |= interleave(together, clock, repeats=settings.repeats)
    for impl, seconds in timings.items():
        step, outcome = steps[impl], first[impl]
        own = getattr(step, "own_bytes", None)  # of programs that do not use torch's memory
        peak = (
            peak_bytes(step, settings.device, step.nbytes)
            if own is None
            else max(held[impl], own) or None
        )
        row = {
            "impl": impl,
            "seconds": seconds,
            "energy": float(outcome["energy"].sum()),
            "stress": "stress" in outcome,
            "peak_bytes": peak,
            "plans_memory": own is not None,
        }
        for other in {"original", "float64"} & set(first) - {impl}:
            row |= _differences(outcome, first[other], other)
        if "original" in timings:
            row["speedup"] = ratio(timings["original"], seconds)
        if isinstance(step, EngineStep):
            row["note"] = step.model.summary()
        rows.append(row)
    facts: dict[str, Any] = {}
    for step in steps.values():
        facts |= {name: getattr(step.info, name) for name in ("model_class", "dtype", "r_max")}
        facts["dtype"] = str(facts["dtype"]).removeprefix("torch.")
        facts["edges"] = step.num_edges or facts.get("edges")
    return {"atoms": len(atoms), **facts, "rows": rows, "refused": refused}
