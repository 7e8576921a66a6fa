"""The queue of one machine: `grant` is a pure function of the machine, the holds and the asks.

The line: asks of one gang of a job are one *unit*, any other ask is a unit of its own. Units are in order of the priority of their job.
Among equals a job that holds something comes before those that hold nothing: it must get what it still needs to finish, and a job ahead of
it may be waiting for just that (otherwise a priority inversion without end). Then they are in order of the priority of their role, of when
their job first asked, and of their own asks.

The rule: units get what they *need* strictly in the line's order. The first that does not fit stops the line, even if later ones would fit:
no unit is starved, and there is no backfilling. A unit that its own job's holds make impossible does not stop the line, since no other job
could help it. A gang needs `least` of each role (counting those held), the lowest indexes first, all of them or nothing. The asks beyond
that are *growth*: granted, lowest indexes first and without gaps, only while every need is met, and never waited for. All that a job asks
for in order to grow is growth too.

Taking back: if a unit that stops the line would fit without jobs of a lower priority, they give way. First go containers that their jobs
can go on without, in each role the highest indexes; if that is not enough, whole jobs. The lowest priority goes first, and among equals the
newest. Once the unit would fit, containers that need not go are kept, checked in the reverse order: a job that holds no GPU is not ended
where a GPU is lacking.

Cores are reserved, in thousandths; memory is in bytes; an accelerator is held by one container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Waiting
from trainmaster.core.plain import Plain
from trainmaster.host.machine import Capacity


@attrs.frozen(slots=True, eq=False, repr=False)
class Ask(Plain):
    """A request in line. `place` is the job's place, `order` the ask's own."""

    job: str
    request: Request
    place: int
    order: int


@attrs.frozen(slots=True, eq=False, repr=False)
class Hold(Plain):
    """The resources that a container of a job holds. `devices` may name some that the machine no longer has."""

    job: str
    request: Request
    devices: tuple[str, ...] = ()
    yields_to: str = ""  # the job that it gives way to


@attrs.frozen(slots=True, eq=False, repr=False)
class Amount(Plain):
    """An amount of a machine's resources; cores in thousandths, memory in bytes."""

    cores: int = 0
    memory: int = 0
    gpus: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.memory + other.memory, self.gpus + other.gpus)

    def lacking(self, free: Amount) -> str:
        """Return the first resource of which this amount needs more than is free, or ""."""
        return next(
            (name for name in ("gpus", "memory", "cores") if getattr(self, name) > max(0, getattr(free, name))), ""
        )


def amount(requests: Iterable[Request]) -> Amount:
    return sum((Amount(round(request.cores * 1000), request.memory, request.gpus) for request in requests), Amount())


def total(capacity: Capacity) -> Amount:
    return Amount(round(capacity.cores * 1000), capacity.memory, len(capacity.devices))


def free_devices(capacity: Capacity, holds: Sequence[Hold]) -> list[str]:
    in_use = {device for hold in holds for device in hold.devices}
    return [device for device in capacity.devices if device not in in_use and device not in capacity.busy]


def free(capacity: Capacity, holds: Sequence[Hold]) -> Amount:
    """Return the amount that nobody holds; negative where the machine has shrunk."""
    whole, in_use = total(capacity), amount(hold.request for hold in holds)
    return Amount(
        whole.cores - in_use.cores, whole.memory - in_use.memory, len(free_devices(capacity, holds))
    )  # fmt: skip


@attrs.frozen(slots=True, eq=False, repr=False)
class Unit(Plain):
    """Asks that are granted together: what they need, and their growth beyond it."""

    job: str
    need: tuple[Ask, ...]
    growth: tuple[Ask, ...]

    @property
    def amount(self) -> Amount:
        return amount(ask.request for ask in self.need)


