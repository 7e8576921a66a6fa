"""The model of a job: frozen data, and for every key its meaning, its shape and its default, written once.

The attributes are the keys of the job file (a trailing underscore where Python reserves the word). Each carries, as attrs metadata, the
`shape` that `reading` reads and writes it by, its `default` as text and its `doc`; the reference, the help texts and the messages are made
from these. A default that depends on other keys is filled in at reading, so a `Job` is always complete; the classes hold the plain default.
Make jobs with `reading.job_from`, not by calling the classes.

Sizes are bytes, durations seconds (None: none).
"""

# `key` makes a field of a class, as `attrs.field` does.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from trainmaster.core.spec.threads import MACHINE

VERSION = "1.0"
MIB = 2**20
GIB = 2**30
DEFAULT_MEMORY = GIB  # bytes of a program that asks for none

# Frameworks whose tasks form one group that cannot go on without a member; a TensorFlow strategy cannot be known from outside.
COLLECTIVE = frozenset({"pytorch", "jax"})
# Roles that serve the others and are stopped when these have ended.
SERVING = frozenset({"ps", "scheduler"})
# The role that shows event files to people.
BOARD, BOARD_LABEL = "tensorboard", "TensorBoard"  # the role, and the label of the link to its page
EVENT_FILES = "tensorboard"  # in the storage of a job of this machine: those of tasks with directories of their own, kept at the end
# Roles whose end the job does not wait for.
NOT_COUNTING = SERVING | {"evaluator"}

COUNTED_LATER = "records://"  # the URL of an input whose records the program counts
HADOOP = "hadoop:"  # a format that a Java class reads or writes
COPIED, SHARED = "copy", "share"
LONGEST_WORD = (
    32 * 4096
)  # bytes of a word of a command line, or of a variable, with its end (MAX_ARG_STRLEN, execve(2))
RUNNING, SUCCEEDED = "running", "succeeded"
NAN = "nan"  # of `stop_on`
STATIC_INPUTS = frozenset({"download", "list", "stream"})  # split over the tasks when a generation forms


def key(doc: str, shape: str, default_text: str = "", /, *, of: type[Any] | None = None, **options: Any) -> Any:
    """Return the field of a key of the job file: its meaning, its shape, its default as text. `of`: the class of its section(s)."""
    return attrs.field(metadata={"doc": doc, "shape": shape, "default": default_text, "of": of}, **options)


