"""Writes docs/reference/ from the code: job keys, commands, variables, reasons, events, the Python API, REST, names of other systems.

The text about a key, a command or a reason is in the table that the program itself reads; these pages only lay it out. They are committed,
so that links to them work in a clone. `--check` writes nothing: it fails where a page is not as the code is now.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent / "reference"
WIDTH = 78  # columns of the commands' help, whatever terminal this runs in


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


# The form of a value of each shape; shapes that list their values, as "task | flat" does, say it themselves.
SHAPES = {
    "after": "roles, each `running` or `succeeded`: `{ps: running}`; a list of names alone means running",
    "checkpoint": "its keys; or the path alone",
    "command": "a text for the shell, or a list of a program and its arguments",
    "completion": "`all`, or its keys",
    "count": "a whole number, 0 or more",
    "counts": "`{name: count}`, each a whole number",
    "duration": "`30s`, `5m`, `1h30m`; never a bare number",
    "engines": "a block of settings under the name of each engine",
    "env": "`{NAME: value}`, where no value takes the submitter's; or a list of `NAME=value` and `NAME`",
    "environment": "one of its keys; or the value alone, whose ending tells which of them is meant",
    "factor": "a number from 1 to 100",
    "flag": "`true` or `false`",
    "interval": "a duration of at least `10ms`",
    "labels": "`{name: text}`",
    "links": "`{label: role:index:port/path}`, or its keys under each label",
    "name": "letters, digits, `-`, `_`, `.`, beginning with a letter or digit, at most 63",
    "network": "its keys; or the interface alone",
    "number": "a whole number, which may be below 0",
    "part": "a number from 0 to 1",
    "ports": "a list of names; or `{name: number}`, where 0 stands for any free port",
    "positive count": "a whole number, 1 or more",
    "positive number": "a number above 0",
    "positive size": "a size of at least `1MiB`",
    "processes": "a whole number, 1 or more; or `gpu`, also written `per-gpu`",
    "relative path": "a path below the working directory, without `..`",
    "path or URL": "a path below the working directory, an absolute one, or a URL",
    "replicas": "a number, or `{min: 2, max: 8}`",
    "restart": "its keys; or the scope alone",
    "role or task": "`worker`, or `worker:0`",
    "secrets": "a list of names; or its keys under each name",
    "section": "its keys",
    "sections by name": "names of your own choice, each with its keys",
    "signal": "the name of a signal: `SIGTERM`, `USR1`",
    "size": "`512MB`, `2GiB`; never a bare number",
    "stop": "its keys; or the grace alone",
    "tensorboard": "its keys; or the path alone",
    "text": "a text",
    "text or texts": "a text, or a list of texts",
    "texts": "a list of texts, or one alone",
    "threads": "`cores`, `machine`, or a whole number, 1 or more",
    "version": "a text like `1.0`",
}


def job() -> str:
    """Every key of the job file."""
    from trainmaster.core.spec.job import INPUT_KEYS, Job, keys

    parts = [
        "# The job file",
        (inspect.getdoc(Job) or "") + " The form is YAML; unknown keys are refused.",
        "",
        "[A file with every key](../whole-job.yaml) has a comment at each. `tm schema` prints the JSON Schema for editors.",
        "",
    ]
    sections: dict[str, list[Any]] = {}
    for key in keys():
        sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    for section, found in sections.items():
        parts += [f"## {code(section) if section else 'The job'}", ""]
        rows = []
        for key in found:
            default = "required" if key.required else key.default if " " in key.default else code(key.default)
            rows.append((code(key.path.rpartition(".")[2]), key.doc, key.shape, default))
        parts += [table(("key", "meaning", "shape", "default"), rows), ""]
        if section == "inputs.NAME":
            acting = [(code(way), ", ".join(map(code, own))) for way, own in INPUT_KEYS.items()]
            parts += [
                "Beside `url`, `as` and `to` these keys act; any other one is refused:",
                "",
                table(("as", "keys"), acting),
                "",
            ]
    used = {key.shape.removesuffix(" or none") for key in keys() if " | " not in key.shape}
    assert used == set(SHAPES), f"shapes that are not explained, or not used: {used ^ set(SHAPES)}"
    head = 'A shape "or none" takes `none` too. A shape that lists words takes one of these.'
    parts += ["## Shapes", "", head, "", table(("shape", "written as"), SHAPES.items()), ""]
    return "\n".join(parts)


def command_line() -> str:
    """Every command, as `--help` shows it."""
    from trainmaster.cli.tm import tm

    root = click.Context(tm, info_name="tm", **{**tm.context_settings, "terminal_width": WIDTH})
    parts = ["# Commands", "", "```text", tm.get_help(root), "```", ""]
    for context in commands(root, tm):
        parts += [f"## {context.command_path}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(parts)


def commands(parent: click.Context, group: click.Group) -> Iterable[click.Context]:
    """The commands of a group, each before its own."""
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
        yield context
        if isinstance(command, click.Group):
            yield from commands(context, command)


def variables() -> str:
    """The variables that programs have."""
    from trainmaster import frameworks
    from trainmaster.frameworks import launchers
    from trainmaster.frameworks.variables import VARIABLES

    def shown(variables: Iterable[Any]) -> str:
        rows = ((code(found.name), found.doc, code(found.example)) for found in variables)
        return table(("variable", "meaning", "example"), rows)

    parts = ["# Variables of a program", "", "Set whatever the framework:", "", shown(VARIABLES), ""]
    for name in sorted(frameworks.built_in()):
        framework = frameworks.load(name)
        parts += [f"## {code(name)}", "", inspect.getdoc(framework) or "", ""]
        if own := getattr(framework, "VARIABLES", ()):
            parts += [shown(own), ""]
    rows = [(launcher, ", ".join(map(code, names))) for launcher, names in launchers.VARIABLES.items()]
    parts += [
        "## Variables of outer launchers",
        "",
        inspect.getdoc(launchers) or "",
        "",
        table(("launcher", "variables"), rows),
        "",
    ]
    return "\n".join(parts)


def reasons() -> str:
    """The closed table of reasons."""
    from trainmaster.core.machine.reasons import REASONS

    rows = [
        (code(key), found.whole[0], found.fault, "yes" if found.restart_costs else "no", found.whole[1])
        for key, found in REASONS.items()
    ]
    head = "Every end of a task, a container or a job has exactly one of these. A restart that costs is counted against `restart.limit`."
    return "\n".join(
        ["# Reasons", "", head, "", table(("reason", "in words", "fault", "costs", "what to do"), rows), ""]
    )


def states() -> str:
    """The words for the states of jobs and tasks."""
    from trainmaster.core.states import LISTED_STATES, TASK_PHASES, TASK_STATES

    head = (
        "Commands, pages, REST, the metrics for Prometheus and the Python API have the same word for a state. "
        "`removed` and `unreadable` are words of lists of jobs alone."
    )
    finer = "`phase` says what a task does in its state. In the other states it is the state; `tm status` shows both: `pending (queued)`."
    jobs = [(code(word), meaning) for word, meaning in LISTED_STATES.items()]
    tasks = [(code(word), meaning) for word, meaning in TASK_STATES.items()]
    phases = [
        (code(state), code(word), meaning) for state, words in TASK_PHASES.items() for word, meaning in words.items()
    ]
    return "\n".join(
        ["# States", "", head, "", "## Of a job", "", table(("state", "meaning"), jobs), "", "## Of a task", "",
         table(("state", "meaning"), tasks), "", finer, "", table(("state", "phase", "meaning"), phases), ""]
    )  # fmt: skip


def events() -> str:
    """The types of events, their fields, and the phases of an attempt that they lead to."""
    from trainmaster.core.machine.events import EVENTS, VERSION
    from trainmaster.core.machine.orders import ORDERS
    from trainmaster.core.machine.phases import OF_SEVERAL, TRANSITIONS

    head = (
        f"One JSON object a line, of version {VERSION}: `v`, `n` (rising by one), `at` (seconds since 1970), `epoch` "
        "(the master's), `type`, and fields of its own. A *barrier* is on stable storage before its effect, a *note* "
        "within a second. Events of one decision count together or not at all: each but the last has `rest`, how many follow. "
        "Unknown types and fields are kept."
    )
    rows = [(code(key), "barrier" if kind.barrier else "note", kind.text) for key, kind in EVENTS.items()]
    fields = _fields({key: kind.fields for key, kind in EVENTS.items()})
    phases = [
        (code(event), ", ".join(map(code, before)), " or ".join(map(code, after)))
        for event, before, after in TRANSITIONS
    ]
    several = ", ".join(code(event) for event, _, _ in TRANSITIONS if event in OF_SEVERAL)
    refused = (
        "An event about one attempt that finds it in another phase is refused, and changes nothing. "
        f"Those that name several attempts, or a unit, move none that is in another phase: {several}."
    )
    return "\n".join(
        [
            "# Events", "", head, "", table(("type", "class", "in words"), rows), "",
            "## Fields", "", "A field whose shape ends with `?` may be left out; times and durations are in seconds.", "",
            table(("type", "fields"), fields), "",
            "## Orders", "",
            "The fields of the orders to agents; the event `ordered` records an order. An agent ignores fields that it does not know.", "",
            table(("verb", "fields"), _fields(ORDERS)), "",
            "## Phases of an attempt", "", refused, "",
            table(("event", "from", "to"), phases), "",
        ]
    )  # fmt: skip


def _fields(shapes: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    return [
        (code(key), ", ".join(f"{code(name)} ({shape})" for name, shape in fields.items()) or "none")
        for key, fields in shapes.items()
    ]


def python() -> str:
    """The public names of the package and of the runtime."""
    import trainmaster
    from trainmaster import aio, runtime
    from trainmaster.runtime import elastic

    parts = ["# Python", ""]
    modules = {"trainmaster": trainmaster, "trainmaster.aio": aio, "trainmaster.runtime": runtime}
    for title, module in (modules | {"trainmaster.runtime.elastic": elastic}).items():
        parts += [f"## {code(title)}", "", _prose(module), ""]
        for name in sorted(getattr(module, "__all__", None) or _public(module)):
            if not inspect.ismodule(value := getattr(module, name)):
                parts += _member(name, value)
    for title in ("elastic.torch_training", "elastic.keras_training", "torch_data", "tf_data", "formats.recordio"):
        parts += _from_source(f"trainmaster.runtime.{title}")
    parts += _from_source("trainmaster.spark", ("run", "open_to_jobs"))
    parts += _from_source("trainmaster.spark.feed", ("Feed",))
    parts += _from_source("trainmaster.runtime.feed")
    for title in (
        "data_shards",
        "controllers",
        "torch_controller",
        "torch_optimizer",
        "keras_controller",
        "synchronization",
        "recordio_reader",
    ):
        parts += _from_source(f"trainmaster.elasticdl.{title}")
    return "\n".join(parts)


def _from_source(module: str, names: Collection[str] = ()) -> list[str]:
    """A module whose framework may be missing where this runs: what has a docstring in it. `names`: these alone."""
    import ast

    def member(name: str, node: ast.AST) -> list[str]:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name[0] == "_" or not ast.get_docstring(node):
            return []
        called: ast.stmt | None = node
        if isinstance(node, ast.ClassDef):
            called = next((part for part in node.body if getattr(part, "name", "") == "__init__"), None)
        parts = [f"{'####' if '.' in name else '###'} {code(name)}", ""]
        if isinstance(called, ast.FunctionDef) and "property" not in map(ast.unparse, called.decorator_list):
            arguments = ast.unparse(called.args).removeprefix("self").removeprefix(", ")
            parts += [f"```python\n{node.name}({arguments})\n```", ""]
        parts += [ast.get_docstring(node) or "", ""]
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            parts += member(f"{name}.{getattr(part, 'name', '')}", part)
        return parts

    path = Path(__file__).parents[1] / "src" / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    parts = [f"## {code(module)}", "", ast.get_docstring(tree) or "", ""]
    nodes = [(getattr(node, "name", ""), node) for node in tree.body]
    return [*parts, *(line for name, node in nodes if not names or name in names for line in member(name, node))]


def _public(module: Any) -> list[str]:
    """The functions and classes of a module that names none."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and name != "T"
    ]


