"""Submarine's command line of 2018 and 2019 as a job of ours: `tm submit --submarine job run ...`, also `job show` and `job kill`.

The YAML file of `-f` says the same as the flags; what stands in both is refused, as it was there. Worker 0 of a TensorFlow job of
several workers is the role `master`, as programs saw it in TF_CONFIG. Facts: CliConstants, RunJobCli, ResourceUtils, Localization,
Quicklink, YamlConfigFile of apache/submarine before 0.5.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.data.cached import ARCHIVES
from trainmaster.integrations.dialect import (
    ENGINE,
    FLAG,
    VALUE,
    Draft,
    Said,
    Translation,
    Verb,
    board,
    count,
    flag,
    is_on_this_machine,
    location,
    not_here,
    only,
    ours,
    parsed,
    plain,
    unknown,
    wrong,
)

WHAT = "Submarine"
OPTIONS = dict.fromkeys(
    (
        "f", "framework", "name", "input_path", "checkpoint_path", "saved_model_path", "docker_image", "worker_docker_image",
        "ps_docker_image", "scheduler_docker_image", "tensorboard_docker_image", "queue", "num_workers", "worker_resources",
        "worker_launch_cmd", "num_ps", "ps_resources", "ps_launch_cmd", "num_schedulers", "scheduler_resources", "scheduler_launch_cmd",
        "tensorboard_resources", "env", "quicklink", "localization", "mount", "keytab", "principal", "conf",
    ), VALUE,
) | dict.fromkeys(("tensorboard", "distribute_keytab", "verbose", "wait_job_finish", "insecure"), FLAG)  # fmt: skip
REPEATED = ("env", "quicklink", "localization", "mount", "conf")
# The keys of the YAML file, and the flag that says the same. `*`: one for each entry; a role's own are kept apart.
KEYS = {
    "spec.name": "name", "spec.framework": "framework", "spec.job_type": "job_type", "configs.input_path": "input_path",
    "configs.checkpoint_path": "checkpoint_path", "configs.saved_model_path": "saved_model_path", "configs.docker_image": "docker_image",
    "configs.wait_job_finish": "wait_job_finish", "configs.envs": "env*", "configs.localizations": "localization*",
    "configs.mounts": "mount*", "configs.quicklinks": "quicklink*", "scheduling.queue": "queue",
    "security.keytab": "keytab", "security.principal": "principal", "security.distribute_keytab": "distribute_keytab",
    "tensorBoard.resources": "tensorboard_resources", "tensorBoard.docker_image": "tensorboard_docker_image",
} | {
    f"roles.{role}.{key}": flag for role in ("worker", "ps", "scheduler") for key, flag in (
        ("launch_cmd", f"{role}_launch_cmd"),
        ("replicas", f"num_{role}s" if role != "ps" else "num_ps"), ("resources", f"{role}_resources"),
        ("docker_image", f"{role}_docker_image"), ("envs", f"env*{role}"), ("localizations", f"localization*{role}"), ("mounts", "mount*"),
    )
}  # fmt: skip
HELP = {"-h", "--help", "-help"}
USAGE = ("job run --name NAME [FLAG ...]", "job run -f FILE [FLAG ...]", "job show --name NAME", "job kill --name NAME")
# What its launcher made variables of the program of; those that tell it where Java and Hadoop are in an image.
IN_IMAGE = {"DOCKER_JAVA_HOME": "JAVA_HOME", "DOCKER_HADOOP_HDFS_HOME": "HADOOP_HDFS_HOME"}
BOARD = "memory=4G,vcores=1"
FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "pytorch"}
_AMOUNT = re.compile(r"(\d{1,12})([GgMm]?)")
_LINK = re.compile(
    r"(?P<label>[^=]+)=(?P<scheme>https?)://(?P<role>[A-Za-z]+)-(?P<index>\d+):(?P<port>\d+)(?P<path>/.*)?"
)


def translated(words: Sequence[str], engine: str = ENGINE) -> Translation | Verb:
    """What `job run`, `job show` or `job kill` says. Raises BadInput, naming flag or line, for what cannot be."""
    if not words or HELP.intersection(words[:3]):
        return Verb("help")
    before, words = parsed(words, {}, WHAT)
    verb, rest = " ".join(words[:2]), words[2:]
    if verb in ("job show", "job kill"):
        found, more = parsed(rest, {"name": VALUE}, WHAT)
        if ours(found, engine).help:
            return Verb("help")
        named = [said.text for name, said in found if name == "name"]
        if not named or more:
            raise BadInput(f"{verb} has no --name", mend=f"write {verb} --name JOB", anchor="wrong-value")
        return Verb(words[1], named[-1])
    if verb != "job run":
        message = f"{WHAT} has job run, job show and job kill, not {verb!r}"
        raise BadInput(message, mend="write tm submit --submarine job run ...", anchor="dialect")
    found, more = parsed(rest, OPTIONS, WHAT)
    found = before + found
    if more:
        mend = "quote what belongs to a flag: --worker_launch_cmd 'python train.py'"
        raise BadInput(f"{more[0]!r} belongs to no flag", mend=mend, anchor="wrong-value")
    options = ours(found, engine)
    if options.help:
        return Verb("help")
    made = _Translating(_table(found), options.engine)
    made.translate()
    stays = "wait_job_finish" in made.one and flag(made.one["wait_job_finish"])
    return made.draft.translation("submarine", options, stays)


def _table(found: Sequence[tuple[str, Said]]) -> list[tuple[str, Said]]:
    """The flags, and what the file says, under the names of flags."""
    file = next((said for name, said in found if name == "f"), None)
    table = list(_file(file.text)) if file is not None else []
    single = {name: said for name, said in table if name.partition("*")[0] not in REPEATED}
    for name, said in found:
        if name in single:
            raise BadInput(
                f"{name} is said twice", place=f"{said.origin}, and {single[name].origin}", mend="leave one of them out",
                anchor="wrong-value",
            )  # fmt: skip
    return table + [(name, said) for name, said in found if name in OPTIONS]


def _file(path: str) -> Iterator[tuple[str, Said]]:
    """What a YAML file says, each with its line; unknown keys are refused."""
    from trainmaster.client.spec import jobfile

    data, origins = jobfile.load(path)
    if not isinstance(data.get("configs"), Mapping):
        raise BadInput(f"{path} has no configs:", place=path, mend="add configs:, with input_path", anchor="dialect")
    yield from _walk(data, (), origins)
    if "tensorBoard" in data:
        yield "tensorboard", Said("true", origins["tensorBoard",])


def _walk(data: Mapping[str, Any], path: tuple[str, ...], origins: Mapping[Any, str]) -> Iterator[tuple[str, Said]]:
    for key, value in data.items():
        at = (*path, str(key))
        known, origin = ".".join(at), origins[at]
        if known in KEYS:
            yield from _entries(KEYS[known], value, origin)
        elif not any(one.startswith(f"{known}.") for one in KEYS):
            raise unknown(known, list(KEYS), f"the file of {WHAT}, at {origin},")
        elif value is not None and not isinstance(value, Mapping):
            raise BadInput(f"{known} is no section", place=origin, mend="write keys below it", anchor="dialect")
        elif value is not None:
            yield from _walk(value, at, origins)


def _entries(name: str, value: Any, origin: str) -> Iterator[tuple[str, Said]]:
    if "*" not in name:
        yield name, Said(str(value).lower() if isinstance(value, bool) else str(value), origin)
    elif isinstance(value, Mapping):
        yield from ((name, Said(f"{key}={one}", origin)) for key, one in value.items())
    elif isinstance(value, list):
        yield from ((name, Said(str(one), origin)) for one in value)
    elif value is not None:
        raise BadInput(
            f"{name.partition('*')[0]}s is no list", place=origin, mend="write one entry a line", anchor="dialect"
        )


class _Translating:
    """A table on its way to a job."""

    def __init__(self, table: Sequence[tuple[str, Said]], engine: str) -> None:
        self.engine = engine
        self.one = {name: said for name, said in table if name.partition("*")[0] not in REPEATED}
        self.many = [
            (name.partition("*")[0], name.partition("*")[2], said)
            for name, said in table
            if name.partition("*")[0] in REPEATED
        ]
        self.draft = Draft()
        self.always = Said("", f"{WHAT}'s way", False)
        self.workers = self._number("num_workers", 1)
        self.ps = self._number("num_ps", 0)
        self.board = "tensorboard" in self.one and flag(self.one["tensorboard"])
        if self.board and not any(name.startswith(("num_worker", "worker_")) for name in self.one):
            self.workers = 0  # TensorBoard as a service
        self.framework = self._framework()
        self.name = self._name()

    def translate(self) -> None:
        self._check()
        say, one = self.draft.say, self.one
        several = self.framework == "tensorflow" and self.workers > 1
        framework = self.framework if self.framework != "tensorflow" or several else "generic"
        said = one.get("framework", self.always)
        say(("name",), self.name, one["name"])
        say(("framework",), framework, said)
        say(("files",), [], self.always)
        roles = self._roles(several)
        if self.board:
            self._board(roles)
        for name, role, value in self.many:
            for_roles = (
                [role]
                if role and role != "worker"
                else [one for one in roles if not role or one in ("worker", "master")]
            )
            if name == "env" and not role and self.board:
                for_roles.append("tensorboard")
            self._MANY[name](self, value, for_roles)
        if "queue" in one:
            say(("engines", "yarn", "queue"), one["queue"].text, one["queue"])
        self._keytab()
        for key in ("input_path", "checkpoint_path", "saved_model_path", "job_type"):
            if key in one:
                say(("annotations", f"submarine.{key}"), one[key].text, one[key])
        for key, why in (
            ("verbose", "tm events and tm logs tell more"),
            ("insecure", "HADOOP_CONF_DIR says whether the cluster is secure"),
        ):
            if key in one:
                self.draft.remark(f"--{key}: nothing to do here; {why}")

    # -- what is asked for --

    def _number(self, name: str, otherwise: int) -> int:
        return count(self.one[name]) if name in self.one else otherwise

    def _framework(self) -> str:
        said = self.one.get("framework", Said("tensorflow", "the default"))
        kind = said.text.strip().lower()
        if kind == "mxnet" or self._number("num_schedulers", 0):
            instead = "write a job file with a role each for schedulers, servers and workers, and framework: generic"
            raise not_here(said, "the framework mxnet", instead)
        return str(only(said, FRAMEWORKS))

    def _name(self) -> str:
        if (said := self.one.get("name")) is None or not said.text.strip():
            raise BadInput("the job has no name", mend="add --name NAME", anchor="missing-key")
        if plain(said.text, "") != said.text:
            raise wrong(said, f"a name of letters, digits, -, _ and ., like {plain(said.text, 'job')}")
        return said.text

    def _check(self) -> None:
        one = self.one
        for key in ("num_schedulers", "scheduler_launch_cmd", "scheduler_resources", "scheduler_docker_image"):
            if key in one and one[key].text != "0":
                raise not_here(one[key], "a scheduler, which is mxnet's,", "leave it out")
        if self.framework == "pytorch" and (self.ps or "ps_launch_cmd" in one or "ps_resources" in one):
            raise self._refused("ps_launch_cmd", "num_ps", "ps_resources", why="PyTorch has no ps", mend="leave it out")
        if self.framework == "pytorch" and self.board:
            raise self._refused(
                "tensorboard", why="TensorBoard goes with TensorFlow", mend="leave it out, or --framework tensorflow"
            )
        if self.ps and self.workers == 1:
            raise self._refused("num_ps", why="one worker needs no ps", mend="--num_workers 2 or more, or no ps")
        if not self.workers and not self.board:
            raise self._refused("num_workers", why="there is nothing to run", mend="--num_workers 1, or --tensorboard")
        for key in ("worker_launch_cmd", "ps_launch_cmd"):
            if key in one and "%input_path%" in one[key].text and "input_path" not in one:
                raise self._refused(
                    key, why="the command names %input_path%, and there is none", mend="add --input_path PATH"
                )
        if ("keytab" in one) != ("principal" in one):
            raise self._refused(
                "keytab", "principal", why="keytab and principal go together", mend="say both, or neither"
            )

    def _keytab(self) -> None:
        """By which the job's master gets newer tokens; whoever submits shows a ticket."""
        if "keytab" in self.one:
            at, principal, keytab = ("engines", "yarn", "kerberos"), self.one["principal"], self.one["keytab"]
            path = os.path.abspath(os.path.expanduser(keytab.text.removeprefix("file://")))
            self.draft.say((*at, "principal"), principal.text, principal)
            self.draft.say((*at, "keytab"), path, keytab)
            self.draft.remark("--keytab: the job's master gets newer tokens by it; submitting needs a ticket: kinit")
        if "distribute_keytab" in self.one:
            self.draft.remark("--distribute_keytab: nothing to do here; the keytab goes to the job's master alone")

    def _refused(self, *names: str, why: str, mend: str) -> BadInput:
        origin = next((self.one[name].origin for name in names if name in self.one), "")
        return BadInput(why, place=origin, mend=mend, anchor="wrong-value")

    def _roles(self, several: bool) -> list[str]:
        """Workers, the first of several being the master, and ps."""
        sizes = (
            {"master": (1, "worker"), "worker": (self.workers - 1, "worker")}
            if several
            else {"worker": (self.workers, "worker")}
        )
        sizes |= {"ps": (self.ps, "ps")}
        roles = [role for role, (number, _) in sizes.items() if number]
        for role in roles:
            number, kind = sizes[role]
            said = self.one.get("num_ps" if kind == "ps" else "num_workers", self.always)
            at = ("roles", role)
            self.draft.say((*at, "command"), ["bash", "-c", self._command(kind)], self.one[f"{kind}_launch_cmd"])
            self.draft.say((*at, "replicas"), number, said)
            self._container(role, kind, None)
        return roles

    def _command(self, kind: str) -> str:
        """The launch command with its places filled in."""
        if (said := self.one.get(f"{kind}_launch_cmd")) is None or not said.text.strip():
            raise self._refused(
                f"num_{kind}s", "num_ps", why=f"{kind} has no command", mend=f"add --{kind}_launch_cmd COMMAND"
            )
        text = said.text
        for name, path in (
            ("input_path", self._path("input_path", "")), ("checkpoint_path", self._checkpoints()),
            ("saved_model_path", self._path("saved_model_path", self._checkpoints())),
        ):  # fmt: skip
            text = text.replace(f"%{name}%", path)
        return text

    def _path(self, name: str, otherwise: str) -> str:
        """A path as the program is told it."""
        if name not in self.one:
            return otherwise
        text = self.one[name].text
        return location(text, self.engine, "") if text.startswith("hdfs://default/") else text

    def _checkpoints(self) -> str:
        """Where training writes: by default in a directory of the user's on the cluster; TensorBoard alone shows all that is in it."""
        jobs = location("submarine/jobs", self.engine, getpass.getuser())
        root = str(Path(jobs).absolute()) if is_on_this_machine(self.engine) else jobs
        return self._path("checkpoint_path", f"{root}/{self.name}/checkpoint_path" if self.workers else root)

    def _container(self, role: str, kind: str, otherwise: str | None) -> None:
        """Resources and image of a role."""
        say, at = self.draft.say, ("roles", role)
        say((*at, "workdir"), "copy", self.always)
        said = self.one.get(f"{kind}_resources", Said(otherwise, "the default", False) if otherwise else None)
        if said is None:
            raise self._refused(
                f"{kind}_launch_cmd", why=f"{kind} has no resources", mend=f"add --{kind}_resources memory=4G,vcores=2"
            )
        for key, value in resources(said).items():
            say((*at, "resources", key), value, said)
        image = self.one.get(f"{kind}_docker_image", self.one.get("docker_image"))
        if image is not None:
            say((*at, "image"), image.text, image)

    def _board(self, roles: Sequence[str]) -> None:
        """TensorBoard as a task of its own: it does not count, unless it is all there is."""
        said, at, say = self.one["tensorboard"], ("roles", "tensorboard"), self.draft.say
        say((*at, "command"), board(self._checkpoints(), self.engine), said)
        self._container("tensorboard", "tensorboard", BOARD)
        say((*at, "counts"), not roles, said)
        say((*at, "ports"), {"board": 0}, said)
        say(("links", "Tensorboard"), "tensorboard:0:board/", said)
        if not roles:  # nobody may look at it for hours
            say(("timeouts", "stall"), "none", said)

    # -- what may be said several times --

    def _env(self, said: Said, roles: Sequence[str]) -> None:
        name, mark, text = said.text.partition("=")
        if not mark or not name:
            raise wrong(said, "NAME=VALUE")
        if name.startswith("YARN_CONTAINER_RUNTIME_"):
            raise not_here(
                said,
                "a variable of YARN's container runtime",
                "--docker_image, and engines.yarn.mounts or .network by --set",
            )
        names = [name]
        if inside := IN_IMAGE.get(name):
            named = any(kind == "env" and other.text.startswith(f"{inside}=") for kind, _, other in self.many)
            names += [] if named else [inside]
        if name == "DOCKER_HADOOP_HDFS_HOME":
            self.draft.remark(
                f"{name}: nobody fills CLASSPATH here; a program that opens hdfs:// by libhdfs begins with "
                'export CLASSPATH=$("$HADOOP_HDFS_HOME/bin/hadoop" classpath --glob)'
            )
        for role in roles:
            for one in names:
                self.draft.say(("roles", role, "env", one), text, said)

    def _quicklink(self, said: Said, roles: Sequence[str]) -> None:
        told = _LINK.fullmatch(said.text)
        if told is None:
            raise wrong(said, "LABEL=http://ROLE-INDEX:PORT, like Notebook=http://master-0:7070")
        role, index = told["role"], int(told["index"])
        if role == "master" and "master" not in roles:
            role = "worker"
        port = f"p{told['port']}"
        if role in (*roles, "tensorboard"):
            self.draft.say(("roles", role, "ports", port), int(told["port"]), said)
        link = {"role": role, "index": index, "port": port, "path": told["path"] or "/", "scheme": told["scheme"]}
        self.draft.say(("links", told["label"]), link, said)
        if "input_path" not in self.one:  # a notebook: nobody may look at it for hours
            self.draft.say(("timeouts", "stall"), "none", said)

    def _localization(self, said: Said, roles: Sequence[str]) -> None:
        remote, target = localization(said)
        name = os.path.basename(remote.rstrip("/")) if target in (".", "") else target
        if BASED_REMOTE.match(remote):
            self._remote(location(remote, self.engine, ""), name, said, roles)
            return
        path = remote.removeprefix("file://")
        if not os.path.exists(path):
            raise BadInput(
                f"{path} does not exist", place=said.origin, mend="name a file or directory, or a URL", anchor="no-file"
            )
        files = [*self.draft.strong[0].get("files", ()), f"{path.rstrip('/')}#{name}"]
        self.draft.say(("files",), files, said)

    def _remote(self, url: str, name: str, said: Said, roles: Sequence[str]) -> None:
        """A remote file is cached; of a directory, whose name has no ending, every task has a copy."""
        if url.endswith(ARCHIVES):
            raise not_here(said, "an archive that stays packed", f"--set 'archives=[{url}#{name}]' unpacks it")
        if "." in os.path.basename(url):
            self.draft.say(("cache",), [*self.draft.strong[0].get("cache", ()), f"{url}#{name}"], said)
            return
        at = ("inputs", plain(name, "localized"))
        told = {"url": url.rstrip("/"), "as": "download", "split": "whole", "local": name, "to": list(roles)}
        for key, value in told.items():
            self.draft.say((*at, key), value, said)

    def _mount(self, said: Said, roles: Sequence[str]) -> None:
        mounts = [*self.draft.strong[0].get("engines", {}).get("yarn", {}).get("mounts", ()), said.text]
        self.draft.say(("engines", "yarn", "mounts"), mounts, said)

    def _conf(self, said: Said, roles: Sequence[str]) -> None:
        instead = "set it in the files of HADOOP_CONF_DIR, or the key of the job that it is about by --set"
        raise not_here(said, f"the setting {said.text.partition('=')[0]}", instead)

    _MANY: Mapping[str, Callable[[_Translating, Said, Sequence[str]], None]] = {
        "env": _env, "quicklink": _quicklink, "localization": _localization, "mount": _mount, "conf": _conf,
    }  # fmt: skip


