"""Load models, patch them in place, and verify and report the result."""

from __future__ import annotations

from .copies import copy_model
from .hosts import model_info
from .loader import load_model
from .mace_inputs import ModelInfo, mace_batch, mace_info, neighbor_list
from .nequip_inputs import is_nequip, nequip_batch, nequip_info
from .patching import inspect_model, is_patched, patch_model, unpatch_model
from .record import model_record, set_model_record
from .report import LayerReport, PatchReport
from .verify import VerificationReport, verify_patch

__all__ = [
    "LayerReport",
    "ModelInfo",
    "PatchReport",
    "VerificationReport",
    "copy_model",
    "inspect_model",
    "is_nequip",
    "is_patched",
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
