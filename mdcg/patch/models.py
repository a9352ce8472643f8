"""Models of MACE, NequIP, SevenNet and Nequix: properties, inputs, copies, records."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from .. import _core
from ..errors import printable, printable_values
from . import nequix_files, sevennet_files
from .nequix_files import is_nequix, nequix_elements
from .sevennet_files import is_sevennet, sevennet_elements, sevennet_modals

M = TypeVar("M", bound=torch.nn.Module)


def copy_model(model: M) -> M:
    """Return a deep copy of a model.

    mace marks the weights of missing paths with a class of parameter that ``copy.deepcopy`` cannot
    construct. The copy has an ordinary parameter without gradient in its place. SevenNet's shifted
    softplus is a function of TorchScript, which cannot be copied and is shared.
    """
    memo: dict[int, Any] = {
        id(parameter): torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
        for parameter in model.parameters()
        if type(parameter).__name__ == "EmptyParam"
    }
    for module in model.modules():
        given = [value for value in module.__dict__.values() if isinstance(value, dict)]
        for value in chain(module.__dict__.values(), *(each.values() for each in given)):
            if isinstance(value, torch.jit.ScriptFunction):
                memo[id(value)] = value
    return copy.deepcopy(model, memo)


#: Attribute of the model with its record as JSON text, which TorchScript and old readers accept.
_ATTRIBUTE = "_mdcg_record"


def model_record(model: torch.nn.Module) -> dict[str, Any]:
    """Return the record (``head``, ``source``, ``versions``, ...), or an empty dict."""
    return printable_values(json.loads(model.__dict__.get(_ATTRIBUTE, "{}")))


def set_model_record(model: torch.nn.Module, record: dict[str, Any]) -> None:
    model.__dict__[_ATTRIBUTE] = json.dumps(record, sort_keys=True)


def clear_record(model: torch.nn.Module) -> None:
    model.__dict__.pop(_ATTRIBUTE, None)


@dataclass(frozen=True)
class ModelInfo:
    """The properties of a model that its inputs depend on."""

    model_class: str  # such as "ScaleShiftMACE"; "GraphModel" for all models of NequIP
    atomic_numbers: tuple[int, ...]  # in the order of MACE's one-hot columns; empty for NequIP
    r_max: float  # cutoff in Å
    heads: tuple[str, ...]  # ("Default",) for NequIP, and for MACE files older than heads
    # dtype of the parameters; NequIP's positions and energies are always float64
    dtype: torch.dtype
    device: torch.device  # device of the parameters
    # Extra inputs of a MACE model (`embedding_specs`) by name: ("graph" or "node", "categorical" or
    # "continuous", number of columns).
    graph_features: Mapping[str, tuple[str, str, int]]
    default_head: str | None = None  # the default head that mdcg-patch stored
    type_names: tuple[str, ...] = ()  # names of NequIP's atom types, in the order of their numbers
    # [receiver's type, sender's type], Å; None if NequIP's types have one cutoff
    cutoffs: NDArray[np.float64] | None = None
    framework: str = "mace"  # or "nequip", "sevennet" or "nequix"

    @property
    def is_nequip(self) -> bool:
        return bool(self.type_names)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of atoms of structures: atomic numbers, or types of NequIP."""
        return self.atomic_numbers or tuple(range(len(self.type_names)))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Chemical symbols of the elements, or names of the types."""
        from ase.data import chemical_symbols

        return self.type_names or tuple(chemical_symbols[z] for z in self.atomic_numbers)

    @property
    def head_word(self) -> str:
        """What the framework calls a head."""
        return "modal" if self.framework == "sevennet" else "head"

    def head_index(self, head: str | None) -> int:
        """Return the index of a head; None stands for the default head or the only one."""
        names = ", ".join(self.heads)
        if head is None:
            head = self.default_head
        if head is None:
            if len(self.heads) > 1:
                raise ValueError(
                    f"the model has {len(self.heads)} {self.head_word}s ({names}): name one with "
                    f"head= (on the command line --{self.head_word})"
                )
            return 0
        if head not in self.heads:
            if self.is_nequip:
                raise ValueError(f"head {head!r} is not in the model: NequIP models have no heads")
            raise ValueError(
                f"{self.head_word} {head!r} is not in the model, expected one of: {names}"
            )
        return self.heads.index(head)

    def species(self, atomic_numbers: ArrayLike) -> NDArray[np.int64]:
        """Return the one-hot column of every atom; raise ValueError for an unknown element."""
        numbers = np.asarray(atomic_numbers, dtype=np.int64).reshape(-1)
        known = np.asarray(self.atomic_numbers, dtype=np.int64)
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known, numbers, sorter=order)
        columns = order[np.minimum(place, len(known) - 1)]
        wrong = known[columns] != numbers
        if wrong.any():
            got = ", ".join(str(z) for z in sorted(set(numbers[wrong].tolist())))
            want = ", ".join(str(z) for z in self.atomic_numbers)
            raise ValueError(f"atomic number {got} is not in the model, expected any of: {want}")
        return np.asarray(columns, dtype=np.int64)


def mace_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a MACE model, or raise TypeError."""
    for name in ("atomic_numbers", "r_max"):
        if not hasattr(model, name):
            raise TypeError(
                f"{type(model).__name__} has no {name}, expected a MACE, NequIP or SevenNet model"
            )
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)
    numbers: Any = model.atomic_numbers
    r_max: Any = model.r_max
    heads = getattr(model, "heads", None) or ["Default"]
    return ModelInfo(
        model_class=printable(type(model).__name__),
        atomic_numbers=tuple(int(z) for z in numbers),
        r_max=float(r_max),
        heads=tuple("Default" if head is None else printable(str(head)) for head in heads),
        dtype=torch.float32 if reference is None else reference.dtype,
        device=torch.device("cpu") if reference is None else reference.device,
        graph_features=_graph_features(model),
        default_head=model_record(model).get("head"),
    )


