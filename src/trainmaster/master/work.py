"""What the master itself does with data: list the inputs, commit in the place of an agent that is gone, and the steps of the end.

Each returns its result or raises; the shell tells the core, which goes on either way. Everything here blocks and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.core.actions import Action, CommitFor, Step
from trainmaster.core.job import Job
from trainmaster.core.splits import File, Listing
from trainmaster.core.state import State
from trainmaster.engines.contract import MasterSide
from trainmaster.log.storage import Storage
from trainmaster.master.orders import Orders

WITHIN = 60.0  # s for a step of the end


class Work:
    """The doer of one job's steps."""

    def __init__(
        self, job: Job, orders: Orders, storage: Storage, engine: MasterSide, state: Callable[[], State]
    ) -> None:
        self._job, self._orders, self._storage, self._engine, self._state = job, orders, storage, engine, state

    async def do(self, action: Action) -> Mapping[str, Any]:
        """Carry out a commit or a step; what it gave."""
        if isinstance(action, CommitFor):
            return await asyncio.to_thread(self._commit, action)
        assert isinstance(action, Step)
        if action.name == "list-inputs":
            return await asyncio.to_thread(self._list_inputs)
        if action.name.startswith("prune-saves:"):
            return await asyncio.to_thread(self._prune_saves)
        async with asyncio.timeout(WITHIN):
            await self._end_step(action.name)
        return {}

    async def _end_step(self, name: str) -> None:
        if name == "outputs":
            await asyncio.to_thread(self._finish_outputs)
        elif name == "unregister":
            ending = self._state().ended or {"state": "failed"}
            await self._engine.close(ending["state"])
        elif name == "remove-staging":
            await asyncio.to_thread(self._remove_staging)

    # -- inputs --

    def _list_inputs(self) -> dict[str, Any]:
        """List every input; the files go to `inputs/<name>.json`, what the events need of it is returned."""
        from trainmaster.data.sources import list_input

        told: dict[str, Any] = {}
        for name, given in self._job.inputs.items():
            listing = list_input(given.url, f"inputs.{name}.url")
            self._orders.listings[name] = listing
            content = json.dumps(
                [listing.prefix, [[file.path, file.size, list(file.hosts), file.stamp] for file in listing.files]]
            )
            self._storage.replace(f"inputs/{name}.json", content.encode())
            told[name] = {
                "files": len(listing.files),
                "bytes": listing.size,
                "digest": hashlib.sha256(content.encode()).hexdigest(),
            }
            if given.as_ == "shards":
                told[name] = shard_listing(given, listing) | {"bytes": listing.size}
        return told

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
        from trainmaster.data.outputs import finish

        state = self._state()
        succeeded = state.ended is not None and state.ended["state"] == "succeeded"
        committed = {
            task.key: task.outputs for task in state.tasks.values() if task.final == "succeeded" and task.commits
        }
        for name, output in self._job.outputs.items():
            finish(
                output,
                {task: outputs[name] for task, outputs in committed.items() if name in outputs},
                state.id,
                succeeded,
            )

    def _prune_saves(self) -> dict[str, Any]:
        from trainmaster.data.saves import prune

        return {name: prune(output, self._job.saves.keep) for name, output in self._job.outputs.items()}

    def _remove_staging(self) -> None:
        """The tasks' own directories and what was staged for them."""
        root = Path(self._orders.site["storage"])
        for name in ("work", "staging"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(root / name)


def shard_listing(given: Any, listing: Listing) -> dict[str, Any]:
    """The part of a listing that the accounting of shards is made from."""
    from trainmaster.core.shards import Options, ShardTable
    from trainmaster.data.formats import shard_files

    options = Options(epochs=given.epochs, shuffle=given.shuffle, seed=given.seed)
    return ShardTable.make(shard_files(given, listing), options, name=given.name).listing()


def load_listings(storage: Storage, job: Job) -> dict[str, Listing]:
    """The listings that were stored."""
    found = {}
    for name in job.inputs:
        if (content := storage.read(f"inputs/{name}.json")) is not None:
            prefix, files = json.loads(content)
            found[name] = Listing(
                prefix, tuple(File(path, size, tuple(hosts), stamp) for path, size, hosts, stamp in files)
            )
    return found
