"""Commit what a program has made so far, in parts (`data.outputs`): each counts once the master has it, with the shards that it holds.

A part has the files that are there when it is begun and in no part before it, and the shards that were reported by then. The program asks
for one by `runtime.commit()`, and waits. The agent makes the last one itself where a program that was asked to stop ends well, between two
shards. The rest is committed, or dropped and done again, with the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.agent.attempt.place import Place
from trainmaster.core.machine.orders import WHEN_STOPPED

LAST_WITHIN = 60.0  # s for the part of a program that was stopped


class Parts:
    """The parts of one attempt. `upload(number, kept)` uploads a part without the files that are kept."""

    def __init__(
        self, place: Place, allowed: str, outputs: Mapping[str, Mapping[str, Any]], copies: int,
        upload: Callable[[int, Mapping[str, Any]], Awaitable[dict[str, dict[str, Any]]]], report: Callable[..., None],
    ) -> None:  # fmt: skip
        self.kept: dict[str, dict[str, Any]] = {name: {} for name in outputs}  # output -> the files that are in a part
        self.uploaded: dict[int, dict[str, Any]] = {}  # part -> what was uploaded of each output
        self.refusal = _refusal(allowed, outputs, copies)
        self._place, self._upload, self._report = place, upload, report
        self._is_last_wanted = allowed == WHEN_STOPPED
        self._tried = 0
        self._busy = asyncio.Lock()

    async def commit(self) -> str:
        """Commit a part for the program. Return why it could not be, "" where it was."""
        if self.refusal:
            return self.refusal
        try:
            await self._commit_part()
        except AttemptFailed as failure:
            words = [str(failure.figures[name]) for name in ("detail", "mend") if failure.figures.get(name)]
            return "; ".join(words) or failure.reason
        return ""

    async def commit_last(self) -> None:
        """Commit the last part of a program that was stopped and has ended well; nothing where it was in the middle of a shard."""
        if not self._is_last_wanted or self.refusal or not self._place.programs.ended_between_shards():
            return
        try:
            async with asyncio.timeout(LAST_WITHIN):
                await self._commit_part(is_last=True)
        except (AttemptFailed, TimeoutError) as failure:
            detail = failure.figures.get("detail", "") if isinstance(failure, AttemptFailed) else "it took too long"
            self._report("warned", what="the last part of the outputs was not committed", detail=str(detail))

    async def _commit_part(self, is_last: bool = False) -> None:
        async with self._busy:
            programs = self._place.programs
            reported = await programs.reported()
            if is_last and not any(reported.values()):
                return  # its files hold nothing that counts
            self._tried += 1
            uploaded = await self._upload(self._tried, self.kept)
            leaves = {name: upload.pop("leaves", {}) for name, upload in uploaded.items()}
            kept = {name: ranges.to_json() for name, ranges in reported.items() if ranges}
            if not kept and not any(upload["files"] for upload in uploaded.values()):
                return  # there is nothing new
            self._report("part", number=self._tried, outputs=uploaded, kept=kept)
            programs.keep(reported)
            for name, files in leaves.items():
                self.kept[name].update(files)
            self.uploaded[self._tried] = uploaded
            await self._place.acknowledged()


def _refusal(allowed: str, outputs: Mapping[str, Mapping[str, Any]], copies: int) -> str:
    """Return why a program may not commit parts, "" where it may."""
    if not allowed:
        return (
            "only a task whose outputs hold what it makes of an input `as: shards`, and no checkpoint, commits in parts"
        )
    if streamed := [name for name, output in outputs.items() if output["as"] == "stream"]:
        return f"the output {streamed[0]} streams, so it is committed whole when its attempt ends"
    return f"the task runs {copies} processes, and only one process alone commits in parts" if copies > 1 else ""
