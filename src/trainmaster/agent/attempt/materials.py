"""What an attempt reads and leaves: its inputs, its checkpoint, its outputs, as the agent asks for them.

The work itself is `trainmaster.data`'s, imported when first needed, for an attempt without data must not pay for it. Every call blocks and
is made in a thread; `tell(done, total)` is called with bytes, and `stop` is looked at, so that a stopped attempt does not go on copying.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.agent.attempt.failure import AttemptFailed

Tell = Callable[[int, int], None]
Fields = Mapping[str, Any]


@attrs.frozen(slots=True, eq=False, repr=False)
class Materials:
    """The data of one task. `private`: a folder for what is not the program's."""

    job: str
    task: str
    private: str
    cache: str = ""  # of this machine, shared by jobs

    def provide(self, given: Mapping[str, Any], folder: str) -> None:
        """Have archives and cached files in the working directory."""
        from trainmaster.data.cached import provide

        for key, urls in given.items():
            provide(urls, self.cache, folder, key)

    def stage(
        self, inputs: Mapping[str, Fields], folder: str, shared: bool, tell: Tell, stop: threading.Event
    ) -> dict[str, str]:
        """Bring the inputs of an order to the working directory; how each is told (TRAINMASTER_INPUT_<NAME>), by name. `shared`: the
        directory is not the task's own.
        """
        total = sum(size for given in inputs.values() if given["as"] == "download" for _, size, _ in given["files"])
        done = 0
        told = {}
        for name, given in inputs.items():
            told[name], size = self._stage(name, given, folder, shared, _counting(tell, done, total), stop)
            done += size
        return told

    def _stage(
        self, name: str, given: Fields, folder: str, shared: bool, tell: Tell, stop: threading.Event
    ) -> tuple[str, int]:
        from trainmaster.core.input.splits import File, Listing
        from trainmaster.data import sources, staging

        path = os.path.join(folder, given["local"])
        kind = given["as"]
        if kind in ("download", "list"):
            files = tuple(File(url, size, stamp=stamp) for url, size, stamp in given["files"])
            listing = Listing(given["prefix"], files)
            if kind == "download":
                return path, staging.download(listing, path, tell=tell, stop=stop)
            path = os.path.join(self.private, f"{name}.list")  # not in the directory, which tasks may share
            sources.write_list(listing, path)
            return path, 0
        if kind == "mount" and shared:
            return sources.mountable(given["url"], f"inputs.{name}.url"), 0
        if kind == "mount":
            sources.mount(given["url"], path, f"inputs.{name}.url")
            return path, 0
        return (name if kind == "shards" else "-"), 0

    def upload(
        self, outputs: Mapping[str, Fields], folder: str, attempt: int, tell: Tell, stop: threading.Event
    ) -> dict[str, Any]:
        """Upload what an attempt wrote beside the outputs' places; name -> {files, bytes, id}, and `left_out` where something was."""
        from trainmaster.data import outputs as places

        told = {}
        for name, output in outputs.items():
            source = os.path.join(folder, output["local"])
            try:
                told[name] = places.upload(output, source, self.job, self.task, attempt, tell=tell, stop=stop)
            except FileNotFoundError as error:
                if error.filename not in (None, source) or os.path.lexists(source):
                    raise
                raise AttemptFailed("output-missing", {"name": name}) from error
        return told

    def commit(self, outputs: Mapping[str, Fields], uploaded: Fields, attempt: int) -> dict[str, Any]:
        """Put what was uploaded in its place, for good."""
        from trainmaster.data import outputs as places

        return {
            name: places.commit(output, uploaded[name], self.job, self.task, attempt)
            for name, output in outputs.items()
        }

    def save(self, outputs: Mapping[str, Fields], folder: str, name: str, stop: threading.Event) -> dict[str, Any]:
        """Upload the outputs as they are now; {files, bytes} of what was sent, and `left_out` by the output's name where something was.
        Where one fails, nothing of any stays.
        """
        from trainmaster.data import saves

        sent = {"files": 0, "bytes": 0}
        left_out: dict[str, Any] = {}
        made: list[Fields] = []
        try:
            for key, output in outputs.items():
                told = saves.save(output, os.path.join(folder, output["local"]), self.task, name, stop=stop)
                made.append(output)
                sent = {count: value + told[count] for count, value in sent.items()}
                left_out |= {key: told["left_out"]} if "left_out" in told else {}
        except BaseException:
            with contextlib.suppress(Exception):  # what is told is the failure, not that of the removal
                for output in made:
                    saves.discard(output, self.task, name)
            raise
        return {**sent, "left_out": left_out} if left_out else {**sent}


def _counting(tell: Tell, before: int, total: int) -> Tell:
    return lambda done, _: tell(before + done, total)
