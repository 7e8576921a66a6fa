"""Writes docs/reference/ from the code: job keys, commands, variables, reasons, events, the Python API.

What is said about a thing stands beside the thing, in the table that the program itself reads; these pages only lay it out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent / "reference"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def job() -> str:
    """Every key of the job file."""
    from trainmaster.core.job import Job, keys

    parts = ["# The job file", (inspect.getdoc(Job) or "") + " The form is YAML; unknown keys are refused.", ""]
    sections: dict[str, list[Any]] = {}
    for key in keys():
        sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    for section, found in sections.items():
        parts += [f"## {code(section) if section else 'The job'}", ""]
        rows = []
        for key in found:
            default = "required" if key.required else code(key.default)
            rows.append((code(key.path.rpartition(".")[2]), key.doc, key.shape, default))
        parts += [table(("key", "meaning", "shape", "default"), rows), ""]
    return "\n".join(parts)


def command_line() -> str:
    """Every command, as `--help` shows it."""
    from trainmaster.cli.commands import tm

    root = click.Context(tm, info_name="tm", max_content_width=100)
    parts = ["# Commands", "", "```text", tm.get_help(root), "```", ""]
    for name in tm.list_commands(root):
        command = tm.get_command(root, name)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=root, max_content_width=100)
        parts += [f"## tm {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(parts)


def variables() -> str:
    """The variables that programs have."""
    from trainmaster import frameworks
    from trainmaster.frameworks.variables import VARIABLES

    rows = [(code(found.name), found.doc, code(found.example)) for found in VARIABLES]
    parts = [
        "# Variables of a program",
        "",
        "Set whatever the framework:",
        "",
        table(("variable", "meaning", "example"), rows),
        "",
    ]
    for name in frameworks.names():
        parts += [f"## {code(name)}", "", inspect.getdoc(frameworks.load(name)) or "", ""]
    return "\n".join(parts)


def reasons() -> str:
    """The closed table of reasons."""
    from trainmaster.core.reasons import REASONS

    rows = [
        (code(key), found.text, found.fault, "yes" if found.restart_costs else "no", found.advice)
        for key, found in REASONS.items()
    ]
    head = "Every end of a task, a container or a job has exactly one of these. A restart that costs is counted against `restart.limit`."
    return "\n".join(
        ["# Reasons", "", head, "", table(("reason", "in words", "fault", "costs", "what to do"), rows), ""]
    )


def events() -> str:
    """The types of events."""
    from trainmaster.core.events import EVENTS, VERSION

    head = (
        f"One JSON object a line, of version {VERSION}: `v`, `n` (rising by one), `at` (seconds since 1970), `epoch` "
        "(the master's), `type`, and fields of its own. A *barrier* is on stable storage before its effect, a *note* "
        "within a second. Unknown types and fields are kept."
    )
    rows = [(code(key), "barrier" if found.barrier else "note", found.text) for key, found in EVENTS.items()]
    return "\n".join(["# Events", "", head, "", table(("type", "class", "in words"), rows), ""])


def python() -> str:
    """The public names of the package and of the runtime."""
    parts = ["# Python", ""]
    for module in ("trainmaster", "trainmaster.client.api", "trainmaster.client.aio", "trainmaster.runtime"):
        found = import_module(module)
        shown = module.replace("client.api", "Run").replace("client.aio", "aio")
        if module == "trainmaster":
            parts += [f"## {code(module)}", "", _prose(found), ""]
            parts += [
                part for name in sorted(found.__all__) if name != "aio" for part in _member(name, getattr(found, name))
            ]
        elif module == "trainmaster.client.api":
            parts += [f"## {code(shown)}", "", _prose(found.Run), "", *_methods(found.Run)]
        else:
            parts += [f"## {code(shown)}", "", _prose(found), ""]
            names = getattr(found, "__all__", None) or [
                name for name, value in vars(found).items() if _public(name, value, found)
            ]
            parts += [part for name in names for part in _member(name, getattr(found, name))]
    return "\n".join(parts)


def _public(name: str, value: object, module: Any) -> bool:
    return not name.startswith("_") and inspect.isroutine(value) and getattr(value, "__module__", "") == module.__name__


def _member(name: str, value: Any) -> list[str]:
    return [f"### {code(name)}", "", f"```python\n{name}{_signature(value)}\n```", "", _prose(value), ""]


def _methods(owner: type) -> list[str]:
    parts: list[str] = []
    for name, value in vars(owner).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            called = (
                "" if isinstance(value, property) else _signature(value).replace("(self, ", "(").replace("(self)", "()")
            )
            parts += [f"### {code(f'Run.{name}')}", "", f"```python\nrun.{name}{called}\n```", "", _prose(value), ""]
    return parts


def _signature(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Exception):
        return "(" + ", ".join(parent.__name__ for parent in value.__bases__) + ")"
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # not to be called
        return ""


def _prose(value: Any) -> str:
    """A docstring as Markdown: what is indented is code."""
    return inspect.getdoc(value) or ""


PAGES: dict[str, Callable[[], str]] = {
    "job.md": job,
    "command-line.md": command_line,
    "variables.md": variables,
    "reasons.md": reasons,
    "events.md": events,
    "python.md": python,
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page() + "\n")


if __name__ == "__main__":
    main()
