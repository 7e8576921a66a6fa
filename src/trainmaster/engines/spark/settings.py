"""The section `engines.spark` of a job file, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.engines.sections import Reader, mapping, section, text, wrong

PLACE = "engines.spark"
CLIENT, CLUSTER = "client", "cluster"
_DEPLOY_WORDS = "write client (the driver is on this machine) or cluster (on a node)"
_OURS = {"spark.master": "master", "spark.submit.deployMode": "deploy"}  # properties that have a key of their own


@attrs.frozen(slots=True)
class Settings:
    """The settings of `engines.spark`. `pool`: Spark's own, of the FAIR scheduler, in which the job's tasks run."""

    application: str = ""  # the running application that takes the job; "": the only one of this user on this machine
    pool: str = "trainmaster"
    master: str = ""  # of an application of the job's own: spark://, yarn, local[N], k8s://
    deploy: str = CLIENT
    conf: Mapping[str, str] = attrs.field(factory=dict)  # Spark's properties of that application


def settings(entries: Mapping[str, Any]) -> Settings:
    """Read the section. Raises BadInput, naming the key and the nearest name."""
    options = Settings(**section(_READ, entries, PLACE))
    if options.application:
        for name in ("master", "deploy", "conf"):
            if name in entries:
                raise wrong(
                    f"{PLACE}.{name}", f"the application {options.application} runs already, and has its own",
                    f"leave out {name}, or leave out application to start one for this job",
                )  # fmt: skip
    return options


def _deploy(value: Any, place: str) -> str:
    if value not in (CLIENT, CLUSTER):
        raise wrong(place, f"{value!r} is not a deploy mode", _DEPLOY_WORDS)
    return str(value)


def _conf(value: Any, place: str) -> dict[str, str]:
    conf = {}
    for name, entry in mapping(value, place, "{spark.executor.memory: 2g}").items():
        where = f"{place}.{name}"
        if not name.startswith("spark.") or any(character.isspace() for character in name):
            raise wrong(where, "it is not a property of Spark", "write a name that begins with spark.")
        if name in _OURS:
            raise wrong(where, "it has a key of its own", f"write {PLACE}.{_OURS[name]}")
        if not isinstance(entry, str | int | float):
            raise wrong(where, f"must be a string, not {entry!r}", "write one value")
        conf[name] = str(entry).lower() if isinstance(entry, bool) else str(entry)
    return conf


_READ: dict[str, Reader] = {"application": text, "pool": text, "master": text, "deploy": _deploy, "conf": _conf}
