"""The records of an input as ElasticDL's readers gave them, in windows that are accounted for exactly.

| data | a record |
|---|---|
| RecordIO, TFRecord | bytes |
| CSV with a header | the list of a line's fields, as text; `metadata.column_names` has the header |
| text | a line, without its end |
| Parquet, JSON lines, tables | a dictionary; `metadata.column_names` has its keys |

*Windows.* A model file's `feed` may shuffle, filter and multiply records, so nothing tells which records are in a batch. So records go
through it by windows: some shards, read to their end. A window is done when all that the feed made of it is in batches whose steps are
complete; then its shards are reported. The feed never reads ahead past the window. A window has at least the records of a batch, and of the
buffer in which the feed shuffles; it ends with its epoch. So a program that was killed had trained on at most one window that it had not
reported, besides the records after its checkpoint.

While a window is not done, nobody waits for another shard: the others may wait for just those of this window.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ... import runtime
from ..errors import BadModel, did_you_mean
from ..modes import Metadata

_READERS = {name: name for name in ("csv", "recordio", "tfrecord", "jsonl")} | {"text": "lines", "parquet": "auto"}
# Kind of shard -> what it is cut by, unless by bytes.
_UNITS = {"custom": "record", "rows": "row group", "table": "key"}
_LONGEST_FIELD = 2**30  # characters of a field of CSV; Python refuses more than 128 KiB by default
_ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}  # of a format that files need not have in a job


class Form:
    """How records are read: the parameters `reader_type`, `sep` and `columns` of a reader that is not the model file's own."""

    def __init__(self, params: dict[str, Any]) -> None:
        for name in params:
            if name not in ("reader_type", "sep", "columns"):
                mend = did_you_mean(name, ["reader_type", "sep", "columns"], "they are reader_type, sep and columns")
                raise BadModel(f"the reader has no parameter {name}", place="data_reader_params", mend=mend)
        self.reader_type = str(params.get("reader_type", ""))
        if self.reader_type and self.reader_type.lower() not in _READERS:
            mend = did_you_mean(self.reader_type, [*_READERS], f"there are {', '.join(_READERS)}")
            raise BadModel(f"there is no reader of the type {self.reader_type}", place="data_reader_params", mend=mend)
        self.separator = str(params.get("sep", ","))
        columns = params.get("columns")
        self.columns = None if columns is None else [str(column) for column in columns]
        self.metadata = Metadata(self.columns)
        self._headers: dict[str, list[str]] = {}

    def format_of(self, place: str) -> str:
        """Return the format of the data at a place, as the key `format` of a job's input has it."""
        if self.reader_type:
            return _READERS[self.reader_type.lower()]
        names = [place] if not os.path.isdir(place) else sorted(os.listdir(place))
        endings = [os.path.splitext(name)[1].lower() for name in names if not name.startswith((".", "_"))]
        return _ENDINGS.get(endings[0], "auto") if endings else "auto"

    def records(self, shard: Any) -> Iterator[Any]:
        """Yield the records of a shard. Raises BadModel for one that cannot be understood, with its file and number."""
        if shard.kind == "csv":
            return self._rows(shard)
        if shard.kind == "jsonl":
            return self._objects(shard)
        return iter(shard.records())

    def _rows(self, shard: Any) -> Iterator[list[str]]:
        header = self._header(shard.path)
        columns = self.columns or header
        missing = [column for column in columns if column not in header]
        if missing:
            mend = did_you_mean(missing[0], header, f"it has {', '.join(header)}")
            raise BadModel(f"{shard.path} has no column {missing[0]}", place="data_reader_params: columns", mend=mend)
        places = [header.index(column) for column in columns] if self.columns else None
        for number, row in _parsed(shard, self.separator):
            if len(row) != len(header):
                if not row:
                    continue
                raise _damaged(shard, number, f"{len(row)} fields, and the header has {len(header)}")
            yield row if places is None else [row[place] for place in places]

    def _header(self, path: str) -> list[str]:
        if path not in self._headers:
            import csv

            from ...runtime.reading import LINES, Reader

            reader = Reader("utf-8", "surrogateescape")
            try:
                line = next(reader.records(path, LINES, 0, 1), "")
            finally:
                reader.close()
            header = self._headers[path] = next(csv.reader([line], delimiter=self.separator), [])
            if self.metadata.column_names is None:
                self.metadata.column_names = header
        return self._headers[path]

    def _objects(self, shard: Any) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(shard.records(), 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise _damaged(shard, number, f"no JSON: {error}") from None
            if not isinstance(record, dict):
                raise _damaged(shard, number, f"a JSON {type(record).__name__}, where an object is due")
            yield {column: record.get(column) for column in self.columns} if self.columns else record

    def describe(self, record: Any) -> None:
        """Learn from the first record what nothing else tells of all."""
        if isinstance(record, dict) and self.metadata.column_names is None:
            self.metadata.column_names = list(record)


def _parsed(shard: Any, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a shard of CSV with their numbers, from 1 on. Raises BadModel for what cannot be read."""
    import csv

    csv.field_size_limit(_LONGEST_FIELD)
    number = 0
    try:
        for number, row in enumerate(csv.reader(shard.records(), delimiter=separator), 1):
            yield number, row
    except csv.Error as error:
        raise _damaged(shard, number + 1, f"no CSV: {error}") from None


def _damaged(shard: Any, number: int, fault: str) -> BadModel:
    return BadModel(
        f"a record cannot be read: {fault}", place=_place(shard, number), mend="mend the record, or take it out"
    )


def _place(shard: Any, number: int) -> str:
    """Return the words for the record of a number, from 1 on, of a shard."""
    part = f" of the shard from {_UNITS.get(shard.kind, 'byte')} {shard.start}" if shard.start else ""
    return f"{shard.path}, record {number}{part}"


class Window:
    """Some shards of one epoch, whose records are read through a feed."""

    def __init__(self, windows: Windows, first: Any, least: int) -> None:
        self.epoch: int = first.epoch
        self.first = first
        self._windows, self._least = windows, least
        self._shards: list[tuple[Any, int]] = []  # read to their end, with their records
        self._shard: Any = None
        self._count = 0  # records of the present shard that were read

    def records(self) -> Iterator[Any]:
        """Yield the records. They can be read once."""
        shard, total = self.first, 0
        while shard is not None:
            self._shard, count = shard, 0
            for record in self._windows.form.records(shard):
                self._count = count = count + 1
                yield record
            total += count
            self._shards.append((shard, count))
            shard = self._windows.take(self.epoch) if total < self._least else None

    def place(self) -> str:
        """Return where the record lies that was read last."""
        return _place(self._shard, self._count) if self._shard is not None else "no record"

    def done(self) -> None:
        """Report the shards as done."""
        for shard, count in self._shards:
            self._windows.done(shard, count)
        self._shards.clear()


class Windows:
    """The windows of an input. `source`: of its shards; `least`: records of a window; both may be replaced between two windows.

    `ledger`: the numbers of the shards that are done, where no master keeps them: they are read no second time.
    """

    def __init__(
        self, source: Any, form: Any, least: int, *, ledger: set[int] | None = None,
        report: Callable[[Any, int], None] = lambda shard, records: shard.done(records),
    ) -> None:  # fmt: skip
        self.source, self.form, self.ledger = source, form, ledger
        self.least, self._report = least, report
        self._ahead: Any = None  # a shard that was taken for a window, and is of another one

    def next(self, wait: bool = True) -> Window | None:
        """Return the next window. None: there is none any more, or none now where this must not wait."""
        shard = self._take(None if wait else False)
        return None if shard is None else Window(self, shard, self.least)

    def take(self, epoch: int) -> Any:
        """Return a further shard of an epoch, where there is one now."""
        shard = self._take(False)
        if shard is not None and shard.epoch != epoch:
            self._ahead = shard
            return None
        return shard

    def first_record(self) -> Any:
        """Return a record that is yet to come, None where there is none."""
        while (shard := self._take(None)) is not None:
            record = next(iter(self.form.records(shard)), None)
            if record is not None:
                self._ahead = shard
                return record
            self.done(shard, 0)
        return None

    def done(self, shard: Any, records: int) -> None:
        self._report(shard, records)
        if self.ledger is not None:
            self.ledger.add(shard.number)

    def close(self) -> None:
        self.source.close()

    def _take(self, wait: bool | None) -> Any:
        shard, self._ahead = self._ahead, None
        if shard is None:
            shard = self.source.next(wait)
        while shard is not None and self.ledger is not None and shard.number in self.ledger:
            shard = self.source.next(wait)
        return shard


def source_of(name: str, place: str, form: Form, epochs: int = 1) -> Any:
    """Return the source of the shards of an input: those that the master leases, or, alone, of the files at `place`. Raises BadModel."""
    shards = runtime.shards(name, default=place, epochs=epochs, format=form.format_of(place))
    return _opened(name, place, shards._source)


def whole_source_of(name: str, place: str, form: Form, is_only: bool) -> Any:
    """Return a source of all shards of an input, which others do not share: those of the files at its path, or at `place`.

    Where the job's input has no path, as it is `as: shards`, the only task (`is_only`) leases all of them. Raises BadModel.
    """
    path = os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", "")
    is_leased = path == name and bool(os.environ.get("TRAINMASTER_SOCKET"))
    if is_leased and is_only:
        return runtime.shards(name)._source()
    if is_leased and not os.path.exists(place):
        raise BadModel(
            f"the input {name} is `as: shards`, and one worker of several must read all of it",
            place=f"inputs.{name}",
            mend="write `as: download` and `split: whole` there",
        )
    files = place if is_leased else path or place
    return _opened(name, place, lambda: Files(files, form.format_of(files)))


class Whole:
    """All of an input, which can be read several times. The shards of `source` are done at `finish`, so whoever begins again has all."""

    def __init__(self, source: Any, form: Any) -> None:
        self.form = form
        self._source = source
        self._shards: list[Any] = []
        self._records: dict[int, int] = {}  # by the numbers of the shards that were read

    def windows(self, least: int) -> Windows:
        """Return windows of all shards."""
        if not self._shards:
            while (shard := self._source.next(False if self._shards else None)) is not None:
                self._shards.append(shard)
        return Windows(Remaining(self._shards), self.form, least, report=self._note)

    def _note(self, shard: Any, records: int) -> None:
        self._records[shard.number] = records

    def finish(self) -> None:
        """Report all that was read as done."""
        for shard in self._shards:
            if shard.number in self._records:
                shard.done(self._records[shard.number])
        self._source.close()


class Remaining:
    """A source of shards that are there already."""

    def __init__(self, shards: Iterable[Any]) -> None:
        self._shards = iter(shards)

    def next(self, wait: bool | None = None) -> Any:
        return next(self._shards, None)

    def close(self) -> None:
        """Do nothing: whoever made the shards ends them."""


class Files(Remaining):
    """The source of all shards of the files at a place. Raises FileNotFoundError."""

    def __init__(self, place: str, format_name: str) -> None:
        from ...runtime.inputs import Shard
        from ...runtime.reading import Reader, cut_alone

        if not place:
            raise FileNotFoundError
        self.reader = Reader("utf-8", "surrogateescape")
        cuts = cut_alone(place, format_name)
        super().__init__(Shard(self, number, 0, *cut) for number, cut in enumerate(cuts))  # type: ignore[arg-type]

    def done(self, shard: Any, records: int | None) -> None:
        """Do nothing: nobody counts them."""

    def close(self) -> None:
        self.reader.close()


def _opened(name: str, place: str, opened: Callable[[], Any]) -> Any:
    try:
        return opened()
    except FileNotFoundError as error:
        flag = f"--{name}_data"
        if place:
            raise BadModel(str(error), place=f"{flag}: {place}") from None
        raise BadModel(f"{flag} is needed where no job has an input {name}") from None
