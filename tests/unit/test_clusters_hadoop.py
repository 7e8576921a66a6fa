"""What of a Hadoop cluster on this machine needs no Hadoop: settings, ports, configuration files, processes, what is missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import waiting
import watchdog

from trainmaster.clusters import daemons, hadoop, ports
from trainmaster.clusters.hadoop import Settings, jars, kerberos, tls
from trainmaster.clusters.hadoop import conf as hadoop_conf
from trainmaster.clusters.hadoop.cluster import Cluster
from trainmaster.clusters.records import RECORD
from trainmaster.core.errors import BadInput, EngineFailed, NotFound
from trainmaster.host import linux

# -- settings --


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": 0}, "--nodes is 0, from 1 to"),
        ({"memory": 1}, "--memory (MiB) is 1"),
        ({"queues": {"a": 60.0, "b": 30.0}}, "make 90 %, not 100: a=60, b=30"),
        ({"queues": {"a": 100.0, "b": 0.0}}, "a=100, b=0"),
        ({"queues": {"a.b": 100.0}}, "'a.b' cannot be the name of a queue"),
        ({"nodes": 2, "labels": {3: "gpu"}}, "--label is 3, from 1 to 2"),
        ({"resources": {"a b": 1}}, "'a b' cannot be the name of a resource"),
        ({"kerberos": "yes"}, "--kerberos is one of authentication, integrity, privacy, not yes"),
    ],
)
def test_settings_that_no_cluster_can_have_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        Settings(**given)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_settings_survive_their_record() -> None:
    settings = Settings(nodes=2, labels={2: "gpu"}, resources={"yarn.io/gpu": 4}, kerberos="privacy", users=("carol",))
    cluster = Cluster("c", hadoop_conf.Place(Path(), {}, Path(), "u"), settings, "java")
    assert Settings.of(cluster.settings.plain()) == settings


@pytest.mark.parametrize("name", ["", "../x", "Hadoop", "a/b", "-a", "a" * 40])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        hadoop.folder_of(name)


# -- configuration --


def written(settings: Settings, tmp_path: Path) -> dict[str, dict[str, str]]:
    """file -> property -> value."""
    place = hadoop_conf.Place(tmp_path / "c", ports.choose(()), tmp_path / "jars", "somebody")
    hadoop_conf.write(place, settings)
    return {
        path.name: {
            str(found.findtext("name")): str(found.findtext("value"))
            for found in ElementTree.parse(path).iter("property")
        }
        for path in place.conf.glob("*.xml")
    }


def test_properties_of_ones_own_go_before_ours_each_in_its_file(tmp_path: Path) -> None:
    given = {
        "dfs.replication": "3",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.1",
        "yarn.nodemanager.vmem-check-enabled": "true",
        "hadoop.tmp.dir": "/tmp/<&>",
    }
    files = written(Settings(properties=given), tmp_path)
    assert files["hdfs-site.xml"]["dfs.replication"] == "3"
    assert files["capacity-scheduler.xml"]["yarn.scheduler.capacity.maximum-am-resource-percent"] == "0.1"
    assert files["yarn-site.xml"]["yarn.nodemanager.vmem-check-enabled"] == "true"
    assert files["core-site.xml"]["hadoop.tmp.dir"] == "/tmp/<&>"


def test_queues_labels_and_resources_are_written(tmp_path: Path) -> None:
    settings = Settings(
        queues={"default": 70.0, "low": 30.0}, labels={1: "big"}, resources={"yarn.io/gpu": 2, "seat": 5}
    )
    files = written(settings, tmp_path)
    capacity = files["capacity-scheduler.xml"]
    assert capacity["yarn.scheduler.capacity.root.queues"] == "default,low"
    assert capacity["yarn.scheduler.capacity.root.low.accessible-node-labels.big.capacity"] == "30.0"
    assert files["resource-types.xml"] == {"yarn.resource-types": "yarn.io/gpu,seat"}
    assert files["node-resources.xml"]["yarn.nodemanager.resource-type.seat"] == "5"


def test_what_passes_between_a_cluster_and_its_clients_is_on_this_machine_alone(tmp_path: Path) -> None:
    files = written(Settings(kerberos="privacy", high_availability=True), tmp_path)
    addresses = {
        name: value
        for file in files.values()
        for name, value in file.items()
        if name.split(".")[-1].endswith("address")
    }
    assert {value.rpartition(":")[0] for value in addresses.values()} == {"localhost", "${nm.host}"}


@pytest.mark.parametrize("kerberos", ["", "privacy"])
def test_no_name_has_an_administrators_rights_on_pages(tmp_path: Path, kerberos: str) -> None:
    """Whoever asks chooses the name: `?user.name=`."""
    files = written(Settings(kerberos=kerberos), tmp_path)
    assert (files["yarn-site.xml"]["yarn.admin.acl"], files["hdfs-site.xml"]["dfs.cluster.administrators"]) == (
        " ",
        " ",
    )
    assert "instrumentation.requires.admin" in str(files["core-site.xml"])


def test_the_key_of_hdfs_web_ports_is_its_users_alone_and_stays(tmp_path: Path) -> None:
    files = written(Settings(), tmp_path)
    made = tls.stores(tmp_path / "c" / "conf")
    assert [path.stat().st_mode & 0o777 for path in made] == [0o600, 0o600]
    assert files["ssl-server.xml"]["ssl.server.truststore.location"] == str(made[0])
    tls.context(tmp_path / "c" / "conf")
    before = [path.read_bytes() for path in made]
    written(Settings(), tmp_path)
    assert [path.read_bytes() for path in made] == before, "a daemon that is started again knows the others"


# -- ports --


def test_ports_of_two_clusters_differ_and_those_it_had_are_had_again() -> None:
    first = ports.choose(())
    second = ports.choose(first.values())
    assert not set(first.values()) & set(second.values())
    assert ports.choose((), first) == first


def test_a_port_that_somebody_has_is_not_chosen() -> None:
    first = ports.choose(())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["resourcemanager"]))
        assert not set(ports.choose((), first).values()) & set(first.values())


# -- processes --


def sleeping(tmp_path: Path, *words: str, folder: str | Path = "cluster") -> daemons.Started:
    folder = tmp_path / folder
    folder.mkdir(exist_ok=True)
    inside = daemons.environment(folder, {})
    return daemons.start(words or ("sleep", "600"), folder, folder / "log", inside)


def test_a_daemon_is_nobodys_child_and_ends_with_its_cluster(tmp_path: Path) -> None:
    started = sleeping(tmp_path)
    found = linux.look(started.pid)
    assert found is not None
    assert found.start == started.ticks
    assert found.parent != os.getpid()
    assert found.session == found.pid
    daemons.stop([started], tmp_path / "cluster")
    assert not started.alive


def test_one_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    started = sleeping(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    waiting.until(lambda: (tmp_path / "cluster/log").read_text() == "ready\n")
    daemons.stop([started], tmp_path / "cluster", grace=0.3)
    assert not started.alive


def test_what_was_started_and_never_recorded_is_found(tmp_path: Path) -> None:
    started = sleeping(tmp_path)
    assert hadoop.down(folder=tmp_path / "cluster")
    assert not started.alive
    assert not (tmp_path / "cluster").exists()


@contextmanager
def running(*command: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def test_containers_end_with_all_that_came_out_of_them_and_nobody_else_does(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    # One of them cleared its environment and left its session: only its ancestry tells.
    program = "env -i setsid sleep 600 & sleep 600"
    ours = {**os.environ, "LOCAL_DIRS": f"{folder}/node-1/local"}
    others = {**os.environ, "LOCAL_DIRS": f"{folder}-other/local"}
    with (
        running("sh", "-c", program, env=ours, start_new_session=True) as inside,
        running("sleep", "600", env=others, cwd=folder) as outside,
    ):
        waiting.until(lambda: len(daemons.containers(folder)) == 3)
        daemons.stop([], folder)
        assert inside.wait(waiting.LIMIT) != 0
        assert daemons.containers(folder) == []
        assert outside.poll() is None


def test_a_process_with_the_same_id_later_is_left_alone(tmp_path: Path) -> None:
    with running("sleep", "600") as other:
        daemons.stop([daemons.Started(other.pid, 1)], tmp_path)
        assert other.poll() is None


def test_a_record_that_cannot_be_read_does_not_keep_a_cluster_up(tmp_path: Path) -> None:
    started = sleeping(tmp_path)
    (tmp_path / "cluster" / RECORD).write_text("{")
    with pytest.raises(EngineFailed, match="cannot be read"):
        Cluster.read(tmp_path / "cluster")
    hadoop.down(folder=tmp_path / "cluster")
    assert not started.alive


def test_clusters_of_test_runs_that_were_killed_are_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(watchdog.CLUSTERS, "hadoop", tmp_path)
    (tmp_path / "1-1" / "c").mkdir(parents=True)  # process 1 did not start at tick 1
    started = sleeping(tmp_path / "1-1" / "c", folder="hadoop")
    watchdog.sweep("hadoop")
    assert not started.alive
    assert list(tmp_path.iterdir()) == []


def test_the_last_words_of_a_daemon_leave_out_where_in_java_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n2026 ERROR X: java.net.BindException: in use\n\tat a.b(C.java:1)\n\t... 12 more\n\n")
    assert daemons.last_words(log) == ["one", "2026 ERROR X: java.net.BindException: in use"]
    log.write_text(
        "begins\npanic: no space left on device\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:7 +0x1d\n"
    )
    assert daemons.last_words(log) == ["begins", "panic: no space left on device"]


# -- what is missing --


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput) as refused:
        hadoop.up(Settings(), folder=tmp_path / "cluster")
    assert "no Java on the path" in refused.value.message
    assert "apt-get install" in refused.value.mend
    assert not (tmp_path / "cluster").exists()


def test_a_java_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin", "java", """echo 'openjdk version "1.8.0_392"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r'is openjdk version "1\.8\.0_392", under which Hadoop does not run'):
        jars.java()