class Section:
    """Equality and representation of all sections, written once: attrs would make them for twenty classes, which costs every start 5 ms."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[Any]

    def __eq__(self, other: object) -> bool:
        if (
            getattr(other, "__attrs_attrs__", None) is not self.__attrs_attrs__
        ):  # a subclass without keys of its own has the same
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _attributes(type(self)))

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in _attributes(type(self)))
        return f"{type(self).__name__}({', '.join(fields)})"

    __hash__ = None  # type: ignore[assignment]


def _attributes(of: type[Any]) -> list[str]:
    return [field.name for field in attrs.fields(of)]


@attrs.frozen(slots=True, eq=False, repr=False)
class Environment(Section):
    """The environment that the programs run in. Without any key: that of the machine."""

    archive: str = key(
        "a conda-pack, venv-pack or relocatable Python archive, cached by content", "text", "none", default=""
    )
    image: str = key("a container image, where the engine runs images", "text", "none", default="")
    path: str = key(
        "a directory with an environment that is on every node, or on this machine", "text", "none", default=""
    )
    requirements: str = key(
        "a requirements file: what it lists is installed at submit, once by its content", "text", "none", default=""
    )


@attrs.frozen(slots=True, eq=False, repr=False)
class Replicas(Section):
    """The number of tasks of a role; a plain number is both minimum and maximum."""

    min: int = key("enough tasks to begin and to go on with", "positive count", "1", default=1)
    max: int = key("at most so many tasks, when there is room", "positive count", "min", default=1)
    start: int = key(
        "so many tasks from the beginning on, no more and no less until `tm scale` asks for others; 0: as many as there is room for",
        "count", "0", default=0,
    )  # fmt: skip

    @property
    def elastic(self) -> bool:
        return self.min != self.max

    @property
    def least(self) -> int:
        """Enough tasks to begin with."""
        return self.start or self.min

    @property
    def most(self) -> int:
        """The number of tasks that the job begins with where there is room."""
        return self.start or self.max


@attrs.frozen(slots=True, eq=False, repr=False)
class Resources(Section):
    """The resources of each container for the program."""

    cores: float = key("processor cores", "positive number", "1", default=1.0)
    memory: int | None = key(
        "what the program may use; containers ask for `overhead` more",
        "positive size or none",
        "1GiB; on this machine the program has no limit, and the job waits in line for 1GiB",
        default=None,
    )
    gpus: int = key("accelerators", "count", "0", default=0)
    extended: dict[str, int] = key(
        "other resources that the cluster counts, by their names there, like {yarn.io/fpga: 1}",
        "counts",
        "{}",
        factory=dict,
    )
    overhead: int = key(
        "memory asked for beside the program's: agent, warm template; copies of states that `runtime.checkpoint.save` keeps count as the "
        "program's",
        "size", "5 % of memory, at least 64MiB and at most 1GiB", default=64 * MIB,
    )  # fmt: skip

    @property
    def program_memory(self) -> int:
        """The bytes that a container asks for its program."""
        return DEFAULT_MEMORY if self.memory is None else self.memory


@attrs.frozen(slots=True, eq=False, repr=False)
class Restart(Section):
    """The tasks that restart when one fails, and the limits of their restarts."""

    scope: str = key(
        "group: the rest is stopped and a new generation formed; task: it alone; never",
        "group | task | never",
        "group for pytorch, and for shards with a checkpoint, else task (set group for MultiWorkerMirroredStrategy)",
        default="task",
    )  # fmt: skip
    limit: int = key(
        "restarts at the program's fault since its progress was beyond its best so far", "count", "3", default=3
    )
    total: int = key(
        "such restarts in all while its progress never gets beyond its best, whatever checkpoint sets and parts of outputs it stores",
        "count", "100, or limit where that is more", default=100,
    )  # fmt: skip


@attrs.frozen(slots=True, eq=False, repr=False)
class Stop(Section):
    """The way a program is stopped."""

    signal: str = key("the signal that asks its main process to end", "signal", "SIGTERM", default="SIGTERM")
    grace: float = key("time until it is killed", "duration", "10s", default=10.0)
    warn: str = key(
        "a signal sent, if the program handles it, when the container is about to be taken back",
        "signal or none",
        "none",
        default="",
    )


@attrs.frozen(slots=True, eq=False, repr=False)
class Nodes(Section):
    """The nodes that containers may be on."""

    labels: dict[str, str] = key("labels that a node must have", "labels", "{}", factory=dict)
    exclude: tuple[str, ...] = key("nodes not to use", "texts", "[]", default=())


@attrs.frozen(slots=True, eq=False, repr=False)
class Feed(Section):
    """Batches that a Spark application, or another feeder, puts into the memory of each task of a role."""

    memory: int = key(
        "the ring of each task, in shared memory; a batch may have a third of it; containers ask for it beside the program's memory",
        "positive size", "256MiB", default=256 * MIB,
    )  # fmt: skip
    agreed: bool = key(
        "whether all tasks read the same number of rows, so that none waits for a peer that has no more; false: first come, first served",
        "flag", "true", default=True,
    )  # fmt: skip
    share: str = key(
        "another role with a feed of this name: the tasks of both read that one", "text", "none", default=""
    )


@attrs.frozen(slots=True, eq=False, repr=False)
class Role(Section):
    """One kind of process in the job."""

    name: str = key("the role's name", "name")
    command: str | tuple[str, ...] = key(
        "the program: text is run by /bin/sh -c, a list as it is, without a shell", "command"
    )
    replicas: Replicas = key("how many tasks, a number or {min, max}", "replicas", "1", of=Replicas, factory=Replicas)
    processes: int | str = key(
        "copies of the program in one container: a number, or gpu for one for each GPU", "processes", "1", default=1
    )
    threads: int | str = key(
        "threads of each program's libraries (OMP_NUM_THREADS): cores, the task's divided by its processes; machine, this "
        "machine's divided by all tasks on it; or a number",
        "threads", "cores where resources.cores is set and on clusters, else machine", default=MACHINE,
    )  # fmt: skip
    resources: Resources = key("what each container has", "section", of=Resources, factory=Resources)
    restart: Restart = key("what restarts, and how often", "restart", of=Restart, factory=Restart)
    env: dict[str, str | None] = key(
        "variables of the program; one without a value is taken from the submitter", "env", "{}", factory=dict
    )
    counts: bool = key(
        "whether the job waits for its tasks to succeed",
        "flag",
        "false for ps, scheduler, evaluator, else true",
        default=True,
    )
    after: dict[str, str] = key(
        "roles that must be running or have succeeded before this one starts", "after", "{}", factory=dict
    )
    image: str = key("a container image of its own", "text", "environment.image", default="")
    prepare: str | tuple[str, ...] = key(
        "a command run in each container once, before the first start", "command or none", "none", default=""
    )
    stop: Stop = key("how the program is stopped", "stop", of=Stop, factory=Stop)
    warm: bool = key(
        "whether a restarted Python program begins with its imports done, as a fork of a process that waits for that",
        "flag", "true", default=True,
    )  # fmt: skip
    ports: dict[str, int] = key(
        "ports it listens on, set as TRAINMASTER_PORT_<NAME>: names, or {name: number}", "ports", "{}", factory=dict
    )
    feed: dict[str, Feed] = key(
        "feeds that its program reads by `runtime.feed.open(NAME)`, by name, like {input: {memory: 256MiB}}",
        "sections by name", "{}", of=Feed, factory=dict,
    )  # fmt: skip
    nodes: Nodes = key("where its containers may be", "section", of=Nodes, factory=Nodes)
    priority: int = key("which role gets containers first; higher first", "number", "0", default=0)
    workdir: str = key(
        "copy: each task has a directory of its own, filled from `files`; share: the submitter's, on the local engine alone",
        "copy | share", "copy with a download input, an output or a checkpoint, else share", default=SHARED,
    )  # fmt: skip
    stragglers: str = key(
        "a task that is much slower than its peers for a while is named; replace: it also restarts in another container, free of charge",
        "name | replace", "name", default="name",
    )  # fmt: skip
    retry_memory: float | None = key(
        "after out-of-memory the next attempt has so many times the memory", "factor or none", "none", default=None
    )

    @property
    def serves(self) -> bool:
        """Tell whether the role serves the others, and is stopped once they have ended."""
        return self.name in SERVING

    @property
    def idles(self) -> bool:
        """Tell whether the role has work only while somebody looks at its page: it never stalls, and it takes no share of the cores."""
        return self.name == BOARD


@attrs.frozen(slots=True, eq=False, repr=False)
class Input(Section):
    """Data that the programs read."""

    name: str = key("the input's name", "name")
    url: str | tuple[str, ...] = key(
        "where it is, or a list of such places, whose files are one input; may hold *, ? and [..], or name a table: "
        "sqlite:///FILE?table=NAME; of shards also records://COUNT/SIZE: numbers of records, which the program reads itself; "
        "records://: the program also counts them, by ElasticDL's API",
        "text or texts",
    )
    as_: str = key(
        "download: files into ./NAME; list: their URLs; stream: records on stdin; shards: leased ranges; mount: the path itself; "
        "follow: files into ./NAME while the program runs, with those that come later and those that grow",
        "download | list | stream | shards | mount | follow", "download", default="download",
    )  # fmt: skip
    to: tuple[str, ...] = key("the roles that read it", "texts", "every role that counts", default=())
    local: str = key("its path in the working directory", "relative path", "its name", default="")
    format: str = key(
        "the format of its records: auto, lines, jsonl, csv, bytes or parquet; for a stream also hadoop:CLASS, an InputFormat; "
        "for shards also recordio or tfrecord",
        "text",
        "auto, by the files' endings or first bytes",
        default="auto",
    )
    options: dict[str, str] = key(
        "of a hadoop: format: records, cache, heap, jars, and settings of Hadoop, whose names have dots",
        "labels",
        "{}",
        factory=dict,
    )
    epochs: int = key("how often every record is read, for stream and shards", "positive count", "1", default=1)
    shuffle: bool = key("whether files or ranges are dealt in a random order", "flag", "false", default=False)
    seed: int = key("of the random order", "count", "0", default=0)
    poison: int = key(
        "of shards: how many attempts must fail while they read one until it is set aside, which leaves its records out; 0: never",
        "count", "3", default=3,
    )  # fmt: skip
    shard_records: int = key(
        "of shards: records of one, about, where files can be cut so; 0: by the size of the data",
        "count", "0", default=0,
    )  # fmt: skip
    split: str = key(
        "again: each generation divides the files anew; whole: every task has all",
        "again | whole", "again; an elastic role must say it for download, list and stream", default="again",
    )  # fmt: skip
    key: str = key(
        "of a table: the column by whose ranges it is cut, of whole numbers, unique and without nulls",
        "text", "the table's primary key", default="",
    )  # fmt: skip

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def location(self) -> str:
        """Return the URL as one text; several have commas between them, as Hadoop writes them."""
        return ",".join(self.urls)


# `as` -> the keys of an input that act on it, beside `url`, `as` and `to`.
INPUT_KEYS: dict[str, tuple[str, ...]] = {
    "download": ("local", "split"),
    "list": ("split",),
    "stream": ("format", "options", "epochs", "shuffle", "seed", "split"),
    "shards": ("format", "epochs", "shuffle", "seed", "poison", "shard_records", "key"),
    "mount": ("local",),
    "follow": ("local",),
}
_ALWAYS = ("name", "url", "as_", "to")


def idle_keys(source: Input) -> list[str]:
    """Return the keys of an input that its user has set, and that do nothing for its `as`."""
    return [
        field.name
        for field in attrs.fields(Input)
        if field.name not in (*_ALWAYS, *INPUT_KEYS[source.as_])
        and getattr(source, field.name) != getattr(_PLAIN, field.name)
    ]


_PLAIN = Input("", "")


@attrs.frozen(slots=True, eq=False, repr=False)
class Output(Section):
    """Data that the programs write."""

    name: str = key("the output's name", "name")
    url: str = key("where it goes", "text")
    from_: str = key(
        "the role, or the task like worker:0, that writes it", "role or task", "every role that counts", default=""
    )
    as_: str = key("upload: files of ./NAME; stream: records on stdout", "upload | stream", "upload", default="upload")
    format: str = key(
        "how a stream is stored: auto, as it was printed, or hadoop:CLASS, an OutputFormat",
        "text",
        "auto",
        default="auto",
    )
    options: dict[str, str] = key(
        "of a hadoop: format: records, part, heap, jars, and settings of Hadoop, whose names have dots",
        "labels",
        "{}",
        factory=dict,
    )
    layout: str = key(
        "task: <url>/<role>-<index>/; flat: all into <url>, equal names refused", "task | flat", "task", default="task"
    )
    overwrite: bool = key("whether it may replace what is there", "flag", "false", default=False)
    required: str = key(
        "all: each task that writes it must have made its path; any: one task must have put a file there, or the job fails; none",
        "all | any | none", "all", default="all",
    )  # fmt: skip
    local: str = key("its path in the working directory", "relative path", "its name", default="")


@attrs.frozen(slots=True, eq=False, repr=False)
class Checkpoint(Section):
    """A path that survives restarts: uploaded while training goes on, restored before an attempt starts."""

    path: str = key("the file or directory in the working directory", "relative path")
    url: str = key("where the sets go", "text", "the job's storage", default="")
    every: float = key("time between two sets", "interval", "5m", default=300.0)
    keep: int = key("how many sets are kept", "positive count", "3", default=3)


@attrs.frozen(slots=True, eq=False, repr=False)
class Tensorboard(Section):
    """The event files that TensorBoard shows, in a task `tensorboard:0` of its own, which does not count."""

    logs: str = key(
        "the directory with event files: a URL or an absolute path that all tasks reach, or, on this machine, one in their directory",
        "path or URL",
    )
    memory: int = key("what TensorBoard may use", "positive size", "1GiB", default=GIB)

    @property
    def is_shared(self) -> bool:
        """Tell whether the directory is one place for all tasks, else one in each task's working directory."""
        return self.logs.startswith("/") or "://" in self.logs


