"""`tm ui` as a process over real jobs: what a browser gets."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import attrs
import pytest
from log_jobs import Job
from s3 import serving
from waiting import until

from trainmaster.client.ui.serving import PORT
from trainmaster.log.storage import LocalStorage

TM = [sys.executable, "-m", "trainmaster.cli"]


@attrs.define
class Ui:
    """A `tm ui` that runs, and a browser that has signed in there."""

    process: subprocess.Popen[str]
    lines: list[str]
    address: str = ""
    cookie: str = ""

    def sign_in(self) -> Ui:
        until(lambda: self.lines or self.process.poll() is not None)
        assert self.lines, self.process.stderr and self.process.stderr.read()
        self.address = self.lines[0].rpartition(" ")[2].strip()
        answer = self.ask(f"{urlsplit(self.address).path}?{urlsplit(self.address).query}", cookie="")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"accept": "text/html", "cookie": self.cookie} | {
                name.replace("_", "-"): value for name, value in headers.items()
            }
            connection.request(method, path, body.encode(), sent)
            response = connection.getresponse()
            return Page(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read().decode(),
            )
        finally:
            connection.close()

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@attrs.frozen
class Page:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def jobs(self) -> list[str]:
        """The jobs of the last table, which is that of all or of those found."""
        return re.findall(r'href="jobs/([^"/]+)/"', self.text.rpartition("<section")[2])


@contextmanager
def ui(*arguments: str, descriptors: int = 0, **environment: str) -> Iterator[Ui]:
    """Run `tm ui`, where it may have only so many descriptors if a number is given."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    process = subprocess.Popen(
        [*TM, "ui", "--no-browser", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, preexec_fn=prepare,
    )  # fmt: skip
    started = Ui(process, [])
    reading = threading.Thread(target=lambda: [started.lines.append(line) for line in process.stdout or ()])
    reading.start()
    try:
        yield started
    finally:
        process.kill()
        process.wait()
        reading.join()
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stderr.close()


