"""Submitting to a cluster of one's own, whose nodes have no Python that is found, and whose daemons are broken now and then.

What travels: a Python with packages, files that YARN brings. What goes wrong at submit: one clear error, and nothing is left: no
application that runs, no draft and no job on HDFS, no job on this machine. Who comes from another machine finds the job by the cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import SMALL, TM, Submitted, Yarn, role, workers, yarn_on
from conformance.test_cache import packed
from hadoop import own_hadoop, revived
from waiting import until

import trainmaster
from trainmaster.client.jobs.places import job_ids, site_of
from trainmaster.client.jobs.sweep import is_abandoned
from trainmaster.client.submit.preview import preview
from trainmaster.client.submit.submit import submit
from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.spec.reading import job_from
from trainmaster.data.store.stores import store_for
from trainmaster.engines.yarn.client import YarnClient
from trainmaster.engines.yarn.submit.store import FOLDER, user_of
from trainmaster.log.dfs import open_dfs

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

LIMIT = 240.0  # s for a job on a busy machine that unpacks a whole Python
FRAMEWORK = {"0.10.0": "tinygrad==0.10.0\n", "0.10.1": "tinygrad==0.10.1\n"}  # small, and with no package that it needs
LEARN = """\
import importlib.metadata, os, sys
os.environ["PYTHON"] = "1"  # tinygrad's device that needs no compiler
from tinygrad import Tensor
x = Tensor([2.0, 3.0], requires_grad=True)
(x * x).sum().backward()
print(importlib.metadata.version("tinygrad"), x.grad.tolist(), sys.prefix)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its containers have a PATH with everything but Python."""
    without = tmp_path_factory.mktemp("bin")
    for folder in ("/usr/bin", "/bin"):
        for name in os.listdir(folder):
            if not name.startswith(("python", "pip")) and not os.path.lexists(without / name):
                (without / name).symlink_to(f"{folder}/{name}")
    properties = {
        "yarn.nodemanager.admin-env": f"PATH={without}", "yarn.resourcemanager.am.max-attempts": "1",
        "yarn.acl.enable": "true", "yarn.admin.acl": "yarn", "hadoop.http.staticuser.user": "reader",
    }  # fmt: skip
    with own_hadoop(Settings(nodes=1, properties=properties)) as started:
        yield started


@pytest.fixture
def yarn(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    with yarn_on(cluster, tmp_path, monkeypatch) as made:
        store_for(f"{ours()}/jobs").remove("")  # of the test before
        yield made


def job_file(yarn: Yarn, **keys: Any) -> str:
    """A job of one short task, and keys more, as a file."""
    command = keys.pop("command", "echo fine")
    role = {"command": command, "resources": SMALL, "restart": "never"}
    return yarn.write("job.yaml", json.dumps({"name": "t", "roles": {"worker": role}, **keys})).name


def python_here() -> dict[str, str]:
    """The Python of this run, which every node has: the node is this machine."""
    return {"path": sys.prefix}


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(BadInput) as told:
        act()
    return str(told.value)


def listed_in(archive: Path) -> bytes:
    return subprocess.run(["tar", "-tzf", archive], capture_output=True, check=True).stdout


def ours() -> str:
    """Our folder on HDFS."""
    return f"hdfs:///user/{user_of(os.environ)}/{FOLDER}"


def on_hdfs() -> list[str]:
    """What is there, but for what is kept by its content."""
    found = [file.path for file in store_for(ours()).files()]
    return sorted(path for path in found if path.endswith(".tmp") or path.startswith("jobs/"))


def going() -> list[str]:
    """The applications that have not ended."""
    client = YarnClient()
    return [text for text in client.find_jobs("").values() if client.application_state(text)[0] == "running"]


def nothing_left() -> None:
    assert job_ids() == []
    assert on_hdfs() == []
    assert going() == []


def begun(yarn: Yarn, *arguments: str) -> subprocess.Popen[str]:
    """A command as in a terminal, whose Ctrl-C goes to all of its group."""
    return subprocess.Popen(
        [TM, *arguments],
        cwd=yarn.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ctrl_c(command: subprocess.Popen[str]) -> str:
    """Interrupt it; what it says of that on stderr."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGINT)
    return command.communicate(timeout=LIMIT)[1]


def ended(command: subprocess.Popen[str]) -> None:
    command.kill()
    command.wait()


