"""Makes the packages that these tests run:

    python tests/lammps/make_packages.py

needs mdcg with MACE and NequIP (the environment that ``bash tests/run.sh both`` makes),
graph-longrange and tad-dftd3. The same checkpoints give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mdcg.package import ConversionOptions
from mdcg.package.convert import convert_checkpoint, convert_model

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "stubs"))  # for the model with a long-range sum


def main() -> None:
    # mace_water_float64.mdcg and nequip_water_float32.mdcg have format 1, which must still open.
    for name, suffix, dtype in (
        ("mace_water", "model", "float32"),
        ("nequip_water", "ckpt", "float64"),
    ):
        source = ROOT / "tests" / "data" / f"{name}.{suffix}"
        package = convert_checkpoint(source, ConversionOptions(dtype=dtype, dispersion="pbe"))
        package.save(source.with_name(f"{name}_{dtype}.mdcg"))
    data = ROOT / "tests" / "data"
    convert_model(random_les()).save(data / "mace_les_water_float64.mdcg")
    options = ConversionOptions(graph_fields=(("total_spin", 1),))
    convert_model(random_charged(), options).save(data / "mace_charged_water_float64.mdcg")
    convert_model(random_polar()).save(data / "mace_polar_water_float64.mdcg")


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


if __name__ == "__main__":
    main()
