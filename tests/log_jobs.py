"""Jobs that are logs alone: written by our own writer, without any process of theirs."""

from __future__ import annotations

from typing import Any

from trainmaster.core.machine.events import Event, encode
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import Writer, open_writer


def described(name: str, tasks: int = 1) -> dict[str, Any]:
    """A small job, as its log has it."""
    return job_to(job_from({"name": name, "roles": {"worker": {"command": "true", "replicas": tasks}}}))


class Job:
    """A job whose master writes what it is told. `folder`: of jobs, in `state`."""

    def __init__(self, state: LocalStorage, key: str, at: float, folder: str = "jobs/", **data: Any) -> None:
        self.storage = LocalStorage(f"{state.root}/{folder}{key}")
        self.writer: Writer = open_writer(self.storage, 1, 0)
        self.tell("submitted", at, id=key, job=described(key.rsplit("-", 1)[0]), **data)

    def tell(self, kind: str, at: float, **data: Any) -> None:
        self.writer.append([encode(Event(self.writer.last + 1, at, 1, kind, data))], sync=True)
