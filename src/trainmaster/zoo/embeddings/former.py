"""The checkpoints of a former job's parameter servers, for one process that takes all that they have."""

from __future__ import annotations

import os
from typing import Any

from ...ps.storage.former import Unusable, is_former, newest_former
from ..errors import BadModel

FLAG = "--checkpoint_dir_for_init"


def is_of_servers(place: str) -> bool:
    """Tell whether a directory has checkpoints of parameter servers, in it or below."""
    return os.path.isdir(place) and is_former(place)


def loaded_former(place: str) -> Any:
    """Return all that the newest checkpoint of servers has, as the share of one server. Raises BadModel, NoRoom."""
    try:
        return newest_former(place).load(0, 1)
    except Unusable as error:
        raise BadModel(error.message, place=f"{FLAG} {place}", mend=error.mend) from None
