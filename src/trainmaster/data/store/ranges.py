"""Files of stores as Python's file objects, for libraries that read ranges of them, as pyarrow reads Parquet."""

from __future__ import annotations

import io
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from trainmaster.data.store.stores import Store, store_for


class RangeFile(io.RawIOBase):
    """A file of a store, open for reading; each `read` is one range. Raises FileNotFoundError where it is not there."""

    def __init__(self, store: Store, path: str) -> None:
        if (file := store.look(path)) is None:
            raise FileNotFoundError(f"{store.url}/{path}")
        self._store, self._path, self._size, self._at = store, path, file.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        rest = max(self._size - self._at, 0)
        content = self._store.read(self._path, self._at, rest if size < 0 else min(size, rest))
        self._at += len(content)
        return content


def open_range_file(uri: str) -> RangeFile:
    """Open a file by its URL, whose path is percent-encoded. Raises BadInput for an unknown scheme, and the storage's own errors."""
    url = urlsplit(uri)
    return RangeFile(_store(f"{url.scheme}://{url.netloc}"), unquote(url.path).lstrip("/"))


@lru_cache(8)
def _store(url: str) -> Store:
    return store_for(url)
