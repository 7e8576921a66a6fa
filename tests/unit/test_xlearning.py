"""XLearning's command line: every flag of it becomes what it meant, or is refused by its name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cli.remarks import warner
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.integrations import xlearning
from trainmaster.integrations.dialect import Option, Translation, Verb, job_file
from trainmaster.integrations.xlearning_conf import DEFAULTS, FLAGS, OPTIONS, OTHERS, REFUSED, duration, memory

COMMAND = ["python", "demo.py"]
TENSORFLOW = "--app-type tensorflow --worker-num 3 --ps-num 1"
QUICK_START = """
    --app-type tensorflow --app-name tf-demo --input /tmp/data/tensorflow#data --output /tmp/tensorflow_model#model
    --files demo.py,dataDeal.py --worker-memory 10G --worker-num 2 --worker-cores 3 --ps-memory 1G --ps-num 1 --ps-cores 2
    --queue default
"""


def told(flags: str = "", *command: str, engine: str = "yarn", **environ: str) -> Translation:
    """The translation of the flags, divided at blanks, and a command."""
    found = xlearning.translated([*flags.split(), *(command or COMMAND)], engine, environ)
    assert isinstance(found, Translation)
    return found


def value(translation: Translation, path: str) -> Any:
    """What the job has at a path, as a job file would write it."""
    at: Any = job_to(translation.described.job)
    for part in path.split("."):
        at = at.get(part.replace("/", ".")) if isinstance(at, dict) else None
    return at


def refused(flags: str, *command: str, **environ: str) -> str:
    with pytest.raises(BadInput) as caught:
        told(flags, *command, **environ)
    return str(caught.value)


W = "roles.worker"
VISUALDL = (
    'mkdir -p eventLog; if [ "$TF_ROLE:$TF_INDEX" = worker:0 ]; then if command -v visualDL >/dev/null; then '
    'visualDL --logdir eventLog --cache_timeout 20{} --port "$TRAINMASTER_PORT_BOARD" --host 0.0.0.0 & '
    "else echo 'no VisualDL: there is no program visualDL' >&2; fi; fi; exec python demo.py"
)
# Each flag: what is written, and what the job then has.
MEANINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "app-name": ("--app-name demo", {"name": "demo"}),
    "app-type": ("--app-type Caffe", {"framework": "xlearning", "annotations.xlearning/app-type": "caffe", "gang": False}),
    "am-memory": ("--am-memory 2G", {"master.resources.memory": "2GiB"}),
    "am-cores": ("--am-cores 3", {"master.resources.cores": 3.0}),
    "driver-memory": ("--driver-memory 512m", {"master.resources.memory": "512MiB"}),
    "driver-cores": ("--driver-cores 2", {"master.resources.cores": 2.0}),
    "worker-num": ("--worker-num 4", {f"{W}.replicas.max": 4}),
    "worker-memory": ("--worker-memory 10G", {f"{W}.resources.memory": "10GiB"}),
    "worker-cores": ("--worker-cores 3", {f"{W}.resources.cores": 3.0}),
    "worker-gpus": ("--worker-gpus 2", {f"{W}.resources.gpus": 2}),
    "ps-num": (f"{TENSORFLOW} --ps-num 2", {"roles.ps.replicas.max": 2, "roles.ps.counts": False, "gang": True}),
    "ps-memory": (f"{TENSORFLOW} --ps-memory 3000", {"roles.ps.resources.memory": "3000MiB"}),
    "ps-cores": (f"{TENSORFLOW} --ps-cores 2", {"roles.ps.resources.cores": 2.0}),
    "ps-gpus": (f"{TENSORFLOW} --ps-gpus 1", {"roles.ps.resources.gpus": 1}),
    "chiefworker-memory": (
        f"{TENSORFLOW} --chiefworker-memory 4G",
        {"roles.chief.resources.memory": "4GiB", f"{W}.replicas.max": 2, f"{W}.resources.memory": "1GiB"},
    ),
    "evaluatorworker-memory": (
        f"{TENSORFLOW} --tf-evaluator true --evaluatorworker-memory 4G",
        {"roles.evaluator.resources.memory": "4GiB", f"{W}.replicas.max": 2},
    ),
    "tf-evaluator": (
        f"{TENSORFLOW} --tf-evaluator true --worker-memory 2G",
        {"roles.evaluator.resources.memory": "2GiB", "roles.evaluator.counts": False, f"{W}.replicas.max": 2},
    ),
    "input": (
        "--input /tmp/a#data --input hdfs://x/b",
        {"inputs.data.url": "hdfs:///tmp/a", "inputs.input.url": "hdfs://x/b", "inputs.data.as": "download"},
    ),
    "output": (
        "--output /tmp/a#out/model --output mine", {
            "outputs.out-model.url": "hdfs:///tmp/a", "outputs.out-model.local": "out/model", "outputs.output.as": "upload",
            "outputs.output.required": "any", f"{W}.prepare": ["mkdir", "-p", "out/model", "output"],
            "saves.names": "interResult", "saves.keep": 1000,
        },
    ),
    "s3input": ("--s3input bucket/a#data", {"inputs.data.url": "s3://bucket/a"}),
    "s3output": ("--s3output s3://bucket/a#m", {"outputs.m.url": "s3://bucket/a"}),
    "input-strategy": ("--input a#b --input-strategy placeholder", {"inputs.b.as": "list", "inputs.b.split": "again"}),
    "output-strategy": ("--output /a#b --output-strategy STREAM", {"outputs.b.as": "stream", "outputs.b.format": "auto"}),
    "inputformat": (
        "--input /a#b --input-strategy STREAM --inputformat org.apache.hadoop.mapred.SequenceFileInputFormat",
        {"inputs.b.as": "stream", "inputs.b.format": "hadoop:org.apache.hadoop.mapred.SequenceFileInputFormat"},
    ),
    "outputformat": (
        "--output /a#b --output-strategy STREAM --outputformat org.apache.hadoop.mapred.TextOutputFormat",
        {"outputs.b.format": "hadoop:org.apache.hadoop.mapred.TextOutputFormat"},
    ),
    "inputformat-shuffle": ("--input /a#b --input-strategy STREAM --inputformat-shuffle true", {"inputs.b.shuffle": True}),
    "inputformat-enable": ("--input /a#b --inputformat-enable true", {"inputs.b.as": "stream", "inputs.b.format": "lines"}),
    "outputformat-enable": ("--output /a#b --outputformat-enable true", {"outputs.b.as": "stream"}),
    "stream-epoch": ("--input /a#b --input-strategy STREAM --stream-epoch 3", {"inputs.b.epochs": 3}),
    "isRenameInputFile": ("--isRenameInputFile true", {}),
    "inRenameInputFile": ("--inRenameInputFile false", {}),
    "output-index": ("--worker-num 3 --output /a#b --output-index 2", {"outputs.b.from": "worker:2", "outputs.b.layout": "task"}),
    "create-containerid-dir": ("--output /a#b --create-containerid-dir false", {"outputs.b.layout": "flat"}),
    "files": ("--files demo.py,src/data.py,/opt/x.py", {"files": ["demo.py", "src/data.py#data.py", "/opt/x.py#x.py"]}),
    "archiveFiles": ("--archiveFiles env.tar.gz#env,more.zip", {"archives": ["env.tar.gz#env", "more.zip#more.zip"]}),
    "cacheFile": ("--cacheFile /d/words.txt,/d/x#y", {"cache": ["hdfs:///d/words.txt#words.txt", "hdfs:///d/x#y"]}),
    "cacheArchive": ("--cacheArchive /d/env.tgz#python", {"archives": ["hdfs:///d/env.tgz#python"]}),
    "jars": ("--jars lib/a.jar,b.jar", {
        "files": ["lib/a.jar#a.jar", "b.jar"],
        f"{W}.command": 'export CLASSPATH=a.jar:b.jar"${CLASSPATH:+:$CLASSPATH}"; exec python demo.py',
    }),
    "user-path": ("--user-path /opt/bin", {f"{W}.command": 'export PATH="${PATH:+$PATH:}"/opt/bin; exec python demo.py'}),
    "user-ldlibrarypath": (
        "--user-ldlibrarypath /l",
        {f"{W}.command": 'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}"/l; exec python demo.py'},
    ),
    "user-classpath-first": (
        "--jars a.jar --user-classpath-first false",
        {f"{W}.command": 'export CLASSPATH="${CLASSPATH:+$CLASSPATH:}"a.jar; exec python demo.py'},
    ),
    "host-local-enable": ("--host-local-enable false", {}),
    "priority": ("--priority VERY_HIGH", {"priority": 5}),
    "queue": ("--queue research", {"engines.yarn.queue": "research"}),
    "board-enable": (
        "--app-type tensorflow --board-enable true --board-logdir /logs", {
            "roles.tensorboard.counts": False, "links.TensorBoard.role": "tensorboard", "roles.tensorboard.command":
            'tensorboard --logdir tensorboard-logs --port "$TRAINMASTER_PORT_BOARD" --bind_all --reload_interval 1',
            "inputs.tensorboard-logs.url": "hdfs:///logs/**/*tfevents*",
        },
    ),
    "board-index": (
        f"{TENSORFLOW} --board-enable true --board-index 1", {"links.TensorBoard.role": "worker", "links.TensorBoard.index": 1},
    ),
    "board-logdir": ("--app-type tensorflow --board-enable true --board-logdir logs", {
        f"{W}.command": 'mkdir -p logs; if [ "$TF_ROLE:$TF_INDEX" = worker:0 ]; then if command -v tensorboard >/dev/null; then '
        'tensorboard --logdir logs --port "$TRAINMASTER_PORT_BOARD" --bind_all --reload_interval 1 & '
        "else echo 'no TensorBoard: there is no program tensorboard' >&2; fi; fi; exec python demo.py",
    }),
    "board-modelpb": (
        "--board-enable true --board-modelpb m.pb", {"links.VisualDL.role": "worker", f"{W}.command": VISUALDL.format(" --model_pb m.pb")},
    ),
    "board-cacheTimeout": (
        "--board-enable true --board-cacheTimeout 20", {"links.VisualDL.port": "board", f"{W}.command": VISUALDL.format("")},
    ),
    "board-reloadinterval": ("--app-type tensorflow --board-enable true --board-reloadinterval 9 --board-logdir s3://b/l", {
        "roles.tensorboard.command":
        'tensorboard --logdir tensorboard-logs --port "$TRAINMASTER_PORT_BOARD" --bind_all --reload_interval 9',
    }),
    "board-historydir": (
        "--app-type tensorflow --board-enable true --board-historydir /history --app-name demo", {
            "outputs.board.url": "hdfs:///history", "outputs.board.local": "eventLog", "outputs.board.from": "worker:0",
            "outputs.board.required": "none", "outputs.board.layout": "flat", "outputs.board.overwrite": True,
        },
    ),
    "duration": ("--duration 2.5h", {"timeouts.job": "150m"}),
    "conf": ("--conf xlearning.job.exec.timeout=60000 --conf hbox.worker.num=2", {"timeouts.job": "1m", f"{W}.replicas.max": 2}),
    "docker-image": ("--docker-image x:1", {"environment.image": "x:1"}),
    "container-type": ("--container-type docker --docker-image x:1", {"environment.image": "x:1"}),
}  # fmt: skip
# Flags that say something that is not to be had: what is written, and what the refusal names.
NOT_HERE = {
    "cluster": ("--cluster sh", "HADOOP_CONF_DIR"),
}
COMMANDS = ("launch-cmd", "xlearning-cmd", "hbox-cmd")


def test_every_flag_is_in_a_table_of_these() -> None:
    assert {*MEANINGS, *NOT_HERE, *COMMANDS, "version"} == set(OPTIONS)


@pytest.mark.parametrize("name", MEANINGS)
def test_a_flag_means_what_it_meant(name: str) -> None:
    flags, meaning = MEANINGS[name]
    translation = told(flags)
    assert {path: value(translation, path) for path in meaning} == meaning


@pytest.mark.parametrize("name", MEANINGS)
def test_the_job_file_that_is_printed_says_the_same_job(name: str) -> None:
    translation = told(MEANINGS[name][0])
    assert job_from(yaml.safe_load(job_file(translation))) == translation.described.job


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_to_be_had_is_refused_by_its_name(name: str) -> None:
    flags, named = NOT_HERE[name]
    said = refused(flags)
    assert named in said
    assert f"flag --{name}" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_flag_or_what_follows_the_flags(name: str) -> None:
    found = xlearning.translated([f"--{name}", "python  demo.py --x=1"], "yarn", {})
    assert isinstance(found, Translation)
    assert value(found, f"{W}.command") == ["python", "demo.py", "--x=1"]
    assert value(told("--worker-num 2", "python", "demo.py", "--worker-num", "7"), f"{W}.command")[2:] == [
        "--worker-num",
        "7",
    ]
    with pytest.raises(BadInput, match="there is no command"):
        xlearning.translated(["--worker-num", "2"], "yarn", {})


def test_the_quick_start() -> None:
    translation = told(QUICK_START)
    assert yaml.safe_load(job_file(translation)) == {
        "name": "tf-demo", "framework": "xlearning", "priority": 3, "gang": True, "files": ["demo.py", "dataDeal.py"],
        "roles": {
            "worker": {
                "command": COMMAND, "replicas": 2, "workdir": "copy", "resources": {"memory": "10GiB", "cores": 3},
                "prepare": ["mkdir", "-p", "model"],
            },
            "ps": {
                "command": COMMAND, "replicas": 1, "workdir": "copy", "resources": {"memory": "1GiB", "cores": 2},
                "prepare": ["mkdir", "-p", "model"],
            },
        },
        "master": {"resources": {"memory": "1024MiB", "cores": 1}},
        "inputs": {"data": {"url": "hdfs:///tmp/data/tensorflow", "as": "download"}},
        "outputs": {"model": {"url": "hdfs:///tmp/tensorflow_model", "as": "upload", "required": "any"}},
        "saves": {"names": "interResult", "keep": 1000},
        "annotations": {"xlearning.app-type": "tensorflow", "xlearning.cluster": "tensorflow"},
        "engines": {"yarn": {"queue": "default"}},
    }  # fmt: skip
    assert translation.stays
    assert translation.described.engine == "yarn"
    assert value(told(QUICK_START, engine="local"), "inputs.data.url") == "/tmp/data/tensorflow"


@pytest.mark.parametrize("kind", xlearning.CLUSTERED)
def test_a_type_runs_alone_and_its_cluster_is_refused_for_the_part_that_is_missing(kind: str) -> None:
    key, part = xlearning.CLUSTERED[kind]
    name, number = key.replace(".", "-"), {"ps.num": 1, "worker.num": 2}[key]
    assert value(told(f"--app-type {kind}"), "annotations.xlearning/app-type") == kind
    said = refused(f"--app-type {kind.upper()} --{name} {number}")
    assert f"the type {kind} with --{name} {number} needs {part}, which is not to be had here" in said
    assert f"--{name} {number - 1} runs" in said


@pytest.mark.parametrize("kind", xlearning.INTERACTIVE)
def test_an_interactive_type_is_refused_by_its_name(kind: str) -> None:
    assert f"the application type {kind} is not to be had here" in refused(f"--app-type {kind}")


def test_workers_of_xgboost_and_lightgbm_work_alone() -> None:
    """Their peers find each other in the types distxgboost and distlightgbm."""
    for kind in ("xgboost", "lightgbm"):
        assert value(told(f"--app-type {kind} --worker-num 3"), f"{W}.replicas.max") == 3
    command = value(told("--app-type distlightgbm"), f"{W}.command")
    assert (
        "LIGHTGBM_NUM_MACHINE=1 LIGHTGBM_LOCAL_LISTEN_PORT=12400; echo 127.0.0.1 12400 > lightGBMlist.txt; exec"
        in command
    )


@pytest.mark.parametrize(
    ("flags", "has_board"),
    [
        ("--app-type tensorflow --launch-cmd c", True),
        ("--app-type tensorflow --launch-cmd c --board-enable false", False),
        ("--app-type tensorflow c", False),
        ("--app-type tensorflow --hbox-cmd c", False),
        ("--app-type tensorflow --board-enable true c", True),
        ("--app-type mxnet --launch-cmd c", False),
        ("--app-type mxnet --launch-cmd c --board-logdir log", True),
        ("--app-type mxnet --board-logdir log c", False),
    ],
)
def test_the_words_of_xlearning_1_have_a_board_by_default(flags: str, has_board: bool) -> None:
    """Its command is --launch-cmd. Hbox, whose command is behind the flags, has one only if it is asked for."""
    translation = xlearning.translated(flags.split(), "yarn", {})
    assert isinstance(translation, Translation)
    assert bool(translation.described.job.links) == has_board


def test_a_board_that_is_not_installed_does_not_hinder_the_program(tmp_path: Path) -> None:
    line = value(told("--board-enable true", "echo", "trained"), f"{W}.command")
    environ = {"PATH": "/usr/bin:/bin", "TF_ROLE": "worker", "TF_INDEX": "0"}
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("trained\n", "no VisualDL: there is no program visualDL\n")
    assert (tmp_path / "eventLog").is_dir()


def test_several_remote_paths_have_one_local_name() -> None:
    assert value(told("--input /d/{a,b}#data"), "inputs.data.url") == "hdfs:///d/{a,b}", "a pattern of Hadoop"
    for flags in ("--input /a,/b#data", "--input /a#data --input /b#data", "--input /a,/b,/a#data/"):
        assert value(told(flags), "inputs.data.url") == ["hdfs:///a", "hdfs:///b"]
    mixed = told("--input /a,/b --input /c#other --s3input d#input")
    assert value(mixed, "inputs.input.url") == ["hdfs:///a", "hdfs:///b", "s3://d"]
    assert value(mixed, "inputs.other.url") == "hdfs:///c"


def test_the_output_directory_is_there_before_the_program() -> None:
    made = told("--output /a#out")
    assert value(made, f"{W}.prepare") == ["mkdir", "-p", "out"]
    assert not value(told("--output /a#out --conf xlearning.container.auto.create.output.dir=false"), f"{W}.prepare")
    assert not value(told("--output /a#out --output-strategy STREAM"), f"{W}.prepare")


def test_a_backslash_at_the_end_of_a_script_is_not_a_command() -> None:
    translation = xlearning.translated(["--launch-cmd", "sh demo.sh", "\\"], "yarn", {})
    assert isinstance(translation, Translation)
    assert value(translation, f"{W}.command") == ["sh", "demo.sh"]


def test_types() -> None:
    torch = told("--app-type distTorch --worker-num 2")
    assert value(torch, "annotations.xlearning/cluster") == "pytorch"
    assert (value(torch, "gang"), value(torch, f"{W}.restart.scope")) == (True, "group")
    alone = told("--app-type tensorflow --worker-num 2")
    assert value(alone, "annotations.xlearning/cluster") is None
    strategy = told("--app-type tensorflow --worker-num 2 --conf xlearning.tf.distribution.strategy=true")
    assert value(strategy, "annotations.xlearning/cluster") == "tensorflow"
    assert "the type pytorch has no ps" in told("--app-type pytorch --ps-num 1").remarks[0]
    assert "the type pytorch has no chief" in told("--app-type pytorch --chiefworker-memory 3G").remarks[0]
    assert "no VisualDL" in told("--board-enable true --board-logdir hdfs:///logs").remarks[0]
    assert "at least 2 workers" in refused("--app-type tensorflow --worker-num 3 --tf-evaluator true")
    assert value(told("--app-type tensorflow --chiefworker-memory 3G"), f"{W}.resources.memory") == "3GiB"


@pytest.mark.parametrize(
    ("workers", "rate", "fail"), [(1, 0.5, 0), (2, 0.5, 0), (3, 0.5, 1), (10, 0.5, 4), (10, 0.2, 1), (4, 1.0, 3)]
)
def test_as_many_independent_workers_may_fail_as_there(workers: int, rate: float, fail: int) -> None:
    part = told(
        f"--worker-num {workers} --conf xlearning.container.maxFailures.rate={rate}"
    ).described.job.completion.failures
    assert sum(failed <= (part or 0.0) * workers for failed in range(1, workers + 1)) == fail
    assert (
        value(told(f"{TENSORFLOW} --conf xlearning.container.maxFailures.rate={rate}"), "completion.failures") is None
    )


CONF: dict[str, dict[str, Any]] = {
    "app.max.attempts=3": {f"{W}.restart.limit": 2, f"{W}.retry_memory": 1.5},
    "worker.mem.autoscale=0.3": {f"{W}.retry_memory": 1.3},
    "localresource.timeout=300000": {"timeouts.start": "5m"},
    "task.timeout=60000": {"timeouts.grace": "1m"},
    "am.nodeLabelExpression=a": {"master.nodes.labels.label": "a"},
    "worker.nodeLabelExpression=gpu": {f"{W}.nodes.labels.label": "gpu"},
    "job.labelname=x": {"engines.yarn.label": "x"},
    "host.blacklist=h1,h2": {f"{W}.nodes.exclude": ["h1", "h2"]},
    "container.env.A=1=2": {f"{W}.env.A": "1=2"},
    "container.env=A=1|B=2": {f"{W}.env.A": "1", f"{W}.env.B": "2"},
    "am.env.X=y": {"master.env.X": "y"},
    "am.env=X=y": {"master.env.X": "y"},
    "container.extraEnv=A=1|B=2": {f"{W}.env.B": "2"},
    "memory.overhead.fraction=0.5": {f"{W}.resources.overhead": "512MiB"},
    "memory.overhead.minimum=100": {f"{W}.resources.overhead": "103MiB"},
    "inputfile.rename=true": {},
}


@pytest.mark.parametrize("said", CONF)
def test_a_key_of_the_configuration_means_what_it_meant(said: str) -> None:
    for prefix in ("xlearning.", "hbox."):
        translation = told(f"--conf {prefix}{said}")
        assert {path: value(translation, path) for path in CONF[said]} == CONF[said]


def test_more_of_the_configuration() -> None:
    ps = told(f"{TENSORFLOW} --conf xlearning.ps.nodeLabelExpression=big --conf xlearning.ps.mem.autoscale=0.1")
    assert (value(ps, "roles.ps.nodes.labels.label"), value(ps, "roles.ps.retry_memory")) == ("big", 1.1)
    listed = told("--input /a#b --input-strategy PLACEHOLDER --conf xlearning.placeholder.whole.enable=true")
    assert value(listed, "inputs.b.split") == "whole"
    cached = told(
        "--input /a#b --input-strategy STREAM --inputformat a.B --conf xlearning.inputformat.cache=true "
        "--conf xlearning.inputformat.cachesize.limit=7"
    )
    assert value(cached, "inputs.b.options.cache") == "7MiB"
    registry = "--conf xlearning.docker.registry.host=r --conf xlearning.docker.registry.port=5000"
    assert value(told(f"--docker-image x:1 {registry}"), "environment.image") == "r:5000/x:1"
    saved = told("--output /a#b --conf xlearning.interresult.upload.interval=60000")
    assert value(saved, "saves.every") == "1m"
    board = told("--app-type tensorflow --board-enable true --board-logdir /l --conf xlearning.tf.board.path=/opt/tb")
    assert value(board, "roles.tensorboard.command").startswith("/opt/tb --logdir tensorboard-logs ")


def test_a_hadoop_format_reads_the_settings_of_hadoop() -> None:
    setting = "--conf mapreduce.input.fileinputformat.split.maxsize=7"
    stream = told(f"--input /a#b --output /c#d --input-strategy STREAM --inputformat a.B {setting}")
    options = stream.described.job.inputs["b"].options
    assert options == {"mapreduce.input.fileinputformat.split.maxsize": "7"}
    assert "the setting mapreduce" in refused(f"--input /a#b --input-strategy STREAM {setting}")


def test_every_key_of_the_configuration_was_tried() -> None:
    tried = " ".join([Path(__file__).read_text(), *(FLAGS[name] for name in MEANINGS if name in FLAGS)])
    assert sorted(key for key in {*DEFAULTS, *OTHERS} if key not in tried) == []


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_not_to_be_had_is_refused_by_its_name(key: str) -> None:
    said = refused(f"--conf xlearning.{key}=x")
    assert REFUSED[key][0] in said
    assert f"--conf xlearning.{key}" in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--worker-memroy 3", "did you mean --worker-memory?"),
        ("--conf xlearning.worker.memroy=3", "did you mean xlearning.worker.memory?"),
        ("--conf mapreduce.x=3", "the setting mapreduce.x of Hadoop"),
        ("--version", "tm --version"),
        ("--conf x", "KEY=VALUE"),
        ("--worker-memory 0", "memory: 10G"),
        ("--worker-memory 10GB", "memory: 10G"),
        ("--worker-num 0", "a whole number, 1 or more"),
        ("--worker-cores 0", "1 or more"),
        ("--worker-gpus -1", "0 or more"),
        ("--priority high", "DEFAULT or VERY_LOW"),
        ("--input-strategy x", "download or placeholder"),
        ("--board-enable yes", "true or false"),
        ("--duration 3w", "30s, 5m, 1.5h"),
        ("--output /a#c --output /b#c", "an output to several places, hdfs:///a, hdfs:///b,"),
        ("--input #c", "REMOTE#LOCAL"),
        ("--input /a#../c", "without .."),
        ("--cacheFile /d/x.tar.gz", "an archive that stays packed"),
        ("--archiveFiles x.rar", "an archive of this kind"),
        ("--container-type docker", "has no image"),
        ("--output /a#b --output-index 5", "there is no task 'worker:5'"),
        ("--engine", "--engine has no value"),
        ("--conf xlearning.interresult.dir=/x", "another name of saves"),
        ("--conf xlearning.container.maxFailures.rate=2", "from 0 to 1"),
        ("--conf xlearning.container.env=x", "NAME=VALUE|NAME=VALUE"),
        ("--set x", "PATH=VALUE"),
        ("--engine mesos", "there is no engine 'mesos'"),
    ],
)
def test_what_is_wrong_is_named(flags: str, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        xlearning.translated([*flags.split(), *(COMMAND if flags != "--engine" else [])], "yarn", {})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "said", ["output.local.dir=output", "interresult.dir=/interResult_", "docker.worker.dir=/work"]
)
def test_the_default_of_a_key_that_is_refused_says_nothing(said: str) -> None:
    """Site files name defaults, and one such line would stop every job of the cluster."""
    assert told(f"--conf xlearning.{said}").described == told("").described
    with pytest.raises(BadInput):
        told(f"--conf xlearning.{said}x")


def test_what_needs_nothing_done_is_reported() -> None:
    translation = told(
        "--conf xlearning.container.heartbeat.interval=5 --conf hbox.history.port=1 --isRenameInputFile true"
    )
    first, second = translation.remarks
    assert first.startswith("xlearning.container.heartbeat.interval, xlearning.history.port: nothing to do here")
    assert second.startswith("isRenameInputFile: nothing to do here")


def test_a_chief_is_worker_0() -> None:
    chief = f"{TENSORFLOW} --chiefworker-memory 4G --output /a#b --board-enable true"
    assert value(told(f"{chief} --output-index 0"), "outputs.b.from") == "chief:0"
    assert value(told(f"{chief} --output-index 2"), "outputs.b.from") == "worker:1"
    assert value(told(f"{chief} --board-index 0"), "links.TensorBoard.role") == "chief"
    assert told(chief).remarks[0].endswith("of INDEX 0 in chief-0, of INDEX 1 to 2 in worker-0 to worker-1")
    evaluated = told(f"{chief} --tf-evaluator true").remarks[0]
    assert evaluated.endswith("of INDEX 0 in chief-0, of INDEX 1 in worker-0, of the evaluator in evaluator-0")
    assert not told(f"{chief} --output-index 0").remarks


def test_the_evaluator_is_the_last_worker() -> None:
    last = f"{TENSORFLOW} --tf-evaluator true --output /a#b"
    assert value(told(f"{last} --output-index 2"), "outputs.b.from") == "evaluator:0"
    assert value(told(f"{last} --output-index 1"), "outputs.b.from") == "worker:1"


@pytest.mark.parametrize(
    ("flags", "variable"),
    [
        ("--user-ldlibrarypath /l", "LD_LIBRARY_PATH"),
        ("--user-path /l", "PATH"),
        ("--jars /l", "CLASSPATH"),
        ("--jars /l --user-classpath-first false", "CLASSPATH"),
    ],
)
@pytest.mark.parametrize("before", [None, "", "/a:/b"])
def test_a_path_for_the_program_makes_no_empty_entry(flags: str, variable: str, before: str | None) -> None:
    """An empty entry of such a list is the working directory: whatever lies there would be loaded."""
    line = value(told(flags, "/usr/bin/env"), f"{W}.command")
    environ = {} if before is None else {variable: before}
    done = subprocess.run(["/bin/sh", "-c", line], env=environ, capture_output=True, text=True, check=True)
    [entries] = [
        text.partition("=")[2].split(":") for text in done.stdout.splitlines() if text.startswith(f"{variable}=")
    ]
    assert "" not in entries
    assert set(entries) >= {"/l" if flags.startswith("--user") else "l", *(before.split(":") if before else [])}


def test_advice_is_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    translation = told(
        f"{TENSORFLOW} --worker-memory 10G --output {tmp_path}/out#model --conf xlearning.job.exec.timeout=60000"
    )
    say = translation.spoken
    assert say("give it another url, or say overwrite: true", "outputs.model.url") == (
        "give it another --output, or say --set outputs.model.overwrite=true"
    )
    assert say("say layout: task, or name one task that writes it: from:", "outputs.model.url") == (
        "say --set outputs.model.layout=task, or name one task that writes it: --set outputs.model.from=VALUE"
    )
    assert say("where the checkpoint is all that it knows, set restart.scope: group", "roles.worker") == (
        "where the checkpoint is all that it knows, use --set roles.worker.restart.scope=group"
    )
    assert say("lower roles.worker.resources.memory, or choose a queue with larger nodes: tm cluster show") == (
        "lower --worker-memory, or choose a queue with larger nodes: tm cluster show"
    )
    assert (
        say("use path, archive or requirements of environment:")
        == "use path, archive or requirements of --set environment.KEY=VALUE"
    )
    assert say("raise timeouts.storage", "timeouts.storage") == "raise --set timeouts.storage"
    assert say("name one with --set engines.yarn.queue=NAME") == "name one with --set engines.yarn.queue=NAME"
    assert say("save an image: docker save NAME", "roles.worker.image") == "save an image: docker save NAME"
    assert say("end the command that does", "roles.worker.image") == "end the command that does"
    with pytest.raises(BadInput) as caught, translation.speaking():
        raise BadInput(
            "too large", place="roles.worker.resources.memory: 10GiB   (flag --worker-memory)", mend="ask for less"
        )
    assert caught.value.place == "flag --worker-memory   (roles.worker.resources.memory: 10GiB)"
    with pytest.raises(BadInput) as caught, translation.speaking():
        raise BadInput("too large", place="roles.worker.resources.memory   (flag --worker-memory)", mend="ask for less")
    assert caught.value.place == "flag --worker-memory   (roles.worker.resources.memory)"


def test_the_advice_of_an_end_is_in_the_words_of_the_command_line() -> None:
    reason = {
        "reason": "out-of-memory",
        "task": "worker:1",
        "advice": "raise roles.worker.resources.memory (--memory), or set retry_memory",
    }
    items = [
        {"event": {}},
        {"end": {"state": "failed", "reason": reason}},
        {"end": {"state": "succeeded", "reason": None}},
    ]
    first, second, third = told("--worker-memory 1G").retold(items)
    assert (first, third) == (items[0], items[2])
    assert second["end"]["reason"]["advice"] == "raise --worker-memory, or set retry_memory"
    waiting = [{"status": {"waiting": "set master.resources.memory"}}, {"lost": 4.0, "why": "set engines.yarn.queue"}]
    status, lost = told("--queue research --am-memory 1G").retold(waiting)
    assert status["status"]["waiting"] == "set --am-memory"
    assert lost["why"] == "set --queue"


def test_a_warning_names_the_flag_and_comes_only_where_somebody_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    """XLearning's own default is 3, and the highest priority of a cluster is 0 unless that is set."""
    for flags, words in (("--priority HIGH", "warning: --priority: YARN gives the job 0 instead of 4\n"), ("", "")):
        translation = told(flags)
        warner(translation.described, translation.spoken)("YARN gives the job 0 instead of 4", "priority")
        assert capsys.readouterr().err == words


