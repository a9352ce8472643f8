"""A package in memory: manifest and tensors of a model that runs without its framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .. import _core
from .file import FORMAT, encode, engine_checks, read_file, write_file


class Package:
    """A converted model.

    Parameters
    ----------
    manifest : mapping
        What is in it: see ``FORMAT.md`` in this folder.
    tensors : mapping of str to array

    Examples
    --------
    >>> package = Package.open("water.mdcg")            # doctest: +SKIP
    >>> package.type_names, package.r_max               # doctest: +SKIP
    (['H', 'O'], 4.0)
    """

    def __init__(self, manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.manifest: dict[str, Any] = {**manifest, "format": FORMAT}
        self.tensors: dict[str, NDArray[Any]] = dict(tensors)

    @classmethod
    def open(cls, path: str | Path) -> Package:
        """Read and check a file; nothing in it is executed.

        Raises
        ------
        PackageError
            It is missing, damaged or of a newer version; the message is one sentence.
        """
        return cls(*read_file(Path(path)))

    def check(self) -> None:
        """Let the engine check the network, and that all tensors are there and finite.

        Raises
        ------
        PackageError
        """
        with engine_checks():
            _core.check_package_bytes(self.to_bytes(), "the package")

    def to_bytes(self) -> bytes:
        """Return the file's contents; equal packages give equal bytes."""
        return encode(self.manifest, self.tensors)

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        write_file(Path(path), self.to_bytes())

    @property
    def type_names(self) -> list[str]:
        """Chemical symbols, or names of types, in the order of their numbers."""
        return list(self.manifest["type_names"])

    @property
    def atomic_numbers(self) -> list[int] | None:
        """Atomic number of each type, None if the types are not elements."""
        numbers = self.manifest.get("atomic_numbers")
        return None if numbers is None else list(numbers)

    @property
    def r_max(self) -> float:
        """Cutoff in Å."""
        return float(self.manifest["r_max"])

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``: type of weights and features."""
        return str(self.manifest["dtype"])

    @property
    def head(self) -> str | None:
        """The head that was converted."""
        return self.manifest.get("head")

    @property
    def dispersion(self) -> str | None:
        """Functional whose D3 dispersion the package holds."""
        found = self.manifest.get("dispersion")
        return None if found is None else str(found["functional"])

    @property
    def has_energies(self) -> bool:
        """Whether the network gives energies and forces."""
        return any(layer["type"] in ("energy", "pair_energy") for layer in self.layers)

    @property
    def has_dipoles(self) -> bool:
        """Whether the last descriptors of an atom are its dipole."""
        return "dipoles" in self.manifest

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Layers in the order of evaluation."""
        return list(self.manifest["layers"])

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor by name."""
        return self.tensors[name]
