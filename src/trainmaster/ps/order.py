"""The decisions of server 0: what becomes of a push whose draft all servers have.

Pure: it makes entries (see `shard`), and handles none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .shard import Draft, Name, Shard

    Entry = dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """The entries that follow, in their order, and the answer to the worker. `why` a push was refused; "": it was accepted."""

    entries: list[Entry] = field(default_factory=list)
    why: str = ""


STALE, LATE, UNKNOWN = "stale", "late", "unknown"


def decide(shard: Shard, name: Name) -> Decision:
    """Decide what becomes of a push that is to be committed. The same question again gets the same answer."""
    task, attempt, step = name
    settled = shard.settled.get(task)
    if settled is not None and (attempt, step) == settled.name:
        return Decision(why="" if settled.is_accepted else STALE)
    if shard.is_late(name):
        return Decision(why=LATE)
    draft = shard.drafts.get(name)
    if draft is None:
        return Decision(why=UNKNOWN)
    assert shard.definition is not None
    updates = shard.definition.updates
    if updates.tolerance is not None and shard.version - draft.base > updates.tolerance:
        return Decision([{"drop": list(name)}], STALE)
    drafts = [*shard.waiting(), draft]
    if len(drafts) < updates.grads_to_wait:
        return Decision([{"commit": list(name)}])
    return Decision(_version_of(shard, drafts))


def of_all_waiting(shard: Shard) -> list[Entry]:
    """Return the entries by which the pushes that wait for others make a version, though they are fewer: no others will come."""
    drafts = shard.waiting()
    return _version_of(shard, drafts) if drafts else []


def _version_of(shard: Shard, drafts: list[Draft]) -> list[Entry]:
    assert shard.definition is not None
    every, version = shard.definition.updates.checkpoint_steps, shard.version + 1
    staleness = max(shard.version - draft.base for draft in drafts)
    entries: list[Entry] = [{"version": version, "of": [list(draft.name) for draft in drafts], "staleness": staleness}]
    if every and version % every == 0:
        entries.append({"checkpoint": version})
    return entries
