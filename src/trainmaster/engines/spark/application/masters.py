"""The masters of Spark that an application of our own can have. A look of seconds tells whether one is there; Spark tries for minutes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from trainmaster.core.errors import BadInput
from trainmaster.engines.sections import wrong
from trainmaster.engines.spark.settings import CLUSTER, PLACE, Settings

_WITHIN = 5.0  # s
_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
WORDS = "write spark://HOST:PORT, yarn, local[CORES] or k8s://URL"


def local_cores(master: str) -> int | None:
    """Return the cores of a master `local[N]`; None of any other."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[2] == "*" else int(match[2] or 1)


def check(master: str, options: Settings) -> None:
    """Raise BadInput where an application cannot have this master, or nothing answers at its address."""
    place = f"{PLACE}.master: {master}"
    if options.deploy == CLUSTER and master != "yarn":
        raise wrong(
            f"{PLACE}.deploy",
            f"{CLUSTER} is not to be had with the master {master}",
            "write client; cluster is for the master yarn",
        )
    if local_cores(master) is not None:
        return
    addresses = _addresses(master)
    if not any(map(_answers, addresses)):
        names = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise BadInput(
            f"nothing answers at {names}, where Spark's master {master} should be", place=place,
            mend="check that it runs, and that it is the one that you mean; or try one here: tm cluster up spark",
            anchor="spark-master",
        )  # fmt: skip


def _addresses(master: str) -> Sequence[tuple[str, int]]:
    place = f"{PLACE}.master"
    try:
        if master.startswith("spark://"):
            parts = [urlsplit(f"//{address}") for address in master.removeprefix("spark://").split(",")]
            return [(str(part.hostname), part.port or 7077) for part in parts if part.hostname]
        if master.startswith("k8s://"):
            part = urlsplit(master.removeprefix("k8s://") if "://" in master[6:] else f"https://{master[6:]}")
            return [(str(part.hostname), part.port or (80 if part.scheme == "http" else 443))]
    except ValueError as error:
        raise wrong(place, f"{master!r}: {error}", WORDS) from error
    if master == "yarn":
        return _resource_managers()
    raise wrong(place, f"{master!r} is not a master that Spark knows", WORDS)


def _resource_managers() -> Sequence[tuple[str, int]]:
    from trainmaster.hadoop.conf import load, resource_managers
    from trainmaster.hadoop.errors import ConfError

    try:
        return list(resource_managers(load(None, dict(os.environ))))
    except ConfError as error:
        raise BadInput(
            error.message, mend=f"{error.mend}, or try one here: tm cluster up hadoop", anchor="hadoop-conf"
        ) from error


def _answers(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(address, _WITHIN).close()
        return True
    return False