@attrs.frozen(slots=True, eq=False, repr=False)
class Timeouts(Section):
    """The longest time that the job waits for each thing."""

    start: float | None = key(
        "from a container being granted to its program running; while data are fetched, for each sixteenth of them; in Spark, also for "
        "executors that the application lacks",
        "duration or none",
        "10m",
        default=600.0,
    )
    stall: float | None = key("without progress, before a task is stalled", "duration or none", "30m", default=1800.0)
    job: float | None = key("for the whole job", "duration or none", "none", default=None)
    finish: float | None = key(
        "for peers without progress, once a task of their group succeeded", "duration or none", "10m", default=600.0
    )
    storage: float | None = key(
        "for a storage to come back: the job's own, its outputs', its inputs'", "duration or none", "10m", default=600.0
    )
    grace: float = key(
        "an agent cut off so long stops its program; its attempt is written off then", "interval", "30s", default=30.0
    )


@attrs.frozen(slots=True, eq=False, repr=False)
class Completion(Section):
    """The condition under which the job has succeeded. Without either key: all tasks that count have succeeded."""

    first: str = key("a role: the job succeeds with the first task of it", "text or none", "none", default="")
    failures: float | None = key(
        "the part of independent tasks that may fail, 0 to 1", "part or none", "none", default=None
    )


