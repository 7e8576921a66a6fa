"""Submarine's command line and its YAML file: every flag and key becomes what it meant, or is refused by its name."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cli.tm import tm
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.integrations import submarine
from trainmaster.integrations.dialect import Option, Translation, Verb, job_file
from trainmaster.integrations.submarine import KEYS, OPTIONS, localization, resources

ONE = [
    "--name",
    "j",
    "--input_path",
    "/in",
    "--worker_resources",
    "memory=8G,vcores=2",
    "--worker_launch_cmd",
    "python train.py",
]
TWO = [*ONE, "--num_workers", "2"]
PS = [*TWO, "--num_ps", "1", "--ps_resources", "memory=4G,vcores=1", "--ps_launch_cmd", "python ps.py"]
W = "roles.worker"


def told(*words: str, engine: str = "yarn") -> Translation:
    found = submarine.translated(["job", "run", *words], engine)
    assert isinstance(found, Translation)
    return found


def value(translation: Translation, path: str) -> Any:
    """What the job has at a path, as a job file would write it."""
    at: Any = job_to(translation.described.job)
    for part in path.split("."):
        at = at.get(part.replace("/", ".")) if isinstance(at, dict) else None
    return at


def refused(*words: str) -> str:
    with pytest.raises(BadInput) as caught:
        told(*words)
    return str(caught.value)


# Each flag: what is written, and what the job then has.
MEANINGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "framework": ([*TWO, "--framework", "PyTorch"], {"framework": "pytorch", f"{W}.replicas.max": 2, "gang": True}),
    "name": (ONE, {"name": "j"}),
    "input_path": (
        [*ONE, "--worker_launch_cmd", "x %input_path%"],
        {f"{W}.command": ["bash", "-c", "x /in"], "annotations.submarine/input_path": "/in"},
    ),
    "checkpoint_path": (
        [
            *ONE,
            "--checkpoint_path",
            "hdfs://default/c",
            "--worker_launch_cmd",
            "x %checkpoint_path% %saved_model_path%",
        ],
        {f"{W}.command": ["bash", "-c", "x hdfs:///c hdfs:///c"]},
    ),
    "saved_model_path": (
        [*ONE, "--saved_model_path", "/m", "--worker_launch_cmd", "x %saved_model_path% %checkpoint_path%"],
        {f"{W}.command": ["bash", "-c", f"x /m hdfs:///user/{getpass.getuser()}/submarine/jobs/j/checkpoint_path"]},
    ),
    "docker_image": (
        [*PS, "--docker_image", "x:1"],
        {f"{W}.image": "x:1", "roles.ps.image": "x:1", "roles.master.image": "x:1"},
    ),
    "worker_docker_image": (
        [*PS, "--docker_image", "x:1", "--worker_docker_image", "y:1"],
        {f"{W}.image": "y:1", "roles.ps.image": "x:1", "roles.master.image": "y:1"},
    ),
    "ps_docker_image": ([*PS, "--ps_docker_image", "y:1"], {"roles.ps.image": "y:1", f"{W}.image": None}),
    "tensorboard_docker_image": (
        [*ONE, "--tensorboard", "--tensorboard_docker_image", "t:1"],
        {"roles.tensorboard.image": "t:1"},
    ),
    "queue": ([*ONE, "--queue", "research"], {"engines.yarn.queue": "research"}),
    "num_workers": (
        [*ONE, "--num_workers", "3"],
        {
            "framework": "tensorflow",
            "roles.master.replicas.max": 1,
            f"{W}.replicas.max": 2,
            "roles.master.counts": True,
        },
    ),
    "worker_resources": (
        [*ONE, "--worker_resources", "memory-mb=2048,vcores=3,yarn.io/gpu=2,yarn.io/fpga=1"],
        {
            f"{W}.resources.memory": "2GiB",
            f"{W}.resources.cores": 3.0,
            f"{W}.resources.gpus": 2,
            f"{W}.resources.extended": {"yarn.io/fpga": 1},
        },
    ),
    "worker_launch_cmd": (
        [*ONE, "--worker_launch_cmd", "a && b"],
        {f"{W}.command": ["bash", "-c", "a && b"], "framework": "generic"},
    ),
    "num_ps": ([*PS, "--num_ps", "2"], {"roles.ps.replicas.max": 2, "roles.ps.counts": False}),
    "ps_resources": (PS, {"roles.ps.resources.memory": "4GiB"}),
    "ps_launch_cmd": (PS, {"roles.ps.command": ["bash", "-c", "python ps.py"]}),
    "tensorboard": (
        [*ONE, "--tensorboard", "--checkpoint_path", "hdfs:///c"],
        {
            "roles.tensorboard.command": 'tensorboard --logdir tensorboard-logs --port "$TRAINMASTER_PORT_BOARD" --bind_all',
            "inputs.tensorboard-logs.url": "hdfs:///c/**/*tfevents*",
            "roles.tensorboard.counts": False,
            "roles.tensorboard.resources.memory": "4GiB",
            "links.Tensorboard.port": "board",
        },
    ),
    "tensorboard_resources": (
        [*ONE, "--tensorboard", "--tensorboard_resources", "memory=1G,vcores=2"],
        {"roles.tensorboard.resources.memory": "1GiB"},
    ),
    "env": (
        [*PS, "--env", "A=b=c", "--env", "B="],
        {f"{W}.env": {"A": "b=c", "B": ""}, "roles.ps.env": {"A": "b=c", "B": ""}},
    ),
    "quicklink": (
        [*PS, "--quicklink", "Notebook=https://master-0:7070/x", "--quicklink", "Two=http://ps-0:80"],
        {
            "links.Notebook": {"role": "master", "index": 0, "port": "p7070", "path": "/x", "scheme": "https"},
            "links.Two": {"role": "ps", "index": 0, "port": "p80", "path": "/", "scheme": "http"},
            "roles.master.ports.p7070": 7070,
        },
    ),
    "localization": (
        [
            *ONE,
            "--localization",
            "hdfs://h:9000/d/words.txt:./w.txt:rw",
            "--localization",
            "hdfs:///d/folder:.",
            "--localization",
            "s3a://b/two.bin:.",
        ],
        {
            "cache": ["hdfs://h:9000/d/words.txt#w.txt", "s3a://b/two.bin#two.bin"],
            "inputs.folder.url": "hdfs:///d/folder",
            "inputs.folder.split": "whole",
            "inputs.folder.to": ["worker"],
            "inputs.folder.as": "download",
        },
    ),
    "mount": ([*ONE, "--mount", "/etc/passwd:/etc/passwd:ro"], {"engines.yarn.mounts": ["/etc/passwd:/etc/passwd:ro"]}),
    "wait_job_finish": ([*ONE, "--wait_job_finish"], {}),
    "keytab": (
        [*ONE, "--keytab", "/k/me.keytab", "--principal", "me@R"],
        {"engines.yarn.kerberos": {"principal": "me@R", "keytab": "/k/me.keytab"}},
    ),
    "principal": (
        [*ONE, "--principal", "me@R", "--keytab", "me.keytab"],
        {"engines.yarn.kerberos": {"principal": "me@R", "keytab": str(Path.cwd() / "me.keytab")}},
    ),
    "distribute_keytab": (
        [*ONE, "--distribute_keytab", "--keytab", "file:///k", "--principal", "me@R"],
        {"engines.yarn.kerberos.keytab": "/k"},
    ),
    "conf": (
        [
            *TWO,
            "--conf",
            "tony.worker.memory=2g",
            "--conf",
            "tony.application.timeout=60000",
            "--conf",
            "tony.yarn.queue=research",
        ],
        {
            f"{W}.resources.memory": "2GiB",
            f"{W}.replicas.max": 2,
            "timeouts.job": "1m",
            "engines.yarn.queue": "research",
        },
    ),
    "verbose": ([*ONE, "--verbose"], {}),
    "insecure": ([*ONE, "--insecure"], {}),
}
NOT_HERE = {
    "num_schedulers": ([*ONE, "--num_schedulers", "1"], "a scheduler, which is mxnet's"),
    "scheduler_resources": ([*ONE, "--scheduler_resources", "x"], "a scheduler, which is mxnet's"),
    "scheduler_launch_cmd": ([*ONE, "--scheduler_launch_cmd", "x"], "a scheduler, which is mxnet's"),
    "scheduler_docker_image": ([*ONE, "--scheduler_docker_image", "x"], "a scheduler, which is mxnet's"),
}


def test_every_flag_is_in_a_table_of_these() -> None:
    assert {*MEANINGS, *NOT_HERE, "f"} == set(OPTIONS)


@pytest.mark.parametrize("name", MEANINGS)
def test_a_flag_means_what_it_meant(name: str) -> None:
    words, meaning = MEANINGS[name]
    translation = told(*words)
    assert {path: value(translation, path) for path in meaning} == meaning
    dashed = told(*(word.replace("--", "-", 1) if word.startswith("--") else word for word in words))
    assert dashed.described.job == translation.described.job, "one dash is enough"


@pytest.mark.parametrize("name", MEANINGS)
def test_the_job_file_that_is_printed_says_the_same_job(name: str) -> None:
    translation = told(*MEANINGS[name][0])
    assert job_from(yaml.safe_load(job_file(translation))) == translation.described.job


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_to_be_had_is_refused_by_its_name(name: str) -> None:
    words, named = NOT_HERE[name]
    assert named in refused(*words)


def test_a_keytab_in_the_file_is_the_masters(tmp_path: Path) -> None:
    found = told(*file_with(tmp_path, FILE + "\nsecurity: {keytab: /k, principal: me@R, distribute_keytab: true}"))
    assert value(found, "engines.yarn.kerberos") == {"principal": "me@R", "keytab": "/k"}
    assert any("submitting needs a ticket" in remark for remark in found.remarks)
    assert any("to the job's master alone" in remark for remark in found.remarks)


def test_where_java_and_hadoop_are_in_an_image() -> None:
    image = ["--env", "DOCKER_JAVA_HOME=/j", "--env", "DOCKER_HADOOP_HDFS_HOME=/h"]
    found = told(*PS, *image)
    both = {"DOCKER_JAVA_HOME": "/j", "JAVA_HOME": "/j", "DOCKER_HADOOP_HDFS_HOME": "/h", "HADOOP_HDFS_HOME": "/h"}
    assert value(found, f"{W}.env") == value(found, "roles.ps.env") == both
    for words in ([*image, "--env", "JAVA_HOME=/own"], ["--env", "JAVA_HOME=/own", *image]):
        assert value(told(*ONE, *words), f"{W}.env")["JAVA_HOME"] == "/own", "what is said itself is meant"


def test_programs_find_the_hadoop_of_an_image_by_classpath(tmp_path: Path) -> None:
    """As its launcher did: libhdfs needs the jars, each by its name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hadoop").write_text('#!/bin/sh\necho "jars of $*"\n')
    (tmp_path / "bin" / "hadoop").chmod(0o755)
    words = [*ONE, "--env", "DOCKER_HADOOP_HDFS_HOME=/hadoop", "--worker_launch_cmd", 'echo "$CLASSPATH"']
    command = value(told(*words), f"{W}.command")
    for home, printed in ((tmp_path, "jars of classpath --glob\n"), ("/nowhere", "\n")):
        environ = {"HADOOP_HDFS_HOME": str(home), "PATH": "/usr/bin:/bin"}
        assert subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout == printed
    assert "CLASSPATH" not in value(told(*ONE), f"{W}.command")[2]


