"""Where a job's values come from: files, variables and flags, the later before the earlier, each with its origin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client.api import Job as make
from trainmaster.client.spec.flags import FLAGS, layer
from trainmaster.client.spec.jobfile import parse
from trainmaster.client.spec.settings import default_engine, explain, job, merged, standing
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Environment, Replicas, Restart

JOB = """\
name: digits
roles:
  worker:
    command: python train.py
    replicas: 2
    restart: task
    env: [A=1]
"""


def flags(
    command: tuple[str, ...] = (), roles: tuple[str, ...] = ("worker",), engine: str = "local", **given: Any
) -> Any:
    return layer(given, command, roles, engine)


def rows(*layers: Any) -> dict[str, tuple[str, str]]:
    return {row.key: (row.value, row.origin) for row in explain(*job(layers))}


# -- precedence --


def test_each_layer_goes_before_the_one_below(tmp_path: Path) -> None:
    site, home = tmp_path / "site.yaml", tmp_path / "home"
    (home / "trainmaster").mkdir(parents=True)
    timeouts = ("start", "stall", "job", "finish", "storage")

    def said(count: int, value: str) -> str:
        return ", ".join(f"{name}: {value}" for name in timeouts[:count])

    site.write_text(f"timeouts: {{{said(5, '1m')}}}\n")
    (home / "trainmaster" / "config.yaml").write_text(f"timeouts: {{{said(4, '2m')}}}\n")
    environ = {f"TRAINMASTER_SET_TIMEOUTS__{name.upper()}": "3m" for name in timeouts[:3]}
    environ |= {
        "TRAINMASTER_SITE": str(site),
        "XDG_CONFIG_HOME": str(home),
        "HOME": str(tmp_path),
        "TRAINMASTER_SETTLE": "x",
    }
    layers = [
        *standing(environ),
        parse(f"{JOB}timeouts: {{{said(2, '4m')}}}\n", "job.yaml"),
        flags(set=("timeouts.start=5m",)),
    ]
    found = rows(*layers)
    assert [found[f"timeouts.{name}"] for name in timeouts] == [
        ("5m", "flag --set"),
        ("4m", "job.yaml line 8"),
        ("3m", "variable TRAINMASTER_SET_TIMEOUTS__JOB"),
        ("2m", f"{home}/trainmaster/config.yaml line 1"),
        ("1m", f"{site} line 1"),
    ]
    assert found["timeouts.grace"] == ("30s", "built-in")


def test_without_files_and_variables_nothing_stands(tmp_path: Path) -> None:
    assert standing({"TRAINMASTER_SITE": os.devnull, "HOME": str(tmp_path)}) == []


def test_a_site_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no such file\n  TRAINMASTER_SITE=.*/none\n  correct it, or unset it"):
        standing({"TRAINMASTER_SITE": str(tmp_path / "none"), "HOME": str(tmp_path)})


def test_a_variable_names_a_key_in_small_letters_and_a_name_as_it_is(tmp_path: Path) -> None:
    environ = {
        "TRAINMASTER_SITE": os.devnull, "HOME": str(tmp_path), "TRAINMASTER_SET_ROLES__WORKER__ENV__OMP_NUM_THREADS": "010",
        "TRAINMASTER_SET_ROLES__WORKER__REPLICAS": "4",
    }  # fmt: skip
    made, _ = job([parse(JOB, "job.yaml"), *standing(environ)])
    assert made.roles["worker"].env == {"A": "1", "OMP_NUM_THREADS": "010"}
    assert made.roles["worker"].replicas == Replicas(4, 4)


def test_an_error_in_a_variable_names_it() -> None:
    environ = {"TRAINMASTER_SITE": os.devnull, "HOME": "/nowhere", "TRAINMASTER_SET_TIMEOUT__JOB": "1h"}
    with pytest.raises(BadInput) as error:
        job([*standing(environ), parse(JOB, "job.yaml")])
    assert (
        str(error.value)
        == "there is no key 'timeout'\n  timeout   (variable TRAINMASTER_SET_TIMEOUT__JOB)\n  did you mean timeouts.job?"
    )


# -- shorthands in one layer, sections in another --


def test_a_shorthand_below_is_kept_where_another_key_is_set() -> None:
    layers = (
        parse(JOB, "job.yaml"),
        flags(set=("roles.worker.restart.limit=5", "roles.worker.replicas.max=8"), env=("B=2",)),
    )
    made, _ = job(layers)
    worker = made.roles["worker"]
    assert (worker.restart, worker.replicas, worker.env) == (Restart("task", 5), Replicas(2, 8), {"A": "1", "B": "2"})
    found = rows(*layers)
    assert found["roles.worker.restart.scope"] == ("task", "job.yaml line 6")
    assert found["roles.worker.restart.limit"] == ("5", "flag --set")
    assert found["roles.worker.replicas.min"] == ("2", "job.yaml line 5")
    assert found["roles.worker.env.A"] == ("1", "job.yaml line 7")
    assert found["roles.worker.env.B"] == ("2", "flag --env")
    assert found["roles.worker.resources.memory"] == ("none", "built-in")


def test_a_shorthand_above_says_where_it_came_from() -> None:
    file = "roles: {worker: {command: x, replicas: {min: 1, max: 9}, restart: {limit: 7}}}\ncheckpoint: {path: c, keep: 9}\n"
    layers = (parse(file, "f"), flags(replicas="2..4", restart="never", checkpoint="ckpt"))
    found = rows(*layers)
    assert [found[f"roles.worker.{key}"] for key in ("replicas.min", "replicas.max", "restart.scope", "restart.limit")] == [
        ("2", "flag --replicas"), ("4", "flag --replicas"), ("never", "flag --restart"), ("7", "f line 1"),
    ]  # fmt: skip
    assert [found["checkpoint.path"], found["checkpoint.keep"]] == [("ckpt", "flag --checkpoint"), ("9", "f line 2")]
    assert rows(parse(file, "f"), flags(replicas="3"))["roles.worker.replicas.max"] == ("3", "flag --replicas")


def test_a_choice_replaces_the_other_choice() -> None:
    site = parse("environment: {path: /opt/env}\ncompletion: {failures: 0.1}\n", "site")
    made, _ = job([site, parse(f"{JOB}environment: {{image: img}}\ncompletion: {{first: worker}}\n", "job.yaml")])
    assert (made.environment, made.completion.first, made.completion.failures) == (
        Environment(image="img"),
        "worker",
        None,
    )


def test_nothing_said_takes_a_section_away() -> None:
    made, _ = job([parse("checkpoint: ckpt\n", "site"), parse(f"{JOB}checkpoint:\n", "job.yaml")])
    assert made.checkpoint is None


def test_layers_do_not_change_what_they_were_made_of() -> None:
    below: dict[str, Any] = {"timeouts": {"job": "1h"}}
    merged([(below, {}), ({"timeouts": {"job": "2h"}}, {})])
    assert below == {"timeouts": {"job": "1h"}}


# -- flags --


def test_a_command_and_flags_make_the_same_job_as_a_file() -> None:
    made, _ = job(
        [
            flags(
                ("python", "train.py", "--epochs", "3"), (), "yarn", replicas="2..8", framework="pytorch", name="digits", cores="1.5",
                memory="2GiB", gpus="1", processes="per-gpu", restart="task", env=("A=1=2", "HF_TOKEN", "V=3.10"),
                input=("train:shards=hdfs:///d/*.csv?x=y",), output=("model=hdfs:///m",), checkpoint="ckpt", timeout="2h",
                storage="hdfs:///jobs", priority="-1", queue="research", set=("roles.worker.stop={grace: 1m}", "files=[src, lib]"),
            )
        ]
    )  # fmt: skip
    assert made == make(
        name="digits", framework="pytorch", files=["src", "lib"], checkpoint="ckpt", timeouts={"job": "2h"}, storage="hdfs:///jobs",
        inputs={"train": {"url": "hdfs:///d/*.csv?x=y", "as_": "shards"}}, outputs={"model": "hdfs:///m"}, priority=-1,
        engines={"yarn": {"queue": "research"}},
        roles={
            "worker": {
                "command": ["python", "train.py", "--epochs", "3"], "replicas": {"min": 2, "max": 8}, "processes": "per-gpu",
                "resources": {"cores": 1.5, "memory": "2GiB", "gpus": 1}, "restart": "task", "stop": {"grace": "1m"},
                "env": {"A": "1=2", "HF_TOKEN": None, "V": "3.10"},
            }
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "x"}, "roles.worker.resources.memory: expected a size: a number and a unit, like 512MB or 2GiB\n"),
        ({"memory": "12"}, "roles.worker.resources.memory: a size needs a unit: 12MiB or 12GiB?\n"),
        ({"set": ("role.worker.replicas=4",)}, "there is no key 'role'\n  role   (flag --set)\n  did you mean roles?"),
        ({"set": ("roles",)}, "--set 'roles' has no PATH=\n  flag --set\n  write --set PATH=VALUE"),
        ({"set": ("a..b=1",)}, "--set 'a..b=1' has no PATH=\n  flag --set\n  write --set PATH=VALUE"),
        ({"framework": "x", "set": ("framework.a=1",)}, "framework: expected text\n  framework   (flag --"),
        ({"input": ("train",)}, "--input 'train' has no NAME=\n  flag --input\n  write --input NAME=URL"),
        ({"env": ("=1",)}, "roles.worker.env: '' cannot be the name of a variable\n  roles.worker.env"),
        ({"replicas": "2..x"}, "roles.worker.replicas.max: expected a whole number\n  roles.worker.replicas.max: x   (flag --replicas)"),
    ],
)  # fmt: skip
def test_what_a_flag_cannot_say(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        job([parse(JOB, "job.yaml"), flags(**given)])
    assert str(error.value).startswith(message)


def test_flags_are_about_the_one_role_or_the_workers() -> None:
    assert flags(roles=("trainer",), cores="2")[0] == {"roles": {"trainer": {"resources": {"cores": "2"}}}}
    assert flags(roles=("ps", "worker"), cores="2")[0] == {"roles": {"worker": {"resources": {"cores": "2"}}}}
    with pytest.raises(BadInput, match="so it is not clear which one --cores is about"):
        flags(roles=("a", "b"), cores="2")


def test_every_flag_is_described_once() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    assert all(flag.doc and flag.metavar and flag.dest.isidentifier() for flag in FLAGS)


def test_secrets_are_covered() -> None:
    env = "{DB_PASSWORD: inlinepassword99, URL: db://me:inlinepassword99@here, B: db://me:short@here, A: plain}"
    text = f"roles: {{worker: {{command: x, env: {env}}}}}"
    told = rows(parse(text, "job.yaml"))
    shown = {name: told[f"roles.worker.env.{name}"][0] for name in ("DB_PASSWORD", "URL", "B", "A")}
    assert shown == {
        "DB_PASSWORD": "[redacted]",
        "URL": "db://me:[redacted]@here",
        "B": "db://me:[redacted]@here",
        "A": "plain",
    }


# -- the keys that only settings have --

SITE = """\
engine: yarn
defaults:
  resources: {memory: 4GiB}
  restart: never
  env: {HF_HOME: /data, N: 010}
