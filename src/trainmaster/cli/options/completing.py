"""Offer a shell values for an argument or an option; nothing is imported before the shell asks for it.

Files are left to the shell: an item of the type `file` has it complete paths by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

Offer = Callable[[click.Context, click.Parameter, str], list[Any]]


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    return [CompletionItem(incomplete, type="file")]


def tasks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the tasks of the job that was named before, and its master."""
    from trainmaster.client.jobs.past import Past
    from trainmaster.client.watch.logs import MASTER
    from trainmaster.core.errors import TrainmasterError

    try:
        known = [*Past(ctx.params["job"]).tasks(), MASTER]
    except (KeyError, OSError, ValueError, TrainmasterError):  # no job, or one that cannot be read: nothing to offer
        return []
    return [CompletionItem(task) for task in known if task.startswith(incomplete)]


def frameworks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from trainmaster.frameworks import names

    return [name for name in names() if name.startswith(incomplete)]


def engines(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from trainmaster.engines.registry import names

    return [name for name in names() if name.startswith(incomplete)]


def choice(*words: str) -> Offer:
    return lambda ctx, parameter, incomplete: [word for word in words if word.startswith(incomplete)]


def keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer keys of a job up to their `=`; the names in them are those that were typed, or that the job file has."""
    from trainmaster.core.spec.job import keys as all_keys

    # An option that waits for its value ends the parsing before it has named the file.
    names = _names(next(iter(ctx.args), None))
    typed = incomplete.split(".")
    single = [key.path.split(".") for key in all_keys() if not key.shape.startswith("section")]
    paths = {f"{path}=" for key in single for path in _named(key, typed, names)}
    return sorted(path for path in paths if path.startswith(incomplete))


def _named(path: list[str], typed: list[str], names: dict[str, list[str]]) -> Iterable[str]:
    if "NAME" not in path:
        return [".".join(path)]
    at = path.index("NAME")
    candidates = [typed[at]] if len(typed) > at + 1 else names.get(path[0], [])
    return [".".join([*path[:at], name, *path[at + 1 :]]) for name in candidates]


def _names(file: str | None) -> dict[str, list[str]]:
    """Return the roles, inputs and outputs that a job file has; the role of a command where there is no file."""
    from trainmaster.client.spec.flags import ROLE

    if not file:
        return {"roles": [ROLE]}
    from trainmaster.client.spec.jobfile import load
    from trainmaster.core.errors import TrainmasterError

    try:
        data = load(file)[0]
    except TrainmasterError:
        return {"roles": [ROLE]}
    return {part: list(section) for part, section in data.items() if isinstance(section, dict)}
