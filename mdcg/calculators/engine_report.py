"""Log messages about the kernels of a package, and the report of an evaluation."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import KernelCompileError, printable_values
from ..runtime.cache import announce_compilation, log_cache_warning, warn_once
from ..runtime.compiler import find_compiler


@dataclass(frozen=True)
class EngineReport:
    """Kernels and times of packages; printable.

    Attributes
    ----------
    packages : tuple of dict
        For each package of the calculator: ``kernels`` (name, ``origin``: named, cached, made,
        generic or not loaded, and why), ``layers`` (milliseconds forward and backward in the last
        evaluation), ``milliseconds`` in total, ``nodes``, ``edges``, ``bytes`` of buffers, and
        ``instruction_set``. On a GPU, ``device`` and ``device_name`` instead of the latter;
        ``layers`` then belong to the last step without CUDA graph, and ``replays`` counts steps
        that replayed a graph. With the option `memory`, ``memory_bytes`` of this package; for a
        structure in domains also ``domains``, ``domain_nodes`` of the largest, ``domain_divisions``
        so far, and ``domains_ms``, the time of all domains. The other numbers are then those of the
        last domain.
    """

    packages: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        return "\n\n".join(_text(part) for part in self.packages)


def _text(part: Mapping[str, Any]) -> str:
    where = part.get("instruction_set", "")
    if "device" in part:
        where = f"{part['device']} ({part.get('device_name', '')})"
    lines = [
        f"{part.get('package', 'package')}: {part.get('dtype', '')}, {where}, "
        f"{part.get('kernel_summary', '')}"
    ]
    for kernel in part.get("kernels") or []:
        target = f" ({kernel['target']})" if "target" in kernel else ""
        seconds = f" in {kernel['compile_seconds']:.1f} s" if "compile_seconds" in kernel else ""
        why = f": {kernel['why']}" if "why" in kernel else ""
        lines.append(f"  kernel {kernel['name']}: {kernel['origin']}{target}{seconds}{why}")
    if "domains" in part:
        lines.append(f"  {part['domains']} domains, {part['domains_ms']:.2f} ms; the last of them:")
    if "milliseconds" in part:
        lines.append(
            f"  {part.get('nodes', 0)} nodes, {part.get('edges', 0)} edges, "
            f"{part.get('bytes', 0) / 1e6:.1f} MB, {part['milliseconds']:.2f} ms:"
        )
    if "graph_ms" in part:
        lines.append(f"  {'edges':<32} {part['graph_ms']:9.2f} ms")
    for layer in part.get("layers") or []:
        lines.append(
            f"  {layer['name']:<32} {layer['forward_ms']:9.2f} ms forward "
            f"{layer['backward_ms']:9.2f} ms backward"
        )
    if "forces_ms" in part:
        lines.append(f"  {'energy, forces, virial':<32} {part['forces_ms']:9.2f} ms")
    return "\n".join(lines)


_LOG = logging.getLogger("mdcg")


class KernelLog:
    """Logs messages about the kernels of a package, once."""

    def __init__(self, model: _core.Model, name: str, device: str) -> None:
        self._model, self._name, self._on_device = model, name, device != "cpu"
        self._has_begun = self._has_ended = False

    def before(self) -> None:
        """Announce that the engine will run ``python -m mdcg kernels``, before it does."""
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