def test_only_who_wants_waits() -> None:
    assert not told(*ONE).stays
    assert told(*ONE, "--wait_job_finish").stays


def test_tensorboard_may_be_the_only_task() -> None:
    alone = told("--name", "b", "--num_workers", "0", "--tensorboard")
    assert list(alone.described.job.roles) == ["tensorboard"]
    assert value(alone, "roles.tensorboard.counts") is True
    logs = f"hdfs:///user/{getpass.getuser()}/submarine/jobs/**/*tfevents*"
    assert value(alone, "inputs.tensorboard-logs.url") == logs
    assert value(alone, "timeouts.stall") == "none"
    here = told("--name", "b", "--num_workers", "0", "--tensorboard", "true", engine="local")
    assert f"--logdir {Path.cwd()}/submarine/jobs " in value(here, "roles.tensorboard.command")
    assert "--host 127.0.0.1" in value(here, "roles.tensorboard.command")


def test_the_services_of_its_quick_start_need_no_input_path() -> None:
    """As its pages have them: TensorBoard with no word of workers, a notebook by its quick link."""
    board = told("--name", "tensorboard-service-001", "--docker_image", "x:1", "--tensorboard")
    assert list(board.described.job.roles) == ["tensorboard"]
    notebook = told(
        "--name", "zeppelin-note-book-001", "--docker_image", "x:1", "--num_workers", "1", "--worker_resources",
        "memory=8G,vcores=2,gpu=4", "--worker_launch_cmd", "/zeppelin/bin/zeppelin.sh", "--quicklink",
        "Zeppelin_Notebook=http://master-0:7070",
    )  # fmt: skip
    assert value(notebook, f"{W}.command") == ["bash", "-c", "/zeppelin/bin/zeppelin.sh"]
    assert value(notebook, "links.Zeppelin_Notebook.port") == "p7070"
    assert value(notebook, "timeouts.stall") == "none"