def _member(name: str, value: Any) -> list[str]:
    parts = [f"### {code(name)}", "", *_called(name, value), _prose(value), ""]
    if not isinstance(value, type) or issubclass(value, Exception):
        return parts
    for method, member in vars(value).items():
        found = member.__func__ if isinstance(member, staticmethod) else member
        if not method.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
            parts += [f"#### {code(f'{name}.{method}')}", "", *_called(method, found), _prose(found), ""]
    return parts


def _called(name: str, value: Any) -> list[str]:
    """How it is called; nothing for what is not called, and for classes that only we make."""
    if isinstance(value, property):
        return []
    if isinstance(value, type) and issubclass(value, Exception):
        told = "(" + ", ".join(parent.__name__ for parent in value.__bases__) + ")"
    elif isinstance(value, type) and not name.islower():
        return []
    else:
        told = str(inspect.signature(value)).replace("(self, ", "(").replace("(self)", "()")
        told = re.sub(r"(: |-> )'([^']*)'", r"\1\2", told).replace("_Job", "Job")  # annotations, which are texts
    wait = "await " * inspect.iscoroutinefunction(value)
    return [f"```python\n{wait}{name}{told}\n```", ""]


def rest() -> str:
    """Every endpoint, and the fields of bodies and answers, out of the OpenAPI description."""
    from trainmaster.web.rest.openapi import document
    from trainmaster.web.rest.routes import ROUTES

    described = document(ROUTES)
    parts = [
        "# REST",
        "",
        described["info"]["description"],
        "",
        "How to use it: [Ask for jobs over HTTP](../guides/rest-api.md).",
        "",
    ]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts += [f"## {code(f'{method.upper()} {path}')}", "", operation["summary"], ""]
            inputs = [row for row in operation["parameters"] if row["in"] != "path"]
            rows = [(code(row["name"]), row["description"], _shape(row["schema"])) for row in inputs]
            if rows:
                parts += [table(("parameter", "meaning", "shape"), rows), ""]
            if "requestBody" in operation:
                parts += [f"Body: {_content(operation['requestBody'])}", ""]
            parts += [f"Answer: {_content(operation['responses']['200'])}", ""]
            errors = [code(status) for status in operation["responses"] if status >= "400"]
            parts += [f"Errors: {', '.join(errors)}", ""]
    parts += ["## Bodies and answers", ""]
    for name, schema in described["components"]["schemas"].items():
        fields = [
            (code(field), part.get("description", ""), _shape(part), "yes" if field in schema["required"] else "")
            for field, part in schema["properties"].items()
        ]
        parts += [
            f"### {name}",
            "",
            schema["description"],
            "",
            table(("field", "meaning", "shape", "always there"), fields),
            "",
        ]
    return "\n".join(parts)


