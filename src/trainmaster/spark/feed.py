"""Feed an RDD or a DataFrame to the programs of a job, as batches of columns.

    run = trainmaster.spark.run(spark, trainmaster.Job(roles={"worker": {..., "feed": {"input": {}}}}))
    with Feed(spark, run) as feed:
        feed.put(rdd, epochs=3)
    run.wait()

Each partition is fed by a task of Spark's, which writes into the memory of a reader, on its own host where it can. Each row is read
once: a partition that Spark runs again, or whose reader was lost, delivers only what was not read. For that its rows must be the same, in
the same order, each time that Spark computes it: persist what is not (a shuffle without a sort, random numbers, the present time).
`frames.ways` has the ways by which rows come to the tasks.

The module needs no pyspark of its own: it uses the context that it is given.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from trainmaster.client.api import failed
from trainmaster.core.errors import BadInput, EngineFailed, JobFailed
from trainmaster.engines.spark.bridge.executors import is_true
from trainmaster.host import java
from trainmaster.host.locks import scratch
from trainmaster.runtime import feed as runtime_feed
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.master import Master, RunAgain
from trainmaster.runtime.feed.rows import SIZE
from trainmaster.spark import context_of, feeding
from trainmaster.spark.frames import executors, ways
from trainmaster.spark.giving_way import giving_way, wait_for_readers
from trainmaster.spark.nodes.end_server import EndServer
from trainmaster.words.restarts import Restarts

if TYPE_CHECKING:
    from trainmaster.client.api import Run

ARCHIVE = "trainmaster-runtime.zip"
_SEVERAL = 2  # tasks of a job, for words about restarts: its own number does not matter
ENDS_WITHIN = 10.0  # s for a job to have ended whose master refuses a feeder
_LOOK = 0.1  # s between two looks for a job's master
log = logging.getLogger(__name__)
_shipped: set[str] = set()  # applications whose executors have the archive
_shipping = threading.Lock()
_followed: set[str] = set()  # jobs whose restarts a feed reports
_REFUSED = re.compile(r"^[\w.]*\b(WrongRow|FeedError): (.+)$", re.MULTILINE)
_TASK = re.compile(r"\bTask (\d+) in stage")
T = TypeVar("T")


class Feed:
    """One feed of a running job, from the application of a SparkSession or SparkContext.

    `role` may be left out where one role has a feed of that name. Raises BadInput where there is none, and JobFailed where the job has
    ended. While it is open, each restart of a task is a line on stderr. A `with` block ends the feed, unless an error leaves it: then the
    job goes on, and a new Feed may feed it.
    """

    def __init__(self, spark: Any, run: Run, name: str = "input", role: str | None = None) -> None:
        self._context = context_of(spark)
        self._link = link_of(run, name, role)
        self._job_run, self._has_ended = run, threading.Event()
        self._master = Master(self._link, self._has_ended.is_set)
        self._tag = f"trainmaster-feed-{run.id}-{self._link['role']}-{name}"
        self._server: EndServer | None = None
        self._error: BaseException | None = (
            None  # the last one after which the job goes on; the user has seen that it does
        )
        threading.Thread(target=self._follow, daemon=True, name=self._tag).start()
        self._rounds: dict[int, Any] = {}  # those of which something may have to be fed again
        _ship(self._context)
        _send_by_value()

    def put(self, data: Any, *, epochs: int = 1, rows: int = 0, ragged: Collection[str] = ()) -> None:
        """Feed an RDD or a DataFrame, `epochs` times; return once all of it is in the memory of readers, or nobody wants more.

        `rows`: of a batch at most; 0: about 1 MiB. `ragged`: columns whose lists, images or vectors differ in shape.
        Raises JobFailed where the job has failed, BadInput where no slot is left for feeders or executors have another Python, and Spark's
        own errors. The job goes on after Ctrl-C.
        """
        with self._breakable():
            self._put(data, epochs, rows, ragged)

    def _put(self, data: Any, epochs: int, rows: int, ragged: Collection[str]) -> None:
        wait_for_readers(self._ask)
        executors.check_slots(self._context, self._job_run.id)
        way = _in_thread(self._tag, lambda: ways.way_of(data, ARCHIVE, executors.lacking(self._context)))
        level = logging.WARNING if way.is_slow else logging.INFO
        log.log(level, "%s, feed %s: %s", self._link["job"], self._link["feed"], way.words)
        for _ in range(epochs if way.partitions else 0):  # a stream has batches without any
            answer = self._ask("begin", partitions=way.partitions, key=secrets.token_hex(8))
            if answer["do"] == "stop":
                return
            task = feeding.Task(
                self._link, answer["round"], rows, ARCHIVE, ragged, ways.zoned(data), is_true(self._context, "spark.speculation")
            )  # fmt: skip
            self._rounds[answer["round"]] = way.feeders(task)
            self._run(answer["round"], None)
            self._feed_lost()

    def map(self, data: Any, *, rows: int = 0, end: Callable[[bool], str] | None = None) -> Any:
        """Return an RDD of the results that readers give (`Reader.answer`), one for each row, in the partitions and the order of the data.

        It is computed when Spark needs it, as often as Spark does, and until the feed ends; `put` cannot feed the same readers. A failure
        is an error of Spark's then, with the last lines of the program in it. `rows` as of `put`. `end` tells tasks how the job has ended,
        see `feeding.Exchanger`. Raises JobFailed and BadInput as `put`.
        """
        data = data.rdd if ways.is_frame(data) else data
        with self._breakable():
            wait_for_readers(self._ask)
            executors.check_slots(self._context, self._job_run.id)
            _in_thread(self._tag, lambda: executors.lacking(self._context))  # raises where their Python is another one
        if end is None and not self._has_ended.is_set():
            self._server = self._server or EndServer(self._context, self._words_of_end)
            end = self._server.client.end
        return data.mapPartitionsWithIndex(feeding.Exchanger(self._link, rows, ARCHIVE, end))

    def end(self) -> int | None:
        """End the feed, and return once readers have read all that they get. Return the rows that each one got, where they agree on it."""
        with self._breakable():
            return self._end()

    def _end(self) -> int | None:
        while True:
            others = self._feed_lost()
            for number in self._rounds:
                self._await_read(number)
            answer = self._ask("end")
            if answer["do"] in ("done", "stop"):
                return answer.get("rows")
            if others:
                raise EngineFailed(
                    f"{self._link['job']}, feed {self._link['feed']}: another Feed of this driver has not fed all that it began",
                    mend="use one Feed for all that a job is fed", anchor="no-feed",
                )  # fmt: skip

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
        else:
            self._say_that_it_goes_on(error)
        self._master.close()

    # -- inside --

    @contextlib.contextmanager
    def _breakable(self) -> Iterator[None]:
        """End Spark's tasks that feed where Ctrl-C breaks them off, and say that the job goes on."""
        try:
            yield
        except KeyboardInterrupt as error:
            self._cancel()
            self._say_that_it_goes_on(error)
            raise

    def _say_that_it_goes_on(self, error: BaseException) -> None:
        """Say once for an error that the job runs on without it, and keeps its slots."""
        if error is not self._error and not self._has_ended.is_set() and not isinstance(error, JobFailed):
            job = self._job_run.id
            feed = self._link["feed"]
            log.warning(
                "%s goes on until Spark stops, and waits for its feed %s: feed it again, or end it: tm kill %s",
                job,
                feed,
                job,
            )
        self._error = error

    def _feed_lost(self) -> bool:
        """Feed those partitions again whose batches were lost with a reader; forget the rounds that were read whole. Tell whether
        rounds that another Feed began have such partitions too.
        """
        while lost := (answer := self._ask("rounds")).get("lost"):
            ours = [(number, partitions) for number, partitions in lost if number in self._rounds]
            for number, partitions in ours:
                self._run(number, partitions)
            if not ours:
                break
        self._rounds = {number: self._rounds[number] for number in answer.get("open", ()) if number in self._rounds}
        return bool(lost)

    def _await_read(self, number: int) -> None:
        while True:
            figures = self._ask("figures", round=number, wait=True)
            if figures.get("lost"):
                self._run(number, figures["lost"])
            elif figures["do"] != "wait":
                return

    def _run(self, number: int, partitions: list[int] | None) -> None:
        """Have Spark feed partitions (None: all) of a round, again where a reader was lost meanwhile. One that fails is given up."""
        try:
            self._feed(number, partitions)
        except BaseException:
            self._rounds.pop(number, None)
            with contextlib.suppress(EngineFailed, JobFailed):
                self._ask("drop", round=number)
            raise

    def _feed(self, number: int, partitions: list[int] | None) -> None:
        wait_for_readers(self._ask)
        gave_way = threading.Event()
        try:
            with giving_way(self._link, self._cancel, self._has_ended) as gave_way:
                self._run_job(number, partitions)
            return
        except Exception as error:  # noqa: BLE001  raised below, without the JVM's stacks around our own errors
            failure = error
        figures = self._ask("figures", round=number, wait=False)  # raises where the job has failed
        if self._has_ended.is_set() or gave_way.is_set():
            return
        if RunAgain.__name__ not in str(failure) or figures["do"] == "stop":
            raise _refused(failure) or failure
        log.warning("%d partitions are fed again: %s", len(figures["lost"]), figures["why"])

    def _run_job(self, number: int, partitions: list[int] | None) -> None:
        def run() -> None:
            self._context.setJobDescription(f"{self._link['job']} feed {self._link['feed']}, round {number}")
            self._context.addJobTag(self._tag)
            self._context.runJob(self._rounds[number], list, partitions)

        _in_thread(self._tag, run)

    def _follow(self) -> None:
        """Report restarts, and cancel what Spark still feeds once the job has ended: its tasks would be tried again, and wait for a master
        that is gone.
        """
        job = self._job_run.id
        if job not in _followed:
            _followed.add(job)
            restarts = Restarts()
            with contextlib.suppress(Exception):  # its events cannot be read; its end is what matters
                for event in self._job_run.events(follow=True):
                    for line in restarts.take(event, _SEVERAL):
                        log.warning("%s: %s", job, line)
        self._job_run.wait(check=False)
        self._has_ended.set()
        self._cancel()
        if self._server is not None:
            self._server.end(self._job_run.status()["state"] != "succeeded")

    def _cancel(self) -> None:
        """Cancel Spark's jobs that feed."""
        with contextlib.suppress(Exception):  # the context is stopped
            self._context.cancelJobsWithTag(self._tag)

    def _words_of_end(self, seconds: float) -> str:
        """Say how the job has ended, with the last lines of the task that failed; "" where it runs on after `seconds`."""
        if not self._has_ended.wait(seconds):
            return ""
        status = self._job_run.status()
        if status["state"] == "succeeded":
            return f"{self._job_run.id} has ended: ask for results before that"
        return str(failed(status))

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return the master's answer; `stop` where the job has succeeded. Raises JobFailed where it has not, as `Run.wait` does."""
        try:
            if not self._has_ended.is_set():
                return self._master.ask(op, **fields)
        except FeedError as error:
            if not self._has_ended.wait(ENDS_WITHIN):
                raise EngineFailed(str(error), mend=f"see what became of it: tm status {self._link['job']}") from error
        status = self._job_run.status()
        if status["state"] == "succeeded":
            return {"do": "stop"}
        raise failed(status)