# -- what travels --


def test_two_versions_of_a_framework_at_once_on_nodes_without_python(yarn: Yarn) -> None:
    """Programs, agents and masters run on the Python that was shipped, with the packages that each job asked for."""
    yarn.write("learn.py", LEARN)
    jobs = {}
    for version, listed in FRAMEWORK.items():
        yarn.write(f"{version}.txt", listed)
        command = f"python3 learn.py; until test -e '{yarn.folder}/go'; do sleep 0.05; done"
        jobs[version] = yarn.submit(
            workers(command), environment={"requirements": f"{version}.txt"}, files=["learn.py"]
        )
    for version, job in jobs.items():
        job.until_line(f"{version} [4.0, 6.0]")
    yarn.write("go", "")
    for job in jobs.values():
        job.succeeded(LIMIT)
        assert job.lines()[0].endswith("/environment"), "a directory of its container"
    made = Path(os.environ["TRAINMASTER_STATE_DIR"]).glob("environments/*/environment.tar.gz")
    archive = next(path for path in made if b"tinygrad-0.10.0" in listed_in(path))
    content = archive.read_bytes()
    subprocess.run(["tar", "-xzf", archive], cwd=yarn.folder, check=True)
    there = f"{ours()}/files/{hashlib.sha256(content).hexdigest()[:32]}.tar.gz"  # as it was put there
    for environment in ({"archive": there}, {"path": "."}):
        job = yarn.submit(workers("python3 learn.py"), environment=environment, files=["learn.py"])
        job.succeeded(LIMIT)
        assert job.lines()[0].startswith("0.10.0 [4.0, 6.0]"), environment


def test_a_node_without_python_is_named(yarn: Yarn) -> None:
    done = yarn.tm("run", job_file(yarn, files=["job.yaml"]), "--engine", "yarn")
    yarn.jobs.append(Submitted(trainmaster.attach(job_ids()[0])))
    assert done.returncode == 1, done.stderr
    assert re.search(r"found no Python >= 3\.11 on \S+", done.stderr + done.stdout)
    assert "environment.path, archive or requirements" in done.stderr + done.stdout


def test_a_role_whose_image_the_nodes_cannot_run_fails_with_that(yarn: Yarn) -> None:
    job = yarn.submit({"worker": {**role("true"), "image": "here/there:1"}}, environment=python_here(), files=[])
    assert "the image here/there:1 was asked for" in job.failed("promise-broken", LIMIT)["words"]


def test_yarn_brings_what_is_cached_on_hdfs(yarn: Yarn) -> None:
    """What everybody may read, nodes have once for all users; else once for each. Archives are unpacked."""
    yarn.put("open/vocabulary.txt", "words")
    yarn.put("model.tar.gz", packed(weights="1.0"))
    dfs, path = open_dfs(yarn.place("model.tar.gz"))
    dfs.call(lambda client: client.set_permission(path, 0o600))
    show = "cat vocabulary.txt m/weights; echo; readlink vocabulary.txt m; echo ${YARN_CONTAINER_RUNTIME_DOCKER_IMAGE-none}"
    told = []
    for _ in range(2):
        cache = [yarn.place("open/vocabulary.txt"), yarn.place("model.tar.gz") + "#m"]
        job = yarn.submit(workers(show), cache=cache, environment=python_here(), files=[])
        job.succeeded(LIMIT)
        told.append(job.lines())
    assert told[0] == told[1], "the same places"
    content, public, private, image = told[0]
    assert content == "words1.0"
    assert image == "none"
    assert "/usercache/" not in public
    assert "/usercache/" in private


def test_what_yarns_containers_wrote_is_aggregated_and_what_we_wrote_is_the_users_alone(
    yarn: Yarn, cluster: Cluster
) -> None:
    yarn.write(".env", "API_KEY=secret")
    job = yarn.submit(workers("test -s .env"), environment=python_here())
    job.succeeded(LIMIT)
    dfs, folder = open_dfs(ours())
    rows = dfs.call(
        lambda client: [*client.list_status(f"{folder}/files", False), *client.list_status(f"{folder}/jobs", False)]
    )
    assert f"{folder}/jobs/{job.id}" in [row.path for row in rows]
    assert not [row.path for row in rows if row.permission & 0o077]
    asked = ("org.apache.hadoop.yarn.client.cli.LogsCLI", "-applicationId", yarn.application(job))

    def aggregated() -> str:
        done = cluster.run(*asked)
        return done.stdout if "LogType:prelaunch.out" in done.stdout else ""

    assert "LogType:launch_container.sh" not in until(aggregated, LIMIT)


