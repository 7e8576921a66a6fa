"""The places of results are looked at before the work for them begins."""

from __future__ import annotations

from ...runtime.folders import reason_unwritable
from ..errors import BadModel


def require_folder(path: str, flag: str) -> None:
    """Raise BadModel where nothing can be written to a folder. `flag` names it, as in `--output`."""
    if "://" in path:
        raise BadModel(
            "without a job, results are written into a directory of this machine",
            place=f"{flag}: {path}",
            mend="name a directory, or start it by tm train or tm predict, which take URLs",
        )
    if reason := reason_unwritable(path):
        raise BadModel(
            f"the results cannot be written: {reason}",
            place=f"{flag}: {path}",
            mend="check the permissions there, or name another directory",
        )
