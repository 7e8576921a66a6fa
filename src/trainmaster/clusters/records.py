"""Which kind of cluster a directory holds, before anybody reads its record as one of its own."""

from __future__ import annotations

import json
from pathlib import Path

from trainmaster.core.errors import BadInput

RECORD = "cluster.json"


def kind_of(folder: Path) -> str:
    """The kind as the record has it, "" where there is none that can be read."""
    try:
        return str(json.loads((folder / RECORD).read_text())["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(folder: Path, kind: str) -> None:
    """BadInput where a cluster of another kind is there."""
    if (found := kind_of(folder)) not in ("", kind):
        raise BadInput(
            f"the cluster {folder.name} is of kind {found}, not {kind}",
            place=str(folder),
            mend=f"give another name, or end it first: tm cluster down {found} --name {folder.name}",
            anchor="cluster-differs",
        )
