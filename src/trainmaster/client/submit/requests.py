"""The containers that a job asks for, before it has a master."""

from __future__ import annotations

from itertools import islice

from trainmaster.core.containers import Request
from trainmaster.core.spec.job import Job


def requests(job: Job) -> list[Request]:
    """Return the containers that the job asks for, at its largest, as long as nobody scales it."""
    from trainmaster.core.machine.state import State, populate
    from trainmaster.master.orders import Orders

    state = State(id="x")
    populate(state, job)
    orders = Orders(job, {})
    return [
        orders.request(state, task.key, 1)
        for name, role in job.roles.items()
        for task in islice(state.tasks_of(name), role.replicas.most)
    ]


def at_once(job: Job) -> list[Request]:
    """Return those of them that its first master will ask for at once."""
    from trainmaster.core.decide.drive import Drive
    from trainmaster.core.machine.actions import Ask
    from trainmaster.core.machine.stimuli import MasterStarted, Submitted
    from trainmaster.core.spec.reading import job_to
    from trainmaster.master.orders import Orders

    drive, orders = Drive(), Orders(job, {})
    orders.near = True
    _, actions = drive.take([MasterStarted(1), Submitted("x", job_to(job))], 0.0)
    if orders.unlocated(drive.state):
        return []
    return [orders.request(drive.state, action.task, action.serial) for action in actions if isinstance(action, Ask)]
