"""Evaluates packages with plain torch in float64: the reference for converters and the engine.

Every layer is a few lines of torch that follow its definition; forces come from autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mdcg.package import Package
from mdcg.patch._frameworks import import_e3nn_o3
from mdcg.problem import ConvProblem, SymmetricContractionProblem
from mdcg.problem.irreps import Irreps

o3 = import_e3nn_o3()

Tensor = torch.Tensor
Blocks = list[Tensor]  # one [n_nodes, 2l+1, mul] for each block

ACTIVATIONS = {
    "none": lambda x: x,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "relu": torch.relu,
    "ssp": lambda x: torch.nn.functional.softplus(x) - float(np.log(2.0)),
}


@dataclass
class Result:
    """Energy of each node, and derivatives of their sum.

    The virial is minus the derivative with respect to a symmetric strain; stress is
    -virial / volume.
    """

    energies: Tensor
    forces: Tensor
    virial: Tensor
    values: dict[str, Tensor]

    @property
    def energy(self) -> float:
        return float(self.energies.detach().sum())


@dataclass
class Edges:
    vec: Tensor
    length: Tensor
    sender: Tensor
    receiver: Tensor
    types: Tensor
    n_nodes: int

    def pair(self, table: Tensor) -> Tensor:
        """Return entries of a matrix by types of receiver and sender."""
        return table[self.types[self.receiver], self.types[self.sender]]

    def sum(self, rows: Tensor) -> Tensor:
        zeros = rows.new_zeros(self.n_nodes, *rows.shape[1:])
        return zeros.index_add(0, self.receiver, rows)


def evaluate(
    package: Package,
    positions: Any,
    types: Any,
    sender: Any,
    receiver: Any,
    shifts: Any = None,
    cell: Any = None,
) -> Result:
    """Evaluate a package on a graph.

    Parameters
    ----------
    package : Package
    positions : array, shape (n_nodes, 3)
    types : array of int, shape (n_nodes,)
    sender, receiver : array of int, shape (n_edges,)
    shifts : array, shape (n_edges, 3), optional
        Added to ``positions[receiver] - positions[sender]``.
    cell : array, shape (3, 3), optional
        The periodic cell, rows are vectors, for long-range sums; None: an open system.
    """
    pos = torch.tensor(np.asarray(positions), dtype=torch.float64, requires_grad=True)
    sender, receiver, types = (
        torch.as_tensor(np.asarray(a)).long() for a in (sender, receiver, types)
    )
    vec = pos[receiver] - pos[sender]
    if shifts is not None:
        vec = vec + torch.as_tensor(np.asarray(shifts), dtype=torch.float64)
    vec.retain_grad()
    keep = vec.detach().norm(dim=1) < package.r_max
    flip = -1.0 if package.manifest["edge_vector"] == "sender_minus_receiver" else 1.0
    used = vec[keep]
    edges = Edges(flip * used, used.norm(dim=1), sender[keep], receiver[keep], types, len(pos))
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    box = None if cell is None else torch.as_tensor(np.asarray(cell), dtype=torch.float64)
    run = _Run(package, edges, pos, box, strain)
    for layer in package.manifest["layers"]:
        getattr(run, f"on_{layer['type']}")(layer)
    energies = run.energies
    if energies.requires_grad:
        energies.sum().backward()
    zero = torch.zeros_like(pos)
    forces = zero if pos.grad is None else -pos.grad
    gradient = torch.zeros_like(vec) if vec.grad is None else vec.grad
    virial = -torch.einsum("ea,eb->ab", vec.detach(), gradient)
    if strain.grad is not None:
        virial = virial - strain.grad
    # symmetric like a strain, because 3j symbols rounded to float32 break invariance slightly
    virial = 0.5 * (virial + virial.T)
    flat = {
        name: torch.cat([block.detach().transpose(1, 2).flatten(1) for block in blocks], dim=1)
        for name, blocks in run.values.items()
    }
    return Result(energies.detach(), forces.detach(), virial, flat)


class _Run:
    def __init__(
        self,
        package: Package,
        edges: Edges,
        positions: Tensor,
        cell: Tensor | None,
        strain: Tensor,  # zero: the derivative by it is minus the virial of long-range sums
    ) -> None:
        self.package, self.edges = package, edges
        self.positions, self.cell, self.strain = positions, cell, strain
        self.values: dict[str, Blocks] = {}
        self.energies = torch.zeros(edges.n_nodes, dtype=torch.float64)

    # ---- access ----

    def tensor(self, name: str) -> Tensor:
        array = self.package.tensor(name)
        return torch.from_numpy(
            np.array(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64)
        )

    def per_node(self, name: str) -> Tensor:
        """Return a row for each node from a tensor with a row for each type, or one row for all."""
        table = self.tensor(name)
        return (
            table[self.edges.types]
            if len(table) > 1
            else table.expand(self.edges.n_nodes, *table.shape[1:])
        )

    def irreps(self, name: str) -> Irreps:
        return Irreps.parse(self.package.manifest["values"][name])

    def cut(self, rows: Tensor, irreps: Irreps) -> Blocks:
        return [
            rows[:, b.offset : b.offset + b.dim].reshape(len(rows), b.ir.dim, b.mul) for b in irreps
        ]

    def store(self, layer: dict[str, Any], blocks: Blocks) -> None:
        shapes = [(self.edges.n_nodes, b.ir.dim, b.mul) for b in self.irreps(layer["out"])]
        assert [tuple(block.shape) for block in blocks] == shapes, layer
        assert layer["out"] not in self.values
        self.values[layer["out"]] = blocks

    # ---- layers on nodes ----

    def on_type_rows(self, layer: dict[str, Any]) -> None:
        rows = self.tensor(layer["table"])[self.edges.types]
        self.store(layer, self.cut(rows, self.irreps(layer["out"])))

    def on_linear(self, layer: dict[str, Any]) -> None:
        x, n = self.values[layer["x"]], self.edges.n_nodes
        out = [
            torch.zeros(n, b.ir.dim, b.mul, dtype=torch.float64) for b in self.irreps(layer["out"])
        ]
        for path in layer["paths"]:
            weight = self.tensor(path["weight"])
            if weight.dim() == 3:
                weight = weight[self.edges.types]
            out[path["out"]] = out[path["out"]] + x[path["in"]] @ weight
        for bias in layer["bias"]:
            value = self.tensor(bias["value"])
            value = value[self.edges.types][:, None] if value.dim() == 2 else value
            out[bias["out"]] = out[bias["out"]] + value
        self.store(layer, out)

    def on_normalize(self, layer: dict[str, Any]) -> None:
        (density,) = self.values[layer["density"]]
        by = density * layer["beta"] + layer["alpha"]
        self.store(layer, [block / by for block in self.values[layer["x"]]])

    def on_scale(self, layer: dict[str, Any]) -> None:
        factor = self.per_node(layer["factor"])[:, None, None]
        self.store(layer, [block * factor for block in self.values[layer["x"]]])

    def on_product(self, layer: dict[str, Any]) -> None:
        pairs = zip(self.values[layer["x"]], self.values[layer["y"]], strict=True)
        self.store(layer, [x * y for x, y in pairs])

    def on_sum(self, layer: dict[str, Any]) -> None:
        terms = [self.values[name] for name in layer["x"]]
        self.store(layer, [sum(blocks[1:], blocks[0]) for blocks in zip(*terms, strict=True)])

    def on_dot(self, layer: dict[str, Any]) -> None:
        pairs = zip(self.values[layer["x"]], self.values[layer["y"]], strict=True)
        total = sum((x * y).sum(dim=1, keepdim=True) for x, y in pairs)
        self.store(layer, [torch.as_tensor(total)])

    def on_modulate(self, layer: dict[str, Any]) -> None:
        pairs = zip(self.values[layer["x"]], self.values[layer["y"]], strict=True)
        self.store(layer, [x * y for x, y in pairs])

    def on_layer_norm(self, layer: dict[str, Any]) -> None:
        (x,) = self.values[layer["x"]]
        weight, bias = self.tensor(layer["weight"]), self.tensor(layer["bias"])
        width = tuple(weight.shape)
        norm = torch.nn.functional.layer_norm(x, width, weight, bias, layer["epsilon"])
        self.store(layer, [norm])

    def on_rms_norm(self, layer: dict[str, Any]) -> None:
        x = self.values[layer["x"]]
        squares = torch.stack([(block**2).sum(dim=(1, 2)) for block in x])
        factors = torch.tensor(layer["factors"], dtype=squares.dtype)
        total = factors @ squares + layer["epsilon"]
        weights = self.tensor(layer["weight"]).split([block.shape[2] for block in x])
        scale = total.rsqrt()[:, None, None]
        self.store(layer, [scale * block * w for block, w in zip(x, weights, strict=True)])

    def on_exchange(self, layer: dict[str, Any]) -> None:
        assert layer["x"] in self.values

    def on_gate(self, layer: dict[str, Any]) -> None:
        x = self.values[layer["x"]]
        out: list[Any] = [None] * len(self.irreps(layer["out"]))
        for e in layer["scalars"]:
            out[e["out"]] = e["factor"] * ACTIVATIONS[e["activation"]](x[e["in"]])
        for e in layer["gated"]:
            block, first = x[e["in"]], e["gate_offset"]
            gates = x[e["gate"]][:, :, first : first + block.shape[2]]
            out[e["out"]] = block * e["factor"] * ACTIVATIONS[e["activation"]](gates)
        self.store(layer, out)

    def on_contraction(self, layer: dict[str, Any]) -> None:
        problem = SymmetricContractionProblem.from_json(layer["problem"])
        x = torch.cat(self.values[layer["x"]], dim=1)  # [n, components, channels]
        coefficients = self.per_node(layer["coefficients"])
        out = [
            [torch.zeros_like(x[:, 0]) for _ in range(block.ir.dim)] for block in problem.irreps_out
        ]
        for number, polynomial in enumerate(problem.polynomials):
            for m, terms in enumerate(polynomial.components):
                value = torch.zeros_like(x[:, 0])
                for factor, indices in terms:
                    value = value + factor * x[:, list(indices)].prod(dim=1)
                row = out[polynomial.i_out]
                row[m] = row[m] + coefficients[:, number] * value
        self.store(layer, [torch.stack(row, dim=1) for row in out])

    # ---- layers on edges ----

    def weights(self, radial: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return outputs of a radial network, and the factors that multiply them."""
        e = self.edges
        r = e.length[:, None]
        r_max = radial["r_max"]
        r_max = e.pair(self.tensor(r_max))[:, None] if isinstance(r_max, str) else r_max
        of = radial["cutoff"]
        if of is None:
            cutoff = torch.ones_like(r)
        elif of["kind"] == "xplor":
            cutoff = xplor_cutoff(r, of["start"], r_max)
        else:
            cutoff = polynomial_cutoff(r / r_max, of["p"])
        normalized = radial["basis"].get("argument") == "normalized"
        t = r / r_max if normalized else self.transformed(radial["transform"], r)
        x = self.basis(radial["basis"], t)
        if radial["cutoff_on"] == "basis":
            x = x * cutoff
        for number, layer in enumerate(radial["layers"]):
            x = x @ self.tensor(layer["weight"])
            if "bias" in layer:
                x = x + self.tensor(layer["bias"])
            if not number:
                for end, nodes in (("sender", e.sender), ("receiver", e.receiver)):
                    name = radial.get(end)
                    if name in self.values:
                        x = x + torch.cat([b.flatten(1) for b in self.values[name]], dim=1)[nodes]
                    elif name is not None:
                        x = x + self.tensor(name)[e.types[nodes]]
            if "layer_norm" in layer:
                norm = layer["layer_norm"]
                weight, bias = self.tensor(norm["weight"]), self.tensor(norm["bias"])
                x = torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, norm["epsilon"])
            if "activation" in layer:
                x = layer.get("factor", 1.0) * ACTIVATIONS[layer["activation"]](x)
        within = (r < r_max).to(r)  # beyond r_max a network with biases is not zero
        return x, cutoff * within if radial["cutoff_on"] == "weights" else within

    def transformed(self, of: dict[str, Any] | None, r: Tensor) -> Tensor:
        if of is None:
            return r
        r_0 = self.edges.pair(self.tensor(of["r_0"]))[:, None]
        if of["kind"] == "agnesi":
            a, q, p = of["a"], of["q"], of["p"]
            return 1.0 / (1.0 + a * (r / r_0) ** q / (1.0 + (r / r_0) ** (q - p)))
        p_0, p_1 = 0.75 * r_0, 4.0 / 3.0 * r_0
        step = 0.5 * (1.0 + torch.tanh(of["alpha"] / (p_1 - p_0) * (r - 0.5 * (p_0 + p_1))))
        return p_0 + (r - p_0) * step

    def basis(self, of: dict[str, Any], t: Tensor) -> Tensor:
        if of["kind"] == "bessel":
            return of["prefactor"] * torch.sin(self.tensor(of["weights"]) * t) / t
        if of["kind"] == "gaussian":
            return torch.exp(of["coefficient"] * (t - self.tensor(of["centers"])) ** 2)
        found = [torch.ones_like(t), t]
        while len(found) <= of["order"]:
            found.append(2.0 * t * found[-1] - found[-2])
        return torch.cat(found[1 : of["order"] + 1], dim=1)

    def on_conv(self, layer: dict[str, Any]) -> None:
        problem, e = ConvProblem.from_json(layer["problem"]), self.edges
        if "x" in layer:
            x = [block[e.sender] for block in self.values[layer["x"]]]
        else:
            rows = self.tensor(layer["x_table"])[e.types[e.sender]]
            x = self.cut(rows, problem.irreps_in1)
        unit = layer.get("harmonics") != "solid"
        harmonics = o3.spherical_harmonics(
            list(range(len(problem.irreps_in2))), e.vec, unit, "component"
        )
        y = [harmonics[:, b.offset : b.offset + b.dim] for b in problem.irreps_in2]
        weights, factor = self.weights(layer["radial"])
        weights = weights * factor
        out = [
            torch.zeros(len(e.length), b.ir.dim, b.mul, dtype=torch.float64)
            for b in problem.irreps_out
        ]
        for number, path in enumerate(problem.paths):
            tensor = torch.tensor(problem.w3j(problem.degrees(path)) * path.path_weight)
            start = problem.weight_offsets[number]
            w = weights[:, start : start + problem.irreps_in1[path.i_in1].mul]
            message = torch.einsum("abc,eau,eb,eu->ecu", tensor, x[path.i_in1], y[path.i_in2], w)
            out[path.i_out] = out[path.i_out] + message
        self.store(layer, [e.sum(block) for block in out])

    def on_edge_sum(self, layer: dict[str, Any]) -> None:
        x, factor = self.weights(layer["radial"])
        if layer["activation"] == "tanh_square":
            x = torch.tanh(x**2)
        self.store(layer, self.cut(self.edges.sum(x * factor), self.irreps(layer["out"])))

    # ---- energies ----

    def on_energy(self, layer: dict[str, Any]) -> None:
        x = self.values[layer["x"]][0][:, 0, layer["channel"]]
        scale, shift = self.per_node(layer["scale"]), self.per_node(layer["shift"])
        self.energies = self.energies + scale * x + shift

    def on_pair_energy(self, layer: dict[str, Any]) -> None:
        assert layer["kind"] == "zbl"
        e = self.edges
        factor, a, r_max = (e.pair(self.tensor(layer[n])) for n in ("factor", "a", "r_max"))
        phi = sum(
            c * torch.exp(-d * e.length / a)
            for c, d in zip(layer["coefficients"], layer["exponents"], strict=True)
        )
        v = factor / e.length * phi * polynomial_cutoff(e.length / r_max, layer["p"])
        self.energies = self.energies + e.sum(v)

    def on_ewald(self, layer: dict[str, Any]) -> None:
        charges = self.values[layer["x"]][0][:, 0, 0]
        numbers = layer["sigma"], layer["spacing"], layer["factor"]
        removed = layer["own_part"] == "removed"
        self.energies = self.energies + ewald(charges, *self.moved(), *numbers, removed)

    def moved(self) -> tuple[Tensor, Tensor | None]:
        """Return positions and cell that a strain moves."""
        deformation = torch.eye(3, dtype=torch.float64) + self.strain
        return self.positions @ deformation, None if self.cell is None else self.cell @ deformation

    def inputs(self, names: list[str]) -> list[float]:
        """Return the defaults of inputs."""
        known = {each["name"]: each["default"] for each in self.package.manifest["inputs"]}
        return [known[name] for name in names]

    def on_external_potential(self, layer: dict[str, Any]) -> None:
        field = torch.tensor(self.inputs(layer["field"]), dtype=torch.float64)
        positions, _ = self.moved()
        scalars = torch.stack([(positions - positions.mean(dim=0)) @ field, positions @ field], -1)
        vectors = field.expand(len(positions), 3)[..., None]
        self.store(layer, [scalars[:, None], vectors])

    def on_total_charge(self, layer: dict[str, Any]) -> None:
        x, (f,) = self.values[layer["x"]], self.values[layer["weights"]]
        charge, spin = self.inputs([layer["charge"], layer["spin"]])
        wanted = torch.tensor([charge + spin - 1.0, charge - spin + 1.0]) / 2
        missing = wanted.double() - x[0].sum(dim=0)
        self.store(layer, [x[0] + f / f.sum(dim=0) * missing, *x[1:]])

    def on_reciprocal_field(self, layer: dict[str, Any]) -> None:
        x = self.values[layer["x"]]
        found = [multipole_potentials(x, *self.moved(), layer, to) for to in layer["receivers"]]
        size = len(self.irreps(layer["out"]))
        # channels of out: all receivers of the first channel of x come first
        out = [torch.stack(blocks, dim=-1).flatten(2) for blocks in zip(*found, strict=True)]
        self.store(layer, out[:size])

    def on_reciprocal_energy(self, layer: dict[str, Any]) -> None:
        x = self.values[layer["x"]]
        to = {"sigma": layer["sigma"], "scale": layer["source"], "own": layer["own"]}
        found = multipole_potentials(x, *self.moved(), layer, to)
        for moments, potentials in zip(x, found, strict=False):
            self.energies = self.energies + 0.5 * (moments * potentials).sum(dim=(1, 2))


