"""What the yarn engine says to YARN and what it makes of YARN's words; the engine itself is tried on a real cluster."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.containers import Request, is_growth
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.reasons import REASONS, words
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import Free
from trainmaster.engines.packed import SPEC, packed, stores_of
from trainmaster.engines.runtime_archive import archive
from trainmaster.engines.statuses import NO_PYTHON, OUT_OF_REACH, TERMINATED
from trainmaster.engines.yarn.client import YarnClient
from trainmaster.engines.yarn.container import payload as told_by
from trainmaster.engines.yarn.master import exits, waiting
from trainmaster.engines.yarn.master.asks import GPU, Numbers, ask_for, label_of, priority_of, resource, withdrawal
from trainmaster.engines.yarn.master.nodes import FAILURES, Avoided
from trainmaster.engines.yarn.settings import Settings, settings
from trainmaster.engines.yarn.submit import launching
from trainmaster.engines.yarn.submit.fitting import check_images, check_tags
from trainmaster.hadoop.conf import load
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Credentials, Token

GIB = 2**30
JOB = job_from(
    {"name": "t", "roles": {"worker": {"command": "true", "replicas": {"min": 1, "max": 3}}, "ps": {"command": "true"}}}
)
ASK = Request("worker:0", 1, "worker", 0, GIB, 1.0)


def request(**changes: object) -> Request:
    fields = {"task": "worker:0", "serial": 1, "role": "worker", "index": 0, "memory": GIB, "cores": 1.0} | changes
    return Request(**fields)  # type: ignore[arg-type]


# -- asks --


@given(st.sampled_from(["worker:0", "worker:2", "ps:0"]), st.integers(1, 10_000))
def test_an_allocation_request_id_says_whose_ask_it_is(task: str, serial: int) -> None:
    assert Numbers(JOB).key(Numbers(JOB).of(task, serial)) == (task, serial)


@pytest.mark.parametrize("number", [-1, 0, 7, 1 << 62])
def test_a_number_of_nobody(number: int) -> None:
    assert Numbers(JOB).key(number) is None


def test_an_ask_says_memory_in_whole_mib_and_gpus_by_their_resource_type() -> None:
    [made] = ask_for(5, request(memory=GIB + 1, cores=0.5, gpus=2))
    assert (made.capability.memory, made.capability.virtual_cores, made.num_containers) == (1025, 1, 1)
    assert {one.key: one.value for one in made.capability.resource_value_map} == {
        "memory-mb": 1025,
        "vcores": 1,
        GPU: 2,
    }
    assert made.allocation_request_id == 5
    [gone] = withdrawal([made])
    assert (gone.num_containers, gone.allocation_request_id, made.num_containers) == (0, 5, 1)


def test_hosts_of_the_data_are_a_wish_with_their_racks() -> None:
    """A row for each host that is a node of the cluster, one for each of their racks, one for any; the label in the last alone."""
    racks = {"n1": "/r1", "n2": "/r1", "n3": "/r2"}
    rows = ask_for(5, request(hosts=("n2", "elsewhere", "n1"), nodes={"labels": {"label": "fast"}}), racks)
    assert [row.resource_name for row in rows] == ["n2", "n1", "/r1", "*"]
    assert all((row.relax_locality, row.num_containers, row.allocation_request_id) == (True, 1, 5) for row in rows)
    assert [row.node_label_expression for row in rows] == ["", "", "", "fast"]
    assert [row.num_containers for row in withdrawal(rows)] == [0, 0, 0, 0]


def test_what_a_gang_can_begin_without_comes_behind_what_it_needs() -> None:
    """YARN's lower number is served first."""
    need = [request(gang="g", least=2, index=index, priority=-500) for index in (0, 1)]
    assert max(map(priority_of, need)) < priority_of(request(gang="g", least=2, index=2, priority=499))
    assert not is_growth(request(gang="g", index=7))


# -- elastic gangs --


def test_a_node_is_avoided_once_containers_have_failed_there_repeatedly() -> None:
    avoided = Avoided(["n9:8041"])
    assert avoided.hosts == ("n9",)
    for _ in range(FAILURES):
        avoided.blame("n1:8041", 4)
    assert avoided.hosts == ("n1", "n9")
    message = avoided.message()
    assert message is not None
    assert list(message.blacklist_additions) == ["n1", "n9"]


