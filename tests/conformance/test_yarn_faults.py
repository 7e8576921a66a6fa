"""Daemons of a real cluster die, and come back, in the middle of jobs; what they find is what was there."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import listening
import pytest
from conformance.engines import LIMIT, Submitted, Yarn, container_process, in_containers, python, role, workers
from conformance.test_clusters import container, held, lives, running
from hadoop import own_hadoop, revived
from waiting import until
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.sync.client import connect

from trainmaster.clusters.hadoop import Cluster, Settings, pages
from trainmaster.core.errors import TrainmasterError
from trainmaster.data.store.stores import store_for
from trainmaster.host import linux
from trainmaster.runtime.network import listeners

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

TELL = 180.0  # s within which a daemon that came back has told all; reached by a failure alone
READ = 16 << 20  # bytes a second that the DataNode reads for anyone: what is staged takes a while
MASTER = {"resources": {"memory": "256MiB"}}
LARGEST = "<name>yarn.scheduler.maximum-allocation-mb</name><value>{}</value>"
KILL_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """NodeManagers that remember their containers, and leave 20 s between TERM and KILL; a DataNode that reads slowly."""
    properties = {
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.recovery.dir": "${yarn.nodemanager.local-dirs}/../recovery",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": "20000",
        "dfs.datanode.data.read.bandwidthPerSec": str(READ),
    }
    with own_hadoop(Settings(nodes=2, node_expiry=30.0, properties=properties)) as started:
        yield started


@pytest.fixture
def cluster(shared: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    hdfs_serves(shared)
    return shared


@pytest.fixture
def yarn(cluster: Cluster, tmp_path: Path) -> Iterator[Yarn]:
    folder = tmp_path / "place"
    folder.mkdir()
    made = Yarn(folder, cluster)
    yield made
    hdfs_serves(cluster)
    made.close()


def restarted(cluster: Cluster, name: str) -> None:
    cluster.daemon(name).kill()
    cluster.daemon(name).start()
    cluster.wait_ready()


def hdfs_serves(cluster: Cluster) -> None:
    """A DataNode that was killed counts as living for minutes: what tells is a file that is taken, and read."""
    revived(cluster)

    def takes() -> bool:
        store = store_for("hdfs:///tmp/probe")
        try:
            store.put("file", b"content")
            return store.get("file") == b"content"
        except OSError:
            return False

    until(takes, TELL, what="a file that HDFS takes")


def goes_on_to_its_end(yarn: Yarn, job: Submitted, tasks: int = 2) -> None:
    """As nothing had been: one master, one start of each program."""
    yarn.write("go", "")
    status = job.succeeded(TELL)
    assert status["epoch"] == 1
    assert [task["attempt"] for task in status["tasks"]] == [1] * tasks
    for index in range(tasks):
        assert [line.split()[0] for line in job.lines(f"worker:{index}")] == ["pid", "done"]
    assert yarn.client().application_state(yarn.application(job))[0] == "ended"


# -- the ResourceManager --


def test_a_resource_manager_comes_back_and_grants_again(cluster: Cluster, yarn: Yarn) -> None:
    """No program notices; what the master asks for afterwards is granted, so it has registered again."""
    job = running(yarn)
    pids = [int(job.lines(f"worker:{index}")[0].split()[1]) for index in range(2)]
    restarted(cluster, "resourcemanager")
    assert all(map(lives, pids))
    os.kill(linux.look(job.attempt(1, "worker:1")["pid"]).parent, 9)
    job.until_line("attempt 2", "worker:1")
    yarn.write("go", "")
    status = job.succeeded(TELL)
    assert (status["epoch"], [task["attempt"] for task in status["tasks"]]) == (1, [1, 2])
    assert lives_no_more(pids)
    assert yarn.client().application_state(yarn.application(job))[0] == "ended"


def lives_no_more(pids: list[int]) -> bool:
    return until(lambda: not any(map(lives, pids)), TELL, what="the programs' end")


@pytest.mark.soak
def test_a_job_ends_while_there_is_no_resource_manager(cluster: Cluster, yarn: Yarn) -> None:
    """Its end is told to the one that comes back."""
    job = running(yarn)
    cluster.daemon("resourcemanager").kill()
    yarn.write("go", "")
    job.until_status(
        "its tasks' end", lambda status: all(task["state"] == "succeeded" for task in status["tasks"]), TELL
    )
    cluster.daemon("resourcemanager").start()
    cluster.wait_ready()
    job.succeeded(TELL)
    assert until(lambda: yarn.client().application_state(yarn.application(job))[0] == "ended", TELL)


# -- what a ResourceManager does not know any more, or does not grant for now --


def sized(command: str, memory: str, replicas: Any = 1) -> dict[str, Any]:
    return role(command, replicas) | {"resources": {"cores": 0.05, "memory": memory}}


def kill_agent(yarn: Yarn, job: Submitted, task: str) -> None:
    """Its program ends with it."""
    program = int(job.lines(task)[0].split()[1])
    os.kill(container_process(yarn.application(job), container(job, task), "agent"), signal.SIGKILL)
    until(lambda: not lives(program), TELL, what="the program's end")


def test_a_node_that_dies_with_the_resource_manager_never_comes_back(cluster: Cluster, yarn: Yarn) -> None:
    """Nobody tells of the end of its containers. Its tasks begin again on the other node, which holds one at a time beside the master."""
    roles = {"worker": sized(held(yarn), "1900MiB", 2)}
    job = yarn.submit(roles, master=MASTER, timeouts={"grace": "20s"})
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    masters = os.readlink(f"/proc/{container_process(yarn.application(job), '', 'master')}/cwd")
    number = next(number for number in (1, 2) if f"/node-{number}/" not in masters)
    lost = [task["task"] for task in job.status()["tasks"] if task["node"] == cluster.node_id(number)]
    assert lost
    cluster.daemon("resourcemanager").kill()
    cluster.daemon(f"nodemanager-{number}").kill()
    for task in lost:
        kill_agent(yarn, job, task)
    cluster.daemon("resourcemanager").start()
    yarn.write("go", "")
    status = job.succeeded(TELL)
    assert not cluster.daemon(f"nodemanager-{number}").alive
    attempts = {task["task"]: task["attempt"] for task in status["tasks"]}
    assert attempts == {f"worker:{index}": 1 + (f"worker:{index}" in lost) for index in range(2)}


def test_what_a_gang_was_granted_and_did_not_use_yet_is_asked_for_again(cluster: Cluster, yarn: Yarn) -> None:
    """Beside the first job's task there is room for one of the two that the gang needs."""
    first = yarn.submit({"worker": sized(held(yarn), "3400MiB")}, master=MASTER)
    first.until_line("pid")
    gang = {"worker": sized("echo $RANK of $WORLD_SIZE", "2800MiB", {"min": 2, "max": 3})}
    job = yarn.submit(gang, master=MASTER, framework="pytorch", checkpoint={"path": "ckpt"})
    address = f"/ws/v1/cluster/apps/{yarn.application(job)}"

    def containers() -> int:
        found = pages.ask(cluster.place.ports["resourcemanager.http"], address) or {}
        return int(found.get("app", {}).get("runningContainers", 0))

    until(lambda: containers() == 2, LIMIT, what="its master's container and one more")
    job.until_status("its waiting", lambda status: status["waiting"])
    restarted(cluster, "resourcemanager")
    yarn.write("go", "")
    first.succeeded(TELL)
    job.succeeded(TELL)
    assert sorted(job.run.logs()) == ["worker:0 0 of 2", "worker:1 1 of 2"]


