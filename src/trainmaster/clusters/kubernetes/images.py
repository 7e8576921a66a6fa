"""Container images, made without Docker: a tar as `docker save` writes it, of one layer, which containerd imports.

    localhost/trainmaster/pause:1      the first process of each pod
    localhost/trainmaster/host:1       empty directories alone: for pods that have this machine's Python by read-only mounts
    localhost/trainmaster/debian:1     a Debian (or what this machine is) with Python, by debootstrap out of the mirror that apt knows

They are kept beside the binaries and made once. No image names a user: a pod that must not be root says who it is.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs

from trainmaster.clusters.kubernetes import binaries
from trainmaster.core.errors import EngineFailed

PAUSE = "localhost/trainmaster/pause:1"
HOST = "localhost/trainmaster/host:1"
DEBIAN = "localhost/trainmaster/debian:1"

_PACKAGES = "python3,ca-certificates,iproute2"
_UNNEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/info",
)
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EMPTY = ("bin", "dev", "etc", "etc/ssl", "home", "lib", "lib64", "proc", "root", "sbin", "sys", "usr", "var", "work")
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUPS = "root:x:0:\nnogroup:x:65534:\n"


@attrs.frozen
class Image:
    """An image: its name and the tar that holds it."""

    name: str
    tar: Path


def images(say: Callable[[str], None] = lambda line: None) -> tuple[Image, ...]:
    """All of them, made if need be, which is told to `say`. Only root can make them (debootstrap)."""
    place = binaries.binaries(say)
    made = []
    with binaries.alone(place / "images"):
        for name, fill in ((PAUSE, _pause), (HOST, _host), (DEBIAN, _debian)):
            tar = place / f"{name.split('/')[-1].partition(':')[0]}.tar"
            if not tar.exists():
                with tempfile.TemporaryDirectory(prefix=".image-", dir=place) as scratch:
                    fill(Path(scratch), say)
                    os.rename(_packed(name, Path(scratch)), tar)
            made.append(Image(name, tar))
    return tuple(made)


def _packed(name: str, scratch: Path) -> Path:
    """The image out of `layer.tar` in a directory."""
    layer = (scratch / "layer.tar").read_bytes()
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": [_PATH], **({"Entrypoint": ["/pause"]} if name == PAUSE else {})},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()  # fmt: skip
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    whole = scratch / "image.tar"
    with tarfile.open(whole, "w") as tar:
        for path, data in (
            (config_name, config),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _put(tar, path, data)
    return whole


def _put(tar: tarfile.TarFile, path: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _folder(tar: tarfile.TarFile, path: str, mode: int = 0o755) -> None:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _pause(scratch: Path, say: Callable[[str], None]) -> None:
    with tarfile.open(scratch / "layer.tar", "w") as tar:
        _put(tar, "pause", (binaries.binaries() / "pause").read_bytes(), 0o755)


def _host(scratch: Path, say: Callable[[str], None]) -> None:
    with tarfile.open(scratch / "layer.tar", "w") as tar:
        for path in _EMPTY:
            _folder(tar, path)
        for path in ("tmp", "var/tmp"):
            _folder(tar, path, 0o1777)
        _put(tar, "etc/passwd", _USERS.encode())
        _put(tar, "etc/group", _GROUPS.encode())


def _debian(scratch: Path, say: Callable[[str], None]) -> None:
    mirror, release = _mirror()
    say(f"making an image of {release} with Python out of {mirror}, once; about a minute")
    root = scratch / "root"
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(root), mirror]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode != 0:
        last = [line for line in done.stdout.splitlines() if line.startswith(("E:", "W:"))] or done.stdout.splitlines()
        raise EngineFailed(
            f"debootstrap could not make an image of {release}:\n  " + "\n  ".join(last[-4:]),
            mend=f"see that this machine reaches {mirror}",
            anchor="no-download",
        )
    for path in _UNNEEDED:
        shutil.rmtree(root / path, ignore_errors=True)
    for log in (root / "var/log").rglob("*.log"):
        log.unlink()
    (root / "etc/resolv.conf").unlink(missing_ok=True)  # the kubelet gives each pod its own
    (root / "etc/hostname").unlink(missing_ok=True)
    subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(scratch / "layer.tar"), "."], check=True)
    shutil.rmtree(root)


def _mirror() -> tuple[str, str]:
    """The mirror and the release of which this machine is, as apt has them."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    known = [line.split() for line in said.splitlines() if len(line.split()) == 2]
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for mirror, of in known:
        if of == release:
            return mirror, release
    raise EngineFailed(
        f"apt knows no mirror of this system's release {release or '(which has no name)'}, out of which an image with Python is made",
        mend="name one in /etc/apt/sources.list",
        anchor="no-download",
    )