@attrs.frozen(slots=True, eq=False, repr=False)
class Network(Section):
    """The network by which the tasks of a job on a cluster reach each other; a plain text is its interface."""

    interface: str = key(
        "the name of an interface, or a range of addresses (CIDR)", "text", "that of the way to the master", default=""
    )
    transport: str = key(
        "by what NCCL and UCX send: sockets, or RDMA over InfiniBand or RoCE; auto is what they find by themselves",
        "auto | tcp | rdma", "auto", default="auto",
    )  # fmt: skip


@attrs.frozen(slots=True, eq=False, repr=False)
class Logs(Section):
    """The part of the programs' output that is kept."""

    limit: int = key("of each attempt: the beginning and the newest, the gap marked", "size", "2GiB", default=2 * GIB)
    first: int = key("of the beginning", "size", "256MiB", default=256 * MIB)
    every: float = key("a piece is stored so often", "duration", "5s", default=5.0)
    piece: int = key("or when it is so large", "size", "4MiB", default=4 * MIB)


@attrs.frozen(slots=True, eq=False, repr=False)
class Saves(Section):
    """Outputs saved while the programs run."""

    every: float | None = key("time between two saves; none: only when asked", "interval or none", "none", default=None)
    keep: int = key("how many are kept", "positive count", "3", default=3)
    names: str = key(
        "time: _saves/2026-11-22T03-43-00Z; interResult: interResult_2026_11_22_03_43_00, as XLearning had them",
        "time | interResult", "time", default="time",
    )  # fmt: skip


