"""Exceptions raised by mdcg; every message says what failed, what was expected and what to do."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "DeviceError",
    "KernelCompileError",
    "MdcgError",
    "MissingDependencyError",
    "PackageError",
    "UnsupportedProblemError",
    "VerificationError",
]


class MdcgError(Exception):
    """Base class of all errors specific to mdcg."""


class UnsupportedProblemError(MdcgError, ValueError):
    """A tensor product uses something no generated kernel covers."""


class CheckpointError(MdcgError, ValueError):
    """A checkpoint cannot be read, or is not the kind of file that was asked for."""


class KernelCompileError(MdcgError, RuntimeError):
    """No compiler was found, or it rejected a generated kernel."""


class DeviceError(MdcgError, RuntimeError):
    """The requested device is missing or unusable."""


class MissingDependencyError(MdcgError, ImportError):
    """An optional package is needed for what was asked."""


class VerificationError(MdcgError, RuntimeError):
    """A result differs from the reference by more than the stated limit."""


class PackageError(MdcgError, ValueError):
    """A .mdcg package cannot be read, is damaged, or is of a newer version."""
