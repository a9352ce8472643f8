"""Makes the packages that these tests run:

    python tests/lammps/make_packages.py [NAME ...]

needs mdcg with MACE, NequIP, SevenNet and Nequix (the environment that ``bash tests/run.sh both``
makes), graph-longrange and tad-dftd3. The same checkpoints give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

from mdcg.package import ConversionOptions
from mdcg.package.convert import convert_checkpoint, convert_model

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT / "tests" / "stubs"))  # for the model with a long-range sum


def main(names: list[str]) -> None:
    """Make the packages of these names, or all."""
    # mace_water_float64.mdcg and nequip_water_float32.mdcg have format 1, which must still open.
    makers: dict[str, Callable[[], Any]] = {
        "mace_water_float32": lambda: trained("mace_water.model", "float32"),
        "nequip_water_float64": lambda: trained("nequip_water.ckpt", "float64"),
        "mace_les_water_float64": lambda: convert_model(random_les()),
        "mace_charged_water_float64": lambda: convert_model(
            random_charged(), ConversionOptions(graph_fields=(("total_spin", 1),))
        ),
        "mace_polar_water_float64": lambda: convert_model(random_polar()),
        "nequix_water_float64": random_nequix,
        "sevennet_water_float64": random_sevennet,
    }
    for name in names or makers:
        makers[name]().save(DATA / f"{name}.mdcg")


def trained(checkpoint: str, dtype: str) -> Any:
    """Return the package of a checkpoint with data of dispersion."""
    return convert_checkpoint(DATA / checkpoint, ConversionOptions(dtype=dtype, dispersion="pbe"))


def random_les() -> Any:
    """Return a small random model with a long-range sum."""
    return random_model("MACELES", les_arguments={})


def random_charged() -> Any:
    """Return a small random model that reads the charge and the spin of a system."""
    number = {"per": "graph", "in_dim": 1, "emb_dim": 4}
    charge = {**number, "type": "categorical", "num_classes": 5, "offset": 2}
    specs = {"total_charge": charge, "total_spin": {**number, "type": "continuous"}}
    return random_model("ScaleShiftMACE", embedding_specs=specs, use_embedding_readout=True)


def random_polar() -> Any:
    """Return a small random model of charges and dipoles in each other's fields."""
    fields = {"field_feature_widths": [1.0, 1.5], "field_feature_max_l": 1}
    model = random_model("PolarMACE", atomic_multipoles_max_l=1, num_recursion_steps=2, **fields)
    strengthen(model)
    return model


def strengthen(model: Any) -> None:
    """Give a random PolarMACE charges that matter, and weights whose sum is not near zero."""
    import torch

    parts = ("lr_source_maps", "fukui_source_map", "field_dependent", "local_electron", "layer_fe")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(parts):
                parameter.mul_(1.5)
        model.fukui_source_map.linear_2.bias.fill_(2.0)
        for block in model.field_dependent_charges_maps:
            block.readout.linear_2.bias[-2:] = 2.0


def random_model(kind: str, **changes: Any) -> Any:
    """Return a small random MACE model of a class; `changes` go to its constructor."""
    from mdcg.patch._frameworks import default_dtype, import_mace

    import_mace()
    import numpy as np
    import torch
    from e3nn import o3
    from mace.modules import blocks, extensions, models

    with default_dtype(torch.float64):
        torch.manual_seed(3)
        made = getattr(models, kind, None) or getattr(extensions, kind)
        return made(
            **changes,
            r_max=4.0,
            num_bessel=4,
            num_polynomial_cutoff=5,
            max_ell=2,
            interaction_cls=blocks.RealAgnosticResidualInteractionBlock,
            interaction_cls_first=blocks.RealAgnosticInteractionBlock,
            num_interactions=2,
            num_elements=2,
            hidden_irreps=o3.Irreps("4x0e+4x1o"),
            MLP_irreps=o3.Irreps("4x0e"),
            atomic_energies=np.array([-1.5, -7.25]),
            avg_num_neighbors=3.0,
            atomic_numbers=[1, 8],
            correlation=2,
            gate=torch.nn.functional.silu,
            radial_MLP=[8, 8],
            atomic_inter_scale=1.3,
            atomic_inter_shift=0.2,
        )


def random_nequix() -> Any:
    """Return the package of a small random model with norms of whole rows."""
    found = run_path(str(ROOT / "tests" / "nequix" / "test_nequix.py"))
    options = ConversionOptions(dtype="float64", types=("H", "O"))
    with TemporaryDirectory() as folder:
        file = found["write_file"](Path(folder) / "m.pt", found["config_of"](n_layers=2))
        return convert_checkpoint(file, options)


def random_sevennet() -> Any:
    """Return the package of a small random model with the envelope of the published ones."""
    found = run_path(str(ROOT / "tests" / "sevennet" / "conftest.py"))
    options = {**found["MODELS"]["like the published"], "num_convolution_layer": 2}
    config = found["config_of"](("H", "O"), **options, conv_denominator=[3.0, 4.0])
    return convert_model(found["build_model"](config))


if __name__ == "__main__":
    main(sys.argv[1:])
