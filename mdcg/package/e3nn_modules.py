"""Weights of e3nn's modules as plain numbers, every normalisation multiplied in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem import ConvProblem
from ..problem.irreps import Irreps
from .activations import name_of
from .linear_map import LinearMap
from .radial import RadialLayer

Array = NDArray[np.float64]


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
    """Return name and factor of an activation, which e3nn may have normalised."""
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


def convolution(tp: Any, harmonics: Any, name: str) -> ConvProblem:
    """Describe a ``TensorProduct`` on edges, after checking that it is that of a convolution."""
    if type(tp).__name__ != "TensorProduct" or not hasattr(tp, "instructions"):
        raise UnsupportedProblemError(f"{name} is {a_type(tp)}, expected an e3nn TensorProduct")
    problem = ConvProblem.from_e3nn(tp)
    _check_harmonics(problem, harmonics, name)
    for path in problem.paths:
        if path.mode != "uvu" or not path.has_weight:
            without = "" if path.has_weight else " without weights"
            raise UnsupportedProblemError(
                f"{name} has a path of mode {path.mode}{without}, expected uvu with weights"
            )
    return problem


def _check_harmonics(problem: ConvProblem, harmonics: Any, name: str) -> None:
    irreps: Sequence[Any] = list(problem.irreps_in2)
    if [(block.mul, block.ir.l) for block in irreps] != [(1, l) for l in range(len(irreps))]:
        raise UnsupportedProblemError(
            f"{name} takes edge attributes {problem.irreps_in2}, expected one of each degree"
        )
    if not harmonics.normalize or harmonics.normalization != "component":
        raise UnsupportedProblemError(
            f"{name}: harmonics have normalization {harmonics.normalization!r}, normalize "
            f"{harmonics.normalize}, expected 'component' of unit vectors"
        )