@attrs.frozen(slots=True, eq=False, repr=False)
class Scale(Section):
    """The growth of roles with a minimum and a maximum."""

    grow: bool = key("whether the job grows onto containers that become free", "flag", "true", default=True)
    every: float = key("least time between two changes of members that nobody forced", "duration", "1m", default=60.0)
    auto: str = key(
        "whether the number of members follows from what each brings: on; advise: it is only said what would be done; off",
        "off | advise | on", "off", default="off",
    )  # fmt: skip


@attrs.frozen(slots=True, eq=False, repr=False)
class Secret(Section):
    """The source of a secret variable's value at submit. Without either key: the submitter's variable of the same name."""

    env: str = key("another variable of the submitter", "text or none", "its name", default="")
    file: str = key("a file of the submitter, its last line break left out", "text or none", "none", default="")


@attrs.frozen(slots=True, eq=False, repr=False)
class Link(Section):
    """A page that a program serves, shown beside the job; written as role:index:port/path."""

    role: str = key("the role that serves it", "text")
    index: int = key("the task's index", "count", "0", default=0)
    port: str = key("the name of one of the role's ports", "text", default="")
    path: str = key("the path of the page", "text", default="")
    scheme: str = key("how it is reached", "http | https", "http", default="http")


@attrs.frozen(slots=True, eq=False, repr=False)
class Master(Section):
    """The container of the job's master, where the engine gives it one."""

    resources: Resources = key("what it has", "section", of=Resources, factory=Resources)
    env: dict[str, str | None] = key("variables of the master", "env", "{}", factory=dict)
    nodes: Nodes = key("where it may be", "section", of=Nodes, factory=Nodes)


