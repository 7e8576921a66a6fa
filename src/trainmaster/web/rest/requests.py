"""The parameters and bodies of all requests. The types are read at run time."""

from typing import Any

import attrs

from trainmaster.core.states import LISTED_STATES
from trainmaster.web.contract import LIVE
from trainmaster.web.rest.words import field

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
TASK = rf"{NAME}:[0-9]{{1,6}}"
TEXT = r"[^\u0000-\u001f\u007f]*"
PRINTED = 10**12  # bytes: more than any log, and less than file systems take for a position
_EVENTS = 10**12
_ATTEMPTS = 10**6

plain = attrs.frozen(slots=True, eq=False, repr=False)


def _text(description: str, default: str = "", most: int = 200, pattern: str = TEXT) -> Any:
    return field(description, default, maxLength=most, pattern=pattern)


def _task(description: str, default: object = attrs.NOTHING) -> Any:
    return field(description, default, maxLength=200, pattern=TASK if default is attrs.NOTHING else f"({TASK})?")


def _by() -> Any:
    return _text("who does it, for the event log; counts where the server knows no user")


# -- parameters --


@plain
class Nothing:
    """No parameters, or no fields."""


@plain
class JobsPage:
    search: str = _text("a part of the id or name")
    state: str = _text(
        f"{', '.join(LISTED_STATES)}; `{LIVE}` for the first three",
        most=20,
        pattern=f"({'|'.join((*LISTED_STATES, LIVE))})?",
    )
    user: str = _text("jobs of this user alone")
    after: str = field("the id that the page before ended with", "", maxLength=128, pattern=f"({NAME})?")
    limit: int = field("jobs at most", 100, minimum=1, maximum=1000)


@plain
class EventsPage:
    after: int = field("events after this number", 0, minimum=0, maximum=_EVENTS)
    limit: int = field("events at most; of the list, not of the stream", 1000, minimum=1, maximum=10_000)


@plain
class LogPart:
    attempt: int | None = field("the attempt; else the latest with output", None, minimum=1, maximum=_ATTEMPTS)
    offset: int = field("bytes printed before", 0, minimum=0, maximum=PRINTED)
    limit: int = field("bytes after which no further piece follows", 2**20, minimum=1, maximum=2**23)
    follow: bool = field("go on with what is printed later; of newline-delimited JSON alone", False)


@plain
class Measured:
    task: list[str] = field(
        "of these tasks; an empty text is the whole job", (), maxItems=1000, maxLength=200, pattern=f"({TASK})?"
    )
    name: list[str] = field("of these names", (), maxItems=100, maxLength=200, pattern=TEXT)
    since: float = field("after this time, in seconds since 1970", 0.0, minimum=0, maximum=10**11)


@plain
class Everything:
    after: int = field("events after this number", 0, minimum=0, maximum=_EVENTS)
    logs: bool = field("output too", False)
    tail: int | None = field("bytes of earlier output of each attempt; else all", None, minimum=0, maximum=PRINTED)
    bare: bool = field("say only how far the output has come", False)


# -- bodies --


@plain
class Kill:
    task: str = _task("end the present attempt of this task; empty: the job", "")
    why: str = _text("the reason, for the event log", most=1000, pattern=r"[^\u0000]*")
    by: str = _by()


@plain
class Scale:
    role: str = field("the role", maxLength=128, pattern=NAME)
    size: int | None = field("members; null: as many as the job's own rules say", minimum=0, maximum=100_000)
    by: str = _by()


@plain
class Save:
    by: str = _by()


@plain
class Dump:
    task: str = _task("the task")
    by: str = _by()


@plain
class Signal:
    task: str = _task("the task")
    signal: str = field("its name, like USR1, or its number", maxLength=20, pattern=r"[A-Za-z0-9]+([+-][0-9]+)?")
    by: str = _by()


@plain
class Retry:
    by: str = _by()


@plain
class Cut:
    task: str = _task("the task")
    seconds: float = field("how long", exclusiveMinimum=0, maximum=3600)
    by: str = _by()