def test_an_input_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Wherever it lies: inputs of a cluster are otherwise listed by the job's master."""
    with pytest.raises(BadInput, match=r"memory://nothing-here/\*\.csv matches no file"):
        told("--input memory://nothing-here/*.csv#data").check_inputs()
    (tmp_path / "a.csv").write_text("1")
    told(f"--input {tmp_path}/*.csv#data", engine="local").check_inputs()


SITE = """<configuration>
  <property><name>xlearning.worker.memory</name><value>3G</value></property>
  <property><name>xlearning.worker.cores</name><value>4</value></property>
  <property><name>xlearning.history.port</name><value>1</value></property>
  <property><name>yarn.some.key</name><value>1</value></property>
</configuration>"""


@pytest.fixture
def site(tmp_path: Path) -> str:
    (tmp_path / "xlearning-site.xml").write_text(SITE)
    return str(tmp_path)


@pytest.mark.parametrize("variable", ["XLEARNING_CONF_DIR", "HADOOP_CONF_DIR"])
def test_the_site_file_is_stronger_than_defaults_and_weaker_than_all_else(
    site: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def memories(flags: str) -> tuple[str, float]:
        job = told(flags, **{variable: site})
        assert job.remarks == ()
        return value(job, f"{W}.resources.memory"), value(job, f"{W}.resources.cores")

    assert memories("") == ("3GiB", 4.0)
    user = tmp_path / "user" / "trainmaster"
    user.mkdir(parents=True)
    (user / "config.yaml").write_text("roles: {worker: {resources: {memory: 5GiB}}}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    assert memories("") == ("5GiB", 4.0)
    monkeypatch.setenv("TRAINMASTER_SET_ROLES__WORKER__RESOURCES__MEMORY", "6GiB")
    assert memories("") == ("6GiB", 4.0)
    assert memories("--conf xlearning.worker.memory=7G") == ("7GiB", 4.0)
    assert memories("--conf xlearning.worker.memory=7G --worker-memory 8G") == ("8GiB", 4.0)
    assert memories("--worker-memory 8G --set roles.worker.resources.memory=9GiB") == ("9GiB", 4.0)


def test_where_a_value_came_from_is_named(site: str) -> None:
    translation = told("--worker-num 2 --queue x", XLEARNING_CONF_DIR=site)
    origins = translation.described.origins
    assert origins["roles", "worker", "resources", "memory"] == f"{site}/xlearning-site.xml line 2"
    assert origins["roles", "worker", "replicas"] == "flag --worker-num"
    assert origins["priority",] == "XLearning's default"


def test_a_site_file_that_is_wrong_is_named(site: str) -> None:
    path = Path(site, "xlearning-site.xml")
    path.write_text(SITE.replace("worker.memory", "worker.memroy"))
    assert "xlearning-site.xml line 2" in refused("", XLEARNING_CONF_DIR=site)
    path.write_text("<configuration><property>")
    assert "xlearning-site.xml" in refused("", XLEARNING_CONF_DIR=site)


@given(st.integers(1, 10**6), st.sampled_from(["G", "g", "M", "m", ""]))
def test_memory_in_its_spellings(number: int, unit: str) -> None:
    read = job_from({"roles": {"w": {"command": "x", "resources": {"memory": memory(Option(f"{number}{unit}", "x"))}}}})
    assert read.roles["w"].resources.memory == number * 2 ** (30 if unit in ("G", "g") else 20)


@given(st.integers(0, 10**6), st.integers(0, 99), st.sampled_from(["s", "m", "h", "d", ""]))
def test_durations_in_their_spellings(whole: int, part: int, unit: str) -> None:
    text = f"{whole}.{part}" if part else str(whole)
    seconds = float(text) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}[unit]
    if seconds > 100 * 365 * 86400:
        return
    read = job_from(
        {"timeouts": {"job": duration(Option(text + unit, "x"))}, "roles": {"w": {"command": "x"}}}
    ).timeouts.job
    assert read is None if not seconds else math.isclose(read or 0.0, seconds)


@given(st.text(alphabet="GgMmbB .+-0123456789e_", max_size=8))
def test_memory_is_nothing_else(text: str) -> None:
    digits = text.strip().rstrip("GgMm")
    if not (digits.isdigit() and len(text.strip()) - len(digits) <= 1 and int(digits) > 0 and len(digits) < 10):
        with pytest.raises(BadInput):
            memory(Option(text, "--worker-memory"))


def test_help_and_what_is_ours() -> None:
    assert xlearning.translated(["--help"], "yarn", {}) == Verb("help")
    options = told("--dry-run --engine local --json --idempotency-key k --set timeouts.stall=none").options
    assert (options.engine, options.dry_run, options.as_json, options.key) == ("local", True, True, "k")


def test_the_dialects_are_loaded_when_they_are_spoken() -> None:
    loaded = "[name for name in sys.modules if 'integrations' in name or 'dialect' in name]"
    code = f"import sys, trainmaster.cli.commands.submit; print({loaded})"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
