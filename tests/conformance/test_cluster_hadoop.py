"""A real Hadoop on this machine: it comes up with what was asked for, survives the loss of daemons, and ends surely."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import waiting
from hadoop import own_hadoop

from trainmaster.clusters import daemons
from trainmaster.clusters import hadoop as hadoop_clusters
from trainmaster.clusters.hadoop import Cluster, Settings, pages

pytestmark = pytest.mark.xdist_group("hadoop")
SOAK = pytest.mark.soak  # what takes long and differs little from what does not

SHELL = "org.apache.hadoop.fs.FsShell"
APPLICATIONS = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
DISTRIBUTED_SHELL = "org.apache.hadoop.yarn.applications.distributedshell.Client"


def asked(cluster: Cluster, path: str) -> dict[str, object]:
    """What the ResourceManager's page says."""
    found = pages.ask(cluster.place.ports["resourcemanager.http"], f"/ws/v1/cluster/{path}")
    assert found
    return found  # type: ignore[no-any-return]


def tm(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more})


def status(page: str, method: str, path: str, headers: dict[str, str], body: object = None) -> int:
    """The status of an answer of a page; 0 where there is none."""
    scheme, _, host = page.partition("://")
    anybody = ssl._create_unverified_context()
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(host, timeout=60, context=anybody)
        if scheme == "https"
        else http.client.HTTPConnection(host, timeout=60)
    )
    try:
        content = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, json.dumps(body) if body else None, {**headers, **content})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


# -- the shared one --


