"""Carry out in a driver what the masters of jobs ask, and pass on what Spark tells of it.

A container is a Spark job of one task, which a thread of its own submits, under a tag that says whose it is. The bridge decides nothing of
a job of ours: its master does, in a process of its own. It keeps two rules alone. A job whose master is gone has its Spark jobs cancelled.
And once a container's task has ended, its Spark job is cancelled, so that Spark begins no second attempt.

Master to bridge, one line of JSON each:

    {"verb": "follow", "job": JOB, "token": TOKEN}      first; the connection is the master's from then on
    {"ask": [TASK, SERIAL], "spec": {...}, "cpus": N, "gpus": N, "environ": {...}}
    {"release": [TASK, SERIAL], "within": SECONDS}      a task that has not begun is cancelled now, any other in so many seconds
    {"close": STATE, "within": SECONDS}                 the job is over; what still runs is cancelled in so many seconds

Bridge to master:

    {"started": [TASK, SERIAL], "event": {...}}         Spark's SparkListenerTaskStart
    {"ended": [TASK, SERIAL], "status": STATUS}         the agent's exit status
    {"ended": [TASK, SERIAL], "event": {...}}           Spark's SparkListenerTaskEnd of a task that failed
    {"ended": [TASK, SERIAL], "error": TEXT}            Spark did not run the task
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from trainmaster.engines.spark.bridge import container, rows
from trainmaster.engines.spark.bridge.listener import Listener
from trainmaster.engines.spark.wire import folder, line, short_path

EVENT_WITHIN = 10.0  # s in which Spark's event of a task's end follows the error of its job
Key = tuple[str, int]
log = logging.getLogger(__name__)
_bridges: dict[str, Bridge] = {}
_opening = threading.Lock()


@attrs.define(eq=False)
class Task:
    """One container: a Spark job of one task."""

    tag: str
    stages: list[int] = attrs.field(factory=list)
    spark_job: int | None = None
    is_cancelled: bool = False
    has_started: bool = False
    has_ended: bool = False  # and its master was told
    over: threading.Event = attrs.field(factory=threading.Event)  # Spark has told the end of the job


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

    def tell(self, **message: Any) -> None:
        """Send to the master, where it is still there."""
        with contextlib.suppress(OSError):
            if self.connection is not None:
                self.connection.sendall(line(message))


class Call(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        content = self.rfile.readline()
        if not content:  # somebody looked whether the application lives
            return
        question = json.loads(content)
        verb, bridge = question.pop("verb", ""), self.server.bridge
        if verb == "follow":
            bridge.follow(self.connection, self.rfile, **question)
            return
        try:
            answer = {"answer": getattr(bridge, f"answer_{verb}")(**question)}
        except Exception as error:  # whoever asks reads it
            log.warning("%s could not be answered", verb, exc_info=True)
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(line(answer))


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads, request_queue_size = True, 128

    def __init__(self, path: str, bridge: Bridge) -> None:
        self.bridge = bridge
        super().__init__(path, Call)


def bridge_of(context: Any) -> Bridge:
    """Return the bridge of a SparkContext; open it where it is not open yet."""
    with _opening:
        application = str(context.applicationId)
        if application not in _bridges:
            _bridges[application] = Bridge(context)
        return _bridges[application]


class Bridge:
    """The bridge of one application, for the life of its context."""

    def __init__(self, context: Any) -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        self.application = str(context.applicationId)
        self._context, self._jobs = context, dict[str, Job]()
        self._by_tag: dict[str, tuple[Job, Key]] = {}
        self._by_stage: dict[int, Task] = {}
        self._lock = threading.RLock()
        register_pickle_by_value(container)  # executors have nothing of ours
        self._shipped = Path(tempfile.mkdtemp(prefix="trainmaster-spark-"))
        context._jsc.sc().env()  # raises where the context is stopped
        self._listener = Listener(context, self)
        place = folder()
        directory = os.open(place, os.O_PATH)
        self._socket = place / f"{self.application}.sock"
        self._socket.unlink(missing_ok=True)  # of another cluster's application, long dead
        self._server = Server(short_path(self.application, directory), self)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="trainmaster-bridge").start()
        atexit.register(self.application_ended)

    # -- questions --

    def answer_submit(self, job: str, token: str, files: Sequence[Sequence[Any]], pool: str) -> dict[str, Any]:
        """Take a job whose master will follow. `files`: name in the container, path here, whether it is unpacked."""
        shipped = [(name, self._ship(job, name, Path(path)), is_archive) for name, path, is_archive in files]
        with self._lock:
            self._jobs[job] = Job(job, token, shipped, pool)
        return {"address": self._context.getConf().get("spark.driver.host")}

    def answer_state(self, job: str) -> str:
        """Return `submitting`, `running`, `ended` or `failed` (its master is gone); `unknown`."""
        return self._jobs[job].state if job in self._jobs else "unknown"

    def answer_jobs(self) -> list[str]:
        return list(self._jobs)

    def answer_free(self) -> list[dict[str, Any]]:
        return rows.of(self._context)

    def answer_end(self, job: str) -> None:
        """Cancel all of a job, and end its master's connection."""
        if job in self._jobs:
            self._leave(self._jobs[job], "ended")

    def _ship(self, job: str, name: str, path: Path) -> str:
        """Have Spark bring a file to its executors, and return its name there. The runtime is named by its content."""
        shipped = path.name if name == "runtime" else f"{job}-{path.name}"
        place = self._shipped / shipped
        with self._lock:
            if not place.exists():
                shutil.copyfile(path, place)
                self._context.addFile(str(place))
        return shipped

    # -- masters --

    def follow(self, connection: socket.socket, reader: Any, job: str, token: str) -> None:
        """Serve a job's master until its end."""
        ours = self._jobs.get(job)
        if ours is None or ours.token != token or ours.connection is not None:
            return  # its end tells
        ours.connection, ours.state = connection, "running"
        try:
            while message := reader.readline():
                self._obey(ours, json.loads(message))
        except OSError:
            pass  # as its end
        finally:
            self._leave(ours, "failed")

    def _obey(self, job: Job, message: Mapping[str, Any]) -> None:
        if "ask" in message:
            task, serial = message["ask"]
            self._start(job, (task, serial), message)
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
        if not task.has_started or not within:
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
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # -- containers --

    def _start(self, job: Job, key: Key, order: Mapping[str, Any]) -> None:
        from pyspark import InheritableThread

        task = Task(f"trainmaster-{job.id}-{key[0]}-{key[1]}")
        with self._lock:
            job.tasks[key] = task
            self._by_tag[task.tag] = job, key
        thread = InheritableThread(target=self._run, args=(job, key, task, order), daemon=True, name=task.tag)
        thread.start()

    def _run(self, job: Job, key: Key, task: Task, order: Mapping[str, Any]) -> None:
        """Submit the Spark job of a container, and wait for its end."""
        context = self._context
        try:
            context.setJobDescription(f"{job.id} {key[0]}")
            context.setLocalProperty("spark.scheduler.pool", job.pool)
            context.addJobTag(task.tag)
            if task.is_cancelled:
                raise InterruptedError("withdrawn")
            row = rows.single(context, int(order["cpus"]), int(order["gpus"]))
            run = partial(container.run, order["spec"], job.files, order["environ"])
            [status] = row.mapPartitions(run).collect()
            if status is not None:
                self._end(job, key, status=status)
        except Exception as error:  # noqa: BLE001  Spark's own errors, and those of a stopped context
            task.over.wait(EVENT_WITHIN if task.stages else 0)  # the event of the task's end says more
            self._end(job, key, error=first_line(error))

    def _end(self, job: Job, key: Key, **end: Any) -> None:
        """Tell the master the end of a container, once."""
        with self._lock:
            task = job.tasks[key]
            if task.has_ended:
                return
            task.has_ended = True
        job.tell(ended=key, **end)
        if "status" not in end:
            self._cancel(task)

    def _cancel(self, task: Task) -> None:
        """Cancel a container's Spark job, now or as soon as there is one."""
        task.is_cancelled = True
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
        if not task.has_started:
            task.has_started = True
            job, key = self._by_tag[task.tag]
            job.tell(started=key, event=event)

    def task_ended(self, event: dict[str, Any]) -> None:
        task = self._by_stage[event["Stage ID"]]
        if event["Task End Reason"]["Reason"] != "Success":
            job, key = self._by_tag[task.tag]
            self._end(job, key, event=event)

    def job_ended(self, job: int) -> None:
        for stage in [stage for stage, task in self._by_stage.items() if task.spark_job == job]:
            self._by_stage[stage].over.set()
            del self._by_stage[stage]

    def application_ended(self) -> None:
        """Close the bridge: the context is stopped, or the driver ends."""
        atexit.unregister(self.application_ended)
        with _opening:
            _bridges.pop(self.application, None)
        self._socket.unlink(missing_ok=True)
        for job in list(self._jobs.values()):
            connection, job.connection = job.connection, None
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._server.server_close()
        shutil.rmtree(self._shipped, ignore_errors=True)


def first_line(error: Exception) -> str:
    """Return an error's first line: those of the JVM go on with its stack."""
    return str(error).strip().partition("\n")[0][:500]
