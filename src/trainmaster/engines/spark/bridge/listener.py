"""Spark's own events, as the bridge needs them. Spark calls these methods from one thread, in order, over py4j.

Each call takes the driver's Python a moment, so of an event of somebody else's stage only the number is read. The names of the
methods are Spark's.

py4j carries the calls over a port of 127.0.0.1 (`listeners.CALLBACKS`), to which every user of the machine and every page of the web can
write. The port asks for no token, and py4j numbers its objects: ours would be `p0`. So each object gets a name that only the JVM knows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any, Protocol

TAGS = "spark.job.tags"  # the property of a job with its tags, commas between them


class Events(Protocol):
    """The receiver of the events."""

    def job_started(self, job: int, stages: list[int], tags: list[str]) -> None: ...

    def has_stage(self, stage: int) -> bool: ...

    def task_started(self, event: dict[str, Any]) -> None: ...

    def task_ended(self, event: dict[str, Any]) -> None: ...

    def job_ended(self, job: int) -> None: ...

    def executors_changed(self) -> None: ...

    def application_ended(self) -> None: ...


class Listener:
    """A `SparkListenerInterface`. `events`: who is called."""

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)

    def __init__(self, context: Any, events: Events) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        self._events, self._protocol = events, context._jvm.org.apache.spark.util.JsonProtocol
        name_unguessably(context._gateway.gateway_property.pool)
        ensure_callback_server_started(context._gateway)
        context._jsc.sc().addSparkListener(self)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on"):
            raise AttributeError(name)
        return _ignore

    def onJobStart(self, event: Any) -> None:
        tags = event.properties().getProperty(TAGS) if event.properties() is not None else None
        if tags:
            stages = event.stageIds()
            numbers = [int(stages.apply(number)) for number in range(stages.size())]
            self._events.job_started(int(event.jobId()), numbers, str(tags).split(","))

    def onTaskStart(self, event: Any) -> None:
        if self._events.has_stage(int(event.stageId())):
            self._events.task_started(self._plain(event))

    def onTaskEnd(self, event: Any) -> None:
        if self._events.has_stage(int(event.stageId())):
            self._events.task_ended(self._plain(event))

    def onJobEnd(self, event: Any) -> None:
        self._events.job_ended(int(event.jobId()))

    def onExecutorAdded(self, event: Any) -> None:
        self._events.executors_changed()

    onExecutorRemoved = onExecutorExcluded = onExecutorUnexcluded = onNodeExcluded = onNodeUnexcluded = onExecutorAdded

    def onApplicationEnd(self, event: Any) -> None:
        self._events.application_ended()

    def _plain(self, event: Any) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(self._protocol.sparkEventToJsonString(event))
        return plain


def name_unguessably(pool: Any) -> None:
    """Have py4j's pool of Python objects give every further object a name of 256 random bits, which a caller must know."""
    if "put" not in vars(pool):  # else it does so already, for an earlier context of this gateway
        put = pool.put
        pool.put = lambda proxy, force_id=None: put(proxy, force_id or f"p{secrets.token_hex(32)}")


def _ignore(*_: Any) -> None:
    """Ignore an event that does not concern us."""