def tm(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run([*TM, *arguments], capture_output=True, text=True, check=True, cwd=cwd, timeout=120)
    return done.stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A storage place of three jobs: one ended well, one failed, one runs."""
    for key, events in {
        "digits-aaaaaa": [("generation-formed", {}), ("ended", {"state": "succeeded"})],
        "letters-bbbbbb": [("ended", {"state": "failed", "reason": "exit"})],
        "digits-cccccc": [],
    }.items():
        job = Job(LocalStorage(tmp_path / "place"), key, 100.0, folder="")
        for kind, data in events:
            job.tell(kind, 200.0, **data)
    return tmp_path / "place"


def test_a_job_that_runs_is_seen_to_end(tmp_path: Path, home) -> None:
    job = tm(
        "submit", "--name", "held", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo over", cwd=tmp_path
    )
    try:
        with ui() as server:
            server.sign_in()
            assert job in server.ask("/").jobs
            assert until(lambda: 'data-state="running"' in server.ask(f"/jobs/{job}/").text)
            (tmp_path / "go").touch()
            assert until(lambda: 'data-state="succeeded"' in server.ask(f"/jobs/{job}/").text)
            assert until(lambda: job in server.ask("/?q=state:succeeded+held").jobs)
            shutil.move(home.state / "jobs" / job, tmp_path / "away")
            gone = server.ask(f"/jobs/{job}/")
            assert (gone.status, "was removed" in gone.text) == (404, True)
            assert server.end() == 130
    finally:
        (tmp_path / "go").touch()


def test_charts_are_as_new_as_what_the_master_has(
    tmp_path: Path, home, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are written seldom, and none while their server is away: the master has the samples."""
    (tmp_path / "train.py").write_text(
        "import os, time\nfrom trainmaster import runtime\n"
        "while not os.path.exists('over'):\n"
        "    runtime.metrics(went=float(os.path.exists('go')))\n"
        "    time.sleep(0.1)\n"
    )
    with serving() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        places = f"storage: s3://{store.bucket()}\n"
        (tmp_path / "job.yaml").write_text(
            f"name: held\n{places}roles: {{worker: {{command: [{sys.executable}, train.py]}}}}\n"
        )
        job = tm("submit", "job.yaml", cwd=tmp_path)
        address = f"/api/v1/jobs/{job}/metrics?name=metric.went"

        def highest() -> list[float]:
            return [max(row["highest"]) for row in json.loads(server.ask(address).text).get("series", [])]

        try:
            with ui() as server:
                server.sign_in()
                assert until(lambda: highest() == [0.0], 60)
                store.stop()
                (tmp_path / "go").touch()
                assert until(lambda: highest() == [1.0], 60)
                store.start()
                (tmp_path / "over").touch()
                assert until(lambda: 'data-state="succeeded"' in server.ask(f"/jobs/{job}/").text, 60)
                assert until(lambda: highest() == [1.0], 60), "the last ones are stored as it ends"
        finally:
            (tmp_path / "over").touch()
            subprocess.run([*TM, "kill", "--force", job], capture_output=True, check=False, timeout=60)


def test_one_stream_has_events_status_and_all_that_was_printed_before_the_end(tmp_path: Path, home) -> None:
    program = "echo begin; while [ ! -e go ]; do sleep 0.05; done; echo over"
    job = tm("submit", "--name", "held", "-n", "2", "--", "sh", "-c", program, cwd=tmp_path)
    with ui(job) as server:
        server.sign_in()
        until(lambda: 'data-state="running"' in server.ask(f"/jobs/{job}/").text)
        items: list[dict[str, object]] = []

        def read() -> None:
            text = server.ask(f"/api/v1/jobs/{job}/stream?logs=1", accept="*/*").text
            items.extend(json.loads(line) for line in text.splitlines())

        reading = threading.Thread(target=read)
        reading.start()
        (tmp_path / "go").touch()
        reading.join(120)
        assert {key for item in items for key in item} == {"event", "status", "log", "end"}
        assert [*items[-1]] == ["end"]
        printed = {"worker:0": "", "worker:1": ""}
        for item in items:
            if "log" in item:
                printed[item["log"]["task"]] += item["log"]["data"]
        assert printed == dict.fromkeys(printed, "begin\nover\n")


def test_a_job_is_killed_by_its_form_alone(tmp_path: Path, home) -> None:
    job = tm("submit", "--name", "held", "--", "sleep", "60", cwd=tmp_path)
    try:
        with ui(job) as server:
            server.sign_in()
            assert urlsplit(server.address).path == f"/jobs/{job}/"
            token = re.search(r'name="csrf" value="([^"]+)"', server.ask(f"/jobs/{job}/actions/kill").text)
            assert token
            form = {"content_type": "application/x-www-form-urlencoded"}
            kill = f"/jobs/{job}/actions/kill"
            assert server.ask(kill, "POST", f"csrf={token[1]}", **form, origin="http://evil.example").status == 403
            assert server.ask(kill, "POST", "csrf=wrong", **form).status == 403
            assert server.ask(kill, "POST", f"csrf={token[1]}", **form, cookie="").status == 401
            rest = f"/api/v1/jobs/{job}/actions/kill"
            assert server.ask(rest, "POST", "{}", content_type="application/json").status == 403
            assert server.ask(rest, "GET").status == 405
            assert server.ask(kill, "POST", f"csrf={token[1]}&why=enough", **form).status == 303
            assert until(lambda: 'data-state="killed"' in server.ask(f"/jobs/{job}/").text)
    finally:
        subprocess.run([*TM, "kill", job], capture_output=True, check=False, timeout=60)


def test_the_jobs_of_a_place_are_listed_and_searched(place: Path) -> None:
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        listed = server.ask("/")
        assert set(listed.jobs) == {"digits-aaaaaa", "letters-bbbbbb", "digits-cccccc"}
        assert server.ask("/?q=digits").jobs == ["digits-cccccc", "digits-aaaaaa"]
        assert server.ask("/?q=state:failed+LETTERS").jobs == ["letters-bbbbbb"]
        assert server.ask("/?q=state:failed+digits").jobs == []
        assert server.ask("/?page=2").jobs == []
        assert server.ask("/?page=x").status == 400
        rest = json.loads(server.ask("/api/v1/jobs?state=live&search=digits").text)
        assert [job["id"] for job in rest["jobs"]] == ["digits-cccccc"]
        assert json.loads(server.ask("/api/v1/jobs/letters-bbbbbb").text)["state"] == "failed"
        assert server.ask("/api/v1/jobs", cookie="", accept="application/json").status == 401
        index = json.loads((place / "index.json").read_text())
        assert len(index["jobs"]) == 3


def test_a_job_of_a_place_that_runs_has_the_figures_of_its_samples(tmp_path: Path, home) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nfrom trainmaster import runtime\nruntime.progress(0.5, step=7)\n"
        "while not os.path.exists('over'):\n    time.sleep(0.1)\n"
    )
    job = tm("submit", "--name", "held", "--", sys.executable, "train.py", cwd=tmp_path)
    try:
        with ui("--jobs", str(home.state / "jobs")) as server:
            server.sign_in()
            until(lambda: server.ask(f"/jobs/{job}/").text.count(">step 7<") == 2, what="the job's and the task's step")
    finally:
        (tmp_path / "over").touch()


