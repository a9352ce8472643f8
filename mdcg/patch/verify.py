"""Compare a patched model with the untouched one: energy, forces, stress and other outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, TypeAlias

import torch

from ..errors import MdcgError, VerificationError, format_table
from .evaluate import evaluate_structure
from .models import ModelInfo, copy_in_dtype, frozen, model_info
from .systems import Structure, verification_systems

log = logging.getLogger("mdcg")

Outputs: TypeAlias = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Quantity:
    symbol: str
    unit: str
    atol: float  # absolute limit for a float64 model
    per_atom: bool = False


#: Outputs that are compared, by their key in the model's result.
QUANTITIES = {
    "energy": _Quantity("ΔE", "eV/atom", 1e-9, per_atom=True),
    "forces": _Quantity("ΔF", "eV/Å", 1e-8),
    "stress": _Quantity("Δσ", "eV/Å³", 1e-9),
    "dipole": _Quantity("Δμ", "the model's unit", 1e-8),
    "polarizability": _Quantity("Δα", "e·Å²/V", 1e-8),
    "charges": _Quantity("Δq", "e", 1e-8),
}
#: Rounding relative to the size of a result, added to the limits above.
_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-6}
_SMALL = 1e-2  # smaller results, in their unit, are taken for differences of larger numbers


@dataclass(frozen=True)
class Deviation:
    """Largest difference of one output on one structure."""

    system: str  # name of the structure
    quantity: str  # key in the model's result
    unit: str
    n_atoms: int
    n_edges: int
    error: float  # difference from the original, which for float32 is evaluated in float64
    own_error: float | None  # difference of a float32 original from itself in float64
    limit: float  # largest allowed `error`

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the limit."""
        return self.error <= self.limit  # False for nan


@dataclass(frozen=True)
class VerificationReport:
    """All differences found; ``print(report)`` shows a table."""

    dtype: str
    device: str
    deviations: tuple[Deviation, ...]
    note: str = ""  # what was left out of the comparison, and why

    @property
    def passed(self) -> bool:
        """Whether there are deviations, and all are within their limits."""
        return bool(self.deviations) and all(deviation.passed for deviation in self.deviations)

    def worst(self) -> dict[str, Deviation]:
        """Return the deviation nearest to or farthest above its limit, for each quantity."""
        found: dict[str, Deviation] = {}
        for deviation in self.deviations:
            best = found.get(deviation.quantity)
            if best is None or not deviation.error / deviation.limit <= best.error / best.limit:
                found[deviation.quantity] = deviation
        return found

    def summary(self) -> str:
        """Return one line: each quantity where it is nearest to its limit, and PASS or FAIL."""
        systems = len({deviation.system for deviation in self.deviations})
        parts = []
        for name, worst in self.worst().items():
            text = f"|{QUANTITIES[name].symbol}| {worst.error:.0e} {worst.unit}"
            if worst.own_error is not None:
                text += f" (original itself {worst.own_error:.0e})"
            parts.append(text)
        verdict = "PASS" if self.passed else "FAIL"
        listing = f"nearest to their limits: {', '.join(parts)}"
        if not parts:
            listing = "the model gave no output to compare"
        return f"verify ({self.device}, {self.dtype}, {systems} systems): {listing}   {verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers, ready for JSON."""
        return {
            "passed": self.passed,
            "dtype": self.dtype,
            "device": self.device,
            "note": self.note,
            "deviations": [{**asdict(d), "passed": d.passed} for d in self.deviations],
        }

    def __str__(self) -> str:
        rows = [
            (
                *(d.system, str(d.n_atoms), str(d.n_edges), d.quantity, f"{d.error:.1e}"),
                *("" if d.own_error is None else f"{d.own_error:.1e}", f"{d.limit:.1e}"),
                *(d.unit, "ok" if d.passed else "FAIL"),
            )
            for d in self.deviations
        ]
        header = (
            *("system", "atoms", "edges", "output"),
            *("error", "original's own", "limit", "unit", ""),
        )
        return format_table(header, rows, right=(1, 2, 4, 5, 6))


def verify_patch(
    original: torch.nn.Module,
    patched: torch.nn.Module,
    *,
    head: str | None = None,
    systems: Sequence[Structure] | None = None,
    atol_forces: float | None = None,
) -> VerificationReport:
    """Compare two models of the same dtype on several structures; neither is changed.

    float64: energy within 1e-9 eV/atom, forces 1e-8 eV/Å, stress 1e-9 eV/Å³, and in addition 1e-12
    of the energy or 1e-11 of the largest force or stress of the structure.

    float32: the patched model is compared with the original in float64. Its error may be twice the
    error of the original in float32 on its worst structure, in the unit of the output or relative
    to its size, and in addition 1e-7 of the energy or 1e-6 of the largest force or stress.
    `atol_forces` (eV/Å) replaces the limit on forces.
    """
    info, patched_info = model_info(original), model_info(patched)
    if info.dtype != patched_info.dtype:
        raise ValueError(
            f"the patched model is {patched_info.dtype}, expected {info.dtype} as the original"
        )
    reference = evaluate_reference(original, head=head, systems=systems)
    found = [
        evaluate_outputs(patched, patched_info, system, head)[1]
        for system in _each([known.system for known in reference.structures], "the patched model")
    ]
    return compare(reference, found, atol_forces=atol_forces)


def _each(systems: Sequence[Structure], what: str) -> Iterator[Structure]:
    for number, system in enumerate(systems, 1):
        log.info(
            "verification: %s on structure %d of %d (%s)", what, number, len(systems), system.name
        )
        yield system