def ewald(
    q: Tensor,
    r: Tensor,
    cell: Tensor | None,
    sigma: float,
    spacing: float,
    factor: float,
    own_removed: bool,
    chosen_in: Tensor | None = None,
) -> Tensor:
    """Return the energies of Gaussian charges, each with half of its interactions.

    In a cell the sum has the integers of the waves of ``chosen_in``, or of the cell itself.
    """
    own = factor / (sigma * (2 * np.pi) ** 1.5) * q**2
    if cell is None:
        near = torch.eye(len(q), dtype=torch.bool)
        vectors = r[:, None] - r[None, :]
        distance = torch.where(near, 1.0, (vectors**2).sum(dim=-1)).sqrt()
        potential = torch.where(near, 0.0, torch.erf(distance / (np.sqrt(2) * sigma)) / distance)
        return 0.5 * factor / (2 * np.pi) * q * (potential @ q) + (0.0 if own_removed else own)
    k, square = waves_of(cell, spacing, chosen_in)
    weight = factor / torch.linalg.det(cell).abs() * torch.exp(-0.5 * sigma**2 * square) / square
    waves = torch.exp(1j * (r @ k.T))
    total = (q[:, None] * waves).sum(dim=0)
    energies = q * ((waves * total.conj()).real @ weight)
    return energies - own if own_removed else energies


