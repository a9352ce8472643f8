"""The backend of MDCGCalculator for packages: the engine in C++, without torch."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.calculator import CalculationFailed, InputError

from .. import _core
from ..errors import (
    DeviceError,
    KernelCompileError,
    PackageError,
    UnsupportedProblemError,
    printable_values,
)
from ..package.inputs import FIELD_COMPONENTS
from ..problem.text import dtype_of
from .descriptors import LayerFeatures
from .drop_in import check_model_type
from .engine_report import EngineReport, KernelLog
from .evaluation import (
    Evaluation,
    Options,
    known_symbols,
    mean_of,
    require_known,
    result_of,
    types_by_number,
)
from .heat_flux import heat_flux, unfold
from .stated_inputs import (
    EXTERNAL_FIELD,
    HEAD,
    check_fixed_inputs,
    input_values,
    inputs_of_manifest,
    keys_of_input,
    stated_head,
    stated_inputs,
)

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Values of mdcg_status, and their exceptions.
_ARGUMENT, _FILE, _UNSUPPORTED, _COMPILER, _MEMORY, _COMMUNICATION, _NUMERIC = range(1, 8)
_DEVICE = 9
_ERRORS: dict[int, type[Exception]] = {
    _ARGUMENT: ValueError,
    _FILE: PackageError,
    _UNSUPPORTED: UnsupportedProblemError,
    _COMPILER: KernelCompileError,
    _MEMORY: MemoryError,
    _NUMERIC: CalculationFailed,
    _DEVICE: DeviceError,
}


@contextmanager
def engine_errors(argument: type[Exception] = ValueError) -> Iterator[None]:
    """Turn errors of the engine into exceptions of mdcg and ASE."""
    try:
        yield
    except _core.EngineError as error:
        kind = argument if error.kind == _ARGUMENT else _ERRORS.get(error.kind, RuntimeError)
        raise kind(str(error)) from None
    except _core.GeometryError as error:
        raise InputError(str(error)) from None


class _Member:
    """One package of a committee, or the dispersion of the first package."""

    model: _core.Model

    def __init__(self, package: str | _Member, options: Options, **engine: Any) -> None:
        opened = package.model if isinstance(package, _Member) else package
        with engine_errors():
            self.model = _core.Model(
                opened, threads=options.threads or 0, skin=options.skin, **engine
            )
        self.path: str = package.path if isinstance(package, _Member) else package
        self.kernel_log = KernelLog(self.model, self.path, engine["device"])
        self.manifest: dict[str, Any] = json.loads(self.model.manifest)
        self.types = types_by_number(self.model.type_names, options.species_types)
        self.has_dipoles, self.has_charges = (n in self.manifest for n in ("dipoles", "charges"))
        self.inputs = inputs_of_manifest(self.manifest)
        self._info_keys = options.info_keys

    def inputs_of(self, atoms: Atoms) -> FloatArray:
        """Return the values of the package's inputs for a structure, shape (n_inputs,)."""
        return input_values(self.inputs, atoms.info, self.path, keys=self._info_keys)

    def evaluate(
        self, positions: FloatArray, types: npt.NDArray[np.integer[Any]], **options: Any
    ) -> dict[str, Any]:
        """Evaluate one structure, with options of the engine."""
        self.kernel_log.before()
        with engine_errors(InputError):
            return self.model.evaluate(positions, types, **options)

    def evaluate_batch(self, **batch: Any) -> dict[str, Any]:
        """Evaluate many structures."""
        self.kernel_log.before()
        with engine_errors(InputError):
            return self.model.evaluate_batch(**batch)


def _flags(wanted: set[str]) -> dict[str, bool]:
    """Return the wanted results as flags of the engine."""
    names = {"forces": "forces", "virial": "stress", "virials": "stresses"}
    flags = {name: of in wanted for name, of in names.items()}
    return {**flags, "descriptors": bool(wanted & {"dipole", "charges"})}


