"""What programs are told of a formation, framework by framework, and how frameworks are found."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

import trainmaster
from trainmaster import frameworks
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.core.machine.formation import Formation, Peer, bracketed, formation
from trainmaster.core.machine.ranks import Member, assign
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.job import Job, Replicas, Role, variable_name
from trainmaster.frameworks import variables

PAGE = Path(__file__).parents[2] / "docs/extend/framework.md"
PACKAGE = Path(__file__).parents[1] / "ring_framework"
PORTS = {"rendezvous": 23000, "tensorflow": 23001, "ring": 24000}


def formed(*tasks: str, copies: int = 1, address: str = "10.0.0.{}", restarts: int = 0) -> Formation:
    """A formation of the tasks; ps, scheduler and evaluator have no ranks."""
    keys = [(role, int(index)) for role, _, index in (task.partition(":") for task in tasks)]
    members = [
        Member(f"{role}:{index}", role, index, address.format(n), copies, role not in ("ps", "scheduler", "evaluator"))
        for n, (role, index) in enumerate(keys)
    ]
    ranks = {rank.task: rank for rank in assign(members)}
    peers = [
        Peer(m.task, m.role, m.index, m.host, PORTS, ranks.get(m.task), copies, attempt=2, limit=3) for m in members
    ]
    return Formation("digits-abc234", 4, tuple(peers), restarts)


def job(framework: str, **roles: Role) -> Job:
    return Job(framework=framework, roles=roles or {"worker": Role(name="worker", command="x")})


# -- all frameworks --


def test_every_framework_is_found_by_the_name_of_its_file() -> None:
    files = {path.stem for path in Path(frameworks.__file__).parent.glob("*.py")}
    assert frameworks.built_in() == files - {"__init__", "added", "contract", "launchers", "variables"}
    assert {"generic", "pytorch", "tensorflow"} <= set(frameworks.names())


@pytest.mark.parametrize("name", ["generic", "pytorch", "tensorflow"])
def test_every_program_has_the_common_variables(name: str) -> None:
    told = frameworks.placement(name, formed("worker:0", "worker:1"), "worker:1")
    expected = {
        "TRAINMASTER_JOB": "digits-abc234",
        "TRAINMASTER_ROLE": "worker",
        "TRAINMASTER_INDEX": "1",
        "TRAINMASTER_ATTEMPT": "2",
        "TRAINMASTER_GENERATION": "4",
        "TRAINMASTER_RESTARTS": "0",
        "TRAINMASTER_PORT_RENDEZVOUS": "23000",
    }
    assert {key: told.env.get(key) for key in expected} == expected
    assert told.defaults["PYTHONUNBUFFERED"] == "1"
    assert told.copies[0]["TRAINMASTER_COPY"] == "0"
    assert all(
        isinstance(value, str) for values in (told.env, told.defaults, *told.copies) for value in values.values()
    )
    peers = json.loads(told.files[told.paths["TRAINMASTER_PEERS"]])
    assert peers["worker"][1] == {"address": "10.0.0.1", "ports": PORTS}


@pytest.mark.parametrize("name", ["generic", "pytorch", "tensorflow"])
def test_there_is_one_set_of_variables_a_copy(name: str) -> None:
    told = frameworks.placement(name, formed("worker:0", "worker:1", copies=3), "worker:0")
    assert [copy["TRAINMASTER_COPY"] for copy in told.copies] == ["0", "1", "2"]
    assert told.env["TRAINMASTER_COPIES"] == "3"


@pytest.mark.parametrize("name", ["generic", "pytorch", "tensorflow"])
def test_the_table_documents_every_variable_of_ours(name: str) -> None:
    told = frameworks.placement(name, formed("worker:0"), "worker:0")
    ours = {
        key
        for key in {*told.env, *told.copies[0], *told.paths, *told.defaults}
        if key.startswith(("TRAINMASTER_", "PYTHON"))
    }
    named = {"TRAINMASTER_PORT_<NAME>" if key.startswith("TRAINMASTER_PORT_") else key for key in ours}
    assert named == {variable.name for variable in variables.VARIABLES if not variable.agent}
    assert all(variable.doc and variable.example for variable in variables.VARIABLES)


def test_a_missing_index_keeps_its_place_among_the_peers() -> None:
    told = frameworks.placement("generic", formed("worker:0", "worker:2"), "worker:0")
    assert [peer and peer["address"] for peer in json.loads(told.files["peers.json"])["worker"]] == [
        "10.0.0.0",
        None,
        "10.0.0.1",
    ]


def test_names_become_variables() -> None:
    assert variable_name("train-images.v2") == "TRAIN_IMAGES_V2"


def test_a_list_of_files_that_is_too_long_for_a_variable_is_a_file() -> None:
    assert variables.file_list({}) == ({}, {})
    env, files = variables.file_list({"train": ["hdfs:///a", "hdfs:///b"]})
    assert (json.loads(env["INPUT_FILE_LIST"]), files) == ({"train": ["hdfs:///a", "hdfs:///b"]}, {})
    urls = [f"hdfs:///data/part-{i:05}" for i in range(10_000)]
    env, files = variables.file_list({"train": urls})
    assert (env, json.loads(files["inputFileList.txt"])) == ({}, {"train": urls})


def test_ports_are_those_of_the_role_and_of_the_framework_each_once() -> None:
    worker = Role(name="worker", command="x", ports={"web": 0, "rendezvous": 29500})
    assert frameworks.ports(job("pytorch", worker=worker), worker) == ["web", "rendezvous"]
    assert frameworks.ports(job("generic", worker=worker), worker) == ["web", "rendezvous"]
    ps = Role(name="ps", command="x", counts=False)
    assert frameworks.ports(job("pytorch", ps=ps), ps) == []
    assert frameworks.ports(job("tensorflow", ps=ps), ps) == ["tensorflow"]
    evaluator = Role(name="evaluator", command="x", counts=False)
    assert frameworks.ports(job("tensorflow", evaluator=evaluator), evaluator) == ["tensorflow"]


def test_an_unknown_framework_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(NotFound) as raised:
        frameworks.load("pytroch")
    assert str(raised.value) == "there is no framework 'pytroch'\n  framework: pytroch\n  did you mean pytorch?"
    with pytest.raises(NotFound, match=r"the frameworks are: .*generic, .*pytorch"):
        frameworks.load("qqq")
    for name in ("variables", "contract", "../core/job", ""):
        with pytest.raises(NotFound):
            frameworks.load(name)


def test_a_third_party_adds_a_framework_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paddling.py").write_text(
        "from trainmaster.frameworks.contract import Placement\n"
        "def ports(role, job): return ['paddle']\n"
        "def environment(formation, task): return Placement({'PADDLE_TRAINERS': str(len(formation.peers))})\n"
    )
    info = tmp_path / "paddling-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paddling\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[trainmaster.frameworks]\npaddle = paddling\nbroken = nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert "paddle" in frameworks.names()
        assert frameworks.placement("paddle", formed("worker:0"), "worker:0").env["PADDLE_TRAINERS"] == "1"
        with pytest.raises(BadInput, match="the framework broken cannot be used: ModuleNotFoundError"):
            frameworks.load("broken")
    finally:
        sys.modules.pop("paddling", None)


def test_the_documents_show_a_framework_that_works() -> None:
    """The blocks of the page are the package that is installed with the tests; its variables are those that the page prints."""
    for name, block in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.DOTALL):
        assert (PACKAGE / name).read_text() == block
    worker = Role(name="worker", command="x")
    assert "ring" in frameworks.ports(job("ring", worker=worker), worker)
    env = frameworks.placement("ring", formed("worker:0", "worker:1"), "worker:1").env
    assert {name: value for name, value in env.items() if name.startswith("RING")} == {
        "RING_PLACE": "1",
        "RING_SIZE": "2",
        "RING_NEXT": "10.0.0.0:24000",
    }


def test_addresses_of_version_6_are_in_brackets() -> None:
    assert bracketed("fe80::1%eth0") == "[fe80::1%eth0]"
    assert bracketed("10.0.0.1") == "10.0.0.1"
    assert bracketed("node7.example") == "node7.example"


def test_a_formation_is_made_from_the_state() -> None:
    """Tasks of the group that count have ranks, by the order that was decided; what was never reached is not listed."""
    state = State(id="digits-abc234", restarts=2)
    fetch = Role(name="fetch", command="x")
    worker = Role(
        name="worker", command="x", replicas=Replicas(3, 3), processes="per-gpu", after={"fetch": "succeeded"}
    )
    evaluator = Role(name="evaluator", command="x", counts=False, after={"fetch": "succeeded"})
    populate(state, job("pytorch", fetch=fetch, worker=worker, evaluator=evaluator))
    for n, key in enumerate(["fetch:0", "worker:0", "worker:2", "evaluator:0"]):
        task = state.tasks[key]
        task.address, task.node, task.devices, task.ports, task.attempt = f"10.0.0.{n}", f"n{n}", n, PORTS, n + 1
    group = state.groups[state.tasks["worker:0"].group]
    group.generation, group.ranks = 5, {"worker:2": 0, "worker:0": 1}
    made = formation(state, group)
    assert (made.job, made.generation, made.restarts) == ("digits-abc234", 5, 2)
    assert [peer.task for peer in made.peers] == ["fetch:0", "worker:0", "worker:2", "evaluator:0"]
    assert [(peer.task, peer.rank.rank, peer.copies) for peer in made.ranked if peer.rank] == [
        ("worker:2", 0, 2),
        ("worker:0", 2, 1),
    ]
    assert made.first.address == "10.0.0.2"
    assert [made.by_task[key].attempt for key in ("fetch:0", "worker:2")] == [1, 3]


# -- generic --


def test_a_generic_program_has_nothing_else() -> None:
    told = frameworks.placement("generic", formed("worker:0", "worker:1", copies=2), "worker:0")
    every = {*told.env, *told.paths, *(key for copy in told.copies for key in copy)}
    assert {key for key in every if not key.startswith("TRAINMASTER_")} == set()
    assert set(told.defaults) == {"PYTHONUNBUFFERED"}


# -- pytorch --


def test_pytorch_copies_have_the_ranks_of_torchrun() -> None:
    told = frameworks.placement("pytorch", formed("worker:0", "worker:1", copies=2, restarts=1), "worker:1")
    assert {key: told.env[key] for key in told.env if not key.startswith("TRAINMASTER_")} == {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "worker",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "23000",
        "INIT_METHOD": "tcp://10.0.0.0:23000",
        "TORCHELASTIC_RUN_ID": "digits-abc234",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
    }
    assert [(copy["RANK"], copy["ROLE_RANK"], copy["LOCAL_RANK"]) for copy in told.copies] == [
        ("2", "2", "0"),
        ("3", "3", "1"),
    ]


def test_rank_0_makes_the_store() -> None:
    first, second = (frameworks.placement("pytorch", formed("worker:0", "worker:1"), f"worker:{n}") for n in range(2))
    assert "TORCHELASTIC_USE_AGENT_STORE" not in first.env | first.defaults
    assert (first.store, second.store) == ("", f"{second.env['MASTER_ADDR']}:{second.env['MASTER_PORT']}")


@pytest.mark.parametrize(("address", "interface"), [("127.0.0.1", "lo"), ("10.0.0.{}", None)])
def test_ports_of_a_pytorch_job_on_one_machine_are_for_it_alone(address: str, interface: str | None) -> None:
    told = frameworks.placement("pytorch", formed("worker:0", "worker:1", address=address), "worker:1")
    assert told.defaults.get("GLOO_SOCKET_IFNAME") == told.defaults.get("TP_SOCKET_IFNAME") == interface


def test_pytorch_on_version_6_names_the_bare_host_and_a_url() -> None:
    told = frameworks.placement("pytorch", formed("worker:0", "worker:1", address="fd00::{}"), "worker:1")
    assert told.env["MASTER_ADDR"] == "fd00::0"
    url = urlsplit(told.env["INIT_METHOD"])
    assert (url.hostname, url.port) == ("fd00::0", 23000)


def test_a_task_that_does_not_count_has_no_rank() -> None:
    told = frameworks.placement("pytorch", formed("worker:0", "evaluator:0"), "evaluator:0")
    assert {key for key in told.env if not key.startswith("TRAINMASTER_")} == set()
    only = frameworks.placement("pytorch", formed("evaluator:0"), "evaluator:0")
    assert "RANK" not in only.copies[0]


# -- tensorflow --


def test_tensorflow_has_its_cluster_by_role_and_index() -> None:
    several = formed("worker:0", "worker:1", "ps:0", "chief:0", "evaluator:0", "sidecar:0")
    told = frameworks.placement("tensorflow", several, "worker:1")
    cluster = {
        "chief": ["10.0.0.3:23001"],
        "worker": ["10.0.0.0:23001", "10.0.0.1:23001"],
        "ps": ["10.0.0.2:23001"],
    }
    assert json.loads(told.env["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert json.loads(told.env["TF_CLUSTER_DEF"]) == cluster
    assert (told.env["TF_ROLE"], told.env["TF_INDEX"]) == ("worker", "1")


def test_an_evaluator_knows_the_cluster_and_itself_and_is_not_known() -> None:
    def of(task: str, *more: str) -> dict[str, Any]:
        told = frameworks.placement("tensorflow", formed("master:0", "worker:0", "evaluator:0", *more), task)
        config: dict[str, Any] = json.loads(told.env["TF_CONFIG"])
        return config

    config = of("evaluator:0")
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert set(config["cluster"]) == {"master", "worker", "evaluator"}
    assert config["cluster"]["evaluator"] == ["10.0.0.2:23001"]
    assert set(of("worker:0")["cluster"]) == {"master", "worker"}
    assert set(of("evaluator:1", "evaluator:1")["cluster"]) == {"master", "worker"}, "TensorFlow refuses two of them"


def test_a_role_that_tensorflow_does_not_know_has_no_config() -> None:
    told = frameworks.placement("tensorflow", formed("worker:0", "sidecar:0"), "sidecar:0")
    assert "TF_CONFIG" not in told.env
    assert told.env["TF_ROLE"] == "sidecar"


def test_tensorflow_on_version_6_has_brackets() -> None:
    several = formed("worker:0", "worker:1", address="fd00::{}")
    config = json.loads(frameworks.placement("tensorflow", several, "worker:0").env["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["[fd00::0]:23001", "[fd00::1]:23001"]


@pytest.mark.parametrize("name", ["pytorch", "tensorflow"])
def test_the_table_of_a_framework_documents_all_that_it_tells(name: str) -> None:
    several = formed("worker:0", "worker:1", copies=2)
    common = frameworks.placement("generic", several, "worker:1")
    told = frameworks.placement(name, several, "worker:1")
    own = {*told.env, *told.defaults, *told.copies[0]} - {*common.env, *common.defaults, *common.copies[0]}
    table = frameworks.load(name).VARIABLES  # type: ignore[attr-defined]
    assert sorted(own) == sorted(row.name for row in table)
    assert all(row.doc and row.example for row in table)


def test_frameworks_are_short_beside_the_tables_of_their_variables() -> None:
    for name in frameworks.built_in():
        text = (Path(trainmaster.__file__).parent / "frameworks" / f"{name}.py").read_text()
        tables = [node for node in ast.parse(text).body if isinstance(node, ast.Assign | ast.AnnAssign)]
        assert len(text.splitlines()) - sum(node.end_lineno - node.lineno + 1 for node in tables) <= 40, name


# -- xlearning --


def of_xlearning(task: str, *tasks: str, **ports: int) -> dict[str, str]:
    whole = formed(*tasks)
    peers = tuple(attrs.evolve(peer, ports=ports) for peer in whole.peers)
    return frameworks.placement("xlearning", attrs.evolve(whole, peers=peers), task).env


def test_xlearning_s_programs_work_alone_or_know_their_cluster() -> None:
    alone = of_xlearning("worker:1", "worker:1")  # no other has been reached yet
    assert (alone["INDEX"], alone["TF_INDEX"], alone["TF_ROLE"]) == ("1", "1", "worker")
    assert "TF_CONFIG" not in alone
    tasks = ("chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0")
    whole = {task: of_xlearning(task, *tasks, tensorflow=7) for task in tasks}
    told = {task: (env["TF_ROLE"], env["TF_INDEX"], env["INDEX"]) for task, env in whole.items()}
    assert told == {
        "chief:0": ("worker", "0", "0"),
        "worker:0": ("worker", "1", "1"),
        "worker:1": ("worker", "2", "2"),
        "ps:0": ("ps", "0", "0"),
        "evaluator:0": ("evaluator", "0", "0"),
    }
    for env in whole.values():
        cluster = json.loads(env["TF_CLUSTER_DEF"])
        own = {"evaluator": 1} if env["TF_ROLE"] == "evaluator" else {}
        assert {role: len(members) for role, members in cluster.items()} == {"worker": 3, "ps": 1, **own}
        task = {"type": env["TF_ROLE"], "index": int(env["TF_INDEX"])}
        assert json.loads(env["TF_CONFIG"]) == {"cluster": cluster, "task": task}


def test_where_a_member_has_left_the_index_of_tensorflow_has_no_gap_and_that_of_the_task_stays() -> None:
    both = formed("worker:0", "worker:2")
    left = attrs.evolve(both, peers=tuple(attrs.evolve(peer, place=place) for place, peer in enumerate(both.peers)))
    told = frameworks.placement("tensorflow", left, "worker:2")
    config = json.loads(told.env["TF_CONFIG"])
    assert len(config["cluster"]["worker"]) == 2
    assert config["task"] == {"type": "worker", "index": 1}
    assert told.env["TRAINMASTER_INDEX"] == "2"
