"""The keys of a job file as types, for checkers and editors: a misspelt key or a value of another kind is marked before anything runs.

Nothing of this is imported while a program runs. The meaning of each key, and its default, is in `core.spec.job`; a test compares the two.
Keys that Python reserves are written `from_` and `as_`. Sizes and durations are text: "2GiB", "30m".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Command = str | Sequence[str | int | float]


class Environment(TypedDict, total=False):
    archive: str
    image: str
    path: str
    requirements: str


class Network(TypedDict, total=False):
    interface: str
    transport: Literal["auto", "tcp", "rdma"]


class Replicas(TypedDict, total=False):
    min: int | str
    max: int | str
    start: int | str


class Resources(TypedDict, total=False):
    cores: float | str
    memory: str | None
    gpus: int | str
    extended: Mapping[str, int]
    overhead: str


class Restart(TypedDict, total=False):
    scope: Literal["group", "task", "never"]
    limit: int
    total: int


class Stop(TypedDict, total=False):
    signal: str
    grace: str
    warn: str | None


class Feed(TypedDict, total=False):
    memory: str
    agreed: bool
    share: str


class Nodes(TypedDict, total=False):
    labels: Mapping[str, str]
    exclude: str | Sequence[str]


class _RoleKeys(TypedDict, total=False):
    replicas: int | str | Replicas
    processes: int | str
    resources: Resources
    restart: Literal["group", "task", "never"] | Restart
    env: Mapping[str, str | int | float | bool | None] | Sequence[str]
    counts: bool
    after: str | Sequence[str] | Mapping[str, Literal["running", "succeeded"]]
    image: str
    prepare: Command | None
    stop: str | Stop
    ports: str | Sequence[str] | Mapping[str, int]
    feed: Mapping[str, Feed | None]
    nodes: Nodes
    priority: int
    workdir: Literal["copy", "share"]
    stragglers: Literal["name", "replace"]
    retry_memory: float | str | None
    threads: int | str
    warm: bool


class Role(_RoleKeys):
    command: Command


class _InputKeys(TypedDict, total=False):
    as_: Literal["download", "list", "stream", "shards", "mount", "follow"]
    to: str | Sequence[str]
    local: str
    format: str
    options: Mapping[str, str | int | float]
    epochs: int
    shuffle: bool
    seed: int
    poison: int
    shard_records: int
    key: str
    split: Literal["again", "whole"]


class Input(_InputKeys):
    url: str | Sequence[str]


class _OutputKeys(TypedDict, total=False):
    from_: str
    as_: Literal["upload", "stream"]
    format: str
    options: Mapping[str, str | int | float]
    layout: Literal["task", "flat"]
    overwrite: bool
    required: Literal["all", "any", "none"]
    local: str


class Output(_OutputKeys):
    url: str


class _CheckpointKeys(TypedDict, total=False):
    url: str
    every: str
    keep: int


class Checkpoint(_CheckpointKeys):
    path: str


class _TensorboardKeys(TypedDict, total=False):
    memory: int | str


class Tensorboard(_TensorboardKeys):
    logs: str


class Timeouts(TypedDict, total=False):
    start: str | None
    stall: str | None
    job: str | None
    finish: str | None
    storage: str | None
    grace: str


class Completion(TypedDict, total=False):
    first: str | None
    failures: float | str | None


class Logs(TypedDict, total=False):
    limit: str
    first: str
    every: str
    piece: str


class Saves(TypedDict, total=False):
    every: str | None
    keep: int
    names: Literal["time", "interResult"]


class Scale(TypedDict, total=False):
    grow: bool
    every: str
    auto: Literal["off", "advise", "on"]


class Secret(TypedDict, total=False):
    env: str | None
    file: str | None


class _LinkKeys(TypedDict, total=False):
    index: int
    port: str
    path: str
    scheme: Literal["http", "https"]


class Link(_LinkKeys):
    role: str


class Master(TypedDict, total=False):
    resources: Resources
    env: Mapping[str, str | int | float | bool | None] | Sequence[str]
    nodes: Nodes


class Job(TypedDict, total=False):
    """A whole job, as `submit` takes it beside `trainmaster.Job`."""

    name: str
    framework: str
    environment: str | Environment
    roles: Mapping[str, Role]
    files: str | Sequence[str]
    archives: str | Sequence[str]
    cache: str | Sequence[str]
    inputs: Mapping[str, str | Input]
    outputs: Mapping[str, str | Output]
    checkpoint: str | Checkpoint | None
    tensorboard: str | Tensorboard | None
    timeouts: Timeouts
    completion: Literal["all"] | Completion
    stop_on: Literal["none", "nan"]
    gang: bool
    logs: Logs
    storage: str
    saves: Saves
    scale: Scale
    network: str | Network
    secrets: Sequence[str] | Mapping[str, Secret | None]
    priority: int
    links: Mapping[str, str | Link]
    pages: str
    master: Master
    annotations: Mapping[str, str | int | float]
    chaos: bool
    engines: Mapping[str, Mapping[str, Any]]
    version: str