def _cell_of(atoms: Atoms) -> dict[str, Any]:
    """Return options that make the engine find the neighbours of a structure."""
    return {"cell": atoms.cell.array, "periodic": atoms.pbc}


def _fixed_inputs(members: Sequence[_Member]) -> dict[str, int]:
    """Return the value of each input that the conversion fixed."""
    found: dict[str, int] = {}
    for member in members:
        for name, value in member.model.fixed_inputs.items():
            if found.setdefault(name, value) != value:
                raise ValueError(
                    f"{member.path} was made for {name}={value}, and another package of the "
                    f"committee for {name}={found[name]}, expected packages made for one value"
                )
    return found


def _reopen(paths: Sequence[str], digests: Sequence[str], options: Options) -> PackageBackend:
    """Open the packages of a copied calculator again."""
    backend = PackageBackend(paths, options)
    for member, digest in zip(backend._members, digests, strict=True):
        if member.model.digest != digest:
            raise PackageError(
                f"{member.path} has changed since the calculator was made from it, so the "
                "calculator cannot be copied: make a new one from the file"
            )
    return backend


_backends: WeakSet[PackageBackend] = WeakSet()


def _after_fork() -> None:
    """Replace all locks in a forked child, because threads of the parent may hold them."""
    for backend in _backends:
        backend._needs_reopen = backend._needs_reopen or backend._evaluates.locked()
        backend._lock, backend._evaluates = threading.RLock(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class PackageBackend:
    """One package, or a committee of several that share a neighbour list.

    The dtype and head of the options can only confirm those of the packages.
    """

    model = None
    is_patched = False
    #: None, because packages are not patched.
    patch_report = None

    def __init__(self, paths: Sequence[str | os.PathLike[str]], options: Options) -> None:
        if not paths:
            raise ValueError("the committee is empty, expected one package or more")
        self.device = "cpu" if options.device is None else str(options.device)
        if not re.fullmatch(r"cpu|(cuda|hip)(:\d+)?", self.device):
            raise DeviceError(
                f"device is {self.device!r}, expected 'cpu', 'cuda', 'cuda:N', 'hip' or 'hip:N' "
                "for a package"
            )
        self._options = replace(options, device=self.device)
        # absolute, because the working folder may differ when a copy is opened
        self._files = [str(Path(path).absolute()) for path in paths]
        engine = {
            "kernels": options.kernels,
            "precision": options.precision or "",
            "memory": options.memory or "",
            "memory_models": len(paths),
        }
        self._members = [
            _Member(os.fspath(path), options, device=self.device, **engine) for path in paths
        ]
        if options.fixed_waves:  # of packages with a long-range sum; if there is none, an error
            sums = [member.model.is_long_range for member in self._members]
            engine["fixed_waves"] = True
            self._members = [
                _Member(member, options, device=self.device, **engine)
                if is_sum or not any(sums)
                else member
                for member, is_sum in zip(self._members, sums, strict=True)
            ]
        first = self._members[0]
        self._dispersion: _Member | None = None
        if options.dispersion:
            engine = {"kernels": options.kernels, **options.dispersion}
            self._dispersion = _Member(first, options, device=self.device, **engine)
        self._engines = [*self._members, *([self._dispersion] if self._dispersion else [])]
        for member in self._members:
            self._check(member, options.dtype, options.head)
        with_energies = {member.model.has_energy for member in self._members}
        if len(with_energies) > 1 or (options.dispersion and with_energies == {False}):
            raise ValueError(
                "a package gives dipoles and no energies, expected all packages of a committee to "
                "give energies, and one that does where dispersion is added: leave it out"
            )
        self._fixed_inputs = _fixed_inputs(self._members)
        # names of inputs that any member reads
        self._inputs = list(dict.fromkeys(i.name for m in self._members for i in m.inputs))
        self.name = first.path if len(paths) == 1 else ", ".join(m.path for m in self._members)
        self.dtype = first.model.dtype
        self.head = first.manifest.get("head") or "Default"
        self.heads = (self.head,)
        self.model_class = first.model.model_class
        check_model_type(options.model_type, self.model_class)
        self.r_max = max(member.model.r_max for member in self._members)
        self.has_dipoles = all(member.has_dipoles for member in self._members)
        self.has_charges = all(member.has_charges for member in self._members)
        self.reach = options.reach(self.r_max)
        self.is_long_range = any(member.model.is_long_range for member in self._members)
        self.has_energies = all(member.model.has_energy for member in self._members)
        self.neighbors = _core.NeighborList(self.r_max, options.skin)
        # only an engine that finds neighbours itself can divide a structure
        self._engine_makes_lists = self.device != "cpu" or bool(options.memory)
        self._threads = options.threads or 0
        self._lock = threading.RLock()  # held from the update of the list until it has been read
        self._evaluates = threading.Lock()
        self._numbers: IntArray | None = None  # atomic numbers of the last structure
        self._types: list[npt.NDArray[np.int32]] = []  # its types for each package
        self._needs_reopen = False  # True after a fork during an evaluation
        _backends.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to open the packages again; copies share nothing with this backend."""
        digests = [member.model.digest for member in self._members]
        return _reopen, (self._files, digests, self._options), {"name": self.name}

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads out, and release memory after a MemoryError.

        A signal handler that has interrupted an evaluation gets CalculationFailed.
        """
        with self._lock:
            if self._evaluates.locked():  # by this thread
                raise CalculationFailed(
                    "the calculator is evaluating, and a signal handler that has interrupted it "
                    "asks for another evaluation: ask after the evaluation"
                )
            with self._evaluates:
                if self._needs_reopen:
                    self._open_again()
                try:
                    yield
                except MemoryError:
                    self.neighbors.release()
                    for member in self._engines:
                        member.model.release()
                    raise
                for member in self._engines:
                    member.kernel_log.after()

    def _open_again(self) -> None:
        """Open the packages again. Half-changed objects are kept and never destroyed."""
        before = vars(self).copy()
        reopen, arguments, state = self.__reduce__()
        vars(self).update({**vars(reopen(*arguments)), **state, "_before_fork": before})
        self._lock, self._evaluates = before["_lock"], before["_evaluates"]

    @property
    def species(self) -> tuple[str, ...]:
        """Chemical symbols that every model knows."""
        known = np.min([member.types for member in self._members], axis=0)
        return tuple(known_symbols(known))

    def describe(self) -> str:
        """Return a description of the model for the calculator's ``repr``."""
        count = len(self._members)
        kind = f"package of {self.model_class}" if count == 1 else f"committee of {count} packages"
        if self._fixed_inputs:
            values = [f"{name}={value}" for name, value in self._fixed_inputs.items()]
            kind += f" made for {', '.join(values)}"
        if self._inputs:
            names = [EXTERNAL_FIELD if n in FIELD_COMPONENTS else n for n in self._inputs]
            kind += f" that reads {' and '.join(dict.fromkeys(names))}"
        return f"{kind} with {self._dispersion.model.model_class}" if self._dispersion else kind

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of inputs that a package reads, or that its conversion fixed."""
        return (*self._inputs, *self._fixed_inputs)

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return what structures state of the packages' inputs, and charges of dipoles."""
        names = (*self.input_names, *FIELD_COMPONENTS, HEAD)
        found = stated_inputs(names, atoms.info, self._options.info_keys)
        charges = atoms.arrays.get(self._options.charges_key)
        return found | ({"charges": charges} if self.has_dipoles and charges is not None else {})

    def evaluate(self, atoms: Atoms, wanted: set[str]) -> Evaluation:
        """Evaluate the packages on one structure; a committee gives mean and deviation."""
        self.check_inputs(atoms)
        if len(atoms) == 0:
            return Evaluation.of_nothing(wanted)
        with self._exclusive():
            self._update(atoms)
            found = [
                self._result(self._run(number, atoms, **_flags(wanted)), atoms)
                for number in range(len(self._members))
            ]
            if self._dispersion:
                types = self._dispersion.types[atoms.numbers]
                options = _cell_of(atoms) | _flags(wanted - {"dipole", "charges"})
                added = self._dispersion.evaluate(atoms.positions, types, **options)
                found = [each + self._result(added, atoms) for each in found]
        return found[0] if len(found) == 1 else mean_of(found)

    def evaluate_batch(self, images: Sequence[Atoms], wanted: set[str]) -> list[Evaluation]:
        """Evaluate several structures at once."""
        for atoms in images:
            self.check_inputs(atoms)
            self._check_species(atoms)
        inputs = [
            np.array([member.inputs_of(atoms) for atoms in images]).reshape(-1, len(member.inputs))
            if member.inputs
            else None
            for member in self._members
        ]
        numbers = np.concatenate([[0], *(atoms.numbers for atoms in images)])[1:].astype(np.int64)
        place: dict[str, Any] = {
            "first_node": np.cumsum([0, *(len(atoms) for atoms in images)]),
            "positions": np.concatenate([np.zeros((0, 3)), *(a.positions for a in images)]),
            "cells": np.array([atoms.cell.array for atoms in images]).reshape(-1, 3, 3),
            "periodic": np.array([atoms.pbc for atoms in images], dtype=bool).reshape(-1, 3),
        }
        with self._exclusive():
            found = [
                member.evaluate_batch(
                    types=member.types[numbers], inputs=own, **place, **_flags(wanted)
                )
                for member, own in zip(self._members, inputs, strict=True)
            ]
            if self._dispersion:
                types, flags = (
                    self._dispersion.types[numbers],
                    _flags(wanted - {"dipole", "charges"}),
                )
                distant = self._dispersion.evaluate_batch(types=types, **place, **flags)
        if self._dispersion:
            found = [{name: near[name] + distant.get(name, 0.0) for name in near} for near in found]
        starts = place["first_node"]

        def single(result: dict[str, Any], number: int) -> Evaluation:
            rows = slice(starts[number], starts[number + 1])
            part = {
                name: values[number if name in ("energy", "virial") else rows]
                for name, values in result.items()
            }
            return self._result(part, images[number])

        results = [[single(result, n) for result in found] for n in range(len(images))]
        return [each[0] if len(each) == 1 else mean_of(each) for each in results]

    def descriptors(self, atoms: Atoms, all_members: bool) -> list[LayerFeatures]:
        """Return features of every atom, of the first package or of all."""
        self.check_inputs(atoms)
        found = []
        with self._exclusive():
            if len(atoms):
                self._update(atoms)
            for number, member in enumerate(self._members[: None if all_members else 1]):
                layers = [member.manifest["values"][n] for n in member.manifest["descriptors"]]
                # dipoles or charges are the last
                kept = layers[: len(layers) - member.has_dipoles - member.has_charges]
                rows = np.zeros((0, member.model.descriptor_width))
                if len(atoms):
                    rows = self._run(number, atoms, forces=False, descriptors=True)["descriptors"]
                found.append(LayerFeatures.of(rows, kept))
        return found

    def heat_flux(self, atoms: Atoms) -> FloatArray:
        """Return the heat flux; for a committee, the mean of its packages."""
        if self._dispersion:
            raise UnsupportedProblemError(
                "the heat flux of dispersion is not implemented: use a calculator without "
                "dispersion for it"
            )
        self.check_inputs(atoms)
        self._check_species(atoms)
        if len(atoms) == 0:
            return np.zeros(3)
        edges = _core.NeighborList(self.r_max, 0.0)
        with engine_errors(InputError):
            edges.update(atoms.positions, atoms.cell.array, atoms.pbc, self._threads)
        with self._exclusive():
            found = [
                heat_flux(
                    atoms,
                    unfold(atoms, edges, member.model.num_exchanges + 1),
                    member.types[atoms.numbers],
                    partial(member.evaluate, inputs=member.inputs_of(atoms)),
                )
                for member in self._members
            ]
        return np.asarray(np.mean(found, axis=0))

    def report(self) -> EngineReport:
        """Return kernels and times of the last evaluation."""
        parts = []
        for member in self._engines:
            with engine_errors():
                found = printable_values(json.loads(member.model.report()))  # compilers quote
            of = ", dispersion" if member is self._dispersion else ""
            parts.append({"package": member.path + of, **found})
        return EngineReport(tuple(parts))

    def _result(self, found: dict[str, Any], atoms: Atoms) -> Evaluation:
        return result_of(found, atoms, self.has_charges, self._options, self.reach)

    def _run(self, number: int, atoms: Atoms, **wanted: Any) -> dict[str, Any]:
        member, types = self._members[number], self._types[number]
        place = _cell_of(atoms) if self._engine_makes_lists else {"edges": self.neighbors}
        inputs = member.inputs_of(atoms)
        return member.evaluate(atoms.positions, types, inputs=inputs, **place, **wanted)

    def _update(self, atoms: Atoms) -> None:
        """Update types and, unless the engine makes lists itself, the neighbour list."""
        if self._numbers is None or not _core.arrays_agree(self._numbers, atoms.numbers, 0.0):
            self._numbers = None
            self._check_species(atoms)
            self._types = [m.types[atoms.numbers].astype(np.int32) for m in self._members]
            self.neighbors.reset()
            self._numbers = atoms.numbers.copy()
        if self._engine_makes_lists:
            return
        with engine_errors(InputError):
            self.neighbors.update(atoms.positions, atoms.cell.array, atoms.pbc, self._threads)

    def _check(self, member: _Member, dtype: object, head: str | None) -> None:
        model = member.model
        wanted = None if dtype is None else dtype_of(dtype)
        if wanted is not None and wanted != model.dtype:
            raise ValueError(
                f"dtype is {wanted}, but {member.path} was converted to {model.dtype}, which is "
                "fixed: leave out dtype, or convert the checkpoint again (mdcg-patch --dtype)"
            )
        own = member.manifest.get("head") or "Default"
        if head is not None and head != own:
            raise ValueError(
                f"head is {head!r}, but {member.path} was converted with head {own!r}: leave out "
                "head, or convert the checkpoint again (mdcg-patch --head)"
            )

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if the packages cannot use what a structure states of inputs."""
        keys = self._options.info_keys
        head = stated_head(atoms, self._options)
        for member in self._members:
            reads = [each.name for each in member.inputs]
            check_fixed_inputs(member.model.fixed_inputs, atoms.info, member.path, reads, keys)
            own = member.manifest.get("head")
            heads = member.manifest.get("heads")
            # packages of older versions and of most checkpoints with one head have no list
            several = own not in (None, "Default") if heads is None else len(heads) > 1
            if head is not None and several and head != own:
                raise InputError(
                    f"head of the structure is {head!r}, and {member.path} was converted with head "
                    f"{own!r}: convert the checkpoint again with mdcg-patch --head {head}, or "
                    f"remove {keys_of_input(HEAD, keys)[0]!r} from atoms.info"
                )
        used: dict[str, float] = {
            keys_of_input(name, keys)[0]: value for name, value in self._fixed_inputs.items()
        }
        for member in self._members:
            for each, value in zip(member.inputs, member.inputs_of(atoms), strict=True):
                key = keys_of_input(each.name, keys)[0]
                if used.setdefault(key, value) != value:
                    raise InputError(
                        f"the structure has no {each.name}, for which packages of the committee "
                        f"have different values ({used[key]:g} and {value:g}): set "
                        f"atoms.info[{key!r}]"
                    )

    def _check_species(self, atoms: Atoms) -> None:
        numbers = np.asarray(atoms.numbers, dtype=np.int64)
        for member in self._members:
            require_known(numbers, member.types)
