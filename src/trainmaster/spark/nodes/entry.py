"""The program of a task: call the driver's function.

It runs on the executor's Python, in the task's directory. The folder FOLDER there holds `function`, which the driver pickled, `facts.json`
and these modules. Modules that the application has brought to its executors (`addPyFile`, `--py-files`) are found as in Spark's own tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from trainmaster.spark import TFNode
from trainmaster.spark.nodes.context import TFNodeContext, context_of_task
from trainmaster.spark.nodes.gpus import VISIBLE, choose_gpus, index_on_host

FOLDER = ".node"
BEGIN = f'import sys; sys.path.append("{FOLDER}"); from trainmaster.spark.nodes.entry import main; main()'
COMMAND = f"exec \"$TRAINMASTER_SPARK_PYTHON\" -c '{BEGIN}'"
PATH = "TRAINMASTER_SPARK_PATH"  # the path for modules of the task that this program runs in
PARENT = "TRAINMASTER_SPARK_PARENT"  # the process that this one does not outlive
_PDEATHSIG, _KILL, _TERM = 1, 9, 15  # prctl(2), signal(7)


def main() -> None:
    """Call the function of this task."""
    if PARENT in os.environ:
        end_with_parent(int(os.environ[PARENT]), _KILL)  # its regular end has SIGTERM and some seconds
    path = os.environ[PATH].split(os.pathsep)
    sys.path += [place for place in path if place and place not in sys.path]
    sys.path[0] = ""
    with open(f"{FOLDER}/facts.json", encoding="utf-8") as file:
        facts = json.load(file)
    if facts["alias"]:
        sys.path.insert(1, os.path.abspath(f"{FOLDER}/trainmaster/spark/alias"))
    context = context_of_task(facts)
    if facts.get("tensorboard") == context.executor_id:
        show_events(facts["log_dir"] or f"tensorboard_{context.executor_id}")
    function, arguments = load_function()
    show_gpus(arguments, context)
    call(function, arguments, context, facts)


def load_function() -> tuple[Any, Any]:
    """Return the function and its argument."""
    from pyspark import cloudpickle

    with open(f"{FOLDER}/function", "rb") as file:
        pair: tuple[Any, Any] = cloudpickle.load(file)
    return pair


def show_gpus(arguments: Any, context: TFNodeContext) -> None:
    """Let TensorFlow see the GPUs of this node alone. The agent has named the GPUs that Spark gives to the task."""
    of_spark = [gpu for gpu in os.environ.get(VISIBLE, "").split(",") if gpu]
    index = index_on_host(all_nodes(context), context.job_name, context.task_index)
    os.environ[VISIBLE] = ",".join(choose_gpus(arguments, of_spark, index))


def all_nodes(context: TFNodeContext) -> dict[str, list[str]]:
    """Return role -> addresses by index, also of nodes that are not in the cluster: an evaluator, and instances without a cluster."""
    if "TRAINMASTER_PEERS" not in os.environ:
        return context.cluster_spec
    with open(os.environ["TRAINMASTER_PEERS"]) as file:
        roles = json.load(file)
    return {
        role: [f"{peer['address']}:{role}:{index}" if peer else "" for index, peer in enumerate(peers)]
        for role, peers in roles.items()
    }


def call(function: Any, arguments: Any, context: TFNodeContext, facts: Mapping[str, Any]) -> None:
    """Call the function, which finds a list of arguments as the command line too."""
    if isinstance(arguments, list):
        sys.argv = arguments
    if facts["release_port"]:
        TFNode.release_port(context)
    function(arguments, context)


def show_events(log_dir: str) -> None:
    """Start TensorBoard as a child, which ends with this program."""
    port, own = os.environ["TRAINMASTER_PORT_BOARD"], os.getpid()
    begin = (
        f"from trainmaster.spark.nodes.entry import end_with_parent; end_with_parent({own}); "
        "from tensorboard.main import run_main; run_main()"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)}
    subprocess.Popen([sys.executable, "-c", begin, "--logdir", log_dir, "--port", port, "--bind_all"], env=environ)


def end_with_parent(parent: int, number: int = _TERM) -> None:
    """Have the kernel send this process a signal when the parent's thread that started it ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(128 + number)
