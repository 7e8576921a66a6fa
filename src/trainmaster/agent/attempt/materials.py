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
from trainmaster.core.errors import AWAY, StorageFailed

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

    def require_places(self, outputs: Mapping[str, Fields], stop: threading.Event) -> None:
        """Raise AttemptFailed where an output goes to a directory that this task sees, as by a mount, and cannot write, or that is taken.

        Raises StorageFailed where that is away.
        """
        from trainmaster.log.storage import local_path
        from trainmaster.runtime.folders import reason_unwritable

        for name, output in outputs.items():
            path = local_path(str(output["url"]))
            if path is None:
                continue
            if reason_unwritable(path):
                _require_soon(name, path, stop)
            if os.path.isdir(path):
                self._require_free(name, output, path, stop)

    def _require_free(self, name: str, output: Fields, path: str, stop: threading.Event) -> None:
        from trainmaster.data import outputs as places
        from trainmaster.data.store.transfer import Flow, retried

        try:
            retried("look at an output", path, lambda: places.check_free(output, self.job, self.task), Flow(stop=stop))
        except places.CommitRefused as refusal:
            figures = {"name": name, "detail": refusal.message, "mend": refusal.mend}
            raise AttemptFailed("output-unwritable", figures) from refusal

    def upload(
        self, outputs: Mapping[str, Fields], folder: str, attempt: int, kept: Mapping[str, Any], tell: Tell, stop: threading.Event,
        part: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Upload an attempt's outputs next to their places, or with `part` only the next part of them, without the files `kept` by parts.

        Return name -> {files, bytes, id, leaves}, and `left_out` where paths were.
        """
        from trainmaster.data import outputs as places

        name_of_part = places.part_of(self.task, attempt, part) if part else self.task
        reports = {}
        for name, output in outputs.items():
            source = os.path.join(folder, output["local"])
            try:
                reports[name] = places.upload(
                    output, source, self.job, name_of_part, attempt, kept=kept.get(name), tell=tell, stop=stop
                )
            except FileNotFoundError as error:
                if error.filename not in (None, source) or os.path.lexists(source):
                    raise
                raise AttemptFailed("output-missing", {"name": name}) from error
        return reports

    def commit(
        self, outputs: Mapping[str, Fields], uploaded: Fields, attempt: int, parts: Mapping[int, Fields]
    ) -> dict[str, Any]:
        """Put the uploaded outputs in their places, for good; first those of the attempt's parts."""
        from trainmaster.data import outputs as places

        for name, output in outputs.items():
            uploads = [
                (places.part_of(self.task, attempt, part), attempt, reports[name]) for part, reports in parts.items()
            ]
            places.commit_parts(output, uploads, self.job)
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


def _require_soon(name: str, path: str, stop: threading.Event) -> None:
    """Raise as `require_places` does, once a place could not be written for some seconds: a mount that is made anew looks so."""
    from trainmaster.data.store.transfer import Flow, retried
    from trainmaster.runtime.folders import require_writable

    def look() -> None:
        try:
            require_writable(path)
        except OSError as error:
            if error.errno in AWAY:
                raise
            raise RuntimeError(error.strerror) from error  # its errno would say that it lasts

    try:
        retried("look at an output", path, look, Flow(stop=stop))
    except StorageFailed as failure:
        if isinstance(failure.__cause__, RuntimeError):
            raise AttemptFailed("output-unwritable", {"name": name, "detail": str(failure.__cause__)}) from failure
        raise


def _counting(tell: Tell, before: int, total: int) -> Tell:
    return lambda done, _: tell(before + done, total)