@attrs.frozen(slots=True, eq=False, repr=False, kw_only=True)
class Job(Section):
    """A job, as a user submits it."""

    name: str = key(
        "the job's name, the beginning of its id",
        "name",
        "the file's name, for job.yaml its directory's; else the program's",
        default="job",
    )
    framework: str = key(
        "how programs learn of their peers: generic, pytorch, tensorflow, xlearning, or one that a package adds",
        "text",
        "generic",
        default="generic",
    )
    environment: Environment = key("what the programs run in", "environment", of=Environment, factory=Environment)
    roles: dict[str, Role] = key("the kinds of processes", "sections by name", of=Role)
    files: tuple[str, ...] = key(
        "copied to each task that has a directory of its own, at most 2GiB; PATH or PATH#NAME; .gitignore is honoured; "
        "a file named here may be executed",
        "texts",
        "[.]",
        default=(".",),
    )
    archives: tuple[str, ...] = key(
        "archives of this machine, unpacked in the working directory; PATH or PATH#NAME", "texts", "[]", default=()
    )
    cache: tuple[str, ...] = key(
        "remote files, folders and archives, cached on each node; URL or URL#NAME", "texts", "[]", default=()
    )
    inputs: dict[str, Input] = key("data that the programs read", "sections by name", "{}", of=Input, factory=dict)
    outputs: dict[str, Output] = key("data that the programs write", "sections by name", "{}", of=Output, factory=dict)
    checkpoint: Checkpoint | None = key(
        "a path that survives restarts", "checkpoint", "none", of=Checkpoint, default=None
    )
    tensorboard: Tensorboard | None = key(
        "event files that TensorBoard shows", "tensorboard", "none", of=Tensorboard, default=None
    )
    timeouts: Timeouts = key("how long is waited", "section", of=Timeouts, factory=Timeouts)
    completion: Completion = key(
        "all, {first: ROLE} or {failures: PART}", "completion", "all", of=Completion, factory=Completion
    )
    stop_on: str = key(
        "nan: the job fails, and nothing restarts, when the newest value of a metric that a program reports is nan or infinite; none",
        "none | nan", "none", default="none",
    )  # fmt: skip
    gang: bool = key(
        "whether tasks start together or not at all",
        "flag", "true for pytorch and tensorflow with more than one task, else false", default=False,
    )  # fmt: skip
    logs: Logs = key("what is kept of the programs' output", "section", of=Logs, factory=Logs)
    storage: str = key(
        "where the job's events, logs and state are kept",
        "text",
        "the engine's place; local: the state directory",
        default="",
    )
    saves: Saves = key("outputs saved while running", "section", of=Saves, factory=Saves)
    scale: Scale = key("how elastic roles grow", "section", of=Scale, factory=Scale)
    network: Network = key(
        "by what tasks reach each other, an interface or {interface, transport}; not used on the local engine",
        "network", "that of the way to the master", of=Network, factory=Network,
    )  # fmt: skip
    secrets: dict[str, Secret] = key(
        "secret variables of every program: names, or {NAME: {file: PATH}}", "secrets", "{}", of=Secret, factory=dict
    )
    priority: int = key("among the jobs of a queue; higher first", "number", "0", default=0)
    links: dict[str, Link] = key(
        "pages of the programs, whose addresses `tm status` shows: label: role:index:port/path",
        "links",
        "{}",
        of=Link,
        factory=dict,
    )
    pages: str = key(
        "the address of the pages of all jobs (`tm ui --listen`): a cluster's own link leads there once the job has ended",
        "text", "none", default="",
    )  # fmt: skip
    master: Master = key(
        "the master's container; it has none on the local engine", "section", of=Master, factory=Master
    )
    annotations: dict[str, str] = key("texts kept with the job and handed to the engine", "labels", "{}", factory=dict)
    chaos: bool = key(
        "whether users may let faults happen to the job: `tm chaos`, pages and REST", "flag", "true", default=True
    )
    engines: dict[str, Any] = key("settings of one engine each, read by that engine", "engines", "{}", factory=dict)
    version: str = key("the version of this form", "version", VERSION, default=VERSION)
    # (path, value) of each key that only a newer minor version knows.
    unknown: tuple[tuple[tuple[Any, ...], Any], ...] = attrs.field(default=())

    @property
    def tasks(self) -> int:
        """Return the largest number of tasks that the job may have."""
        return sum(role.replicas.max for role in self.roles.values())