def test_the_first_worker_is_the_master_of_quick_links() -> None:
    assert value(told(*ONE, "--quicklink", "N=http://master-0:1"), "links.N.role") == "worker"


def test_a_local_file_or_directory_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "train.py").touch()
    found = told(
        *ONE,
        "--localization",
        "./src:code",
        "--localization",
        f"file://{tmp_path}/train.py:./main.py",
        "--localization",
        "./src:.",
    )
    assert value(found, "files") == ["./src#code", f"{tmp_path}/train.py#main.py", "./src#src"]


def test_hdfs_default_may_be_a_nameservice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "<property><name>dfs.nameservices</name><value>default</value></property>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{name}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    words = [*ONE, "--checkpoint_path", "hdfs://default/c", "--worker_launch_cmd", "%checkpoint_path%"]
    assert value(told(*words), f"{W}.command") == ["bash", "-c", "hdfs://default/c"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "the job has no name"),
        (["--name", "a b"], "like a-b"),
        (
            [*ONE[:2], *ONE[4:], "--worker_launch_cmd", "train %input_path%"],
            "the command names %input_path%, and there is none",
        ),
        ([*ONE, "--num_ps", "1"], "one worker needs no ps"),
        (["--name", "j", "--num_workers", "0"], "nothing to run"),
        ([*PS, "--framework", "pytorch"], "PyTorch has no ps"),
        ([*TWO, "--framework", "mxnet"], "DMLC_"),
        ([*ONE, "--conf", "tony.x=1"], "the setting tony.x is not to be had here"),
        ([*ONE, "--conf", "yarn.x=1"], "set it in the files of HADOOP_CONF_DIR"),
        ([*ONE, "--conf", "tony.worker.vcores=a"], "a whole number"),
        ([*ONE, "--conf", "tony.containers.resources=a#b"], "PATH#archive"),
        ([*ONE, "--framework", "caffe"], "tensorflow or pytorch"),
        ([*ONE, "--framework", "pytorch", "--tensorboard"], "goes with TensorFlow"),
        (["--name", "j", "--input_path", "/in"], "worker has no command"),
        (ONE[:4] + ONE[6:], "worker has no resources"),
        ([*TWO, "--num_ps", "1"], "ps has no command"),
        ([*ONE, "--env", "A"], "NAME=VALUE"),
        ([*ONE, "extra"], "'extra' belongs to no flag"),
        ([*ONE, "--env", "YARN_CONTAINER_RUNTIME_TYPE=runc"], "the container runtime runc is not to be had here"),
        ([*ONE, "--nmae", "x"], "did you mean --name?"),
        ([*ONE, "--quicklink", "N=master-0:1"], "LABEL=http"),
        ([*ONE, "--quicklink", "N=http://ps-0:1"], "there is no role 'ps'"),
        ([*ONE, "--quicklink", "N=http://worker-3:1"], "there is no task 'worker:3'"),
        ([*ONE, "--localization", "nowhere:."], "does not exist"),
        ([*ONE, "--localization", "hdfs:///a"], "REMOTE:LOCAL"),
        ([*ONE, "--localization", "hdfs:///a:/opt/a"], "a place of the node itself where worker has no image"),
        ([*ONE, "--localization", "hdfs:///a.zip:b"], "stays packed"),
        ([*ONE, "--worker_resources", "memory=8,vcores=1"], "memory with a unit"),
        ([*ONE, "--worker_resources", "memory=x"], "pairs like"),
        ([*ONE, "--worker_resources", "memory=1G,fpga=1G"], "a unit of fpga is not to be had here"),
        ([*ONE, "--engine", "mesos"], "there is no engine 'mesos'"),
        ([*ONE, "--num_workers", "-1"], "0 or more"),
        ([*ONE, "--principal", "p"], "keytab and principal go together"),
        ([*ONE, "--gibberish", "x"], "see tm submit --submarine --help"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], named: str) -> None:
    assert named in refused(*words)


