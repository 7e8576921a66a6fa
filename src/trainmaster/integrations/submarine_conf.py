"""The settings of `--conf NAME=VALUE` of Submarine: those of its TonY runtime, as flags and keys of ours.

Facts: TonyConfigurationKeys of LinkedIn's TonY 0.3, and TonyUtils of Submarine 0.2 and 0.3. Settings of the cluster itself belong into the
files of HADOOP_CONF_DIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from trainmaster.core.foreign import number_in
from trainmaster.integrations.dialect import Option, unsupported, wrong_value

RESOURCES = "tony.containers.resources"
_LAUNCHERS_JAR = re.compile(r"(tony|submarine|hadoop-submarine)-.*\.jar")
_SIZE = re.compile(r"(\d{1,9})([gm])?")
# Setting -> the flag that says the same.
FLAGS = {
    "tony.application.framework": "framework", "tony.application.name": "name", "tony.yarn.queue": "queue",
    "tony.worker.instances": "num_workers", "tony.ps.instances": "num_ps", "tony.docker.containers.image": "docker_image",
    "tony.worker.docker.image": "worker_docker_image", "tony.ps.docker.image": "ps_docker_image",
}  # fmt: skip
# Setting -> the key of the job, and the shape of its value.
KEYS = {
    "tony.application.node-label": (("engines", "yarn", "label"), "text"),
    "tony.application.tags": (("engines", "yarn", "tags"), "list"),
    "tony.application.timeout": (("timeouts", "job"), "milliseconds"),
    "tony.am.memory": (("master", "resources", "memory"), "size"),
    "tony.am.vcores": (("master", "resources", "cores"), "count"),
} | {
    f"tony.{role}.{name}": (("roles", role, "resources", key), shape)
    for role in ("worker", "ps")
    for name, key, shape in (("memory", "memory", "size"), ("vcores", "cores", "count"), ("gpus", "gpus", "count"))
}  # fmt: skip
# Framework -> the beginning of a command: the variables that TonY gives to programs, out of ours (TaskExecutor of TonY 0.3).
EXPORTS = {
    "tensorflow": 'export JOB_NAME="$TRAINMASTER_ROLE" TASK_INDEX="$TRAINMASTER_INDEX"; '
    '[[ "$TF_CONFIG" =~ \\"cluster\\":\\ *(\\{[^}]*\\}) ]]; export CLUSTER_SPEC="${BASH_REMATCH[1]}"; ',
    "pytorch": 'export INIT_METHOD="tcp://$MASTER_ADDR:$MASTER_PORT" WORLD="$WORLD_SIZE"; ',
}
# The beginning of a command whose image has Hadoop: what libhdfs needs (HadoopEnvironmentSetup of Submarine 0.3).
HADOOP = (
    'if [ -x "$HADOOP_HDFS_HOME/bin/hadoop" ]; then export CLASSPATH="$("$HADOOP_HDFS_HOME/bin/hadoop" classpath --glob)" '
    'LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$JAVA_HOME/lib/amd64/server"; '
    'else echo "there is no Hadoop at $HADOOP_HDFS_HOME: CLASSPATH is not set" >&2; fi; '
)
# Setting -> why it needs nothing here.
NOTHING = {
    "submarine.runtime.class": "our own master is the runtime",
    "submarine.localization.max-allowed-file-size-mb": "files of this machine may have any size",
    "tony.application.security.enabled": "HADOOP_CONF_DIR says whether the cluster is secure",
    "tony.docker.enabled": "an image is enough",
}


def flags_of(option: Option) -> Iterator[tuple[str, Option]]:
    """Yield the flags that a `--conf` stands for; the option itself where it stands for none. Raises BadInput where it has no value."""
    name, mark, value = option.text.partition("=")
    if not mark or not name:
        raise wrong_value(option, "NAME=VALUE")
    origin = f"{option.origin} {name}"
    if (known := FLAGS.get(name.strip())) is not None:
        yield known, Option(value.strip(), origin)
    elif name.strip() in ("tony.containers.envs", "tony.execution.envs"):
        yield from (("env", Option(pair.strip(), origin)) for pair in value.split(",") if pair.strip())
    else:
        yield "conf", Option(f"{name.strip()}={value.strip()}", origin)


def value_of(option: Option, shape: str) -> Any:
    """Return a setting's value as the job has it. Raises BadInput for another shape."""
    text = option.text.partition("=")[2]
    if shape == "text":
        return text
    if shape == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    if shape == "size" and (match := _SIZE.fullmatch(text.lower())):
        return f"{match[1]}{'GiB' if match[2] == 'g' else 'MiB'}"
    if number_in(text) is None:
        raise wrong_value(option, "a size like 2g" if shape == "size" else "a whole number")
    if shape == "milliseconds":
        return f"{int(text)}ms" if int(text) else "none"
    return int(text)


def shipped(option: Option) -> Iterator[tuple[str, str, bool]]:
    """Yield (path, name, whether it is unpacked) of each entry of `tony.containers.resources`: PATH, PATH::NAME, either with #archive.

    An archive is unpacked into a folder of its own full name. The jars of TonY and of Submarine are left out: nothing here runs them.
    """
    for entry in option.text.partition("=")[2].split(","):
        path, mark, kind = entry.strip().partition("#")
        if mark and kind != "archive":
            raise wrong_value(option, "PATH, PATH::NAME or PATH#archive, with commas between them")
        path, _, name = path.partition("::")
        file = path.rstrip("/").rpartition("/")[2]
        if path and not _LAUNCHERS_JAR.fullmatch(file):
            yield path, name or file, bool(mark)


def nothing_to_do(name: str) -> str:
    """Return why a setting needs nothing here; "" where it is not one of these."""
    return NOTHING.get(name, "the agents' own beats are ours" if name.startswith("tony.task.") else "")


def refusal(option: Option) -> Exception:
    """Return the error for any other setting."""
    instead = "set it in the files of HADOOP_CONF_DIR, or the key of the job that it is about by --set"
    return unsupported(option, f"the setting {option.text.partition('=')[0]}", instead)


def joined(words: Sequence[str]) -> list[str]:
    """Return the words with each list whole: one that ends with a comma goes on in the next word, as its pages print it."""
    whole: list[str] = []
    for word in words:
        if whole and whole[-1].endswith(",") and not word.startswith("-"):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


VARIABLES = "YARN_CONTAINER_RUNTIME_"
