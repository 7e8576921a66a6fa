"""What the documents show exists: commands and their options, job files, links, programs that compile."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from trainmaster.cli.tm import COMMANDS, tm
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import OF_SETTINGS, check_role, job_from
from trainmaster.integrations.dialect import parsed

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(page for page in ROOT.glob("docs/**/*.md") if "reference" not in page.parts),
    *sorted(ROOT.glob("examples/**/README.md")),
    *ROOT.glob("*.md"),
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> Iterator[str]:
    """The blocks of a page that are in a language."""
    yield from re.findall(rf"^```{language}[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each call of `tm`, without what is a program's."""
    for block in blocks(page, "console"):
        for call in re.findall(r"^\$ .*?\b(tm [^\n]*)", block.replace("\\\n", " "), re.MULTILINE):
            yield shlex.split(re.split(r" -- |\s#\s| \| | && |\)", call)[0])[1:]


def ours(words: list[str]) -> list[str]:
    """The words up to the flag of another system; those behind it must be in its own tables."""
    dialect = next((word for word in words if word in ("--xlearning", "--submarine")), "")
    if not dialect:
        return words
    cut = words.index(dialect) + 1
    known = import_module(f"trainmaster.integrations.{dialect[2:]}").OPTIONS
    parsed(words[cut + 2 if words[cut] == "job" else cut :], known, dialect)
    return words[:cut]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        assert words[0] in COMMANDS, words
        command: click.Command | None = tm
        rest = list(words)
        while isinstance(command, click.Group):  # `tm cluster up` is the command of a group
            command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None, words
        known = {name for parameter in command.params for name in parameter.opts} | {"-h", "--help"}
        assert {word.partition("=")[0] for word in ours(words) if word.startswith("-")} <= known, words


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_programs_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_parts_of_job_files_are_read(page: Path) -> None:
    """A block shows some keys of a job or of settings; where one line stands for each of several ways, each is read."""
    for block in blocks(page, "yaml"):
        keys = [line.partition(":")[0] for line in block.splitlines() if re.match(r"\w+:", line)]
        parts = [block] if len(keys) == len(set(keys)) else block.splitlines()
        for part in parts:
            told = yaml.safe_load(part)
            settings = {key: told.pop(key) for key in OF_SETTINGS if key in told}
            check_role(settings.get("defaults", {}), {}, ("defaults",))
            roles = {"worker": "true", "chief": "true"} if "roles" not in told else {}
            try:
                job_from({"roles": {role: {"command": command} for role, command in roles.items()}} | told)
            except BadInput as error:
                raise AssertionError(f"{page.name}: {error}\n{part}") from error


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_tutorial_shows_the_job_of_the_example() -> None:
    shown = next(block for block in blocks(ROOT / "docs/tutorial.md", "yaml"))
    kept = (ROOT / "examples/digits/job.yaml").read_text()
    assert shown == kept.partition("\n")[2], "all but its first line, which says what it is"
