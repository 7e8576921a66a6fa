"""Copy the files of an input to this machine, and copy what comes to them later: new files, and more bytes of files that grow.

A program then reads remote files as files of its own machine, in any library and any version. Event files of TensorBoard are the usual
case: TensorFlow's own file system knows neither `hdfs://` nor `s3://`.

Each look lists the files. A file whose size or stamp differs from the last look is read from the end of the copy on. A file that is shorter
than its copy was replaced, and is copied anew.
"""

from __future__ import annotations

import os
import threading

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.input.splits import File
from trainmaster.data.sources import list_input
from trainmaster.data.store.stores import Store, store_for
from trainmaster.data.store.transfer import CHUNK, safe_path, writing


@attrs.define
class Following:
    """The copy in `folder` of the files that `url` names. It ends early once `stop` is set."""

    url: str
    folder: str
    stop: threading.Event = attrs.field(factory=threading.Event)
    _seen: dict[str, tuple[int, str]] = attrs.field(factory=dict, init=False)

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
        for file in listing.files:
            name, version = listing.relative(file), (file.size, file.stamp)
            if self._seen.get(name) != version and self._copy(store, name, file):
                self._seen[name] = version

    def _copy(self, store: Store, name: str, file: File) -> bool:
        """Copy what the copy lacks. Return whether it is whole: the storage may not give all bytes yet."""
        path = safe_path(self.folder, name, "a file of the input")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as copy:
            if copy.tell() > file.size:
                copy.truncate(0)
                copy.seek(0)
            while not self.stop.is_set() and (size := min(CHUNK, file.size - copy.tell())):
                data = store.read(name, copy.tell(), size)
                if not data:
                    break
                with writing(path, size):
                    copy.write(data)
                    copy.flush()
            return copy.tell() == file.size
