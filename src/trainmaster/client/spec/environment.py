"""`environment:` on this machine: which interpreter and libraries the programs find first.

A path is used as it is. An archive, and what a requirements file asks for, becomes a directory of the state directory, named by its content
and, where packages are installed, by the interpreter that they are for; it is made once and shared by the jobs that name the same. The
programs find it by PATH, as in a shell in which it was activated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import attrs

from trainmaster.client.jobs.places import kept, state_dir
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Environment

_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WHOLE = ".whole"
_WITHIN = 1800.0  # s for an installation
_WHICH = "import sys; print(sys.version, sys.base_prefix)"  # its path says little: it may be a shim that starts another one by its name


def activated(wanted: Environment, base: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the environment activated; the same where none is wanted. Raises BadInput, naming the key. Images are the engine's."""
    if wanted.path:
        root = base / os.path.expanduser(wanted.path)
    elif wanted.archive:
        archive = base / os.path.expanduser(wanted.archive)
        root = made("archive", archive, "", lambda place: _unpacked(archive, place))
    elif wanted.requirements:
        listed = base / os.path.expanduser(wanted.requirements)
        python = shutil.which("python3", path=environ.get("PATH")) or sys.executable
        told = done("requirements", [python, "-c", _WHICH], environ)
        root = made("requirements", listed, told, lambda place: _installed(listed, place, python, environ))
    else:
        return dict(environ)
    if not root.is_dir():
        raise wrong("path", str(root), "there is no such directory", "check the path")
    if not (root / "bin").is_dir():
        key = "path" if wanted.path else "archive"
        raise wrong(
            key,
            str(root),
            "it has no directory bin, so it is no environment",
            "name one made by conda, venv or their pack tools",
        )
    from trainmaster.agent.attempt.activation import activate

    return activate(root, environ)


def placed(wanted: Environment, base: Path, here: bool) -> Environment:
    """With absolute paths. Raises BadInput where what is used of this machine is not there; `here`: the programs run on it."""
    found = {key: getattr(wanted, key) for key in ("path", "archive", "requirements")}
    found = {
        key: given and (given if _URL.match(given) else str(base / os.path.expanduser(given)))
        for key, given in found.items()
    }
    key = next((key for key, given in found.items() if given), "path")  # the first is used, as below
    if here and key == "archive" and _URL.match(found[key]):
        raise wrong(key, found[key], "on this machine an archive is a file, not a URL", "fetch it, and name its path")
    is_there = os.path.isdir if key == "path" else os.path.isfile
    ours = found[key] and (here or key != "path") and (here or not _URL.match(found[key]))
    if ours and not is_there(found[key]):
        raise wrong(key, found[key], f"there is no such {'directory' if key == 'path' else 'file'}", "check the path")
    return attrs.evolve(
        wanted,
        **{key: given and (given if _URL.match(given) else os.path.normpath(given)) for key, given in found.items()},
    )


def made(key: str, source: Path, more: str, make: Callable[[Path], None]) -> Path:
    """The directory made of `source`, and of `more`: made now, or by an earlier job. `key`: of `environment:`, for messages."""
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise wrong(key, str(source), f"it cannot be read: {error.strerror}", "check the path") from error
    digest.update(more.encode())
    place = state_dir() / "environments" / digest.hexdigest()[:32]
    with _lock_file(place.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two who need the same, one makes it
        if not (place / _WHOLE).exists():
            print(f"making the environment of {source}, once for all jobs that name it", file=sys.stderr, flush=True)
            shutil.rmtree(place, ignore_errors=True)  # what somebody began who died
            make(place)
            (place / _WHOLE).touch()
        os.utime(place)  # its last use, for `tm prune`
    return place


def _lock_file(path: Path) -> IO[str]:
    with kept("keep the environment", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path.open("w")


def _unpacked(archive: Path, place: Path) -> None:
    from trainmaster.data.archives import unpack

    unpack(str(archive), str(place), absolute_links=True)
    fix = place / "bin" / "conda-unpack"  # conda-pack leaves it: paths inside are those of where it was packed
    if fix.exists():
        done("archive", [str(place / "bin" / "python"), str(fix)], os.environ)


def _installed(listed: Path, place: Path, python: str, environ: Mapping[str, str]) -> None:
    """A virtual environment with what is listed; made where it stays, for it knows its own place."""
    uv = shutil.which("uv", path=environ.get("PATH"))
    done("requirements", [python, "-m", "venv", str(place)], environ)
    here = str(place / "bin" / "python")
    install = [uv, "pip", "install", "--python", here] if uv else [here, "-m", "pip", "install", "--quiet"]
    done("requirements", [*install, "-r", str(listed)], environ)


def done(key: str, command: list[str], environ: Mapping[str, str]) -> str:
    """What the command says on stdout."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=dict(environ), timeout=_WITHIN
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise wrong(
            key, " ".join(command), f"it failed: {said[0] if said else error}", "run it by hand to see all of it"
        ) from error


def wrong(key: str, value: str, why: str, mend: str) -> BadInput:
    """What is wrong with `environment.<key>`."""
    return BadInput(
        f"the environment cannot be used: {why}", place=f"environment.{key}: {value}", mend=mend, anchor="environment"
    )