@pytest.mark.soak
def test_an_ask_that_fits_no_node_any_more_waits_and_keeps_no_other_back(cluster: Cluster, yarn: Yarn) -> None:
    """The largest size that is granted falls, and rises again."""
    site = cluster.conf_dir / "yarn-site.xml"
    before = site.read_text()
    roles = {"large": sized(held(yarn), "1900MiB"), "small": role(held(yarn))}
    job = yarn.submit(roles, master=MASTER)
    for name in ("large", "small"):
        job.until_line("pid", f"{name}:0")
    try:
        site.write_text(before.replace(LARGEST.format(4096), LARGEST.format(1024)))
        assert site.read_text() != before
        restarted(cluster, "resourcemanager")
        kill_agent(yarn, job, "large:0")
        job.until_status("a second attempt", lambda status: attempt(status, "large:0") == 2, TELL)
        kill_agent(yarn, job, "small:0")
        job.until_line("attempt 2", "small:0")
        assert "attempt 2" not in "".join(job.lines("large:0", 2))
    finally:
        site.write_text(before)
        restarted(cluster, "resourcemanager")
    job.until_line("attempt 2", "large:0")
    yarn.write("go", "")
    job.succeeded(TELL)


def attempt(status: dict[str, Any], key: str) -> int:
    return next(task["attempt"] for task in status["tasks"] if task["task"] == key)


