"""Drive the whole core: stimuli in, events and actions out.

`Drive` owns a state. The shell around it (a master, or a simulated one) hands it batches of stimuli, puts the events on the log, and waits
until they are durable where one is a barrier. Only then does it carry out the actions; it reports each back as `Did`.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.decide.decisions import decide
from trainmaster.core.decide.plan import closed, plan, settle
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine.actions import Action
from trainmaster.core.machine.events import EVENTS, Event, Fact
from trainmaster.core.machine.state import State
from trainmaster.core.machine.stimuli import MasterStarted, Stimulus

PASSED_A_TURN = 1000  # decisions after which deadlines that have passed too wait for the next turn


class Drive:
    """One job's state, moved on by stimuli."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state if state is not None else State()
        self._epoch = self.state.epoch
        self._ahead: float | None = (
            None  # s that the log's time is ahead of the caller's clock, which may be another machine's
        )

    def take(self, stimuli: Iterable[Stimulus], now: float) -> tuple[list[Event], list[Action]]:
        """Return the events that `stimuli` become at `now`, and the actions then called for. Times of events never fall."""
        events: list[Event] = []
        # Else no deadline would pass until a clock that is behind the last master's has caught up.
        if self._ahead is None:
            self._ahead = max(0.0, self.state.at - now)
        now = max(now + self._ahead, self.state.at)
        for stimulus in stimuli:
            if isinstance(stimulus, MasterStarted):
                self._epoch = stimulus.epoch
            self._fold(decide(self.state, stimulus, now), now, events)
            if self.state.kill is not None and self.state.ending is None:  # what ends after that begins no more
                self._go_on(now, events)
        self._go_on(now, events)  # after the batch: a gang is sized with all that was granted at once
        actions = plan(self.state, now)
        settle(self.state, actions)
        return events, actions

    def _go_on(self, now: float, events: list[Event]) -> None:
        """Fold the facts that follow from the state alone."""
        decisions = 0
        while facts := decide(self.state, None, now):
            self._fold(facts, now, events)
            deadline = self.state.next_deadline()  # drops deadlines that were moved or cleared
            decisions += 1
            if decisions >= PASSED_A_TURN and deadline is not None and deadline <= now:
                return  # ten thousand agents that are given up together do not block the loop

    def _fold(self, facts: list[Fact], now: float, events: list[Event]) -> None:
        for rest, (kind, data) in zip(range(len(facts) - 1, -1, -1), facts, strict=True):
            data |= {"rest": rest} if rest else {}
            event = Event(self.state.n + 1, now, self._epoch, kind, data)
            events.append(event)
            fold(self.state, (event,))

    @property
    def wake(self) -> float | None:
        """Return when, by the caller's clock, time next becomes a stimulus; None while no deadline is set."""
        deadline = self.state.next_deadline()
        return None if deadline is None else deadline - (self._ahead or 0.0)

    @property
    def closed(self) -> bool:
        return closed(self.state)


def needs_barrier(events: Iterable[Event]) -> bool:
    """Tell whether any of `events` must be on stable storage before the actions that follow."""
    return any(EVENTS[event.type].barrier for event in events)
