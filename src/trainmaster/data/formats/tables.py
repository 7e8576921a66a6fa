"""Tables of SQL databases as inputs: checked when a job is submitted, and cut into ranges of keys when its inputs are listed.

`runtime.formats.sql` does both, the second as a script: in the program's own Python, where SQLAlchemy and the driver are, else in ours;
with the program's variables, among which are the secrets that the database asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.shards import TABLE, File
from trainmaster.core.spec.job import Input
from trainmaster.host import children
from trainmaster.runtime.formats import is_table, sql
from trainmaster.runtime.formats.sql import BAD_TABLE

__all__ = ["absolute", "check", "cut", "is_table"]


def absolute(url: str, base: str) -> str:
    """Return the URL with the absolute path of SQLite's file; every other URL as it is."""
    path = sql.file_of(url)
    if not path or path == sql.MEMORY:
        return url
    path = os.path.normpath(os.path.join(base, os.path.expanduser(path)))
    begin, mark, query = url.partition("?")
    return f"{begin.partition('://')[0]}:///{path}{mark}{query}"


def check(input_: Input, is_local: bool) -> None:
    """Raise BadInput, naming the key, where the input cannot be a table. `is_local`: programs run on this machine. No server is asked."""
    key, url = f"inputs.{input_.name}", input_.location
    if not is_table(url):
        if input_.key:
            mend = "leave it out, or give a URL like sqlite:////FILE?table=NAME"
            raise BadInput(
                "only a table is cut by a key", place=f"{key}.key: {input_.key}", mend=mend, anchor=BAD_TABLE
            )
        return
    if input_.as_ != "shards":
        place = f"{key}.as: {input_.as_}"
        raise BadInput("a table is read as shards alone", place=place, mend="say as: shards", anchor=BAD_TABLE)
    if input_.format != "auto":
        place = f"{key}.format: {input_.format}"
        raise BadInput("a table has no format", place=place, mend="leave it out", anchor=BAD_TABLE)
    try:
        sql.parse(url)
        if is_local and (path := sql.file_of(url)) and not os.path.isfile(path):
            raise sql.BadTable(f"the file {path} does not exist", "check the path")
    except sql.BadTable as error:
        raise BadInput(error.message, place=f"{key}.url", mend=error.mend, anchor=error.anchor) from None


def cut(input_: Input, environ: Mapping[str, str], limit: float | None) -> File:
    """Return the table as a file that is cut into shards. Blocks for `limit` seconds at most (None: any time).

    `environ`: the variables of its programs. Raises BadInput, StorageFailed where the table cannot be read, or cannot be cut.
    """
    answer: dict[str, Any] = {}
    for python, variables in _pythons(environ):
        answer = _ask(input_, python, variables, limit)
        if answer.get("anchor") != sql.NO_PACKAGE:
            break
    if "error" in answer:
        raise BadInput(answer["error"], place=f"inputs.{input_.name}.url", mend=answer["mend"], anchor=answer["anchor"])
    return File(answer["path"], answer["end"], kind=TABLE, cuts=tuple(answer["cuts"]))


def _pythons(environ: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return the interpreters in which SQLAlchemy may be, with their variables: the program's own, and ours."""
    path = environ.get("PATH")
    python = shutil.which("python3", path=path) or shutil.which("python", path=path)
    ours = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [*([(python, dict(environ))] if python else []), (sys.executable, ours)]


def _ask(input_: Input, python: str, environ: Mapping[str, str], limit: float | None) -> dict[str, Any]:
    """Return what the script prints in one interpreter. Raises StorageFailed where it prints nothing."""
    place = f"inputs.{input_.name}.url: {input_.url}"
    try:
        command = [python, sql.__file__, input_.location, input_.key, str(input_.shard_records)]
        process = children.run(command, env=environ, timeout=limit)
    except subprocess.TimeoutExpired as error:
        problem = f"the database has not answered for {error.timeout:.0f} s, while the table was cut into shards"
        mend = "give it longer by timeouts.start, or cut by a column with an index"
        raise StorageFailed(problem, place=place, mend=mend, anchor=BAD_TABLE) from None
    try:
        answer: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        words = process.stderr.strip().splitlines()[-1:] or [f"{python} ended with status {process.returncode}"]
        raise StorageFailed(f"the table cannot be cut: {words[0]}", place=place, anchor=BAD_TABLE) from None
    return answer
