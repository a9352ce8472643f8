"""Reads e3nn's modules as plain arrays, with normalisations multiplied into the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ..errors import UnsupportedProblemError, a_type
from ..problem import ConvProblem
from ..problem.irreps import Irreps, MulIrrep
from .builder import RadialLayer
from .linear_map import LinearMap, simplified

Array = NDArray[np.float64]


#: Activations by name; "ssp" is the shifted softplus, log((1 + e^x) / 2).
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
    "sigmoid": expit,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0.0),
    "ssp": lambda x: np.asarray(np.logaddexp(x, 0.0) - np.log(2.0)),
}

_POINTS = np.linspace(-4.0, 4.0, 33)


def name_of(function: Callable[[Array], Array]) -> str | None:
    """Return the name of the activation that a function equals, or None."""
    values = np.asarray(function(_POINTS))
    for name, known in ACTIVATIONS.items():
        if values.shape == _POINTS.shape and np.allclose(values, known(_POINTS), 1e-12, 1e-12):
            return name
    return None


def array(tensor: Any) -> Array:
    """Return a tensor or number as a float64 array."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().double().cpu().numpy()
    return np.array(tensor, dtype=np.float64)


def real(tensor: Any) -> float:
    """Return a tensor of one item, or a number, as a float."""
    return float(array(tensor).reshape(()))


def irreps_of(irreps: Any) -> Irreps:
    """Return e3nn's irreps as ours."""
    return Irreps.from_pairs((mul, ir.l, ir.p) for mul, ir in irreps)


def linear_map(module: Any, name: str) -> LinearMap:
    """Read an ``e3nn.o3.Linear``."""
    if type(module).__name__ != "Linear" or not hasattr(module, "instructions"):
        raise UnsupportedProblemError(f"{name} is {a_type(module)}, expected an e3nn Linear")
    if not module.internal_weights or getattr(module, "weight", None) is None:
        raise UnsupportedProblemError(f"{name} has no weights of its own")
    into, out = irreps_of(module.irreps_in), irreps_of(module.irreps_out)
    weight, bias = array(module.weight).reshape(-1), array(module.bias).reshape(-1)
    weights: dict[tuple[int, int], Array] = {}
    biases: dict[int, Array] = {}
    used = [0, 0]
    for instruction in module.instructions:
        shape = tuple(instruction.path_shape)
        count, of_bias = int(np.prod(shape)), instruction.i_in == -1
        source = bias if of_bias else weight
        part = source[used[of_bias] : used[of_bias] + count].reshape(shape)
        used[of_bias] += count
        if not count:
            continue
        part = part * float(instruction.path_weight)
        if of_bias:
            biases[instruction.i_out] = biases.get(instruction.i_out, 0.0) + part
        else:
            key = (instruction.i_in, instruction.i_out)
            weights[key] = weights.get(key, 0.0) + part
    if used != [weight.size, bias.size]:
        raise UnsupportedProblemError(
            f"{name} has {weight.size} weights and {bias.size} biases, expected {used}"
        )
    return LinearMap(into, out, weights, biases)


def typed_linear_map(module: Any, scalars: Array, name: str) -> LinearMap:
    """Read a ``FullyConnectedTensorProduct`` whose second operand is known for each type.

    That operand, `scalars`, has shape (n_types, module.irreps_in2.dim).
    """
    if not getattr(module, "internal_weights", False):
        raise UnsupportedProblemError(
            f"{name} is {a_type(module)}, expected a fully connected tensor product "
            "with weights of its own"
        )
    problem = ConvProblem.from_e3nn(module)
    if any(block.ir.l or block.ir.p != 1 for block in problem.irreps_in2):
        raise UnsupportedProblemError(
            f"{name} takes {problem.irreps_in2} as second operand, expected even scalars"
        )
    for path in problem.paths:
        if path.mode != "uvw" or not path.has_weight:
            raise UnsupportedProblemError(f"{name} has a path of mode {path.mode}, expected uvw")
    from ..patch.species_product import SpeciesProduct

    flat = array(module.weight).reshape(-1)
    weights: dict[tuple[int, int], Array] = {}
    for part in SpeciesProduct(problem).paths:
        matrix = part.factor * flat[part.offset : part.offset + np.prod(part.shape)]
        second = scalars[:, part.y_offset : part.y_offset + part.shape[1]]
        mixed = np.einsum("tv,uvw->tuw", second, matrix.reshape(part.shape))
        key = (part.i_in, part.i_out)
        weights[key] = weights.get(key, 0.0) + mixed
    return LinearMap(problem.irreps_in1, problem.irreps_out, weights)


def activation(act: Any, name: str) -> tuple[str, float]:
    """Return the name of an activation and the factor by which e3nn normalises it."""
    import torch

    if act is None:
        return "none", 1.0
    function = act.f if hasattr(act, "cst") and hasattr(act, "f") else act
    factor = 1.0
    if function is not act and not getattr(act, "_is_id", False):
        factor = float(act.cst)

    def values(points: Array) -> Array:
        with torch.no_grad():
            return array(function(torch.from_numpy(points)))

    found = name_of(values)
    if found is None:
        raise UnsupportedProblemError(
            f"{name} uses the activation {getattr(function, '__name__', function)!r}, which "
            "packages do not have"
        )
    return found, factor


