"""Training with parameter servers, or, by one worker whose model has tables, with a share of a server in its own process.

*A step* pulls the rows of the batch's ids, and at each `get_model_steps` the parameters, computes, and pushes the gradients: one round trip
each. A push that is refused as stale is made again, of fresh parameters. The number of steps is the servers' version.

*The next batch* is read while a step runs, in a thread, and where updates need not be strictly synchronous its rows are prefetched. Reports
of shards that this reading finishes are held back until the step's push is acknowledged.

*Weights that no gradient changes* (of batch normalization) are each worker's own; worker 0's are those that are evaluated and exported.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ... import runtime
from ...ps.client import Client, Pulled
from ...ps.errors import BadRequest, Refused
from ...ps.job import DIRECTORY, BadPlace, from_job
from ...ps.specification import BadDefinition, Updates
from ...ps.storage.former import newest_version
from ...runtime import inputs
from ..data.batches import Batch
from ..embeddings.former import FLAG, is_of_servers, loaded_former
from ..embeddings.in_process import InProcess
from ..embeddings.lookups import distinct_of
from ..errors import BadModel
from ..flags import PARAMETER_SERVER

Result = tuple[float, dict[str, float]]
_LOOK_AGAIN = 0.05  # s
_KEPT_WITHIN = 600.0  # s that the last checkpoint may take


class ServerStrategy:
    """`model` uses tables. `state`: what a checkpoint has of those of this process, or None."""

    def __init__(self, model: Any, windows: Any, flags: dict[str, Any], state: Any, say: Callable[[str], None]) -> None:
        self._model, self._flags, self._say = model, flags, say
        self._tables = model.tables
        task = runtime.task()
        self.rank, self.size = task.index, task.world
        self.is_counted = True  # whether the last batch was pushed
        is_shared = flags["distribution_strategy"] == PARAMETER_SERVER
        updates = _updates(flags) if is_shared else Updates()
        self._can_prefetch = is_shared and updates.tolerance != 0
        self._get_model_steps = flags["get_model_steps"] if is_shared else 1
        if is_shared:
            self._client: Client = client_of_job(flags["num_ps_pods"])
        else:  # tables of this process: empty ones, or those of a former job's servers
            place = flags[FLAG.lstrip("-")]
            self._client = InProcess(loaded_former(place) if state is None and is_of_servers(place) else None)
        self._define(updates)
        if state is not None:
            assert isinstance(self._client, InProcess)
            self._client.restore(state)
        self._tables.source = self._client
        self._dense_version = self._pull_dense()
        self._dense_age = 0  # batches since then
        self._ahead: _Ahead | None = None
        self._prefetched: tuple[Batch, dict[str, Any], Any] | None = None
        self._held = _HeldReports(windows)
        # A custom reader may not like another thread. With tables in this process checkpoints say which shards are done.
        self._can_look_ahead = is_shared and model.parts.custom_data_reader is None
        inputs.report_at_once("servers")

    @property
    def steps(self) -> int:
        return self._client.version

    def _define(self, updates: Updates) -> None:
        optimizer, limit = self._tables.optimizer()
        if limit is not None:
            updates = Updates(**{**vars(updates), "clip_norm": limit})
        try:
            version = self._client.define(self._tables.dense(), self._tables.specs, optimizer, updates)
            self._require_former(version)
            for name, (ids, rows) in {} if version else self._first_rows().items():
                self._client.seed(name, ids, rows)
        except (BadDefinition, BadRequest) as error:
            raise BadModel(f"the parameter servers cannot take the model: {error}") from None
        if version:
            self._say(f"going on from version {version} of the parameter servers")

    def _require_former(self, version: int) -> None:
        """Raise BadModel where the servers began with nothing, and not with the former job's checkpoint that this worker sees."""
        place = self._flags["checkpoint_dir_for_init"]
        is_shared = not isinstance(self._client, InProcess)
        if version == 0 and is_of_servers(place) and is_shared and newest_version(place) > 0:
            raise BadModel(
                "the parameter servers began with nothing: they do not see the checkpoint that this worker sees",
                place=f"{FLAG} {os.path.abspath(place)}",
                mend="have the role ps see the directory as the role worker does (volumes, mounts)",
            )

    def _first_rows(self) -> dict[str, tuple[Any, Any]]:
        """Return ids and rows of the tables that begin with an export's, once."""
        first_rows, self._tables.first_rows = self._tables.first_rows or {}, None
        self._model.first_rows = None
        return first_rows

    # -- batches --

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        if not self._can_look_ahead:
            yield from batches
            return
        batch = next(batches, None)
        while batch is not None:
            self._held.hold()
            ahead = self._ahead = _Ahead(batches)
            yield batch._replace(used=lambda: None)  # asking for the next one tells it, in the thread
            self._held.release()
            batch = ahead.result()

    def step(self, batch: Batch) -> Result:
        """Train with a batch. Return the loss before it, and its parts. Nothing is pushed where the loss is not finite."""
        ids, pulled = self._pulled_for(batch)
        while True:
            self._prefetch()
            loss, parts, dense, rows = self._tables.gradients(batch.features, batch.labels, ids, pulled.rows)
            self.is_counted = math.isfinite(loss)
            if not self.is_counted:
                return loss, parts
            base = min(self._dense_version, pulled.version) if ids else self._dense_version
            gradients = {name: (ids[name], gradient) for name, gradient in rows.items()}
            rate = self._tables.rate(self.steps)
            self._dense_age += 1
            is_due = self._can_prefetch and self._client.servers == 1 and self._dense_age >= self._get_model_steps
            push = self._client.push_and_pull if is_due else self._client.push
            try:
                pushed = push(base, dense, gradients, learning_rate=rate)
            except Refused:
                self._dense_version, self._dense_age = self._pull_dense(), 0
                pulled = self._client.pull(dense=False, rows=ids) if ids else pulled
                continue
            self._held.release()
            if isinstance(pushed, Pulled):
                self._take_dense(pushed)
            return loss, parts

    def _pulled_for(self, batch: Batch) -> tuple[dict[str, Any], Pulled]:
        """Return the ids of a batch, and their rows. The parameters are pulled with them where that is due."""
        is_due = self._dense_age >= self._get_model_steps
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[0].features is batch.features:
            ids, rows = prefetched[1], prefetched[2].result()
            pulled = self._client.pull() if is_due else rows
        else:
            ids = self._tables.ids(batch.features)
            pulled = rows = (
                self._client.pull(dense=is_due, rows=ids) if ids or is_due else Pulled(self.steps, self.steps)
            )
        if is_due:
            self._take_dense(pulled)
        return ids, rows

    def _take_dense(self, pulled: Pulled) -> None:
        self._tables.assign(pulled.dense)
        self._dense_version, self._dense_age = pulled.version, 0

    def _prefetch(self) -> None:
        """Begin to pull the rows of the next batch, where it is there already."""
        batch = self._ahead.present() if self._can_prefetch and self._ahead is not None else None
        if batch is not None and self._prefetched is None and self._tables.specs:
            ids = self._tables.ids(batch.features)
            self._prefetched = batch, ids, self._client.prefetch(rows=ids)

    def _pull_dense(self) -> int:
        pulled = self._client.pull()
        self._tables.assign(pulled.dense)
        return pulled.version

    # -- between steps, and the end --

    @contextlib.contextmanager
    def evaluating(self, evaluation: Any) -> Iterator[int]:
        """Have the model evaluated as it is in one version, which is returned: all rows that the evaluation needs are pulled at once."""
        id_parts: dict[str, list[Any]] = {name: [] for name in self._tables.specs}
        if id_parts:
            for batch in evaluation.batches():
                for name, ids in self._tables.ids(batch.features).items():
                    id_parts[name].append(ids)
        ids = {name: distinct_of(numpy.concatenate(parts)) for name, parts in id_parts.items() if parts}
        pulled = self._client.pull_exactly(ids)
        self._take_dense(pulled)
        self._tables.snapshot = {name: (ids[name], pulled.rows[name]) for name in ids}
        try:
            yield pulled.version
        finally:
            self._tables.snapshot = None

    def finish(self) -> None:
        """Take the newest parameters. The others go on with what they have."""
        self._held.drop()
        self._client.flush()
        pulled = self._client.pull()
        pulled = self._client.pull(at_least=pulled.newest)  # of all servers, also where one of them was behind
        self._tables.assign(pulled.dense)
        self._dense_version = pulled.version

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint must have of this worker. None: the servers make their own."""
        if isinstance(self._client, InProcess):
            return {**self._model.state(), "tables": self._client.state()}
        return None

    def newest_checkpoint(self) -> str:
        """Describe the newest checkpoint that the servers have."""
        status = self._client.status()[0]
        if status["completed"] < 0:
            every = self._flags["checkpoint_steps"]
            return f"none yet: the first is due after {every} steps" if every else "none: give --checkpoint_steps"
        version = f"version-{status['completed']} of the parameter servers"
        if DIRECTORY in os.environ or runtime.task().alone:  # set for workers where the directory stays, and not else
            return f"{version} in {status['directory']}"
        return f"{version}, which ends with the job: --checkpoint_dir keeps it"

    def keep(self) -> None:
        """Have the servers keep the last version, and return once that is done."""
        if self.rank or isinstance(self._client, InProcess) or not self._client.status()[0]["directory"]:
            return  # where they have no directory, nobody wants checkpoints
        version = self._client.checkpoint()
        deadline = time.monotonic() + _KEPT_WITHIN
        while any(status["completed"] < version for status in self._client.status()):
            if any(status["unsaved"] >= version for status in self._client.status()):
                self._say(f"the servers could not write their checkpoint of version {version}: their own lines say why")
                return
            if time.monotonic() > deadline:
                fault = f"have not written their checkpoint of version {version} within {_KEPT_WITHIN:g} s"
                self._say(f"the servers {fault}")
                return
            time.sleep(_LOOK_AGAIN)


class _Ahead:
    """The next batch, which a thread reads. A thread that waits for more data when the program ends holds up nobody."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batch: Batch | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(batches,), name="next-batch", daemon=True)
        self._thread.start()

    def _read(self, batches: Iterator[Batch]) -> None:
        try:
            self._batch = next(batches, None)
        except BaseException as error:  # noqa: BLE001  it is raised where the batch is asked for
            self._error = error

    def present(self) -> Batch | None:
        """Return the batch where it is there now."""
        return None if self._thread.is_alive() else self._batch

    def result(self) -> Batch | None:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._batch