def test_no_maven_one_that_fails_and_one_that_brings_other_jars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(BadInput, match=r"no Maven \(mvn\) on the path"):
        jars.jars()
    program(tmp_path / "bin", "mvn", "echo '[ERROR] Could not transfer artifact: no route to host'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EngineFailed, match="Maven could not download Hadoop: Could not transfer artifact"):
        jars.jars()
    name = sorted(jars.pinned())[0][0]
    bring = 'for word; do case $word in -DoutputDirectory=*) /bin/mkdir "${word#*=}"; echo other >"${word#*=}/%s";; esac; done'
    program(tmp_path / "bin", "mvn", bring % name)
    with pytest.raises(EngineFailed, match=f"Maven brought other jars than those of this Trainmaster: {name}, "):
        jars.jars()
    assert [path.name for path in (tmp_path / "cache/trainmaster").iterdir() if not path.name.endswith(".lock")] == []


def test_no_kdc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kerberos, "_PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="no krb5kdc, which a cluster with Kerberos needs"):
        kerberos.check()


def test_no_cluster_of_that_name() -> None:
    with pytest.raises(NotFound, match="there is no cluster other"):
        hadoop.find("other")
    assert not hadoop.down("other")


def tm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["up", "--memory", "4"], 2, "a size needs a unit"),
        (["up", "--label", "gpu=1"], 2, "a node is given by its number"),
        (["up", "--queue", "default"], 2, "'default' is not NAME=PERCENT"),
        (["up", "--nodes", "0"], 2, "--nodes is 0"),
        (["up", "--name", "../x"], 2, "cannot be a cluster's name"),
        (["up", "mesos"], 2, "'mesos' is not one of 'hadoop', 'kubernetes', 'spark'"),
        (["env"], 2, "there is no cluster hadoop"),
        (["status"], 0, "no cluster is here"),
        (["down"], 0, "there is no cluster hadoop"),
        (["dwon"], 2, "there is no command 'dwon'; did you mean down?"),
    ],
)
def test_the_command_line_says_what_is_wrong(words: list[str], status: int, said: str) -> None:
    done = tm(*words)
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
