"""The programs of a cluster, built once from the Go modules next to this file, and kept in the user's cache.

`hyperkube` is every daemon of Kubernetes and etcd in one static binary, `coredns` its DNS, `pause` the first process of each pod. Their
directory, `$XDG_CACHE_HOME/trainmaster/kubernetes-<digest of the modules' files and flags>`, gets its name when it is complete, so that an
interrupted build leaves nothing that looks like one; its compiled packages are in Go's own cache and are not compiled again. A process that
needs the programs meanwhile waits for the one that builds them. Images (`images`) are kept in the same directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.host.places import cache_dir

Say = Callable[[str], None]

MODULES = Path(__file__).parent
VERSION = "1.33.13"  # of Kubernetes, as hyperkube/go.mod has it
_NAMES = ("pause", "coredns", "hyperkube")
_FILES = ("go.mod", "go.sum", "main.go")
_GO = (1, 24)
_MAJOR, _MINOR, _ = VERSION.split(".")
_VERSION_VARIABLES = {
    "k8s.io/component-base/version.gitVersion": f"v{VERSION}",
    "k8s.io/component-base/version.gitMajor": _MAJOR,
    "k8s.io/component-base/version.gitMinor": _MINOR,
    "k8s.io/client-go/pkg/version.gitVersion": f"v{VERSION}",
}
_FLAGS = {
    "pause": ["-ldflags", "-s -w"],
    "coredns": ["-ldflags", "-s -w"],
    "hyperkube": [
        *("-tags", "selinux_off,osusergo,netgo"),
        *("-ldflags", " ".join(["-s -w", *(f"-X {name}={value}" for name, value in _VERSION_VARIABLES.items())])),
    ],
}
_PROGRESS_EVERY = 20.0  # s between two lines of progress


def folder() -> Path:
    """Return the directory of the binaries, whether it exists or not."""
    digest = hashlib.sha256(repr(sorted(_FLAGS.items())).encode())
    for name in _NAMES:
        for file in _FILES:
            path = MODULES / name / file
            digest.update(path.read_bytes() if path.exists() else b"")
    return cache_dir() / f"kubernetes-{digest.hexdigest()[:12]}"


def there() -> bool:
    """Tell whether the binaries are built already."""
    return folder().is_dir()


def binaries(say: Say = lambda line: None) -> Path:
    """Return the directory of the binaries; build them if need be, and tell `say` of that.

    Raises BadInput without Go, and EngineFailed where the build fails.
    """
    place = folder()
    if place.is_dir():
        return place
    with alone(place):
        if not place.is_dir():
            go = _go()
            say(
                f"building Kubernetes {VERSION} into {place}, once; minutes on a small machine, and about 160 MB are downloaded"
            )
            with tempfile.TemporaryDirectory(prefix=".building-", dir=place.parent) as scratch:
                for name in _NAMES:
                    _build(go, name, Path(scratch) / "made" / name, say)
                os.rename(f"{scratch}/made", place)
    return place


def go_missing() -> str:
    """Return the name of the Go version that is missing, "" where the installed one will do."""
    go = shutil.which("go")
    if go is None:
        return "Go"
    printed = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"go(\d+)\.(\d+)", printed)
    if version and (int(version[1]), int(version[2])) >= _GO:
        return ""
    # Go 1.21 and later download the version that a module needs, where they may.
    return (
        ""
        if version and (int(version[1]), int(version[2])) >= (1, 21)
        else f"Go {_GO[0]}.{_GO[1]} (this is {printed.strip() or go})"
    )


def _go() -> str:
    if missing := go_missing():
        raise BadInput(
            f"{missing} is missing, which builds Kubernetes' daemons, once",
            mend="get it: https://go.dev/dl, or apt-get install golang where that is 1.21 or later",
            anchor="no-kubernetes-parts",
        )
    go = shutil.which("go")
    assert go
    return go


def _build(go: str, name: str, goal: Path, say: Say) -> None:
    """Build one program, and tell `say` of the progress."""
    environ = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    environ.pop("GOFLAGS", None)
    packages = subprocess.run(
        [go, "list", "-deps", "-mod=readonly", *_FLAGS[name], "."], cwd=MODULES / name, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if packages.returncode != 0:
        raise _failed(name, packages.stderr.splitlines())
    count = len(packages.stdout.splitlines())
    command = [go, "build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath", *_FLAGS[name], "-o", str(goal), "."]
    began = last_report = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=MODULES / name, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line.rstrip())
                if time.monotonic() - last_report > _PROGRESS_EVERY:
                    last_report = time.monotonic()
                    compiled = sum(not text.startswith("go: ") for text in lines)
                    say(f"  {name}: {compiled} of {count} packages compiled after {last_report - began:.0f} s")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _failed(name, lines)


def _failed(name: str, lines: list[str]) -> EngineFailed:
    return EngineFailed(
        f"Go could not build {name}:\n  " + "\n  ".join(lines[-8:]),
        mend="see that this machine reaches a proxy for Go modules: go env GOPROXY",
        anchor="no-download",
    )


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Lock `place`, so that one process at a time makes it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