def test_never_more_than_half_of_the_cluster_is_avoided() -> None:
    avoided = Avoided()
    for node in ("n1:1", "n2:1"):
        for _ in range(FAILURES):
            avoided.blame(node, 2)
    assert avoided.hosts == ("n2",)
    message = avoided.message()
    assert message is not None
    assert list(message.blacklist_removals) == ["n1"]


def test_a_higher_priority_of_ours_is_a_lower_number_of_yarns() -> None:
    assert priority_of(request(priority=5)) < priority_of(request()) < priority_of(request(priority=-5))
    assert priority_of(request(priority=3005)) == priority_of(request(priority=5))


def test_a_node_is_in_one_partition() -> None:
    assert label_of({"label": "gpu"}) == "gpu"
    with pytest.raises(BadInput, match="nodes of YARN have no zone"):
        label_of({"zone": "a"})


# -- settings --


def test_settings_are_read_strictly() -> None:
    assert settings({"queue": "research", "validity": "5m", "tags": "a"}) == Settings(
        "research", validity=300.0, tags=("a",)
    )
    with pytest.raises(BadInput, match="did you mean queue") as caught:
        settings({"qeue": "x"})
    assert caught.value.place == "engines.yarn.qeue"
    assert settings({"validity": "none"}).validity == 0.0
    for wrong in (
        {"attempts": 0},
        {"attempts": 10**9},
        {"validity": "5"},
        {"validity": "0s"},
        {"queue": 3},
        {"tags": [{}]},
    ):
        with pytest.raises(BadInput):
            settings(wrong)


@pytest.mark.parametrize("tags", [[""], ["\u00e9"], ["x" * 101], list("abcdefghij")])
def test_tags_that_yarn_takes_no_application_with_are_refused(tmp_path: Path, tags: list[str]) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    conf = load(tmp_path)
    check_tags(["x" * 100, *"abcdefgh"], conf)
    with pytest.raises(BadInput, match=r"engines\.yarn\.tags"):
        check_tags(tags, conf)


def test_what_only_images_have_is_refused_without_one() -> None:
    roles = {"worker": {"command": "true"}}
    of_image = job_from({"name": "a", "roles": roles, "environment": {"image": "i"}})
    for one in ({"mounts": ["/a:/b:ro"]}, {"network": "host"}):
        check_images(of_image, settings(one))
        with pytest.raises(BadInput, match="has no effect"):
            check_images(job_from({"name": "a", "roles": roles}), settings(one))


# -- ends --


@pytest.mark.parametrize(
    ("status", "reason"),
    [(0, None), (7, None), (-101, "disks-failed"), (-102, "preempted"), (-104, "out-of-memory"), (-106, "killed-by-engine"),
     (-109, "killed-by-engine"), (-199, "killed-by-engine"), (-100, None), (-1000, "localization-failed"), (NO_PYTHON, "no-python"),
     (OUT_OF_REACH, "no-master"), (TERMINATED, None)],
)  # fmt: skip
def test_exit_statuses_are_our_reasons(status: int, reason: str | None) -> None:
    found, _ = exits.reason(status, "", "n1:1")
    assert found == reason
    assert found is None or found in REASONS


@pytest.mark.parametrize(
    ("status", "blamed"),
    [(7, True), (-1000, True), (-101, True), (0, False), (-102, False), (OUT_OF_REACH, False), (TERMINATED, False)],
)
def test_a_node_is_blamed_for_an_agent_that_failed(status: int, blamed: bool) -> None:
    assert exits.blames(status) is blamed


def test_the_figures_of_a_container_over_its_memory_are_told() -> None:
    said = (
        "[2026-11-22 04:00:00.000]Container [pid=7,containerID=container_1_0001_01_000002] is running 4096B beyond the 'PHYSICAL' "
        "memory limit. Current usage: 130.5 MB of 128 MB physical memory used; 3.0 GB of 268.8 MB virtual memory used. Killing container."
    )
    reason, figures = exits.reason(-104, said, "n1:1")
    assert reason == "out-of-memory"
    assert words("out-of-memory", figures) == "used 130 MiB of 128 MiB and was killed"


def test_of_a_java_stack_the_line_that_names_it_is_kept() -> None:
    said = (
        "Application application_1_0001 failed 2 times\n"
        "java.io.FileNotFoundException: File does not exist: hdfs://h/x.tar.gz\n\tat org.apache.hadoop.Foo.bar(Foo.java:1)\nCaused by: y"
    )
    assert exits.line(said) == "File does not exist: hdfs://h/x.tar.gz"


def test_a_node_that_is_gone_is_no_release() -> None:
    assert exits.lost(-100, "Container released on a *lost* node")
    assert not exits.lost(-100, "Container released by application")


