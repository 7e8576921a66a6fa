"""XLearning's command line, `xl-submit` (later Hbox, `hbox-submit`), as a job of ours: `tm submit --xlearning ...`.

Its users' settings become one table (`xlearning_conf`), and the job is made of the table: roles and their sizes, code, data, TensorBoard.
Facts: Hbox 1.8 (Client, HboxContainer).
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainmaster.client.spec.describe import program
from trainmaster.client.tensorboard import command as board
from trainmaster.client.tensorboard import inputs as board_inputs
from trainmaster.core.errors import BadInput
from trainmaster.core.input.splits import split_urls
from trainmaster.core.spec.job import HADOOP
from trainmaster.data.cached import ARCHIVES
from trainmaster.engines.registry import is_on_this_machine
from trainmaster.frameworks.xlearning import CLUSTER
from trainmaster.host.machine import login_name
from trainmaster.integrations import dialect
from trainmaster.integrations import xlearning_conf as conf
from trainmaster.integrations.dialect import Option, choice, count, flag, plain, unsupported, wrong_value
from trainmaster.integrations.xlearning_conf import OPTIONS, WHAT, duration, fraction, memory, milliseconds

USAGE = ("[FLAG ...] COMMAND [ARGUMENT ...]", '[FLAG ...] --launch-cmd "COMMAND"')
# Types whose tasks need something of ours to find their peers, and that part, which is not built. One worker without ps needs no peers.
SCHEDULER, MPIEXEC = "a scheduler, and servers that know its address", "a start of all workers by mpiexec"
APP_TYPE = "xlearning.app-type"
CLUSTERED = {
    "mxnet": ("ps.num", SCHEDULER), "xflow": ("ps.num", SCHEDULER), "xdl": ("ps.num", SCHEDULER),
    "tensor2tensor": ("ps.num", "TF_CONFIG with a master"), "lightlda": ("ps.num", "the file lightLDAEndPoints.txt"),
    "distlightlda": ("ps.num", "the file lightLDAEndPoints.txt"), "distxgboost": ("worker.num", "the tracker of Rabit"),
    "distlightgbm": ("worker.num", "the list of all machines"), "mpi": ("worker.num", MPIEXEC), "tensornet": ("worker.num", MPIEXEC),
    "horovod": ("worker.num", "the rendezvous of Horovod"),
}  # fmt: skip
# The command of XLearning 1.0 to 1.4. Hbox takes it too, but its own is behind the flags.
XLEARNING_1 = ("flag --launch-cmd", "flag --xlearning-cmd")
BOARD_KEYS = (
    "tf.board.enable", "tf.board.worker.index", "tf.board.log.dir", "tf.board.reload.interval", "tf.board.history.dir", "board.modelpb",
    "board.cache.timeout",
)  # fmt: skip
LIGHTGBM_PORT = 12400  # LightGBM's default, `local_listen_port`
# Types that are a place to work in, not a program.
INTERACTIVE = ("vpc", "digits")
PRIORITIES = {
    word: number for number, word in enumerate(("DEFAULT", "VERY_LOW", "LOW", "NORMAL", "HIGH", "VERY_HIGH"))
} | {str(number): number for number in range(6)}
STRATEGIES = {"download": "download", "placeholder": "list", "stream": "stream"}
# Key of the job -> the key of XLearning that says it as it is.
TEXTS = {
    "engines.yarn.queue": "app.queue",
    "engines.yarn.label": "job.labelname",
    "master.nodes.labels.label": "am.nodeLabelExpression",
}
# Key of the job, the key of XLearning that says it, and the reader of its values.
READ: tuple[tuple[str, str, Callable[[Option], Any]], ...] = (
    ("priority", "app.priority", lambda setting: choice(setting, PRIORITIES, lower=False)),
    ("master.resources.memory", "am.memory", memory), ("master.resources.cores", "am.cores", lambda setting: count(setting, 1)),
    ("timeouts.job", "job.exec.timeout", milliseconds), ("timeouts.job", "vpc.duration", duration),
    ("timeouts.start", "localresource.timeout", milliseconds), ("timeouts.grace", "task.timeout", milliseconds),
    ("saves.every", "interresult.upload.interval", milliseconds),
)  # fmt: skip


def translated(
    words: Sequence[str], engine: str = dialect.ENGINE, environ: Mapping[str, str] = os.environ
) -> dialect.Translation | dialect.Verb:
    """Return the job that the words describe. Raises BadInput, naming the flag, for an option that is impossible here."""
    flags, command = dialect.parsed(words, {**OPTIONS, **dict.fromkeys(conf.SHORT, dialect.VALUE)}, WHAT)
    flags = [(conf.SHORT.get(name, name), setting) for name, setting in flags]
    options = dialect.own_options(flags, engine)
    if options.help:
        return dialect.Verb("help")
    if (version := dict(flags).get("version")) is not None:
        raise unsupported(version, "a version of XLearning", "tm --version shows ours")
    repeated: dict[str, list[Option]] = {name: [] for name in conf.REPEATED}
    for name, setting in flags:
        if name in repeated:
            repeated[name].append(setting)
    builder = _Builder(conf.table_of(flags, environ), repeated, command, options.engine)
    builder.translate()
    return builder.draft.translation(builder.name, options, stays=True, lists_inputs=True)


class _Builder:
    """Builds a job from one table."""

    def __init__(
        self, table: Mapping[str, Option], repeated: Mapping[str, list[Option]], words: Sequence[str], engine: str
    ) -> None:
        self.table, self.repeated, self.engine = table, repeated, engine
        self.draft = dialect.Draft()
        self.set = self.draft.set_key
        self.always = Option("", "XLearning's way", False)
        self.user = login_name()
        self.kind = self._kind()
        self.command, self.command_setting = self._command(words)
        self.name = plain(program(self.command), "xlearning")
        self.exports: list[str] = []
        self.hadoop_formats = False  # whether one has read the settings of Hadoop's own

    def translate(self) -> None:
        self._refuse()
        self._names()
        roles = self._roles()
        self._code()
        self._surroundings(roles)
        self._inputs()
        self._outputs(roles)
        self._refuse_hadoop_settings()
        self._board(roles)
        for role in roles:
            if role != "tensorboard":
                self.set(f"roles.{role}.command", self._line(role), self.command_setting)

    def _count(self, key: str, least: int = 0) -> int:
        return count(self.table[key], least)

    def _flag(self, key: str) -> bool:
        return key in self.table and flag(self.table[key])

    # -- the program and its roles --

    def _kind(self) -> str:
        setting = self.table["app.type"]
        kind = setting.text.strip().lower()
        if kind in INTERACTIVE:
            instead = "run a notebook as a role of its own in a job file, with ports and links"
            raise unsupported(setting, f"the application type {kind}", instead)
        key, part = CLUSTERED.get(kind, ("ps.num", ""))
        alone, flag_name = int(key == "worker.num"), key.replace(".", "-")
        if part and (number := self._count(key)) > alone:
            feature = f"the type {kind} with --{flag_name} {number} needs {part}, which"
            instead = f"--{flag_name} {alone} runs; --app-type standalone tells its tasks nothing of each other"
            raise unsupported(self.table[key], feature, instead)
        if not kind:
            raise wrong_value(setting, "a type: tensorflow, disttorch, standalone, ...")
        return kind

    def _command(self, words: Sequence[str]) -> tuple[list[str], Option]:
        """Return the program's words: those behind the flags, or those of --launch-cmd, split at blanks as by XLearning, with no shell.

        A backslash at the end of a script, with no line after it, is a word for some shells, and not a command.
        """
        if words and words != ["\\"]:
            return list(words), Option(" ".join(words), "the command")
        if (launch := self.table.get("launch.cmd")) is None or not launch.text.split():
            mend = "write it behind the flags, or --launch-cmd COMMAND"
            raise BadInput("there is no command", mend=mend, anchor="no-job")
        return launch.text.split(), launch

    def _refuse(self) -> None:
        idle = []
        for key, setting in self.table.items():
            is_harmless = setting.text.strip().lower() == "false" or setting.text.strip() == conf.HARMLESS.get(key)
            if key in conf.REFUSED and not is_harmless:
                raise unsupported(setting, *conf.REFUSED[key])
            if conf.MACHINERY.fullmatch(key) and setting.strong:
                idle.append(f"xlearning.{key}")
        if idle:
            self.draft.remark(f"{', '.join(idle)}: nothing to do here; it is about how XLearning itself works")
        if self._flag("inputfile.rename"):
            note = "inputs keep their directories, so equal names do not clash"
            self.draft.remark(f"isRenameInputFile: nothing to do here; {note}")
        kind = self.table.get("container.type")
        if kind is not None and choice(kind, {"yarn": False, "docker": True}) and "docker.image" not in self.table:
            raise dialect.wrong(kind, "a docker container has no image", "add --docker-image IMAGE")

    def _names(self) -> None:
        table = self.table
        self.set("framework", "xlearning", self.always)
        self.set(("annotations", APP_TYPE), self.kind, table["app.type"])
        if (setting := table.get("app.name")) is not None and setting.text.strip():
            name = plain(setting.text, "xlearning")
            self.set("name", name, setting)
            if name != setting.text:
                self.set(("annotations", "xlearning.app-name"), setting.text, setting)
        self.draft.set_texts({path: table.get(key) for path, key in TEXTS.items()})
        for path, key, read in READ:
            if key in table:
                self.set(path, read(table[key]), table[key])
        for name, text, setting in self._variables("am.env"):
            self.set(("master", "env", name), text, setting)
        if (image := table.get("docker.image")) is not None and self._docker():
            host, port = (
                table[key].text if key in table else "" for key in ("docker.registry.host", "docker.registry.port")
            )
            registry = f"{host}{f':{port}' if port else ''}/" if host else ""
            self.set("environment.image", registry + image.text, image)

    def _docker(self) -> bool:
        """Tell whether the image is to be used. An image of a site file is only for jobs that ask for docker."""
        kind = self.table.get("container.type")
        return self.table["docker.image"].strong if kind is None else kind.text.strip().lower() == "docker"

    def _roles(self) -> list[str]:
        """Set the roles, the number of tasks of each, and their resources. Return the roles."""
        table = self.table
        workers, ps = self._count("worker.num", 1), self._ps()
        distributed = self.kind == "tensorflow" and (ps > 0 or self._flag("tf.distribution.strategy"))
        cluster = "tensorflow" if distributed else "pytorch" if self.kind == "disttorch" else ""
        if cluster:
            self.set(("annotations", CLUSTER), cluster, table["app.type"], table["ps.num"])
            self.set("gang", True, self.always)
        if cluster == "pytorch":
            self.set("roles.worker.restart.scope", "group", self.always)
        evaluator = self._flag("tf.evaluator")
        if evaluator and not (distributed and workers > 1):
            message = "an evaluator needs a distributed TensorFlow job of at least 2 workers"
            mend = "add --ps-num 1, and --worker-num 2 or more; the last worker becomes the evaluator"
            raise dialect.wrong(table["tf.evaluator"], message, mend)
        workers -= evaluator
        has_chief = self._chief()
        is_lone = workers == 1
        workers -= has_chief and not is_lone
        sizes = {  # role -> number of tasks, key of its memory
            "chief": (int(has_chief and not is_lone), "chief.worker.memory"),
            "worker": (workers, "chief.worker.memory" if has_chief and is_lone else "worker.memory"),
            "ps": (ps, "ps.memory"),
            "evaluator": (int(evaluator), "evaluator.worker.memory"),
        }
        roles = [role for role, (number, _) in sizes.items() if number]
        for role in roles:
            number, key = sizes[role]
            self._role(role, number, table.get(key, table["worker.memory"]), "ps" if role == "ps" else "worker")
        rate = table["container.maxFailures.rate"]
        if (allowed := math.ceil(workers * fraction(rate, 1.0)) - 1) > 0 and not cluster:  # fewer than workers x rate
            self.set("completion.failures", round((allowed + 0.5) / workers, 6), rate)
        return roles

    def _ps(self) -> int:
        setting = self.table["ps.num"]
        if count(setting) and self.kind != "tensorflow":  # XLearning, too, gave none to such a type
            if setting.strong:
                self.draft.remark(f"--ps-num: nothing to do here; a job of the type {self.kind} has no ps")
            return 0
        return count(setting)

    def _chief(self) -> bool:
        setting = self.table.get("chief.worker.memory")
        if setting is None or memory(setting) == memory(self.table["worker.memory"]):
            return False
        if self.kind == "tensorflow":
            return True
        if setting.strong:
            self.draft.remark(f"--chiefworker-memory: nothing to do here; a job of the type {self.kind} has no chief")
        return False

    def _role(self, role: str, number: int, size: Option, kind: str) -> None:
        table, section = self.table, f"roles.{role}"
        self.set(f"{section}.replicas", number, table["ps.num" if kind == "ps" else "worker.num"])
        self.set(f"{section}.workdir", "copy", self.always)
        if folders := self._folders_made():
            self.set(f"{section}.prepare", ["mkdir", "-p", *folders], self.always)
        self.set(f"{section}.resources.memory", memory(size), size)
        self.set(f"{section}.resources.cores", self._count(f"{kind}.cores", 1), table[f"{kind}.cores"])
        if gpus := self._count(f"{kind}.gpus"):
            self.set(f"{section}.resources.gpus", gpus, table[f"{kind}.gpus"])
        part, least = table["memory.overhead.fraction"], table["memory.overhead.minimum"]
        if part.origin != conf.DEFAULT or least.origin != conf.DEFAULT:
            mebibytes = int(memory(size)[:-3]) * (1024 if memory(size).endswith("GiB") else 1)
            overhead = max(count(least), math.ceil(mebibytes * fraction(part)))
            self.set(f"{section}.resources.overhead", f"{overhead}MiB", part, least)
        attempts, growth = table.get("app.max.attempts"), table[f"{kind}.mem.autoscale"]
        if attempts is not None:
            self.set(f"{section}.restart.limit", count(attempts, 1) - 1, attempts)
        if attempts is not None or growth.origin != conf.DEFAULT:
            self.set(f"{section}.retry_memory", round(1 + fraction(growth, 99), 6), growth)

    # -- code and surroundings --

    def _code(self) -> None:
        table = self.table
        files = [self._file(path) for path in _entries(table.get("files"))]
        jars = [self._file(path) for path in _entries(table.get("jars"))]
        archives = [
            self._archive(entry, key) for key in ("archiveFiles", "cacheArchive") for entry in _entries(table.get(key))
        ]
        cache = [self._cached(entry) for entry in _entries(table.get("cacheFile"))]
        for path, entries, keys in (
            ("files", files + jars, ("files", "jars")), ("archives", archives, ("archiveFiles", "cacheArchive")),
            ("cache", cache, ("cacheFile",)),
        ):  # fmt: skip
            if entries or path == "files":
                self.set(path, entries, *(table[key] for key in keys if key in table), self.always)
        if self.kind == "distlightgbm":  # one worker, which needs no port: it listens for nobody
            self.exports.append(f"export LIGHTGBM_NUM_MACHINE=1 LIGHTGBM_LOCAL_LISTEN_PORT={LIGHTGBM_PORT}")
            self.exports.append(f"echo 127.0.0.1 {LIGHTGBM_PORT} > lightGBMlist.txt")
        if self.kind in ("lightlda", "distlightlda"):
            self.exports.append('export LIGHTLDA_RANK="$INDEX" LIGHTLDA_ROLE="$TF_ROLE"')
        for key, variable in (("user.path", "PATH"), ("user.ldlibrarypath", "LD_LIBRARY_PATH")):
            if key in table:
                self.exports.append(f"export {variable}={_before(variable)}{shlex.quote(table[key].text)}")
        if jars:
            names = ":".join(shlex.quote(jar.rpartition("#")[2].rpartition("/")[2]) for jar in jars)
            is_first = self._flag("user.classpath.first")
            paths = f'{names}"${{CLASSPATH:+:$CLASSPATH}}"' if is_first else _before("CLASSPATH") + names
            self.exports.append(f"export CLASSPATH={paths}")

    def _cached(self, entry: str) -> str:
        path, _, name = entry.partition("#")
        if (name or path).endswith(ARCHIVES) or path.endswith(ARCHIVES):
            option = Option(entry, self.table["cacheFile"].origin)
            raise unsupported(option, "an archive that stays packed", "--cacheArchive unpacks it")
        return f"{self._remote(path)}#{name or os.path.basename(path.rstrip('/'))}"

    def _file(self, path: str) -> str:
        """Return a local file, under its last name in the working directory."""
        path = path.removeprefix("file://").rstrip("/")
        name = os.path.basename(path)
        return path if path in (name, f"./{name}") else f"{path}#{name}"

    def _archive(self, entry: str, key: str) -> str:
        path, _, name = entry.partition("#")
        if not path.endswith(ARCHIVES):
            option = Option(entry, self.table[key].origin)
            raise unsupported(option, "an archive of this kind", f"pack it as one of {', '.join(ARCHIVES)}")
        place = self._remote(path) if key == "cacheArchive" else path.removeprefix("file://")
        return f"{place}#{name or os.path.basename(path)}"

    def _remote(self, path: str) -> str:
        return dialect.location(path, self.engine, self.user)

    def _surroundings(self, roles: Sequence[str]) -> None:
        """Set the variables and nodes of the roles."""
        for role in roles:
            for name, text, setting in self._variables("container.env"):
                self.set(("roles", role, "env", name), text, setting)
            labels = self.table.get(f"{'ps' if role == 'ps' else 'worker'}.nodeLabelExpression")
            self.draft.set_texts({f"roles.{role}.nodes.labels.label": labels})
            if "host.blacklist" in self.table:
                excluded = self.table["host.blacklist"]
                self.set(f"roles.{role}.nodes.exclude", _entries(excluded), excluded)

    def _variables(self, kind: str) -> Iterator[tuple[str, str, Option]]:
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

    # -- data --

    def _places(self, kind: str) -> Iterator[tuple[str, list[str], str, Option]]:
        """Yield (name, URLs, local path, setting) of each local path. Without # it is `input` or `output`.

        A local path may have several remote ones: `A,B#LOCAL`, or the option again.
        """
        places: dict[str, tuple[list[str], Option]] = {}
        for option in (kind, f"s3{kind}"):
            for setting in self.repeated[option]:
                remote, mark, local = setting.text.rpartition("#") if "#" in setting.text else (setting.text, "", "")
                local = (local if mark else kind).strip().removeprefix("./").rstrip("/")
                paths = split_urls(remote)
                if not paths or not local:
                    raise wrong_value(setting, "REMOTE#LOCAL")
                urls, _ = places.setdefault(local, ([], setting))
                urls += [path if option == kind or "://" in path else f"s3://{path.lstrip('/')}" for path in paths]
        for local, (urls, setting) in places.items():
            yield plain(local, kind), list(dict.fromkeys(self._remote(url) for url in urls)), local, setting

    def _inputs(self) -> None:
        strategy = self._strategy("input.strategy", "input.stream")
        mode = choice(strategy, STRATEGIES)
        for name, urls, path, setting in self._places("input"):
            section = ("inputs", name)
            self.set((*section, "url"), urls[0] if len(urls) == 1 else urls, setting)
            self.set((*section, "as"), mode, strategy)
            if path != name and mode == "download":
                self.set((*section, "local"), path, setting)
            if mode == "list" and self._flag("placeholder.whole.enable"):
                self.set((*section, "split"), "whole", self.table["placeholder.whole.enable"])
            if mode == "stream":
                self._stream(section)

    def _stream(self, section: tuple[str, str]) -> None:
        table = self.table
        form = table["inputformat.class"]
        is_text = form.text.rpartition(".")[2] == "TextInputFormat"
        self.set((*section, "format"), "lines" if is_text else f"{HADOOP}{form.text}", form)
        if (epochs := self._count("stream.epoch", 1)) > 1:
            self.set((*section, "epochs"), epochs, table["stream.epoch"])
        if self._flag("input.stream.shuffle"):
            self.set((*section, "shuffle"), True, table["input.stream.shuffle"])
        if not is_text:
            self._hadoop_settings(section)
        if not is_text and self._flag("inputformat.cache"):
            limit = table["inputformat.cachesize.limit"]
            self.set((*section, "options", "cache"), f"{count(limit)}MiB", limit, table["inputformat.cache"])

    def _hadoop_settings(self, prefix: tuple[str, str]) -> None:
        """Give a Hadoop format the settings of Hadoop's own that --conf names."""
        for name, setting in self.table.items():
            if name.startswith(conf.HADOOP_SETTING):
                self.draft.set_key((*prefix, "options", name.removeprefix(conf.HADOOP_SETTING)), setting.text, setting)
                self.hadoop_formats = True

    def _refuse_hadoop_settings(self) -> None:
        """Refuse settings of Hadoop's own in a job without a Hadoop format, which would read them."""
        setting = next((value for name, value in self.table.items() if name.startswith(conf.HADOOP_SETTING)), None)
        if setting is not None and not self.hadoop_formats:
            name = setting.origin.removeprefix("flag --conf ")
            instead = "only --inputformat and --outputformat read it; set others in the files of HADOOP_CONF_DIR"
            raise unsupported(setting, f"the setting {name} of Hadoop", instead)

    def _strategy(self, key: str, enable: str) -> Option:
        """Return the strategy by which data moves. Hbox also has a switch for streams."""
        if self._flag(enable):
            return Option("STREAM", self.table[enable].origin, self.table[enable].strong)
        return self.table[key]

    def _folders_made(self) -> list[str]:
        """Return the directories of outputs that are there when a program begins, as XLearning made them."""
        if not self._flag("container.auto.create.output.dir") or self._output_mode() == "stream":
            return []
        return [path for _, _, path, _ in self._places("output")]

    def _output_mode(self) -> str:
        mode: str = choice(self._strategy("output.strategy", "out.stream"), {"upload": "upload", "stream": "stream"})
        return mode

    def _outputs(self, roles: Sequence[str]) -> None:
        table, mode, writer = self.table, self._output_mode(), self._writer(roles)
        form = table["outputformat.class"]
        is_alone = writer or sum(role != "ps" for role in roles) == 1 == self._count("worker.num", 1)
        for name, urls, path, setting in self._places("output"):
            if len(urls) > 1:
                instead = f"write it once, or give each a directory of its own: --output {urls[0]}#{path}-2"
                raise unsupported(setting, f"an output to several places, {', '.join(urls)},", instead)
            if "chief" in roles and not writer:
                self.draft.remark(f"--output: folders are named by our tasks: {self._folders(roles)}")
            section = ("outputs", name)
            self.set((*section, "url"), urls[0], setting)
            self.set((*section, "as"), mode, self._strategy("output.strategy", "out.stream"))
            if mode == "upload":
                # An evaluator may be stopped at the job's end, before it has written.
                self.set((*section, "required"), "none" if writer.startswith("evaluator") else "any", self.always)
            if path != name:
                self.set((*section, "local"), path, setting)
            if writer:
                self.set((*section, "from"), writer, table["output.index"])
            if mode == "stream" and form.text.rpartition(".")[2] != "TextMultiOutputFormat":
                self.set((*section, "format"), f"{HADOOP}{form.text}", form)
                self._hadoop_settings(section)
            if is_alone and not self._flag("createcontainerid.dir"):
                self.set((*section, "layout"), "flat", table["createcontainerid.dir"])
            self.draft.set_keys("saves", {"names": "interResult", "keep": 1000}, self.always)

    def _folders(self, roles: Sequence[str]) -> str:
        """Return where the outputs of a job with a chief lie, by the INDEX that its programs get."""
        last = self._count("worker.num", 1) - 1 - ("evaluator" in roles)
        others = f"INDEX 1 to {last} in worker-0 to worker-{last - 1}" if last > 1 else "INDEX 1 in worker-0"
        evaluator = ", of the evaluator in evaluator-0" if "evaluator" in roles else ""
        return f"of INDEX 0 in chief-0, of {others}{evaluator}"

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
        """Run the board as a task of its own, if all reach the logs; else in the worker that writes them, as XLearning did."""
        table = self.table
        enabled, logs, index = self._board_enabled(), table["tf.board.log.dir"], table["tf.board.worker.index"]
        if not flag(enabled):
            return
        is_shared = "://" in logs.text or logs.text.startswith("/")
        if is_shared and self.kind != "tensorflow":
            self.draft.remark("--board-logdir: no VisualDL; it reads a directory of the worker alone")
            return
        if is_shared:
            self.set("roles.tensorboard.command", self._board_line(self._remote(logs.text)), enabled, logs)
            self.draft.set_keys("inputs", board_inputs(self._remote(logs.text)), logs)
            self.draft.set_keys("roles.tensorboard", {"counts": False, "ports": ["board"]}, self.always)
            self.set(("links", self._board_name()), "tensorboard:0:board/", enabled)
            return
        task = self._worker(count(index), roles)
        program = table[self._board_key()].text
        missing = f"echo {shlex.quote(f'no {self._board_name()}: there is no program {program}')} >&2"
        board_line = f"if command -v {program} >/dev/null; then {self._board_line(logs.text)} & else {missing}; fi"
        self.exports.append(
            f'mkdir -p {shlex.quote(logs.text)}; if [ "$TF_ROLE:$TF_INDEX" = worker:{count(index)} ]; then {board_line}; fi'
        )
        self.set(f"roles.{task.partition(':')[0]}.ports", ["board"], self.always)
        self.set(("links", self._board_name()), f"{task}:board/", enabled)
        if (history := table.get("tf.board.history.dir")) is not None and history.strong:
            url, local = self._remote(history.text).rstrip("/"), logs.text.removeprefix("./")
            output = {"url": url, "from": task, "local": local, "layout": "flat", "overwrite": True, "required": "none"}
            self.draft.set_keys("outputs.board", output, history)

    def _board_enabled(self) -> Option:
        """Return whether there is a board. By default the words of XLearning 1, whose command is --launch-cmd, have one; Hbox's have none.

        Other types than tensorflow get one only if a flag is about it: most nodes have no VisualDL.
        """
        table = self.table
        is_wanted = any(table[key].strong for key in BOARD_KEYS if key in table)
        by_default = self.command_setting.origin in XLEARNING_1 and (self.kind == "tensorflow" or is_wanted)
        enabled = table.get("tf.board.enable") or Option(
            "true" if by_default else "false", "XLearning's default", False
        )
        return enabled if self.kind == "tensorflow" or is_wanted else Option("false", enabled.origin, False)

    def _board_name(self) -> str:
        return "TensorBoard" if self.kind == "tensorflow" else "VisualDL"

    def _board_key(self) -> str:
        """Return the key that names the program of the board."""
        return "tf.board.path" if self.kind == "tensorflow" else "board.path"

    def _board_line(self, logs: str) -> str:
        table, program = self.table, self.table[self._board_key()].text
        if self.kind == "tensorflow":
            return board(logs, self.engine, f" --reload_interval {count(table['tf.board.reload.interval'])}", program)
        model = f" --model_pb {shlex.quote(table['board.modelpb'].text)}" if "board.modelpb" in table else ""
        options = f"--logdir {shlex.quote(logs)} --cache_timeout {count(table['board.cache.timeout'])}{model}"
        host = "127.0.0.1" if is_on_this_machine(self.engine) else "0.0.0.0"
        return f'{program} {options} --port "$TRAINMASTER_PORT_BOARD" --host {host}'

    def _line(self, role: str) -> Any:
        """Return the command: its words as they are, or a line for the shell, where variables must be set first."""
        exports = [line for line in self.exports if role != "ps" or not line.startswith("mkdir")]
        return "; ".join([*exports, f"exec {shlex.join(self.command)}"]) if exports else list(self.command)


def _before(variable: str) -> str:
    """Return the old list of paths, for a shell, to stand before a new path: an empty entry would mean the working directory."""
    return f'"${{{variable}:+${variable}:}}"'


def _entries(setting: Option | None) -> list[str]:
    return [entry.strip() for entry in setting.text.split(",") if entry.strip()] if setting is not None else []
