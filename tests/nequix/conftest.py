"""Nequix and the parts of jax that read its files, without which these tests are skipped."""

from __future__ import annotations

import importlib.util

import pytest

_NEEDS = ("nequix", "jax", "equinox", "e3nn_jax", "jraph")
if not all(map(importlib.util.find_spec, _NEEDS)):
    pytest.skip(f"{', '.join(_NEEDS)}: pip install 'mdcg[nequix]'", allow_module_level=True)
