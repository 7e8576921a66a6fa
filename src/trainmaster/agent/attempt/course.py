"""The course of one attempt, without I/O: what may follow what, and how its end is reported.

    new -> staging -> ready -> starting -> running -> exited -> uploaded -> committing -> done
           any of these -> ended

The attempt (`agent.attempt.attempt`) drives it where programs run, and the simulated agent where they are simulated. Each move returns
whether it is made: orders come twice, too early or too late, and work that was cancelled may still bring its result.
"""

from __future__ import annotations

from trainmaster.core.machine.phases import COMMITTING, DONE, ENDED, EXITED, NEW, PHASES, RUNNING, UPLOADED

_BEFORE = dict(zip(PHASES[1:-1], PHASES, strict=False))  # an agent skips no phase; `ended`, the last, follows any


class Course:
    """The course of the attempt with this number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = NEW
        self.is_stopped = False  # an order, or the end of the agent, stops it
        self.is_reclaimed = False  # stopped because the engine takes its container
        self._ended_alone = False  # its program had ended, or was being ended, before it was stopped

    @property
    def is_over(self) -> bool:
        return self.phase in (ENDED, DONE)

    def is_finished(self, program_runs: bool) -> bool:
        """Tell whether the program has ended unasked and the next steps (report, upload, commit) are not over."""
        return (self.phase == RUNNING and not self.is_stopped and not program_runs) or self.phase in (
            EXITED, UPLOADED, COMMITTING,
        )  # fmt: skip

    def enter(self, phase: str) -> bool:
        """Go on to the next phase."""
        if self.is_stopped or self.phase != _BEFORE[phase]:
            return False
        self.phase = phase
        return True

    def launch(self) -> None:
        """Begin a launch of the program, or of the command that prepares for it."""
        self._ended_alone = False

    def end_program(self) -> None:
        """Note that the program has ended, or is being ended for a reason of its own."""
        self._ended_alone = self._ended_alone or not self.is_stopped

    def stop(self, is_reclaimed: bool, has_died: bool) -> bool:
        """Stop the attempt. `has_died`: whether its program has ended already, though nobody has seen it yet."""
        if self.is_over or self.is_stopped:
            return False
        self.is_stopped, self.is_reclaimed = True, is_reclaimed
        self._ended_alone = self._ended_alone or has_died
        return True

    def failed_alone(self, is_well: bool) -> bool:
        """Tell whether the program, which has ended, failed by itself."""
        return not is_well and (self._ended_alone or not self.is_stopped)

    def end(self) -> bool:
        """End the attempt otherwise than by `done`."""
        if self.is_over:
            return False
        self.phase = ENDED
        return True

    def end_fields(self, is_well: bool | None) -> dict[str, bool] | None:
        """Return the fields that say whose end it was; None where it is not reported, for the engine that takes the container says why.

        `is_well`: whether the program ended well; None where none had begun.
        """
        if not self.is_stopped or (
            self._ended_alone and is_well is False
        ):  # it failed in the moment in which it was stopped
            return {}
        return None if self.is_reclaimed else {"stopped": True}
