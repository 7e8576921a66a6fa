"""What an engine with several nodes must do: devices that are counted, waiting in words, and the deaths of whatever runs on a node.

Programs are held up by a file of the submitter's directory, which the nodes of tests see (see `engines`).
"""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted, Yarn, role, workers
from waiting import until

from trainmaster.client.jobs.places import job_ids
from trainmaster.core.errors import BadInput
from trainmaster.engines import contract
from trainmaster.engines.yarn.client import YarnClient
from trainmaster.host import linux
from trainmaster.log.dfs import open_dfs
from trainmaster.log.documents import files

NODES = pytest.mark.needs("nodes")
NODES_TELL = 150.0  # s within which a dead node, or a dead master, is followed by another on a busy machine


def held(engine: Engine, name: str = "go") -> str:
    """A program that tells its process and its attempt, and goes on when the file is there."""
    return f"echo pid $$ attempt $TRAINMASTER_ATTEMPT; while ! test -e '{engine.folder}/{name}'; do sleep 0.05; done; echo done"


def running(engine: Engine, tasks: int = 2, **keys: object) -> Submitted:
    job = engine.submit(workers(held(engine), tasks), **keys)
    for index in range(tasks):
        job.until_line("pid", f"worker:{index}")
    return job


def container(job: Submitted, task: str) -> str:
    """The container that the task has."""
    return str([event for event in job.told("granted") if event["task"] == task][-1]["container"])


def lives(pid: int) -> bool:
    return linux.look(pid) is not None


# -- everywhere --


@pytest.mark.brief
def test_ranks_addresses_and_a_place_of_each_tasks_own(engine: Engine) -> None:
    program = "echo $TRAINMASTER_INDEX $RANK of $WORLD_SIZE, master $MASTER_ADDR:$MASTER_PORT; test -s $TRAINMASTER_PEERS || exit 1"
    job = engine.submit(workers(program, 2, ports=["meet"]), framework="pytorch", gang=True)
    job.succeeded()
    told = [job.lines(f"worker:{index}")[0].split(", master ") for index in range(2)]
    assert [one[0] for one in told] == ["0 0 of 2", "1 1 of 2"]
    assert told[0][1] == told[1][1]
    assert re.fullmatch(r"[\w.:-]+:\d+", told[0][1])


@pytest.mark.brief
def test_the_job_is_listed_followed_and_found_again(engine: Engine) -> None:
    """Whoever comes later, from another process, sees the same job by its id, its name and its handle."""
    job = running(engine, 1)
    assert re.search(rf"^{job.id} +running", engine.tm("list").stdout, re.MULTILINE)
    assert job.run.handle.startswith(f"{engine.name}://")
    for name in (job.id, "t", job.run.handle):
        assert f"{job.id} running" in engine.tm("status", name).stdout
    engine.write("go", "")
    done = engine.tm("attach", "--all-output", job.id)
    assert done.returncode == 0, done.stderr
    assert "done\n" in done.stdout
    job.succeeded()
    assert engine.tm("logs", job.id, "worker:0").stdout.splitlines()[-1] == "done"
    assert re.search(rf"^{job.id} +succeeded", engine.tm("list").stdout, re.MULTILINE)


def test_50_tasks(engine: Engine) -> None:
    """Each has its own rank, address and end."""
    roles = {
        "worker": {
            "command": "echo I am $TRAINMASTER_INDEX",
            "replicas": 50,
            "resources": {"cores": 0.01, "memory": "64MiB"},
        }
    }
    job = engine.submit(roles)
    job.succeeded(300)
    assert sorted(job.run.logs()) == sorted(f"worker:{index} I am {index}" for index in range(50))


def test_an_agent_that_is_killed_ends_its_program_and_its_task_begins_again(engine: Engine) -> None:
    job = running(engine)
    pid = engine.process(job, 1, "worker:1")
    os.kill(linux.look(pid).parent, signal.SIGKILL)
    until(lambda: not lives(pid), what="the program's end")
    job.until_status("a second attempt", lambda status: status["tasks"][1]["attempt"] == 2)
    job.until_line("attempt 2", "worker:1")
    engine.write("go", "")
    job.succeeded()
    assert job.task("worker:0")["attempt"] == 1