def fully_connected(net: Any, name: str) -> tuple[RadialLayer, ...]:
    """Read an ``e3nn.nn.FullyConnectedNet``."""
    layers = []
    for child, layer in net.named_children():
        at = f"{name}.{child}"
        if not all(hasattr(layer, word) for word in ("weight", "h_in", "var_in", "var_out")):
            raise UnsupportedProblemError(
                f"{at} is {a_type(layer)}, expected a layer of a FullyConnectedNet"
            )
        var_in, var_out = float(layer.var_in), float(layer.var_out)
        weight = array(layer.weight) / (float(layer.h_in) * var_in) ** 0.5
        if layer.act is None:
            layers.append(RadialLayer(weight * var_out**0.5))
        else:
            kind, factor = activation(layer.act, at)
            layers.append(RadialLayer(weight, activation=kind, factor=factor * var_out**0.5))
    return tuple(layers)


def convolution(tp: Any, harmonics: Any, name: str, *, solid: bool = False) -> ConvProblem:
    """Return the problem of a ``TensorProduct`` on edges, which must be a convolution.

    Harmonics are those of unit vectors, or, if `solid`, those of the vectors of edges.
    """
    if type(tp).__name__ != "TensorProduct" or not hasattr(tp, "instructions"):
        raise UnsupportedProblemError(f"{name} is {a_type(tp)}, expected an e3nn TensorProduct")
    problem = ConvProblem.from_e3nn(tp)
    _check_harmonics(problem, harmonics, name, solid)
    for path in problem.paths:
        if path.mode != "uvu" or not path.has_weight:
            without = "" if path.has_weight else " without weights"
            raise UnsupportedProblemError(
                f"{name} has a path of mode {path.mode}{without}, expected uvu with weights"
            )
    return problem


def _check_harmonics(problem: ConvProblem, harmonics: Any, name: str, solid: bool) -> None:
    irreps: Sequence[Any] = list(problem.irreps_in2)
    if [(block.mul, block.ir.l) for block in irreps] != [(1, l) for l in range(len(irreps))]:
        raise UnsupportedProblemError(
            f"{name} takes edge attributes {problem.irreps_in2}, expected one of each degree"
        )
    if harmonics.normalize == solid or harmonics.normalization != "component":
        raise UnsupportedProblemError(
            f"{name}: harmonics have normalization {harmonics.normalization!r}, normalize "
            f"{harmonics.normalize}, expected 'component' of unit vectors"
        )


@dataclass(frozen=True)
class GateBlocks:
    """A gate whose scalars, gates and gated features are separate blocks: see `Builder.gate`."""

    irreps_in: Irreps  # the module's input, divided where its three parts meet
    irreps_out: Irreps
    scalars: tuple[tuple[int, int, str, float], ...]
    gated: tuple[tuple[int, int, int, int, str, float], ...]


def gate_blocks(module: Any, name: str) -> GateBlocks:
    """Read a ``GatedEquivariantBlock`` of mace, or an ``e3nn.nn.Gate``."""
    kind = type(module).__name__
    if kind == "GatedEquivariantBlock":
        if getattr(module, "_layout_is_ir_mul", False):
            raise UnsupportedProblemError(
                f"{name} has the layout of cuEquivariance: convert the model back to e3nn first"
            )
        parts = [irreps_of(getattr(module, f"irreps_{n}")) for n in ("scalars", "gates", "gated")]
        # all blocks of a part share the constant of the first
        acts = [
            [_activation(module._act_scalar, module._scalar_cst, name)] * len(parts[0]),
            [_activation(module._act_gate, module._gate_cst, name)] * len(parts[1]),
        ]
    elif kind == "Gate":
        parts = [irreps_of(getattr(module, f"irreps_{n}")) for n in ("scalars", "gates", "gated")]
        acts = [
            [activation(act, name) for act in getattr(module, f"act_{n}").acts]
            for n in ("scalars", "gates")
        ]
    else:
        raise UnsupportedProblemError(f"{name} is {a_type(module)}, expected a gate")
    return _arranged(parts, acts, irreps_of(module.irreps_in), irreps_of(module.irreps_out))


def _activation(function: Any, factor: float, name: str) -> tuple[str, float]:
    kind, own = activation(function, name)
    return kind, own * float(factor)


def _arranged(
    parts: list[Irreps], acts: list[list[tuple[str, float]]], irreps_in: Irreps, irreps_out: Irreps
) -> GateBlocks:
    labelled: list[tuple[int, int, MulIrrep]] = [
        (part, number, block)
        for part, irreps in enumerate(parts)
        for number, block in enumerate(irreps)
    ]
    # e3nn sorts stably, by degree and by parity; versions differ in which parity comes first
    for sign in (1, -1):
        order = sorted(labelled, key=lambda row: (row[2].ir.l, sign * row[2].ir.p))
        found = Irreps.from_pairs((b.mul, b.ir.l, b.ir.p) for _, _, b in order)
        if simplified(found) == simplified(irreps_in):
            break
    else:
        raise UnsupportedProblemError(f"a gate takes {irreps_in}, expected {simplified(found)}")
    place = {(part, number): position for position, (part, number, _) in enumerate(order)}
    scalars = tuple((place[0, number], number, *acts[0][number]) for number in range(len(parts[0])))
    ends: list[tuple[int, int]] = []  # (gates block, channel) of each gate, in order
    for number, block in enumerate(parts[1]):
        ends += [(number, channel) for channel in range(block.mul)]
    gated = []
    first = 0
    for number, block in enumerate(parts[2]):
        gates, channel = ends[first]
        if ends[first + block.mul - 1][0] != gates:
            raise UnsupportedProblemError(f"the gates of {block} are of several blocks")
        first += block.mul
        out = len(parts[0]) + number
        gated.append((place[1, gates], channel, place[2, number], out, *acts[1][gates]))
    return GateBlocks(found, irreps_out, scalars, tuple(gated))