def test_it_has_the_nodes_queues_and_resources_asked_for(hadoop: Cluster) -> None:
    nodes = asked(hadoop, "nodes")["nodes"]["node"]  # type: ignore[index]
    assert sorted(node["id"] for node in nodes) == [hadoop.node_id(1), hadoop.node_id(2)]
    for node in nodes:
        offered = {
            part["name"]: part["value"] for part in node["totalResource"]["resourceInformations"]["resourceInformation"]
        }
        assert offered == {"memory-mb": 4096, "vcores": 8, "yarn.io/gpu": 2}
    queues = asked(hadoop, "scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]  # type: ignore[index]
    assert {queue["queueName"]: round(queue["capacity"]) for queue in queues} == {"default": 70, "low": 30}


CURL = {"User-Agent": "curl"}
OF_THE_WEB = {
    "User-Agent": "Mozilla/5.0",
    "Host": "evil.example",
    "Origin": "http://evil.example",
    "X-XSRF-Header": "1",
}


@pytest.mark.full
def test_no_page_reads_or_changes_files_or_ends_an_application(hadoop: Cluster, tmp_path: Path) -> None:
    """Neither as another user of the machine asks, nor as a page of the web does."""
    (tmp_path / "private").write_text("private")
    assert hadoop.run(SHELL, "-put", "-f", str(tmp_path / "private"), "/tmp/private").returncode == 0
    ports, reads = (
        hadoop.place.ports,
        f"user.name={hadoop.place.user}&namenoderpcaddress=localhost:{hadoop.place.ports['namenode']}",
    )
    with sleeping(hadoop) as application:
        for headers in ({}, CURL, OF_THE_WEB):
            for port in (ports["namenode.http"], ports["datanode.http"]):
                for page in (f"http://localhost:{port}", f"https://localhost:{port}"):
                    for method, path in (
                        ("GET", f"/webhdfs/v1/tmp/private?op=OPEN&{reads}"), ("GET", f"/webhdfs/v1/?op=LISTSTATUS&{reads}"),
                        ("OPTIONS", "/webhdfs/v1/tmp/made"), ("PUT", f"/webhdfs/v1/tmp/made?op=CREATE&{reads}"),
                        ("DELETE", f"/webhdfs/v1/tmp/private?op=DELETE&{reads}"), ("GET", "/fsck?path=/&delete=1&ugi=root"),
                        ("GET", "/imagetransfer?getimage=1&txid=latest"), ("GET", "/conf"),
                    ):  # fmt: skip
                        assert status(page, method, path, headers) == 0, f"{method} {page}{path}"
            for page in (*hadoop.pages.values(), inner_page(hadoop)):
                assert is_closed_to_all_names(page, hadoop.place.user, headers)
        master, node = hadoop.pages["resourcemanager"], hadoop.pages["nodemanager-1"]
        app, labels = (
            f"/ws/v1/cluster/apps/{application}",
            {"nodeLabelInfo": [{"name": "foreign", "exclusivity": True}]},
        )
        for headers in (CURL, OF_THE_WEB):  # without User-Agent, which browsers always send, RPC's rules hold
            assert status(master, "PUT", f"{app}/state", headers, {"state": "KILLED"}) == 400
            assert status(master, "PUT", f"{app}/queue", headers, {"queue": "low"}) == 400
            assert status(master, "POST", "/ws/v1/cluster/apps/new-application", headers) == 400
            assert status(node, "PUT", "/ws/v1/node/auxiliaryservices", headers, {"services": []}) == 400
            for page, path in ((master, "/cluster"), (master, f"/cluster/app/{application}"), (node, "/node")):
                assert status(page, "GET", path, headers) == 200
        for headers in ({}, CURL, OF_THE_WEB):
            assert status(master, "POST", "/ws/v1/cluster/add-node-labels", headers, labels) in (400, 401)
        assert asked(hadoop, f"apps/{application}")["app"]["state"] == "RUNNING"  # type: ignore[index]
        assert hadoop.run(APPLICATIONS, "application", "-kill", application).returncode == 0
    assert pages.ask(hadoop.place.ports["resourcemanager.http"], "/ws/v1/cluster/get-node-labels") == {}
    assert hadoop.run(SHELL, "-cat", "/tmp/private").stdout == "private"
    assert hadoop.run(SHELL, "-test", "-e", "/tmp/made").returncode == 1
    fsck = hadoop.run("org.apache.hadoop.hdfs.tools.DFSck", "/")
    assert "is HEALTHY" in fsck.stdout, f"its user has the key\n{fsck.stderr}"


def is_closed_to_all_names(page: str, user: str, headers: dict[str, str]) -> bool:
    """Tell whether a page keeps from everyone, by whatever name, what its daemon logs and how it is configured."""
    names = ("", *(f"&user.name={name}" for name in (user, "root", "yarn", "hdfs", "dr.who")))
    for path in ("/logLevel?log=x&level=OFF", "/conf?format=xml", "/stacks?all=1", "/jmx?qry=*:*"):
        for name in names:
            assert status(page, "GET", f"{path}{name}", headers) == 403, f"{page}{path}{name}"
    return True


@contextmanager
def sleeping(cluster: Cluster) -> Iterator[str]:
    """An application with a container that sleeps."""
    jar = next(cluster.place.jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
    words = ["-jar", str(jar), "-shell_command", "sleep 600", "-container_memory", "128", "-master_memory", "512"]
    command = cluster.command(DISTRIBUTED_SHELL, *words)
    with subprocess.Popen(command, env={**os.environ, **cluster.environ}, stderr=subprocess.DEVNULL) as client:
        try:
            waiting.until(lambda: any(b"sleep" in _command(one.pid) for one in daemons.containers(cluster.folder)), 120)
            [application] = asked(cluster, "apps?states=RUNNING")["apps"]["app"]  # type: ignore[index]
            yield application["id"]
        finally:
            client.kill()


def inner_page(cluster: Cluster) -> str:
    """The DataNode's page behind its TLS, at a port that it chooses."""
    known = cluster.place.ports.values()
    sockets = psutil.Process(cluster.daemon("datanode").started.pid).net_connections()
    [port] = [one.laddr.port for one in sockets if one.status == "LISTEN" and one.laddr.port not in known]
    return f"http://localhost:{port}"


@pytest.mark.full
def test_a_node_killed_comes_back(hadoop: Cluster) -> None:
    node, page = hadoop.daemon("nodemanager-2"), hadoop.place.ports["resourcemanager.http"]
    node.kill()
    assert hadoop.state == "broken"
    waiting.until(lambda: pages.nodes_active(page) == 1, what="the node to be lost")
    node.start()
    hadoop.wait_ready()
    assert hadoop.state == "running"
    assert pages.nodes_active(page) == 2


@pytest.mark.full
def test_up_after_a_node_died_starts_that_node_alone_and_keeps_the_ports(hadoop: Cluster) -> None:
    before, ports = dict(hadoop.started), dict(hadoop.place.ports)
    hadoop.daemon("nodemanager-1").kill()
    lines: list[str] = []
    again = hadoop_clusters.up(hadoop.settings, folder=hadoop.folder, say=lines.append)
    hadoop.started = again.started
    assert [name for name, process in again.started.items() if process != before[name]] == ["nodemanager-1"]
    assert (dict(again.place.ports), again.state) == (ports, "running")
    assert lines == ["nodemanager-1 of the cluster hadoop ended; starting again what ended"]


@pytest.mark.full
@SOAK
def test_a_daemon_that_ended_is_named_with_its_last_words(hadoop: Cluster) -> None:
    hadoop.daemon("datanode").kill()
    with hadoop.daemon("datanode").log.open("a") as log:
        log.write("no room left\n")
    waiting.until(lambda: pages.nodes_active(hadoop.place.ports["resourcemanager.http"]) == 2)
    hadoop.daemon("nodemanager-1").kill()
    waiting.until(lambda: pages.nodes_active(hadoop.place.ports["resourcemanager.http"]) == 1)
    with pytest.raises(hadoop_clusters.EngineFailed) as failed:
        hadoop.wait_ready()
    assert "the datanode ended" in failed.value.message
    assert "no room left" in failed.value.message


# -- one's own --


@pytest.fixture
def named() -> Iterator[str]:
    """The name of a cluster of the test's own, ended whatever happens."""
    try:
        yield "own"
    finally:
        hadoop_clusters.down("own")


@pytest.mark.full
def test_its_life_from_the_command_line(named: str) -> None:
    done = tm("up", "hadoop", "--name", named, "--label", "1=big", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["began"] is True
    again = tm("up", "hadoop", "--name", named, "--label", "1=big")
    assert again.stdout.startswith(f"the cluster {named} runs already"), again.stderr
    assert "other settings" in tm("up", "--name", named).stderr
    (told,) = json.loads(tm("status", "--json").stdout)
    assert told["state"] == "running"
    assert all(daemon["alive"] and daemon["memory"] > 0 and daemon["ports"] for daemon in told["daemons"])

    cluster = hadoop_clusters.find(named)
    assert asked(cluster, "get-node-to-labels")["nodeToLabels"]["entry"]["value"]["nodeLabelInfo"]["name"] == "big"  # type: ignore[index]
    exports = tm("env", "--name", named).stdout
    told_to_shell = subprocess.run(
        ["sh", "-c", f'{exports}echo "$HADOOP_CONF_DIR"'], capture_output=True, text=True, check=True
    )
    assert told_to_shell.stdout.strip() == str(cluster.conf_dir)
    assert cluster.run(SHELL, "-touchz", "/tmp/kept").returncode == 0

    for name in cluster.names:  # what a crash of the machine leaves
        cluster.daemon(name).kill()
    assert "stopped" in tm("status").stdout
    assert "starting it again" in tm("up", "hadoop", "--name", named, "--label", "1=big").stderr
    cluster = hadoop_clusters.find(named)
    assert cluster.run(SHELL, "-test", "-e", "/tmp/kept").returncode == 0

    cluster.daemon("nodemanager-1").kill()
    assert tm("status").returncode == 1
    assert tm("down", "--name", named).stdout == f"the cluster {named} is down\n"
    assert daemons.marked(cluster.folder) == []
    assert not cluster.folder.exists()


@pytest.mark.full
def test_containers_of_a_killed_node_end_with_the_cluster() -> None:
    with own_hadoop(Settings()) as cluster:
        with sleeping(cluster):
            cluster.daemon("nodemanager-1").kill()
            orphans = daemons.containers(cluster.folder)
            assert orphans
            cluster.stop()
        assert not any(one.alive for one in orphans)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.full
@pytest.mark.parametrize(("moment", "number"), [
    pytest.param("namenode", signal.SIGINT, marks=SOAK), pytest.param("namenode", signal.SIGTERM, marks=SOAK),
    ("nodemanager-1", signal.SIGINT), pytest.param("nodemanager-1", signal.SIGTERM, marks=SOAK),
])  # fmt: skip
def test_a_start_that_is_interrupted_leaves_nothing(named: str, moment: str, number: int) -> None:
    folder = hadoop_clusters.folder_of(named)
    log = folder / "logs" / f"{moment}.log"
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", "up", "--name", named]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        waiting.until(lambda: log.exists() and log.stat().st_size > 0)
        starting.send_signal(number)
        assert starting.wait(waiting.LIMIT) == 128 + number
    assert daemons.marked(folder) == []
    assert not folder.exists()


@pytest.mark.full
def test_a_start_that_is_killed_is_cleaned_up_by_the_end(named: str) -> None:
    folder = hadoop_clusters.folder_of(named)
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", "up", "--name", named]
    with subprocess.Popen(command) as starting:
        waiting.until(lambda: len(daemons.marked(folder)) >= 3)
        starting.kill()
    assert tm("status").returncode == 1
    assert tm("down", "--name", named).returncode == 0
    assert daemons.marked(folder) == []


@pytest.mark.full
@SOAK
def test_two_run_side_by_side_and_one_ends_alone(hadoop: Cluster) -> None:
    with own_hadoop(Settings()) as other:
        assert not set(other.place.ports.values()) & set(hadoop.place.ports.values())
        assert other.run(SHELL, "-touchz", "/tmp/only-here").returncode == 0
        assert hadoop.run(SHELL, "-test", "-e", "/tmp/only-here").returncode == 1
        other.stop()
        assert hadoop.state == "running"


@pytest.mark.full
def test_a_daemon_that_cannot_start_is_told_at_once(named: str) -> None:
    done = tm("up", "--name", named, "--property", "yarn.resourcemanager.scheduler.class=no.such.Scheduler")
    assert done.returncode == 3
    assert "the resourcemanager ended; its last words" in done.stderr
    assert "no.such.Scheduler" in done.stderr
    log = hadoop_clusters.folder_of(named) / "logs/resourcemanager.log"
    assert str(log) in done.stderr
    assert log.exists()
    assert daemons.marked(log.parent.parent) == []


@pytest.mark.full
def test_the_second_resource_manager_takes_over() -> None:
    with own_hadoop(Settings(high_availability=True)) as cluster:
        first = waiting.until(lambda: cluster.active)
        cluster.daemon(first).kill()
        second = waiting.until(lambda: (found := cluster.active) != first and found)
        page = cluster.place.ports[f"{second}.http"]
        waiting.until(lambda: pages.nodes_active(page) == 1)
        cluster.daemon(first).start()
        waiting.until(lambda: pages.ask(cluster.place.ports[f"{first}.http"], "/ws/v1/cluster/info"))
        assert cluster.active == second


@pytest.mark.full
def test_with_kerberos_a_ticket_opens_it_and_none_does_not(secure_hadoop: Cluster) -> None:
    labels = {"nodeLabelInfo": [{"name": "foreign", "exclusivity": True}]}
    for page in secure_hadoop.pages.values():
        assert is_closed_to_all_names(page, secure_hadoop.place.user, CURL)
    for headers in ({}, CURL):
        page = secure_hadoop.pages["resourcemanager"]
        assert status(page, "POST", "/ws/v1/cluster/add-node-labels", headers, labels) in (400, 403)
    none = secure_hadoop.run(SHELL, "-ls", "/", environ={"KRB5CCNAME": "FILE:/nowhere"})
    assert none.returncode != 0
    assert "AccessControlException" in none.stderr
    tickets = f"FILE:{secure_hadoop.folder}/alice.tickets"
    keytab = str(secure_hadoop.keytab("alice"))
    inside = {**os.environ, **secure_hadoop.environ, "KRB5CCNAME": tickets}
    subprocess.run(["kinit", "-kt", keytab, "alice"], env=inside, check=True)
    made = secure_hadoop.run(SHELL, "-mkdir", "-p", "/user/alice", environ={"KRB5CCNAME": tickets})
    assert made.returncode == 0, made.stderr
    listed = secure_hadoop.run(SHELL, "-ls", "/user", environ={"KRB5CCNAME": tickets})
    assert "alice" in listed.stdout
