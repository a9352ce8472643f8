"""The heat flux of a message-passing potential.

Langer, Frank and Knoop, J. Chem. Phys. 159, 174105 (2023): in an open system that contains all
images that send messages to the cell, the flux follows from gradients of energies that are weighted
with the positions of their atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from ase import Atoms

from .. import _core

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


class Unfolded(NamedTuple):
    """An open system: the atoms of a cell, then periodic images of them."""

    atom: IntArray  # [n_nodes] the atom of which a node is an image
    positions: FloatArray  # [n_nodes, 3] Å
    sender: IntArray  # [n_edges]
    receiver: IntArray  # [n_edges]


def unfold(atoms: Atoms, edges: _core.NeighborList, layers: int) -> Unfolded:
    """Follow the edges of a cell backwards from its atoms, once for each layer of messages.

    Images that are found in the last step only send messages: no edge leads to them.
    """
    count = len(atoms)
    sender, shift = edges.sender.astype(np.int64), -edges.cell_shifts().astype(np.int64)
    first = edges.row_ptr
    # a node is an atom and the indices of its cell
    nodes = np.concatenate([np.arange(count)[:, None], np.zeros((count, 3), np.int64)], axis=1)
    receivers, senders = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    begin = 0
    for _ in range(layers):
        new = nodes[begin:]  # nodes whose edges are not followed yet
        degree = first[new[:, 0] + 1] - first[new[:, 0]]
        number = np.repeat(np.arange(len(new)), degree)
        edge = np.arange(degree.sum()) - np.repeat(np.cumsum(degree) - degree, degree)
        edge += first[new[number, 0]]
        ends = np.concatenate([sender[edge][:, None], new[number, 1:] + shift[edge]], axis=1)
        # known nodes come first among equal ones, so they keep their number
        known = len(nodes)
        _, where, which = np.unique(
            np.concatenate([nodes, ends]), axis=0, return_index=True, return_inverse=True
        )
        order = np.argsort(where)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        receivers.append(begin + number)
        senders.append(rank[which.reshape(-1)[known:]])
        nodes, begin = np.concatenate([nodes, ends])[where[order]], known
    positions = atoms.positions[nodes[:, 0]] + nodes[:, 1:] @ atoms.cell.array
    return Unfolded(nodes[:, 0], positions, np.concatenate(senders), np.concatenate(receivers))


def heat_flux(
    atoms: Atoms, system: Unfolded, types: IntArray, evaluate: Callable[..., dict[str, Any]]
) -> FloatArray:
    """Return the heat flux of moving atoms, shape (3,), in eV Å per unit of time of ASE.

    `system` was made from `atoms`, which have the `types`. `evaluate` takes positions, types and
    edges of nodes, and ``energy_weights``.
    """
    count, velocities = len(atoms), atoms.get_velocities()
    # any origin is right, and small numbers lose fewer digits
    centre = atoms.positions.mean(axis=0)
    at, moving = system.positions - centre, velocities[system.atom]
    edges = (system.sender, system.receiver, np.zeros((len(system.sender), 3)))
    weights = np.zeros((4, len(at)))
    weights[0, :count] = 1.0
    weights[1:, :count] = at[:count].T
    found = [
        evaluate(system.positions, types[system.atom], edges=edges, energy_weights=each)
        for each in weights
    ]
    powers = [np.sum(each["forces"] * moving, axis=1) for each in found]
    kinetic = 0.5 * atoms.get_masses() * np.sum(velocities**2, axis=1)
    carried = (kinetic + found[0]["energies"][:count]) @ velocities
    exchanged = powers[0] @ at - np.array([each.sum() for each in powers[1:]])
    return np.asarray(carried + exchanged)
