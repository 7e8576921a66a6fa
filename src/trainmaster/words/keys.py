"""The keys of a job file, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainmaster.core.spec import description


def leaves(job: Any) -> Iterator[tuple[str, str]]:
    """Yield every value of a job as (dotted key, text)."""
    for path, value in description.leaves(job):
        yield ".".join(path), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
