"""Decide how many members an elastic role should have, by what each of them brings.

`scale.auto: on` lets the role begin with its least number, and asks for more or fewer as `tm scale` does, for what a user may ask for
(`decide.elastic` says when such a change is made). `advise` only says what it would do. The work that all members do a second is measured
at each size (`core.pace`). With R(n) for that of n members, the rules look at the present size n:

    share       the last members' share is what each of them brought, against what each of those before brought: with m < n members seen
                before (the most that are at most CLEAR of n, else the next fewer), ((R(n) - R(m)) / (n - m)) / (R(m) / m). It is 1 where
                all bring alike, 0 where the last brought nothing
    give back   share < HALF, measured twice: it shrinks to R(n) / (R(m) / m). So many would do R(n) if each brought as much as each of
                the m did. This is rounded up where that is clear, and not below m
    go back     a larger size was seen at which the last members' share was HALF or more, also against the present size: it grows to that
    grow        otherwise it doubles, to learn what more bring; but not while a larger size that was seen brought too little, for PAUSE
                times `scale.every`, twice as long after each time that something was given back (up to 2 ** DOUBLINGS): the work of a
                program may change, so it is tried again, but ever more rarely, and so the changes are bounded by the logarithm of the time

At the least size nothing is given back. Each size needs one measurement of at least `scale.every` before it changes. It grows only when all
are there that were asked for before. A user's `tm scale JOB ROLE=N` beats this until `tm scale JOB ROLE=auto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.state import Group, Scaling, State, has_finished, sizes_itself
from trainmaster.core.machine.stimuli import Rate
from trainmaster.core.pace import SHORTEST, significant

HALF = 0.5  # of what the members before brought, each
CLEAR = 0.75  # of the present size: a size that tells clearly what more have brought
TWICE = 2  # measurements before something is given back
PAUSE = 10  # measurements' time
DOUBLINGS = 6
ROUNDED = 0.25  # of a member that is not worth one
CHANGED = 0.25  # of a rate: less is not written down again

Rates = Mapping[int, tuple[float, float]]  # size -> work a second, when it was measured


def judge(state: State, rates: Iterable[Rate], now: float) -> list[Fact]:
    """Return the measurements that are worth keeping, and the sizes that follow."""
    facts: list[Fact] = []
    for rate in rates:
        group = state.groups[state.tasks[f"{rate.role}:0"].group]
        if (
            group.sizes is None
            or group.sizes[rate.role] != rate.size
            or group.finishing
            or has_finished(state, rate.role)
        ):
            continue
        scaling = state.scaling.get(rate.role, Scaling())
        if _is_news(state, scaling, rate, now):
            fact = {"role": rate.role, "size": rate.size, "rate": rate.rate, "unit": rate.unit}
            facts.append(("throughput", fact))
        facts += _change(state, group, scaling, rate, now)
    return facts


def _is_news(state: State, scaling: Scaling, rate: Rate, now: float) -> bool:
    """Tell whether a measurement says anything new: the first two of a size do, and later ones that differ or are late."""
    known = scaling.rates.get(str(rate.size))
    if known is None or scaling.unit != rate.unit or _newest(scaling) != rate.size or scaling.measured < TWICE:
        return True
    return abs(rate.rate - known[0]) > CHANGED * known[0] or now - known[1] >= PAUSE * _period(state)


def _newest(scaling: Scaling) -> int:
    return int(max(scaling.rates, key=lambda size: scaling.rates[size][1]))


def _period(state: State) -> float:
    return max(SHORTEST, state.known_job.scale.every)


def _change(state: State, group: Group, scaling: Scaling, rate: Rate, now: float) -> list[Fact]:
    """Return the change of a role's size that follows from what is known with the newest measurement."""
    rates = {int(size): (work, at) for size, (work, at) in scaling.rates.items()} if scaling.unit == rate.unit else {}
    is_sure = rate.size in rates and _newest(scaling) == rate.size  # this is at least the second measurement in a row
    replicas = state.known_job.roles[rate.role].replicas
    pause = PAUSE * _period(state) * 2.0 ** min(DOUBLINGS, max(0, scaling.given_back - 1))
    rates[rate.size] = ((rate.rate + rates[rate.size][0]) / 2 if is_sure else rate.rate, now)
    size = wanted_size(rates, rate.size, replicas.min, replicas.max, now - pause, is_sure=is_sure)
    requested = group.requested.get(rate.role, replicas.max)
    if size > rate.size and requested > rate.size:  # what was asked for last is not there yet
        size = rate.size
    figures: dict[str, Any] = {**figures_of(rates, rate.size), "unit": rate.unit}
    if sizes_itself(state, rate.role):
        request = {"role": rate.role, "size": size, "by": "autoscaling", "figures": figures}
        return [("scale-requested", request)] if size not in (rate.size, requested) else []
    advised = rate.size if scaling.advice is None else scaling.advice["size"]
    # Near the size that was advised: a rate at the border would change the advice with each measurement.
    is_near = scaling.advice is not None and size != rate.size and abs(size - advised) <= advised // 4
    if scaling.by_user or size == advised or is_near or not is_sure:
        return []
    return [("scale-advised", {"role": rate.role, "size": size, "members": rate.size, "figures": figures})]


def wanted_size(rates: Rates, size: int, least: int, most: int, tried: float, *, is_sure: bool = True) -> int:
    """Return the size that a role of `size` members should have. `tried`: a larger size that brought too little after this time is not
    tried again; `is_sure`: the rate of the present size was measured more than once.
    """
    base = _compared_size(rates, size)
    if base is not None and share(rates, base, size) < HALF and size > least:
        if not is_sure:
            return size
        each = rates[base][0] / base
        enough = math.ceil(rates[size][0] / each - ROUNDED)
        return max(least, min(size - 1, max(base, enough)))
    larger = [known for known in rates if size < known <= most]
    worthwhile = [
        known
        for known in larger
        if all(share(rates, m, known) >= HALF for m in (size, _compared_size(rates, known) or size))
    ]
    if worthwhile:
        return max(worthwhile)
    if any(rates[known][1] > tried for known in larger):
        return size
    return min(most, 2 * size)


def _compared_size(rates: Rates, size: int) -> int | None:
    """Return the smaller size that the present one is compared with."""
    smaller = [known for known in rates if known < size and rates[known][0] > 0]
    clear = [known for known in smaller if known <= CLEAR * size]
    return max(clear) if clear else max(smaller, default=None)


def share(rates: Rates, before: int, after: int) -> float:
    """Return what each of the members beyond `before` brought, against what each of those before brings."""
    if rates[before][0] <= 0:
        return 1.0
    return (rates[after][0] - rates[before][0]) / (after - before) / (rates[before][0] / before)


def figures_of(rates: Rates, size: int) -> dict[str, Any]:
    """Return the figures that a change is explained by; the share is None where no smaller size was seen."""
    base = _compared_size(rates, size)
    return {
        "members": size, "rate": significant(rates[size][0]), "base": base,
        "share": None if base is None else round(share(rates, base, size), 4),
    }  # fmt: skip
