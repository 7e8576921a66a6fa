"""The programs of a cluster, built once out of the Go modules beside this file, and kept in the user's cache.

`hyperkube` is every daemon of Kubernetes and etcd in one static binary, `coredns` its DNS, `pause` the first process of each pod. Their
directory, `$XDG_CACHE_HOME/trainmaster/kubernetes-<digest of the modules' files and flags>`, gets its name when it is whole, so that a
build that is broken off leaves nothing that looks like one; what it compiled is in Go's own cache and is not compiled again. Whoever
wants them meanwhile waits for whoever builds. Images (`images`) are kept in the same directory.
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

from trainmaster.clusters.hadoop.jars import cache_dir
from trainmaster.core.errors import BadInput, EngineFailed

Say = Callable[[str], None]

MODULES = Path(__file__).parent
VERSION = "1.33.13"  # of Kubernetes, as hyperkube/go.mod has it
_NAMES = ("pause", "coredns", "hyperkube")
_FILES = ("go.mod", "go.sum", "main.go")
_GO = (1, 24)
_MAJOR, _MINOR, _ = VERSION.split(".")
_SAID = {
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
        *("-ldflags", " ".join(["-s -w", *(f"-X {name}={value}" for name, value in _SAID.items())])),
    ],
}
_PACKAGES = {"pause": 60, "coredns": 1000, "hyperkube": 2000}  # about how many Go compiles
_EACH = 20.0  # s between two lines of progress


def folder() -> Path:
    """Where the binaries are, or would be."""
    digest = hashlib.sha256(repr(sorted(_FLAGS.items())).encode())
    for name in _NAMES:
        for file in _FILES:
            path = MODULES / name / file
            digest.update(path.read_bytes() if path.exists() else b"")
    return cache_dir() / f"kubernetes-{digest.hexdigest()[:12]}"


def there() -> bool:
    """Whether they are built already."""
    return folder().is_dir()


def binaries(say: Say = lambda line: None) -> Path:
    """The directory of the binaries, built if need be, which is told to `say`. BadInput without Go, EngineFailed where it cannot."""
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
    """What of Go is missing, "" where it will do."""
    found = shutil.which("go")
    if found is None:
        return "Go"
    said = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"go(\d+)\.(\d+)", said)
    if version and (int(version[1]), int(version[2])) >= _GO:
        return ""
    # Go 1.21 and later get the version that a module wants by themselves, where they may.
    return (
        ""
        if version and (int(version[1]), int(version[2])) >= (1, 21)
        else f"Go {_GO[0]}.{_GO[1]} (this is {said.strip() or found})"
    )


def _go() -> str:
    if missing := go_missing():
        raise BadInput(
            f"{missing} is missing, which builds Kubernetes' daemons, once",
            mend="get it: https://go.dev/dl, or apt-get install golang where that is 1.21 or later",
            anchor="no-kubernetes-parts",
        )
    found = shutil.which("go")
    assert found
    return found


def _build(go: str, name: str, goal: Path, say: Say) -> None:
    """Build one, and tell how far it is."""
    command = [go, "build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath", *_FLAGS[name], "-o", str(goal), "."]
    environ = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    environ.pop("GOFLAGS", None)
    began = told = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=MODULES / name, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line.rstrip())
                if time.monotonic() - told > _EACH:
                    told = time.monotonic()
                    done = sum(not one.startswith("go: ") for one in lines)
                    say(f"  {name}: {done} of about {_PACKAGES[name]} packages compiled after {told - began:.0f} s")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise EngineFailed(
            f"Go could not build {name}:\n  " + "\n  ".join(lines[-8:]),
            mend="see that this machine reaches a proxy for Go modules: go env GOPROXY",
            anchor="no-download",
        )


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """One at a time makes what is at `place`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
