"""Parameters of a model or a reader, as one text: "layers=3, name='wide'; rate=1e-3" are three keyword arguments.

Entries are separated by a comma or, as ElasticDL has it, a semicolon. A value is a literal of Python: numbers, quoted text, True, False,
None, and lists, tuples, sets and dictionaries of these. A bare word or path is text, as in ElasticDL ("activation=relu"). Nothing is
evaluated: a call, a name or an operator is an error.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from typing import Any

from .errors import BadModel

_BARE = re.compile(r"[A-Za-z_./~][\w./~:@%+-]*")  # a word, a path or a URL
_NO_WORDS = {"true": "True", "false": "False", "none": "None", "null": "None", "nan": "'nan'", "inf": "'inf'"}
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def parse_params(text: str, flag: str = "model_params") -> dict[str, Any]:
    """Return the keyword arguments that `text` says. `flag` names the text in errors. Raises BadModel."""
    params: dict[str, Any] = {}
    place = f"{flag}: {text}"
    for entry in _entries(text):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise BadModel(f"{flag} has an entry without a value: {entry}", place=place, mend=f"write {name}=VALUE")
        if not name.isidentifier() or keyword.iskeyword(name):
            mend = "write name=value, with a comma or a semicolon between two of them"
            raise BadModel(f"{flag} has a name that a parameter cannot have: {name or entry}", place=place, mend=mend)
        if name in params:
            raise BadModel(f"{flag} has {name} more than once", place=place)
        params[name] = _literal(name, value, flag, text)
    return params


def _literal(name: str, value: str, flag: str, text: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if value.lower() in _NO_WORDS:
        mend = f"did you mean {name}={_NO_WORDS[value.lower()]}?"
    elif _BARE.fullmatch(value):
        return value
    else:
        mend = f"write a number, quoted text, True, False, None or a list of these; text needs quotes: {name}='...'"
    raise BadModel(f"{flag} has a value that is not a literal: {name}={value}", place=f"{flag}: {text}", mend=mend)


def _entries(text: str) -> Iterator[str]:
    """Yield what lies between the commas and semicolons that are in no quotes and no brackets."""
    depth, quote, start, is_escaped = 0, "", 0, False
    for at, character in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif quote:
            is_escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _BRACKETS:
            depth += _BRACKETS[character]
        elif character in ",;" and depth <= 0:
            if entry := text[start:at].strip():
                yield entry
            start = at + 1
    if entry := text[start:].strip():
        yield entry