@attrs.frozen(slots=True)
class Key:
    """One key as the reference shows it."""

    path: str  # roles.NAME.resources.memory
    shape: str
    default: str
    doc: str
    required: bool


def file_name(attribute: str) -> str:
    """Return the key of an attribute."""
    return attribute.rstrip("_")


def variable_name(name: str) -> str:
    """Return a name as part of a variable, like TRAINMASTER_INPUT_<NAME>: in capitals, with `_` for all but letters and digits."""
    return "".join(letter if letter.isalnum() else "_" for letter in name).upper()


def keys(of: type[Any] = Job, under: str = "") -> Iterator[Key]:
    """Yield every key of the job file, in order, with those of its sections."""
    for field in attrs.fields(of):
        meta = field.metadata
        if not meta or (field.name == "name" and of is not Job):
            continue
        path = under + file_name(field.name)
        required = field.default is attrs.NOTHING
        yield Key(path, meta["shape"], "" if required else meta["default"], meta["doc"], required)
        if meta["of"] is not None:
            by_name = meta["shape"] in ("sections by name", "secrets", "links")
            yield from keys(meta["of"], f"{path}.NAME." if by_name else f"{path}.")


def reads(job: Job, role: str, name: str) -> bool:
    """Tell whether the tasks of a role read the input of this name."""
    return any(source.name == name for source in uses(job, role))


def uses(job: Job, role: str) -> list[Input]:
    """Return the inputs that the tasks of a role read."""
    return [source for source in job.inputs.values() if (role in source.to if source.to else job.roles[role].counts)]


def writes(job: Job, role: str) -> list[Output]:
    """Return the outputs that some task of a role writes."""
    return [
        output
        for output in job.outputs.values()
        if (output.from_.split(":")[0] == role if output.from_ else job.roles[role].counts)
    ]
