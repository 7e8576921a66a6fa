"""Carry out the master's own steps: list the inputs, commit in the place of an agent that is gone, and the steps of the job's end.

Each step returns its result or raises; the shell tells the core, which goes on either way. All of them block and run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.core.decide.limits import COMMIT
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.foreign import json_in
from trainmaster.core.input.splits import File, Listing
from trainmaster.core.machine.actions import Action, CommitFor, Step
from trainmaster.core.machine.state import State
from trainmaster.core.spec.job import COUNTED_LATER, EVENT_FILES, HADOOP, Input, Job, uses
from trainmaster.engines.containers import Containers
from trainmaster.log.documents.files import damaged
from trainmaster.log.output import folder
from trainmaster.log.storage import LISTING, LocalStorage, Storage
from trainmaster.master.orders import Orders, env_of

LOGS = folder("master")
WITHIN = 60.0  # s for a step of the end
# Seconds for the engine to hear of the end: YARN's ResourceManager may be away, and starts us again if it has not heard.
UNREGISTERED = 600.0
_NOT_COMMITTED = ("commit-refused", "commit-failed")  # reasons of tasks whose outputs are whole, and not in their place


class StepRunner:
    """Carries out the commits and steps of one job."""

    def __init__(
        self, job: Job, orders: Orders, storage: Storage, engine: Containers, state: Callable[[], State],
        environ: Callable[[str], Mapping[str, str]],
    ) -> None:  # fmt: skip
        """`environ(role)`: the variables of a role's programs, secrets too."""
        self._job, self._orders, self._storage, self._engine, self._state = job, orders, storage, engine, state
        self._environ = environ
        self._pruning = threading.Lock()  # one at a time may remove saves

    async def run(self, action: Action) -> Mapping[str, Any]:
        """Carry out a commit or a step and return its result. Raises TimeoutError where the storage does not answer."""
        if isinstance(action, CommitFor):
            async with asyncio.timeout(COMMIT):
                return await asyncio.to_thread(self._commit, action)
        assert isinstance(action, Step)
        if action.name == "list-inputs":
            async with asyncio.timeout(self._job.timeouts.start):
                return await asyncio.to_thread(self._begin)
        step, _, save = action.name.partition(":")
        async with asyncio.timeout(self._limit(step)):
            if step == "prune-saves":
                return await asyncio.to_thread(self._prune_saves, save)
            await self._end_step(step)
        return {}

    def _limit(self, step: str) -> float:
        """Return the seconds that a step may take."""
        state = self._state()
        copies = state.saves or any(output.overwrite for output in self._job.outputs.values())
        if step == "prune-saves" or (
            step == "outputs" and (copies or any(task.parts for task in state.tasks.values()))
        ):
            return COMMIT  # files may have to be copied
        return UNREGISTERED if step == "unregister" else WITHIN

    async def _end_step(self, name: str) -> None:
        if name == "store-logs":
            await asyncio.to_thread(self._store_logs)
        elif name == "outputs":
            await asyncio.to_thread(self._finish_outputs)
        elif name == "unregister":
            ending = self._state().ended or {"state": "failed"}
            await self._engine.close(ending["state"])
        elif name == "remove-staging":
            await asyncio.to_thread(self._remove_staging)

    # -- the beginning --

    def _begin(self) -> dict[str, Any]:
        """Return the listings, and the checkpoint set that an earlier job left; {"missing"} names the one that cannot be read, and why."""
        listed: dict[str, Any] = {"listings": {}}
        for name, input_ in self._job.inputs.items():
            try:
                listed["listings"][name] = self._listed(name, input_)
            except (TrainmasterError, OSError) as error:
                mend = {"mend": error.mend} if isinstance(error, TrainmasterError) and error.mend else {}
                return {"missing": {"name": name, "detail": getattr(error, "message", "") or str(error), **mend}}
        self._orders.locate(self._state())
        if (checkpoint := self._job.checkpoint) is not None and checkpoint.url:
            from trainmaster.data.checkpoints import newest

            try:
                newest_set = newest(checkpoint.url)
            except (TrainmasterError, OSError) as error:
                return {"missing": {"reason": "restore-failed", "detail": getattr(error, "message", "") or str(error)}}
            if newest_set is not None:
                listed["checkpoint"] = {"set": newest_set.number, "marks": {}}
        return listed

    def _listed(self, name: str, input_: Input) -> dict[str, Any]:
        """List an input: write its files to `inputs/<name>.json`, and return the part of the listing that the events need."""
        from trainmaster.data.formats.tables import is_table
        from trainmaster.data.sources import list_input

        if is_table(input_.location):
            return self._cut_table(name, input_)
        listing = self._splits(input_) if input_.format.startswith(HADOOP) else list_input(input_)
        content = self._keep_listing(name, listing)
        if input_.as_ == "shards" and input_.url != COUNTED_LATER:
            return shard_listing(input_, listing) | {"bytes": 0 if _is_counted(input_) else listing.size}
        return {"files": len(listing.files), "bytes": listing.size, "digest": hashlib.sha256(content).hexdigest()}

    def _keep_listing(self, name: str, listing: Listing) -> bytes:
        self._orders.listings[name] = listing
        files = [[file.path, file.size, list(file.hosts), file.stamp, file.name] for file in listing.files]
        content = json.dumps([listing.prefix, files]).encode()
        check_listing(name, len(content))
        self._storage.replace(f"inputs/{name}.json", content)
        return content

    def _cut_table(self, name: str, input_: Input) -> dict[str, Any]:
        """Cut a table as its readers will open it. The table is listed as one file of unknown size."""
        from trainmaster.data.formats import tables

        roles = [role for role in self._job.roles if input_ in uses(self._job, role)]
        table = tables.cut(input_, self._environ(roles[0] if roles else ""), self._job.timeouts.start)
        self._keep_listing(name, Listing("", (File(table.path, 0),)))
        return shard_table(input_, [table]) | {"bytes": 0}

    def _splits(self, input_: Input) -> Listing:
        """Return the splits that an InputFormat makes of the input, loaded as its readers would load it."""
        from trainmaster.data.formats.hadoop_formats import list_splits

        roles = [role for role in self._job.roles.values() if input_ in uses(self._job, role.name)]
        env = env_of(roles[0]) if roles else {}
        readers = sum(role.replicas.max for role in roles)
        site = self._orders.site
        cwd = site.get("cwd") or ""
        folder = cwd if os.path.isdir(cwd) else os.getcwd()
        return list_splits(input_, readers, {**os.environ, **env}, folder, site.get("archive") or "")

    # -- outputs --

    def _commit(self, action: CommitFor) -> dict[str, Any]:
        from trainmaster.data.outputs import commit

        state = self._state()
        task = state.tasks[action.task]
        return {
            name: commit(output, task.outputs.get(name, {}), state.id, task.key, action.attempt)
            for name, output in self._orders.outputs(task).items()
        }

    def _finish_outputs(self) -> None:
        from trainmaster.data.outputs import finish, part_of

        state = self._state()
        succeeded = state.ended is not None and state.ended["state"] == "succeeded"
        committed = {
            task.key: task.outputs for task in state.tasks.values() if task.final == "succeeded" and task.commits
        }
        refused = {task.key: task.outputs for task in state.tasks.values() if task.reason in _NOT_COMMITTED}
        for name, output in self._job.outputs.items():
            finish(
                output,
                {task: outputs[name] for task, outputs in committed.items() if name in outputs},
                state.id,
                succeeded,
                [
                    (part_of(task.key, part["attempt"], part["part"]), part["attempt"], part["outputs"][name])
                    for task in state.tasks.values()
                    for part in task.parts
                    if name in part["outputs"]
                ],
                {task: outputs[name] for task, outputs in refused.items() if name in outputs},
            )
        if state.saves:  # those of the last moments too
            self._prune_saves(state.saves[-1]["save"])

    def _prune_saves(self, newest: str) -> dict[str, Any]:
        from trainmaster.data.saves import prune

        with self._pruning:
            return {name: prune(output, self._job.saves.keep, newest) for name, output in self._job.outputs.items()}

    def _store_logs(self) -> None:
        """Copy the masters' own logs, which are written on their machine, to a storage that is elsewhere."""
        directory = LocalStorage(self._orders.site["storage"])
        if self._storage.url != directory.url:
            for entry in directory.entries(LOGS):
                self._storage.replace(f"{LOGS}/{entry.name}", directory.read(f"{LOGS}/{entry.name}") or b"")

    def _remove_staging(self) -> None:
        """Remove the tasks' own directories and the files that were staged for them; the event files of TensorBoard are kept."""
        root = Path(self._orders.site["storage"])
        if (board := self._job.tensorboard) is not None and not board.is_shared:
            for folder in (root / "work").glob("*"):
                with contextlib.suppress(OSError):  # it has none
                    (root / EVENT_FILES).mkdir(exist_ok=True)
                    (folder / board.logs).rename(root / EVENT_FILES / folder.name)
        for name in ("work", "staging"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(root / name)


def check_listing(name: str, size: int) -> None:
    """Raise BadInput where the listing of an input is larger than readers of the job's storage accept."""
    if size > LISTING:
        raise BadInput(
            f"the list of the files of input {name} takes {size >> 20} MiB, and may take {LISTING >> 20} MiB",
            place=f"inputs.{name}",
            mend="pack the files into fewer, larger ones, or name several inputs",
            anchor="input-too-long",
        )


def shard_listing(input_: Any, listing: Listing) -> dict[str, Any]:
    """Return the part of a listing that the accounting of shards needs."""
    from trainmaster.data.formats.formats import shard_files, shard_size
    from trainmaster.runtime.reading import counted

    size = counted(input_.location)[1] if _is_counted(input_) else shard_size(input_, listing)
    return shard_table(input_, shard_files(input_, listing), size)


def shard_table(input_: Any, files: Sequence[Any], size: int = 0) -> dict[str, Any]:
    """Return the same of `core.input.shards.File`s. `size`: of a shard; 0: as many shards as the rule makes."""
    from trainmaster.core.input.shards import Options, ShardTable

    options = Options(size=size, epochs=input_.epochs, shuffle=input_.shuffle, seed=input_.seed)
    return ShardTable.make(files, options, name=input_.name).listing()


def _is_counted(input_: Any) -> bool:
    """Tell whether the input is a number of records, and no files."""
    return bool(input_.location.startswith("records:"))


def load_listings(storage: Storage, job: Job) -> dict[str, Listing]:
    """Return the stored listings, by input. Raises Damaged."""
    listings = {}
    for name in job.inputs:
        if (content := storage.read(f"inputs/{name}.json")) is not None:
            listings[name] = _parse_listing(content, f"{storage.url}/inputs/{name}.json")
    return listings


def _parse_listing(content: bytes, path: str) -> Listing:
    try:
        prefix, files = json_in(content)
        return Listing(prefix, tuple(File(path, size, tuple(hosts), *rest) for path, size, hosts, *rest in files))
    except (ValueError, TypeError):
        raise damaged(path, content) from None
