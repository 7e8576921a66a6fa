"""The rounds of a rendezvous: who is in one, and whose state all of them train on with. Without I/O."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A member has nothing of the training's state, an old one (it was away, and has not taken a newer one since), or that of the round before.
NO_STATE, OLD_STATE, STATE = 0, 1, 2


class Member:
    """A process in a round. `address` is the one that the master knows of its task; `new`: it was not in the round before."""

    __slots__ = ("address", "copy", "new", "payload", "step", "task")

    def __init__(self, task: str, copy: int, address: str, payload: str, step: int, new: bool) -> None:
        self.task, self.copy, self.address, self.payload, self.step, self.new = task, copy, address, payload, step, new

    def __repr__(self) -> str:
        return (
            f"<Member {self.task}/{self.copy} at {self.address or 'no address'}, step {self.step}{', new' * self.new}>"
        )


class Round:
    """The members of a round in order of rank, and the `rank` of this process among them. Numbers of rounds only grow.

    `finished`: the tasks of the role whose programs have ended well. Where there are some, and all members are new, there is nothing left
    to do, and nobody has the state.
    """

    __slots__ = ("finished", "members", "number", "rank")

    def __init__(self, number: int, rank: int, members: list[Member], finished: int = 0) -> None:
        self.number, self.rank, self.members, self.finished = number, rank, members, finished

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def source(self) -> int:
        """Return the rank whose state all others take. Where some members are not new it is one of those: see `furthest`."""
        return self.furthest([not member.new for member in self.members])

    def furthest(self, have_state: Sequence[bool]) -> int:
        """Return the rank that has completed the highest step, of several the lowest. `have_state`: by rank, who has the training's state.

        Where any has, it is one of those: the step of a newcomer's checkpoint may be that of another training.
        """
        ranks = [rank for rank, has_state in enumerate(have_state) if has_state] or range(self.size)
        return max(ranks, key=lambda rank: (self.members[rank].step, -rank))

    def begins_anew(self, states: Sequence[int]) -> bool:
        """Tell whether nobody has the state of the round before: what its members had made of their shards is lost with them.

        `states`: by rank, NO_STATE, OLD_STATE or STATE, as each member had said when it joined.
        """
        return not any(self._present(states))

    def holders(self, states: Sequence[int]) -> list[bool]:
        """Return, by rank, who has the training's state: a member that was away counts where nobody else has any, for its own is older."""
        present = self._present(states)
        return present if any(present) else [state != NO_STATE for state in states]

    def after_joining(self, state: int) -> int:
        """Return what this process, which joined with `state`, has now: the others went on without it if it was away."""
        return OLD_STATE if state == STATE and self.members[self.rank].new else state

    def _present(self, states: Sequence[int]) -> list[bool]:
        return [state == STATE and not member.new for state, member in zip(states, self.members, strict=True)]

    @property
    def is_too_late(self) -> bool:
        """Tell whether the others have finished before anybody here came."""
        return self.finished > 0 and all(member.new for member in self.members)

    @property
    def is_equal(self) -> bool:
        """Tell whether all members have the same state: none is new, and all have completed the same step."""
        return not any(member.new or member.step != self.members[0].step for member in self.members)

    def __repr__(self) -> str:
        return f"<Round {self.number}, rank {self.rank} of {self.size}>"