# -- HDFS --


@pytest.mark.parametrize("gone", [("namenode",), ("datanode", "namenode")])
def test_hdfs_is_gone_for_a_while(cluster: Cluster, yarn: Yarn, gone: tuple[str, ...]) -> None:
    """Programs go on; what is decided waits, and the job's page says for what; nothing is lost.

    A DataNode that dies breaks the file that the log is written to, so the log goes on in another.
    """
    job = running(yarn)
    application = yarn.application(job)
    for name in gone:
        cluster.daemon(name).kill()
    yarn.write("go", "")
    until(
        lambda: "waits for its storage: " in page(cluster, application), TELL, what=lambda: page(cluster, application)
    )
    for name in reversed(gone):
        cluster.daemon(name).start()
    hdfs_serves(cluster)
    goes_on_to_its_end(yarn, job)


def test_a_master_that_starts_while_hdfs_is_in_safe_mode_waits_for_it(cluster: Cluster, yarn: Yarn) -> None:
    """It died at once, and after the second such death YARN gave the job up."""

    def safe_mode(change: str) -> None:
        done = cluster.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", change)
        assert done.returncode == 0, done.stderr

    def words() -> str:
        """Return all that the job's masters wrote to stderr."""
        files = cluster.folder.glob(f"node-*/logs/{application}/container_*_000001/stderr")
        return "\n".join(file.read_text(errors="replace") for file in files)

    job = running(yarn, timeouts={"grace": "5m"})
    application = yarn.application(job)
    safe_mode("enter")
    try:
        yarn.kill_master(job)
        until(lambda: "waits for its storage: " in words(), TELL, what=words)
    finally:
        safe_mode("leave")
    yarn.write("go", "")
    status = job.succeeded(TELL)
    assert (status["epoch"], [task["attempt"] for task in status["tasks"]]) == (2, [1, 1]), job.story(status)


def test_what_a_program_wrote_waits_for_a_namenode_that_is_away(cluster: Cluster, yarn: Yarn) -> None:
    """However long after the tries that every piece of work has; nothing is done again, though nothing would be allowed to."""
    program = f"{held(yarn)}; echo trained > model"
    job = yarn.submit(workers(program, restart="never"), outputs={"model": {"url": yarn.place("model")}})
    job.until_line("pid")
    agent = container_process(yarn.application(job), container(job, "worker:0"), "agent")
    private = Path(os.readlink(f"/proc/{agent}/cwd"), ".trainmaster")

    def tried_again() -> bool:
        return any("it is tried again" in log.read_text() for log in private.rglob("agent.log"))

    cluster.daemon("namenode").kill()
    yarn.write("go", "")
    until(tried_again, TELL, what=lambda: [log.read_text() for log in private.rglob("agent.log")])
    cluster.daemon("namenode").start()
    hdfs_serves(cluster)
    status = job.succeeded(TELL)
    assert [task["attempt"] for task in status["tasks"]] == [1]
    assert yarn.files("model")["worker-0/model"] == b"trained\n"
    assert "its storage is away" in str(told(job, "trouble"))


def page(cluster: Cluster, application: str) -> str:
    """What YARN's proxy shows of a job."""
    line = http.client.HTTPConnection("localhost", cluster.place.ports["resourcemanager.http"], timeout=60)
    try:
        line.request("GET", f"/proxy/{application}/")
        return line.getresponse().read().decode()
    finally:
        line.close()