def names() -> str:
    """The public names of the packages that users of other systems import, from the tables in docs/names/."""
    head = (
        "These names are importable under the original's own name: "
        "[TensorFlowOnSpark's](../coming-from/tensorflowonspark.md#the-alias), [ElasticDL's](../coming-from/elasticdl-programs.md). "
        "*Same* means the same arguments and effect."
    )
    parts = ["# Names of other systems", "", head, ""]
    for path in sorted((HERE.parent / "names").glob("*.py")):
        modules: Mapping[str, Mapping[str, str]] = runpy.run_path(str(path))["NAMES"]
        for module, members in modules.items():
            same = ", ".join(name for name, verdict in members.items() if verdict == "same")
            rows = [(code(name), verdict) for name, verdict in members.items() if verdict != "same"]
            parts += [f"## {code(module)}", "", *([f"Same: {code(same)}.", ""] if same else [])]
            parts += [table(("name", "here"), rows), ""] if rows else []
    return "\n".join(parts)


def listeners() -> str:
    from trainmaster.runtime.network.listeners import ROWS

    rows = (
        (row.purpose, row.process, code(row.at) if row.at[0] in "*@" else row.at, row.members, row.proof, row.limits)
        for row in ROWS
    )
    return "\n".join(
        [
            "# Listeners\n",
            "Every socket at which Trainmaster listens. `@` begins an abstract name. [Security](../security.md) says what is left open.\n",
            "With a low limit of open files (`ulimit -n`) fewer connections are let in.\n",
            table(("purpose", "process", "where", "who gets in", "what keeps others out", "limits"), rows),
        ]
    )


