"""Gives packages that tests have altered the SHA-256 of what they hold now."""

from __future__ import annotations

import hashlib
import json


def signed(data: bytes) -> bytes:
    """Return the bytes of a package with the right digest, so that later checks are reached.

    What is no package any more, such as a header that is no JSON, is returned as it is.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        return data
    try:
        header = json.loads(data[8:start])
        metadata = header["__metadata__"]
        digest = hashlib.sha256(metadata["mdcg"].encode() + data[start:])
        metadata["sha256"] = digest.hexdigest()
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data[start:]
