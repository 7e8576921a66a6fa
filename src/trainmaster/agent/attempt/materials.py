"""The data that an attempt reads and leaves: its inputs, cached files and outputs, for the agent.

`trainmaster.data` does the work. It is imported when first needed, because an attempt without data must not pay for it. Every call blocks
and is made in a thread; it calls `tell(done, total)` with bytes, and checks `stop`, so that a stopped attempt does not go on copying.
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
    """The data of one task. `private`: a folder for files that are not the program's."""

    job: str
    task: str
    private: str
    cache: str = ""  # of this machine, shared by jobs

    def provide(self, materials: Mapping[str, Any], folder: str) -> None:
        """Put archives and cached files into the working directory."""
        from trainmaster.data.cached import provide

        for key, urls in materials.items():
            provide(urls, self.cache, folder, key)

    def stage(
        self, inputs: Mapping[str, Fields], folder: str, shared: bool, tell: Tell, stop: threading.Event
    ) -> dict[str, str]:
        """Bring the inputs of an order to the working directory. Return each one's TRAINMASTER_INPUT_<NAME>, by name.

        `shared`: the directory is not the task's own.
        """
        total = sum(size for fields in inputs.values() if fields["as"] == "download" for _, size, *_ in fields["files"])
        done = 0
        locations = {}
        for name, fields in inputs.items():
            locations[name], size = self._stage(name, fields, folder, shared, _counting(tell, done, total), stop)
            done += size
        return locations

    def _stage(
        self, name: str, fields: Fields, folder: str, shared: bool, tell: Tell, stop: threading.Event
    ) -> tuple[str, int]:
        from trainmaster.core.input.splits import File, Listing
        from trainmaster.data import sources, staging

        path = os.path.join(folder, fields["local"])
        kind = fields["as"]
        if kind in ("download", "list"):
            files = tuple(File(url, size, (), *rest) for url, size, *rest in fields["files"])
            listing = Listing(fields["prefix"], files)
            if kind == "download":
                return path, staging.download(listing, path, tell=tell, stop=stop)
            path = os.path.join(self.private, f"{name}.list")  # not in the directory, which tasks may share
            sources.write_list(listing, path)
            return path, 0
        if kind == "mount" and shared:
            return sources.mountable(fields["url"], f"inputs.{name}.url"), 0
        if kind == "mount":
            sources.mount(fields["url"], path, f"inputs.{name}.url")
            return path, 0
        if kind == "follow":  # its files come while the program runs
            os.makedirs(path, exist_ok=True)
            return path, 0
        if kind == "shards" and fields["url"].startswith(
            "records:"
        ):  # the program knows what these records are, and how many
            return f"{fields['url']}?epochs={fields['epochs']}", 0
        return (name if kind == "shards" else "-"), 0

    def require_places(self, outputs: Mapping[str, Fields]) -> None:
        """Raise AttemptFailed where an output goes to a directory that this task sees, as by a mount, and cannot write."""
        from trainmaster.runtime.folders import reason_unwritable

        for name, output in outputs.items():
            path = str(output["url"]).removeprefix("file://")
            if "://" not in path and (reason := reason_unwritable(path)):
                raise AttemptFailed("output-unwritable", {"name": name, "detail": reason})

    def upload(
        self, outputs: Mapping[str, Fields], folder: str, attempt: int, tell: Tell, stop: threading.Event
    ) -> dict[str, Any]:
        """Upload an attempt's outputs next to their places. Return name -> {files, bytes, id}, and `left_out` where paths were."""
        from trainmaster.data import outputs as places

        reports = {}
        for name, output in outputs.items():
            source = os.path.join(folder, output["local"])
            try:
                reports[name] = places.upload(output, source, self.job, self.task, attempt, tell=tell, stop=stop)
            except FileNotFoundError as error:
                if error.filename not in (None, source) or os.path.lexists(source):
                    raise
                raise AttemptFailed("output-missing", {"name": name}) from error
        return reports

    def commit(self, outputs: Mapping[str, Fields], uploaded: Fields, attempt: int) -> dict[str, Any]:
        """Put the uploaded outputs in their places, for good."""
        from trainmaster.data import outputs as places

        return {
            name: places.commit(output, uploaded[name], self.job, self.task, attempt)
            for name, output in outputs.items()
        }

    def save(self, outputs: Mapping[str, Fields], folder: str, name: str, stop: threading.Event) -> dict[str, Any]:
        """Upload the outputs as they are now. If one fails, none of them stays.

        Return the {files, bytes} sent, and `left_out` by the output's name where paths were left out.
        """
        from trainmaster.data import saves

        totals = {"files": 0, "bytes": 0}
        left_out: dict[str, Any] = {}
        saved: list[Fields] = []
        try:
            for key, output in outputs.items():
                report = saves.save(output, os.path.join(folder, output["local"]), self.task, name, stop=stop)
                saved.append(output)
                totals = {count: value + report[count] for count, value in totals.items()}
                left_out |= {key: report["left_out"]} if "left_out" in report else {}
        except BaseException:
            with contextlib.suppress(Exception):  # the caller gets the first failure, not that of the removal
                for output in saved:
                    saves.discard(output, self.task, name)
            raise
        return {**totals, "left_out": left_out} if left_out else {**totals}


def _counting(tell: Tell, before: int, total: int) -> Tell:
    return lambda done, _: tell(before + done, total)