roles: {worker: {env: {N: 2}}}
"""
SERVED = """\
roles:
  ps: {command: serve, resources: {memory: 1GiB}, restart: {limit: 5}}
  worker: {command: train}
"""


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """A function that writes the files and returns an environment that names them."""

    def written(site: str = "", user: str = "", **variables: str) -> dict[str, str]:
        (tmp_path / "site.yaml").write_text(site)
        (tmp_path / "trainmaster").mkdir()
        (tmp_path / "trainmaster" / "config.yaml").write_text(user)
        return {"TRAINMASTER_SITE": str(tmp_path / "site.yaml"), "XDG_CONFIG_HOME": str(tmp_path), **variables}

    return written


def test_defaults_hold_for_every_role_that_does_not_say_otherwise(
    tmp_path: Path, settings_of: Callable[..., dict[str, str]]
) -> None:
    below = standing(settings_of(SITE, "defaults: {retry_memory: 2}", TRAINMASTER_SET_DEFAULTS__ENV__A="1"))
    shown = rows(*below, parse(SERVED, "job.yaml"), flags(roles=("ps", "worker"), env=("HF_HOME=/mine",)))
    site = tmp_path / "site.yaml"
    assert {key: shown[f"roles.{key}"] for key in (
        "ps.resources.memory", "ps.restart.scope", "ps.restart.limit", "ps.env.HF_HOME", "ps.env.N", "ps.retry_memory",
        "worker.resources.memory", "worker.env.N", "worker.env.HF_HOME", "worker.env.A", "worker.resources.cores",
    )} == {
        "ps.resources.memory": ("1GiB", "job.yaml line 2"),
        "ps.restart.scope": ("never", f"{site} line 4"),
        "ps.restart.limit": ("5", "job.yaml line 2"),
        "ps.env.HF_HOME": ("/data", f"{site} line 5"),
        "ps.env.N": ("010", f"{site} line 5"),
        "ps.retry_memory": ("2.0", f"{tmp_path}/trainmaster/config.yaml line 1"),
        "worker.resources.memory": ("4GiB", f"{site} line 3"),
        "worker.env.N": ("2", f"{site} line 6"),
        "worker.env.HF_HOME": ("/mine", "flag --env"),
        "worker.env.A": ("1", "variable TRAINMASTER_SET_DEFAULTS__ENV__A"),
        "worker.resources.cores": ("1.0", "built-in"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("defaults: {restat: 1}", "there is no key 'restat' in defaults\n  defaults.restat: 1   ({} line 1)\n  did you mean restart?"),
        ("defaults: {resources: {memory: 4}}",
         "defaults.resources.memory: a size needs a unit: 4MiB or 4GiB?\n  defaults.resources.memory: 4   ({} line 1)"),
        ("defaults: 4GiB", "defaults: expected keys like command, replicas, processes\n  defaults: 4GiB   ({} line 1)"),
    ],
)  # fmt: skip
def test_a_mistake_in_defaults_is_named_where_it_stands(
    tmp_path: Path, settings_of: Callable[..., dict[str, str]], site: str, message: str
) -> None:
    with pytest.raises(BadInput) as error:
        standing(settings_of(site))
    assert str(error.value) == message.format(tmp_path / "site.yaml")


@pytest.mark.parametrize(
    ("key", "mend"), [("engine: yarn", "use --engine NAME"), ("defaults: {}", "set it for each role")]
)
def test_a_job_file_has_none_of_them(key: str, mend: str) -> None:
    with pytest.raises(BadInput, match=rf"job.yaml line 8\)\n  {mend}; .* is a key of your settings"):
        job([parse(f"{JOB}{key}\n", "job.yaml")])


def test_the_default_engine_is_that_of_the_strongest_settings(
    tmp_path: Path, settings_of: Callable[..., dict[str, str]]
) -> None:
    environ = settings_of(SITE)
    user = tmp_path / "trainmaster" / "config.yaml"
    chosen = [default_engine("local", environ)]
    user.write_text("{engine: spark}")
    chosen.append(default_engine("local", environ))
    chosen.append(default_engine("local", environ | {"TRAINMASTER_SET_ENGINE": "kubernetes"}))
    assert chosen == ["yarn", "spark", "kubernetes"]
    assert default_engine("local", {"TRAINMASTER_SITE": os.devnull, "HOME": str(tmp_path)}) == "local"
    user.write_text("\nengine: yern\n")
    with pytest.raises(BadInput) as error:
        default_engine("local", environ)
    assert str(error.value).startswith(f"there is no engine 'yern'\n  engine: yern   ({user} line 2)\n")


def test_the_example_of_a_site_file_is_one() -> None:
    """All of its keys are read, and hold; the page on installing shows them."""
    root = Path(__file__).parents[2]
    path = root / "examples/site/config.yaml"
    assert path.read_text().partition("\n\n")[2] in (root / "docs/install.md").read_text()
    environ = {"TRAINMASTER_SITE": str(path), "HOME": "/nowhere"}
    assert default_engine("", environ) == "local"
    shown = rows(*standing(environ), parse(SERVED, "job.yaml"))
    from_site = {key for key, (_, origin) in shown.items() if origin.startswith(str(path))}
    assert {
        "chaos",
        "pages",
        "timeouts.stall",
        "roles.worker.env.HF_HOME",
        "roles.worker.resources.memory",
    } <= from_site
    assert shown["roles.ps.resources.memory"] == ("1GiB", "job.yaml line 2")