# -- waiting --

NODES = [
    Free("n1:1", 8, 4 * GIB, 2, 1.0, GIB // 2, 0, {}, {"fpga": 1}, {"fpga": 0}),
    Free("n2:1", 8, 4 * GIB, 0, 2.0, GIB // 4, 0, {"label": "big"}),
]
QUEUE = y.QueueInfoProto(
    queueName="low",
    queueStatistics=y.QueueStatisticsProto(allocatedMemoryMB=3072, allocatedVCores=3, pendingContainers=7),
    queueConfigurationsMap=[
        y.QueueConfigurationsMapProto(
            partitionName=label,
            queueConfigurations=y.QueueConfigurationsProto(effectiveMaxCapacity=resource(4 * GIB, 8, 2, {"fpga": 1})),
        )
        for label in ("", "big")
    ],
)


@pytest.mark.parametrize(
    ("asked", "left", "said"),
    [
        (request(nodes={"labels": {"label": "fast"}}), 4, "no node has the label fast"),
        (request(memory=8 * GIB), 4, "no node is that large; the largest has 4 GiB, 8 cores, 2 GPUs, 1 fpga"),
        (request(memory=2 * GIB), 4, (
            "queue low is full; it has 3 GiB, 3 cores of at most 4 GiB, 8 cores, 2 GPUs, 1 fpga, 1 GiB, 5 cores, 2 GPUs, 1 fpga are free"
        )),
        (request(), 4, "no node of 1 has that much free; the most is 512 MiB, 1 cores, 0 fpga on n1:1"),
        (request(memory=GIB // 8, extended={"fpga": 1}), 4, (
            "no node of 1 has that much free; the most is 512 MiB, 1 cores, 0 fpga on n1:1"
        )),
        (request(memory=GIB // 4), 0, (
            "the limit of one user in queue low is reached; 0 B, 1 cores, 2 GPUs are left of yours, the queue has 3 GiB, 3 cores in use"
        )),
        (request(memory=GIB // 4), 4, (
            "there is room, and the ResourceManager has not given it yet; 7 containers are asked for in queue low"
        )),
    ],
)  # fmt: skip
def test_what_an_ask_waits_for(asked: Request, left: int, said: str) -> None:
    told = waiting.words(asked, 1, NODES, QUEUE, resource(left * GIB, 1, 2)).detail
    assert told == f"worker:0: {waiting.request_amount(asked)}: {said}"


def test_a_job_that_avoids_all_nodes_says_so() -> None:
    told = waiting.words(request(), 2, NODES, QUEUE, resource(GIB, 1), avoided={"n1"}).detail
    assert told == "worker: 2 x 1 GiB, 1 cores: the job avoids all nodes that it could have: n1:1"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "error: could not list a folder: Permission denied\n  hdfs:///x\n",
            "could not list a folder: Permission denied",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\nTypeError: f() takes 1\n',
            "TypeError: f() takes 1",
        ),
        ("", "Exception from container-launch."),
    ],
)
def test_what_a_master_said_as_it_died_is_reported(said: str, words: str) -> None:
    diagnostics = (
        "Application application_1_0002 failed 2 times due to AM Container for appattempt_1_0002_000002 exited with  exitCode: 1\n"
        "Failing this attempt.Diagnostics: [2026-11-22 18:23:42.094]Exception from container-launch.\nContainer id: container_1\n"
        "Exit code: 1\n\n[2026-11-22 18:23:42.095]Container exited with a non-zero exit code 1. Error file: prelaunch.err.\n"
        f"Last 4096 bytes of prelaunch.err :\nLast 4096 bytes of stderr :\n{said}\n\nFor more detailed output, check the tracking page"
    )
    reason, figures = exits.given_up(diagnostics)
    assert (reason, figures["masters"]) == ("master-failed", 2)
    assert figures["detail"].endswith(words)


def test_a_queue_whose_share_for_masters_is_spent() -> None:
    said = (
        "[Sun Nov 22 04:00:00 +0000 2026] Application is added to the scheduler and is not yet activated. Queue's AM resource limit "
        "exceeded.  Details : AM Partition = <DEFAULT_PARTITION>; AM Resource Request = <memory:1088, vCores:1>; Queue Resource Limit for "
        "AM = <memory:2048, vCores:1>; User AM Resource Limit of the queue = <memory:2048, vCores:1>; Queue AM Resource Usage = "
        "<memory:1536, vCores:2>; "
    )
    assert waiting.unstarted(said, "low", "1 GiB, 1 cores") == (
        "the share of queue low for masters is reached: asked 1.06 GiB, 1 cores; used 1.5 GiB, 2 cores of 2 GiB, 1 cores"
    )


