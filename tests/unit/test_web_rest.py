"""The REST interface: each endpoint, and everything that it refuses."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from rest_server import JOB, Acts, Answer, Facts, Server, serving

from trainmaster.core.input.feed_tokens import feed_token
from trainmaster.core.metrics import Series
from trainmaster.web.contract import Unknown
from trainmaster.web.rest import application, rest
from trainmaster.web.rest.routes import ROUTES

BASE = f"/api/v1/jobs/{JOB}"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return Facts()


@pytest.fixture(scope="module")
def acts() -> Acts:
    return Acts()


@pytest.fixture(scope="module")
def server(facts: Facts, acts: Acts) -> Iterator[Server]:
    with serving(rest(facts, acts, "token")) as server:  # type: ignore[arg-type]
        yield server


def error(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    return answer.status, answer.json["error"]


# -- reading --


def test_the_master_lists_its_one_job(server: Server) -> None:
    (row,) = server.ask("/api/v1/jobs").json["jobs"]
    assert (row["id"], row["name"], row["state"], row["user"], row["engine"]) == (
        JOB,
        "digits",
        "pending",
        "ann",
        "local",
    )
    for query, count in (
        ("search=dig", 1),
        ("search=xx", 0),
        ("state=live", 1),
        ("state=pending", 1),
        ("state=failed", 0),
        ("user=bob", 0),
        (f"after={JOB}", 0),
    ):
        assert server.ask(f"/api/v1/jobs?{query}").json["total"] == count, query
    status, text = error(server.ask("/api/v1/jobs?state=waiting"))
    assert status == 400
    assert "pending" in text


def test_a_job_and_its_tasks(server: Server) -> None:
    status = server.ask(BASE).json
    assert (status["job"], status["events"], len(status["tasks"])) == (JOB, 25, 2)
    assert server.ask(f"{BASE}/tasks").json == {"tasks": status["tasks"]}
    assert server.ask(f"{BASE}/tasks/worker:1").json == status["tasks"][1]
    assert server.ask(f"{BASE}/tasks/worker%3A1").json == status["tasks"][1]
    assert error(server.ask(f"{BASE}/tasks/worker:7")) == (404, "the job has no task worker:7")
    assert server.ask(f"{BASE}/description").json["engine"] == "local"


def test_the_course_of_a_job(server: Server) -> None:
    course = server.ask(f"{BASE}/timeline").json
    assert course["attempts"] == server.ask(f"{BASE}/tasks/worker:0/attempts").json["attempts"]
    assert [row["attempt"] for row in course["attempts"]] == [1, 2]
    assert course["generations"] == [{"group": 0, "generation": 1, "formed": 1.0, "members": {"worker:0": 0}}]
    assert course["marks"] == [{"at": 1.5, "kind": "restart", "text": "again", "task": "", "n": 0}]
    assert server.ask(f"{BASE}/tasks/worker:1/attempts").json == {"attempts": []}
    assert server.ask(f"{BASE}/tasks/worker:7/attempts").status == 404


def test_metrics_that_are_no_numbers_are_null(server: Server, facts: Facts) -> None:
    nan = float("nan")
    facts.measured = [
        Series("", "cpu", (1.0, 2.0), (0.5, nan), (0.5, None)),
        Series("worker:0", "metric.</script>", (1.0,), (float("inf"),), (1.0,)),
    ]
    rows = server.ask(f"{BASE}/metrics").json["series"]
    figures = {"times": [1.0, 2.0], "values": [0.5, None], "highest": [0.5, None], "nans": []}
    assert rows[0] == {"task": "", "name": "cpu", **figures}
    assert rows[1]["values"] == [None]
    assert [
        row["task"] for row in server.ask(f"{BASE}/metrics?task=worker:0&task=worker:1&since=1.5").json["series"]
    ] == ["worker:0"]
    assert [row["task"] for row in server.ask(f"{BASE}/metrics?task=").json["series"]] == [""]


# -- events --


def test_events_come_in_pages(server: Server) -> None:
    after, got = 0, []
    while True:
        page = server.ask(f"{BASE}/events?after={after}&limit=10").json
        got += [event["n"] for event in page["events"]]
        after = page["next"]
        if not page["more"]:
            break
    assert got == list(range(1, 26))
    assert server.ask(f"{BASE}/events?after=25").json == {"events": [], "next": 25, "more": False}


def server_events(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """The events of a stream, as a browser takes them apart."""
    fields: dict[str, str] = {}
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields.keys() & {"data"}:
            yield fields
            fields = {}


def test_events_come_live(server: Server, facts: Facts) -> None:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": "Bearer token", "Accept": "text/event-stream", "Last-Event-ID": "22"}
    line.request("GET", f"{BASE}/events?after=3", headers=headers)
    answer = line.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    events = server_events(answer)
    seen = [next(events) for _ in range(3)]
    assert [event["id"] for event in seen] == ["23", "24", "25"]
    assert json.loads(seen[0]["data"])["type"] == "progressed"
    server.loop.call_soon_threadsafe(facts.more_events.set)
    assert next(events)["id"] == "26"
    end = next(events)
    assert (end["event"], json.loads(end["data"])["job"]) == ("end", JOB)
    assert list(events) == []
    line.close()


def test_a_browser_that_has_seen_the_end_is_reported_to_stop() -> None:
    facts = Facts()
    facts.state.ended = {"state": "succeeded", "at": 3.0}
    with serving(rest(facts, Acts(), "token")) as server:  # type: ignore[arg-type]
        assert server.ask(f"{BASE}/events", Accept="text/event-stream", Last_Event_ID="25").status == 204
        again = server.ask(f"{BASE}/events", Accept="text/event-stream", Last_Event_ID="24")
        assert b"id: 25\n" in again.body
        assert b"event: end\n" in again.body
        assert server.ask(f"{BASE}/events", Accept="text/event-stream", Last_Event_ID="x").status == 400


def test_a_stream_is_a_line_of_json_each(server: Server) -> None:
    rows = [json.loads(line) for line in server.ask(f"{BASE}/stream?after=23&logs=1").body.splitlines()]
    assert [row.get("event", {}).get("n") for row in rows] == [24, 25, None]
    assert rows[-1]["end"]["job"] == JOB


# -- output --


@pytest.fixture
def printed(facts: Facts) -> Iterator[Facts]:
    """A log of 30 bytes, of which 10 are no longer kept."""
    before = facts.printed
    facts.printed = [
        {"offset": 0, "next": 6, "data": "hello\n"}, {"offset": 6, "next": 10, "data": "\u00e9\udcff\n"},
        {"offset": 10, "next": 20, "data": "\n[trainmaster: 10 bytes left out here]\n", "left_out": 10},
        {"offset": 20, "next": 30, "data": "the newest"},
    ]  # fmt: skip
    yield facts
    facts.printed = before


def test_output_comes_in_pieces(server: Server, printed: Facts) -> None:
    part = server.ask(f"{BASE}/logs/worker:0").json
    assert (part["task"], part["attempt"], part["offset"], part["next"]) == ("worker:0", 2, 0, 30)
    assert "".join(piece["data"] for piece in part["pieces"]).endswith("the newest")
    part = server.ask(f"{BASE}/logs/worker:0?attempt=1&offset=6&limit=3").json
    assert (part["attempt"], part["next"], len(part["pieces"])) == (1, 10, 1)
    assert server.ask(f"{BASE}/logs/worker:0?offset=30").json["pieces"] == []
    lines = server.ask(f"{BASE}/logs/worker:0?offset=20", Accept="application/x-ndjson").body.splitlines()
    assert [json.loads(line)["data"] for line in lines] == ["the newest"]
    for path in ("worker:1", "worker:0?attempt=3"):
        for kind in ("application/json", "application/x-ndjson", "text/plain"):
            assert server.ask(f"{BASE}/logs/{path}", Accept=kind).status == 404


def test_output_comes_as_it_was_printed(server: Server, printed: Facts) -> None:
    whole = server.ask(f"{BASE}/logs/worker:0", Accept="text/plain")
    assert whole.body == b"hello\n\xc3\xa9\xff\n\n[trainmaster: 10 bytes left out here]\nthe newest"
    assert whole.headers["content-disposition"] == 'attachment; filename="worker-0.2.log"'


@pytest.mark.parametrize(
    ("asked", "place", "body"),
    [
        ("0-4", "bytes 0-4/30", b"hello"),
        ("1-", "bytes 1-9/30", b"ello\n\xc3\xa9\xff\n"),  # up to the gap
        ("7-7", "bytes 7-7/30", b"\xa9"),
        ("8-24", "bytes 8-9/30", b"\xff\n"),
        ("12-24", "bytes 20-24/30", b"the n"),  # after the gap
        ("-4", "bytes 26-29/30", b"west"),
        ("-99", "bytes 0-9/30", b"hello\n\xc3\xa9\xff\n"),
        ("29-400", "bytes 29-29/30", b"t"),
    ],
)
def test_a_range_counts_bytes_printed(server: Server, printed: Facts, asked: str, place: str, body: bytes) -> None:
    answer = server.ask(f"{BASE}/logs/worker:0", Range=f"bytes={asked}")
    assert (answer.status, answer.headers["content-range"], answer.body) == (206, place, body)


@pytest.mark.parametrize(
    ("asked", "status"),
    [("bytes=30-", 416), ("bytes=11-19", 416), ("bytes=5-4", 416), ("bytes=-0", 416), ("bytes=999999999999999-", 416),
     ("bytes=999999999999998-999999999999999", 416), ("bytes=-", 416), ("bytes=1-2 ,", 400),
     ("bytes=0-1,3-4", 400), ("bytes=a-b", 400), ("bytes=0-" + "9" * 99, 400)],
)  # fmt: skip
def test_a_range_without_bytes_is_refused(server: Server, printed: Facts, asked: str, status: int) -> None:
    answer = server.ask(f"{BASE}/logs/worker:0", Range=asked)
    assert answer.status == status
    if status == 416:
        assert answer.headers["content-range"] == "bytes */30"


def test_a_range_of_another_unit_is_passed_over(server: Server, printed: Facts) -> None:
    assert server.ask(f"{BASE}/logs/worker:0", Range="lines=1-2").json["next"] == 30


# -- acting --


def test_actions_reach_the_job_with_who_does_them(server: Server, acts: Acts) -> None:
    acts.done.clear()
    for action, body in (
        ("kill", {"by": "ann", "why": "enough"}), ("kill", {"task": "worker:0"}), ("kill", None),
        ("scale", {"role": "worker", "size": None}), ("scale", {"role": "worker", "size": 3}), ("save", {"by": "ann"}),
        ("dump", {"task": "worker:0"}), ("renew", {"any": 1}), ("signal", {"task": "worker:1", "signal": "USR1", "by": "ann"}),
        ("cut", {"task": "worker:1", "seconds": 2}), ("retry", {}),
    ):  # fmt: skip
        assert server.post(action, body).status == 200, action
    assert acts.done == [
        ("kill", "ann", "enough"), ("kill_task", "worker:0", "a user", ""), ("kill", "a user", ""), ("scale", "worker", None, "a user"),
        ("scale", "worker", 3, "a user"), ("save", "ann"), ("dump", "worker:0", "a user"), ("renew", {"any": 1}),
        ("signal", "worker:1", "USR1", "ann"), ("cut", "worker:1", 2, "a user"), ("retry", "a user"),
    ]  # fmt: skip
    assert server.post("save").json == {"save": "a-name"}
    assert server.post("retry").json == {"job": "a-name"}
    assert error(server.post("scale", {"role": "ps", "size": 1})) == (409, "there is no such role")


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        ("scale", {"role": "worker"}, "the field size is missing: members; null: as many as the job's own rules say"),
        ("scale", {"role": "worker", "size": "3"}, "size must be a whole number: '3'"),
        ("scale", {"role": "worker", "size": -1}, "size must be at least 0: '-1'"),
        ("scale", {"role": "worker", "size": True}, "size must be a whole number: 'True'"),
        ("kill", {"task": "../../etc"}, "task must be "),
        ("kill", {"task": 3}, "task must be a text: '3'"),
        ("kill", {"why": "x" * 1001}, "why must be at most 1000 characters"),
        ("kill", {"why": "\0"}, "why must be "),
        ("kill", {"by": "\ud800"}, "by must be "),
        ("kill", {"who": "me"}, "unknown field 'who'; known: task, why, by"),
        ("cut", {"task": "worker:0", "seconds": 0}, "seconds must be above 0: '0'"),
        ("cut", {"task": "worker:0", "seconds": float("nan")}, "seconds must be a number: 'nan'"),
        ("cut", {"task": "worker:0", "seconds": 1e9}, "seconds must be at most 3600"),
        ("signal", {"task": "worker:0", "signal": "usr1; rm"}, "signal must be "),
        ("save", [], "the body is not a JSON object"),
        ("save", b"{", "the body is not JSON"),
        ("save", b'{"a":' * 10_000, "the body is not JSON"),
        ("save", b"\xff\xfe{}", "the body is not JSON"),
    ],
)
def test_a_wrong_body_is_refused_with_the_field(server: Server, acts: Acts, action: str, body: Any, words: str) -> None:
    acts.done.clear()
    status, text = error(server.post(action, body, Content_Type="application/json"))
    assert status == 400
    assert text.startswith(words)
    assert acts.done == []


def test_a_body_of_another_type_or_size_is_refused(server: Server, acts: Acts) -> None:
    acts.done.clear()
    assert server.post("kill", b"task=worker:0", Content_Type="application/x-www-form-urlencoded").status == 415
    assert server.post("kill", b"{}", Content_Type="text/plain").status == 415
    assert server.post("renew", {"x": "y" * 70_000}).status == 413
    assert server.ask(f"{BASE}/actions/kill").status == 405
    assert server.ask(BASE, "POST").status == 405
    assert server.ask(BASE, "HEAD").status == 405
    assert acts.done == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/events?after=-1", "after must be a whole number: '-1'"),
        ("/events?after=x", "after must be a whole number: 'x'"),
        ("/events?after=٣", "after must be a whole number: '٣'"),
        ("/events?after=99999999999999999999", "after must be a whole number"),
        ("/events?limit=0", "limit must be at least 1: '0'"),
        ("/events?limit=10001", "limit must be at most 10000: '10001'"),
        ("/events?after=1&after=2", "the parameter after is there 2 times"),
        ("/events?follow=1", "unknown parameter 'follow'; known: after, limit"),
        ("/tasks?x=1", "unknown parameter 'x'; known: there are none"),
        ("/logs/worker:0?follow=maybe", "follow must be true or false: 'maybe'"),
        ("/metrics?since=nan", "since must be a number: 'nan'"),
        ("/metrics?since=1_0", "since must be a number: '1_0'"),
        ("/metrics?task=../x", "task must be "),
        ("/metrics?name=%00", "name must be "),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_refused_with_its_name(server: Server, path: str, words: str) -> None:
    from urllib.parse import quote

    status, text = error(server.ask(BASE + quote(path, safe="/?=&%:")))
    assert status == 400
    assert text.startswith(words)


# -- who, and where --


def test_the_token_of_a_feed_feeds_it_and_does_nothing_else(server: Server, acts: Acts) -> None:
    token = {"Authorization": f"Bearer {feed_token('token', 'worker', 'input')}"}
    known = {"op": "figures", "role": "worker", "feed": "input"}
    assert server.ask(f"{BASE}/actions/supply", "POST", known, **token).status == 200
    before = list(acts.done)
    for role, feed in (("worker", "other"), ("ps", "input"), (None, None)):
        answer = server.ask(f"{BASE}/actions/supply", "POST", {**known, "role": role, "feed": feed}, **token)
        assert error(answer) == (403, "this token allows to feed worker.input alone")
    for route in ROUTES:
        path = route.path.format(job=JOB, task="worker:0", save="x")
        if not path.endswith("/supply"):
            for host in (
                "localhost",
                "x/actions/supply?",
                "x/actions/supply#",
            ):  # a part of the URL, as frameworks put it together
                answer = server.ask(path, route.method, {} if route.body else None, **token, Host=host)
                assert answer.status == 403, (path, host)
    assert acts.done == before
    forged = {"Authorization": f"Bearer {feed_token('another', 'worker', 'input')}"}
    assert server.ask(f"{BASE}/actions/supply", "POST", known, **forged).status == 401


def test_every_endpoint_demands_the_token(server: Server, acts: Acts) -> None:
    acts.done.clear()
    for route in ROUTES:
        path = route.path.format(job=JOB, task="worker:0")
        for token in ("", "Bearer", "Bearer other", "Basic dG9rZW4=", "bearer token"):
            assert server.ask(path, route.method, {} if route.body else None, Authorization=token).status == 401, path
    assert acts.done == []


ESCAPES = [
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "..%5c..", "%00", "worker:0%00", "worker:0%2f..", "%2Fetc%2Fpasswd", "worker:0%0a", "~root",
    "", "worker:0/../../x", "%252e%252e%252f", "a" * 300, "worker:0;x", "%c0%ae%c0%ae", "\u2025",
]  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_leaves_its_place(server: Server, acts: Acts, name: str) -> None:
    from urllib.parse import quote

    acts.done.clear()
    sent = quote(name, safe="/%:;~.")
    for path in (
        f"/api/v1/jobs/{sent}/events",
        f"{BASE}/tasks/{sent}/attempts",
        f"{BASE}/logs/{sent}",
        f"{BASE}/{sent}/x",
    ):
        assert server.ask(path).status == 404, path
    assert server.ask(f"/api/v1/jobs/{sent}/actions/kill", "POST", {}).status == 404
    assert server.ask(f"{BASE}/logs/worker:0?attempt={quote(name, safe='%')}").status == 400
    for action, field in (("kill", "task"), ("dump", "task"), ("signal", "task")):
        if name:
            assert server.post(action, {field: name, "signal": "USR1"}).status == 400
    assert acts.done == []


def test_a_job_of_another_master_is_not_here(server: Server) -> None:
    for path in ("", "/events", "/logs/worker:0"):
        assert error(server.ask(f"/api/v1/jobs/other-aaaaaa{path}")) == (
            404,
            f"there is no job other-aaaaaa here: this is the master of {JOB}",
        )
    for path in ("/", "/api/v1", "/api/v1/status", "/api/v2/jobs", "/api/v1/jobs/"):
        assert error(server.ask(path))[0] == 404


@attrs.frozen
class Jobs:
    """Two jobs, of which the second only shows."""

    facts: dict[str, Facts]
    acts: Acts

    async def find(self, job: str) -> tuple[Any, Any]:
        if job not in self.facts:
            raise Unknown(f"there is no job {job}")
        return self.facts[job], self.acts if job == JOB else None

    async def listing(self, search: str, state: str, user: str, after: str, limit: int) -> dict[str, Any]:
        rows = [{"id": job, "name": "x", "state": "running"} for job in self.facts]
        return {"jobs": rows[:limit], "next": None, "total": len(rows)}


def test_an_application_of_many_jobs_asks_who_reads() -> None:
    def authorize(request: Any) -> str | None:
        user: str = request.headers.get("x-user", "")
        if request.method == "POST" and "x-form" not in request.headers:
            raise PermissionError("this is not of your session")
        return user or None

    jobs, over = (
        Jobs({JOB: Facts(), "other-aaaaaa": Facts(), "over-aaaaaa": Facts()}, Acts()),
        {"state": "failed", "at": 1.0},
    )
    jobs.facts["over-aaaaaa"].state.ended = jobs.facts["over-aaaaaa"].state.ending = {"reason": "exit", **over}
    with serving(application(jobs, authorize)) as server:
        assert server.ask("/api/v1/jobs").status == 401
        assert len(server.ask("/api/v1/jobs", X_User="ann").json["jobs"]) == 3
        assert error(server.post("kill", {}, X_User="ann")) == (403, "this is not of your session")
        assert server.post("kill", {"by": "bob"}, X_User="ann", X_Form="1").status == 200
        assert jobs.acts.done == [("kill", "ann", "")]  # the user of the session, not the one that the body names
        status, text = error(server.ask("/api/v1/jobs/other-aaaaaa/actions/kill", "POST", {}, X_User="ann", X_Form="1"))
        assert (status, "only shows jobs" in text) == (403, True)
        status, text = error(server.ask("/api/v1/jobs/over-aaaaaa/actions/save", "POST", {}, X_User="ann", X_Form="1"))
        assert (status, text) == (403, "the job has ended (failed), so nothing can be done to it")


# -- Prometheus --


def test_prometheus_reads_the_figures() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    facts = Facts()
    gpus = [{"index": 0, "util": 0.5, "memory": 2**30, "total": 2**31}]
    facts.samples["worker:0"] = {"cpu": 1.5, "memory": 1000, "gpus": gpus, "progress": 0.25, "step": 7}
    facts.samples["worker:1"] = {"cpu": float("nan"), "memory": None, "gpus": [], "progress": "much"}
    jobs = Jobs({JOB: facts, 'od"d\\\n': Facts()}, Acts())
    with serving(application(jobs, lambda request: "")) as server:
        answer = server.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(answer.body.decode()) for sample in family.samples]
    figures = {
        (sample.name, sample.labels.get("task"), sample.labels.get("state"), sample.labels.get("gpu")): sample.value
        for sample in samples
    }
    assert figures["trainmaster_task_cpu_cores", "worker:0", None, None] == 1.5
    assert figures["trainmaster_task_gpu_memory_bytes", "worker:0", None, "0"] == 2**30
    assert figures["trainmaster_task_steps_total", "worker:0", None, None] == 7
    assert figures["trainmaster_job_tasks", None, "pending", None] == 2
    assert figures["trainmaster_job_state", None, "pending", None] == 1
    assert figures["trainmaster_job_events_total", None, None, None] == 25
    assert ("trainmaster_task_progress_ratio", "worker:1", None, None) not in figures
