"""The line of an application's jobs: `choose` says which containers Spark is asked for now, and `words` what the others wait for; pure.

Spark begins a task wherever cores are free. If two gangs each need more than half of the executors, Spark would begin half of each, and
neither could work. So Spark is asked for a *unit* (all that a gang needs, or one container by itself) only where the unit fits beside what
our other tasks have and were promised. Other work of the application is not counted: Spark shares its slots between that and us.

Units are in order of the priority of their job. Among equals, jobs that hold something come first, since later ones may wait for their end;
then units are in order of priority and of time. The first unit that does not fit stops the line, so no unit is starved. A unit that would
not fit even with its own job's containers alone stops no other unit: it waits for executors that Spark may get. The members that an elastic
gang can begin without are its *growth*, chosen while nothing else waits.

Where Spark brings executors as they are asked for (dynamic allocation), what does not fit yet must be asked for too. There a unit of one is
always chosen, a gang once no other gang waits for its last container, and growth once nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

CORES = "cores"
Amounts: TypeAlias = Mapping[
    str, float
]  # of an executor or a task: cores, and Spark's resources by their names (gpu, ...)
Room: TypeAlias = dict[str, dict[str, float]]  # executor -> what is left of it


@attrs.frozen
class Executor:
    """An executor. `busy`: the cores in which tasks run, also those that are not ours."""

    id: str
    host: str
    amounts: Amounts
    busy: int = 0
    is_excluded: bool = False  # Spark gives it no task: it failed some, or is being taken away


@attrs.frozen
class Ask:
    """A container that a job asks for. `rank`: lower ones come first."""

    job: str
    task: str
    serial: int
    amounts: Amounts
    gang: str = ""
    is_growth: bool = False
    rank: tuple[int, ...] = ()


@attrs.frozen
class Claim:
    """A container that Spark was asked for. `executor`: "" while Spark has not begun it."""

    ask: Ask
    executor: str = ""


@attrs.frozen
class Wait:
    """The reason why a job's asks wait: in words, asked and free. `is_lacking`: the present executors would not do if the job had
    them alone.
    """

    asks: tuple[Ask, ...]
    need: str
    free: str
    detail: str
    is_lacking: bool = False


Unit: TypeAlias = list[Ask]


def choose(executors: Sequence[Executor], claims: Sequence[Claim], asks: Iterable[Ask], grows: bool) -> list[Ask]:
    """Return the asks to send to Spark now. `grows`: Spark brings executors as they are asked for."""
    room, chosen, stopped = _room(executors, claims), list[Ask](), False
    pending = [claim.ask for claim in claims if not claim.executor]
    filling = any(ask.gang and not ask.is_growth for ask in pending)
    needs, growth = units(asks, {claim.ask.job for claim in claims})
    for unit in needs:
        if stopped and not grows:
            break
        if (rest := _fit(unit, room)) is not None:
            room = rest
            chosen += unit
        elif grows and not (unit[0].gang and filling):
            filling = filling or bool(unit[0].gang)
            chosen += unit
        elif not _is_lacking(executors, claims, unit):
            stopped = True
    if len(chosen) < sum(map(len, needs)):
        return chosen
    for ask in growth:
        rest = _fit([ask], room)
        if rest is None and not (grows and not pending and not needs):
            break
        room = room if rest is None else rest
        chosen.append(ask)
    return chosen


def units(asks: Iterable[Ask], holders: set[str]) -> tuple[list[Unit], Unit]:
    """Return the units in their order, and the growth. `holders`: jobs that hold something."""
    groups: dict[tuple[str, ...], Unit] = {}
    growth = []
    for ask in asks:
        if ask.is_growth:
            growth.append(ask)
        else:
            groups.setdefault((ask.job, ask.gang or f"{ask.task} {ask.serial}"), []).append(ask)

    def rank(unit: Unit) -> tuple[object, ...]:
        return unit[0].rank[:1], unit[0].job not in holders, min(ask.rank for ask in unit)

    return sorted(groups.values(), key=rank), sorted(growth, key=lambda ask: ask.rank)


def wait(
    executors: Sequence[Executor], claims: Sequence[Claim], asks: Sequence[Ask], pending: Sequence[Ask]
) -> Wait | None:
    """Return what a job waits for, None for nothing. `asks`: its asks that were not sent to Spark; `pending`: asks that were sent some time
    ago and have not begun.
    """
    needs, _ = units([*asks, *pending], set())  # nobody waits for growth
    if not needs:
        return None
    unit = next((unit for unit in needs if unit[0] in asks), needs[0])
    size, total = amounts_words(unit[0].amounts), _sum(_empty(executors))
    free = _sum(_room(executors, claims))
    role = unit[0].task.rpartition(":")[0]
    need = f"{role}: {len(unit)} x {size}" if len(unit) > 1 else f"{unit[0].task}: {size}"
    usable = [executor for executor in executors if not executor.is_excluded]
    out = len(executors) - len(usable)
    present = f"{len(usable)} executor{'' if len(usable) == 1 else 's'} of the application {'has' if len(usable) == 1 else 'have'}"
    present = f"{present} {amounts_words(total)}" if usable else "the application has no executor"
    if out:
        present += f" ({out} more get no tasks: Spark excludes or decommissions them)"
    is_lacking = _is_lacking(executors, claims, unit)
    if is_lacking:
        why = f"{present} in all, {amounts_words(free)} free" if usable else present
    elif unit[0] in asks:
        why = f"{present}, and {amounts_words(free)} are not taken by our tasks"
        if holders := sorted({claim.ask.job for claim in claims} - {unit[0].job}):
            why += f"; held by {', '.join(holders[:3])}" + (", ..." if len(holders) > 3 else "")
    else:
        busy = sum(executor.busy for executor in usable)
        why = f"Spark was asked for it and has not begun it; {present}, in {busy} cores tasks run, also those of other work"
    return Wait(tuple(unit), need, amounts_words(free), f"{need}: {why}", is_lacking)


def amounts_words(amounts: Amounts) -> str:
    """Return amounts for people, as "2 cores, 1 gpu"."""
    return ", ".join(
        f"{count:g} {name.removesuffix('s') if count == 1 else name}"
        for name, count in amounts.items()
        if count or name == CORES
    )


def free_of(executor: Executor, claims: Iterable[Claim]) -> dict[str, float]:
    """Return what our tasks, and in cores also others, leave of an executor."""
    left = dict(executor.amounts)
    for claim in claims:
        if claim.executor == executor.id:
            left = _less(left, claim.ask.amounts)
    left[CORES] = min(left[CORES], executor.amounts[CORES] - executor.busy)
    return {name: max(0, count) for name, count in left.items()}


def slots(executors: Sequence[Executor], claims: Sequence[Claim], amounts: Amounts) -> int:
    """Return how many tasks of these amounts fit beside the claims."""
    return sum(
        min(int(left.get(name, 0) / count + 1e-6) for name, count in amounts.items() if count)
        for left in _room(executors, claims).values()
    )


def _empty(executors: Sequence[Executor]) -> Room:
    return {executor.id: dict(executor.amounts) for executor in executors if not executor.is_excluded}


def _room(executors: Sequence[Executor], claims: Sequence[Claim]) -> Room:
    """Return what is left beside the claims; nothing where what Spark has not begun does not fit in."""
    room = _empty(executors)
    for claim in claims:
        if claim.executor in room:
            room[claim.executor] = _less(room[claim.executor], claim.ask.amounts)
    rest = _fit([claim.ask for claim in claims if not claim.executor], room)
    return {} if rest is None else rest


def _fit(unit: Sequence[Ask], room: Room) -> Room | None:
    """Return the room that is left when the unit is placed, the largest asks first; None where it does not fit."""
    rest = dict(room)
    for ask in sorted(unit, key=lambda ask: [-ask.amounts[name] for name in sorted(ask.amounts)]):
        place = next((name for name, left in rest.items() if _holds(left, ask.amounts)), None)
        if place is None:
            return None
        rest[place] = _less(rest[place], ask.amounts)
    return rest


def _holds(left: Amounts, amounts: Amounts) -> bool:
    return all(left.get(name, 0) >= count for name, count in amounts.items())


def _less(left: Amounts, amounts: Amounts) -> dict[str, float]:
    return {
        name: round(count - amounts.get(name, 0), 6) for name, count in left.items()
    }  # a task may take a tenth of a GPU


def _is_lacking(executors: Sequence[Executor], claims: Sequence[Claim], unit: Unit) -> bool:
    """Tell whether the executors are too small for the unit and what its own job has."""
    own = [claim.ask for claim in claims if claim.ask.job == unit[0].job and claim.ask not in unit]
    return _fit([*own, *unit], _empty(executors)) is None


def _sum(room: Room) -> dict[str, float]:
    total: dict[str, float] = {CORES: 0}
    for left in room.values():
        for name, count in left.items():
            total[name] = total.get(name, 0) + max(0, count)
    return total