def test_a_queue_whose_nodes_have_no_room_for_a_master() -> None:
    said = (
        "[Sun Nov 22 18:46:00 +0000 2026] Application is Activated, waiting for resources to be assigned for AM.  Details : AM Partition = "
        "<DEFAULT_PARTITION> ; Partition Resource = <memory:8192, vCores:16> ; Queue's Absolute capacity = 100.0 % ; Queue's Absolute used "
        "capacity = 87.5 % ; Queue's Absolute max capacity = 100.0 % ; Queue's capacity (absolute resource) = <memory:8192, vCores:16> ; "
        "Queue's used capacity (absolute resource) = <memory:7168, vCores:6> ; Queue's max capacity (absolute resource) = "
        "<memory:8192, vCores:16> ; "
    )
    assert waiting.unstarted(said, "root.default", "1.06 GiB, 1 cores") == (
        "it waits for a node of queue default with room for it: asked 1.06 GiB, 1 cores; used 7 GiB, 6 cores of 8 GiB, 16 cores"
    )


# -- what a container is given --


@given(
    st.dictionaries(
        st.text(min_size=1), st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=5), max_size=6
    )
)
def test_what_is_reported_holds_no_letter_that_bash_knows(told: dict[str, object]) -> None:
    variables = packed(told)
    assert all(re.fullmatch("[A-Za-z0-9+/=]+", value) for value in variables.values())


def test_a_container_takes_what_it_was_given_and_leaves_nothing_of_it_to_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"task": "worker:0", "odd": "$(reboot) `x` \"'\\ \n ü", "large": os.urandom(200_000).hex()}
    ours = Credentials({"hdfs": Token(b"i", b"p", "HDFS_DELEGATION_TOKEN", "h:1")})
    made = launching.context("m:f", told, {"token": "sesame"}, {}, ours)
    assert "sesame" not in str(made.environment) + str(made.command)
    (tmp_path / "tokens").write_bytes(made.tokens)
    for variable in made.environment:
        monkeypatch.setenv(variable.key, variable.value)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
    found, credentials = told_by.taken()
    assert found == {**told, "token": "sesame"}
    assert credentials.of_kind("HDFS_DELEGATION_TOKEN") == Token(b"i", b"p", "HDFS_DELEGATION_TOKEN", "h:1")
    assert not [name for name in os.environ if name.startswith(SPEC)]
    left = (tmp_path / "tokens").read_bytes()
    assert b"sesame" not in left
    assert Credentials.read(left) == ours