def test_yarns_proxy_shows_the_pages_to_those_whom_the_view_list_names(yarn: Yarn, cluster: Cluster) -> None:
    """A cluster without Kerberos takes every reader for the user that hadoop.http.staticuser.user names. The proxy hands on GET and PUT
    only and no cookie of ours, so the pages only show; where the job ended, the History link leads to the pages of all jobs.
    """

    def answer(job: Submitted, path: str, method: str = "GET") -> tuple[int, str, str]:
        line = http.client.HTTPConnection("localhost", cluster.place.ports["resourcemanager.http"], timeout=60)
        try:
            line.request(
                method,
                f"/proxy/{yarn.application(job)}/{path}",
                headers={"Cookie": "mine=1", "X-Forwarded-For": "10.0.0.1"},
            )
            response = line.getresponse()
            return response.status, response.read().decode(), response.headers.get("Location", "")
        finally:
            line.close()

    program = workers("echo '<script>alert(1)</script>'; until test -e go; do sleep 0.1; done")
    for view, status in (("bob", 403), ("bob,reader", 200)):
        job = yarn.submit(
            program, engines={"yarn": {"view": view}}, pages="https://jobs.example.org/tm", environment=python_here()
        )
        job.until_status("running", lambda status: status["state"] == "running")
        assert until(lambda job=job: (code := answer(job, "")[0]) in (200, 403) and code, LIMIT) == status  # type: ignore[misc]
        if status == 200:
            assert_pages_only_show(lambda path, method="GET", job=job: answer(job, path, method), job.id)
        job.run.kill()
        job.end()
        assert until(lambda job=job: answer(job, "")[2], LIMIT) == f"https://jobs.example.org/tm/jobs/{job.id}/"  # type: ignore[misc]


def assert_pages_only_show(answer: Callable[..., tuple[int, str, str]], job: str) -> None:
    """Walk through the pages behind the proxy."""
    code, page, _ = answer("")
    updates = re.search(r'<div id="updates" data-address="(live[?]v=)" data-version="([0-9]+)">', page)
    assert updates is not None, "nothing is streamed"
    assert answer(updates[1] + updates[2])[0] == 200
    for path, text in (
        ("static/style.css", "--running"), ("tasks/worker:0", "Attempts"), ("events", "master-started"), ("configuration", "roles.worker"),
        ("metrics.json", "charts"), ("actions/kill", f"tm kill {job}"),
    ):  # fmt: skip
        code, page, _ = answer(path)
        assert (code, text in page) == (200, True), path
    log = until(lambda: "alert(1)" in (page := answer("logs/worker:0")[1]) and page, LIMIT)
    assert "<script>alert(1)" not in log, "what a program prints stays text"
    assert answer("actions/kill", "POST")[0] in (403, 405)
    assert answer("logs/..%2f..%2fmaster")[0] >= 400
    assert answer("nothing")[0] == 404


# -- what is wrong at submit --


def test_bad_input_is_told_by_a_dry_run_and_by_a_submit_alike(yarn: Yarn) -> None:
    yarn.write("env.tar.xz", b"x")
    yarn.put("folder/file", "x")
    yarn.put("folder.tar.gz/file", "x")
    stream = {"url": yarn.place("folder/file"), "as": "stream", "format": "hadoop:a.B", "options": {"jars": "no.jar"}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"engines": {"yarn": {"queue": "nowhere"}}}, "there is no queue nowhere"),
        ({"roles": {"worker": {"command": "true", "resources": {"memory": "100GiB"}}}}, "grants at most 4 GiB"),
        ({"environment": {"requirements": "no.txt"}}, "environment.requirements"),
        ({"environment": {"archive": "no.tar.gz"}}, "environment.archive"),
        ({"environment": {"archive": "env.tar.xz"}}, "YARN cannot bring"),
        ({"environment": {"archive": yarn.place("no.tar.gz")}}, "does not exist"),
        ({"cache": [yarn.place("no.txt")]}, "no.txt does not exist"),
        ({"environment": {"archive": yarn.place("folder.tar.gz")}}, "is a directory"),
        ({"archives": ["no.zip"]}, "no.zip does not exist"),
        ({"files": ["no.py"]}, "no.py"),
        ({"inputs": {"train": stream}}, "no.jar does not exist"),
    ]
    for keys, words in wrong:
        job = job_from({"name": "t", "roles": workers("true"), **keys})
        told = refusal(lambda job=job: preview(job, yarn.folder, "yarn"))  # type: ignore[misc]
        assert words in told, keys
        assert told == refusal(lambda job=job: submit(job, base=yarn.folder, engine="yarn"))  # type: ignore[misc]
    done = yarn.tm("submit", job_file(yarn, archives=["no.zip"]), "--engine", "yarn")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stderr
    nothing_left()