def _graph_features(model: torch.nn.Module) -> dict[str, tuple[str, str, int]]:
    specs: Mapping[str, Mapping[str, Any]] = getattr(model, "embedding_specs", None) or {}
    return {
        name: (str(spec["per"]), str(spec["type"]), int(spec.get("in_dim", 1)))
        for name, spec in specs.items()
    }


def check_shapes(n_nodes: int, positions: Any, edge_index: Any, shifts: Any, cell: Any) -> None:
    """Raise ValueError if an array of a structure has the wrong shape."""
    n_edges = edge_index.shape[-1]
    for name, array, want in (
        ("positions", positions, (n_nodes, 3)),
        ("edge_index", edge_index, (2, n_edges)),
        ("unit_shifts", shifts, (n_edges, 3)),
        ("cell", cell, (3, 3)),
    ):
        if tuple(array.shape) != want:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {want}")


def neighbor_list(
    positions: ArrayLike,  # [num_nodes, 3], Å; need not be wrapped into the cell
    cell: ArrayLike,  # [3, 3], rows are vectors, Å; rows of open directions are not used
    pbc: Sequence[bool],
    cutoff: float,  # Å
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs within a cutoff, in both directions and with periodic images.

    The result is ``edge_index`` [2, num_edges], row 0 senders i and row 1 receivers j, and
    ``unit_shifts`` [num_edges, 3], integers S for edge vectors ``r_j - r_i + S @ cell``.
    """
    points = np.ascontiguousarray(positions, dtype=np.float64).reshape(-1, 3)
    near = _core.NeighborList(float(cutoff), 0.0)
    near.update(points, np.asarray(cell, dtype=np.float64), [bool(p) for p in pbc])
    edge_index = np.stack([near.sender, near.receiver]).astype(np.int64)
    vectors = points[edge_index[1]] - points[edge_index[0]] + near.shifts
    # the list extends slightly beyond the cutoff, so that rounding cannot lose an edge
    kept = np.einsum("ij,ij->i", vectors, vectors) < cutoff**2
    return edge_index[:, kept], near.cell_shifts()[kept].astype(np.int64)


def complete_cell(cell: ArrayLike, pbc: Sequence[bool]) -> NDArray[np.float64]:
    """Return a cell with unit vectors, normal to the periodic ones, for the open directions."""
    box = np.array(cell, dtype=np.float64).reshape(3, 3)
    periodic = [axis for axis in range(3) if pbc[axis]]
    if np.linalg.matrix_rank(box[periodic]) < len(periodic):
        raise ValueError(
            f"cell {box.tolist()} has no volume along its periodic directions {periodic}"
        )
    # the null space of the periodic rows gives the missing directions
    _, _, basis = np.linalg.svd(np.vstack([box[periodic], np.zeros((1, 3))]))
    missing = iter(basis[len(periodic) :])
    for axis in range(3):
        if axis not in periodic:
            box[axis] = next(missing)
    return box


def mace_batch(
    info: ModelInfo,
    atomic_numbers: ArrayLike,  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike,  # [3, 3], rows are vectors, Å
    pbc: Sequence[bool],
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers, any order
    unit_shifts: ArrayLike,  # [num_edges, 3], integers, zero along open directions
    *,
    head: str | None = None,  # needed if the model has several and no default
    extras: Mapping[str, torch.Tensor] | None = None,  # further entries, or replacements
) -> dict[str, torch.Tensor]:
    """Build the ``data`` argument of a MACE model's ``forward`` for one structure.

    ``forward`` overwrites the entries ``positions`` and ``shifts``: pass ``dict(batch)`` to use a
    batch twice. The model divides the virial by the determinant of the cell; if that is zero, the
    stress is zero.
    """
    dtype, device = info.dtype, info.device
    species = torch.from_numpy(info.species(atomic_numbers))
    n_nodes = len(species)
    points = torch.as_tensor(np.array(positions, dtype=np.float64))
    edges = torch.as_tensor(np.asarray(edge_index, dtype=np.int64))
    shifts = torch.as_tensor(np.asarray(unit_shifts, dtype=np.float64))
    box = torch.as_tensor(np.array(cell, dtype=np.float64))
    check_shapes(n_nodes, points, edges, shifts, box)
    volume = torch.linalg.det(box)
    has_volume = math.isfinite(float(volume)) and abs(float(volume)) > 0.0
    reciprocal = 2 * math.pi * torch.linalg.inv(box.mT) if has_volume else torch.zeros_like(box)

    def real(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype=dtype, device=device)

    one_hot = torch.zeros(n_nodes, len(info.atomic_numbers), dtype=torch.float64)
    one_hot[torch.arange(n_nodes), species] = 1.0
    batch = {
        "positions": real(points),
        "node_attrs": real(one_hot),
        "edge_index": edges.to(device),
        "shifts": real(shifts @ box),
        "unit_shifts": real(shifts),
        "cell": real(box),
        "batch": torch.zeros(n_nodes, dtype=torch.int64, device=device),
        "ptr": torch.tensor([0, n_nodes], dtype=torch.int64, device=device),
        "head": torch.tensor([info.head_index(head)], dtype=torch.int64, device=device),
        "pbc": torch.tensor([[bool(p) for p in pbc]], device=device),
        "volume": real(volume.reshape(1)),
        "rcell": real(reciprocal),
        "charges": real(torch.zeros(n_nodes)),
        "total_charge": real(torch.zeros(1)),
        "total_spin": real(torch.ones(1)),
        "external_field": real(torch.zeros(1, 3)),
        "fermi_level": real(torch.zeros(1)),
        "density_coefficients": real(torch.zeros(n_nodes, 1)),
    }
    for name, (per, _, width) in info.graph_features.items():
        if name not in batch:
            batch[name] = real(torch.zeros(1) if per == "graph" else torch.zeros(n_nodes, width))
    if extras:
        batch.update(extras)
    return batch


def is_nequip(model: torch.nn.Module) -> bool:
    """Whether a model is a complete NequIP model, from a package or not."""
    return bool(getattr(type(model), "is_graph_model", False))


def nequip_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a NequIP model; raise TypeError if it has no metadata."""
    metadata: Any = getattr(model, "metadata", None)
    if not metadata or "r_max" not in metadata or "type_names" not in metadata:
        raise TypeError(
            f"{type(model).__name__} has no metadata with r_max and type_names, expected a model "
            "built by NequIP 0.7 or newer"
        )
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)
    names = tuple(map(printable, str(metadata["type_names"]).split()))
    text = metadata.get("per_edge_type_cutoff")
    cutoffs = None
    if text:
        cutoffs = np.array([float(part) for part in str(text).split()]).reshape(2 * (len(names),))
    return ModelInfo(
        model_class=printable(type(model).__name__),
        atomic_numbers=(),
        r_max=float(metadata["r_max"]),
        heads=("Default",),
        dtype=_dtype_of(model),
        device=torch.device("cpu") if reference is None else reference.device,
        graph_features={},
        type_names=names,
        cutoffs=cutoffs,
        framework="nequip",
    )