def line(holds: Sequence[Hold], asks: Sequence[Ask]) -> list[Unit]:
    """Return the units in the order in which they are served."""
    groups: dict[tuple[object, ...], list[Ask]] = {}
    for ask in asks:
        request = ask.request
        key = (ask.job, request.gang) if request.gang else (ask.job, "", request.task, request.serial)
        groups.setdefault(key, []).append(ask)
    holders = {hold.job for hold in holds}

    def rank(members: list[Ask]) -> tuple[object, ...]:
        priority = max(ask.request.priority for ask in members)
        request = members[0].request
        return (
            -request.job_priority,
            members[0].job not in holders,
            -priority,
            members[0].place,
            min(ask.order for ask in members),
        )

    return [_unit(holds, members) for members in sorted(groups.values(), key=rank)]


def _unit(holds: Sequence[Hold], members: list[Ask]) -> Unit:
    members = sorted(members, key=lambda ask: (-ask.request.priority, ask.request.role, ask.request.index))
    job, gang = members[0].job, members[0].request.gang
    if not gang:
        return Unit(job, (), tuple(members)) if members[0].request.growth else Unit(job, tuple(members), ())
    unmet = Counter({ask.request.role: ask.request.least for ask in members})
    inelastic = {role for role, least in unmet.items() if not least}
    for hold in holds:
        if hold.job == job and hold.request.gang == gang:
            unmet[hold.request.role] -= 1
    need, growth = list[Ask](), list[Ask]()
    for ask in members:
        is_needed = ask.request.role in inelastic or unmet[ask.request.role] > 0
        unmet[ask.request.role] -= 1
        (need if is_needed else growth).append(ask)
    return Unit(job, tuple(need), tuple(growth))


def grant(capacity: Capacity, holds: Sequence[Hold], asks: Sequence[Ask]) -> list[Hold]:
    """Return the holds to add to `holds`, by the rule above."""
    units, granted = line(holds, asks), list[Hold]()
    devices, remainder = free_devices(capacity, holds), free(capacity, holds)

    def grant_asks(members: Sequence[Ask]) -> Amount:
        for ask in members:
            granted.append(Hold(ask.job, ask.request, tuple(devices[: ask.request.gpus])))
            del devices[: ask.request.gpus]
        return free(capacity, [*holds, *granted])

    for unit in units:
        if unit.need and unit.amount.lacking(remainder):
            if _is_hopeless(capacity, holds, unit):
                continue
            return granted
        remainder = grant_asks(unit.need)
    for unit in units:
        stopped_roles: set[str] = set()
        is_need_met = not unit.need or any(hold.request is unit.need[0].request for hold in granted)
        for ask in unit.growth if is_need_met else ():
            if ask.request.role not in stopped_roles and not amount([ask.request]).lacking(remainder):
                remainder = grant_asks([ask])
            else:
                stopped_roles.add(ask.request.role)
    return granted


def reclaim(capacity: Capacity, holds: Sequence[Hold], asks: Sequence[Ask]) -> list[tuple[Hold, str]]:
    """Return the holds that are to be taken back, with the job that each gives way to. `holds` must contain the grants of `grant`."""
    unit = next((unit for unit in line(holds, asks) if unit.need and not _is_hopeless(capacity, holds, unit)), None)
    if unit is None:
        return []
    staying, groups = [hold for hold in holds if not hold.yields_to], list[list[Hold]]()

    def fits(groups: Sequence[Sequence[Hold]]) -> bool:
        """Tell whether the unit fits once these groups of holds are gone."""
        gone = {id(hold) for group in groups for hold in group}
        return not unit.amount.lacking(free(capacity, [hold for hold in staying if id(hold) not in gone]))

    for group in _yielding(staying, unit.need[0].request.job_priority):
        if fits(groups):
            break
        groups.append(group)
    if not fits(groups):
        return []
    for group in reversed(groups):
        others = [other for other in groups if other is not group]
        if fits(others):
            groups = others
    reclaimed = {id(hold): hold for group in groups for hold in group}
    return [(hold, unit.job) for hold in reclaimed.values()]


