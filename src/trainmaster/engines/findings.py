"""Findings of `tm doctor`: the outcome of one check of this machine or of a cluster."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from trainmaster.core.errors import TrainmasterError

GOOD, WARNING, BAD = "good", "warning", "bad"

Outcome = tuple[str, str, str]  # of a check: state, text, what to do


@attrs.frozen(slots=True)
class Finding:
    check: str
    state: str
    text: str
    place: str = ""
    mend: str = ""


def finding(name: str, check: Callable[[], Outcome], otherwise: str = WARNING) -> Finding:
    """Run a check and return its finding; `otherwise` is the finding's state where the check itself fails."""
    try:
        state, text, mend = check()
    except TrainmasterError as error:
        return Finding(name, otherwise, error.message, error.place, error.mend)
    except OSError as error:
        return Finding(
            name, otherwise, error.strerror or str(error), str(error.filename or ""), getattr(error, "mend", "")
        )
    return Finding(name, state, text, mend=mend)
