"""Bounded series of samples of a running job, by task and name.

Names: `cpu` (cores), `memory` (bytes), `gpu.<n>.util` (percent), `gpu.<n>.memory` (bytes), `progress` (0 to 1), `step`, `steps` (a second),
`records` (done), `records.rate` (a second), and `metric.<name>` of the program. The task "" is the whole job.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(slots=True)
class Series:
    """Samples of one name of one task, oldest first. `times` in seconds since 1970; a value is None where nothing was measured.

    A point stands for all samples of its interval: `values` has their means, `highest` the highest of them.
    """

    task: str
    name: str
    times: Sequence[float]
    values: Sequence[float | None]
    highest: Sequence[float | None]
