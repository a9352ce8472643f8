"""Reports on the tensor products of a model: patched, or why not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import format_table

#: Statuses of a convolution or a symmetric contraction; ``"left as is"`` is for other layers.
PATCHED = "patched"
ALREADY = "already patched"
PATCHABLE = "can be patched"
REFUSED = "not patched"
LEFT = "left as is"

# Fields of a layer that tables show.
_COLUMNS = (
    *("name", "irreps_in1", "irreps_in2", "irreps_out", "paths", "nnz", "weight_numel", "status"),
)


@dataclass(frozen=True)
class LayerReport:
    """One tensor product or symmetric contraction of a model.

    Parameters
    ----------
    name : str
        Path in the model, such as ``"interactions.1.conv_tp"``.
    irreps_in1, irreps_in2, irreps_out : str
        Empty if the module does not state them.
    paths, nnz, weight_numel : int
        Number of paths, nonzero 3j entries summed over paths, and weights per edge. For a symmetric
        contraction: paths before reduction, monomials after it, and weights per species.
    status : str
        ``"patched"``, ``"already patched"``, ``"can be patched"``, ``"not patched"`` or
        ``"left as is"``.
    reason : str
        Why it was not patched; empty otherwise.
    problem_key : str
        Key of the kernels, empty if there are none.
    probe_error : float or None
        Largest relative difference from the stock layer in the check made while patching.
    """

    name: str
    irreps_in1: str
    irreps_in2: str
    irreps_out: str
    paths: int
    nnz: int
    weight_numel: int
    status: str
    reason: str = ""
    problem_key: str = ""
    probe_error: float | None = None


@dataclass(frozen=True)
class PatchReport:
    """All tensor products and contractions of a model; ``print(report)`` shows a table.

    Parameters
    ----------
    model_class : str
        Class name of the model.
    layers : tuple of LayerReport
        In the order of the model.
    """

    model_class: str
    layers: tuple[LayerReport, ...]

    def _with(self, *statuses: str) -> tuple[LayerReport, ...]:
        return tuple(layer for layer in self.layers if layer.status in statuses)

    @property
    def patched(self) -> tuple[LayerReport, ...]:
        """Layers that run on generated kernels."""
        return self._with(PATCHED, ALREADY)

    @property
    def patchable(self) -> tuple[LayerReport, ...]:
        """Layers that run on generated kernels or could."""
        return self._with(PATCHED, ALREADY, PATCHABLE)

    @property
    def refused(self) -> tuple[LayerReport, ...]:
        """Layers that cannot be patched, with the reason."""
        return self._with(REFUSED)

    @property
    def complete(self) -> bool:
        """Whether there is something to patch and all of it is, or can be, patched."""
        return bool(self.patchable) and not self.refused

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers, ready for JSON."""
        return {
            "model_class": self.model_class,
            "complete": self.complete,
            "layers": [asdict(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        shown = [
            replace(layer, status=f"{REFUSED}: {layer.reason}")
            if layer.status == REFUSED
            else layer
            for layer in self.layers
        ]
        rows = [[str(getattr(layer, name)) for name in _COLUMNS] for layer in shown]
        header = ("layer", *_COLUMNS[1:6], "weights", "status")
        notes = {layer.reason: None for layer in self.layers if layer.status == LEFT}
        return "\n".join(
            [format_table(header, rows, right=(4, 5, 6)), *(f"{LEFT}: {n}" for n in notes)]
        )
