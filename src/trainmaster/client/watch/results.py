"""The types of plain data that the API returns: dicts, whose keys checkers and editors know. `--json` prints the same.

Later versions may add keys, and never remove or rename them. Times are in seconds since 1970, sizes in bytes, `progress` is 0 to 1.
"""

from typing import Any, NotRequired, TypedDict


class Past(TypedDict):
    """An attempt before the present one."""

    attempt: int
    reason: str
    words: str
    ended: float


class Task(TypedDict):
    """One task of a `Status`. Figures of use are there while its program runs."""

    task: str
    role: str
    index: int
    state: str
    phase: str
    attempt: int
    node: str
    container: str
    since: float
    started: float | None
    restarts: int
    counts: bool
    reason: NotRequired[str]
    words: NotRequired[str]
    tail: NotRequired[list[str]]
    trouble: NotRequired[dict[str, Any]]
    past: NotRequired[list[Past]]
    doing: NotRequired[str]
    waits: NotRequired[str]
    progress: NotRequired[float]
    step: NotRequired[float]
    cpu: NotRequired[float]
    memory: NotRequired[int]
    gpus: NotRequired[list[dict[str, Any]]]
    at: NotRequired[float]


class Reason(TypedDict):
    """Why a job ends or ended, with the task that failed first and its last lines where there is one."""

    reason: str
    state: str
    figures: dict[str, Any]
    words: str
    advice: str
    task: NotRequired[str]
    attempt: NotRequired[int | None]
    tail: NotRequired[list[str]]


class Loss(TypedDict):
    """Something that a job did not keep: the "log" of an attempt; a "checkpoint", with the newest set that was stored; "files" `of` an
    output or of checkpoint sets; a "promise" of the engine that its cluster has not kept; a "shard" `of` an input, set aside after the last
    of several attempts had failed on it; or the "work" that an attempt had done on so many `shards`.
    """

    kind: str
    task: str
    attempt: int
    at: float
    detail: NotRequired[str]
    bytes: NotRequired[int]
    set: NotRequired[int | None]
    of: NotRequired[str]
    shards: NotRequired[int]
    number: NotRequired[int]
    path: NotRequired[str]
    start: NotRequired[int]
    end: NotRequired[int]


class Status(TypedDict):
    """A job while it runs, or after its end: `state` is pending, running, ending, or the final succeeded, failed or killed."""

    job: str
    name: str
    framework: str
    state: str
    submitted: float
    at: float
    ended: float | None
    epoch: int
    restarts: int
    reason: Reason | None
    phase: str
    waiting: str
    tasks: list[Task]
    former: list[Task]
    outputs: dict[str, str]
    checkpoint: dict[str, Any] | None
    saves: list[dict[str, Any]]
    links: dict[str, str]
    shards: dict[str, dict[str, int]]
    scaling: dict[str, dict[str, Any]]
    losses: list[Loss]
    gave_up: list[str]
    events: int
    tokens: NotRequired[dict[str, Any]]


class Listed(TypedDict):
    """One job of a list. Where `unreadable` says why its storage cannot be read, the state is the last one known."""

    id: str
    name: str
    engine: str
    state: str
    reason: str
    submitted: float | None
    started: float | None
    ended: float | None
    unreadable: str


class Event(TypedDict):
    """One event; the keys beside these are those of its type."""

    v: str
    n: int
    at: float
    epoch: int
    type: str
