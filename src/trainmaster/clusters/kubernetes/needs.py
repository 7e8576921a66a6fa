"""The needs of a cluster on this machine: one error names all that is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainmaster.clusters.kubernetes import binaries
from trainmaster.clusters.kubernetes.settings import Settings
from trainmaster.core.errors import BadInput

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
# A program -> the package of Debian's and Ubuntu's that has it.
PROGRAMS: Mapping[str, str] = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "iptables": "iptables", "conntrack": "conntrack",
    "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
}  # fmt: skip
CNI, CNI_PACKAGE = Path("/usr/lib/cni/bridge"), "containernetworking-plugins"


def check(settings: Settings) -> None:
    """Raise BadInput, naming all that is missing for such a cluster."""
    real = settings.nodes > 0
    missing = ["root"] if real and os.geteuid() != 0 else []
    packages = missing_packages() if real else []
    missing += [f"{package} (package)" for package in packages]
    go = "" if binaries.there() else binaries.go_missing()
    missing += [go] if go else []
    if not missing:
        return
    mends = [
        *(["run it as root"] if "root" in missing else []),
        *([f"apt-get install {' '.join(packages)}"] if packages else []),
        *(["get Go: https://go.dev/dl"] if go else []),
    ]
    alternative = (
        "; or have nodes that only say that they run pods: --nodes 0 --simulated 10" if real and missing != [go] else ""
    )
    raise BadInput(
        f"a Kubernetes on this machine needs what is not here: {', '.join(missing)}",
        mend="; ".join(mends) + alternative,
        anchor="no-kubernetes-parts",
    )


def missing_packages() -> list[str]:
    """Return the packages that real nodes need and that are not installed."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program, path=_PATH) is None]
    if not CNI.exists():
        packages.append(CNI_PACKAGE)
    if not (binaries.folder() / "debian.tar").exists() and shutil.which("debootstrap", path=_PATH) is None:
        packages.append("debootstrap")
    return [*dict.fromkeys(packages)]