BASED_REMOTE = re.compile(r"^(?!file:)[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def resources(said: Said) -> dict[str, Any]:
    """`memory=8G,vcores=2,gpu=2` as keys of ours."""
    told: dict[str, Any] = {}
    for pair in said.text.split(","):
        name, mark, text = (part.strip() for part in pair.partition("="))
        amount = _AMOUNT.fullmatch(text)
        if not mark or amount is None:
            raise wrong(said, "pairs like memory=8G,vcores=2,gpu=2")
        number, unit = int(amount[1]), amount[2].upper()
        if name in ("memory", "memory-mb"):
            if name == "memory" and not unit:
                raise wrong(said, f"memory with a unit: memory={text}M")
            told["memory"] = f"{number}{'GiB' if unit == 'G' else 'MiB'}"
        elif name == "vcores" and not unit:
            told["cores"] = number
        elif name in ("gpu", "yarn.io/gpu") and not unit:
            told["gpus"] = number
        elif not unit:
            told.setdefault("extended", {})[name] = number
        else:
            raise not_here(Said(pair, said.origin), f"a unit of {name}", f"write a number: {name}={number}")
    return told


def localization(said: Said) -> tuple[str, str]:
    """(remote, local) of `REMOTE:LOCAL[:rw]`; the remote may be a URL with a port. LOCAL is a name in the working directory."""
    text = said.text
    if text.endswith(":ro"):
        raise not_here(said, "what may only be read", "leave :ro out: each task has a copy of its own")
    remote, mark, local = text.removesuffix(":rw").rpartition(":")
    if not mark or local.startswith("//") or re.fullmatch(r"[a-z0-9+.-]+://[^/]*", remote, re.IGNORECASE):
        raise wrong(said, "REMOTE:LOCAL, like hdfs:///data/words.txt:./words.txt")
    if local.startswith("/"):
        raise not_here(
            said, "a place outside the working directory", f"write ./{os.path.basename(local)}, and use it there"
        )
    return remote, local.removeprefix("./").rstrip("/")
