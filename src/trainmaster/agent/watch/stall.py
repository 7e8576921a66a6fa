"""Judge whether a program makes progress, by a plain function of successive observations.

    reported anything once   stalled after max(stall, 10 x its own usual gap) without a new step, shard or progress, whatever the
                             devices do: a stuck collective spins at 100 %
    reported nothing         stalled after `stall` without output and without use of processor, accelerator, disk or network
    in a named phase         not stalled: staging, saving, compiling, and waiting for peers that the master knows may take any time
    a peer has finished      hung after `finish` without progress or output, whatever the processor does

The usual gap is the median of the last `GAPS`. Times are seconds of one clock of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

EXEMPT = frozenset(
    {"staging", "saving", "compiling", "waiting for the other members"}
)  # the last: `elastic.Rendezvous`
GAPS = 32
USUAL = 10.0  # so many usual gaps without progress are a stall
IDLE_CPU = 0.02  # cores; an idle interpreter with its timers stays below
IDLE_BYTES = 64 * 1024  # bytes between two observations; a monitoring thread may read as many


@attrs.frozen(slots=True)
class Observation:
    """One look at a program. Counters never fall."""

    at: float
    progress: int = 0  # how many times a step, shard or progress was reported anew
    output: int = 0  # bytes printed
    cpu_seconds: float = 0.0
    gpu: float = 0.0  # the busiest device's use, 0..1
    moved: int = 0  # bytes read, written, sent and received
    phase: str = ""


@attrs.frozen(slots=True)
class Watch:
    """The memory from one observation to the next."""

    last: Observation
    progressed: float  # when it last reported progress, or began, or left an exempt phase
    active: float  # when it last used anything
    printed: float  # when it last printed
    gaps: tuple[float, ...] = ()


@attrs.frozen(slots=True)
class Stall:
    """The verdict: a reason of core.reasons and the seconds without progress."""

    reason: str
    seconds: float


def begin(first: Observation) -> Watch:
    return Watch(first, first.at, first.at, first.at)


def observe(watch: Watch, now: Observation) -> Watch:
    """Return the watch after one more observation."""
    before = watch.last
    gaps, progressed = watch.gaps, watch.progressed
    if now.progress > before.progress:
        if before.progress:
            gaps = (*gaps, (now.at - progressed) / (now.progress - before.progress))[-GAPS:]
        progressed = now.at
    printed = now.at if now.output > before.output else watch.printed
    cores = (now.cpu_seconds - before.cpu_seconds) / max(1e-3, now.at - before.at)
    busy = cores > IDLE_CPU or now.gpu > 0.0 or now.moved - before.moved > IDLE_BYTES or now.output > before.output
    active = now.at if busy or now.progress > before.progress else watch.active
    if now.phase in EXEMPT or before.phase in EXEMPT:
        progressed = printed = active = now.at
    return Watch(now, progressed, active, printed, gaps)


def verdict(
    watch: Watch, stall: float | None, finish: float | None = None, finishing_since: float | None = None
) -> Stall | None:
    """Return the stall if the program hangs. `stall`, `finish`: seconds, None for never; `finishing_since`: when a peer had finished."""
    now = watch.last
    if now.phase in EXEMPT:
        return None
    if finish is not None and finishing_since is not None:
        silent = now.at - max(finishing_since, watch.printed, watch.progressed if now.progress else 0.0)
        if silent >= finish:
            return Stall("hung-after-peer-finished", silent)
    if stall is None:
        return None
    if now.progress:
        limit = max(stall, USUAL * _median(watch.gaps)) if watch.gaps else stall
        silent = now.at - watch.progressed
        return Stall("stalled", silent) if silent >= limit else None
    idle = now.at - watch.active
    return Stall("stalled", idle) if idle >= stall else None


def _median(gaps: Iterable[float]) -> float:
    from statistics import median  # loads decimals and fractions, which the start of an agent does not wait for

    return median(gaps)