FILE = """
spec: {name: testJob, job_type: t, framework: tensorflow}
configs:
  input_path: /in
  checkpoint_path: /c
  saved_model_path: /m
  docker_image: x:1
  wait_job_finish: true
  envs: {A: 'b'}
  localizations: ['hdfs:///d/w.txt:./w.txt']
  mounts: ['/etc/passwd:/etc/passwd:rw']
  quicklinks: ['N=https://master-0:7070']
scheduling: {queue: q}
roles:
  worker:
    resources: memory=20480M,vcores=32
    replicas: 3
    launch_cmd: train %input_path%
    docker_image: y:1
    envs: {ONLY: worker}
    localizations: ['hdfs:///d/words:words']
  ps: {resources: 'memory=20500M,vcores=34', replicas: 4, launch_cmd: serve, docker_image: z:1, envs: {ONLY: ps}}
tensorBoard: {resources: 'memory=21000M,vcores=37', docker_image: t:1}
"""


FLAGS = """
--name testJob --framework tensorflow --input_path /in --checkpoint_path /c --saved_model_path /m --docker_image x:1 --queue q
--worker_resources memory=20480M,vcores=32 --num_workers 3 --worker_docker_image y:1 --ps_launch_cmd serve --num_ps 4
--ps_resources memory=20500M,vcores=34 --ps_docker_image z:1 --tensorboard --wait_job_finish --env A=b
--tensorboard_resources memory=21000M,vcores=37 --tensorboard_docker_image t:1 --quicklink N=https://master-0:7070
--localization hdfs:///d/w.txt:./w.txt --mount /etc/passwd:/etc/passwd:rw
"""
ANNOTATIONS = (
    "{submarine.job_type: t, submarine.input_path: /in, submarine.checkpoint_path: /c, submarine.saved_model_path: /m}"
)