@dataclass(frozen=True)
class Reference:
    """The outputs of a model on the structures of a comparison, in its dtype and in float64."""

    dtype: torch.dtype
    device: torch.device
    structures: tuple[_Known, ...]


@dataclass(frozen=True)
class _Known:
    """One structure, and the outputs of the original on it."""

    system: Structure
    n_edges: int
    own: Outputs
    truth: Outputs  # in float64

    def size(self, name: str) -> float:
        """Return the magnitude of an output, at least `_SMALL`."""
        value = self.truth[name]
        return max(_SMALL, float(value.abs().max()) / self.atoms(name)) if value.numel() else _SMALL

    def atoms(self, name: str) -> int:
        """Return the number of atoms by which an output is divided."""
        return len(self.system.atomic_numbers) if QUANTITIES[name].per_atom else 1

    def with_stress(self, stress: Any) -> _Known:
        """Return the same with another stress in float64, shape (3, 3), and the same own error."""
        truth = torch.as_tensor(stress)[None]
        own = truth + self.own["stress"] - self.truth["stress"]
        return replace(self, own={**self.own, "stress": own}, truth={**self.truth, "stress": truth})

    def without(self, name: str) -> _Known:
        """Return the same without an output."""
        own, truth = ({k: v for k, v in o.items() if k != name} for o in (self.own, self.truth))
        return replace(self, own=own, truth=truth)

    def own_error(self, name: str) -> float:
        """Return the difference of the original from itself in float64."""
        return _largest(self.own[name], self.truth[name]) / self.atoms(name)


def evaluate_reference(
    original: torch.nn.Module,
    *,
    head: str | None = None,
    systems: Sequence[Structure] | None = None,
    exact: torch.nn.Module | None = None,
) -> Reference:
    """Evaluate the model that others are compared with; its dtype selects the limits.

    `exact` is the reference for a float32 model; default: its copy in float64.
    """
    info = model_info(original)
    if systems is None:
        systems = verification_systems(info.kinds, info.r_max, symbols=info.symbols)
    single = info.dtype == torch.float32
    if single and exact is None:
        exact = copy_in_dtype(original, torch.float64)
    known = []
    for system in _each(systems, "the original"):
        n_edges, own = evaluate_outputs(original, info, system, head)
        truth = own
        if single and exact is not None:
            _, truth = evaluate_outputs(exact, model_info(exact), system, head)
        known.append(_Known(system, n_edges, own, truth))
    return Reference(info.dtype, info.device, tuple(known))


def compare(
    reference: Reference, found: Sequence[Outputs], *, atol_forces: float | None = None
) -> VerificationReport:
    """Compare outputs in float64 with a reference, within the limits of :func:`verify_patch`."""
    single = reference.dtype == torch.float32
    rounding = _ROUNDING[torch.float32 if single else torch.float64]
    # one structure can agree by chance, so the errors of the worst ones set the limits
    absolute, relative = {}, {}
    for name in QUANTITIES:
        having = [known for known in reference.structures if name in known.truth]
        sizes = [known.size(name) for known in having]
        errors = [known.own_error(name) for known in having]
        # an error on a structure with huge forces says nothing about the others
        usual = median(sizes or [0.0])
        parts = [error / size for error, size in zip(errors, sizes, strict=True)]
        absolute[name] = max(map(min, errors, [part * usual for part in parts]), default=0.0)
        relative[name] = max(parts, default=0.0)
    rows = []
    for known, got in zip(reference.structures, found, strict=True):
        system, n_atoms = known.system, len(known.system.atomic_numbers)
        for name, truth in known.truth.items():
            quantity, size = QUANTITIES[name], known.size(name)
            error = _largest(got.get(name), truth) / known.atoms(name)
            own = known.own_error(name) if single else None
            limit = rounding * size
            if quantity.per_atom:
                limit *= 0.1  # free atoms contribute much of an energy
            if own is None:
                limit += quantity.atol
            else:
                limit += 2.0 * max(absolute[name], relative[name] * size)
            if name == "forces" and atol_forces is not None:
                limit = atol_forces
            facts = (system.name, name, quantity.unit, n_atoms, known.n_edges)
            rows.append(Deviation(*facts, error, own, limit))
    dtype = str(reference.dtype).removeprefix("torch.")
    return VerificationReport(dtype, str(reference.device), tuple(rows))


def evaluate_outputs(
    model: torch.nn.Module,
    info: ModelInfo,
    system: Structure,
    head: str | None = None,
) -> tuple[int, Outputs]:
    """Return the number of edges and the outputs of a model, run as in dynamics.

    VerificationError says that the model does not run.
    """
    try:
        with (
            _as_in_dynamics(model),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            n_edges, output = evaluate_structure(model, info, system, head)
    except MdcgError:
        raise  # for example, a compiler is missing
    except Exception as error:
        # any error here would also stop users of the model
        raise VerificationError(
            f"{info.model_class} does not run on the {system.name} structure "
            f"({type(error).__name__}: {error}): use --no-verify if it needs inputs that mdcg "
            "does not give"
        ) from error
    values = {
        name: value.detach().double().cpu()
        for name, value in output.items()
        if name in QUANTITIES and isinstance(value, torch.Tensor)
    }
    return n_edges, values


@contextmanager
def _as_in_dynamics(model: torch.nn.Module) -> Iterator[None]:
    """Freeze the parameters, so that the kernels for dynamics are compiled."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with frozen(model.parameters()):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _largest(a: torch.Tensor | None, b: torch.Tensor) -> float:
    if a is None or a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().max()) if b.numel() else 0.0
