"""Container images, made without Docker: a tar as `docker save` writes it, of one layer, which containerd imports.

    localhost/trainmaster/pause:1      the first process of each pod
    localhost/trainmaster/host:1       empty directories alone: for pods that have this machine's Python by read-only mounts
    localhost/trainmaster/debian:1     a Debian (or this machine's own system) with Python, by debootstrap from the mirror that apt knows

They are kept next to the binaries and made once. No image names a user: a pod that must not be root names its user itself.
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


def full_name(name: str) -> str:
    """Return an image's name with its registry, as Docker and Kubernetes complete it: team/torch:1 is docker.io/team/torch:1."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def images(say: Callable[[str], None] = lambda line: None) -> tuple[Image, ...]:
    """Return all images; make them if need be, and tell `say` of that. Only root can make them (debootstrap)."""
    place = binaries.binaries(say)
    every_image = []
    with binaries.alone(place / "images"):
        for name, fill in ((PAUSE, _pause), (HOST, _host), (DEBIAN, _debian)):
            tar = place / f"{name.split('/')[-1].partition(':')[0]}.tar"
            if not tar.exists():
                with tempfile.TemporaryDirectory(prefix=".image-", dir=place) as scratch:
                    fill(Path(scratch), say)
                    os.rename(_pack(name, Path(scratch)), tar)
            every_image.append(Image(name, tar))
    return tuple(every_image)


def _pack(name: str, scratch: Path) -> Path:
    """Write the image with the layer `layer.tar` of a directory; return its tar."""
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
    image = scratch / "image.tar"
    with tarfile.open(image, "w") as tar:
        for path, content in (
            (config_name, config),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _put(tar, path, content)
    return image


def _put(tar: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


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
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith(("E:", "W:"))] or lines
        raise EngineFailed(
            f"debootstrap could not make an image of {release}:\n  " + "\n  ".join(errors[-4:]),
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
    """Return apt's mirror of this system's release, and the release."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    known = [line.split() for line in listing.splitlines() if len(line.split()) == 2]
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for mirror, mirrored_release in known:
        if mirrored_release == release:
            return mirror, release
    raise EngineFailed(
        f"apt knows no mirror of this system's release {release or '(which has no name)'}, out of which an image with Python is made",
        mend="name one in /etc/apt/sources.list",
        anchor="no-download",
    )
