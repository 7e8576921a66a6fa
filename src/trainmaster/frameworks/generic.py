"""Programs of any kind: they have the TRAINMASTER_ variables alone, and find their peers by the file that
TRAINMASTER_PEERS names."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.core.machine.formation import Formation
from trainmaster.core.spec.job import Job, Role
from trainmaster.frameworks.contract import Placement


def ports(role: Role, job: Job) -> Sequence[str]:
    return ()


def environment(formation: Formation, task: str) -> Placement:
    return Placement()