# -- where there are several nodes --


@NODES
@pytest.mark.brief
def test_counted_devices_are_granted(engine: Engine) -> None:
    gpus = {"cores": 0.05, "memory": "64MiB", "gpus": 2}
    job = engine.submit({"worker": {"command": "echo $TRAINMASTER_INDEX", "replicas": 2, "resources": gpus}})
    job.succeeded()
    assert len({event["node"] for event in job.told("granted")}) == 2, "each node has two"


@NODES
@pytest.mark.needs("largest")
@pytest.mark.brief
def test_more_devices_than_any_node_has_are_refused(engine: Engine) -> None:
    gpus = {"cores": 0.05, "memory": "64MiB", "gpus": 2}
    with pytest.raises(BadInput, match="GPUs"):
        engine.submit({"worker": {"command": "true", "resources": {**gpus, "gpus": 3}}})


@NODES
@pytest.mark.needs("application")
def test_who_waits_says_for_what(engine: Engine) -> None:
    """A job that there is no room for says what it asked for and what is free; other reasons are in test_yarn_asks."""
    size = {"cores": 0.05, "memory": "2500MiB"}
    first = engine.submit({"worker": {"command": held(engine), "replicas": 2, "resources": size}})
    first.until_line("pid", "worker:1")
    second = engine.submit({"worker": {"command": "true", "resources": size}})
    told = str(second.until_status("its waiting", lambda status: "free" in (status["waiting"] or ""))["waiting"])
    assert told.startswith("worker:0: 2.5"), told
    assert "GiB, 0.05 cores: queue default is full; it has " in told, told
    assert "queue default is full; it has " in engine.tm("status", second.id).stdout
    (submitted,) = second.told("submitted")
    assert second.status()["submitted"] == submitted["since"] < submitted["at"], "its master was waited for, too"
    engine.write("go", "")
    first.succeeded()
    second.succeeded()


