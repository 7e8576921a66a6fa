"""What must not be read by others is covered: by name, and by value.

A variable whose name says so is secret, whatever its value. A secret value is covered wherever it turns up in our own text, if it has
`SHORTEST` characters or more: a shorter one would cover half of every text, and is covered by name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

PATTERN = re.compile(
    r"(^|_)(TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH)(_|$|S$)",
    re.IGNORECASE,
)
SHORTEST = 8  # characters of a value that is covered by value
COVER = "[redacted]"


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is nobody else's business."""
    return PATTERN.search(name) is not None


def redact(data: Any, values: Iterable[str] = ()) -> Any:
    """Plain data with secrets covered: texts under a name that says it is secret, and `values` wherever they stand in a text."""
    long = sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
    return _redacted(data, long)


def _redacted(data: Any, values: list[str]) -> Any:
    if isinstance(data, str):
        for value in values:
            data = data.replace(value, COVER)
        return data
    if isinstance(data, Mapping):
        return {key: COVER if _covered(key, one) else _redacted(one, values) for key, one in data.items()}
    if isinstance(data, list | tuple):
        return [_redacted(one, values) for one in data]
    return data


def _covered(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and isinstance(key, str) and is_secret(key)