def test_a_datanode_dies_while_a_large_input_is_staged(cluster: Cluster, yarn: Yarn) -> None:
    """What is staged is whole, whether in one attempt or in several."""
    size = 6 * READ
    yarn.put("data/large.bin", bytes(range(256)) * (size // 256))
    program = python("""
        import hashlib
        print(hashlib.file_digest(open("train/large.bin", "rb"), "sha256").hexdigest())
    """)
    job = yarn.submit(
        workers(program, restart={"scope": "task", "limit": 100}),
        inputs={"train": {"url": yarn.place("data"), "as": "download"}},
    )
    until(lambda: 0 < fetched(cluster, "large.bin") < size, TELL, what=job.run.status)
    cluster.daemon("datanode").kill()
    hdfs_serves(cluster)
    job.succeeded(TELL)
    assert job.lines() == [hashlib.sha256(bytes(range(256)) * (size // 256)).hexdigest()]


def fetched(cluster: Cluster, name: str) -> int:
    """Return how many bytes of a file the nodes' containers have: what is staged is told to the master, which writes no event of it."""
    total = 0
    for folder in cluster.folder.glob("node-*/local/usercache/*/appcache/*/container_*"):
        for path in folder.rglob(f"*{name}*"):
            with contextlib.suppress(FileNotFoundError):  # it was renamed, now that it is whole
                total += path.stat().st_blocks * 512
    return total


def told(job: Submitted, kind: str) -> list[dict[str, Any]]:
    """Its events of one type, where there are any yet."""
    try:
        return job.told(kind)
    except TrainmasterError:
        return []


# -- NodeManagers --


def test_a_node_manager_comes_back_to_its_containers(cluster: Cluster, yarn: Yarn) -> None:
    """With yarn.nodemanager.recovery.enabled it takes them over, and no program notices."""
    job = running(yarn)
    for number in (1, 2):
        restarted(cluster, f"nodemanager-{number}")
    goes_on_to_its_end(yarn, job)


# -- ends --


def test_what_was_printed_last_is_stored_when_yarn_kills(cluster: Cluster, yarn: Yarn) -> None:
    """By `yarn application -kill`. Nothing but the agent's haste stores it: the next regular time would be in an hour."""
    program = f"echo first; {held(yarn, 'more')}; echo the last line; sleep 1000"
    job = yarn.submit(workers(program, 2), logs={"every": "1h"})
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    yarn.write("more", "")
    for index in range(2):
        job.until_line("the last line", f"worker:{index}")
    application = yarn.application(job)
    done = cluster.run(KILL_CLI, "application", "-kill", application)
    assert f"Killed application {application}" in done.stdout + done.stderr, done.stderr
    until(lambda: not in_containers(application), TELL, what=lambda: in_containers(application))
    ended = job.end()
    assert (ended["state"], [task["attempt"] for task in ended["tasks"]]) == ("killed", [1, 1])
    assert ended["epoch"] == 1, "its own master wrote the end"
    assert ended["reason"]["figures"]["by"] == "yarn", ended["reason"]
    for index in range(2):
        assert job.lines(f"worker:{index}")[-1] == "the last line"


# -- whoever is not of the job --


def test_every_port_refuses_who_has_not_its_token(yarn: Yarn) -> None:
    job = running(yarn)
    application = yarn.application(job)
    ours = [container_process(application, "", "master")]
    ours += [container_process(application, container(job, f"worker:{index}"), "agent") for index in range(2)]
    ports = {pid: listening.ports(pid) for pid in ours}
    assert [len(ports[pid]) for pid in ours] == [2, 0, 0], "the master's for the job and its page's, and no other"
    kinds = dict(zip(ours, ("master", "agent", "agent"), strict=True))
    assert set(listening.rows_of(kinds)) >= {listeners.MASTER, listeners.PROGRAMS}
    told = {port: refusal(port) for port in ports[ours[0]]}
    assert sorted(told.values()) == ["401 403", "page"], told
    goes_on_to_its_end(yarn, job)


def refusal(port: int) -> str:
    """What somebody is told at a port who has another token: by REST and as an agent, or on the page, which changes nothing."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    wrong = {"Authorization": "Bearer " + "0" * 64}
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        page.request("POST", "/", headers=wrong)
        answer = page.getresponse()
        assert answer.status in (403, 405), answer.status
        return "page"
    except (http.client.HTTPException, OSError):
        pass  # it speaks TLS
    finally:
        page.close()
    statuses = set()
    for path in ("/api/v1/jobs", "/api/v1/jobs/j/logs/worker:0", "/api/v1/jobs/j/actions/kill"):
        line = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=anyone)
        line.request("POST" if path.endswith("kill") else "GET", path, body=b"{}", headers=wrong)
        statuses.add(line.getresponse().status)
        line.close()

    def refused() -> int | None:
        """The status of the answer; None where the master, busy for as long as a stranger may stay, cut the connection instead."""
        url = f"wss://127.0.0.1:{port}/api/v1/agent"
        try:
            connect(url, ssl=anyone, additional_headers=wrong, open_timeout=60, proxy=None).close()
        except InvalidStatus as error:
            return error.response.status_code
        except InvalidMessage:
            return None
        raise AssertionError("somebody without the token was let in")

    statuses.add(until(refused, what="an answer"))
    with socket.create_connection(("127.0.0.1", port), 60) as garbage:
        garbage.sendall(os.urandom(4096))
    return " ".join(map(str, sorted(statuses)))
