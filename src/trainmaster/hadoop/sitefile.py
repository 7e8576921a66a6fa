"""One of Hadoop's configuration files: `<configuration>` with `<property>` elements, as `org.apache.hadoop.conf.Configuration` reads it.

A property is name, value and perhaps final, as elements or as attributes. `<xi:include href=...>` stands for the properties of another
file, in this file's directory unless its path is absolute; where that file is missing, for the properties inside its `<xi:fallback>`.
Values are returned as written: `conf` resolves `${}`. Each property knows its file and line, because that is where a person mends it.
"""

from __future__ import annotations

import itertools
import os
import stat
import xml.parsers.expat
from collections.abc import Iterator
from pathlib import Path

import attrs

from trainmaster.hadoop.errors import ConfError

_INCLUDE, _FALLBACK = "include", "fallback"
_FIELDS = ("name", "value", "final")
_LARGEST = 16 << 20  # bytes of a file
_MOST_FILES = 1000
_LONGEST = 1 << 20  # characters of a field; entities that are made of entities can stand for any number


@attrs.frozen
class Property:
    name: str
    value: str
    final: bool
    place: str  # FILE:LINE


def read(path: Path) -> Iterator[Property]:
    """Yield the properties of a file in order, those of included files in their place. Raises ConfError for what cannot be read, naming
    file and line.
    """
    yield from _read(path, (), itertools.count(1))


def _read(path: Path, within: tuple[Path, ...], files: Iterator[int]) -> list[Property]:
    """`within`: the files that include it. `files` counts all that are read."""
    path = Path(os.path.realpath(path))  # else a loop of files that name each other by other paths has no end
    if path in within:
        raise ConfError(f"{within[-1]} includes {path}, which includes it")
    if next(files) > _MOST_FILES:
        raise ConfError(f"{within[0]} includes more than {_MOST_FILES} files")
    try:
        # Nobody need write into a named pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfError(f"{path} cannot be read: it is not a file")
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise ConfError(f"{path} cannot be read: it has more than {_LARGEST >> 20} MiB")
    return _File(path, within, files).parse(data)


class _File:
    """A file on its way through the parser, which calls a method at each start, end and text of an element."""

    def __init__(self, path: Path, within: tuple[Path, ...], files: Iterator[int]) -> None:
        self._path, self._within, self._files = path, within, files
        self._properties: list[Property] = []
        self._open: list[str] = []  # the elements that we are in
        self._fields: dict[str, str] = {}  # of the property that we are in
        self._texts: list[str] = []  # of the field that we are in
        self._size = 0  # characters of these
        self._line = 0  # where that property began
        self._includes: list[bool] = []  # for each include that we are in: whether its file was read
        self._parser = xml.parsers.expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text

    def parse(self, data: bytes) -> list[Property]:
        try:
            self._parser.Parse(data, True)
        except xml.parsers.expat.ExpatError as error:
            why = xml.parsers.expat.ErrorString(error.code)
            raise ConfError(f"{self._path}:{error.lineno}: not XML: {why}", "mend that line") from error
        return self._properties

    @property
    def _is_skipped(self) -> bool:
        """Tell whether we are inside a fallback that is not needed."""
        return any(read for read in self._includes)

    @property
    def _in_field(self) -> bool:
        return self._open[-2:-1] == ["property"] and self._open[-1] in _FIELDS

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = _local(name)
        if not self._open and name != "configuration":
            raise ConfError(f"{self._place()}: begins with <{name}>, not with <configuration>")
        self._open.append(name)
        if name == "property":
            self._fields = {key: attributes[key] for key in _FIELDS if key in attributes}
            self._line = self._parser.CurrentLineNumber
        elif name == _INCLUDE:
            self._includes.append(self._is_skipped or self._include(attributes.get("href", "")))
        elif self._in_field:
            self._fields.pop(name, None)  # an empty element counts as none
            self._texts, self._size = [], 0

    def _text(self, text: str) -> None:
        if self._in_field:
            self._texts.append(text)
            self._size += len(text)
            if self._size > _LONGEST:
                raise ConfError(
                    f"{self._place()}: a {self._open[-1]} of more than {_LONGEST} characters", "mend that line"
                )

    def _end(self, _: str) -> None:
        if self._in_field and self._texts:
            self._fields[self._open[-1]] = "".join(self._texts)
            self._texts = []
        name = self._open.pop()
        if name == _FALLBACK and self._includes:
            self._includes[-1] = True  # the missing file was made good
        elif name == _INCLUDE:
            if not self._includes.pop():
                raise ConfError(f"{self._place()}: the file that it includes is missing, and it has no fallback")
        elif name == "property" and not self._is_skipped and {"name", "value"} <= self._fields.keys():
            final = self._fields.get("final", "").strip().lower() == "true"
            place = f"{self._path}:{self._line}"
            self._properties.append(Property(self._fields["name"].strip(), self._fields["value"], final, place))

    def _include(self, href: str) -> bool:
        if not href:
            raise ConfError(f"{self._place()}: an include without href")
        path = self._path.parent / href.removeprefix("file://")
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # or no path at all
            return False
        except OSError as error:
            raise ConfError(f"{self._place()}: {str(path)[:200]} cannot be read: {error.strerror}") from error
        self._properties.extend(_read(path, (*self._within, self._path), self._files))
        return True

    def _place(self) -> str:
        return f"{self._path}:{self._parser.CurrentLineNumber}"


def _local(name: str) -> str:
    """Return an element's name without its namespace: Hadoop looks at no more."""
    return name.rpartition(" ")[2]