def _in_thread(name: str, act: Callable[[], T]) -> T:
    """Ask the JVM in a thread of its own: Ctrl-C in a thread that waits for the JVM would break its connection."""
    from pyspark import InheritableThread

    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:  # noqa: BLE001  raised again below
            errors.append(error)

    thread = InheritableThread(target=run, daemon=True, name=name)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _refused(error: Exception) -> BadInput | EngineFailed | None:
    """Return our error for Spark's of a feeder that refused something, which has pages of stacks around the words; None for any other."""
    words = str(error)
    if (refused := _REFUSED.search(words)) is None:
        return None
    partition = f"partition {task[1]}, " if (task := _TASK.search(words)) else ""
    message = f"{partition}{refused[2]}"
    if refused[1] == FeedError.__name__:
        return EngineFailed(message)
    return BadInput(message, mend="give all rows one type and shape", anchor="feed-rows")


def link_of(run: Run, name: str, role: str | None = None) -> dict[str, Any]:
    """Return how feeders reach a job's master, once there is one, and what they feed. Raises BadInput where the job has no such feed."""
    from trainmaster.client.jobs.past import described
    from trainmaster.client.jobs.places import job_storage, master_socket
    from trainmaster.core.input.feed_tokens import feed_token
    from trainmaster.log.documents.jobs import place_of, read_certificate, read_token
    from trainmaster.log.epochs import read_master
    from trainmaster.log.storage import storage_for

    job = run.id
    roles = [known.name for known in described(job).roles.values() if name in known.feed and not known.feed[name].share]
    if (role is None and len(roles) != 1) or (role is not None and role not in roles):
        raise BadInput(
            f"{job} has {len(roles)} roles with a feed {name!r}" if role is None else f"role {role} of {job} has no feed {name!r}",
            place=f"roles.{role or 'ROLE'}.feed", mend=f"name the role: {', '.join(roles)}" if roles else f"add {{{name}: }} to its job",
            anchor="no-feed",
        )  # fmt: skip
    folder = job_storage(job)
    token = read_token(folder)
    role = roles[0] if role is None else role
    batch = min(SIZE, described(job).roles[role].feed[name].memory // 4)  # a ring takes batches of up to a third
    link = {"job": job, "token": feed_token(token, role, name), "role": role, "feed": name, "batch": batch}
    storage, socket = storage_for(place_of(folder)), master_socket(job)
    while not socket.exists():
        if (record := read_master(storage, token)) is not None:
            if record.addresses[0].startswith("unix:"):
                return {**link, "socket": record.addresses[0].removeprefix("unix:")}
            certificate = read_certificate(folder)
            return {**link, "addresses": list(record.addresses), "certificate": certificate}
        if (status := run.status())["state"] in ("succeeded", "failed", "killed"):
            raise failed(status)
        time.sleep(_LOOK)  # its master is about to begin
    return {**link, "socket": str(socket)}


def _ship(context: Any) -> None:
    """Bring the executors what feeders need: `trainmaster.runtime`, for the end of their path."""
    with _shipping:  # Spark takes one file of a name
        if context.applicationId in _shipped:
            return
        folder = scratch("trainmaster-feed-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        source = Path(runtime_feed.__file__).parents[1]
        with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trainmaster/", "")  # a namespace in an archive needs an entry of its own (zipimport)
            for path in sorted(source.rglob("*.py")):
                archive.write(path, os.path.join("trainmaster", "runtime", path.relative_to(source)))
        context.addFile(str(folder / ARCHIVE))
        _shipped.add(context.applicationId)


def _send_by_value() -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    for module in (java, feeding):
        register_pickle_by_value(module)
