"""Report of the last evaluation: which kernels ran, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineReport:
    """Kernels and times of packages; printable.

    Attributes
    ----------
    packages : tuple of dict
        For each package of the calculator: ``kernels`` (name, ``origin``: named, cached, made,
        generic or not loaded, and why), ``layers`` (milliseconds forward and backward in
        the last evaluation), ``milliseconds`` of all, ``nodes``, ``edges``, ``bytes`` of buffers,
        ``instruction_set``; or ``device`` and ``device_name``, where layers' times are those of the
        last step that was not captured, and ``replays`` counts the captured ones.
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
