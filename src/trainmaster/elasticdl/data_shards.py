"""ElasticDL's data shard services, on the shards that the job leases.

    service = build_data_shard_service(batch_size=64, num_epochs=2, dataset_size=60000)
    while shard := service.fetch_shard():
        for start in range(shard.start, shard.end, 64):
            ...                                      # records start to start + 64 of the program's own data
            service.report_batch_done()

Records are numbers from 0 to `dataset_size`; the program knows what they stand for. In a job they are its input `training` (`validation`
and `prediction` for the other kinds of tasks, or an input called as `dataset_name`), which is `url: "records://60000/512", as: shards`: the
job says how many records there are, how many make a shard, and how often each is read. The program's numbers must agree. If the URL is
`records://`, or if the program runs alone, the program says all this. All tasks of a job must then say the same.

A shard is done once as many records are reported as it has. When a task dies, the shards that it did not report go to another task.
So at the end a task waits for the records that others may lose. It does not wait for long while it holds records and reports no batch: it
reads ahead, as a shuffled `tf.data.Dataset` does, and trains on those records after the end.

`RecordIndexService` gives out the numbers themselves, in whole batches: a batch is complete, so that a loader that collects one never waits
in its middle for a shard that others hold. Where no more records can be had for a batch, some of its own come twice; they count once.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import sys
import threading
from array import array
from collections import deque
from time import monotonic

from ..runtime import shards, task
from ..runtime.batches import Flight
from ..runtime.elastic.reader import PatientSource
from ..runtime.reading import counted
from ..zoo.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..runtime.batches import Tagged

TRAINING, EVALUATION, PREDICTION = 1, 2, 3  # kinds of tasks, as ElasticDL numbers them
INPUTS = {TRAINING: "training", EVALUATION: "validation", PREDICTION: "prediction"}
_COUNTED_HERE = "records://?epochs="  # what the agent tells of an input whose records the program counts
_MINIBATCHES = 8  # of a shard where nobody says how many
_IDLE = 0.05  # s between two looks for a shard while what this task holds is not reported
_SILENCE = 30.0  # s without a report after which a program that holds records gets no more; ElasticDL waited as long


class Shard:
    """The records from `start` to `end` of the input `name`; `indices`: the same in a random order, [] where none was asked for."""

    __slots__ = ("end", "indices", "name", "start")

    def __init__(self, name: str, start: int, end: int, indices: list[int]) -> None:
        self.name, self.start, self.end, self.indices = name, start, end, indices

    def __repr__(self) -> str:
        return f"<Shard {self.name} {self.start}-{self.end}>"


class DataShardService:
    """The shards of one kind of tasks.

    `shuffle`: deal the records of an epoch in a random order, so each shard has records of all parts. The order of shards is the job's
    (`shuffle`), and alone that of their numbers; so `shuffle_shards` has no effect here. `num_minibatches_per_shard`: of `batch_size`
    records; a job whose URL has the size of a shard says it instead. `master_client` is there for programs that hand one over, and is not
    used. Raises BadModel where job and program do not agree.
    """

    def __init__(
        self, batch_size: int, num_epochs: int | None = None, dataset_size: int | None = None, shuffle: bool = False,
        shuffle_shards: bool = False, task_type: int = TRAINING, num_minibatches_per_shard: int = 0, dataset_name: str = "",
        master_client: object = None,
    ) -> None:  # fmt: skip
        if batch_size < 1 or task_type not in INPUTS:
            raise BadModel(f"batch_size is at least 1, and task_type one of {', '.join(map(str, INPUTS))}")
        self._batch_size, self._shuffle = batch_size, shuffle
        self._input = dataset_name if os.environ.get(_variable(dataset_name)) else INPUTS[task_type]
        size = (num_minibatches_per_shard or _MINIBATCHES) * batch_size
        self._place = _place(self._input, num_epochs, dataset_size, size)
        self._dataset_size, self._shard_size, self._epochs = counted(self._place)
        leased = _Leasing(self, shards(self._input, default=self._place, epochs=self._epochs, batch=1)._source())
        self.idle: Callable[[], bool] = lambda: (
            False
        )  # what to do while this task waits for shards; returns whether it did anything
        self._source = PatientSource(leased, lambda: self.idle())
        self._records = 0  # that were fetched
        self.given = 0  # batches of these
        self._is_alone = not os.environ.get("TRAINMASTER_SOCKET")
        self._held: deque[list[Any]] = deque()  # [shard, its records that are not reported], in the order of fetching
        self._finished: list[int] = []  # numbers of shards
        self._restored: set[int] = set()  # numbers of shards that a restored checkpoint has been trained on
        self._epoch = 0
        self._is_closed = False  # nothing is reported any more
        self._active_at = 0.0  # when the program reported records, or took part in a step
        self._news = threading.Condition()  # of all that is held

    def fetch_shard(self) -> Shard | None:
        """Return the next shard; None once all shards of all epochs are done, by whatever task."""
        shard = self._next()
        if shard is None:
            return None
        with self._news:
            self._held.append([shard, shard.end - shard.start])
            self._records += shard.end - shard.start
            self.given = self._records // self._batch_size
        return Shard(self._input, shard.start, shard.end, [*self._order(shard)] if self._shuffle else [])

    def report_batch_done(self, batch_size: int | None = None, err_msg: str = "") -> bool:
        """Report that so many records were used, by default a batch of them. Return whether that finished a shard.

        Records beyond those that this task has fetched are not counted: the last batch of a shard may have fewer. Raises RuntimeError where
        the batch failed (`err_msg`): the program ends, and what it holds goes to others.
        """
        if err_msg:
            raise RuntimeError(f"a batch failed: {err_msg}")
        finished, count = False, batch_size or self._batch_size
        self._active_at = monotonic()
        with self._news:
            while self._held and count > 0:
                shard, missing = self._held[0]
                self._held[0][1] -= min(count, missing)
                count -= missing
                if not self._held[0][1]:
                    self._held.popleft()
                    shard.done(shard.end - shard.start)
                    finished = True
            self._news.notify_all()
        return finished

    def get_current_epoch(self) -> int:
        """Return the epoch, from 0, of the shard that was fetched last."""
        return self._epoch

    def get_minibatch_count_per_epoch(self) -> int:
        """Return how many whole batches the records make, at least 1."""
        return max(1, self._dataset_size // self._batch_size)

    def get_shard_checkpoint(self) -> str:
        """Return what is done as JSON, to be stored beside a model, for `restore_shard_from_checkpoint`.

        In a job the master keeps this account, and its `checkpoint` goes with it: the text only names the job.
        """
        with self._news:
            fields: dict[str, Any] = {"job": task().job, "input": self._input, "dataset_size": self._dataset_size}
            fields |= {"shard_size": self._shard_size}
            return json.dumps({**fields, "done": sorted({*self._finished, *self._restored}) if self._is_alone else []})

    def restore_shard_from_checkpoint(self, shard_checkpoint: str) -> bool:
        """Leave out the shards that were done by then. Return False where the text is of another job, or of other shards.

        In its own job there is nothing to do: the master knows what is done, and gives out again what a restored `checkpoint` has
        forgotten.
        """
        try:
            fields = json.loads(shard_checkpoint)
            done = {int(number) for number in fields.pop("done")}
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        if fields != {key: value for key, value in json.loads(self.get_shard_checkpoint()).items() if key != "done"}:
            return False
        with self._news:
            self._restored = done
        return True

    def close(self) -> None:
        """Let others have what this task fetched and did not report. A caller that waits for more has come to the end."""
        self._is_closed = True
        self._source.close()

    def _order(self, shard: _Held) -> Sequence[int]:
        """Return the numbers of a shard's records in the order of their use."""
        if self._shuffle:
            return _shuffled(self._dataset_size, shard.epoch)[shard.start : shard.end]
        return range(shard.start, shard.end)

    # -- below --

    def _check_count(self, place: str) -> None:
        """Raise BadModel where another task of the job, whose count is the job's, has counted the records in another way."""
        if place not in (self._place, self._place.partition("?")[0]):
            raise BadModel(
                f"a task of the job counted {place}, and this one counts {self._place}",
                place=f"inputs.{self._input}",
                mend="say the same batch_size, dataset_size and num_epochs in all tasks",
            )

    def _next(self) -> _Held | None:
        """Return the next shard; None at the end. While records are held, others may wait for just these."""
        began = monotonic()
        while True:
            with self._news:
                is_holding = bool(self._held)
            shard: _Held | None = self._source.next(False if is_holding else None)
            if shard is not None or not is_holding or self._is_alone or self._is_closed:
                return shard
            if not self._wait(began, lambda: bool(self._held)):
                return None

    def _wait(self, began: float, is_holding: Callable[[], bool]) -> bool:
        """Let the others go on, who may wait for just what is held here, or wait for a report. Return False after a long silence."""
        if self.idle():
            self._active_at = monotonic()
            return True
        with self._news:
            if is_holding():
                self._news.wait(_IDLE)
        if monotonic() - max(began, self._active_at) < _SILENCE:
            return True
        print(
            f"no report_batch_done() in {_SILENCE:.0f} s: no more records for this program", file=sys.stderr, flush=True
        )
        return False