def test_names_that_are_markup_are_shown_as_text(tmp_path: Path) -> None:
    job = Job(LocalStorage(tmp_path), "a-aaaaaa", 100.0, folder="")
    job.tell("ended", 101.0, state="failed", reason="<script>alert(1)</script>")
    with ui("--jobs", str(tmp_path)) as server:
        server.sign_in()
        for path in ("/", "/?q=<script>alert(2)</script>"):
            assert "<script>alert" not in server.ask(path).text


@pytest.mark.parametrize("job", ["..", "%2e%2e", "..%2f..%2fetc", ".hidden", "a%00b", "no-such-job", "%3Cscript%3E"])
def test_an_id_leads_nowhere_else(place: Path, job: str) -> None:
    (place.parent / "events").mkdir()
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        answer = server.ask(f"/jobs/{job}/")
        assert answer.status == 404
        assert "<script>" not in answer.text


def test_a_log_behind_a_link_of_another_user_is_not_shown(place: Path) -> None:
    private, by_file, by_folder = place.parent / "private", place / "digits-cccccc/logs", place / "held-dddddd/logs"
    Job(LocalStorage(place), "held-dddddd", 100.0, folder="")
    private.mkdir()
    (private / "1.log").write_text("a key of the victim's")
    (by_file / "worker-0").mkdir(parents=True)
    (by_file / "worker-0/1.log").symlink_to(private / "1.log")
    by_folder.mkdir()
    (by_folder / "worker-0").symlink_to(private)
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        for job in ("digits-cccccc", "held-dddddd"):
            assert server.ask(f"/jobs/{job}/").status == 200
            page = server.ask(f"/jobs/{job}/logs/worker:0")
            assert "through a link, which is not followed" in page.text
            for text in (page.text, server.ask(f"/jobs/{job}/logs/worker:0/raw").text):
                assert "a key of" not in text
                assert "Traceback" not in text


def test_browsers_keep_the_files_of_pages(place: Path) -> None:
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        for root in ("", "/jobs/digits-aaaaaa"):
            answer = server.ask(f"{root}/static/style.css")
            assert (answer.status, answer.headers["cache-control"]) == (200, "no-cache")
            assert server.ask(f"{root}/static/style.css", if_none_match=answer.headers["etag"]).status == 304


