"""A job file as plain data, and where each of its values stands: `load(path)` gives both.

YAML is read here alone; in containers a job is JSON. Its traps are kept from users: a key that stands twice is refused, since the second
would silently win; a number that YAML would write differently (`3.10`, `010`) stays the text that was written, which the job's reader
understands as the key demands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainmaster.core.errors import BadInput, NotFound

Place = tuple[str, ...]
_LIMIT = 4 * 1024 * 1024  # bytes of a job file
_MOST_VALUES = 100_000
_DEEPEST = 100
_TEXTS = frozenset({"env", "annotations", "labels"})  # what is in them is text, however it looks
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: str | Path, kind: str = "job file", name: str = "") -> tuple[dict[str, Any], dict[Place, str]]:
    """Return the data of a YAML file and the origin ("job.yaml line 7") of each path in it. Origins and messages call it `name`."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFound(f"there is no {kind} {path}", mend="name a YAML file with the job", anchor="no-file") from error
    except OSError as error:
        raise BadInput(f"the {kind} {path} cannot be read: {error.strerror}", anchor="no-file") from error
    if len(content) > _LIMIT:
        raise BadInput(f"{path} has {len(content)} bytes, too many for a {kind}", anchor="job-shape")
    return parse(content, name or path.name)


def parse(content: bytes | str, name: str) -> tuple[dict[str, Any], dict[Place, str]]:
    """Return the same for YAML text; messages call it `name`."""
    try:
        building = _Building(content, name)
        data = building.document()
    except yaml.MarkedYAMLError as error:
        raise _broken(error, name) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{name} is not YAML: {str(error).splitlines()[0]}", anchor="yaml") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        message = f"{name} does not hold a job: keys like name, framework and roles"
        raise BadInput(message, place=f"{name} line 1", anchor="job-shape")
    return data, building.origins


def value(text: str, path: Place = ()) -> Any:
    """Return a flag's text as a value of the key `path`, read as YAML where it is YAML: numbers, true, {min: 2, max: 8}."""
    try:
        return _Building(text, "the value").document(path)
    except (yaml.YAMLError, RecursionError):
        return text


def _check_depth(content: bytes | str) -> None:
    """Raise RecursionError where YAML is nested deeper than a job is: libyaml's loader would overflow the stack of this process."""
    depth = 0
    for event in yaml.parse(content, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError(f"it is nested more than {_DEEPEST} deep")


class _Building:
    """Makes data out of the nodes of one document, and remembers where each value stands."""

    def __init__(self, content: bytes | str, name: str) -> None:
        _check_depth(content)
        self.origins: dict[Place, str] = {}
        self._loader = _Loader(content)
        self._name = name
        self._checked: set[int] = set()  # mappings whose keys were compared; joining `<<` repeats some
        self._values = 0

    def document(self, path: Place = ()) -> Any:
        try:
            node = self._loader.get_single_node()
            return None if node is None else self._value(node, path)
        finally:
            self._loader.dispose()

    def _value(self, node: Any, path: Place) -> Any:
        self.origins[path] = self._place(node)
        self._values += 1
        if self._values > _MOST_VALUES:  # a few aliases of aliases make billions
            raise BadInput(
                f"{self._name} has more than {_MOST_VALUES:,} values",
                mend="write less, or fewer aliases",
                anchor="job-shape",
            )
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise yaml.constructor.ConstructorError(
                None, None, f"could not determine a constructor for {node.tag}", node.start_mark
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, (*path, str(index))) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Place) -> dict[str, Any]:
        if id(node) not in self._checked:
            self._refuse_twice(node, path)
            self._loader.flatten_mapping(node)
            self._checked.add(id(node))
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = (*path, key_node.value)
            for old in [old for old in self.origins if old[: len(at)] == at] if key_node.value in mapping else ():
                del self.origins[old]  # `<<` brought it, and this mapping sets the key itself
            mapping[key_node.value] = self._value(value_node, at)
            self.origins[at] = self._place(key_node)
        return mapping

    def _refuse_twice(self, node: Any, path: Place) -> None:
        seen: dict[str, Any] = {}
        for key_node, _ in node.value:
            at = (*path, str(key_node.value))
            if not isinstance(key_node, yaml.ScalarNode):
                message = "a key must be text"
                raise BadInput(
                    message, place=f"{'.'.join(path)}   ({self._place(key_node)})", mend="mend the line", anchor="yaml"
                )
            if key_node.value in seen:
                raise BadInput(
                    f"the key {key_node.value!r} stands twice",
                    place=f"{'.'.join(at)}   ({self._place(key_node)}, and {self._place(seen[key_node.value])})",
                    mend="keep one of them",
                    anchor="yaml",
                )
            seen[key_node.value] = key_node

    def _scalar(self, node: Any, path: Place) -> Any:
        """Return a value as it was meant: a variable that says `3.10`, `010` or `yes` holds just these letters."""
        if node.tag == "tag:yaml.org,2002:timestamp":  # a name like 2026-11-21 stays text
            return node.value
        try:
            parsed = self._loader.construct_object(node, deep=True)
        except (ValueError, LookupError) as error:  # a number of thousands of digits, `!!bool x`
            raise BadInput(
                f"{node.value[:40]!r} is not of the kind {node.tag.rpartition(':')[2]}",
                place=f"{'.'.join(path)}   ({self._place(node)})", mend="mend the line", anchor="yaml",
            ) from error  # fmt: skip
        if path[-2:-1] and path[-2] in _TEXTS and parsed is not None:
            return node.value
        number = isinstance(parsed, int | float) and not isinstance(parsed, bool)
        return node.value if number and path[:1] != ("engines",) and str(parsed) != node.value else parsed

    def _place(self, node: Any) -> str:
        return f"{self._name} line {node.start_mark.line + 1}"


def _broken(error: yaml.MarkedYAMLError, name: str) -> BadInput:
    mark = error.problem_mark or error.context_mark
    place = f"{name} line {mark.line + 1}" if mark is not None else name
    message = f"{name} is not YAML: {error.problem or error.context}"
    return BadInput(message, place=place, mend="mend the line, or the one before it", anchor="yaml")
