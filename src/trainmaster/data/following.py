"""Copy the files of an input to this machine, and copy what comes to them later: new files, and more bytes of files that grow.

A program then reads remote files as files of its own machine, in any library and any version. Event files of TensorBoard are the usual
case: TensorFlow's own file system knows neither `hdfs://` nor `s3://`.

Each look lists the files. A file whose size or stamp differs from the last look is read from the end of the copy on. A file was replaced if
it is shorter than its copy, has another stamp at the same size, or has other bytes where the copy ends. Then it is copied anew. A file that
its writer holds open may have more content than its size says (HDFS): such a file is read at each look.
"""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

import attrs

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.input.splits import File
from trainmaster.data.sources import list_input
from trainmaster.data.store.stores import Store, store_for
from trainmaster.data.store.transfer import CHUNK, safe_path, writing

_COMPARED = 64 * 1024  # bytes before the end of a copy that must still be in its file


@attrs.define
class Following:
    """The copy in `folder` of the files that `url` names. It ends early once `stop` is set."""

    url: str
    folder: str
    stop: threading.Event = attrs.field(factory=threading.Event)
    _seen: dict[str, tuple[int, str]] = attrs.field(factory=dict, init=False)
    _open: dict[str, str] = attrs.field(factory=dict, init=False)  # open file, with bytes beyond its size -> its stamp

    def look(self) -> None:
        """Bring the copy up to date. Blocks. Raises TrainmasterError, and OSError as the storage does."""
        os.makedirs(self.folder, exist_ok=True)
        try:
            listing = list_input(self.url)
        except BadInput as error:
            if error.anchor != "no-input":  # else nothing was written there yet
                raise
            return
        store = store_for(listing.prefix)
        failures: list[Exception] = []
        for file in listing.files:
            name = listing.relative(file)
            if self._seen.get(name) == (file.size, file.stamp):
                continue
            try:
                if (whole := self._copy(store, name, file)) is not None:
                    self._seen[name] = whole.size, whole.stamp
            except (TrainmasterError, OSError) as error:  # the other files come all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def _copy(self, store: Store, name: str, file: File) -> File | None:
        """Copy what the copy lacks. Return the file if the copy has all of it; None where the storage may have more."""
        if self.stop.is_set():
            return None
        path = safe_path(self.folder, name, "a file of the input")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a+b") as copy:
            if self._was_replaced(store, name, file, copy):
                copy.truncate(0)
                self._open.pop(name, None)
            copy.seek(0, os.SEEK_END)
            while (size := min(CHUNK, file.size - copy.tell())) > 0:
                data = store.read(name, copy.tell(), size)
                if not data or self.stop.is_set():
                    break
                with writing(path, size):
                    copy.write(data)
                    copy.flush()
            if copy.tell() < file.size:
                return None
            while more := store.read_flushed(name, copy.tell(), CHUNK):
                self._open[name] = file.stamp
                with writing(path, len(more)):
                    copy.write(more)
                    copy.flush()
                if self.stop.is_set():
                    return None
            if more is not None:
                return None
            if self._open.pop(name, None) is None:
                return file
            closed = store.look(name)  # the listing is of a time when it was open
            if closed is not None and closed.size < copy.tell():
                copy.truncate(closed.size)
            return closed if closed is not None and closed.size == copy.tell() else None

    def _was_replaced(self, store: Store, name: str, file: File, copy: BinaryIO) -> bool:
        length = copy.seek(0, os.SEEK_END)
        if name in self._open:
            if length > file.size and file.stamp != self._open[name]:
                return True
            length = min(length, file.size)
        elif length >= file.size:
            return length > file.size or name in self._seen
        end_at = max(0, length - _COMPARED)
        copy.seek(end_at)
        end = copy.read(length - end_at)
        return store.read(name, length - len(end), len(end)) != end if end else False