def _content(answer: Mapping[str, Any]) -> str:
    return "; ".join(f"{code(media)}: {_shape(content['schema'])}" for media, content in answer["content"].items())


def _shape(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_shape, schema["anyOf"]))
    kind = schema.get("type", "anything")
    words = [*kind] if isinstance(kind, list) else [kind]
    if kind == "array":
        return f"list of {_shape(schema['items'])}"
    least, most = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    text = " or ".join(words) + (f", {least} to {most}" if most is not None else "")
    return text + (f", else {schema['default']}" if schema.get("default") not in (None, "", False) else "")


def _prose(value: Any) -> str:
    """A docstring as Markdown: what is indented is code."""
    return inspect.getdoc(value) or ""


PAGES: dict[str, Callable[[], str]] = {
    "job.md": job,
    "command-line.md": command_line,
    "variables.md": variables,
    "states.md": states,
    "reasons.md": reasons,
    "events.md": events,
    "python.md": python,
    "rest.md": rest,
    "names.md": names,
    "listeners.md": listeners,
}


def stale(folder: Path = HERE) -> list[str]:
    """Return the names of the pages in `folder` that differ from the code, or that no table makes."""
    present = {path.name: path.read_text() for path in folder.glob("*")}
    current = {name: page() + "\n" for name, page in PAGES.items()}
    return sorted(name for name in present.keys() | current.keys() if present.get(name) != current.get(name))


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if names := stale():
            sys.exit(
                f"docs/reference/ is not as the code is now: {', '.join(names)}. Run `make docs`, and commit docs/reference/."
            )
        return
    HERE.mkdir(exist_ok=True)
    for name in stale():
        (HERE / name).unlink(missing_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page() + "\n")


if __name__ == "__main__":
    main()
