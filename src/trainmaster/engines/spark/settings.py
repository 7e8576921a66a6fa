"""The section `engines.spark` of a job file, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.engines.sections import Reader, section, text

PLACE = "engines.spark"


@attrs.frozen(slots=True)
class Settings:
    """The settings of `engines.spark`. `pool`: Spark's own, of the FAIR scheduler, in which the job's tasks run."""

    application: str = ""  # the running application that takes the job; "": the only one of this user on this machine
    pool: str = "trainmaster"


def settings(entries: Mapping[str, Any]) -> Settings:
    """Read the section. Raises BadInput, naming the key and the nearest name."""
    return Settings(**section(_READ, entries, PLACE))


_READ: dict[str, Reader] = {"application": text, "pool": text}