def file_with(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "job.yaml").write_text(text)
    return ["-f", str(tmp_path / "job.yaml")]


def test_the_file_says_what_the_flags_say(tmp_path: Path) -> None:
    by_file = told(*file_with(tmp_path, FILE))
    by_flags = told(*FLAGS.split(), "--worker_launch_cmd", "train %input_path%", "--set", f"annotations={ANNOTATIONS}")
    assert by_file.stays
    assert by_flags.stays
    of_file, of_flags = job_to(by_file.described.job), job_to(by_flags.described.job)
    assert of_file["roles"]["worker"]["env"] == {"A": "b", "ONLY": "worker"}
    assert of_file["roles"]["master"]["env"] == {"A": "b", "ONLY": "worker"}
    assert of_file["roles"]["ps"]["env"] == {"A": "b", "ONLY": "ps"}
    assert of_file["roles"]["tensorboard"]["env"] == {"A": "b"}
    assert of_file.pop("inputs")["words"]["to"] == ["master", "worker"]
    of_flags.pop("inputs")
    for role in of_file["roles"].values():
        role["env"].pop("ONLY", None)
    assert of_file == of_flags
    assert by_file.described.origins["roles", "worker", "command"] == "job.yaml line 18"


def test_every_key_of_the_file_was_tried() -> None:
    said = yaml.safe_load(FILE)
    for key in KEYS:
        at = said
        for part in key.split("."):
            at = at.get(part, {}) if isinstance(at, dict) else {}
        assert at != {} or "scheduler" in key or key.endswith((".mounts", ".localizations")) or "security" in key, key


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (FILE.replace("launch_cmd: train", "lunch_cmd: train"), "did you mean roles.worker.launch_cmd?"),
        ("spec: {name: j}", "no configs:"),
        (FILE.replace("scheduling: {queue: q}", "scheduling: q"), "scheduling is not a section"),
        (FILE.replace("[", "'").replace("]", "'"), "YAML"),
        (FILE.replace("framework: tensorflow", "framework: mxnet"), "DMLC_"),
        (FILE.replace("['N=", "['").replace("//", ""), "LABEL="),
        (FILE + "\nsecurity: {keytab: k}", "keytab and principal go together"),
        (FILE.replace("['/etc", "'/etc").replace(":rw']", ":rw'"), "must be a list"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, named: str) -> None:
    said = refused(*file_with(tmp_path, text))
    assert named in said
    assert "job.yaml" in said