def test_one_job_in_trouble_is_one_line_and_the_others_are_as_ever(place: Path) -> None:
    bad = Job(LocalStorage(place), "newer-dddddd", 100.0, folder="")
    bad.writer.append([b'{"v":"9.0","n":2,"at":3,"epoch":1,"type":"ended"}\n'], sync=True)
    torn = Job(LocalStorage(place), "torn-eeeeee", 100.0, folder="")
    with open(f"{torn.storage.root}/events/1-1.jsonl", "ab") as log:
        log.write(b'{"v":"1.1","n":2,"at":3,"epo')
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        assert set(server.ask("/?q=state:unreadable").jobs) == {"newer-dddddd"}
        (row,) = json.loads(server.ask("/api/v1/jobs?state=unreadable").text)["jobs"]
        assert (row["id"], row["state"]) == ("newer-dddddd", "unreadable")
        page = server.ask("/jobs/newer-dddddd/")
        assert (page.status, "version 9.0" in page.text, "Traceback" in page.text) == (503, True, False)
        assert "letters-bbbbbb" in server.ask("/?q=state:failed").jobs
        assert "torn-eeeeee" in server.ask("/?q=state:pending").jobs
        place.rename(place.parent / "away")
        assert until(lambda: not server.ask("/").jobs or "may be old" in server.ask("/").text)
        (place.parent / "away").rename(place)
        assert until(lambda: len(server.ask("/").jobs) == 5)


def test_a_job_that_runs_is_moved_away_and_back_while_its_page_is_open(place: Path) -> None:
    with ui("--jobs", str(place)) as server:
        server.sign_in()
        address = "/jobs/digits-cccccc/"
        assert "or it was removed" not in server.ask(address).text
        (place / "digits-cccccc").rename(place.parent / "away")
        assert until(lambda: "or it was removed" in server.ask(address).text)
        assert server.ask("/jobs/letters-bbbbbb/").status == 200
        (place.parent / "away").rename(place / "digits-cccccc")
        assert until(lambda: "or it was removed" not in server.ask(address).text)


def test_readers_are_answered_beside_more_connections_than_there_is_room_for(place: Path) -> None:
    with ui("--jobs", str(place), descriptors=150) as server, ExitStack() as connections:
        server.sign_in()
        for _ in range(300):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert until(lambda: server.ask("/").status == 200)
        assert server.end() == 130
        assert server.process.stderr
        assert len(server.process.stderr.read().splitlines()) < 5


def test_two_on_one_place_and_one_port(place: Path) -> None:
    with ui("--jobs", str(place)) as first:
        first.sign_in()
        with ui("--jobs", str(place), "--port", str(first.port)) as other:
            assert other.process.wait(60) == 2
            assert other.process.stderr
            assert "Address already in use" in other.process.stderr.read()
        with ui("--jobs", str(place)) as second:
            second.sign_in()
            assert second.port != first.port
            for server in (first, second):
                assert len(server.ask("/").jobs) == 3
            assert second.ask("/", cookie=first.cookie).status == 401
            (place / "index.json").write_bytes(b"{")
            assert (first.end(), second.end()) == (130, 130)
            assert second.process.stderr
            assert ("is taken" in second.process.stderr.read()) == (second.port != PORT)