@pytest.mark.parametrize("folder", ["", "/nowhere/conf"])
def test_no_configuration_is_bad_input(yarn: Yarn, folder: str) -> None:
    without = {name: value for name, value in os.environ.items() if name != "HADOOP_CONF_DIR"}
    environ = without | ({"HADOOP_CONF_DIR": folder} if folder else {})
    done = yarn.tm("submit", job_file(yarn), "--engine", "yarn", env=environ)
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stderr
    assert (folder or "HADOOP_CONF_DIR") in done.stderr
    nothing_left()


def test_a_name_node_in_safe_mode_and_a_resource_manager_that_is_down_are_told(yarn: Yarn, cluster: Cluster) -> None:
    file = job_file(yarn)
    admin = "org.apache.hadoop.hdfs.tools.DFSAdmin"
    assert "is ON" in cluster.run(admin, "-safemode", "enter").stdout
    try:
        told = yarn.tm("submit", file, "--engine", "yarn")
    finally:
        assert "is OFF" in cluster.run(admin, "-safemode", "leave").stdout
    assert (told.returncode, told.stderr.count("error: ")) == (3, 1), told.stderr
    assert "is in safe mode" in told.stderr
    nothing_left()
    cluster.daemon("resourcemanager").kill()
    told = yarn.tm("submit", file, "--engine", "yarn")
    assert (told.returncode, told.stderr.count("error: ")) == (3, 1), told.stderr
    assert "refuses the connection: is it running?" in told.stderr
    revived(cluster)
    nothing_left()


def test_a_file_that_changes_while_it_is_uploaded_is_refused(yarn: Yarn) -> None:
    changing = yarn.write("data.tar", os.urandom(2**23))
    over = threading.Event()

    def change() -> None:
        with changing.open("r+b") as file:
            while not over.is_set():
                file.seek(2**23 - 8)
                file.write(os.urandom(8))
                file.flush()

    writer = threading.Thread(target=change)
    writer.start()
    try:
        with pytest.raises(EngineFailed, match=r"data\.tar changed while it was uploaded"):
            yarn.submit(workers("true"), archives=["data.tar"], files=[])
    finally:
        over.set()
        writer.join()
    nothing_left()


# -- Ctrl-C --