def _yielding(holds: Sequence[Hold], priority: int) -> Iterator[list[Hold]]:
    """Yield what gives way to a job of this priority, in order: holds that go together. A whole job includes members that went before."""
    lower = [hold for hold in holds if hold.request.job_priority < priority]
    # Among equal priorities the newest come first: holds are in the order in which they were granted.
    jobs = sorted(dict.fromkeys(hold.job for hold in reversed(lower)), key=lambda job: _priority(lower, job))
    for job in jobs:
        roles: dict[str, list[Hold]] = {}
        for hold in lower:
            if hold.job == job and hold.request.minimum:
                roles.setdefault(hold.request.role, []).append(hold)
        for members in roles.values():
            spare = len(members) - members[0].request.minimum
            for hold in sorted(members, key=lambda hold: -hold.request.index)[: max(0, spare)]:
                yield [hold]
    for job in jobs:
        yield [hold for hold in lower if hold.job == job]


def _priority(holds: Sequence[Hold], job: str) -> int:
    return next(hold.request.job_priority for hold in holds if hold.job == job)


def _is_hopeless(capacity: Capacity, holds: Sequence[Hold], unit: Unit) -> bool:
    """Return True where the unit could not be granted even if every other job were gone."""
    own = amount(hold.request for hold in holds if hold.job == unit.job)
    return bool((unit.amount + own).lacking(total(capacity)))


def waiting(
    capacity: Capacity, holds: Sequence[Hold], asks: Sequence[Ask], job: str, named: Callable[[str], str] = str
) -> Waiting | None:
    """Return why the job's first unit is not granted; None if the job needs nothing. `holds` must contain the grants of `grant`.

    `named`: what to call another job.
    """
    units = [unit for unit in line(holds, asks) if unit.need]
    position = next((number for number, unit in enumerate(units, 1) if unit.job == job), 0)
    if not position:
        return None
    unit, remainder = units[position - 1], free(capacity, holds)
    resource = unit.amount.lacking(remainder)
    why = ""
    if not resource:  # the unit would fit without those ahead
        why = f", behind job {named(units[0].job)}"
        resource = units[0].amount.lacking(remainder) or "cores"
    elif _is_hopeless(capacity, holds, unit):
        why = ", the rest being held by this job itself"
    elif holders := sorted({hold.job for hold in holds if hold.job != job}):
        why = f", held by {', '.join(map(named, holders[:3]))}" + (", ..." if len(holders) > 3 else "")
        if givers := sorted({hold.job for hold in holds if hold.yields_to == job}):
            why += f"; {', '.join(givers)} {'gives' if len(givers) == 1 else 'give'} way"
    needed, available = written(resource, unit.amount), written(resource, remainder)
    names = ", ".join(ask.request.task for ask in unit.need[:3]) + (", ..." if len(unit.need) > 3 else "")
    verb = "wait for" if len(unit.need) > 1 else "waits for"
    detail = f"{names} {verb} {_phrase(resource, unit.amount)}: {available} of {written(resource, total(capacity))} free{why}"
    return Waiting(resource, needed, available, detail, position)


def refusal(capacity: Capacity, requests: Sequence[Request]) -> str:
    """Return why these can never be granted together, "" if they can."""
    resource = amount(requests).lacking(total(capacity))
    if not resource:
        return ""
    subject = (
        f"{requests[0].task} needs" if len(requests) == 1 else f"{len(requests)} containers that start together need"
    )
    available = written(resource, total(capacity))
    return f"{subject} {_phrase(resource, amount(requests))}, this machine has {available} for jobs"


def _phrase(resource: str, quantity: Amount) -> str:
    """Return an amount with its resource, as in "2 cores" and "3 GiB of memory"."""
    figure = written(resource, quantity)
    name = {"memory": "of memory", "gpus": "GPUs", "cores": "cores"}[resource]
    return f"{figure} {name.removesuffix('s') if figure == '1' else name}"


def written(resource: str, quantity: Amount) -> str:
    """Return an amount of a resource as people read it."""
    from trainmaster.core.spec.quantities import format_bytes

    if resource == "memory":
        return format_bytes(max(0, quantity.memory))
    return f"{max(0, quantity.cores) / 1000:g}" if resource == "cores" else str(max(0, quantity.gpus))
