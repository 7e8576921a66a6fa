"""Documents: small files of ours, each one JSON object, written whole and read by one function.

A document that is missing was never written. One that is there but empty, cut short or overwritten is *damaged*, which is never taken
for a missing one: its reader goes on without it and says so, or raises Damaged, which names the file and what to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.core.foreign import json_in
from trainmaster.log.storage import Damaged, LocalStorage, read_file

_MEND = "bring it back from a copy"


def damaged(path: str, content: bytes, mend: str = "") -> Damaged:
    """Return the error about a file of ours that does not hold what was written."""
    fault = "it is cut short, or overwritten" if content else "it is empty"
    name = os.path.basename(path)
    return Damaged(f"{name} is damaged: {fault}", place=path, mend=mend or _MEND, anchor="damaged-file")


def parse(content: bytes, path: str, mend: str = "") -> dict[str, Any]:
    """Return the document in `content`, which was read at `path`. Raises Damaged."""
    try:
        fields = json_in(content)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise damaged(path, content, mend)
    return fields


def read(path: Path, mend: str = "") -> dict[str, Any]:
    """Return the document at `path`. Raises FileNotFoundError, Damaged."""
    return parse(read_file(path), str(path), mend)


def write(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a document, whole and durable; readers see the old one or the new one."""
    LocalStorage(path.parent).replace(path.name, json.dumps(dict(fields)).encode())