class _HeldReports:
    """The reports of shards that windows make while a step runs. These shards were in that step's batch, or before it."""

    def __init__(self, windows: Any) -> None:
        self._report, self._lock = windows.done, threading.Lock()
        self._kept: list[tuple[Any, int]] = []
        self._is_held = False
        windows.done = self._done

    def hold(self) -> None:
        with self._lock:
            self._is_held = True

    def release(self) -> None:
        """Report what was held back, and hold back nothing until `hold`."""
        with self._lock:
            self._is_held = False
            kept, self._kept = self._kept, []
        for shard, records in kept:
            self._report(shard, records)

    def drop(self) -> None:
        """Report nothing of what is held back: it is of batches that were not pushed."""
        with self._lock:
            self._is_held, self._kept = False, []

    def _done(self, shard: Any, records: int) -> None:
        with self._lock:
            if self._is_held:
                self._kept.append((shard, records))
                return
        self._report(shard, records)


def client_of_job(servers: int) -> Client:
    """Return a client of the job's servers. Raises BadModel where it has none."""
    try:
        return from_job(servers)
    except BadPlace as error:
        raise BadModel(
            str(error).partition(": ")[0], place=f"--distribution_strategy {PARAMETER_SERVER}",
            mend="start it by tm train, which starts servers too, or use --distribution_strategy Local",
        ) from None  # fmt: skip


def _updates(flags: dict[str, Any]) -> Updates:
    tolerance, every = flags["sync_version_tolerance"], flags["get_model_steps"]
    if not flags["use_async"] and every > tolerance + 1:
        mend = f"give --use_async, or --sync_version_tolerance {every - 1} at least"
        raise BadModel(
            "gradients of parameters that are older than a version would be refused",
            place=f"--get_model_steps {every}",
            mend=mend,
        )
    return Updates(
        grads_to_wait=flags["grads_to_wait"],
        tolerance=None if flags["use_async"] else tolerance,
        is_modulated=flags["lr_staleness_modulation"],
        checkpoint_steps=flags["checkpoint_steps"],
        keep_checkpoints=flags["keep_checkpoint_max"],
    )
