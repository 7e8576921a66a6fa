"""How a user names a job: `engine://place/id`, its id, or any beginning of one that no other job shares."""

from __future__ import annotations

import attrs

from trainmaster.client.places import job_ids
from trainmaster.core.errors import BadInput, NotFound

_SHOWN = 5


@attrs.frozen(slots=True)
class Handle:
    """One job on one engine. `place` is the machine or cluster; "" for this machine."""

    id: str
    engine: str = "local"
    place: str = ""

    def __str__(self) -> str:
        return f"{self.engine}://{self.place}/{self.id}"


def here(job: str) -> Handle:
    """The handle of a job of this machine."""
    import socket

    return Handle(job, "local", socket.gethostname())


def resolve(text: str) -> str:
    """The id that `text` names. Raises NotFound where no job is meant, BadInput where several are."""
    wanted = parse(text).id
    known = job_ids()
    if wanted in known:
        return wanted
    begun = sorted(job for job in known if job.startswith(wanted))
    if len(begun) == 1:
        return begun[0]
    if begun:
        shown = ", ".join(begun[:_SHOWN]) + (", ..." if len(begun) > _SHOWN else "")
        raise BadInput(
            f"{wanted} is the beginning of {len(begun)} jobs: {shown}",
            mend="give more of the id",
            anchor="ambiguous-job",
        )
    from difflib import get_close_matches

    near = get_close_matches(wanted, known, 1, 0.6)
    raise NotFound(
        f"there is no job {wanted}" + (f"; did you mean {near[0]}?" if near else ""),
        mend="see them all: tm list",
        anchor="no-such-job",
    )


def parse(text: str) -> Handle:
    """The parts of a handle, whether the job exists or not."""
    engine, separator, rest = text.strip().partition("://")
    place, _, job = rest.partition("/") if separator else ("", "", engine)
    engine = engine if separator else "local"
    if engine != "local":
        raise BadInput(f"there is no engine {engine} here", place=text, mend="engines: local", anchor="unknown-engine")
    if not job or "/" in job or job.startswith("."):
        raise BadInput(f"{text!r} names no job", mend="see them all: tm list", anchor="no-such-job")
    return Handle(job, engine, place)