def test_a_team_reads_by_tokens_and_changes_nothing(place: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# readers\nada 0123456789abcdef\n")
    with ui("--jobs", str(place), "--listen", "127.0.0.1:18471", "--tokens", str(tmp_path / "tokens")) as server:
        until(lambda: server.lines)
        server.address = server.lines[0].strip()
        assert server.ask("/").status == 401
        token = {"authorization": "Bearer 0123456789abcdef"}
        assert len(server.ask("/", **token).jobs) == 3
        assert server.ask("/jobs/letters-bbbbbb/", **token).status == 200
        assert server.ask("/jobs/letters-bbbbbb/actions/retry", "POST", "csrf=", **token).status == 405


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--listen", "127.0.0.1:8470"], "nobody is known who may read"),
        (["--listen", "0.0.0.0:8470", "--tokens", "TOKENS"], "unencrypted"),
        (["--listen", "8470", "--tokens", "TOKENS"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:8470", "--user-header", "x-user"], "from known proxies alone"),
        (
            ["--listen", "127.0.0.1:8470", "--user-header", "x user", "--trust-proxy", "127.0.0.1"],
            "is not the name of a header",
        ),
        (["--listen", "127.0.0.1:8470", "--tokens", "/nothing"], "cannot be read"),
        (["--listen", "127.0.0.1:8470", "--tokens", "TOKENS", "--tls-cert", "x.pem"], "belong together"),
        (["--tokens", "TOKENS"], "are of --listen"),
    ],
)
def test_a_team_is_not_served_carelessly(options: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("ada 0123456789abcdef\n")
    command = [option.replace("TOKENS", str(tmp_path / "tokens")) for option in options]
    done = subprocess.run([*TM, "ui", *command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_tokens_that_every_user_can_read_are_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        tokens = Path(folder, "tokens")
        tokens.write_text("ada 0123456789abcdef\n")
        tokens.chmod(0o644)
        command = [*TM, "ui", "--listen", "127.0.0.1:18472", "--tokens", str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, f"chmod 600 {tokens}" in done.stderr) == (2, True), done.stderr


def test_a_place_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with ui("--jobs", "nosuch://place") as server:
        assert server.process.wait(60) == 2
        assert server.process.stderr
        assert "Traceback" not in server.process.stderr.read()


PROGRAM = """
import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.end_headers(), self.wfile.write(f"asked for {self.path}".encode())
http.server.HTTPServer(("127.0.0.1", int(os.environ["TRAINMASTER_PORT_HTTP"])), Page).serve_forever()
"""
TOKEN = "LINKSECRET0008"
JOB = {
    "name": "lab",
    "files": ["page.py"],
    "links": {"nb": {"role": "worker", "port": "http", "path": f"/lab?token={TOKEN}"}},
    "roles": {"worker": {"ports": {"http": 0}, "command": [sys.executable, "page.py"]}},
}


@pytest.fixture
def job(tmp_path: Path, home: object) -> Iterator[str]:
    """A job that serves a page, whose address has a token."""
    (tmp_path / "page.py").write_text(PROGRAM)
    (tmp_path / "job.json").write_text(json.dumps({name: JOB[name] for name in JOB}))
    job = tm("submit", "job.json", cwd=tmp_path)
    try:
        until(lambda: json.loads(tm("status", job, "--json"))["links"])
        yield job
    finally:
        subprocess.run([sys.executable, "-m", "trainmaster.cli", "kill", job], check=False, timeout=60)


def opened(address: str, cookie: str = "") -> tuple[str, str]:
    """Return what a browser gets from a page of a program, whose host name leads to this machine, and its cookie."""
    parts = urlsplit(address)
    url = f"http://127.0.0.1:{parts.port}{parts.path}?{parts.query}"
    request = Request(url, headers={"Host": parts.netloc, "Cookie": cookie})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.read().decode(), str(answer.headers["set-cookie"]).partition(";")[0]
    except HTTPError as error:
        return error.read().decode(), ""


def test_only_the_user_gets_the_token_of_a_link(job: str, tmp_path: Path) -> None:
    assert TOKEN in tm("status", job)
    (tmp_path / "tokens").write_text("ada 0123456789abcdef\n")
    (tmp_path / "tokens").chmod(0o600)
    with ui("--listen", "127.0.0.1:18473", "--tokens", str(tmp_path / "tokens")) as server:
        until(lambda: server.lines)
        server.address = server.lines[0].strip()
        token = {"authorization": "Bearer 0123456789abcdef"}
        assert TOKEN not in server.ask(f"/jobs/{job}/", **token).text
        assert "/lab?token=[redacted]" in server.ask(f"/api/v1/jobs/{job}", **token).text
    tm("export", job, str(tmp_path / "exported"))
    files = [path for path in (tmp_path / "exported").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    with ui() as server:
        server.sign_in()
        assert TOKEN in server.ask(f"/api/v1/jobs/{job}").text
        entry = server.ask(f"/jobs/{job}/links/nb").headers["location"]
        page, cookie = opened(entry)
        assert TOKEN in page, "the browser is sent on to the address with its token"
        parts = urlsplit(entry)
        asked, _ = opened(f"http://{parts.netloc}/lab?token={TOKEN}", cookie)
        assert asked == f"asked for /lab?token={TOKEN}"
