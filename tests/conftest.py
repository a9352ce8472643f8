"""Shared by all tests: random numbers with a seed, a private kernel cache, the markers."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Generator
from functools import lru_cache

import hypothesis
import numpy as np
import pytest

# No deadline, because a first example may compile a kernel. Every run draws the same examples.
hypothesis.settings.register_profile("mdcg", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("mdcg")


def pytest_configure(config: pytest.Config) -> None:
    """Use a kernel cache that all runs of the tests share, apart from the user's."""
    if "MDCG_CACHE_DIR" not in os.environ:
        cache = getattr(config, "cache", None)  # absent with -p no:cacheprovider
        folder = cache.mkdir("mdcg") if cache else tempfile.mkdtemp(prefix="mdcg-tests-")
        os.environ["MDCG_CACHE_DIR"] = str(folder)


@lru_cache(maxsize=1)
def _why_no_gpu() -> str:
    """Return why gpu tests cannot run here, or an empty string."""
    try:
        import torch
    except ImportError:
        return _why_no_device()
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


def _why_no_device() -> str:
    """Return why the engine finds no device, or an empty string; this needs no torch."""
    from mdcg import _core

    try:
        _core.cuda_compute_capability(0)
    except RuntimeError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip gpu tests if there is no device; put files with slow tests first.

    Otherwise one process may be busy with the last file while the others are idle.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # stable
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=f"gpu test: {reason}"))


@lru_cache(maxsize=1)
def _why_no_compiler() -> str:
    from mdcg.errors import KernelCompileError
    from mdcg.runtime.compiler import find_compiler

    try:
        find_compiler()
    except KernelCompileError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip compiler tests that are marked as a whole where there is no compiler."""
    marker = item.get_closest_marker("compiler")
    if marker and marker.kwargs.get("whole") and (reason := _why_no_compiler()):
        pytest.skip(f"compiler test: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip the rest of a compiler test where it finds no compiler; what was before has passed."""
    report = yield
    if report.failed and call.excinfo is not None and item.get_closest_marker("compiler"):
        reason = _why_no_compiler()
        if reason and reason in str(call.excinfo.value):
            line = item.reportinfo()[1] or 0
            report.outcome = "skipped"
            report.longrepr = (str(item.path), line, f"Skipped: compiler test: {reason}")
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return a seed that depends only on the test's name; pytest shows it if the test fails."""
    value = zlib.crc32(request.node.nodeid.encode())
    print(f"seed: {value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Return a NumPy generator seeded by the test's name."""
    return np.random.default_rng(seed)
