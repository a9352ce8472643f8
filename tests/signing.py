"""Updates the SHA-256 of packages that tests have altered."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and tensors of a file."""
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]


def joined(header: dict[str, Any], tensors: bytes) -> bytes:
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + tensors


def signed(data: bytes) -> bytes:
    """Return the bytes of a package with the right digest, so that later checks are reached.

    Bytes that are no package, for example with a header that is no JSON, are returned unchanged.
    """
    try:
        header, tensors = split(data)
        metadata = header.pop("__metadata__")
        text = metadata.get("mdcg") or metadata["mdcg_kernels"]
        covered = text.encode()
        if "mdcg" not in metadata or json.loads(text).get("format") != 1:
            covered += b"\0" + index(header)
        metadata["sha256"] = hashlib.sha256(covered + tensors).hexdigest()
        return joined({"__metadata__": metadata, **header}, tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data


def index(header: dict[str, dict[str, list[int]]]) -> bytes:
    """Return the text of the index of tensors that the digest covers; see FORMAT.md."""
    lines = []
    for name in sorted(header, key=str.encode):
        entry = header[name]
        shape = "".join(f"{length}," for length in entry["shape"])
        begin, end = entry["data_offsets"]
        lines.append(f"{name}\0{entry['dtype']}\0{shape} {begin},{end}\n")
    return "".join(lines).encode()
