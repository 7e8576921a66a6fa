"""What each order says: the payloads of the core's orders, put together from the job, its state and the listings of its inputs.

The core decides that a task is to be prepared or started; what that means in files, ports and variables is looked up here, the same for
every engine. Splits are pure functions of the listing and of the group's size, so a restarted master hands out the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from trainmaster import frameworks
from trainmaster.core.frames import content_frames
from trainmaster.core.input.splits import Listing, deal_splits, parts, split_records
from trainmaster.core.machine.actions import Order
from trainmaster.core.machine.formation import Formation, formation
from trainmaster.core.machine.state import State, Task, outputs_of, role_size
from trainmaster.core.spec.job import HADOOP, SHARED, STATIC_INPUTS, Input, Job, Role, uses, writes
from trainmaster.core.spec.threads import MACHINE, tasks_at_once, thread_count
from trainmaster.engines.contract import Request
from trainmaster.frameworks.variables import file_list

CONTENT_FROM = 16 * 1024  # bytes; a larger file is no part of the order


class Orders:
    """Payloads for one job. `site` is what submit found out about this place: `cwd` and `archive` (of `files`, where there is one)."""

    def __init__(self, job: Job, site: Mapping[str, Any], storage: str = "") -> None:
        """`storage`: the job's, where every node reaches it; `site["storage"]` is the master's own directory."""
        self.job = job
        self.site = site
        self._storage = storage
        self.listings: dict[str, Listing] = {}
        self.largest: int | None = None  # bytes, the most memory that the engine can grant to one container
        self.near = False  # whether the engine has several nodes, and can prefer some
        self.machine_cores = 0.0  # of the machine on which all tasks are, where they are on one
        self.tasks_of_others: Callable[[], int] = lambda: 0  # other jobs' on that machine, now
        self.hosts: dict[str, tuple[str, ...]] = {}  # task -> the hosts that hold most of its data
        self._split = lru_cache(maxsize=64)(self._split_of)
        self._formations: dict[tuple[int, int], Formation] = {}
        self._sharing = (0, 0)  # the state's number, and how many tasks share the machine's cores then
        self._contents: dict[str, list[str]] = {}  # digest -> the frames of a large file

    # -- to the engine --

    def request(self, state: State, key: str, serial: int) -> Request:
        """The container that `key` needs."""
        task = state.tasks[key]
        role = state.role(task)
        group = state.groups[task.group]
        unsized = group.gang and group.sizes is None
        memory = self._memory(role, task)
        return Request(
            key, serial, task.role, task.index, memory + self._beside(role), role.resources.cores, role.resources.gpus,
            self.job.priority * 1000 + role.priority, f"group-{group.number}" if unsized else "", role.replicas.min if unsized else 0,
            {"labels": role.nodes.labels, "exclude": list(role.nodes.exclude)}, memory, role.resources.extended,
            self.hosts.get(key, ()),
        )  # fmt: skip

    def unlocated(self, state: State) -> bool:
        """Whether it will be known, once the inputs are listed, which nodes are near the tasks' data, and is not yet."""
        if not self.near or state.listings is not None or state.ending is not None:
            return False
        return any(_placed(given) for given in self.job.inputs.values())

    def locate(self, state: State) -> None:
        """Find out where the tasks' data are, where that can be told. Blocks for a while, and raises nothing."""
        if not self.near:
            return
        from trainmaster.data.locality import preferred_hosts

        reading = {
            task.key: [given for given in uses(self.job, task.role) if _placed(given)] for task in state.tasks.values()
        }
        tasks = [key for key, inputs in reading.items() if inputs]
        parts = [[one for given in reading[key] for one in self._part(state, given, state.tasks[key])] for key in tasks]
        self.hosts = dict(zip(tasks, preferred_hosts(parts), strict=True))

    def _beside(self, role: Role) -> int:
        """What the container has beside the program's memory, bytes: the overhead, and the JVM of each Hadoop format."""
        through = [given for given in uses(self.job, role.name) if given.format.startswith(HADOOP)]
        made = [output for output in writes(self.job, role.name) if output.format.startswith(HADOOP)]
        if not through and not made:
            return role.resources.overhead
        from trainmaster.data.formats.hadoop_formats import memory

        return role.resources.overhead + sum(map(memory, through)) + sum(map(memory, made))

    def _memory(self, role: Role, task: Task) -> int:
        """What the program may use, bytes: after out-of-memory more than its role says, as far as the engine can grant it."""
        memory = round(role.resources.memory * task.memory_factor)
        if self.largest is None:
            return memory
        return min(memory, max(role.resources.memory, self.largest - self._beside(role)))

    # -- to agents --

    def payload(self, state: State, order: Order) -> dict[str, Any]:
        """The fields of an order beside its head (epoch, attempt, verb, id)."""
        task = state.tasks[order.task]
        role = state.role(task)
        if order.verb == "prepare":
            return self._prepare(state, task, role)
        if order.verb == "start":
            return self._start(state, task, role)
        if order.verb == "stop":
            return {"signal": role.stop.signal, "grace": role.stop.grace}
        if order.verb == "warn":
            return {
                **(task.warned or {}),
                "why": (task.warned or {}).get("reason", ""),
                "signal": role.stop.warn or None,
            }
        if order.verb == "peer-finished":
            return {"limit": self.job.timeouts.finish}
        if order.verb == "commit":
            return {"outputs": self.outputs(task)}
        return {}

    def _prepare(self, state: State, task: Task, role: Role) -> dict[str, Any]:
        told: dict[str, Any] = {
            "workdir": role.workdir,
            "cwd": self.site.get("cwd", ""),
            "archive": self.site.get("archive") if role.workdir != SHARED else None,
            "archives": list(self.site.get("archives", ())),
            "cache": list(self.site.get("cache", self.job.cache)),
            "env": env_of(role),
            "ports": self._ports(role, task),
            "inputs": {given.name: self._input(state, given, task) for given in uses(self.job, task.role)},
            "outputs": self.outputs(task),
            "prepare": role.prepare or None,
            "stop": {"signal": role.stop.signal, "grace": role.stop.grace},
        }
        if (checkpoint := self.job.checkpoint) is not None and (task.counts or task.serves):
            group = state.groups[task.group]
            newest = group.set if task.whole else (state.checkpoint or {}).get("set")
            told["checkpoint"] = {
                "path": checkpoint.path, "url": checkpoint.url or f"{self._storage}/checkpoints", "every": checkpoint.every,
                "keep": checkpoint.keep, "set": newest, "anew": task.whole and task.attempt > 1 and role.workdir != SHARED,
            }  # fmt: skip
        return told

    def _ports(self, role: Role, task: Task) -> dict[str, int]:
        """Ports by name; 0 lets the agent choose. Who restarts alone keeps those by which its peers know it."""
        known = {} if task.whole or (task.past and task.past[-1].reason == "address-in-use") else task.ports
        return {name: role.ports.get(name) or known.get(name, 0) for name in frameworks.ports(self.job, role)}

    def _start(self, state: State, task: Task, role: Role) -> dict[str, Any]:
        formed = self._formation(state, task)
        placed = frameworks.placement(self.job.framework, formed, task.key)
        listed, lists = file_list(self._lists(state, task))
        told = env_of(role) | placed.env | listed | {name: f"{{files}}/{file}" for name, file in placed.paths.items()}
        large = {name: content_frames(content) for name, content in placed.files.items() if len(content) > CONTENT_FROM}
        files = {name: content.decode() for name, content in placed.files.items() if name not in large}
        self._contents = dict(large.values())
        return {
            "command": role.command if isinstance(role.command, str) else list(role.command),
            "env": told,
            "defaults": placed.defaults,
            "threads": self._threads(state, role, formed.by_task[task.key].copies),
            "copies": placed.copies,
            "files": files | {f"./{name}": content.decode() for name, content in lists.items()},
            "contents": {name: digest for name, (digest, _) in large.items()},
            "stop": {"signal": role.stop.signal, "grace": role.stop.grace},
            "memory": self._memory(role, task),
            "stall": self.job.timeouts.stall,
        }

    def ahead(self, payload: Mapping[str, Any]) -> list[str]:
        """Return the frames of the files that the order with this payload, the last one made, names by digest."""
        return [frame for digest in payload.get("contents", {}).values() for frame in self._contents[digest]]

    def _lists(self, state: State, task: Task) -> dict[str, list[str]]:
        """The URLs of the task's part of each input `as: list`."""
        given = [one for one in uses(self.job, task.role) if one.as_ == "list"]
        return {one.name: [file[0] for file in self._input(state, one, task)["files"]] for one in given}

    def _threads(self, state: State, role: Role, copies: int) -> int:
        """The threads of each copy of the program."""
        if role.threads == MACHINE and self._sharing[0] != state.n:
            # The same for all that start in this turn.
            self._sharing = state.n, tasks_at_once(state) + self.tasks_of_others()
        tasks = self._sharing[1] if role.threads == MACHINE else 1
        return thread_count(role.threads, role.resources.cores, copies, self.machine_cores, tasks)

    def _formation(self, state: State, task: Task) -> Formation:
        group = state.groups[task.group]
        key = (group.number, state.n)
        if key not in self._formations:
            self._formations = {key: formation(state, group)}  # the same for all members that start in this turn
        return self._formations[key]

    # -- data --

    def outputs(self, task: Task) -> dict[str, Any]:
        """The outputs that the task writes."""
        return {
            name: {
                "url": output.url, "as": output.as_, "layout": output.layout, "overwrite": output.overwrite, "local": output.local or name,
                **({"name": name, "format": output.format, "options": output.options} if output.format.startswith(HADOOP) else {}),
            }
            for name, output in outputs_of(self.job, task.role, task.index).items()
        }  # fmt: skip

    def _input(self, state: State, given: Input, task: Task) -> dict[str, Any]:
        """One input as this task gets it."""
        listing = self.listings[given.name]
        told: dict[str, Any] = {
            "as": given.as_, "url": given.url, "local": given.local or given.name, "format": given.format, "epochs": given.epochs,
            "shuffle": given.shuffle, "seed": given.seed, "prefix": listing.prefix,
        }  # fmt: skip
        part = self._part(state, given, task)
        if given.format.startswith(HADOOP):
            told |= {"name": given.name, "options": given.options}
            told["splits"] = [[split.size, split.stamp] for split in part]
        elif given.as_ == "stream":
            sizes = {file.path: file.size for file in listing.files}
            told["pieces"] = [[piece.path, piece.start, piece.end, sizes[piece.path]] for piece in part]
        elif given.as_ in ("download", "list"):
            told["files"] = [[file.path, file.size, file.stamp] for file in part]
        return told

    def _part(self, state: State, given: Input, task: Task) -> list[Any]:
        """What this task reads of an input that is divided when a generation forms: splits, pieces or files."""
        if given.as_ not in STATIC_INPUTS and not given.format.startswith(HADOOP):
            return []
        place, count = self._place(state, given, task)
        if given.format.startswith(HADOOP):
            return self._split(given.name, count, "splits")[0 if given.split == "whole" else place]
        if given.as_ == "stream":
            return self._split(given.name, count, "records")[0 if given.split == "whole" else place]
        return self._split(given.name, count, given.split)[place]

    def _place(self, state: State, given: Input, task: Task) -> tuple[int, int]:
        """The task's number among the tasks that read an input, and how many they are."""
        place = count = 0
        for name in self.job.roles:
            if given in uses(self.job, name):
                place = count + task.index if name == task.role else place
                count += role_size(state, name)
        return place, count

    def _split_of(self, name: str, count: int, mode: str) -> list[list[Any]]:
        from trainmaster.data.formats.formats import cuttable

        files = self.listings[name].files
        given = self.job.inputs[name]
        if mode == "splits":
            return deal_splits(files, 1 if given.split == "whole" else count, given.shuffle)
        if mode == "records":
            return split_records(
                files, 1 if given.split == "whole" else count, lambda file: cuttable(given.format, file.path)
            )
        return parts(files, count, "whole" if mode == "whole" else "split")


def _placed(given: Input) -> bool:
    """Whether a task has a part of this input, and it can be told which nodes have that."""
    return given.format.startswith(HADOOP) or (given.as_ in STATIC_INPUTS and given.url.lower().startswith("hdfs://"))


def env_of(role: Role) -> dict[str, str]:
    """The role's own variables; those without a value travel as secrets."""
    return {name: value for name, value in role.env.items() if value is not None}
