"""XLearning's command line, `xl-submit` (later Hbox, `hbox-submit`), as a job of ours: `tm submit --xlearning ...`.

What its users write becomes one table (`xlearning_conf`), and the job is made of the table: roles and their sizes, code, data, TensorBoard.
Facts: Hbox 1.8 (Client, HboxContainer).
"""

from __future__ import annotations

import getpass
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
    board,
    count,
    flag,
    location,
    not_here,
    only,
    ours,
    parsed,
    plain,
    wrong,
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
# Types that have peers to be told of and that are not built; run as they are, each task would work alone and nobody be told.
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
    """The job that the words say. Raises BadInput, naming the flag, for what cannot be."""
    found, command = parsed(words, OPTIONS, WHAT)
    options = ours(found, engine)
    if options.help:
        return Verb("help")
    repeated: dict[str, list[Said]] = {name: [] for name in REPEATED}
    for name, said in found:
        if name in repeated:
            repeated[name].append(said)
    made = _Translating(table_of(found, environ), repeated, command, options.engine)
    made.translate()
    return made.draft.translation(made.name, options, stays=True, lists_inputs=True)


class _Translating:
    """One table on its way to a job."""

    def __init__(
        self, table: Mapping[str, Said], repeated: Mapping[str, list[Said]], words: Sequence[str], engine: str
    ) -> None:
        self.table, self.repeated, self.engine = table, repeated, engine
        self.draft = Draft()
        self.always = Said("", "XLearning's way", False)
        self.user = getpass.getuser()
        self.name = "xlearning"
        self.kind = self._kind()
        self.command, self.said = self._command(words)
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
                self.draft.say(("roles", role, "command"), self._line(role), self.said)

    # -- what is asked for --

    def _kind(self) -> str:
        said = self.table["app.type"]
        kind = said.text.strip().lower()
        if kind in NOT_BUILT:
            instead = "--app-type standalone runs the command as it is, and tells its tasks nothing of each other"
            raise not_here(said, f"the application type {kind}", instead)
        if said.text.strip() == "":
            raise wrong(said, "a type: tensorflow, disttorch, standalone, ...")
        return kind

    def _command(self, words: Sequence[str]) -> tuple[list[str], Said]:
        """The program's words: those behind the flags, or those of --launch-cmd, which XLearning divided at blanks, with no shell."""
        if words:
            return list(words), Said(" ".join(words), "the command")
        if (given := self.table.get("launch.cmd")) is None or not given.text.split():
            raise BadInput(
                "there is no command", mend="write it behind the flags, or --launch-cmd COMMAND", anchor="no-job"
            )
        return given.text.split(), given

    def _refuse(self) -> None:
        idle = []
        for key, said in self.table.items():
            if key in REFUSED and not (
                said.text.strip().lower() == "false" or (key == "interresult.dir" and said.text == "/interResult_")
            ):
                raise not_here(said, *REFUSED[key])
            if MACHINERY.fullmatch(key) and said.strong:
                idle.append(f"xlearning.{key}")
        if idle:
            self.draft.remark(f"{', '.join(idle)}: nothing to do here; it is about how XLearning itself works")
        if (renames := self.table.get("inputfile.rename")) is not None and flag(renames):
            self.draft.remark(
                "isRenameInputFile: nothing to do here; inputs keep their directories, so equal names do not clash"
            )
        kind = self.table.get("container.type")
        if kind is not None and only(kind, {"yarn": False, "docker": True}) and "docker.image" not in self.table:
            raise BadInput(
                "a docker container has no image",
                place=kind.origin,
                mend="add --docker-image IMAGE",
                anchor="wrong-value",
            )

    def _names(self) -> None:
        say, table = self.draft.say, self.table
        say(("framework",), "xlearning", self.always)
        say(("annotations", "xlearning.app-type"), self.kind, table["app.type"])
        from trainmaster.client.spec.describe import program

        self.name = plain(program(self.command), "xlearning")
        if (said := table.get("app.name")) is not None and said.text.strip():
            say(("name",), plain(said.text, "xlearning"), said)
            if plain(said.text, "") != said.text:
                say(("annotations", "xlearning.app-name"), said.text, said)
        if "app.queue" in table:
            say(("engines", "yarn", "queue"), table["app.queue"].text, table["app.queue"])
        say(("priority",), only(table["app.priority"], PRIORITIES, lower=False), table["app.priority"])
        if "job.labelname" in table:
            say(("engines", "yarn", "label"), table["job.labelname"].text, table["job.labelname"])
        if (image := table.get("docker.image")) is not None and self._docker():
            host, port = (
                table[key].text if key in table else "" for key in ("docker.registry.host", "docker.registry.port")
            )
            registry = f"{host}{f':{port}' if port else ''}/" if host else ""
            say(("environment", "image"), registry + image.text, image)

    def _docker(self) -> bool:
        """Whether the image is to be used: in a site file it stands for those who ask for docker."""
        kind = self.table.get("container.type")
        return self.table["docker.image"].strong if kind is None else kind.text.strip().lower() == "docker"

    def _roles(self) -> list[str]:
        """Roles, how many of each, what each task has."""
        table, say = self.table, self.draft.say
        workers, ps = count(table["worker.num"], 1), self._ps()
        distributed = self.kind == "tensorflow" and (ps > 0 or flag(table["tf.distribution.strategy"]))
        cluster = "tensorflow" if distributed else "pytorch" if self.kind == "disttorch" else ""
        if cluster:
            say(("annotations", CLUSTER), cluster, table["app.type"], table["ps.num"])
            say(("gang",), True, self.always)
        if cluster == "pytorch":
            say(("roles", "worker", "restart", "scope"), "group", self.always)
        sizes: dict[str, tuple[int, str, str]] = {}  # role -> how many, the key of its memory, of which kind it is
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
            say(("completion", "failures"), round((allowed + 0.5) / workers, 6), table["container.maxFailures.rate"])
        return list(sizes)

    def _ps(self) -> int:
        said = self.table["ps.num"]
        if count(said) and self.kind != "tensorflow":
            if not said.strong:  # of the site: XLearning, too, gave them to TensorFlow alone
                return 0
            raise not_here(
                said,
                f"a ps beside the type {self.kind}",
                "--app-type tensorflow has them; or name the roles in a job file",
            )
        return count(said)

    def _chief(self) -> bool:
        said = self.table.get("chief.worker.memory")
        if said is None or memory(said) == memory(self.table["worker.memory"]):
            return False
        if self.kind == "tensorflow":
            return True
        if said.strong:
            raise not_here(said, f"a chief of the type {self.kind}", "--app-type tensorflow has one")
        return False

    def _role(self, role: str, number: int, asked: Said, kind: str) -> None:
        table, at = self.table, ("roles", role)
        say = self.draft.say
        how_many = table["ps.num" if kind == "ps" else "worker.num"]
        say((*at, "replicas"), number, how_many)
        say((*at, "workdir"), "copy", self.always)
        say((*at, "resources", "memory"), memory(asked), asked)
        say((*at, "resources", "cores"), count(table[f"{kind}.cores"], 1), table[f"{kind}.cores"])
        if gpus := count(table[f"{kind}.gpus"]):
            say((*at, "resources", "gpus"), gpus, table[f"{kind}.gpus"])
        part, least = table["memory.overhead.fraction"], table["memory.overhead.minimum"]
        if part.origin != DEFAULT or least.origin != DEFAULT:
            size = int(memory(asked)[:-3]) * (1024 if memory(asked).endswith("GiB") else 1)
            say(
                (*at, "resources", "overhead"), f"{max(count(least), math.ceil(size * fraction(part)))}MiB", part, least
            )
        attempts, more = table.get("app.max.attempts"), table[f"{kind}.mem.autoscale"]
        if attempts is not None:
            say((*at, "restart", "limit"), count(attempts, 1) - 1, attempts)
        if attempts is not None or more.origin != DEFAULT:
            say((*at, "retry_memory"), round(1 + fraction(more, 99), 6), more)

    # -- code and surroundings --

    def _code(self) -> None:
        say, table = self.draft.say, self.table
        files = [self._file(path) for path in _listed(table.get("files"))]
        archives = [self._archive(one, table["archiveFiles"]) for one in _listed(table.get("archiveFiles"))]
        cache = []
        for one in _listed(table.get("cacheFile")):
            path, _, name = one.partition("#")
            if (name or path).endswith(ARCHIVES) or path.endswith(ARCHIVES):
                raise not_here(
                    Said(one, table["cacheFile"].origin), "an archive that stays packed", "--cacheArchive unpacks it"
                )
            cache.append(f"{self._remote(path)}#{name or os.path.basename(path.rstrip('/'))}")
        for one in _listed(table.get("cacheArchive")):
            archives.append(self._archive(one, table["cacheArchive"], remote=True))
        jars = [self._file(path) for path in _listed(table.get("jars"))]
        say(("files",), files + jars, *(table[key] for key in ("files", "jars") if key in table), self.always)
        if archives:
            say(("archives",), archives, *(table[key] for key in ("archiveFiles", "cacheArchive") if key in table))
        if cache:
            say(("cache",), cache, table["cacheFile"])
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
        """A local file, under its last name in the working directory."""
        path = path.removeprefix("file://").rstrip("/")
        name = os.path.basename(path)
        return path if path in (name, f"./{name}") else f"{path}#{name}"

    def _archive(self, one: str, said: Said, remote: bool = False) -> str:
        path, _, name = one.partition("#")
        if not path.endswith(ARCHIVES):
            raise not_here(
                Said(one, said.origin), "an archive of this kind", f"pack it as one of {', '.join(ARCHIVES)}"
            )
        return f"{self._remote(path) if remote else path.removeprefix('file://')}#{name or os.path.basename(path)}"

    def _remote(self, path: str) -> str:
        return location(path, self.engine, self.user)

    def _surroundings(self, role: str) -> None:
        """The variables and nodes of a role."""
        say, table, at = self.draft.say, self.table, ("roles", role)
        for name, text, said in self._variables("container.env"):
            say((*at, "env", name), text, said)
        key = "ps.nodeLabelExpression" if role == "ps" else "worker.nodeLabelExpression"
        if key in table:
            say((*at, "nodes", "labels", "label"), table[key].text, table[key])
        if "host.blacklist" in table:
            say((*at, "nodes", "exclude"), _listed(table["host.blacklist"]), table["host.blacklist"])

    def _variables(self, kind: str) -> Iterator[tuple[str, str, Said]]:
        """xlearning.container.env.NAME=VALUE, and Hbox's container.env=A=1|B=2."""
        for key, said in self.table.items():
            if key.startswith(f"{kind}."):
                yield key.removeprefix(f"{kind}."), said.text, said
            elif key == kind:
                for pair in said.text.split("|"):
                    name, mark, text = pair.partition("=")
                    if not mark or not name:
                        raise wrong(said, "NAME=VALUE|NAME=VALUE")
                    yield name, text, said

    def _limits(self, roles: Sequence[str]) -> None:
        say, table = self.draft.say, self.table
        say(("master", "resources", "memory"), memory(table["am.memory"]), table["am.memory"])
        say(("master", "resources", "cores"), count(table["am.cores"], 1), table["am.cores"])
        for name, text, said in self._variables("am.env"):
            say(("master", "env", name), text, said)
        if "am.nodeLabelExpression" in table:
            say(
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
                say(path, read(table[key]), table[key])

    # -- data --

    def _places(self, kind: str) -> Iterator[tuple[str, str, str, Said]]:
        """(name, URL, local path, where it was said) of each --input or --output; without # it is at `input` or `output`."""
        taken: dict[str, str] = {}
        for option in (kind, f"s3{kind}"):
            for said in self.repeated[option]:
                remote, mark, local = said.text.rpartition("#") if "#" in said.text else (said.text, "", "")
                local = (local if mark else kind).strip().removeprefix("./").rstrip("/")
                if not remote or not local:
                    raise wrong(said, "REMOTE#LOCAL")
                if "," in remote or taken.setdefault(local, remote) != remote:
                    instead = f"give each a directory of its own: --{option} A#{local}/a --{option} B#{local}/b"
                    raise not_here(said, f"several remote paths in one local directory, {local},", instead)
                url = remote if option == kind or "://" in remote else f"s3://{remote.lstrip('/')}"
                yield plain(local, kind), self._remote(url), local, said

    def _inputs(self) -> None:
        say, table = self.draft.say, self.table
        strategy = self._strategy("input.strategy", "input.stream")
        how = only(strategy, STRATEGIES)
        for name, url, path, said in self._places("input"):
            at = ("inputs", name)
            say((*at, "url"), url, said)
            say((*at, "as"), how, strategy)
            if path != name:
                say((*at, "local"), path, said)
            if how == "list" and flag(table["placeholder.whole.enable"]):
                say((*at, "split"), "whole", table["placeholder.whole.enable"])
            if how == "stream":
                self._stream(at)

    def _stream(self, at: tuple[str, str]) -> None:
        say, table = self.draft.say, self.table
        form = table["inputformat.class"]
        text = form.text.rpartition(".")[2] == "TextInputFormat"
        say((*at, "format"), "lines" if text else f"{HADOOP}{form.text}", form)
        if (epochs := count(table["stream.epoch"], 1)) > 1:
            say((*at, "epochs"), epochs, table["stream.epoch"])
        if flag(table["input.stream.shuffle"]):
            say((*at, "shuffle"), True, table["input.stream.shuffle"])
        if not text and flag(table["inputformat.cache"]):
            limit = table["inputformat.cachesize.limit"]
            say((*at, "options", "cache"), f"{count(limit)}MiB", limit, table["inputformat.cache"])

    def _strategy(self, key: str, enable: str) -> Said:
        """How data goes; Hbox also has a switch for streams."""
        said = self.table.get(enable)
        return Said("STREAM", said.origin, said.strong) if said is not None and flag(said) else self.table[key]

    def _outputs(self, roles: Sequence[str]) -> None:
        say, table = self.draft.say, self.table
        strategy = self._strategy("output.strategy", "out.stream")
        how = only(strategy, {"upload": "upload", "stream": "stream"})
        writer = self._writer(roles)
        alone = writer or sum(role != "ps" for role in roles) == 1 == count(table["worker.num"], 1)
        for name, url, path, said in self._places("output"):
            if "chief" in roles and not writer:
                self.draft.remark(f"--output: folders are named by our tasks: {self._folders(roles)}")
            at = ("outputs", name)
            say((*at, "url"), url, said)
            say((*at, "as"), how, strategy)
            if path != name:
                say((*at, "local"), path, said)
            if writer:
                say((*at, "from"), writer, table["output.index"])
            if how == "stream" and table["outputformat.class"].text.rpartition(".")[2] != "TextMultiOutputFormat":
                say((*at, "format"), f"{HADOOP}{table['outputformat.class'].text}", table["outputformat.class"])
            if alone and not flag(table["createcontainerid.dir"]):
                say((*at, "layout"), "flat", table["createcontainerid.dir"])
            say(("saves", "names"), "interResult", self.always)
            say(("saves", "keep"), 1000, self.always)

    def _folders(self, roles: Sequence[str]) -> str:
        """Where the outputs of a job with a chief lie, by the INDEX that its programs are told."""
        last = count(self.table["worker.num"], 1) - 1 - ("evaluator" in roles)
        others = f"INDEX 1 to {last} in worker-0 to worker-{last - 1}" if last > 1 else "INDEX 1 in worker-0"
        return f"of INDEX 0 in chief-0, of {others}" + (
            ", of the evaluator in evaluator-0" if "evaluator" in roles else ""
        )

    def _writer(self, roles: Sequence[str]) -> str:
        """The one task that writes outputs, "" where all do; a chief is worker 0."""
        said = self.table["output.index"]
        if said.text.strip() == "-1":
            return ""
        return self._worker(count(said), roles)

    def _worker(self, index: int, roles: Sequence[str]) -> str:
        """The task that XLearning called worker `index`: the first may be the chief, the last the evaluator."""
        if "evaluator" in roles and index == count(self.table["worker.num"], 1) - 1:
            return "evaluator:0"
        if "chief" in roles:
            return "chief:0" if index == 0 else f"worker:{index - 1}"
        return f"worker:{index}"

    # -- TensorBoard --

    def _board(self, roles: list[str]) -> None:
        """Where all reach the logs, a task of its own that does not count; else in the worker that writes them, as XLearning had it."""
        table, say = self.table, self.draft.say
        enabled, logs, index = table["tf.board.enable"], table["tf.board.log.dir"], table["tf.board.worker.index"]
        if not flag(enabled):
            return
        if self.kind != "tensorflow":
            if enabled.strong:
                instead = "leave it out; a board is a role of its own in a job file, with ports and links"
                raise not_here(enabled, f"VisualDL, the board of the type {self.kind},", instead)
            return
        more = f" --reload_interval {count(table['tf.board.reload.interval'])}"
        program = table["tf.board.path"].text
        if "://" in logs.text or logs.text.startswith("/"):
            at = ("roles", "tensorboard")
            say((*at, "command"), board(self._remote(logs.text), self.engine, more, program), enabled, logs)
            say((*at, "counts"), False, self.always)
            say((*at, "ports"), ["board"], self.always)
            say(("links", "TensorBoard"), "tensorboard:0:board/", enabled)
            return
        task = self._worker(count(index), roles)
        role, _, number = task.partition(":")
        line = board(logs.text, self.engine, more, program)
        self.exports.append(
            f'mkdir -p {shlex.quote(logs.text)}; if [ "$TF_ROLE:$TF_INDEX" = worker:{count(index)} ]; then {line} & fi'
        )
        say(("roles", role, "ports"), ["board"], self.always)
        say(("links", "TensorBoard"), f"{role}:{number}:board/", enabled)
        if (kept := table.get("tf.board.history.dir")) is not None:
            say(("outputs", "board", "url"), f"{self._remote(kept.text).rstrip('/')}/{self.name}", kept)
            for key, value in (
                ("from", task),
                ("local", logs.text.removeprefix("./")),
                ("layout", "flat"),
                ("overwrite", True),
            ):
                say(("outputs", "board", key), value, kept)

    def _line(self, role: str) -> Any:
        """The command: its words as they are, or, where something is to be set before, a line for the shell."""
        exports = [one for one in self.exports if role != "ps" or not one.startswith("mkdir")]
        return "; ".join([*exports, f"exec {shlex.join(self.command)}"]) if exports else list(self.command)


def _before(variable: str) -> str:
    """Return a list of paths as it was, for a shell, to stand before one more: an empty entry would mean the working directory."""
    return f'"${{{variable}:+${variable}:}}"'


def _behind(variable: str) -> str:
    return f'"${{{variable}:+:${variable}}}"'


def _listed(said: Said | None) -> list[str]:
    return [one.strip() for one in said.text.split(",") if one.strip()] if said is not None else []