def waves_of(
    cell: Tensor, spacing: float, chosen_in: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the waves of a cell without 0, and their squares.

    They have the integers of waves up to 2 pi / spacing of ``chosen_in``, or of the cell itself.
    """
    chosen = cell.detach() if chosen_in is None else chosen_in
    lengths = chosen.norm(dim=1).numpy()
    ranges = [np.arange(-int(n), int(n) + 1) for n in lengths / spacing + 1e-6]
    n = torch.tensor(np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3))
    k = 2 * np.pi * n.double() @ torch.linalg.inv(cell).T
    square = (k**2).sum(dim=1)
    length = 2 * np.pi * (n.double() @ torch.linalg.inv(chosen).T).norm(dim=1)
    inside = (length <= 2 * np.pi / spacing * (1 + 5e-10)) & (n != 0).any(dim=1)
    return k[inside], square[inside]


def multipole_potentials(
    x: Blocks, r: Tensor, cell: Tensor | None, layer: dict[str, Any], to: dict[str, Any]
) -> Blocks:
    """Return potentials and slopes at all atoms, as a receiver scales them."""
    q = layer["source"][0] * x[0][:, 0]  # [n, channels]
    p = layer["source"][1] * x[1] if len(x) > 1 else torch.zeros(len(q), 3, q.shape[1]).double()
    if cell is None:
        found = point_potentials(q, p, r, layer, to["sigma"])
        sign = 0.0 if layer["own_part"] == "removed" else 1.0
    else:
        variance = layer["sigma"] ** 2 + to["sigma"] ** 2
        k, square = waves_of(cell, layer["spacing"])
        weight = layer["factor"] / torch.linalg.det(cell).abs()
        weight = weight * torch.exp(-0.5 * variance * square) / square
        waves = torch.exp(1j * (r @ k.T))
        source = torch.einsum("jk,jc->kc", waves.conj(), q.to(waves.dtype))
        source = source - 1j * torch.einsum("jk,ka,jac->kc", waves.conj(), k + 0j, p + 0j)
        potential = torch.einsum("k,ik,kc->ic", weight + 0j, waves, source).real
        slope = torch.einsum("k,ka,ik,kc->iac", weight * 1j, k + 0j, waves, source).real
        found = [potential[:, None], slope]
        sign = -1.0 if layer["own_part"] == "removed" else 0.0
    found = [scale * f for scale, f in zip(to["scale"], found, strict=True)]
    for l, moments in enumerate(x):
        found[l] = found[l] + sign * to["own"][l] * moments
    return found


def point_potentials(
    q: Tensor, p: Tensor, r: Tensor, layer: dict[str, Any], width: float
) -> Blocks:
    """Return potentials and slopes of an open system, from differences of points."""
    n, offset = len(q), layer["offset"]
    away = torch.cat([torch.zeros(1, 3), offset * torch.eye(3)]).double()
    points = (r[:, None] + away).reshape(-1, 3)
    parts = p / offset
    charges = torch.cat([(q - parts.sum(dim=1))[:, None], parts], dim=1).reshape(4 * n, -1)
    same = torch.arange(4 * n)[:, None] // 4 == torch.arange(4 * n)[None, :] // 4
    square = ((points[:, None] - points[None]) ** 2).sum(dim=-1)
    distance = torch.where(same, 1.0, square).sqrt()
    both = float(np.sqrt(2 * (layer["sigma"] ** 2 + width**2)))
    pairs = torch.where(same, 0.0, torch.erf(distance / both) / (distance + 1e-6))
    found = (layer["factor"] / (4 * np.pi) * pairs @ charges).reshape(n, 4, -1)
    return [found[:, :1], (found[:, 1:] - found[:, :1]) / offset]


def polynomial_cutoff(x: Tensor, p: float) -> Tensor:
    value = (
        1.0
        - (p + 1.0) * (p + 2.0) / 2.0 * x**p
        + p * (p + 2.0) * x ** (p + 1)
        - p * (p + 1.0) / 2.0 * x ** (p + 2)
    )
    return torch.where(x < 1.0, value, torch.zeros_like(value))


def xplor_cutoff(r: Tensor, start: float, r_max: Any) -> Tensor:
    """Return the formula of HOOMD-blue's manual, in which SevenNet writes it."""
    width = r_max**2 - start**2
    value = (r_max**2 - r**2) ** 2 * (r_max**2 + 2 * r**2 - 3 * start**2) / width**3
    value = torch.where(r < start, torch.ones_like(r), value)
    return torch.where(r < r_max, value, torch.zeros_like(value))
