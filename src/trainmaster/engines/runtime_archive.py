"""The one archive that a container needs: our code and what it stands on, for any CPython >= 3.11 of the submitter's platform.

It is a `tar.gz` of `start`, a shell script that finds such a Python, `begin.py`, and `lib/`, with the bytecode of the Python that made it.
What is in it is taken from where it is installed, so it is what the submitter runs. Compiled modules are refused unless they are `abi3`:
those of one Python version are left out where the package works without (websockets' `speedups`). The same content gives the same bytes,
and its digest is its name, so it is uploaded once and shared by all jobs. Making it takes seconds, and happens once for each state of the
installed files.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import io
import marshal
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.engines.statuses import NO_PYTHON
from trainmaster.log.storage import draft_of, remove_drafts

DISTRIBUTIONS = (
    "anyio", "attrs", "click", "fsspec", "h11", "hdfs-native", "idna", "nvidia-ml-py", "protobuf", "psutil", "starlette",
    "typing_extensions", "uvicorn", "websockets",
)  # fmt: skip
_WHERE_INSTALLED = ("obstore",)  # for jobs with object stores
_OURS = ("cli", "clusters", "integrations", "simulation")  # ours that no container runs
_BEGIN = """\
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from importlib import import_module
module, _, name = sys.argv[1].partition(":")
sys.exit(getattr(import_module(module), name)())
"""
_START = f"""\
#!/bin/sh
# Become MODULE:FUNCTION with the first Python >= 3.11: the job's own, else one that this node's PATH finds. What PATH finds may be a script
# that looks for Python in its turn (pyenv), so Python itself says where it is, and YARN's containers of one job keep that on each node.
here=${{0%/*}}
kept=
[ -n "$LOCAL_DIRS" ] && [ -z "$YARN_CONTAINER_RUNTIME_TYPE" ] && kept=${{LOCAL_DIRS%%,*}}/trainmaster-python
[ -n "$kept" ] && read -r found 2>/dev/null <"$kept" && [ -x "$found" ] && exec "$found" -I -S "$here/begin.py" "$@"
for python in "$TRAINMASTER_PYTHON" python3 python3.14 python3.13 python3.12 python3.11; do
  [ -n "$python" ] || continue
  found=$("$python" -I -S -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)
  [ -n "$found" ] || continue
  [ -n "$kept" ] && echo "$found" 2>/dev/null >"$kept.$$" && mv "$kept.$$" "$kept"
  exec "$found" -I -S "$here/begin.py" "$@"
done
echo "no Python >= 3.11 on $(hostname): name one by environment.path, archive or requirements" >&2
exit {NO_PYTHON}
"""


def archive(folder: Path, known: str = "", without: Collection[str] = ()) -> Path:
    """The archive, `<digest>.tar.gz` below `folder`; made where it is not there yet. `known`: the `state` of its files, from a moment ago.
    `without`: packages that its job has no use for.

    Raises BadInput where a package is missing.
    """
    if known and (made := _made(folder / known)):
        return made
    found = files(without)
    place = folder / state(found)
    if made := _made(place):
        return made
    content = _packed(found)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_drafts(str(folder))
    draft = Path(draft_of(str(place / "archive")))  # several threads may make it at once
    try:
        draft.write_bytes(content)
        return draft.rename(place / f"{hashlib.sha256(content).hexdigest()[:32]}.tar.gz")
    finally:
        draft.unlink(missing_ok=True)


def state(files: Sequence[tuple[str, str]]) -> str:
    """What changes with any of the files that are packed, or with how."""
    state = hashlib.sha256(repr((sys.implementation.cache_tag, _START, _BEGIN)).encode())
    for name, path in files:
        found = os.stat(path)
        state.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


def files(without: Collection[str] = ()) -> list[tuple[str, str]]:
    """(name in `lib/`, path) of all that is packed, but for bytecode. Raises BadInput where a package is missing."""
    return sorted(_files(without))


def _made(place: Path) -> Path | None:
    """Return the archive of a state, which is used now; None where it is not made."""
    made = next(place.glob("*.tar.gz"), None)
    if made is not None:
        with contextlib.suppress(FileNotFoundError):  # it is being removed: who reads it will say so
            os.utime(place)  # its last use, for `tm prune`
    return made


def _files(without: Collection[str]) -> Iterator[tuple[str, str]]:
    import importlib.metadata  # 20 ms, which who only asks the cluster need not wait for

    ours = str(Path(__file__).parent.parent)
    for folder, folders, names in os.walk(ours):
        folders[:] = [name for name in folders if name != "__pycache__" and (folder != ours or name not in _OURS)]
        for name in names:
            path = os.path.join(folder, name)
            yield f"trainmaster{path.removeprefix(ours)}", path
    for distribution in (*DISTRIBUTIONS, *_WHERE_INSTALLED):
        if distribution in without:
            continue
        try:
            installed = importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError as error:
            if distribution in _WHERE_INSTALLED:
                continue
            raise BadInput(
                f"{distribution} is not installed, and containers need it",
                mend="in a clone of Trainmaster: pip install '.[yarn]'",
                anchor="engine-not-installed",
            ) from error
        root = str(installed.locate_file(""))
        for file in installed.files or ():
            if _wanted(file.parts):
                yield str(file), os.path.join(root, file)


def _wanted(parts: Sequence[str]) -> bool:
    name = parts[-1]
    if ".." in parts or "__pycache__" in parts or "tests" in parts or parts[0].endswith((".dist-info", ".egg-info")):
        return False
    if ".so" in name or name.endswith(".pyd"):
        return ".abi3." in name
    return not name.endswith((".pyi", ".pth", ".typed", ".c", ".h", ".a"))


def _packed(files: Sequence[tuple[str, str]]) -> bytes:
    import tarfile

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, content: bytes, mode: int = 0o644) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))

        add("start", _START.encode(), 0o755)
        add("begin.py", _BEGIN.encode())
        for name, path in files:
            content = Path(path).read_bytes()
            add(f"lib/{name}", content)
            if name.endswith(".py"):
                folder, _, module = name.rpartition("/")
                cached = f"lib/{folder}/__pycache__/{module[:-3]}.{sys.implementation.cache_tag}.pyc".replace("//", "/")
                add(cached, _bytecode(name, content))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        file.write(plain.getbuffer())
    return packed.getvalue()


def _bytecode(name: str, source: bytes) -> bytes:
    """An unchecked hash-based pyc (PEP 552): the archive's times mean nothing."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code)
