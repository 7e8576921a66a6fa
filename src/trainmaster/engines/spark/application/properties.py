"""The properties of a job's own application: one executor for each container, of the size of the largest.

Executors of an application are all alike. So each is large enough for any container of the job, and there are as many as containers: a
smaller number could be taken by small containers, with no executor left whole for a large one. The job's `conf` comes first, then these
properties, then `spark-defaults.conf`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.spark.home import Home
from trainmaster.engines.spark.settings import Settings

HEAP = 512  # MiB; Spark refuses an executor with less than 450, and its JVM does little here
_MIB = 1024 * 1024


def derived(job: Any, master: str) -> dict[str, str]:
    """Return the properties that follow from the roles, for the master that is named."""
    properties = {"spark.app.name": job.name, "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):  # all of it is on this machine: nothing listens to others
        return properties | dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
    sizes = [role.resources for role in job.roles.values()]
    count = sum(role.replicas.most for role in job.roles.values())
    cores = max(math.ceil(size.cores) for size in sizes)
    container = max(math.ceil((size.program_memory + size.overhead) / _MIB) for size in sizes)
    properties |= {"spark.executor.cores": str(cores), "spark.executor.instances": str(count)}
    if master.startswith("spark:"):  # such a master counts the heap alone
        properties |= {"spark.cores.max": str(cores * count), "spark.executor.memory": f"{HEAP + container}m"}
    else:
        properties |= {"spark.executor.memory": f"{HEAP}m", "spark.executor.memoryOverhead": f"{384 + container}m"}
    if (
        master == "yarn"
    ):  # the job's own rules say how many losses are too many; Spark's say twice as many as there are executors
        properties["spark.executor.maxNumFailures"] = str(2**31 - 1)
    if gpus := max(size.gpus for size in sizes):
        properties["spark.executor.resource.gpu.amount"] = str(gpus)
    return properties | (choice_of_nodes(job) if master == "yarn" else {})


def choice_of_nodes(job: Any) -> dict[str, str]:
    """Return the properties by which YARN chooses nodes. Raises BadInput where roles choose differently: executors are all alike."""
    choices = {
        name: (tuple(role.nodes.labels.items()), tuple(sorted(role.nodes.exclude))) for name, role in job.roles.items()
    }
    first, (labels, exclude) = next(iter(choices.items()))
    if other := next((name for name, choice in choices.items() if choice != (labels, exclude)), None):
        raise BadInput(
            f"{other} and {first} choose different nodes, and the executors of an application are all alike",
            place=f"roles.{other}.nodes", mend="write the same in every role", anchor="labels",
        )  # fmt: skip
    if unknown := [name for name, _ in labels if name != "label"]:
        raise BadInput(
            f"nodes of YARN have no {unknown[0]}: a node is in one partition", place=f"roles.{first}.nodes.labels",
            mend="write {label: NAME}", anchor="labels",
        )  # fmt: skip
    properties = {"spark.yarn.executor.nodeLabelExpression": labels[0][1]} if labels else {}
    return properties | ({"spark.yarn.exclude.nodes": ",".join(exclude)} if exclude else {})


def defaults_file(home: Home, environ: Mapping[str, str] | None = None) -> Path:
    """Return the place of this machine's `spark-defaults.conf`, whether it exists or not."""
    named = (os.environ if environ is None else environ).get("SPARK_CONF_DIR")
    return Path(named or home.folder / "conf") / "spark-defaults.conf"


def defaults(home: Home) -> str:
    """Return the text of this machine's `spark-defaults.conf`; "" where there is none."""
    path = defaults_file(home)
    return path.read_text() if path.is_file() else ""


def default_master(text: str) -> str:
    """Return the master that `spark-defaults.conf` names, "" where it names none."""
    master = ""
    for line in text.splitlines():
        words = line.replace("=", " ", 1).split(None, 1)
        if len(words) == 2 and words[0] == "spark.master":
            master = words[1].strip()
    return master


def written(options: Settings, job: Any, master: str, home: Home, more: Mapping[str, str]) -> str:
    """Return the file of properties for spark-submit, `more` last: Java takes the last value of a name."""
    ours = {"spark.master": master, "spark.submit.deployMode": options.deploy, **more}
    properties = {**derived(job, master), **options.conf, **ours}
    return "\n".join([defaults(home), *(f"{name} {_escaped(value)}" for name, value in properties.items()), ""])


def _escaped(value: str) -> str:
    """Return a value as java.util.Properties reads it."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped[:1].isspace() else escaped
