"""Options of one measurement, as plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "DTYPES",
    "MODEL_IMPLS",
    "NEQUIP_PRESETS",
    "ON_REQUEST",
    "PASSES",
    "PRECISIONS",
    "SIZES",
    "VARIANTS",
    "ConvJob",
    "ModelJob",
]

PASSES = ("fwd", "fwd+bwd", "fwd+bwd+dbl")
DTYPES = ("float32", "float64")
# Sizes of the MACE-MP-0 models, all of whose layers have 128 channels.
SIZES = {
    "small": "128x0e",
    "medium": "128x0e+128x1o",
    "large": "128x0e+128x1o+128x2e",
}
# Other MACE models of medium size, by what differs from "medium"; classes by their name.
VARIANTS: dict[str, dict[str, Any]] = {
    "off-medium": {
        "r_max": 5.0,
        "num_bessel": 8,
        "atomic_numbers": [1, 6, 7, 8, 9, 15, 16, 17, 35, 53],
        "interaction_cls_first": "RealAgnosticInteractionBlock",
    },
    "mpa-medium": {
        "distance_transform": "Agnesi",
        "pair_repulsion": True,
        "interaction_cls": "RealAgnosticDensityResidualInteractionBlock",
        "interaction_cls_first": "RealAgnosticDensityInteractionBlock",
    },
}
# Shapes of the NequIP foundation models, as NequIP names them.
NEQUIP_PRESETS = {"nequip-s": "S", "nequip-m": "M", "nequip-l": "L", "nequip-xl": "XL"}
MODEL_IMPLS = {
    "e3nn": "the model as it is",
    "cueq": "the model as mace or NequIP converts it to cuEquivariance",
    "oeq": "the model as mace or NequIP converts it to OpenEquivariance",
    "mdcg": "the same model after mdcg.patch_model",
    "engine": "the same model as a package, evaluated by the engine without torch",
    "engine-exact": "the same, its radial networks not tabulated",
    "engine-table": "the same, its radial networks tabulated in float64 too",
    "engine-tf32": "the same as engine on a GPU, products with weights in TF32",
    "engine-bf16": "the same as engine on a GPU, products with weights in bfloat16",
}
# Ways to compute of packages in float32 on CUDA devices.
PRECISIONS = ("tf32", "bf16")
# What runs only where it is asked for; in float32 "engine-table" is what "engine" is.
ON_REQUEST = ("engine-table", "engine-tf32", "engine-bf16")


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists that JSON makes back into tuples."""

    def back(value: Any) -> Any:
        return tuple(map(back, value)) if isinstance(value, list | tuple) else value

    return {name: back(value) for name, value in options.items()}


@dataclass(frozen=True)
class ConvJob:
    """Options of one layer's measurement, as plain values.

    Parameters
    ----------
    batch : int, optional
        Rows of a batch of products, measured without a graph.
    """

    case: str
    dtype: str = "float32"
    passes: tuple[str, ...] = PASSES
    impls: tuple[str, ...] = ("e3nn", "mdcg")
    system: str = "water"
    atoms: int | None = None
    batch: int | None = None
    r_max: float = 6.0
    order: str = "receiver"
    device: str = "cpu"
    repeats: int = 10
    warmup: int = 3
    seed: int = 0
    check: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ConvJob:
        """Rebuild from :meth:`to_dict`."""
        return cls(**_tuples(options))


@dataclass(frozen=True)
class ModelJob:
    """Options of one model's measurement, as plain values.

    Parameters
    ----------
    model : str
        ``"small"``, ``"medium"``, ``"large"`` (MACE), ``"nequip-s"``, ``"nequip-m"``,
        ``"nequip-l"``, ``"nequip-xl"`` (random weights) or a checkpoint file.
    dtype : str, optional
        Default: float32 for random models, the file's own for files.
    atoms : tuple of int or None
        Sizes that are measured one after the other in one process.
    stress : bool
        Also the stress of MACE models and of packages; NequIP's models give it always.
    kernels : bool
        On a CUDA device, also the times of kernels, where there is one size only.
    packages : str, optional
        Folder of packages of random models, taken from there and put there.
    turns : str, optional
        File that processes lock while they measure, so that they do not disturb each other.
    largest : tuple of (str, int)
        Atoms above which an implementation is left out.
    """

    model: str
    dtype: str | None = None
    impls: tuple[str, ...] = ("e3nn", "mdcg")
    system: str = "water"
    atoms: tuple[int | None, ...] = (None,)
    stress: bool = False
    kernels: bool = True
    packages: str | None = None
    turns: str | None = None
    largest: tuple[tuple[str, int], ...] = ()
    head: str | None = None
    device: str = "cpu"
    repeats: int = 10
    warmup: int = 3
    seed: int = 0
    check: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ModelJob:
        """Rebuild from :meth:`to_dict`."""
        return cls(**_tuples(options))