class RecordIndexService(DataShardService):
    """Numbers of records, one after the other, also for the processes of a loader: it is made before they are.

    `report_batch_done()` reports the batch that was fetched first and is not reported yet; of a PyTorch DataLoader, which is iterated once,
    the one that it has yielded.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._flight = Flight(self._source)
        self._rest: deque[Tagged] = deque()  # of the shard that is given out
        self._batches: dict[int, deque[list[Tagged]]] = {}  # not reported, by the loader's process
        self._readers = self._reported = 0  # processes of the loader, batches
        self._turn = threading.Lock()  # of whoever makes a batch
        self._failure: BaseException | None = None  # of the thread that gives batches to processes
        self._process, self._mine = os.getpid(), deque[int]()
        self._asks: Any = multiprocessing.SimpleQueue()
        self._answers: Any = multiprocessing.SimpleQueue()
        self._asking: Any = multiprocessing.Lock()
        threading.Thread(target=self._serve, name="trainmaster-records", daemon=True).start()

    def fetch_record_index(self) -> int:
        """Return the number of the next record. Raises StopIteration once all records of all epochs are done."""
        if not self._mine:
            self._mine.extend(self._fetch())
        return self._mine.popleft()

    def fetch_shard(self) -> Shard | None:
        """Raise RuntimeError: this service gives out records."""
        raise RuntimeError("a RecordIndexService has fetch_record_index(); shards are fetched from a DataShardService")

    def report_batch_done(self, batch_size: int | None = None, err_msg: str = "") -> bool:
        if err_msg:
            raise RuntimeError(f"a batch failed: {err_msg}")
        self._active_at = monotonic()
        with self._news:
            if self._failure is not None:
                raise self._failure
            batches = self._batches.get(self._reported % self._readers if self._readers else 0)
            if not batches:
                return False
            before, self._reported = len(self._finished), self._reported + 1
            self._flight.use(batches.popleft())
            self._news.notify_all()
            return len(self._finished) > before

    def close(self) -> None:
        """Let others have what this task fetched and did not report. Raises what has gone wrong while processes fetched records."""
        super().close()
        if self._failure is not None:
            raise self._failure

    def __getstate__(self) -> dict[str, Any]:
        """Return what a process of a loader needs where it is not a fork of this one."""
        names = ("_process", "_asks", "_answers", "_asking")
        return {**{name: self.__dict__[name] for name in names}, "_mine": deque()}

    def _fetch(self) -> list[int]:
        if os.getpid() == self._process:
            batch = self._next_batch(0, 0)
        else:
            with self._asking:
                self._asks.put(_reader())
                batch = self._answers.get()
        if not batch:
            raise StopIteration
        return batch

    def _serve(self) -> None:
        """Give batches to the loader's processes."""
        while True:
            reader = self._asks.get()
            try:
                batch = self._next_batch(*reader)
            except BaseException as error:  # noqa: BLE001  the program's own thread raises it, once its loader has ended
                self._failure, batch = error, []
            self._answers.put(batch)

    def _next_batch(self, reader: int, readers: int) -> list[int]:
        """Return the records of a whole batch; [] at the end."""
        with self._turn:
            batch = self._tagged()
            with self._news:
                self._readers = readers
                if batch:
                    self.given += 1
                    self._batches.setdefault(reader, deque()).append(batch)
        return [batch[place % len(batch)][1] for place in range(self._batch_size)] if batch else []

    def _tagged(self) -> list[Tagged]:
        """Return the records that there are for a batch, with the numbers of their shards; [] at the end."""
        batch: list[Tagged] = []
        began = monotonic()
        while len(batch) < self._batch_size:
            if self._rest:
                batch.append(self._rest.popleft())
                continue
            shard, is_holding = self._next_in_flight()
            if shard is not None:
                self._rest.extend((shard.number, index) for index in self._order(shard))
            elif batch or not is_holding or self._is_alone or self._is_closed or not self._wait(began, self._holds):
                break
        return batch

    def _holds(self) -> bool:
        return not self._flight.is_empty

    def _next_in_flight(self) -> tuple[Any, bool]:
        """Return the next shard, or None, and whether any are held."""
        with self._news:
            if not self._flight.is_empty:
                return self._noted(self._flight.next()), True
        return self._noted(self._flight.next()), False  # nothing can be reported meanwhile

    def _noted(self, shard: Any) -> Any:
        if shard is not None:
            self._flight.read(shard.number, shard.end - shard.start)
        return shard