def sevennet_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a SevenNet model, whose modals are the heads."""
    found: Any = model
    reference = next(p for p in model.parameters() if p.is_floating_point())
    return ModelInfo(
        model_class=type(model).__name__,
        atomic_numbers=sevennet_elements(found),
        r_max=float(found.cutoff),
        heads=tuple(map(printable, sevennet_modals(found))) or ("Default",),
        dtype=reference.dtype,
        device=reference.device,
        graph_features={},
        framework="sevennet",
    )


def nequix_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a Nequix model, or raise TypeError."""
    found: Any = model
    return ModelInfo(
        model_class=type(model).__name__,
        atomic_numbers=nequix_elements(model),
        r_max=float(found.cutoff),
        heads=("Default",),
        dtype=found.readout.weight.dtype,
        device=found.readout.weight.device,
        graph_features={},
        framework="nequix",
    )


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    # parameters of scale and shift are float64 in all models
    for module in model.modules():
        product = getattr(module, "tp", None)
        if product is not None and hasattr(product, "output_mask"):
            return product.output_mask.dtype
    return getattr(model, "model_dtype", torch.float32)


def categorical_fields(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest value of each per-structure field of a NequIP model."""
    found: dict[str, tuple[int, int]] = {}
    for module in model.modules():
        first = getattr(module, "categorical_graph_field_embed_shifts", None) or {}
        tables: Any = getattr(module, "categorical_graph_field_embed_modules", {})
        for name, lowest in first.items():
            found[name] = (int(lowest), int(lowest) + len(tables[name].weight) - 1)
    return found


def nequip_batch(
    info: ModelInfo,
    types: ArrayLike,  # [num_nodes]
    positions: ArrayLike,  # [num_nodes, 3], Å
    cell: ArrayLike | None,  # [3, 3], rows are vectors, Å
    edge_index: ArrayLike,  # [2, num_edges], row 0 senders, row 1 receivers
    unit_shifts: ArrayLike,  # [num_edges, 3], integers
) -> dict[str, torch.Tensor]:
    """Build the ``data`` argument of a NequIP model's ``forward`` for one structure.

    Edges are in the format of :func:`~mdcg.patch.models.neighbor_list`, whose two rows this
    function exchanges for NequIP. Without a cell, the model gives no stress.
    """
    kinds = np.asarray(types, dtype=np.int64).reshape(-1)
    if len(kinds) and not (kinds.min() >= 0 and kinds.max() < len(info.type_names)):
        raise ValueError(
            f"types are {kinds.min()} to {kinds.max()}, expected 0 to {len(info.type_names) - 1} "
            f"for the types {', '.join(info.type_names)}"
        )
    points = np.array(positions, dtype=np.float64)
    edges = np.asarray(edge_index, dtype=np.int64)
    shifts = -np.asarray(unit_shifts, dtype=np.float64)  # NequIP's edges point to the sender
    box = np.zeros((3, 3)) if cell is None else np.array(cell, dtype=np.float64)
    check_shapes(len(kinds), points, edges, shifts, box)
    batch = {
        "pos": torch.from_numpy(points),
        "atom_types": torch.from_numpy(kinds.copy()),
        "edge_index": torch.from_numpy(np.ascontiguousarray(edges[::-1])),
    }
    if cell is not None:
        batch["cell"] = torch.from_numpy(box).reshape(1, 3, 3)
        batch["edge_cell_shift"] = torch.from_numpy(shifts)
    return {name: value.to(info.device) for name, value in batch.items()}


@contextmanager
def without_derivatives(model: torch.nn.Module, wanted: bool) -> Iterator[None]:
    """Switch off forces and stress of a NequIP model for a while, if `wanted`."""
    if not wanted:
        yield
        return
    outputs: Sequence[Any] = [m for m in model.modules() if "do_derivatives" in m.__dict__]
    before = [output.do_derivatives for output in outputs]
    try:
        for output in outputs:
            output.do_derivatives = False
        yield
    finally:
        for output, value in zip(outputs, before, strict=True):
            output.do_derivatives = value


def gives_forces(model: torch.nn.Module) -> bool:
    return any(m.__dict__.get("do_derivatives", False) for m in model.modules())


def as_outputs(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs of a NequIP model under MACE's names."""
    names = {"total_energy": "energy", "forces": "forces", "virial": "virials", "stress": "stress"}
    outputs = {new: found[old] for old, new in names.items() if old in found and found[old].numel()}
    if "LES_q" in found:
        outputs["charges"] = found["LES_q"].reshape(-1)
    if "energy" in outputs:
        outputs["energy"] = outputs["energy"].reshape(-1)  # one per structure
    return outputs


#: Attributes of NequIP's modules with the dtype for which they were built.
_DTYPE_ATTRIBUTES = ("_output_dtype", "model_dtype")
#: Classes of mace with sums over reciprocal space, whose energy depends on the choice of the cell.
RECIPROCAL_MODELS = ("MACELES", "PolarMACE")


def model_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a model of MACE, NequIP, SevenNet or Nequix, or raise TypeError."""
    if is_sevennet(model):
        return sevennet_info(model)
    if is_nequix(model):
        return nequix_info(model)
    return nequip_info(model) if is_nequip(model) else mace_info(model)


def copy_in_dtype(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return a copy of a model in another precision.

    NequIP's modules also cast to a stored dtype, SevenNet's to float32, and Nequix's products have
    constants, none of which ``model.to`` changes.
    """
    found = copy_model(model).to(dtype)
    if is_sevennet(found):
        sevennet_files.compute_in(found, dtype)
    if is_nequix(found):
        nequix_files.compute_in(found, dtype)
    for module in found.modules():
        for name in _DTYPE_ATTRIBUTES:
            if module.__dict__.get(name) in (torch.float32, torch.float64):
                module.__dict__[name] = dtype
    return found


@contextmanager
def frozen(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Switch off gradients of parameters for a while, so that autograd stores nothing for them."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def lacks_radial_derivative(model: torch.nn.Module) -> bool:
    """Whether a model's forces are not the gradient of its energy.

    mace gives the polynomials of ``radial_type="chebyshev"`` a derivative of zero.
    """
    basis = getattr(getattr(model, "radial_embedding", None), "bessel_fn", None)
    return type(basis).__name__ == "ChebychevBasis"


def lacks_strain_derivative(model: torch.nn.Module) -> bool:
    """Whether a model's stress is not the derivative of its energy.

    mace strains edges only, and not the long-range sum.
    """
    return type(model).__name__ in RECIPROCAL_MODELS


def with_radial_derivative(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with the same energies, whose forces are the gradient of the energy."""
    copied = copy_model(model)
    basis: Any = copied.radial_embedding.bessel_fn  # type: ignore[union-attr]
    count, original = basis.num_basis, basis.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        polynomials = [torch.ones_like(x), x]
        for _ in range(count - 1):  # T_n+1(x) = 2 x T_n(x) - T_n-1(x)
            polynomials.append(2.0 * x * polynomials[-1] - polynomials[-2])
        with_gradient = torch.cat(polynomials[1:], dim=1)
        # the values of the original, bit by bit, with the gradient of the polynomials above
        return torch.as_tensor(original(x).detach() + (with_gradient - with_gradient.detach()))

    basis.forward = forward
    return copied
