"""Who gets what of one machine: `grant` is a pure function of the machine, what is held and what is asked.

The line: asks of one gang of a job are one *unit*, any other ask is a unit of its own. Units stand in order of priority, then of when
their job first asked, then of their own. A job that holds something stands before those that hold nothing: what it still needs is what
lets it finish, and a job ahead of it may be waiting for just that (a priority inversion without end otherwise).

The rule: units get what they *need* strictly in the line's order. The first that does not fit stops the line, whatever would fit behind it:
nobody is starved, and there is no backfilling. A unit that its own job's holds make impossible does not stop the line, since nobody else
could help it. A gang needs `least` of each role (counting those held), the lowest indexes first, all of them or nothing. What it asks
beyond that is *growth*: given, lowest indexes first and without gaps, only while nobody's need is unmet, and never waited for.

Cores are reserved, in thousandths; memory is in bytes; an accelerator is held by one container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from trainmaster.core.machine.stimuli import Waiting
from trainmaster.core.plain import Plain
from trainmaster.engines.contract import Request
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
    """What a container of a job holds. `devices` may name some that the machine no longer has."""

    job: str
    request: Request
    devices: tuple[str, ...] = ()


@attrs.frozen(slots=True, eq=False, repr=False)
class Amount(Plain):
    """So much of a machine; cores in thousandths."""

    cores: int = 0
    memory: int = 0
    gpus: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.memory + other.memory, self.gpus + other.gpus)

    def lacking(self, free: Amount) -> str:
        """The first resource of which more is asked than is free, or ""."""
        return next(
            (name for name in ("gpus", "memory", "cores") if getattr(self, name) > max(0, getattr(free, name))), ""
        )


def amount(requests: Iterable[Request]) -> Amount:
    return sum((Amount(round(one.cores * 1000), one.memory, one.gpus) for one in requests), Amount())


def total(capacity: Capacity) -> Amount:
    return Amount(round(capacity.cores * 1000), capacity.memory, len(capacity.devices))


def free_devices(capacity: Capacity, holds: Sequence[Hold]) -> list[str]:
    held = {device for hold in holds for device in hold.devices}
    return [device for device in capacity.devices if device not in held and device not in capacity.taken]


def free(capacity: Capacity, holds: Sequence[Hold]) -> Amount:
    """What nobody holds; less than nothing where the machine has shrunk."""
    all_of_it, held = total(capacity), amount(hold.request for hold in holds)
    return Amount(
        all_of_it.cores - held.cores, all_of_it.memory - held.memory, len(free_devices(capacity, holds))
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
    """The units in the order in which they are served."""
    gathered: dict[tuple[object, ...], list[Ask]] = {}
    for ask in asks:
        one = ask.request
        key = (ask.job, one.gang) if one.gang else (ask.job, "", one.task, one.serial)
        gathered.setdefault(key, []).append(ask)
    holding = {hold.job for hold in holds}

    def rank(members: list[Ask]) -> tuple[object, ...]:
        priority = max(ask.request.priority for ask in members)
        return (members[0].job not in holding, -priority, members[0].place, min(ask.order for ask in members))

    return [_unit(holds, members) for members in sorted(gathered.values(), key=rank)]


def _unit(holds: Sequence[Hold], members: list[Ask]) -> Unit:
    members = sorted(members, key=lambda ask: (-ask.request.priority, ask.request.role, ask.request.index))
    job, gang = members[0].job, members[0].request.gang
    if not gang:
        return Unit(job, tuple(members), ())
    left = Counter({ask.request.role: ask.request.least for ask in members})
    whole = {role for role, least in left.items() if not least}
    for hold in holds:
        if hold.job == job and hold.request.gang == gang:
            left[hold.request.role] -= 1
    need, growth = list[Ask](), list[Ask]()
    for ask in members:
        needed = ask.request.role in whole or left[ask.request.role] > 0
        left[ask.request.role] -= 1
        (need if needed else growth).append(ask)
    return Unit(job, tuple(need), tuple(growth))


def grant(capacity: Capacity, holds: Sequence[Hold], asks: Sequence[Ask]) -> list[Hold]:
    """What is to be held beyond `holds`, by the rule above."""
    units, granted = line(holds, asks), list[Hold]()
    devices, left = free_devices(capacity, holds), free(capacity, holds)

    def give(given: Sequence[Ask]) -> Amount:
        for ask in given:
            granted.append(Hold(ask.job, ask.request, tuple(devices[: ask.request.gpus])))
            del devices[: ask.request.gpus]
        return free(capacity, [*holds, *granted])

    for unit in units:
        if unit.need and unit.amount.lacking(left):
            if _hopeless(capacity, holds, unit):
                continue
            return granted
        left = give(unit.need)
    for unit in units:
        full: set[str] = set()
        met = not unit.need or any(hold.request is unit.need[0].request for hold in granted)
        for ask in unit.growth if met else ():
            if ask.request.role not in full and not amount([ask.request]).lacking(left):
                left = give([ask])
            else:
                full.add(ask.request.role)
    return granted


def _hopeless(capacity: Capacity, holds: Sequence[Hold], unit: Unit) -> bool:
    """Whether the unit could not be granted even if every other job were gone."""
    own = amount(hold.request for hold in holds if hold.job == unit.job)
    return bool((unit.amount + own).lacking(total(capacity)))


def waiting(capacity: Capacity, holds: Sequence[Hold], asks: Sequence[Ask], job: str) -> Waiting | None:
    """Why the job's first unit is not granted; None if the job needs nothing. To be called with what `grant` gave among `holds`."""
    units = [unit for unit in line(holds, asks) if unit.need]
    position = next((number for number, unit in enumerate(units, 1) if unit.job == job), 0)
    if not position:
        return None
    unit, left = units[position - 1], free(capacity, holds)
    resource = unit.amount.lacking(left)
    why = ""
    if not resource:  # it would fit, but for those ahead
        why = f", behind job {units[0].job}"
        resource = units[0].amount.lacking(left) or "cores"
    elif _hopeless(capacity, holds, unit):
        why = ", the rest being held by this job itself"
    elif holders := sorted({hold.job for hold in holds if hold.job != job}):
        why = f", held by {', '.join(holders[:3])}" + (", ..." if len(holders) > 3 else "")
    asked, there = written(resource, unit.amount), written(resource, left)
    names = ", ".join(ask.request.task for ask in unit.need[:3]) + (", ..." if len(unit.need) > 3 else "")
    verb = "wait for" if len(unit.need) > 1 else "waits for"
    detail = (
        f"{names} {verb} {_phrase(resource, unit.amount)}: {there} of {written(resource, total(capacity))} free{why}"
    )
    return Waiting(resource, asked, there, detail, position)


def refusal(capacity: Capacity, requests: Sequence[Request]) -> str:
    """Why these can never be granted together, "" if they can."""
    resource = amount(requests).lacking(total(capacity))
    if not resource:
        return ""
    who = f"{requests[0].task} needs" if len(requests) == 1 else f"{len(requests)} containers that start together need"
    there = written(resource, total(capacity))
    return f"{who} {_phrase(resource, amount(requests))}, this machine has {there} for jobs"


def _phrase(resource: str, much: Amount) -> str:
    """An amount with its resource, as in "2 cores" and "3 GiB of memory"."""
    value = written(resource, much)
    name = {"memory": "of memory", "gpus": "GPUs", "cores": "cores"}[resource]
    return f"{value} {name.removesuffix('s') if value == '1' else name}"


def written(resource: str, much: Amount) -> str:
    """An amount of a resource as people read it."""
    from trainmaster.core.spec.quantities import format_bytes

    if resource == "memory":
        return format_bytes(max(0, much.memory))
    return f"{max(0, much.cores) / 1000:g}" if resource == "cores" else str(max(0, much.gpus))
