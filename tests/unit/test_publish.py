"""A real job, published: as a trace to a collector that decodes OTLP, and as a run of a real MLflow store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

TM = [sys.executable, "-m", "trainmaster.cli"]
PROGRAM = """
import os
from trainmaster import runtime
for step in range(1, 4):
    runtime.progress(step / 3, step=step, loss=1 / step)
    if step == 2 and os.environ["TRAINMASTER_ATTEMPT"] == "1": raise SystemExit(3)
os.makedirs(os.environ["TRAINMASTER_OUTPUT_MODEL"], exist_ok=True)
open(os.environ["TRAINMASTER_OUTPUT_MODEL"] + "/weights.txt", "w").write("0.5")
"""


def tm(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **more}, timeout=240
    )


@pytest.fixture
def job(tmp_path: Path, home: object) -> str:
    """A job whose program fails once, and then leaves an output."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(
        f"name: published\nroles: {{worker: {{command: [{sys.executable}, train.py]}}}}\nfiles: [train.py]\n"
        f"outputs: {{model: {{url: {tmp_path}/out}}}}\n"
    )
    done = tm("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return "published"


class Collector(HTTPServer):
    """Takes what an OpenTelemetry exporter sends by HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector: Any = self.server
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Take)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_job_is_one_trace(job: str, collector: Collector, tmp_path: Path) -> None:
    import gzip

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    endpoint = f"http://127.0.0.1:{collector.server_port}"
    for _ in range(2):
        done = tm("publish", job, "--otlp", endpoint, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, second = (
        ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        for body in collector.bodies
    )
    spans = {span.name: span for span in first.resource_spans[0].scope_spans[0].spans}
    root = spans["job published"]
    assert not root.parent_span_id
    assert {event.name for event in root.events} >= {"restart", "end"}
    failed, succeeded = spans["worker:0 attempt 1"], spans["worker:0 attempt 2"]
    assert failed.parent_span_id == succeeded.parent_span_id == root.span_id
    assert (failed.status.code, succeeded.status.code) == (2, 1), "an error, and well"
    assert (
        root.start_time_unix_nano
        <= failed.start_time_unix_nano
        <= failed.end_time_unix_nano
        <= succeeded.end_time_unix_nano
    )
    assert {"staging", "running"} <= set(spans)
    again = {span.span_id for span in second.resource_spans[0].scope_spans[0].spans}
    assert again == {span.span_id for span in first.resource_spans[0].scope_spans[0].spans}, (
        "published twice, it is one trace"
    )


def test_a_collector_that_is_not_there_is_named(job: str, tmp_path: Path) -> None:
    refused = tm("publish", job, "--otlp", "http://127.0.0.1:9", cwd=tmp_path, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert refused.returncode == 3
    assert "could not be sent to http://127.0.0.1:9" in refused.stderr
    assert tm("publish", job, cwd=tmp_path).returncode == 2


@pytest.mark.full  # MLflow alone takes 3 s to import, 10 on a busy machine
def test_a_job_is_one_run_of_mlflow(job: str, tmp_path: Path) -> None:
    store = {"MLFLOW_ALLOW_FILE_STORE": "true"}
    uri = (tmp_path / "mlruns").as_uri()
    published = [tm("publish", job, "--mlflow", uri, cwd=tmp_path, **store) for _ in range(2)]
    assert [done.returncode for done in published] == [0, 0], published[0].stderr
    assert published[0].stdout == published[1].stdout, "published twice, it is one run"
    run = published[0].stdout.split()[-1]
    os.environ |= store
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = client.get_run(run)
    assert found.info.status == "FINISHED"
    assert found.data.params["name"] == "published"
    assert found.data.params["outputs.model.url"] == f"{tmp_path}/out"
    assert found.data.metrics["worker.0/metric.loss"] == pytest.approx(1 / 3)
    times = [metric.timestamp for metric in client.get_metric_history(run, "worker.0/metric.loss")]
    assert len(times) == len(set(times)), "no sample is there twice"
    [artifact] = client.list_artifacts(run, "model/worker-0")
    assert artifact.path == "model/worker-0/weights.txt"


@pytest.mark.full  # MLflow alone takes 3 s to import, 10 on a busy machine
def test_only_outputs_of_the_users_own_description_are_uploaded(tmp_path: Path, home: object) -> None:
    """Others write the storage of the job, and the folder of its output."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/keys").write_text("of the user alone")
    (tmp_path / "job.yaml").write_text(
        f"name: published\nroles: {{worker: {{command: mkdir -p out && echo 1 > out/a}}}}\nfiles: []\nstorage: {tmp_path}/shared\n"
        f"outputs: {{model: {{url: {tmp_path}/out, local: out}}}}\n"
    )
    done = tm("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for events in (tmp_path / "shared").glob("published*/events/*.jsonl"):
        events.write_text(events.read_text().replace(f'"{tmp_path}/out"', f'"{tmp_path}/private"'))
    (tmp_path / "out/worker-0/theirs").symlink_to(tmp_path / "private/keys")
    (tmp_path / "out/worker-0/own").symlink_to("a")
    store, uri = {"MLFLOW_ALLOW_FILE_STORE": "true"}, (tmp_path / "mlruns").as_uri()
    published = tm("publish", "published", "--mlflow", uri, cwd=tmp_path, **store)
    assert published.returncode == 0, published.stderr
    uploaded = {
        path.name: path.read_text() for path in (tmp_path / "mlruns").rglob("artifacts/model/**/*") if path.is_file()
    }
    assert uploaded == {"_SUCCESS": uploaded.get("_SUCCESS"), "a": "1\n", "own": "1\n"}
