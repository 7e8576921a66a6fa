"""A failure of an attempt before, around or after its program: a reason out of core.reasons, with its figures."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

TOLD = frozenset(
    {"input-missing", "storage-unknown", "output-missing", "commit-refused"}
)  # reasons that an error may carry itself
INPUTS = frozenset({"no-mount", "input-exists", "unknown-format"})  # anchors of errors about an input as it was given
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class AttemptFailed(Exception):
    """The attempt cannot go on."""

    def __init__(self, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason, self.figures = reason, dict(figures or {})


def failed(reason: str, error: BaseException, **figures: Any) -> AttemptFailed:
    """`error`, met while doing what fails with `reason`, or with the reason it carries; a full disk is told as such, whatever it was
    filled by. What the user can do about it goes along.
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
    return AttemptFailed(carried if carried in TOLD else reason, {"detail": words(error), **figures})


def words(error: BaseException) -> str:
    """An error in one line."""
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