def build_master_client() -> None:
    """Return nothing: services and controllers take the client of a master, and need none."""


def build_data_shard_service(*arguments: Any, **options: Any) -> DataShardService:
    """Return a DataShardService: see there."""
    return DataShardService(*arguments, **options)


@functools.lru_cache(maxsize=2)  # the last shards of an epoch may come after the first of the next one
def _shuffled(count: int, epoch: int) -> Sequence[int]:
    """Return the records of an epoch in a random order, the same in each task."""
    order = array("q", range(count))
    random.Random(epoch).shuffle(order)
    return order


class _Held:
    """A shard that this task has: one of the runtime's, whose end is noted too."""

    __slots__ = ("_service", "_shard", "end", "epoch", "number", "start")

    def __init__(self, service: DataShardService, shard: Any) -> None:
        self._service, self._shard = service, shard
        self.number, self.epoch, self.start, self.end = shard.number, shard.epoch, shard.start, shard.end

    def done(self, records: int | None = None) -> None:
        self._service._finished.append(self.number)
        self._shard.done(records)


class _Leasing:
    """The source of a service's shards, without those that a restored checkpoint has been trained on."""

    def __init__(self, service: DataShardService, source: Any) -> None:
        self._service, self._source = service, source

    def next(self, wait: bool | None = None) -> _Held | None:
        while (shard := self._source.next(wait)) is not None:
            self._service._check_count(shard.path)
            if shard.number not in self._service._restored:
                self._service._epoch = shard.epoch
                return _Held(self._service, shard)
        return None

    def close(self) -> None:
        self._source.close()


