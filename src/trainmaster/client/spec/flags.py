"""The flags that describe a job, as a table: what each is called, what it says and which key it sets.

Flags make the same data as a job file would, so everything after them is the same. `FLAGS` needs nothing of ours and no click: the
command line makes its options from it, and its help loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Place = tuple[str, ...]
ROLE = "worker"  # the role of a job that is given as a command


class Flag(NamedTuple):
    """One flag. `path`: the key it sets, where ROLE stands for the job's role; () for those with a form of their own."""

    names: tuple[str, ...]
    metavar: str
    doc: str
    path: Place = ()
    many: bool = False

    @property
    def dest(self) -> str:
        """Return the name of its value: that of its long form."""
        return next(name for name in self.names if name.startswith("--"))[2:].replace("-", "_")


FLAGS: tuple[Flag, ...] = (
    Flag(("-n", "--replicas"), "N", "how many tasks: a number, or MIN..MAX", ("roles", "ROLE", "replicas")),
    Flag(
        ("--framework",), "NAME", "generic, pytorch, tensorflow, xlearning, or one that a package adds", ("framework",)
    ),
    Flag(("--name",), "NAME", "the job's name", ("name",)),
    Flag(("--cores",), "N", "processor cores of each task", ("roles", "ROLE", "resources", "cores")),
    Flag(("--memory",), "SIZE", "memory of each task, like 2GiB", ("roles", "ROLE", "resources", "memory")),
    Flag(("--gpus",), "N", "accelerators of each task", ("roles", "ROLE", "resources", "gpus")),
    Flag(
        ("--processes",),
        "N",
        "copies of the program in each task; gpu: one for each GPU",
        ("roles", "ROLE", "processes"),
    ),
    Flag(("--restart",), "SCOPE", "group, task or never", ("roles", "ROLE", "restart", "scope")),
    Flag(("--env",), "NAME=VALUE", "a variable of the program; NAME alone takes yours", many=True),
    Flag(("--input",), "NAME=URL", "an input; NAME:AS=URL says how it is read", many=True),
    Flag(("--output",), "NAME=URL", "an output", many=True),
    Flag(("--checkpoint",), "PATH", "a path that survives restarts", ("checkpoint", "path")),
    Flag(("--timeout",), "TIME", "for the whole job, like 2h", ("timeouts", "job")),
    Flag(("--storage",), "URL", "where events, logs and state are kept", ("storage",)),
    Flag(("--priority",), "N", "among waiting jobs; higher first", ("priority",)),
    Flag(("--queue",), "NAME", "the queue, where the engine has queues", ("engines", "ENGINE", "queue")),
    Flag(("--set",), "PATH=VALUE", "any key, like roles.worker.replicas=4", many=True),
)


def layer(
    options: Mapping[str, Any], command: Sequence[str], roles: Sequence[str], engine: str = "local"
) -> tuple[dict[str, Any], dict[Place, str]]:
    """Return the data that flags and a command set, with origins. `roles`: those that the job file has, () without a file."""
    data: dict[str, Any] = {}
    origins: dict[Place, str] = {}
    for flag in FLAGS:
        value = options.get(flag.dest)
        if value is None or value == ():
            continue
        for text in value if flag.many else (value,):
            path, parsed = _path_and_value(flag, str(text), roles, engine)
            put(data, path, parsed)
            origins[path] = f"flag {flag.names[-1]}"
    if command:
        role = _role(roles, "--")
        put(data, ("roles", role, "command"), list(command))
        origins["roles", role, "command"] = "the command after --"
    return data, origins


def put(data: dict[str, Any], path: Place, value: Any) -> None:
    """Set one value, making the sections on the way; the keys of a section are added to those that are there."""
    for part in path[:-1]:
        below = data.get(part)
        if not isinstance(below, dict):
            below = data[part] = {}
        data = below
    if isinstance(value, dict) and isinstance(data.get(path[-1]), dict):
        data[path[-1]].update(value)
    else:
        data[path[-1]] = value


def _path_and_value(flag: Flag, text: str, roles: Sequence[str], engine: str) -> tuple[Place, Any]:
    if flag.path:
        path = tuple(
            _role(roles, flag.names[-1]) if part == "ROLE" else engine if part == "ENGINE" else part
            for part in flag.path
        )
        return path, _replicas(text) if flag.dest == "replicas" else text
    name, mark, value = text.partition("=")
    if flag.dest == "env":
        return ("roles", _role(roles, "--env"), "env", name), value if mark else None
    if not mark or not name:
        raise _wrong(flag, text)
    if flag.dest == "set":
        from trainmaster.client.spec.jobfile import value as read

        path = tuple(name.split("."))
        if not all(path):
            raise _wrong(flag, text)
        return path, read(value, path)
    if flag.dest == "input":
        name, _, how = name.partition(":")
        return ("inputs", name), {"url": value, **({"as": how} if how else {})}
    return ("outputs", name), {"url": value}


def _replicas(text: str) -> Any:
    least, mark, most = text.partition("..")
    return {"min": least, "max": most} if mark else text


def _role(roles: Sequence[str], flag: str) -> str:
    """Return the one role that a flag is about."""
    if len(roles) <= 1:
        return roles[0] if roles else ROLE
    if ROLE in roles:
        return ROLE
    from trainmaster.core.errors import BadInput

    raise BadInput(
        f"the job has several roles, so it is not clear which one {flag} is about",
        place=f"flag {flag}",
        mend=f"say it with --set roles.{roles[0]}....=VALUE",
        anchor="which-role",
    )


def _wrong(flag: Flag, text: str) -> Exception:
    from trainmaster.core.errors import BadInput

    return BadInput(
        f"{flag.names[-1]} {text!r} has no {flag.metavar.partition('=')[0]}=", place=f"flag {flag.names[-1]}",
        mend=f"write {flag.names[-1]} {flag.metavar}", anchor="wrong-value",
    )  # fmt: skip
