"""The job model: every key, every shorthand, every default that depends on others, and what is refused in which words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.dependencies import stages, start_order
from trainmaster.core.spec.job import GIB, MIB, Completion, Environment, Job, Link, Secret, keys
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.redaction import redact
from trainmaster.core.spec.shapes import NAME_WORDS, SHAPES, choice
from trainmaster.core.spec.shorthands import spelled_out

COMMAND = {"command": "python train.py"}
COMMAND_WORDS = "a command: text for the shell, or a list of a program and its arguments"


def job(worker: dict[str, Any] | None = None, **more: Any) -> Job:
    return job_from({"roles": {"worker": {**COMMAND, **(worker or {})}}, **more})


def told(worker: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(BadInput) as error:
        job(worker, **more)
    return str(error.value)


# -- every key of the design --

# fmt: off
KEYS = frozenset("""
name framework environment.archive environment.image environment.path environment.requirements
roles.NAME.command roles.NAME.replicas.min roles.NAME.replicas.max roles.NAME.processes
roles.NAME.resources.cores roles.NAME.resources.memory roles.NAME.resources.gpus roles.NAME.resources.overhead
roles.NAME.restart.scope roles.NAME.restart.limit roles.NAME.env roles.NAME.counts
roles.NAME.after roles.NAME.image roles.NAME.prepare roles.NAME.stop.signal roles.NAME.stop.grace roles.NAME.stop.warn
roles.NAME.ports roles.NAME.nodes.labels roles.NAME.nodes.exclude roles.NAME.priority roles.NAME.workdir roles.NAME.retry_memory
files archives cache
inputs.NAME.url inputs.NAME.as inputs.NAME.local inputs.NAME.format inputs.NAME.epochs inputs.NAME.shuffle inputs.NAME.seed
inputs.NAME.split
outputs.NAME.url outputs.NAME.from outputs.NAME.as outputs.NAME.layout outputs.NAME.overwrite outputs.NAME.local
checkpoint.path checkpoint.url checkpoint.every checkpoint.keep tensorboard.logs tensorboard.memory
timeouts.start timeouts.stall timeouts.job timeouts.finish timeouts.storage timeouts.grace
completion.first completion.failures gang logs storage saves.every saves.keep scale network secrets priority links
master.resources master.env master.nodes annotations engines version
""".split())  # noqa: SIM905 - a table reads better than eighty quotes
# fmt: on


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"roles": {"w": {"command": "true", "replicas": "two"}}}, "roles.w.replicas: two", "expected a whole number"),
        ({"roles": {"w": {"command": "true", "restart": "grop"}}}, "roles.w.restart: grop", "did you mean group?"),
        ({"roles": {"w": {"command": "true", "stop": "soon"}}}, "roles.w.stop: soon", "duration"),
        ({"roles": {"w": {"command": "true"}}, "checkpoint": "/abs"}, "checkpoint: /abs", "below the working directory"),
        ({"roles": {"w": {"command": "true"}}, "links": {"x": "w:a:p"}}, "links.x: w:a:p", "whole number"),
    ],
)  # fmt: skip
def test_a_shorthand_that_is_wrong_is_named_as_it_was_written(keys: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)) as refused:
        job_from(spelled_out(keys))  # as layers of settings are joined
    assert refused.value.place == place


def test_every_key_of_the_design_is_there() -> None:
    assert KEYS - {key.path for key in keys()} == set()


FULL = {
    "name": "digits", "framework": "pytorch", "environment": {"archive": "env.tar.gz"},
    "roles": {
        "worker": {
            "command": "python train.py --epochs 3", "replicas": {"min": 2, "max": 8}, "processes": "per-gpu",
            "resources": {"cores": 1, "memory": "2GiB", "gpus": 0}, "restart": {"scope": "group", "limit": 3},
            "env": {"OMP_NUM_THREADS": "1", "HF_TOKEN": None}, "after": {"fetch": "succeeded", "ps": "running"},
            "image": "img", "prepare": "make", "stop": {"signal": "SIGINT", "grace": "20s", "warn": "SIGUSR1"},
            "ports": ["dash", "debug"], "nodes": {"labels": {"gpu": "a100"}, "exclude": ["n7"]}, "priority": 2,
            "workdir": "share", "retry_memory": 1.5,
        },
        "evaluator": {"command": "python evaluate.py", "counts": False}, "fetch": {"command": ["./fetch", "all"]},
        "ps": {"command": "python ps.py"},
    },
    "files": ["."], "archives": ["a.zip#a"], "cache": ["hdfs:///x#x"],
    "inputs": {
        "train": {"url": "hdfs:///d/*.csv", "as": "shards", "format": "lines", "epochs": 2, "shuffle": True, "seed": 7, "to": "worker"},
        "test": {"url": "t", "as": "list", "split": "whole", "local": "data/test"},
    },
    "outputs": {"model": {"url": "hdfs:///m", "from": "worker:0", "layout": "flat", "overwrite": True}},
    "checkpoint": {"path": "ckpt", "url": "hdfs:///c", "every": "5m", "keep": 3}, "tensorboard": {"logs": "events"},
    "timeouts": {"start": "10m", "stall": "30m", "job": "none", "finish": "1m", "storage": "2m", "grace": "1m"},
    "completion": {"first": "worker"}, "gang": True, "logs": {"limit": "1GiB"}, "storage": "s3://b/j",
    "saves": {"every": "30m", "keep": 3}, "scale": {"grow": False}, "network": "10.0.0.0/8", "secrets": ["DB_PASSWORD"],
    "priority": 1, "links": {"Dask": "worker:0:dash/status"},
    "master": {"resources": {"memory": "1GiB"}, "env": {"A": "b"}, "nodes": {"labels": {"x": "y"}}},
    "annotations": {"team": "vision"}, "engines": {"yarn": {"queue": "research"}, "other": {"any": [1, {"x": None}]}},
    "version": "1.0",
}  # fmt: skip


def test_every_key_is_understood_and_comes_back() -> None:
    made = job_from(FULL)
    assert job_from(json.loads(json.dumps(job_to(made)))) == made
    worker = made.roles["worker"]
    assert (worker.replicas.min, worker.replicas.max, worker.processes) == (2, 8, "per-gpu")
    assert (worker.resources.memory, worker.stop.grace, worker.stop.warn) == (2 * GIB, 20.0, "SIGUSR1")
    assert worker.ports == {"dash": 0, "debug": 0}
    assert made.roles["fetch"].command == ("./fetch", "all")
    assert (made.timeouts.job, made.timeouts.finish) == (None, 60.0)
    assert (made.inputs["train"].as_, made.inputs["train"].to, made.outputs["model"].from_) == (
        "shards",
        ("worker",),
        "worker:0",
    )
    assert made.links == {"Dask": Link("worker", 0, "dash", "/status")}
    assert made.engines["other"] == {"any": [1, {"x": None}]}, "a block is its engine's own"


def fields(of: type[Any] = Job) -> Iterator[Any]:
    for field in attrs.fields(of):
        if field.metadata:
            yield field
            if field.metadata["of"] is not None:
                yield from fields(field.metadata["of"])


def test_every_key_says_what_it_is() -> None:
    for field in fields():
        meta = field.metadata
        assert meta["doc"]
        assert meta["of"] or meta["shape"] in SHAPES or choice(meta["shape"]), field.name


def test_a_default_is_what_the_reference_says() -> None:
    compared = 0
    for field in fields():
        default, told, shape = field.default, field.metadata["default"], field.metadata["shape"]
        if default in (attrs.NOTHING, "", None) or isinstance(default, attrs.Factory | tuple):
            continue
        if " " in told or told in ("min", "auto"):
            continue  # told in words: it depends on other keys
        written = SHAPES[shape][1](default) if shape in SHAPES else default
        assert str(written).lower().removesuffix(".0") == told.lower().removesuffix(".0"), field.name
        compared += 1
    assert compared > 25


# -- shorthands --


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"environment": "env.tar.gz"}, {"environment": {"archive": "env.tar.gz"}}),
        ({"environment": "requirements.txt"}, {"environment": {"requirements": "requirements.txt"}}),
        ({"environment": "/opt/env"}, {"environment": {"path": "/opt/env"}}),
        ({"checkpoint": "ckpt"}, {"checkpoint": {"path": "ckpt"}}),
        ({"tensorboard": "events"}, {"tensorboard": {"logs": "events"}}),
        ({"inputs": {"train": "hdfs:///d"}}, {"inputs": {"train": {"url": "hdfs:///d"}}}),
        ({"inputs": {"train": {"url": ["/a", "/a"]}}}, {"inputs": {"train": {"url": "/a"}}}),
        ({"outputs": {"model": "hdfs:///m"}}, {"outputs": {"model": {"url": "hdfs:///m"}}}),
        ({"completion": "all"}, {"completion": {}}),
        ({"secrets": ["A", "B"]}, {"secrets": {"A": {}, "B": None}}),
        ({"files": "src"}, {"files": ["src"]}),
    ],
)
def test_a_shorthand_is_its_section(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert job(**short) == job(**long)
    assert job(**spelled_out(short)) == job(**long)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"replicas": 3}, {"replicas": {"min": 3, "max": 3}}),
        ({"replicas": {"min": 3}}, {"replicas": {"min": 3, "max": 3}}),
        ({"restart": "never"}, {"restart": {"scope": "never"}}),
        ({"stop": "1m"}, {"stop": {"grace": "1m"}}),
        ({"stop": {"signal": "int"}}, {"stop": {"signal": "SIGINT"}}),
        ({"env": ["A=1=2", "B"]}, {"env": {"A": "1=2", "B": None}}),
        ({"env": {"A": 1, "B": True}}, {"env": {"A": "1", "B": "true"}}),
        ({"ports": ["web"]}, {"ports": {"web": 0}}),
    ],
)
def test_a_shorthand_of_a_role_is_its_section(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert job(short) == job(long)
    assert job(spelled_out({"roles": {"worker": short}})["roles"]["worker"]) == job(long)


def test_after_may_be_a_list() -> None:
    def made(after: Any) -> Job:
        return job_from({"roles": {"ps": COMMAND, "worker": {**COMMAND, "after": after}}})

    assert made(["ps"]) == made("ps") == made({"ps": "running"})
    assert made({"ps": "succeeded"}).roles["worker"].after == {"ps": "succeeded"}


# -- defaults that depend on others --


@pytest.mark.parametrize(
    ("framework", "replicas", "scope", "gang"),
    [("pytorch", 1, "group", True), ("jax", 2, "group", True), ("tensorflow", 1, "task", False), ("tensorflow", 2, "task", True),
     ("generic", 2, "task", False), ("xgboost", 2, "task", False)],
)  # fmt: skip
def test_what_a_framework_forms_restarts_together(framework: str, replicas: int, scope: str, gang: bool) -> None:
    made = job({"replicas": replicas}, framework=framework)
    assert (made.roles["worker"].restart.scope, made.roles["worker"].restart.limit, made.gang) == (scope, 3, gang)
    said = job({"replicas": replicas, "restart": {"limit": 1}}, framework=framework, gang=not gang)
    assert (said.roles["worker"].restart.scope, said.roles["worker"].restart.limit, said.gang) == (scope, 1, not gang)


def test_who_counts_and_who_serves() -> None:
    names = ("worker", "chief", "ps", "scheduler", "evaluator")
    roles = job_from({"roles": dict.fromkeys(names, COMMAND)}).roles
    assert [name for name in names if roles[name].counts] == ["worker", "chief"]
    assert [name for name in names if roles[name].serves] == ["ps", "scheduler"]


@pytest.mark.parametrize(
    ("more", "workdir"),
    [({}, "share"), ({"inputs": {"d": "u"}}, "copy"), ({"inputs": {"d": {"url": "u", "as": "shards"}}}, "share"),
     ({"outputs": {"m": "u"}}, "copy"), ({"checkpoint": "c"}, "copy")],
)  # fmt: skip
def test_a_task_with_paths_of_its_own_has_a_directory_of_its_own(more: dict[str, Any], workdir: str) -> None:
    assert job(**more).roles["worker"].workdir == workdir
    assert job({"workdir": "share"}, **more).roles["worker"].workdir == "share"


@pytest.mark.parametrize(("memory", "overhead"), [("1GiB", 64 * MIB), ("10GiB", 512 * MIB), ("200GiB", GIB)])
def test_memory_asked_for_beside_the_programs(memory: str, overhead: int) -> None:
    resources = job({"resources": {"memory": memory}}).roles["worker"].resources
    assert resources.overhead == overhead
    assert job(master={"resources": {"memory": memory}}).master.resources.overhead == overhead
    assert job({"resources": {"overhead": "0B"}}).roles["worker"].resources.overhead == 0


# -- refusals, as they are read --


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ({"replica": 1},
         "there is no key 'replica' in roles.worker\n  roles.worker.replica: 1\n  did you mean replicas?"),
        ({"resources": {"memory": 12}},
         "roles.worker.resources.memory: a size needs a unit: 12MiB or 12GiB?\n  roles.worker.resources.memory: 12"),
        ({"resources": {"memory": "1KiB"}},
         "roles.worker.resources.memory: expected a size of at least 1MiB\n  roles.worker.resources.memory: 1KiB"),
        ({"resources": {"cores": 0}},
         "roles.worker.resources.cores: expected a number above 0\n  roles.worker.resources.cores: 0"),
        ({"resources": 4},
         "roles.worker.resources: expected keys like cores, memory, gpus\n  roles.worker.resources: 4"),
        ({"replicas": "many"}, "roles.worker.replicas: expected a whole number\n  roles.worker.replicas: many"),
        ({"replicas": 0},
         "roles.worker.replicas: expected a whole number, 1 or more\n  roles.worker.replicas: 0"),
        ({"replicas": True}, "roles.worker.replicas: expected a whole number\n  roles.worker.replicas: true"),
        ({"replicas": {"min": 3, "max": 2}},
         "replicas.min is above replicas.max\n  roles.worker.replicas: 3 to 2\n  swap them"),
        ({"replicas": 200_000},
         "the job has 200,000 tasks, and at most 100,000 are possible\n  roles.worker.replicas: 200000\n  lower it"),
        ({"processes": "all"},
         "roles.worker.processes: expected a whole number, 1 or more, or gpu\n  roles.worker.processes: all"),
        ({"restart": "always"},
         "roles.worker.restart: expected group, task or never\n  roles.worker.restart: always"),
        ({"counts": "maybe"}, "roles.worker.counts: expected true or false\n  roles.worker.counts: maybe"),
        ({"stop": {"signal": "SIGFOO"}},
         "roles.worker.stop.signal: expected the name of a signal, like SIGTERM or SIGUSR1\n  roles.worker.stop.signal: SIGFOO"),
        ({"stop": {"grace": "none"}},
         "roles.worker.stop.grace: expected a duration, like 30s or 5m; none is not possible here\n  roles.worker.stop.grace: none"),
        ({"image": True}, 'roles.worker.image: expected text; in quotes it is one: "true"\n  roles.worker.image: true'),
        ({"command": ""},
         f'roles.worker.command: expected {COMMAND_WORDS}\n  roles.worker.command: ""'),
        ({"command": None},
         f"roles.worker.command: expected {COMMAND_WORDS}\n  roles.worker.command"),
        ({"retry_memory": 0.5},
         "roles.worker.retry_memory: expected a number from 1 to 100\n  roles.worker.retry_memory: 0.5"),
        ({"after": {"ps": "ready"}},
         "roles.worker.after: expected roles, each running or succeeded, like {ps: running}\n  roles.worker.after"),
        ({"after": ["wroker"]}, "there is no role 'wroker'\n  roles.worker.after.wroker\n  did you mean worker?"),
        ({"after": ["worker"]},
         "these roles wait for each other: worker -> worker\n  roles.worker.after\n  take one of them out of after:"),
        ({"env": {"A=B": "1"}}, "roles.worker.env: 'A=B' cannot be the name of a variable\n  roles.worker.env"),
        ({"ports": {"web": 70000}}, "roles.worker.ports: port web is 70000, above 65535\n  roles.worker.ports"),
        ({"workdir": "mine"}, "roles.worker.workdir: expected copy or share\n  roles.worker.workdir: mine"),
    ],
)  # fmt: skip
def test_what_a_role_cannot_be(worker: dict[str, Any], message: str) -> None:
    assert told(worker) == message


@pytest.mark.parametrize(("as_", "replicas"), [("download", 2), ("download", 1), ("list", 2), ("mount", 2)])
def test_tasks_that_share_a_directory_cannot_each_put_an_input_there(as_: str, replicas: int) -> None:
    data = {"d": {"url": "u", "as": as_}}
    if as_ == "download" and replicas > 1:
        assert told({"workdir": "share", "replicas": replicas}, inputs=data) == (
            "several tasks would put input d at one path of the directory that they share\n"
            "  roles.worker.workdir: share\n  set workdir: copy; or as: list or mount for the input"
        )
    else:
        job({"workdir": "share", "replicas": replicas}, inputs=data)


ELASTIC = {"replicas": {"min": 1, "max": 2}}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"roles": {"worker": {"command": "true", "memory": "2GiB"}}},
         "there is no key 'memory' in roles.worker\n  roles.worker.memory: 2GiB\n  did you mean resources.memory?"),
        ({"roles": {"worker": {"command": "true", "nnodes": 2}}},
         "there is no key 'nnodes' in roles.worker\n  roles.worker.nnodes: 2\n  did you mean replicas?"),
        ({"names": "x"}, "there is no key 'names'\n  names: x\n  did you mean name?"),
        ({"qqqqqqqq": 1}, "there is no key 'qqqqqqqq'\n  qqqqqqqq: 1\n  there are: annotations, archives"),
        ({"MY_TOKEN": "sesame-open"}, "there is no key 'MY_TOKEN'\n  MY_TOKEN\n"),
        ({"name": "my job"},
         f"name: expected {NAME_WORDS}\n  name: my job"),
        ({"name": "../x"}, "name: expected a name"),
        ({"roles": {"my role": COMMAND}},
         f"'my role' cannot be a name: expected {NAME_WORDS}\n  roles.my role\n  write my-role, for example"),
        ({"roles": {}}, "the job has no role\n  roles\n  add roles: with at least one"),
        ({"roles": {"ps": COMMAND}}, "no role counts, so the job would never end\n  roles\n  set counts: true for one"),
        ({"roles": {"worker": {}}},
         "roles.worker.command is missing: the program: text is run by /bin/sh -c, a list as it is, without a shell\n  roles.worker"),
        ({"roles": ["worker"]}, "roles: expected a section for each name\n  roles: [worker]"),
        ({"saves": {"every": "0s"}}, "saves.every: expected a duration of at least 10ms\n  saves.every: 0s"),
        ({"checkpoint": {"path": "ckpt", "every": "0s"}}, "checkpoint.every: expected a duration of at least 10ms"),
        ({"timeouts": {"stall": 30}}, "timeouts.stall: a duration needs a unit: 30s or 30m?\n  timeouts.stall: 30"),
        ({"completion": "any"}, "completion: expected all, {first: ROLE} or {failures: PART}\n  completion: any"),
        ({"completion": {"first": "worke"}},
         "there is no role 'worke'\n  completion.first: worke\n  did you mean worker?"),
        ({"completion": {"failures": 2}},
         "completion.failures: expected a part between 0 and 1\n  completion.failures: 2"),
        ({"completion": {"failures": 0.1, "first": "worker"}},
         "completion has both first and failures\n  completion\n  choose one of them"),
        ({"outputs": {"m": {"url": "u", "from": "workr:0"}}},
         "there is no role 'workr'\n  outputs.m.from: workr\n  did you mean worker?"),
        ({"outputs": {"m": {"url": "u", "from": "worker:2"}}},
         "there is no task 'worker:2'\n  outputs.m.from: worker:2\n  its tasks are worker:0 to worker:1"),
        ({"outputs": {"m": {}}}, "outputs.m.url is missing: where it goes\n  outputs.m\n  add url:"),
        ({"outputs": {"m": {"url": "u", "local": "../m"}}},
         "outputs.m.local: expected a path below the working directory, without ..\n  outputs.m.local: ../m"),
        ({"inputs": {"d": {"url": "u", "as": "copy"}}},
         "inputs.d.as: expected download, list, stream, shards, mount or follow\n  inputs.d.as: copy"),
        ({"inputs": {"d": {"url": "u", "to": "wrker"}}},
         "there is no role 'wrker'\n  inputs.d.to: wrker\n  did you mean worker?"),
        ({"inputs": {"d": {"url": ["/a", "/b"], "as": "mount"}}},
         "an input as: mount has one URL\n  inputs.d.url\n  make an input of each"),
        ({"inputs": {"d": {"url": []}}},
         "inputs.d.url: expected a text, or a list of at least one"),
        ({"outputs": {"d": {"url": "u", "required": "some"}}},
         "outputs.d.required: expected all, any or none"),
        ({"inputs": {"d": "u"}},
         "role worker may change its size, so how input d is divided must be said\n  inputs.d\n  split: again divides it"),
        ({"inputs": {"d": {"url": "u", "split": "whole"}}, "outputs": {"d": "v"}},
         "inputs.d and outputs.d are both ./d for role worker\n  outputs.d\n  set local: for one of them"),
        ({"outputs": {"d-a": "v", "d_a": "w"}},
         "outputs.d-a and outputs.d_a are both D_A for role worker\n  outputs.d_a\n  give one of them another name"),
        ({"roles": {"worker": {"command": "x", "ports": ["h-x", "h_x"]}}},
         "ports h-x and h_x of role worker are both TRAINMASTER_PORT_H_X\n  roles.worker.ports\n  give one of them another name"),
        ({"links": {"Page": "worker:0"}}, "links.Page: expected role:index:port/path\n  links.Page: worker:0"),
        ({"links": {"Page": "worker:0:web/x"}},
         "role worker has no port 'web'\n  links.Page: web\n  add roles.worker.ports: [web]"),
        ({"links": {"Page": "worker:5:web/x"}},
         "there is no task 'worker:5'\n  links.Page: worker:5\n  its tasks are worker:0 to worker:1"),
        ({"secrets": {"A": "sesame-open"}},
         "secrets.A: a value does not belong here: {file: PATH} reads one, {} takes the submitter's variable of this name\n  secrets.A"),
        ({"engines": {"yarn": "research"}}, "engines: expected a block of settings for engine yarn\n  engines"),
        ({"version": "2.1"},
         "this job is of version 2.1, and this Trainmaster reads 1.x\n  version: 2.1\n  use a newer Trainmaster"),
        ({"version": "new"}, "version: expected a version like 1.0\n  version: new"),
    ],
)  # fmt: skip
def test_what_a_job_cannot_be(more: dict[str, Any], message: str) -> None:
    assert told(ELASTIC, **more).startswith(message)


def test_a_cycle_is_named() -> None:
    after = {"a": {"after": ["b"]}, "b": {"after": {"c": "succeeded"}}, "c": {"after": ["b"]}}
    assert told(roles={name: {**COMMAND, **more} for name, more in after.items()}) == (
        "these roles wait for each other: b -> c -> b\n  roles.b.after\n  take one of them out of after:"
    )


def test_an_error_says_where_the_value_came_from() -> None:
    data = {"roles": {"worker": {**COMMAND, "resources": {"memory": "12"}}}}
    for path in (("roles", "worker", "resources", "memory"), ("roles",)):
        with pytest.raises(BadInput) as error:
            job_from(data, {path: "flag --memory"})
        assert error.value.place == "roles.worker.resources.memory: 12   (flag --memory)"
        assert (error.value.anchor, error.value.status) == ("wrong-value", 2)


@pytest.mark.parametrize("data", [None, [], "job", 3])
def test_a_job_is_keys(data: Any) -> None:
    with pytest.raises(BadInput, match="expected a job: keys like name, framework and roles"):
        job_from(data)


# -- versions --


def test_a_newer_minor_version_keeps_what_it_says() -> None:
    data = {
        "version": "1.7", "roles": {"worker": {**COMMAND, "mood": "good"}}, "weather": {"sun": [1]}, "timeouts": {"nap": "1m"},
    }  # fmt: skip
    made = job_from(data)
    again = job_to(made)
    assert (again["version"], again["weather"], again["roles"]["worker"]["mood"], again["timeouts"]["nap"]) == (
        "1.7", {"sun": [1]}, "good", "1m",
    )  # fmt: skip
    assert job_from(again) == made


# -- order of roles --


def test_who_runs_first() -> None:
    after = {
        "worker": {"ps": "running", "fetch": "succeeded"},
        "ps": {},
        "fetch": {},
        "report": {"worker": "succeeded"},
        "watch": {"report": "running"},
    }
    roles = job_from({"roles": {name: {**COMMAND, "after": waits} for name, waits in after.items()}}).roles
    assert start_order(roles) == ["ps", "fetch", "worker", "report", "watch"]
    assert stages(roles) == {"ps": 0, "fetch": 0, "worker": 1, "report": 2, "watch": 2}


# -- secrets --


def test_secrets_are_covered_by_name_and_by_value() -> None:
    data = {
        "env": {"HF_TOKEN": "abc", "USER": "ann", "EMPTY_TOKEN": ""},
        "log": ["key is sesame-open!", 3, None],
        "short": "pw",
    }
    assert redact(data, ["sesame-open", "pw", "sesame"]) == {
        "env": {"HF_TOKEN": "[redacted]", "USER": "ann", "EMPTY_TOKEN": ""},
        "log": ["key is [redacted]!", 3, None],
        "short": "pw",
    }
    assert redact("longer-secret", ["longer-s", "longer-secret"]) == "[redacted]", "the longer one first"


# -- there and back --

names = st.text("abcXYZ019-_.", min_size=1, max_size=8).filter(lambda text: text[0].isalnum())
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10).filter(
    lambda text: text.strip() and text != "none"
)
durations = st.sampled_from(["0s", "1ms", "90s", "5m", "1h30m", "none"])
sections = st.fixed_dictionaries
roles = sections(
    {"command": words.filter(str.strip) | st.lists(words, min_size=1, max_size=3)},
    optional={
        "replicas": st.integers(1, 50) | sections({"min": st.integers(1, 5), "max": st.integers(5, 9)}),
        "processes": st.integers(1, 8) | st.just("per-gpu"),
        "resources": sections({}, optional={
            "cores": st.floats(0.1, 64), "memory": st.integers(2**20, 2**52).map(lambda size: f"{size}B"), "gpus": st.integers(0, 8),
        }),
        "restart": st.sampled_from(["group", "task", "never"]) | sections({"limit": st.integers(0, 9)}),
        "env": st.dictionaries(names, st.none() | texts, max_size=3), "stop": sections({"grace": st.just("3s"), "warn": st.just("USR1")}),
        "ports": st.lists(names, max_size=2), "nodes": sections({"labels": st.dictionaries(names, texts, max_size=2)}),
        "priority": st.integers(-5, 5), "retry_memory": st.floats(1, 4), "prepare": words, "image": words,
    },
)  # fmt: skip
jobs = sections(
    {"roles": st.dictionaries(names.filter(lambda name: name not in ("ps", "scheduler", "evaluator")), roles, min_size=1, max_size=3)},
    optional={
        "name": names, "framework": st.sampled_from(["pytorch", "generic", "tensorflow"]), "gang": st.booleans(),
        "outputs": st.dictionaries(st.sampled_from(["m", "n"]), words | sections({"url": words, "overwrite": st.booleans()})),
        "inputs": st.dictionaries(
            st.sampled_from(["x", "y"]), sections({"url": words, "as": st.just("shards"), "seed": st.integers(0, 9)})
        ),
        "checkpoint": words.filter(lambda path: "/" not in path and "\0" not in path and path not in (".", "..")),
        "timeouts": sections({}, optional={"start": durations, "stall": durations, "job": durations}),
        "completion": st.just("all") | sections({"failures": st.floats(0, 1)}), "annotations": st.dictionaries(names, texts, max_size=2),
        "secrets": st.lists(names, max_size=2, unique=True) | st.dictionaries(names, sections({"file": words}), max_size=2),
        "engines": st.dictionaries(names, st.dictionaries(texts, st.integers() | texts | st.none(), max_size=2), max_size=2),
        "environment": words | sections({"image": words}),
    },
)  # fmt: skip


@given(jobs)
def test_any_job_comes_back_from_json(data: dict[str, Any]) -> None:
    made = job_from(data)
    told = json.loads(json.dumps(job_to(made)))
    assert job_from(told) == made
    assert job_to(job_from(told)) == told
    assert job_from(spelled_out(data)) == made


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda one: (
            st.lists(one)
            | st.dictionaries(
                names
                | st.sampled_from(
                    ["roles", "worker", "command", "replicas", "inputs", "url", "checkpoint", "links", "after"]
                ),
                one,
            )
        ),
        max_leaves=12,
    )
)
def test_anything_else_is_refused_as_bad_input(data: Any) -> None:
    try:
        job_from(data)
    except BadInput as error:
        refusal = error
    else:
        return
    assert refusal.message
    assert refusal.anchor


def test_plain_objects() -> None:
    made = job()
    assert (made.completion, made.environment, made.secrets) == (Completion(), Environment(), {})
    assert job(secrets={"A": {"env": "B"}}).secrets == {"A": Secret(env="B")}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "x"  # type: ignore[misc]