def _variable(name: str) -> str:
    return "TRAINMASTER_INPUT_" + "".join(c if c.isalnum() else "_" for c in name).upper()


def _place(name: str, num_epochs: int | None, dataset_size: int | None, shard_size: int) -> str:
    """Return `records://COUNT/SIZE?epochs=N`, as the job says it, or as the program does: alone, or if the input is `records://`."""
    place = os.environ.get(_variable(name), "")
    where = f"inputs.{name}"
    mend = f'{{url: "records://{dataset_size or "COUNT"}/{shard_size}", as: shards, epochs: {num_epochs or 1}}}'
    if place.startswith(_COUNTED_HERE) or (not place and task().alone):
        if not dataset_size or dataset_size < 1 or (num_epochs is not None and num_epochs < 1):
            raise BadModel("the number of records is not known", mend="say dataset_size, and num_epochs of at least 1")
        epochs = num_epochs or int(place.removeprefix(_COUNTED_HERE) or 1)
        return f"records://{dataset_size}/{min(shard_size, dataset_size)}?epochs={epochs}"
    if not place.startswith("records:"):
        problem = "is files" if place else "is missing"
        raise BadModel(
            f"the program asks for numbers of records, and the input {name} of the job {problem}",
            place=where,
            mend=mend,
        )
    count, _, epochs = counted(place)
    for word, number, of_job in (("dataset_size", dataset_size, count), ("num_epochs", num_epochs, epochs)):
        if number and of_job and number != of_job:
            raise BadModel(f"the program says {word} {number:,}, and the job {of_job:,}", place=where, mend=mend)
    return place if epochs else f"{place}?epochs={num_epochs or 1}"


def _reader() -> tuple[int, int]:
    """Return which process of how many of a PyTorch loader this is; (0, 0) where it is another one."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch else None
    return (info.id, info.num_workers) if info else (0, 0)