def test_what_stands_in_the_file_and_on_the_command_line_is_refused(tmp_path: Path) -> None:
    said = refused(*file_with(tmp_path, FILE), "--queue", "other")
    assert "queue is said twice" in said
    assert "flag --queue, and job.yaml line 13" in said
    more = told(*file_with(tmp_path, FILE), "--env", "B=c")
    assert value(more, "roles.ps.env") == {"A": "b", "ONLY": "ps", "B": "c"}


def test_verbs() -> None:
    assert submarine.translated(["job", "show", "--name", "x"]) == Verb("show", "x")
    assert submarine.translated(["job", "kill", "-name", "x"]) == Verb("kill", "x")
    for words in ([], ["job", "run", "--help"], ["job", "run", *ONE, "--help"], ["job", "kill", "--name", "x", "-h"]):
        assert submarine.translated(words) == Verb("help")
    for words, named in (
        (["job", "show"], "no --name"),
        (["job", "list"], "not 'job list'"),
        (["queue"], "not 'queue'"),
    ):
        with pytest.raises(BadInput, match=named):
            submarine.translated(words)


@pytest.mark.parametrize("system", ["xlearning", "submarine"])
def test_help_says_how_it_is_called_and_what_flags_take(system: str) -> None:
    shown = CliRunner().invoke(tm, ["submit", f"--{system}", "--help"]).output
    assert shown.startswith(f"Usage: tm submit --{system} ")
    for line in ("  --queue VALUE", "  --conf VALUE", "  --engine local|yarn", "  --dry-run", "  --set PATH=VALUE"):
        assert line in shown.splitlines()
    assert ("job kill --name NAME" in shown) is (system == "submarine")