@pytest.mark.parametrize(
    ("security", "protection", "why"),
    [
        ("simple", "privacy", "the cluster has no Kerberos"),
        ("kerberos", "privacy,integrity", "hadoop.rpc.protection is privacy,integrity"),
        ("kerberos", "privacy", ""),
    ],
)
def test_who_submits_is_reported_that_secrets_can_be_read_on_their_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], security: str, protection: str, why: str
) -> None:
    rows = {
        "yarn.resourcemanager.hostname": "rm", "hadoop.security.authentication": security, "hadoop.rpc.protection": protection,
    }  # fmt: skip
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in rows.items()
    )
    (tmp_path / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
    client = YarnClient({}, str(tmp_path))
    client._warn_of_readers({"secrets": {}, "stores": {}})
    client._warn_of_readers(
        {"secrets": {"": {"HF_TOKEN": "x"}, "worker": {"DB": "y"}}, "stores": {"AWS_SECRET_ACCESS_KEY": "z"}}
    )
    names = "AWS_SECRET_ACCESS_KEY, DB, HF_TOKEN"
    lines = [
        *(["the job's token and key"] if security == "kerberos" else []),  # without Kerberos anyone may be anyone
        f"the secrets {names} and the job's own token and key",
    ]
    texts = [f"warning: {whose} may cross the cluster's network unencrypted: {why}\n" for whose in lines]
    assert capsys.readouterr().err == ("".join(texts) if why else "")


def test_a_container_opens_only_the_stores_of_its_role() -> None:
    job = job_from({
        "roles": {"worker": {"command": "true"}, "ps": {"command": "true"}, "chief": {"command": "true"}},
        "inputs": {"train": {"url": "s3://b/train", "as": "shards", "to": ["worker"]}},
        "outputs": {"model": {"url": "az://b/model", "from": "chief"}},
    })  # fmt: skip
    stores = {"AWS_SECRET_ACCESS_KEY": "a", "AZURE_STORAGE_KEY": "b"}
    assert stores_of(stores, job, "worker") == {"AWS_SECRET_ACCESS_KEY": "a"}
    assert stores_of(stores, job, "chief") == {"AZURE_STORAGE_KEY": "b"}
    assert stores_of(stores, job, "ps") == {}
    assert stores_of(stores, attrs.evolve(job, storage="s3://b/jobs"), "ps") == {"AWS_SECRET_ACCESS_KEY": "a"}


# -- the runtime archive --


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    made = archive(folder / "cache")
    with tarfile.open(made) as tar:
        tar.extractall(folder / "runtime", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / "runtime"


def test_the_archive_is_made_once_and_the_same_again(tmp_path: Path) -> None:
    first, second = archive(tmp_path / "a"), archive(tmp_path / "a")
    assert first == second
    assert archive(tmp_path / "b").name == first.name


def test_no_compiled_module_of_one_python_is_in_it(unpacked: Path) -> None:
    compiled = [path.name for path in unpacked.rglob("*") if ".so" in path.name or path.suffix == ".pyd"]
    assert compiled
    assert [name for name in compiled if ".abi3." not in name] == []


def test_all_that_a_container_runs_can_be_imported_out_of_it_alone(unpacked: Path) -> None:
    (unpacked / "lib" / "tryit.py").write_text(
        "def f():\n"
        "    import trainmaster.agent.container, trainmaster.agent.main, trainmaster.master.container, trainmaster.master.main\n"
        "    import trainmaster.master.shell, trainmaster.master.steps, trainmaster.master.connections.serve, trainmaster.web.rest\n"
        "    import trainmaster.engines.yarn.container.bootstrap, trainmaster.engines.yarn.master.runtime\n"
        "    import trainmaster.log.storage, trainmaster.data.outputs\n"
        "    import uvicorn.protocols.http.h11_impl, uvicorn.protocols.websockets.websockets_sansio_impl, hdfs_native, sys\n"
        "    import websockets.asyncio.client, websockets.asyncio.server\n"
        "    ours = [name for name, one in sys.modules.items() if 'site-packages' in (getattr(one, '__file__', '') or '')]\n"
        "    print(ours)\n"
    )
    said = subprocess.run(
        ["sh", str(unpacked / "start"), "tryit:f"], capture_output=True, text=True, check=True, timeout=120, cwd="/",
        env={"PATH": os.environ["PATH"], "TRAINMASTER_PYTHON": sys.executable},
    )  # fmt: skip
    assert said.stdout == "[]\n"


def test_the_containers_of_a_node_look_for_its_python_once(unpacked: Path, tmp_path: Path) -> None:
    """What PATH finds may be a script that takes longer than Python itself, and it ran twice in each container."""
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho run >>{tmp_path}/runs\nexec {sys.executable} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (unpacked / "lib" / "whose.py").write_text("def f():\n    import sys\n    print(sys.executable)\n")
    for number, changes in enumerate([{}, {}, {"YARN_CONTAINER_RUNTIME_TYPE": "docker"}]):
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOCAL_DIRS": f"{tmp_path},/nowhere", **changes}
        command = ["sh", str(unpacked / "start"), "whose:f"]
        words = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, timeout=60).stdout
        assert words.strip() == sys.executable
        assert len((tmp_path / "runs").read_text().split()) == [1, 1, 2][number], "an image has a Python of its own"


def test_a_node_without_a_python_says_so(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    (tmp_path / "hostname").symlink_to("/usr/bin/hostname")
    said = subprocess.run(
        ["/bin/sh", str(unpacked / "start"), "m:f"], capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)},
        timeout=60,
    )  # fmt: skip
    assert said.returncode == NO_PYTHON
    assert "no Python >= 3.11 on " in said.stderr
    assert "environment.path" in said.stderr


def test_secrets_are_no_part_of_what_is_reported_in_the_environment() -> None:
    made = launching.context("m:f", {"a": 1}, {"token": "sesame", "secrets": {"": {"KEY": "open"}}}, {})
    text = "".join(base64.b64decode(one.value, validate=True).decode("latin-1") for one in made.environment)
    assert "sesame" not in text
    kept = json.loads(Credentials.read(made.tokens).secrets[told_by.SECRETS])
    assert kept == {"token": "sesame", "secrets": {"": {"KEY": "open"}}}
