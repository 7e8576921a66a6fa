"""XLearning's command line, `xl-submit` (later Hbox, `hbox-submit`), as a job of ours: `tm submit --xlearning ...`.

Its users' settings become one table (`xlearning_conf`), and the job is made of the table: roles and their sizes, code, data, TensorBoard.
Facts: Hbox 1.8 (Client, HboxContainer).
"""

from __future__ import annotations

import getpass
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainmaster.client.tensorboard import command as board
from trainmaster.client.tensorboard import inputs as board_inputs
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import HADOOP
from trainmaster.data.cached import ARCHIVES
from trainmaster.frameworks.xlearning import CLUSTER
from trainmaster.integrations.dialect import (
    ENGINE,
    Draft,
    Said,
    Translation,
    Verb,
    choice,
    count,
    flag,
    location,
    own_options,
    parsed,
    plain,
    unsupported,
    wrong_value,
)  # fmt: skip
from trainmaster.integrations.xlearning_conf import (
    DEFAULT,
    MACHINERY,
    OPTIONS,
    REFUSED,
    REPEATED,
    WHAT,
    duration,
    fraction,
    memory,
    milliseconds,
    table_of,
)  # fmt: skip

USAGE = ("[FLAG ...] COMMAND [ARGUMENT ...]", '[FLAG ...] --launch-cmd "COMMAND"')
# Types whose tasks need to know their peers, and that are not built. Run as they are, each task would silently work alone.
NOT_BUILT = (
    "mxnet", "xflow", "xdl", "tensor2tensor", "xgboost", "distxgboost", "lightgbm", "distlightgbm", "lightlda", "distlightlda",
    "mpi", "tensornet", "horovod", "vpc", "digits",
)  # fmt: skip
PRIORITIES = {
    word: number for number, word in enumerate(("DEFAULT", "VERY_LOW", "LOW", "NORMAL", "HIGH", "VERY_HIGH"))
} | {str(number): number for number in range(6)}
STRATEGIES = {"download": "download", "placeholder": "list", "stream": "stream"}


def translated(
    words: Sequence[str], engine: str = ENGINE, environ: Mapping[str, str] = os.environ
) -> Translation | Verb:
    """Return the job that the words describe. Raises BadInput, naming the flag, for an option that is impossible here."""
    flags, command = parsed(words, OPTIONS, WHAT)
    options = own_options(flags, engine)
    if options.help:
        return Verb("help")
    repeated: dict[str, list[Said]] = {name: [] for name in REPEATED}
    for name, setting in flags:
        if name in repeated:
            repeated[name].append(setting)
    builder = _Builder(table_of(flags, environ), repeated, command, options.engine)
    builder.translate()
    return builder.draft.translation(builder.name, options, stays=True, lists_inputs=True)


