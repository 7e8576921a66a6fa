"""Carry out in a driver what the masters of jobs ask, and pass on what Spark tells of it.

A container is a Spark job of one task, which a thread of its own submits, under a tag that says whose it is. The bridge decides nothing of
a job of ours: its master does, in a process of its own. It keeps three rules alone. Spark is asked for a container in the order, and at the
time, that the line of all jobs says (`line`). A job whose master is gone has its Spark jobs cancelled. And once a container's task has
ended, its Spark job is cancelled, so that Spark begins no second attempt.

Master to bridge, one line of JSON each:

    {"verb": "follow", "job": JOB, "token": TOKEN}      first; the connection is the master's from then on
    {"asks": [{"ask": [TASK, SERIAL], "spec": {...}, "amounts": {"cores": N, ...}, "memory": BYTES, "gang": NAME, "is_growth": BOOL,
     "rank": [N, N], "environ": {...}}, ...]}           together, for the line sizes a gang by what it is asked for
    {"release": [TASK, SERIAL], "within": SECONDS}      a task that has not begun is cancelled now, any other in so many seconds
    {"close": STATE, "within": SECONDS}                 the job is over; what still runs is cancelled in so many seconds

Bridge to master:

    {"chosen": [[TASK, SERIAL], ...]}                   these are asked for now
    {"started": [TASK, SERIAL], "event": {...}}         Spark's SparkListenerTaskStart
    {"ended": [TASK, SERIAL], "status": STATUS}         the agent's exit status
    {"ended": [TASK, SERIAL], "event": {...}}           Spark's SparkListenerTaskEnd of a task that failed
    {"ended": [TASK, SERIAL], "error": TEXT}            Spark did not run the task
    {"warned": [TASK, SERIAL], "executor": TEXT}        Spark is taking its executor away
    {"waits": {"asks": [[TASK, SERIAL], ...], "asked": TEXT, "free": TEXT, "detail": TEXT, "is_lacking": BOOL}}     or null: for nothing
    {"over": TEXT}                                      the application ends, in words; last
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import shutil
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from trainmaster.engines.spark.bridge import container, executors, line
from trainmaster.engines.spark.bridge.line import Ask, Claim, Executor
from trainmaster.engines.spark.bridge.listener import Listener
from trainmaster.engines.spark.wire import folder, read, short_path
from trainmaster.engines.spark.wire import line as encoded
from trainmaster.host import java
from trainmaster.host.locks import scratch
from trainmaster.runtime.network.listeners import BRIDGE

EVENT_WITHIN = 10.0  # s in which Spark's event of a task's end follows the error of its job
PULSE = 1.0  # s between two looks at the executors, while something waits
BEGINS_WITHIN = 3.0  # s after which a task that Spark was asked for is said to wait
JVM_DIED = "the JVM of its driver died"
STOPS_WITHIN = 10.0  # s for the context of a driver that ends
LAST_TASKS = 30.0  # s for the tasks of a job that is over; they are cancelled before
Key = tuple[str, int]
log = logging.getLogger(__name__)
_bridges: dict[str, Bridge] = {}
_opening = threading.Lock()


@attrs.define(eq=False)
class Task:
    """One container: a Spark job of one task."""

    tag: str
    ask: Ask
    order: Mapping[str, Any]  # the master's message
    submitted: float | None = None  # when Spark was asked, by the monotonic clock
    executor: str = ""  # whose task it is, once that has begun
    is_warned: bool = False
    stages: list[int] = attrs.field(factory=list)
    spark_job: int | None = None
    is_cancelled: bool = False
    has_ended: bool = False  # and its master knows
    over: threading.Event = attrs.field(factory=threading.Event)  # Spark has reported the end of the job


@attrs.define(eq=False)
class Job:
    """A job of ours."""

    id: str
    token: str
    files: Sequence[Sequence[Any]]  # name in the container, name at Spark, whether it is unpacked
    pool: str
    tasks: dict[Key, Task] = attrs.field(factory=dict)
    connection: socket.socket | None = None  # the master's
    state: str = "submitting"
    waits: dict[str, Any] | None = None  # as it was sent to its master
    sending: threading.Lock = attrs.field(factory=threading.Lock)
    has_left: threading.Event = attrs.field(factory=threading.Event)  # its state is final

    def tell(self, **message: Any) -> None:
        """Send to the master, where it is still there."""
        with self.sending, contextlib.suppress(OSError):
            if self.connection is not None:
                self.connection.sendall(encoded(message))


class Call(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        try:
            self._answer(read(self.rfile))
        except (OSError, ValueError) as error:  # it has gone, or is not ours
            log.warning("a connection was closed: %s", error)

    def _answer(self, question: dict[str, Any]) -> None:
        if not question:  # somebody looked whether there is a bridge
            return
        verb, bridge = question.pop("verb", ""), self.server.bridge
        if verb == "follow":
            bridge.follow(self.connection, self.rfile, str(question.get("job")), str(question.get("token")))
            return
        try:
            answer = {"answer": getattr(bridge, f"answer_{verb}")(**question)}
        except Exception as error:  # whoever asks reads it
            log.warning("%s could not be answered", verb, exc_info=True)
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(encoded(answer))


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, bridge: Bridge) -> None:
        self.bridge = bridge
        super().__init__(path, Call, bind_and_activate=False)
        self.socket.close()
        self.socket = BRIDGE.at_path(path)


def bridge_of(context: Any, only: str = "") -> Bridge:
    """Return the bridge of a SparkContext; open it where it is not open yet. `only`: the one job that it takes."""
    with _opening:
        application = str(context.applicationId)
        if application not in _bridges:
            _bridges[application] = Bridge(context, only)
        return _bridges[application]


def slots_beside_jobs(context: Any) -> int | None:
    """Return how many of Spark's own tasks fit beside those of jobs, whatever else runs; None where no job is here, or executors come as
    they are needed.
    """
    bridge = _bridges.get(str(context.applicationId))
    return None if bridge is None or bridge.grows else bridge.slots_left()


def holders_of_slots(context: Any) -> list[tuple[str, str]]:
    """Return the jobs that have tasks in the application, and their states."""
    bridge = _bridges.get(str(context.applicationId))
    return [] if bridge is None else bridge.holders()


class Bridge:
    """The bridge of one application, for the life of its context."""

    def __init__(self, context: Any, only: str = "") -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        self.application = str(context.applicationId)
        self._context, self._only, self._jobs = context, only, dict[str, Job]()
        self._by_tag: dict[str, tuple[Job, Key]] = {}
        self._by_stage: dict[int, Task] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._wake, self._is_over = threading.Event(), False
        self.grows = executors.is_true(context, "spark.dynamicAllocation.enabled")
        self._speculates = executors.is_true(context, "spark.speculation")
        self._decommissions = executors.is_true(context, "spark.decommission.enabled")
        for module in (java, container):
            register_pickle_by_value(module)  # executors have nothing of ours
        self._shipped = scratch("trainmaster-spark-bridge-")
        context._jsc.sc().env()  # raises where the context is stopped
        self._listener = Listener(context, self)
        place = folder()
        directory = os.open(place, os.O_PATH)
        self._socket = place / f"{self.application}.sock"
        self._socket.unlink(missing_ok=True)  # of another cluster's application, long dead
        try:
            self._server = Server(short_path(self.application, directory), self)
        finally:
            os.close(directory)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="trainmaster-bridge").start()
        threading.Thread(target=self._serve_line, daemon=True, name="trainmaster-line").start()
        atexit.register(self._end_with_driver)

    # -- questions --

    def answer_submit(self, job: str, token: str, files: Sequence[Sequence[Any]], pool: str) -> dict[str, Any]:
        """Take a job whose master will follow. `files`: name in the container, path here, whether it is unpacked."""
        if self._only not in ("", job):
            raise PermissionError(f"it is that of {self._only} alone")
        shipped = [
            (
                name,
                self._ship(Path(path).name if name == "runtime" else f"{job}-{number}-{Path(path).name}", path),
                is_archive,
            )
            for number, (name, path, is_archive) in enumerate(files)
        ]
        with self._lock:
            self._jobs[job] = Job(job, token, shipped, pool)
        page = executors.page(self._context)
        print(
            f"trainmaster: job {job}: tm status {job}, tm ui; its tasks: {page or 'no page of Spark'}", file=sys.stderr
        )
        return {"address": self._context.getConf().get("spark.driver.host"), "page": page}

    def answer_state(self, job: str) -> str:
        """Return `submitting`, `running`, `ended` or `failed` (its master is gone); `unknown`."""
        return self._jobs[job].state if job in self._jobs else "unknown"

    def answer_is_open(self) -> bool:
        """Tell whether the application takes jobs: one that was started for a job takes no other."""
        return not self._only

    def answer_jobs(self) -> list[str]:
        return list(self._jobs)

    def answer_free(self) -> list[dict[str, Any]]:
        """Return the executors with what our tasks and others leave free."""
        with self._lock:
            claims = [claim for claim, _ in self._claims()]
        return [
            {
                "id": executor.id,
                "host": executor.host,
                "amounts": executor.amounts,
                "free": line.free_of(executor, claims),
            }
            for executor in executors.read(self._context)
            if not executor.is_excluded
        ]

    def slots_left(self) -> int:
        """Return how many tasks as large as Spark's own fit beside ours."""
        with self._lock:
            claims = [claim for claim, _ in self._claims()]
        conf = dict(self._context.getConf().getAll())
        amounts = executors.share(conf, {line.CORES: executors.task_cpus(self._context)})
        return line.slots(executors.read(self._context), claims, amounts)

    def holders(self) -> list[tuple[str, str]]:
        """Return the jobs that Spark was asked for containers of, oldest first, with their states."""
        with self._lock:
            names = {claim.ask.job for claim, _ in self._claims()}
            return [(job.id, job.state) for job in self._jobs.values() if job.id in names]

    def answer_conf(self) -> dict[str, str]:
        """Return the properties that limit what executors grant."""
        beginnings = ("spark.master", "spark.executor.", "spark.dynamicAllocation.")
        return {name: value for name, value in self._context.getConf().getAll() if name.startswith(beginnings)}

    def answer_end(self, job: str) -> None:
        """Cancel all of a job, and end its master's connection."""
        if job in self._jobs:
            self._leave(self._jobs[job], "ended")

    def wait_for_end(self, job: str) -> str:
        """Wait until a job has ended and nothing of it runs any more; returns its state."""
        ours = self._jobs[job]
        ours.has_left.wait()
        end = time.monotonic() + LAST_TASKS
        while any(not task.has_ended for task in list(ours.tasks.values())) and time.monotonic() < end:
            time.sleep(0.1)
        return ours.state

    def _ship(self, name: str, path: str) -> str:
        """Have Spark bring a file to its executors, and return its name there. The runtime is there for all jobs."""
        name += container.PLAIN
        place = self._shipped / name
        with self._lock:
            if not place.exists():
                shutil.copyfile(path, place)
                self._context.addFile(str(place))
        return name

    # -- masters --

    def follow(self, connection: socket.socket, reader: Any, job: str, token: str) -> None:
        """Serve a job's master until its end."""
        ours = self._jobs.get(job)
        if ours is None or ours.token != token or ours.connection is not None or ours.has_left.is_set():
            return  # its end tells
        ours.connection, ours.state = connection, "running"
        try:
            while message := read(reader):
                self._obey(ours, message)
        except OSError:
            pass  # as its end
        finally:
            self._leave(ours, "failed")

    def _obey(self, job: Job, message: Mapping[str, Any]) -> None:
        if "asks" in message:
            self._start(job, message["asks"])
        elif "release" in message:
            task, serial = message["release"]
            if (ours := job.tasks.get((task, serial))) is not None:
                self._release(ours, message["within"])
        elif "close" in message:
            self._leave(job, "ended", message["within"])

    def _release(self, task: Task, within: float) -> None:
        """Cancel a container that has not begun; any other has so many seconds to end by itself."""
        if task.has_ended:
            return
        if not task.executor or not within:
            self._cancel(task)
            return
        timer = threading.Timer(within, self._cancel, (task,))
        timer.daemon = True
        timer.start()

    def _leave(self, job: Job, state: str, within: float = 0.0) -> None:
        """End what is left of a job: it is over, or its master is gone."""
        with self._lock:
            if job.state in ("submitting", "running"):
                job.state = state
            connection, job.connection = job.connection, None
            tasks = list(job.tasks.values())
        for task in tasks:
            self._release(task, within)
        job.has_left.set()
        self._forget(job)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # -- containers --

    def _start(self, job: Job, orders: Sequence[Mapping[str, Any]]) -> None:
        """Put containers into the line, all at once: of a gang of which a part is in it, that part would be begun."""
        conf = dict(self._context.getConf().getAll())
        with self._lock:
            for order in orders:
                task_name, serial = order["ask"]
                amounts, rank = executors.share(conf, order["amounts"]), (*order["rank"], next(self._numbers))
                ask = Ask(job.id, task_name, serial, amounts, order["gang"], order["is_growth"], rank)
                task = Task(f"trainmaster-{job.id}-{task_name}-{serial}", ask, order)
                job.tasks[task_name, serial] = task
                self._by_tag[task.tag] = job, (task_name, serial)
        self._wake.set()

    def _serve_line(self) -> None:
        """Ask Spark for containers as the line says, and tell masters why the others wait, until the application ends."""
        while not self._is_over:
            self._wake.wait(PULSE if self._has_work() else None)
            self._wake.clear()
            try:
                present = executors.read(self._context)
            except Exception as error:  # noqa: BLE001  the context is stopped, or stops
                log.info("the executors are unknown: %s", first_line(error))
                if executors.is_jvm_dead(self._context):
                    self.application_ended(JVM_DIED)
                continue
            with self._lock:
                chosen = line.choose(present, [claim for claim, _ in self._claims()], self._asks(), self.grows)
                for job in {ask.job: self._jobs[ask.job] for ask in chosen}.values():
                    job.tell(chosen=[(ask.task, ask.serial) for ask in chosen if ask.job == job.id])
                for ask in chosen:
                    self._submit(self._jobs[ask.job], (ask.task, ask.serial))
                self._tell_waits(present)
            if self._decommissions:
                self._warn()

    def _has_work(self) -> bool:
        with self._lock:
            return bool(self._asks()) or any(not claim.executor or self._decommissions for claim, _ in self._claims())

    def _asks(self) -> list[Ask]:
        tasks = [task for job in self._jobs.values() for task in job.tasks.values()]
        return [task.ask for task in tasks if task.submitted is None and not task.is_cancelled]

    def _claims(self) -> list[tuple[Claim, Task]]:
        tasks = [task for job in self._jobs.values() for task in job.tasks.values()]
        return [
            (Claim(task.ask, task.executor), task)
            for task in tasks
            if task.submitted is not None and not task.has_ended
        ]

    def _tell_waits(self, present: Sequence[Executor]) -> None:
        claims, asks, late = self._claims(), self._asks(), time.monotonic() - BEGINS_WITHIN
        for job in list(self._jobs.values()):
            pending = [
                claim.ask
                for claim, task in claims
                if claim.ask.job == job.id and not claim.executor and (task.submitted or late) < late
            ]
            wait = line.wait(
                present, [claim for claim, _ in claims], [ask for ask in asks if ask.job == job.id], pending
            )
            waits = None
            if wait is not None:
                advice = f"; ask for less, or {executors.more_slots(self._context)}" if wait.is_lacking else ""
                waits = {
                    "asks": [(ask.task, ask.serial) for ask in wait.asks],
                    "asked": wait.need,
                    "free": wait.free,
                    "detail": wait.detail + advice,
                    "is_lacking": wait.is_lacking,
                }
            if waits != job.waits:
                job.waits = waits
                job.tell(waits=waits)

    def _warn(self) -> None:
        """Warn the masters whose containers are on an executor that Spark takes away."""
        with self._lock:
            claims = self._claims()
        for claim, task in claims:
            if claim.executor and not task.is_warned and executors.is_decommissioned(self._context, claim.executor):
                task.is_warned = True
                job, key = self._by_tag[task.tag]
                job.tell(warned=key, executor=claim.executor)

    def _submit(self, job: Job, key: Key) -> None:
        from pyspark import InheritableThread

        task = job.tasks[key]
        task.submitted = time.monotonic()
        InheritableThread(target=self._run, args=(job, key, task), daemon=True, name=task.tag).start()

    def _run(self, job: Job, key: Key, task: Task) -> None:
        """Submit the Spark job of a container, and wait for its end."""
        context, order = self._context, task.order
        try:
            context.setJobDescription(f"{job.id} {key[0]}")
            context.setLocalProperty("spark.scheduler.pool", job.pool)
            context.addJobTag(task.tag)
            if task.is_cancelled:
                raise InterruptedError("withdrawn")
            row = executors.single(context, order["amounts"], order["memory"])
            run = partial(container.run, order["spec"], job.files, order["environ"], self._speculates)
            [status] = row.mapPartitions(run).collect()
            if status is not None:
                self._end(job, key, status=status)
        except Exception as error:  # noqa: BLE001  Spark's own errors, and those of a stopped context
            if executors.is_jvm_dead(self._context):
                self.application_ended(JVM_DIED)
                return
            task.over.wait(EVENT_WITHIN if task.stages else 0)  # the event of the task's end says more
            self._end(job, key, error=first_line(error))

    def _end(self, job: Job, key: Key, **end: Any) -> None:
        """Tell the master the end of a container, once."""
        with self._lock:
            task = job.tasks.get(key)
            if task is None or task.has_ended:
                return
            task.has_ended = True
        job.tell(ended=key, **end)
        if "status" not in end:
            self._cancel(task)
        self._forget(job)
        self._wake.set()

    def _forget(self, job: Job) -> None:
        """Keep no more than the state of a job that is over: an application may run any number of them."""
        with self._lock:
            if job.has_left.is_set() and all(task.has_ended for task in job.tasks.values()):
                for task in job.tasks.values():
                    self._by_tag.pop(task.tag, None)
                job.tasks, job.token, job.files = {}, "", ()

    def _cancel(self, task: Task) -> None:
        """Cancel a container's Spark job, now or as soon as there is one."""
        with self._lock:
            task.is_cancelled = True
            if task.submitted is None:
                task.has_ended = True
                self._wake.set()
                return
        try:
            self._context.cancelJobsWithTag(task.tag)
        except Exception as error:  # noqa: BLE001  the context is stopped, or stops
            log.info("%s is not cancelled: %s", task.tag, first_line(error))

    # -- Spark's events --

    def job_started(self, job: int, stages: list[int], tags: list[str]) -> None:
        for tag in tags:
            if tag in self._by_tag:
                ours, key = self._by_tag[tag]
                task = ours.tasks[key]
                task.spark_job, task.stages = job, stages
                self._by_stage |= dict.fromkeys(stages, task)
                if task.is_cancelled:
                    self._cancel(task)

    def has_stage(self, stage: int) -> bool:
        return stage in self._by_stage

    def task_started(self, event: dict[str, Any]) -> None:
        task = self._by_stage[event["Stage ID"]]
        if _is_first(event):
            task.executor = str(event["Task Info"]["Executor ID"])
            job, key = self._by_tag[task.tag]
            job.tell(started=key, event=event)

    def task_ended(self, event: dict[str, Any]) -> None:
        task = self._by_stage[event["Stage ID"]]
        if _is_first(event) and event["Task End Reason"]["Reason"] != "Success" and not task.has_ended:
            job, key = self._by_tag[task.tag]
            self._end(job, key, event=event)

    def executors_changed(self) -> None:
        self._wake.set()

    def job_ended(self, job: int) -> None:
        for stage in [stage for stage, task in self._by_stage.items() if task.spark_job == job]:
            self._by_stage[stage].over.set()
            del self._by_stage[stage]

    def _end_with_driver(self) -> None:
        """Stop the context of a driver that ends without that: its listener could tell Spark nothing any more, which Spark would log."""
        self.application_ended()
        stopping = threading.Thread(target=self._stop_context, daemon=True)
        stopping.start()
        stopping.join(STOPS_WITHIN)

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):  # the JVM is gone
            self._context.stop()

    def application_ended(self, why: str = "its SparkContext was stopped") -> None:
        """Close the bridge: the context is stopped, or the driver ends."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._wake.set()
        atexit.unregister(self._end_with_driver)
        with _opening:  # a new bridge of the same application makes its socket at the same path
            _bridges.pop(self.application, None)
            self._socket.unlink(missing_ok=True)
        for job in list(self._jobs.values()):
            job.tell(over=why)
            connection, job.connection = job.connection, None
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._server.server_close()
        shutil.rmtree(self._shipped, ignore_errors=True)


def _is_first(event: Mapping[str, Any]) -> bool:
    """Tell whether an event is of a task's first attempt: later ones, by Spark's retry or speculation, are not containers."""
    return not event["Task Info"]["Attempt"]


def first_line(error: Exception) -> str:
    """Return an error's own line. Those of the JVM are the second line of py4j's, and go on with their stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])[:500]
