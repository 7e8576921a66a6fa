"""A failure of an attempt before, around or after its program: a reason of core.reasons, with its figures."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

CARRIED = frozenset(
    {"input-missing", "storage-unknown", "output-missing", "commit-refused"}
)  # reasons that an error may carry itself
INPUTS = frozenset({"no-mount", "input-exists", "unknown-format"})  # anchors of errors in the declaration of an input
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class AttemptFailed(Exception):
    """The attempt cannot go on."""

    def __init__(self, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason, self.figures = reason, dict(figures or {})


def failed(reason: str, error: BaseException, **figures: Any) -> AttemptFailed:
    """Return the failure of an attempt that met `error`, with `reason` or the reason that the error carries.

    A full disk is reported as such, whatever filled it. The figures include the error's advice to the user.
    """
    figures |= {"mend": mend} if (mend := getattr(error, "mend", "")) else {}
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return AttemptFailed("disk-full", {"detail": words(error), **figures})
        cause = cause.__cause__ or cause.__context__
    carried = str(getattr(error, "reason", ""))
    anchor = getattr(error, "anchor", "")
    if anchor in INPUTS:
        carried = "input-missing"
    if anchor == "storage-url":
        carried = "storage-unknown"
    return AttemptFailed(carried if carried in CARRIED else reason, {"detail": words(error), **figures})


def words(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