@given(st.integers(1, 10**6), st.sampled_from(["G", "g", "M", "m"]), st.integers(0, 99), st.booleans())
def test_resources_in_their_spellings(memory: int, unit: str, gpus: int, spaced: bool) -> None:
    text = f"memory={memory}{unit},vcores=3,gpu={gpus}"
    found = resources(Option(text.replace("=", " = ").replace(",", " , ") if spaced else text, "x"))
    assert found == {"memory": f"{memory}{'GiB' if unit in 'Gg' else 'MiB'}", "cores": 3, "gpus": gpus}


@given(
    st.sampled_from(["hdfs://h:9000/", "hdfs:///", "/", "./", "s3a://b/", "https://h:1/"]),
    st.from_regex(r"[a-z]{1,5}(/[a-z.]{1,5})?", fullmatch=True),
    st.sampled_from(["./", ""]),
    st.from_regex(r"[a-z][a-z.]{0,5}[a-z]", fullmatch=True).filter(lambda name: name not in ("ro", "rw")),
    st.sampled_from([":rw", ""]),
)
def test_localizations_in_their_spellings(place: str, path: str, here: str, name: str, mode: str) -> None:
    assert localization(Option(f"{place}{path}:{here}{name}{mode}", "x")) == (f"{place}{path}", name)


# The options of CliConstants, and the keys of the YAML classes, of Submarine 0.2 and 0.3, as far as its parsers read them.
THEIR_FLAGS = """
    name input_path checkpoint_path saved_model_path num_workers num_ps worker_resources ps_resources docker_image queue tensorboard
    tensorboard_resources tensorboard_docker_image conf worker_launch_cmd ps_launch_cmd env verbose wait_job_finish ps_docker_image
    worker_docker_image quicklink localization keytab principal distribute_keytab f insecure framework
"""
_ROLE_KEYS = ("resources", "replicas", "launch_cmd", "docker_image", "envs", "localizations", "mounts")
THEIR_KEYS = """
    spec.name spec.job_type spec.framework configs.docker_image configs.input_path configs.saved_model_path configs.checkpoint_path
    configs.quicklinks configs.wait_job_finish configs.envs configs.localizations configs.mounts scheduling.queue security.keytab
    security.principal security.distribute_keytab tensorBoard.docker_image tensorBoard.resources
"""


def test_each_flag_and_each_key_of_theirs_is_known() -> None:
    assert set(THEIR_FLAGS.split()) <= OPTIONS.keys()
    assert {
        *THEIR_KEYS.split(),
        *(f"roles.{role}.{key}" for role in ("worker", "ps") for key in _ROLE_KEYS),
    } <= KEYS.keys()


@pytest.mark.parametrize(
    "launcher",
    [
        ["yarn", "jar", "path/to/submarine-0.2.jar"],
        ["/usr/bin/java", "-cp", "/conf:/x.jar", "org.apache.submarine.client.cli.Cli"],
    ],
)
def test_the_words_of_their_launchers_may_stay(launcher: list[str]) -> None:
    assert submarine.translated([*launcher, "job", "run", *ONE], "yarn") == told(*ONE)
    shown = submarine.translated([*launcher, "job", "show", "--name", "j"], "yarn")
    assert shown == Verb("show", "j")


