"""Load models, patch them in place, and verify and report the result."""

from __future__ import annotations

from .loader import load_model
from .models import (
    ModelInfo,
    copy_model,
    is_nequip,
    mace_batch,
    mace_info,
    model_info,
    model_record,
    neighbor_list,
    nequip_batch,
    nequip_info,
    set_model_record,
)
from .nequix_files import is_nequix
from .patching import inspect_model, is_patched, patch_model, unpatch_model
from .report import LayerReport, PatchReport
from .sevennet_files import is_sevennet
from .verify import VerificationReport, verify_patch

__all__ = [
    "LayerReport",
    "ModelInfo",
    "PatchReport",
    "VerificationReport",
    "copy_model",
    "inspect_model",
    "is_nequip",
    "is_nequix",
    "is_patched",
    "is_sevennet",
    "load_model",
    "mace_batch",
    "mace_info",
    "model_info",
    "model_record",
    "neighbor_list",
    "nequip_batch",
    "nequip_info",
    "patch_model",
    "set_model_record",
    "unpatch_model",
    "verify_patch",
]
