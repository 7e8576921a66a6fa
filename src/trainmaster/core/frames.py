"""Messages of the agents' channel as frames of at most 64 KiB.

A message is one JSON text. One that is longer than `LIMIT` characters travels in parts, each a small JSON object of its own. `Joiner` puts
them together again, within a bound, whatever a broken peer sends.

A *content* is a file that many agents get, such as the peers of ten thousand tasks (half a MiB): its frames are made once, compressed, and
queued for all of them. A content goes ahead of the order that names it by its digest.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

LIMIT = 16 * 1024  # characters; as UTF-8 with JSON escapes at most 4 bytes each stay within a 64 KiB frame
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
WHOLE_LIMIT = 64 * 1024 * 1024  # characters of a message put together


class FrameError(ValueError):
    """A peer sent data that is not one of our frames."""


def split(message: dict[str, Any]) -> list[str]:
    """Return the frames that carry `message`, in order."""
    text = json.dumps(message, separators=(",", ":"))  # ASCII: one byte a character
    if len(text) <= LIMIT * 3:
        return [text]
    pieces = [text[i : i + LIMIT * 2] for i in range(0, len(text), LIMIT * 2)]
    return [json.dumps({"part": [i, len(pieces)], "data": piece}) for i, piece in enumerate(pieces)]


@lru_cache(maxsize=4)  # one content is the same bytes for every task of a formation
def content_frames(content: bytes) -> tuple[str, list[str]]:
    """Return the digest of `content`, and the frames that carry it."""
    digest = blake2b(content, digest_size=16).hexdigest()
    data = b64encode(zlib.compress(content, 1)).decode()
    return digest, split({"type": "content", "digest": digest, "data": data})


def content_of(message: Mapping[str, Any]) -> bytes:
    """Return the content that a message carries."""
    return zlib.decompress(b64decode(message["data"]))


class Joiner:
    """Puts the parts of messages together; parts of one message arrive in order, on one connection."""

    def __init__(self, limit: int = WHOLE_LIMIT) -> None:
        self._limit = limit
        self._pieces: list[str] = []
        self._size = 0

    def add(self, frame: str | bytes) -> dict[str, Any] | None:
        """Return the message that `frame` completes, or None while parts are missing.

        Raises FrameError on anything that is not a JSON object or not the next part.
        """
        try:
            message = json.loads(frame, parse_constant=_refuse)
            if (b"\\ud" if isinstance(frame, bytes) else "\\ud") in frame:  # type: ignore[operator]
                message = _whole(message)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"not JSON: {error}") from None
        if not isinstance(message, dict):
            raise FrameError("not a JSON object")
        whole: dict[str, Any] = message
        return self._part(whole) if "part" in whole else whole

    def _part(self, message: dict[str, Any]) -> dict[str, Any] | None:
        part, data = message["part"], message.get("data")
        if not (
            isinstance(part, list) and len(part) == 2 and all(type(n) is int for n in part) and isinstance(data, str)
        ):
            raise FrameError("a malformed part")
        index, count = part
        self._size += len(data)
        if index != len(self._pieces) or not 0 <= index < count or self._size > self._limit:
            raise FrameError("a part out of order, or a message over the limit")
        self._pieces.append(data)
        if index + 1 < count:
            return None
        text, self._pieces, self._size = "".join(self._pieces), [], 0
        return self.add(text)


def _whole(value: Any) -> Any:
    """Replace each half of a surrogate pair by a question mark. Python carries bytes of names that are not UTF-8 in some of the halves
    (PEP 383): these stay, so a name is the same at both ends.
    """
    if isinstance(value, str):
        return value if value.isascii() else _HALVES.sub("?", value)
    if isinstance(value, list):
        return [_whole(element) for element in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(member) for name, member in value.items()}
    return value


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which only Python's JSON has."""
    raise ValueError(f"{constant} is no JSON")
