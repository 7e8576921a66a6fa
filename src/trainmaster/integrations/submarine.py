"""Submarine's command line of 2018 and 2019 as a job of ours: `tm submit --submarine job run ...`, also `job show` and `job kill`.

The YAML file of `-f` has the same options as the flags. An option in both is refused, as Submarine did. Worker 0 of a TensorFlow job of
several workers is the role `master`, as programs saw it in TF_CONFIG. Facts: CliConstants, RunJobCli, ResourceUtils, Localization,
Quicklink, YamlConfigFile of apache/submarine before 0.5.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.client import tensorboard
from trainmaster.core.errors import BadInput
from trainmaster.data.cached import ARCHIVES
from trainmaster.engines import registry
from trainmaster.host.machine import login_name
from trainmaster.integrations import dialect, submarine_conf
from trainmaster.integrations.dialect import Option, choice, count, flag, plain, unsupported, wrong_value

WHAT = "Submarine"
OPTIONS = dict.fromkeys(
    (
        "f", "framework", "name", "input_path", "checkpoint_path", "saved_model_path", "docker_image", "worker_docker_image",
        "ps_docker_image", "scheduler_docker_image", "tensorboard_docker_image", "queue", "num_workers", "worker_resources",
        "worker_launch_cmd", "num_ps", "ps_resources", "ps_launch_cmd", "num_schedulers", "scheduler_resources", "scheduler_launch_cmd",
        "tensorboard_resources", "env", "quicklink", "localization", "mount", "keytab", "principal", "conf",
    ), dialect.VALUE,
) | dict.fromkeys(("tensorboard", "distribute_keytab", "verbose", "wait_job_finish", "insecure"), dialect.FLAG)  # fmt: skip
REPEATED = ("env", "quicklink", "localization", "mount", "conf")
# The keys of the YAML file, and the equivalent flag. `*`: one for each entry; a role's own are kept apart.
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
LAUNCHERS = {"yarn", "hadoop", "java"}
HELP = {"-h", "--help", "-help"}
USAGE = ("job run --name NAME [FLAG ...]", "job run -f FILE [FLAG ...]", "job show --name NAME", "job kill --name NAME")
# Variables of the launcher, and the program's variables that it made of them: where Java and Hadoop are in an image.
IN_IMAGE = {"DOCKER_JAVA_HOME": "JAVA_HOME", "DOCKER_HADOOP_HDFS_HOME": "HADOOP_HDFS_HOME"}
IDLE = {
    "verbose": "tm events and tm logs tell more", "insecure": "HADOOP_CONF_DIR says whether the cluster is secure",
    "distribute_keytab": "the keytab goes to the job's master alone",
}  # fmt: skip
BOARD = "memory=4G,vcores=1"
FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "pytorch"}
_AMOUNT = re.compile(r"(\d{1,12})([GgMm]?)")
_LINK = re.compile(
    r"(?P<label>[^=]+)=(?P<scheme>https?)://(?P<role>[A-Za-z]+)-(?P<index>\d+):(?P<port>\d+)(?P<path>/.*)?"
)


def translated(words: Sequence[str], engine: str = dialect.ENGINE) -> dialect.Translation | dialect.Verb:
    """Translate `job run`, `job show` or `job kill`. Raises BadInput, naming flag or line, for an option that is impossible here."""
    if words and os.path.basename(words[0]) in LAUNCHERS and "job" in words:  # `yarn jar FILE` or `java ... CLASS`
        words = words[words.index("job") :]
    words = submarine_conf.joined(words)
    if not words or HELP.intersection(words[:3]):
        return dialect.Verb("help")
    leading, words = dialect.parsed(words, {}, WHAT)
    verb, rest = " ".join(words[:2]), words[2:]
    if verb in ("job show", "job kill"):
        flags, extra = dialect.parsed(rest, {"name": dialect.VALUE}, WHAT)
        if dialect.own_options(flags, engine).help:
            return dialect.Verb("help")
        names = [option.text for name, option in flags if name == "name"]
        if not names or extra:
            raise BadInput(f"{verb} has no --name", mend=f"write {verb} --name JOB", anchor="wrong-value")
        return dialect.Verb(words[1], names[-1])
    if verb != "job run":
        message = f"{WHAT} has job run, job show and job kill, not {verb!r}"
        raise BadInput(message, mend="write tm submit --submarine job run ...", anchor="dialect")
    flags, extra = dialect.parsed(rest, OPTIONS, WHAT)
    flags = leading + flags
    if extra:
        mend = "quote what belongs to a flag: --worker_launch_cmd 'python train.py'"
        raise BadInput(f"{extra[0]!r} belongs to no flag", mend=mend, anchor="wrong-value")
    options = dialect.own_options(flags, engine)
    if options.help:
        return dialect.Verb("help")
    builder = _Builder(_table(flags), options.engine)
    builder.translate()
    stays = "wait_job_finish" in builder.single and flag(builder.single["wait_job_finish"])
    return builder.draft.translation("submarine", options, stays)


def _table(flags: Sequence[tuple[str, Option]]) -> list[tuple[str, Option]]:
    """Return the flags and the options of the file, all under the names of flags."""
    file = next((option for name, option in flags if name == "f"), None)
    table = list(_file(file.text)) if file is not None else []
    single = {name: option for name, option in table if name.partition("*")[0] not in REPEATED}
    for name, option in flags:
        for flag_name, value in submarine_conf.flags_of(option) if name == "conf" else [(name, option)]:
            if flag_name in single:
                place = f"{value.origin}, and {single[flag_name].origin}"
                raise BadInput(
                    f"{flag_name} is said twice", place=place, mend="leave one of them out", anchor="wrong-value"
                )
            table += [(flag_name, value)] if flag_name in OPTIONS else []
    return table


def _file(path: str) -> Iterator[tuple[str, Option]]:
    """Yield the options of a YAML file, each with its line. Unknown keys are refused."""
    from trainmaster.client.spec import jobfile

    data, origins = jobfile.load(path)
    if not isinstance(data.get("configs"), Mapping):
        raise BadInput(f"{path} has no configs:", place=path, mend="add configs:, with input_path", anchor="dialect")
    yield from _walk(data, (), origins)
    if "tensorBoard" in data:
        yield "tensorboard", Option("true", origins["tensorBoard",])


def _walk(data: Mapping[str, Any], path: tuple[str, ...], origins: Mapping[Any, str]) -> Iterator[tuple[str, Option]]:
    for key, value in data.items():
        prefix = (*path, str(key))
        known, origin = ".".join(prefix), origins[prefix]
        if known in KEYS:
            yield from _entries(KEYS[known], value, origin)
        elif not any(key_path.startswith(f"{known}.") for key_path in KEYS):
            raise dialect.unknown(known, list(KEYS), f"the file of {WHAT}, at {origin},")
        elif value is not None and not isinstance(value, Mapping):
            raise BadInput(f"{known} is not a section", place=origin, mend="write keys below it", anchor="dialect")
        elif value is not None:
            yield from _walk(value, prefix, origins)


def _entries(name: str, value: Any, origin: str) -> Iterator[tuple[str, Option]]:
    if "*" not in name:
        yield name, Option(str(value).lower() if isinstance(value, bool) else str(value), origin)
    elif isinstance(value, Mapping):
        yield from ((name, Option(f"{key}={entry}", origin)) for key, entry in value.items())
    elif isinstance(value, list):
        yield from ((name, Option(str(entry), origin)) for entry in value)
    elif value is not None:
        message, mend = f"{name.partition('*')[0]}s must be a list", "write one entry a line"
        raise BadInput(message, place=origin, mend=mend, anchor="dialect")


class _Builder:
    """Builds a job from a table."""

    def __init__(self, table: Sequence[tuple[str, Option]], engine: str) -> None:
        self.engine = engine
        rows = [(*name.partition("*")[::2], option) for name, option in table]
        self.single = {name: option for name, _, option in rows if name not in REPEATED}
        self.repeated = [row for row in rows if row[0] in REPEATED]  # name, the one role that it is for, option
        self.is_tony = any(option.origin.startswith("flag --conf tony.") for _, option in table)
        self.draft = dialect.Draft()
        self.set = self.draft.set_key
        self.always = Option("", f"{WHAT}'s way", False)
        self.workers = self._number("num_workers", 1)
        self.ps = self._number("num_ps", 0)
        self.board = "tensorboard" in self.single and flag(self.single["tensorboard"])
        if self.board and not any(name.startswith(("num_worker", "worker_")) for name in self.single):
            self.workers = 0  # TensorBoard as a service
        self.input_path = self._text("input_path")
        self.framework = self._framework()
        if (name := self.single.get("name")) is None or not name.text.strip():
            raise BadInput("the job has no name", mend="add --name NAME", anchor="missing-key")
        self.name = dialect.job_name(name)

    def translate(self) -> None:
        self._check()
        single = self.single
        is_tensorflow = self.framework == "tensorflow"
        is_alone = is_tensorflow and self.workers <= 1
        self.set("name", self.name, single["name"])
        self.set("framework", "generic" if is_alone else self.framework, single.get("framework", self.always))
        self.set("files", [], self.always)
        roles = self._roles(is_tensorflow and not is_alone and not self.is_tony)
        if self.board:
            self._board()
        for name, role, option in sorted(
            self.repeated, key=lambda row: row[0] != "env"
        ):  # a variable may name the image
            for_roles = [
                target for target in roles if role in ("", target) or (role == "worker" and target == "master")
            ]
            if name == "env" and not role and self.board:
                for_roles.append("tensorboard")
            self._SETTERS[name](self, option, for_roles)
        self.draft.set_texts({"engines.yarn.queue": single.get("queue")})
        self._keytab()
        for key in ("input_path", "checkpoint_path", "saved_model_path", "job_type"):
            if self._text(key):
                self.set(("annotations", f"submarine.{key}"), single[key].text, single[key])
        for key, why in IDLE.items():
            if key in single:
                self.draft.remark(f"--{key}: nothing to do here; {why}")

    # -- the program and its roles --

    def _number(self, name: str, otherwise: int) -> int:
        return count(self.single[name]) if name in self.single else otherwise

    def _text(self, name: str) -> str:
        return self.single[name].text if name in self.single else ""

    def _framework(self) -> str:
        option = self.single.get("framework", Option("tensorflow", "the default"))
        kind = option.text.strip().lower()
        if kind == "mxnet" and self.workers == 1 and not self.ps:
            return "tensorflow"  # one worker needs no peers
        if kind == "mxnet":
            instead = "write a job file with a role each for schedulers, servers and workers, and framework: generic"
            raise unsupported(option, "mxnet of several tasks, which find each other by variables DMLC_...,", instead)
        return str(choice(option, FRAMEWORKS))

    def _check(self) -> None:
        single = self.single
        for key in ("num_schedulers", "scheduler_launch_cmd", "scheduler_resources", "scheduler_docker_image"):
            if key in single and single[key].text != "0":
                raise unsupported(single[key], "a scheduler, which is mxnet's,", "leave it out")
        no_ps = ("ps_launch_cmd", "num_ps", "ps_resources")
        commands = [key for key in ("worker_launch_cmd", "ps_launch_cmd") if "%input_path%" in self._text(key)]
        is_torch, has_ps = self.framework == "pytorch", self.ps or "ps_launch_cmd" in single or "ps_resources" in single
        for is_wrong, names, why, mend in (
            (is_torch and has_ps, no_ps, "PyTorch has no ps", "leave it out"),
            (is_torch and self.board, ("tensorboard",), "TensorBoard goes with TensorFlow", "leave it out, or --framework tensorflow"),
            (self.ps and self.workers == 1, ("num_ps",), "one worker needs no ps", "--num_workers 2 or more, or no ps"),
            (not self.workers and not self.board, ("num_workers",), "there is nothing to run", "--num_workers 1, or --tensorboard"),
            (commands and not self.input_path, commands,
             "the command names %input_path%, and there is none", "add --input_path PATH"),
            (("keytab" in single) != ("principal" in single), ("keytab", "principal"), "keytab and principal go together",
             "say both, or neither"),
        ):  # fmt: skip
            if is_wrong:
                raise self._bad_value(*names, why=why, mend=mend)

    def _keytab(self) -> None:
        """Set the keytab by which the job's master gets newer tokens. The submitter needs a ticket."""
        if "keytab" in self.single:
            keytab = self.single["keytab"]
            path = os.path.abspath(os.path.expanduser(keytab.text.removeprefix("file://")))
            self.draft.set_texts({"engines.yarn.kerberos.principal": self.single["principal"]})
            self.set("engines.yarn.kerberos.keytab", path, keytab)
            self.draft.remark("--keytab: the job's master gets newer tokens with it; submitting needs a ticket: kinit")

    def _bad_value(self, *names: str, why: str, mend: str) -> BadInput:
        origin = next((self.single[name].origin for name in names if name in self.single), "")
        return BadInput(why, place=origin, mend=mend, anchor="wrong-value")

    def _roles(self, several: bool) -> list[str]:
        """Set the roles, workers and ps, and return them. The first of several workers is the master."""
        sizes = {"master": int(several), "worker": self.workers - several, "ps": self.ps}
        roles = [role for role, number in sizes.items() if number > 0]
        for role in roles:
            kind = "ps" if role == "ps" else "worker"
            option = self.single.get("num_ps" if kind == "ps" else "num_workers", self.always)
            self.set(f"roles.{role}.command", ["bash", "-c", self._command(kind)], self.single[f"{kind}_launch_cmd"])
            self.set(f"roles.{role}.replicas", sizes[role], option)
            self._container(role, kind)
        return roles

    def _command(self, kind: str) -> str:
        """Return the launch command with its places filled in."""
        if (option := self.single.get(f"{kind}_launch_cmd")) is None or not option.text.strip():
            mend = f"add --{kind}_launch_cmd COMMAND"
            raise self._bad_value(f"num_{kind}s", "num_ps", why=f"{kind} has no command", mend=mend)
        text = option.text
        for name, path in (
            ("input_path", self._path("input_path", "")), ("checkpoint_path", self._checkpoints()),
            ("saved_model_path", self._path("saved_model_path", self._checkpoints())),
        ):  # fmt: skip
            text = text.replace(f"%{name}%", path)
        text = submarine_conf.EXPORTS[self.framework] + text if self.is_tony and self.workers > 1 else text
        has_hadoop = any(  # a variable that names its place in the image
            name == "env" and role in ("", kind) and other.text.startswith("DOCKER_HADOOP_HDFS_HOME=")
            for name, role, other in self.repeated
        )
        return submarine_conf.HADOOP + text if has_hadoop else text

    def _path(self, name: str, otherwise: str) -> str:
        """Return a path as the program gets it."""
        if name not in self.single or not (text := self.single[name].text):
            return otherwise
        return dialect.location(text, self.engine, "") if text.startswith("hdfs://default/") else text

    def _checkpoints(self) -> str:
        """Return the directory for checkpoints, by default one of the user's on the cluster. A lone TensorBoard shows all jobs' there."""
        jobs = dialect.location("submarine/jobs", self.engine, login_name())
        root = str(Path(jobs).absolute()) if registry.is_on_this_machine(self.engine) else jobs
        return self._path("checkpoint_path", f"{root}/{self.name}/checkpoint_path" if self.workers else root)

    def _container(self, role: str, kind: str, otherwise: Option | None = None) -> None:
        """Set the resources and the image of a role."""
        self.set(f"roles.{role}.workdir", "copy", self.always)
        option = self.single.get(f"{kind}_resources", otherwise)
        if option is None:
            mend = f"add --{kind}_resources memory=4G,vcores=2"
            raise self._bad_value(f"{kind}_launch_cmd", why=f"{kind} has no resources", mend=mend)
        for key, value in resources(option).items():
            self.set(f"roles.{role}.resources.{key}", value, option)
        image = self.single.get(f"{kind}_docker_image", self.single.get("docker_image"))
        self.draft.set_texts({f"roles.{role}.image": image})

    def _board(self) -> None:
        """Add TensorBoard as a task of its own. It counts where the job has no input path: a service, until it is killed."""
        option = self.single["tensorboard"]
        self.set("roles.tensorboard.command", tensorboard.command(self._checkpoints(), self.engine), option)
        self.draft.set_keys("inputs", tensorboard.inputs(self._checkpoints()), option)
        self._container("tensorboard", "tensorboard", Option(BOARD, "the default", False))
        is_service = not self.input_path and "wait_job_finish" not in self.single  # a page to look at
        self.draft.set_keys("roles.tensorboard", {"counts": is_service, "ports": {"board": 0}}, option)
        self.set("links.Tensorboard", "tensorboard:0:board/", option)
        if is_service:  # nobody may look at it for hours
            self.set("timeouts.stall", "none", option)

    # -- repeated options --

    def _env(self, option: Option, roles: Sequence[str]) -> None:
        name, mark, text = option.text.partition("=")
        if not mark or not name:
            raise wrong_value(option, "NAME=VALUE")
        if name.startswith(submarine_conf.VARIABLES):
            self._runtime(name, text, option, roles)
            return
        names = [name]
        if inside := IN_IMAGE.get(name):
            is_set = any(kind == "env" and other.text.startswith(f"{inside}=") for kind, _, other in self.repeated)
            names += [] if is_set else [inside]
        for role in roles:
            for variable in names:
                self.set(("roles", role, "env", variable), text, option)

    def _runtime(self, name: str, text: str, option: Option, roles: Sequence[str]) -> None:
        """Set what a variable of YARN's container runtime says: the image of the roles, mounts, the network, or another setting of it."""
        setting = name.removeprefix(submarine_conf.VARIABLES)
        if setting == "TYPE" and text != "docker":
            raise unsupported(option, f"the container runtime {text}", "leave it out, or name docker")
        if setting == "DOCKER_IMAGE":
            for role in roles:
                self.set(f"roles.{role}.image", text, option)
        elif setting == "DOCKER_MOUNTS":
            for mount in text.split(","):
                self._mount(Option(mount.strip(), option.origin), roles)
        elif setting == "DOCKER_CONTAINER_NETWORK":
            self.set("engines.yarn.network", text, option)
        elif setting != "TYPE":
            self.set(("engines", "yarn", "runtime", setting), text, option)

    def _quicklink(self, option: Option, roles: Sequence[str]) -> None:
        match = _LINK.fullmatch(option.text)
        if match is None:
            raise wrong_value(option, "LABEL=http://ROLE-INDEX:PORT, like Notebook=http://master-0:7070")
        role, index = match["role"], int(match["index"])
        if role == "master" and "master" not in roles:
            role = "worker"
        port = f"p{match['port']}"
        if role in (*roles, "tensorboard"):
            self.set(("roles", role, "ports", port), int(match["port"]), option)
        link = {"role": role, "index": index, "port": port, "path": match["path"] or "/", "scheme": match["scheme"]}
        self.set(("links", match["label"]), link, option)
        if not self.input_path:  # a notebook: nobody may look at it for hours
            self.set("timeouts.stall", "none", option)

    def _localization(self, option: Option, roles: Sequence[str]) -> None:
        remote, target = localization(option)
        if option.text.endswith(":ro"):
            self.draft.remark(f"--localization {option.text}: each task has a copy of its own, which it may change")
        if not target.startswith("/"):
            self._localize(remote, target, option, roles)
            return
        name = os.path.basename(target)
        self._localize(remote, name, option, roles)
        for role in roles:
            self._link(role, name, target, option)

    def _link(self, role: str, name: str, path: str, option: Option) -> None:
        """Have the command of a role begin with a link from `path`, in its image, to what is in its working directory."""
        settings = self.draft.strong[0]["roles"][role]
        if not settings.get("image"):
            feature = f"{path}, which is a place of the node itself where {role} has no image,"
            raise unsupported(option, feature, f"write ./{name}, and use it there; or name an image: --docker_image")
        *shell, line = settings["command"]
        link = f'mkdir -p {shlex.quote(os.path.dirname(path))} && ln -sfn "$PWD"/{shlex.quote(name)} {shlex.quote(path)} || exit'
        self.set(f"roles.{role}.command", [*shell, f"{link}; {line}"], option)

    def _localize(self, remote: str, target: str, option: Option, roles: Sequence[str]) -> None:
        """Bring a file or a directory to every task, under the name `target` in its working directory."""
        name = os.path.basename(remote.rstrip("/")) if target in (".", "") else target
        if BASED_REMOTE.match(remote):
            self._remote(dialect.location(remote, self.engine, ""), name, option, roles)
            return
        path = remote.removeprefix("file://")
        if not os.path.exists(path):
            raise dialect.wrong(option, f"{path} does not exist", "name a file or directory, or a URL", "no-file")
        files = [*self.draft.strong[0].get("files", ()), f"{path.rstrip('/')}#{name}"]
        self.set("files", files, option)

    def _remote(self, url: str, name: str, option: Option, roles: Sequence[str]) -> None:
        """Cache a remote file. A directory, whose name has no ending, is copied to every task."""
        if url.endswith(ARCHIVES):
            raise unsupported(option, "an archive that stays packed", f"--set 'archives=[{url}#{name}]' unpacks it")
        if "." in os.path.basename(url):
            self.set("cache", [*self.draft.strong[0].get("cache", ()), f"{url}#{name}"], option)
            return
        note = f"taken for a directory, as it has no ending; for a file: --set 'cache=[{url}#{name}]'"
        self.draft.remark(f"--localization {option.text}: {note}")
        fields = {"url": url.rstrip("/"), "as": "download", "split": "whole", "local": name, "to": list(roles)}
        self.draft.set_keys(("inputs", plain(name, "localized")), fields, option)

    def _mount(self, option: Option, roles: Sequence[str]) -> None:
        mounts = [*self.draft.strong[0].get("engines", {}).get("yarn", {}).get("mounts", ()), option.text]
        self.set("engines.yarn.mounts", mounts, option)

    def _conf(self, option: Option, roles: Sequence[str]) -> None:
        name = option.text.partition("=")[0]
        if name == submarine_conf.RESOURCES:
            for path, target, is_archive in submarine_conf.shipped(option):
                self._ship(path, target, is_archive, option, roles)
        elif (known := submarine_conf.KEYS.get(name)) is not None:
            place, shape = known
            if place[0] != "roles" or place[1] in roles:
                self.set(place, submarine_conf.value_of(option, shape), option)
        elif why := submarine_conf.nothing_to_do(name):
            self.draft.remark(f"--conf {name}: nothing to do here; {why}")
        else:
            raise submarine_conf.refusal(option)

    def _ship(self, path: str, name: str, is_archive: bool, option: Option, roles: Sequence[str]) -> None:
        """Bring a file, or an archive's content, to every task."""
        if not is_archive:
            self._localize(path, name, option, roles)
            return
        url = dialect.location(path, self.engine, "") if BASED_REMOTE.match(path) else path
        self.set("archives", [*self.draft.strong[0].get("archives", ()), f"{url}#{name}"], option)

    _SETTERS: Mapping[str, Callable[[_Builder, Option, Sequence[str]], None]] = {
        "env": _env, "quicklink": _quicklink, "localization": _localization, "mount": _mount, "conf": _conf,
    }  # fmt: skip