@NODES
@pytest.mark.needs("application")
@pytest.mark.parametrize(
    ("resources", "keys", "words"),
    [
        ({}, {"engines": {"yarn": {"queue": "nowhere"}}}, "there is no queue nowhere"),
        ({"memory": "100GiB"}, {}, "worker needs .* grants at most 4 GiB"),
        ({"cores": 99999999999}, {}, "worker needs .* grants at most 4 GiB"),
        ({}, {"master": {"resources": {"memory": "100GiB"}}}, "the master needs .* grants at most 4 GiB"),
        ({}, {"engines": {"yarn": {"tags": ["\u00e9"]}}}, "is not a tag of YARN"),
    ],
)
def test_what_the_cluster_never_grants_is_refused_at_submit(
    engine: Engine, resources: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        engine.submit({"worker": {"command": "true", "resources": resources}}, **keys)


@NODES
@pytest.mark.brief
def test_the_masters_death_is_not_noticed_by_programs(engine: Engine) -> None:
    job = running(engine)
    engine.kill_master(job)
    job.until_status("a new master", lambda status: status["epoch"] == 2, NODES_TELL)
    engine.write("go", "")
    status = job.succeeded(NODES_TELL)
    assert [task["attempt"] for task in status["tasks"]] == [1, 1]
    for index in range(2):
        lines = job.lines(f"worker:{index}")
        assert [line.split()[0] for line in lines] == ["pid", "done"], "one start"


@NODES
def test_a_node_dies_and_comes_back_with_what_ran_there(engine: Engine) -> None:
    """Its tasks begin again elsewhere; what still runs on it ends by itself, and is never heard again."""
    job = running(engine)
    nodes = {task["task"]: task["node"] for task in job.status()["tasks"]}
    task = next(iter(nodes))
    lost = [key for key, node in nodes.items() if node == nodes[task]]
    pids = [engine.process(job, 1, key) for key in lost]
    engine.kill_node(nodes[task])
    try:
        job.until_status(
            "another attempt",
            lambda status: all(t["attempt"] == 2 for t in status["tasks"] if t["task"] in lost),
            NODES_TELL,
        )
        until(lambda: not any(map(lives, pids)), NODES_TELL, what="the end of what ran on the lost node")
    finally:
        engine.revive()
    for key in lost:
        until(lambda key=key: "attempt 2" in "".join(job.lines(key, 2)), NODES_TELL, what="the second attempt")
    engine.write("go", "")
    job.succeeded(NODES_TELL)
    # Nothing of it after the loss, and nothing at all where all of the node died before it was stored.
    assert all(len(job.lines(key, 1)) <= 1 for key in lost)


@pytest.mark.needs("application")
@pytest.mark.brief
def test_yarns_own_kill_ends_the_job_and_its_log(engine: Engine) -> None:
    assert isinstance(engine, Yarn)
    job = running(engine, 1, logs={"every": "200ms"})
    pid = int(job.lines()[0].split()[1])
    until(
        lambda: job.entries("logs/worker-0/1.log.d"), what="its output in the storage: YARN gives no time for the rest"
    )
    engine.client().end(engine.application(job))
    until(lambda: not lives(pid), what="the program's end")
    status = job.end()
    assert status["state"] == "killed", status
    assert status["gave_up"] == []
    assert engine.tm("status", job.id).stdout.splitlines()[0].startswith(f"{job.id} killed")
    assert engine.tm("wait", job.id).returncode == 1
    assert job.lines()[0].startswith("pid")


@pytest.mark.needs("application")
def test_what_a_job_does_on_hdfs_its_submitter_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its containers run as a user of YARN's; nobody has to show who he is."""
    assert isinstance(engine, Yarn)
    dfs, _ = open_dfs("hdfs:///")
    home, theirs, out = "/user/alice", f"{engine.root}/theirs", f"{engine.root}/hers"
    dfs.call(lambda client: client.mkdirs(engine.root, 0o755, True))
    for path, owner in ((home, "alice"), (out, "alice"), (theirs, "bob")):
        dfs.call(lambda client, path=path: client.mkdirs(path, 0o700, True))
        dfs.call(lambda client, path=path, owner=owner: client.set_owner(path, owner))
    try:
        monkeypatch.setenv("HADOOP_USER_NAME", "alice")
        made = {"model": {"url": f"hdfs://{out}/model", "from": "worker:0"}}
        job = engine.submit(workers("echo $HADOOP_USER_NAME; mkdir model; echo x > model/x"), outputs=made)
        job.succeeded()
        assert job.lines() == ["alice"]
        job = engine.submit(workers("cat theirs/*"), inputs={"theirs": {"url": f"hdfs://{theirs}", "as": "list"}})
        told = job.failed("input-missing")
        assert "Permission denied: user=alice" in told["words"]
        found = dfs.call(lambda client: list(client.list_status(home, True)) + list(client.list_status(out, True)))
        assert found
        assert {file.owner for file in found} == {"alice"}
    finally:
        monkeypatch.delenv("HADOOP_USER_NAME")
        dfs.call(lambda client: client.delete(home, True))


@pytest.mark.needs("application")
def test_a_submission_that_cannot_be_noted_leaves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up once YARN has the job: without its note nobody would find it again."""
    asked: list[str] = []

    def full(self: YarnClient, submission: contract.Submission) -> contract.Submitted:
        submitted = submit(self, submission)
        asked.append(submitted.application)
        changed.setattr(files, "write", no_room)
        return submitted

    def no_room(path: Path, fields: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    submit = YarnClient.submit
    with monkeypatch.context() as changed:
        changed.setattr(YarnClient, "submit", full)
        with pytest.raises(OSError, match="No space left"):
            engine.submit(workers("sleep 1000"))
    assert isinstance(engine, Yarn)
    assert engine.client().application_state(asked[0])[0] == "killed"
    assert job_ids() == []


@NODES
def test_a_job_that_is_killed_before_its_master_runs_never_starts(engine: Engine) -> None:
    job = engine.submit({"worker": role(f"touch {engine.folder}/started; sleep 1000")})
    job.run.kill("no more")
    assert job.end()["state"] == "killed"
    assert not Path(engine.folder, "started").exists() or job.told("started")
