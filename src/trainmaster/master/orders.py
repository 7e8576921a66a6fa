"""Build the payloads of the core's orders out of the job, its state and the listings of its inputs.

The core decides that a task is to be prepared or started; what that means in files, ports and variables is looked up here, the same for
every engine. Splits are pure functions of the listing and of the group's size, so a restarted master hands out the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from trainmaster import frameworks
from trainmaster.core.containers import Request
from trainmaster.core.decide.requests import request_of
from trainmaster.core.frames import content_frames
from trainmaster.core.input.splits import Listing, deal_splits, parts, split_records
from trainmaster.core.machine.actions import Order
from trainmaster.core.machine.formation import Formation, formation, places_in
from trainmaster.core.machine.state import (
    State,
    Task,
    commits_parts,
    has_hung,
    outputs_of,
    pattern_of,
    role_size,
    signal_fields,
)
from trainmaster.core.spec.job import HADOOP, SHARED, STATIC_INPUTS, Input, Job, Role, uses, writes
from trainmaster.core.spec.threads import MACHINE, tasks_at_once, thread_count
from trainmaster.frameworks.variables import file_list

CONTENT_FROM = 16 * 1024  # bytes; a larger file is not part of the order


class Orders:
    """The payloads for one job. `site` is what submit noted about this place: `cwd` and `archive` (of `files`, where there is one)."""

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
        # (role, changes of its group) -> the number of each member of the role
        self._positions: tuple[tuple[str, int], dict[str, int]] = ("", 0), {}
        self._contents: dict[str, list[str]] = {}  # digest -> the frames of a large file

    # -- to the engine --

    def request(self, state: State, key: str, serial: int) -> Request:
        """Return the request for the container that `key` needs."""
        task = state.tasks[key]
        role = state.role(task)
        memory = self._program_memory(role, task)
        return request_of(state, task, serial, memory, self._extra_memory(role), self.hosts.get(key, ()))

    def unlocated(self, state: State) -> bool:
        """Tell whether the nodes near the tasks' data are unknown until the inputs are listed."""
        if not self.near or state.listings is not None or state.ending is not None:
            return False
        return any(_placed(input_) for input_ in self.job.inputs.values())

    def locate(self, state: State) -> None:
        """Find the hosts of the tasks' data, for storage that names them. Blocks for a while, and raises nothing."""
        if not self.near:
            return
        from trainmaster.data.locality import preferred_hosts

        reading = {
            task.key: [input_ for input_ in uses(self.job, task.role) if _placed(input_)]
            for task in state.tasks.values()
            if not task.is_spare
        }
        tasks = [key for key, inputs in reading.items() if inputs]
        parts = [
            [piece for input_ in reading[key] for piece in self._part(state, input_, state.tasks[key])] for key in tasks
        ]
        self.hosts = dict(zip(tasks, preferred_hosts(parts), strict=True))

    def _extra_memory(self, role: Role) -> int:
        """Return the bytes of the container beside the program's memory: the overhead, and the JVM of each Hadoop format."""
        read = [input_ for input_ in uses(self.job, role.name) if input_.format.startswith(HADOOP)]
        written = [output for output in writes(self.job, role.name) if output.format.startswith(HADOOP)]
        rings = sum(feed.memory for feed in role.feed.values())
        if not read and not written:
            return role.resources.overhead + rings
        from trainmaster.data.formats.hadoop_formats import memory

        return role.resources.overhead + rings + sum(map(memory, read)) + sum(map(memory, written))

    def _program_memory(self, role: Role, task: Task) -> int:
        """Return the bytes to ask for the program: after out-of-memory more than its role says, as far as the engine can grant it."""
        memory = round(role.resources.program_memory * task.memory_factor)
        if self.largest is None:
            return memory
        return min(memory, max(role.resources.program_memory, self.largest - self._extra_memory(role)))

    # -- to agents --

    def payload(self, state: State, order: Order) -> dict[str, Any]:
        """Return the fields of an order beside its head: those of its verb in `core.machine.orders`."""
        task = state.tasks[order.task]
        role = state.role(task)
        if order.verb == "prepare":
            return self._prepare(state, task, role)
        if order.verb == "start":
            return self._start(state, task, role)
        if order.verb == "warm-up":
            return self._warm_up(state, task, role)
        if order.verb == "stop":
            is_over = state.ending is not None
            return {
                "signal": role.stop.signal,
                "grace": role.stop.grace,
                "stacks": has_hung(state, task),
                "over": is_over,
            }
        if order.verb == "signal":
            return signal_fields(task, order.id)
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
        payload: dict[str, Any] = {
            **self._surroundings(task, role),
            "ports": self._ports(role, task),
            "inputs": {input_.name: self._input(state, input_, task) for input_ in uses(self.job, task.role)},
            "prepare": role.prepare or None,
        }
        if (checkpoint := self.job.checkpoint) is not None and (task.counts or task.serves):
            group = state.groups[task.group]
            newest = group.set if task.whole else (state.checkpoint or {}).get("set")
            payload["checkpoint"] = {
                "path": checkpoint.path, "url": checkpoint.url or f"{self._storage}/checkpoints", "every": checkpoint.every,
                "keep": checkpoint.keep, "set": newest, "anew": task.whole and task.attempt > 1 and role.workdir != SHARED,
                # A state in memory does not tell which records of shards it has seen; only a set does.
                "memory": not any(input_.as_ == "shards" for input_ in self.job.inputs.values()),
            }  # fmt: skip
        return payload

    def _surroundings(self, task: Task, role: Role) -> dict[str, Any]:
        """Return what every program of the task finds, whichever generation it belongs to."""
        return {
            "workdir": role.workdir,
            "cwd": self.site.get("cwd", ""),
            "archive": self.site.get("archive") if role.workdir != SHARED else None,
            "archives": list(self.site.get("archives", ())),
            "cache": list(self.site.get("cache", self.job.cache)),
            "env": env_of(role),
            "outputs": self.outputs(task),
            "stop": {"signal": role.stop.signal, "grace": role.stop.grace},
        }

    def _warm_up(self, state: State, task: Task, role: Role) -> dict[str, Any]:
        """Return the part of a spare's order that does not depend on its generation, and the names of variables that do."""
        pattern = pattern_of(state, task)
        assert pattern is not None
        placed = frameworks.placement(self.job.framework, self._formation(state, pattern), pattern.key)
        listed, _ = file_list(self._lists(state, pattern))
        changing = {*placed.env, *placed.paths, *listed, *(name for copy in placed.copies for name in copy)}
        return {
            **self._surroundings(task, role),
            "command": _command(role),
            "defaults": placed.defaults,
            "threads": self._threads(state, role, len(placed.copies), state.groups[task.group].arrived),
            "changing": sorted(changing),
            "warm": {"overhead": role.resources.overhead},
        }

    def _ports(self, role: Role, task: Task) -> dict[str, int]:
        """Return the ports by name; 0 lets the agent choose. A task that restarts alone keeps the ports that its peers know."""
        known = {} if task.whole or (task.past and task.past[-1].reason == "address-in-use") else task.ports
        return {name: role.ports.get(name) or known.get(name, 0) for name in frameworks.ports(self.job, role)}

    def _start(self, state: State, task: Task, role: Role) -> dict[str, Any]:
        formed = self._formation(state, task)
        placed = frameworks.placement(self.job.framework, formed, task.key)
        listed, lists = file_list(self._lists(state, task))
        env = env_of(role) | placed.env | listed | {name: f"{{files}}/{file}" for name, file in placed.paths.items()}
        large = {name: content_frames(content) for name, content in placed.files.items() if len(content) > CONTENT_FROM}
        files = {name: content.decode() for name, content in placed.files.items() if name not in large}
        self._contents = dict(large.values())
        return {
            "command": _command(role),
            "env": env,
            "defaults": placed.defaults,
            "threads": self._threads(state, role, formed.by_task[task.key].copies),
            "copies": placed.copies,
            "files": files | {f"./{name}": content.decode() for name, content in lists.items()},
            "contents": {name: digest for name, (digest, _) in large.items()},
            "stop": {"signal": role.stop.signal, "grace": role.stop.grace},
            "memory": None if role.resources.memory is None else self._program_memory(role, task),
            "stall": None if role.idles else self.job.timeouts.stall,
            "warm": {"overhead": role.resources.overhead, "store": placed.store} if role.warm else {},
            "parts": commits_parts(state, task),
            **(
                {"feeds": {name: [feed.memory, feed.share or role.name] for name, feed in role.feed.items()}}
                if role.feed
                else {}
            ),
        }

    def ahead(self, payload: Mapping[str, Any]) -> list[str]:
        """Return the frames of the files that the order with this payload, the last one made, names by digest."""
        return [frame for digest in payload.get("contents", {}).values() for frame in self._contents[digest]]

    def _lists(self, state: State, task: Task) -> dict[str, list[str]]:
        """Return the URLs of the task's part of each input `as: list`."""
        inputs = [input_ for input_ in uses(self.job, task.role) if input_.as_ == "list"]
        return {input_.name: [file[0] for file in self._input(state, input_, task)["files"]] for input_ in inputs}

    def _threads(self, state: State, role: Role, copies: int, joining: int = 0) -> int:
        """Return the threads of each copy of the program, once `joining` more tasks are there."""
        if role.threads == MACHINE and self._sharing[0] != state.n:
            # All tasks that start in this turn share this count.
            self._sharing = state.n, tasks_at_once(state) + self.tasks_of_others()
        tasks = self._sharing[1] + joining if role.threads == MACHINE else 1
        return thread_count(role.threads, role.resources.cores, copies, self.machine_cores, tasks)

    def _formation(self, state: State, task: Task) -> Formation:
        group = state.groups[task.group]
        key = (group.number, state.n)
        if key not in self._formations:
            self._formations = {key: formation(state, group)}  # the same for all members that start in this turn
        return self._formations[key]

    # -- data --

    def outputs(self, task: Task) -> dict[str, Any]:
        """Return the outputs that the task writes."""
        return {
            name: {
                "url": output.url, "as": output.as_, "layout": output.layout, "overwrite": output.overwrite, "local": output.local or name,
                # A task whose parts are committed has written; the rest of it may have nothing left to do.
                "required": "none" if any((part["outputs"].get(name) or {}).get("files") for part in task.parts) else output.required,
                **({"name": name, "format": output.format, "options": output.options} if output.format.startswith(HADOOP) else {}),
            }
            for name, output in outputs_of(self.job, task.role, task.index).items()
        }  # fmt: skip

    def _input(self, state: State, input_: Input, task: Task) -> dict[str, Any]:
        """Return one input as this task gets it."""
        listing = self.listings[input_.name]
        payload: dict[str, Any] = {
            "as": input_.as_, "url": input_.location, "local": input_.local or input_.name, "format": input_.format,
            "epochs": input_.epochs, "shuffle": input_.shuffle, "seed": input_.seed, "prefix": listing.prefix,
        }  # fmt: skip
        part = self._part(state, input_, task)
        if input_.format.startswith(HADOOP):
            payload |= {"name": input_.name, "options": input_.options}
            payload["splits"] = [[split.size, split.stamp] for split in part]
        elif input_.as_ == "stream":
            sizes = {file.path: file.size for file in listing.files}
            payload["pieces"] = [[piece.path, piece.start, piece.end, sizes[piece.path]] for piece in part]
        elif input_.as_ in ("download", "list"):
            payload["files"] = [[file.path, file.size, file.stamp, file.name] for file in part]
        return payload

    def _part(self, state: State, input_: Input, task: Task) -> list[Any]:
        """Return this task's part of an input that is divided when a generation forms: splits, pieces or files."""
        if input_.as_ not in STATIC_INPUTS and not input_.format.startswith(HADOOP):
            return []
        place, count = self._place(state, input_, task)
        if input_.format.startswith(HADOOP):
            return self._split(input_.name, count, "splits")[0 if input_.split == "whole" else place]
        if input_.as_ == "stream":
            return self._split(input_.name, count, "records")[0 if input_.split == "whole" else place]
        return self._split(input_.name, count, input_.split)[place]

    def _place(self, state: State, input_: Input, task: Task) -> tuple[int, int]:
        """Return the task's number among the tasks that read an input, and their count."""
        place = count = 0
        for name in self.job.roles:
            if input_ in uses(self.job, name):
                place = count + self._position(state, task) if name == task.role else place
                count += role_size(state, name)
        return place, count

    def _position(self, state: State, task: Task) -> int:
        """Return the task's number among the members of its role."""
        group = state.groups[task.group]
        if group.changes == 0:
            return task.index
        if self._positions[0] != (task.role, group.changes):
            self._positions = (task.role, group.changes), places_in(state, task.role)
        return self._positions[1][task.key]

    def _split_of(self, name: str, count: int, mode: str) -> list[list[Any]]:
        from trainmaster.data.formats.formats import cuttable

        files = self.listings[name].files
        input_ = self.job.inputs[name]
        if mode == "splits":
            return deal_splits(files, 1 if input_.split == "whole" else count, input_.shuffle)
        if mode == "records":
            return split_records(
                files, 1 if input_.split == "whole" else count, lambda file: cuttable(input_.format, file.path)
            )
        return parts(files, count, "whole" if mode == "whole" else "split")


def _placed(input_: Input) -> bool:
    """Tell whether each task has a part of this input, in storage that tells which nodes hold it."""
    return input_.format.startswith(HADOOP) or (
        input_.as_ in STATIC_INPUTS and input_.location.lower().startswith("hdfs://")
    )


def _command(role: Role) -> str | list[str]:
    return role.command if isinstance(role.command, str) else list(role.command)


def env_of(role: Role) -> dict[str, str]:
    """Return the role's own variables; those without a value travel as secrets."""
    return {name: value for name, value in role.env.items() if value is not None}
