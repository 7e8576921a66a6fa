"""Open files of other machines in the program itself: by libraries of its own environment, else by those that came with its container.

A container of a cluster has fsspec, and obstore or hdfs-native where its job names such a place. The program finds them only here, and only
where an import of its own environment has failed: last on its path, for they must not change what it imports.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

_OBJECTS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "abfs", "abfss": "abfss"}
_BLOCK = 1 << 20  # bytes asked for at once
_HAND_OVER = 0.02  # s


def open_binary(path: str) -> BinaryIO:
    """Open for reading a local path, a file:// URL, one of HDFS or of an object store, or any URL that fsspec knows."""
    scheme, split, rest = path.partition("://")
    scheme = scheme.lower()
    if not split:
        return open(path, "rb")
    if scheme == "file":
        from urllib.parse import unquote, urlsplit

        return open(unquote(urlsplit(path).path), "rb")
    if scheme in ("hdfs", "viewfs"):
        return _open_hdfs(path)
    opened: BinaryIO
    if scheme in _OBJECTS and (store := _object_store(_OBJECTS[scheme])) is not None:
        opened = store.open(rest, "rb")
    else:
        opened = library("fsspec", path).open(path, "rb").open()
    return opened


def library(module: str, path: str) -> Any:
    """Import a module that this package does not bring. Raises OSError where it is nowhere."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        if (folder := _bundled_folder()) and folder not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(module)  # once more in any case: another thread may have appended it meanwhile
    except ImportError as error:
        raise OSError(f"{path}: reading this needs {module} in the program's environment") from error


def _bundled_folder() -> str:
    """Return the folder of the libraries that came with a container; "" where this package was installed, or belongs to a program."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    return folder if os.path.exists(os.path.join(os.path.dirname(folder), "begin.py")) else ""


@functools.cache
def _object_store(protocol: str) -> Any:
    """Return an object store by obstore, as agents open it; None where there is no obstore."""
    try:
        store = library("obstore.fsspec", protocol).FsspecStore
    except OSError:
        return None
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((os.environ[name] for name in names if os.environ.get(name)), "")
    # A thread of obstore that comes back for the interpreter's lock at shutdown aborts the process (before CPython 3.14).
    atexit.register(time.sleep, _HAND_OVER)
    return store(protocol, client_options={"allow_http": True} if endpoint.startswith("http://") else {})


def _open_hdfs(path: str) -> BinaryIO:
    """Open a file by hdfs-native itself: its fsspec class cuts names at "?" and "#", and readline() there asks a DataNode for each byte."""
    import io

    scheme, _, rest = path.partition("://")
    authority, slash, name = rest.partition("/")
    client = library("hdfs_native", path).Client
    try:
        file = client(f"{scheme}://{authority}").read(slash + name)
    except RuntimeError as error:
        if "No NameNode hosts" not in str(error):
            raise OSError(f"{path}: {error}") from error
        file = client(f"{scheme}://{authority}:8020").read(slash + name)  # a NameNode's port where the URL has none

    class Blocks(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            data = file.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)

        def seek(self, offset: int, whence: int = 0) -> int:
            file.seek(offset, whence)
            return self.tell()

        def tell(self) -> int:
            return int(file.tell())

    return io.BufferedReader(Blocks(), _BLOCK)
