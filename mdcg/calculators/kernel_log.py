"""Log messages about the kernels of a package, before and after its first evaluation."""

from __future__ import annotations

import json
import logging

from .. import _core
from ..errors import KernelCompileError, printable_values
from ..runtime import find_compiler
from ..runtime.cache import announce_compilation, log_cache_warning, warn_once

_LOG = logging.getLogger("mdcg")


class KernelLog:
    """Logs once what a user should know about the kernels of a package."""

    def __init__(self, model: _core.Model, name: str, device: str) -> None:
        self._model, self._name, self._on_device = model, name, device != "cpu"
        self._has_begun = self._has_ended = False

    def before(self) -> None:
        """Warn that the engine will start ``python -m mdcg kernels`` and wait for it."""
        if self._has_begun:
            return
        self._has_begun = True
        if "python -m mdcg kernels will make them" not in self._model.summary():
            return
        if not self._on_device:
            try:
                find_compiler()
            except KernelCompileError:  # `after` logs it
                return
        announce_compilation(f"the kernels of {self._name}")

    def after(self) -> None:
        """Log which kernels run, and warn of generic ones and of a cache that is not used."""
        if self._has_ended or not self._has_begun:
            return
        self._has_ended = True
        found = printable_values(json.loads(self._model.report()))  # compilers quote
        _LOG.info("%s: %s", self._name, found.get("kernel_summary"))
        reasons = [k["why"] for k in found.get("kernels", []) if k["origin"] == "generic"]
        if reasons and "asked for" not in reasons[0]:
            warn_once(f"{self._name} runs on generic kernels, which are slower: {reasons[0]}")
        log_cache_warning()