BASED_REMOTE = re.compile(r"^(?!file:)[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def resources(option: Option) -> dict[str, Any]:
    """Return `memory=8G,vcores=2,gpu=2` as keys of ours."""
    amounts: dict[str, Any] = {}
    for pair in option.text.split(","):
        name, mark, text = (part.strip() for part in pair.partition("="))
        amount = _AMOUNT.fullmatch(text)
        if not mark or amount is None:
            raise wrong_value(option, "pairs like memory=8G,vcores=2,gpu=2")
        number, unit = int(amount[1]), amount[2].upper()
        if name in ("memory", "memory-mb"):
            if name == "memory" and not unit:
                raise wrong_value(option, f"memory with a unit: memory={text}M")
            amounts["memory"] = f"{number}{'GiB' if unit == 'G' else 'MiB'}"
        elif name == "vcores" and not unit:
            amounts["cores"] = number
        elif name in ("gpu", "yarn.io/gpu") and not unit:
            amounts["gpus"] = number
        elif not unit:
            amounts.setdefault("extended", {})[name] = number
        else:
            raise unsupported(Option(pair, option.origin), f"a unit of {name}", f"write a number: {name}={number}")
    return amounts


def localization(option: Option) -> tuple[str, str]:
    """Return (remote, local) of `REMOTE:LOCAL[:rw|:ro]`. The remote may be a URL with a port. The local is a name in the working directory,
    or an absolute path.
    """
    remote, mark, local = option.text.removesuffix(":rw").removesuffix(":ro").rpartition(":")
    if not mark or local.startswith("//") or re.fullmatch(r"[a-z0-9+.-]+://[^/]*", remote, re.IGNORECASE):
        raise wrong_value(option, "REMOTE:LOCAL, like hdfs:///data/words.txt:./words.txt")
    if local.startswith("/"):
        return remote, local.rstrip("/")
    return remote, local.removeprefix("./").rstrip("/")
