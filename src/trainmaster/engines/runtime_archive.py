"""The one archive that a container needs: our code and the packages that it uses, for any CPython >= 3.11 of the submitter's platform.

It is a `tar.gz` of `start`, a shell script that finds such a Python, `begin.py`, and `lib/`, with the bytecode of the Python that made it.
Its files are those installed at the submitter, so a container runs the same code. For an engine or a framework of another package it has
that package too, with the entry point by which the master finds it. Compiled modules are taken only if they are `abi3`. Those of one Python
version are left out, and their package works without them (websockets' `speedups`). The same content gives the same bytes, and its digest
is its name, so it is uploaded once and shared by all jobs. Making it takes seconds, and happens once for each state of the installed files.
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
from typing import TYPE_CHECKING

from trainmaster import plugins
from trainmaster.core.errors import BadInput
from trainmaster.engines.registry import DEFAULT, entry_point
from trainmaster.engines.statuses import NO_PYTHON
from trainmaster.log.storage import draft_of, remove_drafts

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DISTRIBUTIONS = (
    "anyio", "attrs", "click", "fsspec", "h11", "hdfs-native", "idna", "jinja2", "markupsafe", "nvidia-ml-py", "protobuf",
    "starlette", "typing_extensions", "uvicorn", "websockets",
)  # fmt: skip
_WHERE_INSTALLED = ("obstore",)  # for jobs with object stores
_LEFT_OUT = ("cli", "clusters", "integrations", "simulation", "spark")  # our packages that no container runs
_BEGIN = """\
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from importlib import import_module
module, _, name = sys.argv[1].partition(":")
sys.exit(getattr(import_module(module), name)())
"""
_START = f"""\
#!/bin/sh
# Become MODULE:FUNCTION with the first Python >= 3.11: the job's own, else one that this node's PATH finds. PATH may find a script
# that looks for Python in its turn (pyenv). So Python itself says where it is, and YARN's containers of one job keep that on each node.
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


def archive(
    folder: Path, known: str = "", without: Collection[str] = (), engine: str = DEFAULT, framework: EntryPoint | None = None
) -> Path:  # fmt: skip
    """Return the path of the archive, `<digest>.tar.gz` below `folder`; make it where it does not exist yet.

    `known`: the `state` of its files, from a moment ago. `without`: packages that its job has no use for. `engine`: the job's.
    `framework`: the job's, where another package adds it. Raises BadInput where a package is missing.
    """
    if known and (existing := _existing_archive(folder / known)):
        return existing
    sources = files(without, engine, framework)
    place = folder / state(sources)
    if existing := _existing_archive(place):
        return existing
    content = _archive_bytes(sources)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_drafts(str(folder))
    draft = Path(draft_of(str(place / "archive")))  # several threads may make the archive at once
    try:
        draft.write_bytes(content)
        return draft.rename(place / _name(content))
    finally:
        draft.unlink(missing_ok=True)


def _name(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:32]}.tar.gz"


def state(files: Sequence[tuple[str, str]]) -> str:
    """Return a digest that changes with any of the packed files, and with the way in which they are packed."""
    digest = hashlib.sha256(repr((sys.implementation.cache_tag, _START, _BEGIN)).encode())
    for name, path in files:
        status = os.stat(path)
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def files(
    without: Collection[str] = (), engine: str = DEFAULT, framework: EntryPoint | None = None
) -> list[tuple[str, str]]:
    """Return (name in `lib/`, path) of all that is packed, except bytecode. Raises BadInput where a package is missing."""
    added = {*plugins.files(entry_point(engine)), *plugins.files(framework)}  # one package may add both
    return sorted([*_files(without), *added])


def _existing_archive(place: Path) -> Path | None:
    """Return the archive of a state and mark it as used now; None where there is none, or only a damaged one, which is made again."""
    path = next(place.glob("*.tar.gz"), None)
    if path is not None and path.name != _name(path.read_bytes()):
        path.unlink(missing_ok=True)
        return None
    if path is not None:
        with contextlib.suppress(FileNotFoundError):  # it is being removed: whoever reads it gets the error
            os.utime(place)  # its last use, for `tm prune`
    return path


def _files(without: Collection[str]) -> Iterator[tuple[str, str]]:
    import importlib.metadata  # 20 ms, which a command that only asks the cluster need not spend

    yield from plugins.package_files("trainmaster", str(Path(__file__).parent.parent), _LEFT_OUT)
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
                mend="in a clone of Trainmaster: pip install '.[hdfs]'",
                anchor="engine-not-installed",
            ) from error
        root = str(installed.locate_file(""))
        for file in installed.files or ():
            if _is_needed(file.parts):
                yield str(file), os.path.join(root, file)


def _is_needed(parts: Sequence[str]) -> bool:
    name = parts[-1]
    if ".." in parts or "__pycache__" in parts or "tests" in parts or parts[0].endswith((".dist-info", ".egg-info")):
        return False
    if ".so" in name or name.endswith(".pyd"):
        return ".abi3." in name
    return not name.endswith((".pyi", ".pth", ".typed", ".c", ".h", ".a"))


def _archive_bytes(files: Sequence[tuple[str, str]]) -> bytes:
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
    compressed = io.BytesIO()
    with gzip.GzipFile(fileobj=compressed, mode="wb", compresslevel=6, mtime=0) as file:
        file.write(plain.getbuffer())
    return compressed.getvalue()


def _bytecode(name: str, source: bytes) -> bytes:
    """Return an unchecked hash-based pyc (PEP 552): the archive's times mean nothing."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code)