def test_the_programs_of_tony_get_their_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TonY's guide has it: no master among the workers, an archive under its own name, and its jar, behind a comma and a space."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    found = told(
        *[word for word in PS if word not in ("--input_path", "/in")], "--input_path", "", "--insecure", "--conf",
        "tony.containers.resources=envs/myvenv.zip#archive,train.py,", "path-to/tony-cli-0.3.13-all.jar",
    )  # fmt: skip
    assert (value(found, "archives"), value(found, "files")) == (["envs/myvenv.zip#myvenv.zip"], ["train.py#train.py"])
    assert list(found.described.job.roles) == ["worker", "ps"]
    line = value(found, f"{W}.command")[2]
    config = '{"cluster": {"worker": ["h:1", "i:2"], "ps": ["h:3"]}, "task": {"type": "worker", "index": 1}, "environment": "cloud"}'
    environ = {"TF_CONFIG": config, "TRAINMASTER_ROLE": "worker", "TRAINMASTER_INDEX": "1", "PATH": "/usr/bin:/bin"}
    shown = line.removesuffix("python train.py") + 'echo "$JOB_NAME $TASK_INDEX $CLUSTER_SPEC"'
    printed = subprocess.run(["bash", "-c", shown], env=environ, capture_output=True, text=True, check=True).stdout
    assert printed == 'worker 1 {"worker": ["h:1", "i:2"], "ps": ["h:3"]}\n'


def test_variables_of_yarns_container_runtime_say_what_they_said() -> None:
    prefix = "YARN_CONTAINER_RUNTIME_"
    found = told(
        *ONE, "--env", f"{prefix}TYPE=docker", "--env", f"{prefix}DOCKER_IMAGE=x:1", "--env", f"{prefix}DOCKER_MOUNTS=/a:/a:ro,/b:/c",
        "--mount", "/d:/d:rw", "--env", f"{prefix}DOCKER_CONTAINER_NETWORK=calico", "--env", f"{prefix}DOCKER_DELAYED_REMOVAL=true",
        "--env", f"{prefix}DOCKER_PIDS_LIMIT=9",
    )  # fmt: skip
    assert value(found, f"{W}.image") == "x:1"
    assert value(found, "engines.yarn") == {
        "mounts": ["/a:/a:ro", "/b:/c", "/d:/d:rw"], "network": "calico",
        "runtime": {"DOCKER_DELAYED_REMOVAL": "true", "DOCKER_PIDS_LIMIT": "9"},
    }  # fmt: skip
    assert value(found, f"{W}.env") in (None, {})


def test_an_absolute_place_is_a_link_in_the_roles_image(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    place = tmp_path / "opt" / "deep" / "data"
    found = told(
        *ONE,
        "--docker_image",
        "x:1",
        "--localization",
        f"{tmp_path}/data:{place}:ro",
        "--worker_launch_cmd",
        f"cat {place}",
    )
    assert value(found, "files") == [f"{tmp_path}/data#data"]
    assert any("a copy of its own" in remark for remark in found.remarks)
    command = value(found, f"{W}.command")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "x"


def test_a_job_with_a_tensorboard_and_no_input_is_a_service() -> None:
    """The service of 0.3's pages has a worker that only prints its directory: the page stays until the job is killed."""
    service = told(
        "--name", "s", "--worker_resources", "memory=2G,vcores=2", "--worker_launch_cmd", "pwd", "--tensorboard"
    )
    assert value(service, "roles.tensorboard.counts") is True
    assert value(service, "timeouts.stall") == "none"


def test_settings_of_tony_are_of_their_role_alone() -> None:
    found = told(*PS, "--conf", "tony.worker.memory=2g", "--conf", "tony.ps.vcores=3", "--conf", "tony.am.memory=700m")
    assert (value(found, f"{W}.resources.memory"), value(found, "roles.ps.resources.memory")) == ("2GiB", "4GiB")
    assert value(found, "roles.ps.resources.cores") == 3.0
    assert value(found, "master.resources.memory") == "700MiB"
    by_docker = told(*TWO, "--conf", "tony.docker.containers.image=x:1", "--conf", "tony.docker.enabled=true")
    assert list(by_docker.described.job.roles) == ["worker"]
    assert value(by_docker, f"{W}.image") == "x:1"


def test_one_worker_of_mxnet_needs_no_peers() -> None:
    assert value(told(*ONE, "--framework", "mxnet"), "framework") == "generic"