class _Builder:
    """Builds a job from one table."""

    def __init__(
        self, table: Mapping[str, Said], repeated: Mapping[str, list[Said]], words: Sequence[str], engine: str
    ) -> None:
        self.table, self.repeated, self.engine = table, repeated, engine
        self.draft = Draft()
        self.always = Said("", "XLearning's way", False)
        self.user = getpass.getuser()
        self.name = "xlearning"
        self.kind = self._kind()
        self.command, self.command_setting = self._command(words)
        self.exports: list[str] = []

    def translate(self) -> None:
        self._refuse()
        self._names()
        roles = self._roles()
        self._code()
        for role in roles:
            self._surroundings(role)
        self._limits(roles)
        self._inputs()
        self._outputs(roles)
        self._board(roles)
        for role in roles:
            if role != "tensorboard":
                self.draft.set_key(("roles", role, "command"), self._line(role), self.command_setting)

    # -- the program and its roles --

    def _kind(self) -> str:
        setting = self.table["app.type"]
        kind = setting.text.strip().lower()
        if kind in NOT_BUILT:
            instead = "--app-type standalone runs the command as it is, and tells its tasks nothing of each other"
            raise unsupported(setting, f"the application type {kind}", instead)
        if setting.text.strip() == "":
            raise wrong_value(setting, "a type: tensorflow, disttorch, standalone, ...")
        return kind

    def _command(self, words: Sequence[str]) -> tuple[list[str], Said]:
        """Return the program's words: those behind the flags, or those of --launch-cmd, split at blanks as by XLearning, with no shell."""
        if words:
            return list(words), Said(" ".join(words), "the command")
        if (launch := self.table.get("launch.cmd")) is None or not launch.text.split():
            raise BadInput(
                "there is no command", mend="write it behind the flags, or --launch-cmd COMMAND", anchor="no-job"
            )
        return launch.text.split(), launch

    def _refuse(self) -> None:
        idle = []
        for key, setting in self.table.items():
            if key in REFUSED and not (
                setting.text.strip().lower() == "false"
                or (key == "interresult.dir" and setting.text == "/interResult_")
            ):
                raise unsupported(setting, *REFUSED[key])
            if MACHINERY.fullmatch(key) and setting.strong:
                idle.append(f"xlearning.{key}")
        if idle:
            self.draft.remark(f"{', '.join(idle)}: nothing to do here; it is about how XLearning itself works")
        if (renames := self.table.get("inputfile.rename")) is not None and flag(renames):
            self.draft.remark(
                "isRenameInputFile: nothing to do here; inputs keep their directories, so equal names do not clash"
            )
        kind = self.table.get("container.type")
        if kind is not None and choice(kind, {"yarn": False, "docker": True}) and "docker.image" not in self.table:
            raise BadInput(
                "a docker container has no image",
                place=kind.origin,
                mend="add --docker-image IMAGE",
                anchor="wrong-value",
            )

    def _names(self) -> None:
        set_key, table = self.draft.set_key, self.table
        set_key(("framework",), "xlearning", self.always)
        set_key(("annotations", "xlearning.app-type"), self.kind, table["app.type"])
        from trainmaster.client.spec.describe import program

        self.name = plain(program(self.command), "xlearning")
        if (setting := table.get("app.name")) is not None and setting.text.strip():
            set_key(("name",), plain(setting.text, "xlearning"), setting)
            if plain(setting.text, "") != setting.text:
                set_key(("annotations", "xlearning.app-name"), setting.text, setting)
        if "app.queue" in table:
            set_key(("engines", "yarn", "queue"), table["app.queue"].text, table["app.queue"])
        set_key(("priority",), choice(table["app.priority"], PRIORITIES, lower=False), table["app.priority"])
        if "job.labelname" in table:
            set_key(("engines", "yarn", "label"), table["job.labelname"].text, table["job.labelname"])
        if (image := table.get("docker.image")) is not None and self._docker():
            host, port = (
                table[key].text if key in table else "" for key in ("docker.registry.host", "docker.registry.port")
            )
            registry = f"{host}{f':{port}' if port else ''}/" if host else ""
            set_key(("environment", "image"), registry + image.text, image)

    def _docker(self) -> bool:
        """Tell whether the image is to be used. An image of a site file is only for jobs that ask for docker."""
        kind = self.table.get("container.type")
        return self.table["docker.image"].strong if kind is None else kind.text.strip().lower() == "docker"

    def _roles(self) -> list[str]:
        """Set the roles, the number of tasks of each, and their resources. Return the roles."""
        table, set_key = self.table, self.draft.set_key
        workers, ps = count(table["worker.num"], 1), self._ps()
        distributed = self.kind == "tensorflow" and (ps > 0 or flag(table["tf.distribution.strategy"]))
        cluster = "tensorflow" if distributed else "pytorch" if self.kind == "disttorch" else ""
        if cluster:
            set_key(("annotations", CLUSTER), cluster, table["app.type"], table["ps.num"])
            set_key(("gang",), True, self.always)
        if cluster == "pytorch":
            set_key(("roles", "worker", "restart", "scope"), "group", self.always)
        sizes: dict[str, tuple[int, str, str]] = {}  # role -> number of tasks, key of its memory, kind
        evaluator = flag(table["tf.evaluator"])
        if evaluator and not (distributed and workers > 1):
            raise BadInput(
                "an evaluator needs a distributed TensorFlow job of at least 2 workers", place=table["tf.evaluator"].origin,
                mend="add --ps-num 1, and --worker-num 2 or more; the last worker becomes the evaluator", anchor="wrong-value",
            )  # fmt: skip
        workers -= evaluator
        chief = self._chief()
        if chief and workers > 1:
            sizes["chief"] = (1, "chief.worker.memory", "worker")
            workers -= 1
        sizes["worker"] = (
            workers,
            "chief.worker.memory" if chief and "chief" not in sizes else "worker.memory",
            "worker",
        )
        if ps:
            sizes["ps"] = (ps, "ps.memory", "ps")
        if evaluator:
            sizes["evaluator"] = (1, "evaluator.worker.memory", "worker")
        for role, (number, key, kind) in sizes.items():
            self._role(role, number, table.get(key, table["worker.memory"]), kind)
        rate = fraction(table["container.maxFailures.rate"], 1.0)
        if (allowed := math.ceil(workers * rate) - 1) > 0 and not cluster:  # fewer than workers x rate may fail
            set_key(
                ("completion", "failures"), round((allowed + 0.5) / workers, 6), table["container.maxFailures.rate"]
            )
        return list(sizes)

    def _ps(self) -> int:
        setting = self.table["ps.num"]
        if count(setting) and self.kind != "tensorflow":
            if not setting.strong:  # of the site file: XLearning, too, gave them only to TensorFlow
                return 0
            raise unsupported(
                setting,
                f"a ps beside the type {self.kind}",
                "--app-type tensorflow has them; or name the roles in a job file",
            )
        return count(setting)

    def _chief(self) -> bool:
        setting = self.table.get("chief.worker.memory")
        if setting is None or memory(setting) == memory(self.table["worker.memory"]):
            return False
        if self.kind == "tensorflow":
            return True
        if setting.strong:
            raise unsupported(setting, f"a chief of the type {self.kind}", "--app-type tensorflow has one")
        return False

    def _role(self, role: str, number: int, size_setting: Said, kind: str) -> None:
        table, prefix = self.table, ("roles", role)
        set_key = self.draft.set_key
        number_setting = table["ps.num" if kind == "ps" else "worker.num"]
        set_key((*prefix, "replicas"), number, number_setting)
        set_key((*prefix, "workdir"), "copy", self.always)
        set_key((*prefix, "resources", "memory"), memory(size_setting), size_setting)
        set_key((*prefix, "resources", "cores"), count(table[f"{kind}.cores"], 1), table[f"{kind}.cores"])
        if gpus := count(table[f"{kind}.gpus"]):
            set_key((*prefix, "resources", "gpus"), gpus, table[f"{kind}.gpus"])
        part, least = table["memory.overhead.fraction"], table["memory.overhead.minimum"]
        if part.origin != DEFAULT or least.origin != DEFAULT:
            size = int(memory(size_setting)[:-3]) * (1024 if memory(size_setting).endswith("GiB") else 1)
            set_key(
                (*prefix, "resources", "overhead"),
                f"{max(count(least), math.ceil(size * fraction(part)))}MiB",
                part,
                least,
            )
        attempts, growth = table.get("app.max.attempts"), table[f"{kind}.mem.autoscale"]
        if attempts is not None:
            set_key((*prefix, "restart", "limit"), count(attempts, 1) - 1, attempts)
        if attempts is not None or growth.origin != DEFAULT:
            set_key((*prefix, "retry_memory"), round(1 + fraction(growth, 99), 6), growth)

    # -- code and surroundings --

    def _code(self) -> None:
        set_key, table = self.draft.set_key, self.table
        files = [self._file(path) for path in _entries(table.get("files"))]
        archives = [self._archive(entry, table["archiveFiles"]) for entry in _entries(table.get("archiveFiles"))]
        cache = []
        for entry in _entries(table.get("cacheFile")):
            path, _, name = entry.partition("#")
            if (name or path).endswith(ARCHIVES) or path.endswith(ARCHIVES):
                raise unsupported(
                    Said(entry, table["cacheFile"].origin), "an archive that stays packed", "--cacheArchive unpacks it"
                )
            cache.append(f"{self._remote(path)}#{name or os.path.basename(path.rstrip('/'))}")
        for entry in _entries(table.get("cacheArchive")):
            archives.append(self._archive(entry, table["cacheArchive"], remote=True))
        jars = [self._file(path) for path in _entries(table.get("jars"))]
        set_key(("files",), files + jars, *(table[key] for key in ("files", "jars") if key in table), self.always)
        if archives:
            set_key(("archives",), archives, *(table[key] for key in ("archiveFiles", "cacheArchive") if key in table))
        if cache:
            set_key(("cache",), cache, table["cacheFile"])
        for key, variable in (("user.path", "PATH"), ("user.ldlibrarypath", "LD_LIBRARY_PATH")):
            if key in table:
                self.exports.append(f"export {variable}={_before(variable)}{shlex.quote(table[key].text)}")
        if jars:
            names = ":".join(shlex.quote(jar.rpartition("#")[2].rpartition("/")[2]) for jar in jars)
            first = flag(table["user.classpath.first"])
            self.exports.append(
                f"export CLASSPATH={names}{_behind('CLASSPATH')}"
                if first
                else f"export CLASSPATH={_before('CLASSPATH')}{names}"
            )

    def _file(self, path: str) -> str:
        """Return a local file, under its last name in the working directory."""
        path = path.removeprefix("file://").rstrip("/")
        name = os.path.basename(path)
        return path if path in (name, f"./{name}") else f"{path}#{name}"

    def _archive(self, entry: str, setting: Said, remote: bool = False) -> str:
        path, _, name = entry.partition("#")
        if not path.endswith(ARCHIVES):
            raise unsupported(
                Said(entry, setting.origin), "an archive of this kind", f"pack it as one of {', '.join(ARCHIVES)}"
            )
        return f"{self._remote(path) if remote else path.removeprefix('file://')}#{name or os.path.basename(path)}"

    def _remote(self, path: str) -> str:
        return location(path, self.engine, self.user)

    def _surroundings(self, role: str) -> None:
        """Set the variables and nodes of a role."""
        set_key, table, prefix = self.draft.set_key, self.table, ("roles", role)
        for name, text, setting in self._variables("container.env"):
            set_key((*prefix, "env", name), text, setting)
        key = "ps.nodeLabelExpression" if role == "ps" else "worker.nodeLabelExpression"
        if key in table:
            set_key((*prefix, "nodes", "labels", "label"), table[key].text, table[key])
        if "host.blacklist" in table:
            set_key((*prefix, "nodes", "exclude"), _entries(table["host.blacklist"]), table["host.blacklist"])

    def _variables(self, kind: str) -> Iterator[tuple[str, str, Said]]:
        """Yield the variables of xlearning.container.env.NAME=VALUE, and of Hbox's container.env=A=1|B=2."""
        for key, setting in self.table.items():
            if key.startswith(f"{kind}."):
                yield key.removeprefix(f"{kind}."), setting.text, setting
            elif key == kind:
                for pair in setting.text.split("|"):
                    name, mark, text = pair.partition("=")
                    if not mark or not name:
                        raise wrong_value(setting, "NAME=VALUE|NAME=VALUE")
                    yield name, text, setting

    def _limits(self, roles: Sequence[str]) -> None:
        set_key, table = self.draft.set_key, self.table
        set_key(("master", "resources", "memory"), memory(table["am.memory"]), table["am.memory"])
        set_key(("master", "resources", "cores"), count(table["am.cores"], 1), table["am.cores"])
        for name, text, setting in self._variables("am.env"):
            set_key(("master", "env", name), text, setting)
        if "am.nodeLabelExpression" in table:
            set_key(
                ("master", "nodes", "labels", "label"),
                table["am.nodeLabelExpression"].text,
                table["am.nodeLabelExpression"],
            )
        times: tuple[tuple[str, tuple[str, str], Callable[[Said], str]], ...] = (
            ("job.exec.timeout", ("timeouts", "job"), milliseconds), ("vpc.duration", ("timeouts", "job"), duration),
            ("localresource.timeout", ("timeouts", "start"), milliseconds), ("task.timeout", ("timeouts", "grace"), milliseconds),
            ("interresult.upload.interval", ("saves", "every"), milliseconds),
        )  # fmt: skip
        for key, path, read in times:
            if key in table:
                set_key(path, read(table[key]), table[key])

    # -- data --

    def _places(self, kind: str) -> Iterator[tuple[str, str, str, Said]]:
        """Yield (name, URL, local path, setting) of each --input or --output. Without # the local path is `input` or `output`."""
        remotes: dict[str, str] = {}
        for option in (kind, f"s3{kind}"):
            for setting in self.repeated[option]:
                remote, mark, local = setting.text.rpartition("#") if "#" in setting.text else (setting.text, "", "")
                local = (local if mark else kind).strip().removeprefix("./").rstrip("/")
                if not remote or not local:
                    raise wrong_value(setting, "REMOTE#LOCAL")
                if "," in remote or remotes.setdefault(local, remote) != remote:
                    instead = f"give each a directory of its own: --{option} A#{local}/a --{option} B#{local}/b"
                    raise unsupported(setting, f"several remote paths in one local directory, {local},", instead)
                url = remote if option == kind or "://" in remote else f"s3://{remote.lstrip('/')}"
                yield plain(local, kind), self._remote(url), local, setting

    def _inputs(self) -> None:
        set_key, table = self.draft.set_key, self.table
        strategy = self._strategy("input.strategy", "input.stream")
        mode = choice(strategy, STRATEGIES)
        for name, url, path, setting in self._places("input"):
            prefix = ("inputs", name)
            set_key((*prefix, "url"), url, setting)
            set_key((*prefix, "as"), mode, strategy)
            if path != name:
                set_key((*prefix, "local"), path, setting)
            if mode == "list" and flag(table["placeholder.whole.enable"]):
                set_key((*prefix, "split"), "whole", table["placeholder.whole.enable"])
            if mode == "stream":
                self._stream(prefix)

    def _stream(self, prefix: tuple[str, str]) -> None:
        set_key, table = self.draft.set_key, self.table
        form = table["inputformat.class"]
        text = form.text.rpartition(".")[2] == "TextInputFormat"
        set_key((*prefix, "format"), "lines" if text else f"{HADOOP}{form.text}", form)
        if (epochs := count(table["stream.epoch"], 1)) > 1:
            set_key((*prefix, "epochs"), epochs, table["stream.epoch"])
        if flag(table["input.stream.shuffle"]):
            set_key((*prefix, "shuffle"), True, table["input.stream.shuffle"])
        if not text and flag(table["inputformat.cache"]):
            limit = table["inputformat.cachesize.limit"]
            set_key((*prefix, "options", "cache"), f"{count(limit)}MiB", limit, table["inputformat.cache"])

    def _strategy(self, key: str, enable: str) -> Said:
        """Return the strategy by which data moves. Hbox also has a switch for streams."""
        setting = self.table.get(enable)
        return (
            Said("STREAM", setting.origin, setting.strong) if setting is not None and flag(setting) else self.table[key]
        )

    def _outputs(self, roles: Sequence[str]) -> None:
        set_key, table = self.draft.set_key, self.table
        strategy = self._strategy("output.strategy", "out.stream")
        mode = choice(strategy, {"upload": "upload", "stream": "stream"})
        writer = self._writer(roles)
        alone = writer or sum(role != "ps" for role in roles) == 1 == count(table["worker.num"], 1)
        for name, url, path, setting in self._places("output"):
            if "chief" in roles and not writer:
                self.draft.remark(f"--output: folders are named by our tasks: {self._folders(roles)}")
            prefix = ("outputs", name)
            set_key((*prefix, "url"), url, setting)
            set_key((*prefix, "as"), mode, strategy)
            if path != name:
                set_key((*prefix, "local"), path, setting)
            if writer:
                set_key((*prefix, "from"), writer, table["output.index"])
            if mode == "stream" and table["outputformat.class"].text.rpartition(".")[2] != "TextMultiOutputFormat":
                set_key((*prefix, "format"), f"{HADOOP}{table['outputformat.class'].text}", table["outputformat.class"])
            if alone and not flag(table["createcontainerid.dir"]):
                set_key((*prefix, "layout"), "flat", table["createcontainerid.dir"])
            set_key(("saves", "names"), "interResult", self.always)
            set_key(("saves", "keep"), 1000, self.always)

    def _folders(self, roles: Sequence[str]) -> str:
        """Return where the outputs of a job with a chief lie, by the INDEX that its programs get."""
        last = count(self.table["worker.num"], 1) - 1 - ("evaluator" in roles)
        others = f"INDEX 1 to {last} in worker-0 to worker-{last - 1}" if last > 1 else "INDEX 1 in worker-0"
        return f"of INDEX 0 in chief-0, of {others}" + (
            ", of the evaluator in evaluator-0" if "evaluator" in roles else ""
        )

    def _writer(self, roles: Sequence[str]) -> str:
        """Return the one task that writes outputs, "" where all do. A chief is worker 0."""
        setting = self.table["output.index"]
        if setting.text.strip() == "-1":
            return ""
        return self._worker(count(setting), roles)

    def _worker(self, index: int, roles: Sequence[str]) -> str:
        """Return the task that XLearning called worker `index`: the first may be the chief, the last the evaluator."""
        if "evaluator" in roles and index == count(self.table["worker.num"], 1) - 1:
            return "evaluator:0"
        if "chief" in roles:
            return "chief:0" if index == 0 else f"worker:{index - 1}"
        return f"worker:{index}"

    # -- TensorBoard --

    def _board(self, roles: list[str]) -> None:
        """Run TensorBoard as a task of its own, if all reach the logs; else in the worker that writes them, as XLearning did."""
        table, set_key = self.table, self.draft.set_key
        enabled, logs, index = table["tf.board.enable"], table["tf.board.log.dir"], table["tf.board.worker.index"]
        if not flag(enabled):
            return
        if self.kind != "tensorflow":
            if enabled.strong:
                instead = "leave it out; a board is a role of its own in a job file, with ports and links"
                raise unsupported(enabled, f"VisualDL, the board of the type {self.kind},", instead)
            return
        arguments = f" --reload_interval {count(table['tf.board.reload.interval'])}"
        program = table["tf.board.path"].text
        if "://" in logs.text or logs.text.startswith("/"):
            prefix = ("roles", "tensorboard")
            set_key(
                (*prefix, "command"), board(self._remote(logs.text), self.engine, arguments, program), enabled, logs
            )
            for name, fields in board_inputs(self._remote(logs.text)).items():
                set_key(("inputs", name), fields, logs)
            set_key((*prefix, "counts"), False, self.always)
            set_key((*prefix, "ports"), ["board"], self.always)
            set_key(("links", "TensorBoard"), "tensorboard:0:board/", enabled)
            return
        task = self._worker(count(index), roles)
        role, _, number = task.partition(":")
        line = board(logs.text, self.engine, arguments, program)
        self.exports.append(
            f'mkdir -p {shlex.quote(logs.text)}; if [ "$TF_ROLE:$TF_INDEX" = worker:{count(index)} ]; then {line} & fi'
        )
        set_key(("roles", role, "ports"), ["board"], self.always)
        set_key(("links", "TensorBoard"), f"{role}:{number}:board/", enabled)
        if (history := table.get("tf.board.history.dir")) is not None:
            set_key(("outputs", "board", "url"), f"{self._remote(history.text).rstrip('/')}/{self.name}", history)
            for key, value in (
                ("from", task),
                ("local", logs.text.removeprefix("./")),
                ("layout", "flat"),
                ("overwrite", True),
            ):
                set_key(("outputs", "board", key), value, history)

    def _line(self, role: str) -> Any:
        """Return the command: its words as they are, or a line for the shell, where variables must be set first."""
        exports = [line for line in self.exports if role != "ps" or not line.startswith("mkdir")]
        return "; ".join([*exports, f"exec {shlex.join(self.command)}"]) if exports else list(self.command)


def _before(variable: str) -> str:
    """Return the old list of paths, for a shell, to stand before a new path: an empty entry would mean the working directory."""
    return f'"${{{variable}:+${variable}:}}"'


def _behind(variable: str) -> str:
    return f'"${{{variable}:+:${variable}}}"'


def _entries(setting: Said | None) -> list[str]:
    return [entry.strip() for entry in setting.text.split(",") if entry.strip()] if setting is not None else []