INSTANTS: dict[str, Callable[[], object]] = {
    "the job is written here": job_ids,
    "its note is on HDFS": lambda: any(path.endswith("/access") for path in on_hdfs()),
    "a file is on its way": lambda: any(path.endswith(".tmp") for path in on_hdfs()),
    "YARN has it": going,
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_an_interrupted_submission_leaves_nothing(yarn: Yarn, instant: str) -> None:
    """Or all of it, where it was over by then: a job that is known here."""
    yarn.write("data.tar", os.urandom(2**26))
    file = job_file(yarn, archives=["data.tar"], command="sleep 1000", environment=python_here(), files=["job.yaml"])
    asking = begun(yarn, "submit", file, "--engine", "yarn")
    try:
        until(lambda: INSTANTS[instant]() or asking.poll() is not None, LIMIT, what=instant)
        errors = ctrl_c(asking)
    finally:
        ended(asking)
    assert asking.returncode in (0, 130, -signal.SIGINT), errors  # at its very end Python lets the signal kill it
    assert "Traceback" not in errors
    if not job_ids():
        nothing_left()
        return
    job = Submitted(trainmaster.attach(job_ids()[0]))
    yarn.jobs.append(job)
    job.run.kill("no more")
    assert job.end(LIMIT)["state"] == "killed"


def test_ctrl_c_ends_watching_alone(yarn: Yarn) -> None:
    wait = f"echo here; until test -e '{yarn.folder}/go'; do sleep 0.05; done; echo done"
    file = job_file(yarn, command=wait, environment=python_here(), files=["job.yaml"])
    watching = begun(yarn, "run", file, "--engine", "yarn")
    assert watching.stdout is not None
    try:
        assert watching.stdout.readline() == "here\n"
        errors = ctrl_c(watching)
    finally:
        ended(watching)
    [name] = job_ids()
    job = Submitted(trainmaster.attach(name))
    yarn.jobs.append(job)
    assert watching.returncode == 130, errors
    assert f"{name} goes on" in errors
    yarn.write("go", "")
    job.succeeded(LIMIT)
    assert job.lines() == ["here", "done"]


# -- killed --

KILLED = """\
import os, signal, sys
from trainmaster.cli.main import main
from trainmaster.log.documents import files
write = files.write
def killed(path, fields):
    if path.name == "site.json" and "application" in fields:  # YARN has the job, and nothing here says so
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, fields)
files.write = killed
sys.exit(main())
"""


def test_a_key_leads_to_the_job_whose_submitter_was_killed_once_yarn_had_it(yarn: Yarn) -> None:
    """And that job is one of this machine again."""
    yarn.write("killed.py", KILLED)
    file = job_file(yarn, command=f"touch {yarn.folder}/ran; sleep 1000", environment=python_here(), files=["job.yaml"])
    command = [sys.executable, "killed.py", "submit", file, "--engine", "yarn", "--idempotency-key", "k"]
    done = subprocess.run(command, cwd=yarn.folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    [name], [application] = job_ids(), going()
    assert "application" not in site_of(name)
    told = yarn.tm("submit", file, "--engine", "yarn", "--idempotency-key", "k")
    assert told.returncode == 0, told.stderr
    job = Submitted(trainmaster.attach(name))
    yarn.jobs.append(job)
    assert name in told.stdout
    assert (job_ids(), going(), yarn.application(job)) == ([name], [application], application)
    until((yarn.folder / "ran").exists, LIMIT, what=job.run.status)
    job.run.kill("no more")
    assert job.end(LIMIT)["state"] == "killed"


HELD = """\
import asyncio, pathlib, sys
from trainmaster.cli.main import main
from trainmaster.engines.yarn import client
async def held(*given):
    pathlib.Path("held").touch()
    await asyncio.Event().wait()
client._hand_over = held
sys.exit(main())
"""


def test_a_job_whose_submitter_was_killed_before_yarn_had_it_is_ended_by_the_next_command(yarn: Yarn) -> None:
    yarn.write("held.py", HELD)
    file = job_file(yarn, command="true", environment=python_here(), files=["job.yaml"])
    key = ("--idempotency-key", "broken")
    asking = subprocess.Popen(
        [sys.executable, "held.py", "submit", file, "--engine", "yarn", *key],
        cwd=yarn.folder,
        stdout=subprocess.DEVNULL,
    )
    try:
        until((yarn.folder / "held").exists, LIMIT, what="all but the word to YARN")
        [name] = job_ids()
        assert "it is being submitted" in yarn.tm("status", name).stdout
        assert name in yarn.tm("list").stdout
        forced = yarn.tm("kill", name, "--force")
        assert (forced.returncode, "is being submitted" in forced.stderr) == (3, True), forced.stderr
    finally:
        ended(asking)
    told = yarn.tm("status", name)
    assert (told.returncode, "its submission was broken off" in told.stdout) == (0, True), told.stdout + told.stderr
    waited = yarn.tm("wait", name)
    assert "its submission was broken off" in yarn.tm("status", name).stdout, waited.stderr
    assert trainmaster.attach(name).wait(LIMIT, check=False)["state"] == "killed"
    assert going() == []
    told = yarn.tm("submit", file, "--engine", "yarn", *key)
    assert told.returncode == 0, told.stderr
    [another] = set(job_ids()) - {name}
    job = Submitted(trainmaster.attach(another))
    yarn.jobs.append(job)
    job.succeeded(LIMIT)


def test_drafts_of_a_killed_submission_are_removed_a_day_later(yarn: Yarn) -> None:
    """Those of inputs are folders. What somebody writes now, and what is no draft, stays."""
    place = store_for(f"{ours()}/inputs")
    place.remove("")
    for name in (".old.tmp", ".new.tmp", "0123", "files.tmp"):
        place.put(f"{name}/deep/file", b"x")
    dfs, path = open_dfs(place.url)
    for name in (".old.tmp", "0123", "files.tmp"):
        dfs.call(lambda client, name=name: client.set_times(f"{path}/{name}", 1000, 1000))  # type: ignore[misc]
    assert yarn.client().store().private("inputs").endswith("/inputs")
    left = {name for name in (".old.tmp", ".new.tmp", "0123", "files.tmp") if place.exists(name)}
    assert left == {".new.tmp", "0123", "files.tmp"}
    place.remove("")


# -- from elsewhere --


def test_a_job_is_found_from_another_machine(yarn: Yarn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its handle, its id, its beginning or YARN's own name for it; while it runs, and after it."""
    job = yarn.submit(workers("echo here; sleep 1000"), environment=python_here(), files=[])
    job.until_line("here")
    application, here = yarn.application(job), os.environ["TRAINMASTER_STATE_DIR"]
    for number, name in enumerate([application, job.id, job.id[:-2], f"yarn://elsewhere/{job.id}"]):
        monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(tmp_path / f"other-{number}"))
        told = yarn.tm("status", name)
        assert told.stdout.startswith(f"{job.id} running"), (name, told.stderr)
        assert yarn.tm("logs", name, "worker:0").stdout == "here\n"
    assert yarn.tm("kill", application).returncode == 0
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(tmp_path / "afterwards"))
    assert yarn.tm("status", job.id).stdout.startswith(f"{job.id} killed")
    assert yarn.tm("logs", job.id).stdout == "worker:0 here\n"
    for unknown in ("application_1_0001", "yarn://x/t-aaaaaa", "t-aaaaaa"):
        told = yarn.tm("status", unknown)
        assert told.returncode == 2
        assert "there is no job" in told.stderr
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", here)
    assert job.end()["state"] == "killed"


def test_what_jobs_share_on_hdfs_is_pruned_while_none_runs(yarn: Yarn) -> None:
    """YARN brings the files to containers that start later too, so nothing goes while a job runs."""

    def cached() -> list[str]:
        return [
            entry.name for kind in ("files", "runtime", "inputs") for entry in store_for(f"{ours()}/{kind}").entries("")
        ]

    yarn.write("data/a.csv", "a\n")
    job = yarn.submit(
        workers("cat train/a.csv; while [ ! -e go ]; do sleep 0.1; done"), environment=python_here(),
        inputs={"train": {"url": "data", "split": "whole"}},
    )  # fmt: skip
    job.until_line("a")
    there = cached()
    assert len(there) >= 3, there
    done = yarn.tm("prune", "--older", "0s", "--yes")
    assert done.returncode == 0, done.stderr
    assert cached() == there
    assert yarn.tm("kill", job.id).returncode == 0
    until(lambda: is_abandoned(job.id), limit=LIMIT)
    done = yarn.tm("prune", "--older", "0s", "--yes")
    assert done.returncode == 0, done.stderr
    assert cached() == []
    assert job.id not in job_ids()
    yarn.jobs.clear()
    assert store_for(f"{ours()}/jobs").entries("") == []


@pytest.mark.full
def test_a_priority_reaches_yarn_or_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster has a highest priority, 0 by default, to which YARN lowers what is higher without a word."""
    settings = Settings(nodes=1, properties={"yarn.cluster.max-application-priority": "4"})
    with own_hadoop(settings) as cluster, yarn_on(cluster, tmp_path, monkeypatch) as yarn:
        for priority, warns in ((4, False), (9, True)):
            done = yarn.tm("submit", "--engine", "yarn", "--priority", str(priority), "--", "true")
            assert done.returncode == 0, done.stderr
            job = Submitted(trainmaster.attach(done.stdout.strip()))
            yarn.jobs.append(job)
            assert yarn.client().report(yarn.application(job)).priority.priority == 4
            warning = (
                f"warning: --priority: YARN gives the job 4 instead of {priority}; the highest that the cluster allows "
            )
            assert (warning in done.stderr) == warns, done.stderr
            job.succeeded()
