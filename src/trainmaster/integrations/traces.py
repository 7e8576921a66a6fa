"""A job as one OpenTelemetry trace: the job, its attempts, and the phases of each; moments of the time line are events of the job's span.

Ids are digests of the job's id, so a job that is published twice is one trace. OpenTelemetry's own exporter sends the spans over OTLP; it
reads OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE and its like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.timeline import Attempt, Timeline

_BATCH = 512  # spans of a request, as OpenTelemetry's own batches have: collectors refuse bodies of some MiB


@attrs.frozen
class Phase:
    """One span. `path` names it among the job's: its parent's path, and its own name. Times in seconds since 1970."""

    path: tuple[str, ...]
    begin: float
    end: float
    attributes: Mapping[str, str | int | float | bool]
    failed: str = ""  # why, in words
    moments: tuple[tuple[float, str, Mapping[str, str]], ...] = ()


def phases(status: Mapping[str, Any], description: Mapping[str, Any], timeline: Timeline) -> Iterator[Phase]:
    """Yield the spans of a job, parents first. A span that goes on still ends with the log's last event."""
    job, end = str(status["job"]), status["ended"] or max(status["at"], timeline.at)
    reason = status["reason"] or {}
    yield Phase(
        (job,), status["submitted"], end,
        {
            "trainmaster.job": job, "trainmaster.name": status["name"], "trainmaster.state": status["state"],
            "trainmaster.restarts": status["restarts"], "trainmaster.engine": str(description.get("engine") or ""),
            "enduser.id": str(description.get("user") or ""),
        },
        str(reason.get("words", "")) if status["state"] in ("failed", "killed") else "",
        tuple((mark.at, mark.kind, {"text": mark.text, "task": mark.task}) for mark in timeline.marks),
    )  # fmt: skip
    for attempt in timeline.attempts.values():
        if attempt.began is not None:
            yield from _of_attempt(job, attempt, end)


def _of_attempt(job: str, attempt: Attempt, last: float) -> Iterator[Phase]:
    begin, end = attempt.began or 0.0, attempt.ended or last
    path = (job, f"{attempt.task} attempt {attempt.attempt}")
    yield Phase(
        path, begin, end,
        {
            "trainmaster.task": attempt.task, "trainmaster.attempt": attempt.attempt, "trainmaster.generation": attempt.generation,
            "trainmaster.reason": attempt.reason, "host.name": attempt.node, "container.id": attempt.container,
        },
        attempt.reason if attempt.state in ("failed", "lost") else "",
    )  # fmt: skip
    steps = [
        ("staging", begin, attempt.ready),
        ("starting", attempt.ready, attempt.started),
        ("running", attempt.started, end),
    ]
    for name, start, stop in steps:
        if start is not None:
            yield Phase((*path, name), start, min(end, stop if stop is not None else end), {})


def publish(spans: list[Phase], endpoint: str) -> int:
    """Send the spans to an OTLP endpoint (HTTP, like http://localhost:4318); return how many there were.

    Raises BadInput where the extra is missing, EngineFailed where the endpoint does not take them.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError as error:
        raise BadInput(
            "the extra otel is not installed here",
            mend="in a clone of Trainmaster: pip install '.[otel]'",
            anchor="extra-missing",
        ) from error
    exporter: Any = OTLPSpanExporter(endpoint.rstrip("/") + "/v1/traces")
    resource = Resource.create({"service.name": "trainmaster", "service.instance.id": spans[0].path[0]})
    try:
        for begin in range(0, len(spans), _BATCH):
            batch = [_readable(phase, resource) for phase in spans[begin : begin + _BATCH]]
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                raise EngineFailed(
                    f"the trace could not be sent to {endpoint}", mend="check that an OTLP collector listens there by HTTP",
                    anchor="otlp",
                )  # fmt: skip
    finally:
        exporter.shutdown()
    return len(spans)


def _readable(phase: Phase, resource: Any) -> Any:
    """Return a phase as OpenTelemetry's finished span."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    def context(path: tuple[str, ...]) -> SpanContext:
        return SpanContext(
            _digest(path[:1], 16), _digest(path, 8), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    return ReadableSpan(
        name=phase.path[-1] if len(phase.path) > 1 else f"job {phase.attributes['trainmaster.name'] or phase.path[0]}",
        context=context(phase.path),
        parent=context(phase.path[:-1]) if len(phase.path) > 1 else None,
        resource=resource,
        attributes=dict(phase.attributes),
        events=[Event(name, dict(fields), _nanoseconds(at)) for at, name, fields in phase.moments],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, phase.failed) if phase.failed else Status(StatusCode.OK),
        start_time=_nanoseconds(phase.begin),
        end_time=_nanoseconds(max(phase.begin, phase.end)),
    )


def _digest(path: tuple[str, ...], size: int) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(path).encode()).digest()[:size], "big") or 1


def _nanoseconds(at: float) -> int:
    return round(at * 1e9)
