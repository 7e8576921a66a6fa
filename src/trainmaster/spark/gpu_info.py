"""The GPUs that a program in a Spark task may use, with TensorFlowOnSpark's names.

Where Spark schedules GPUs (`spark.task.resource.gpu.amount`), the task's addresses are the answer and nothing else is looked at: other
tasks have the others. Elsewhere, those are free on which nvidia-smi sees no process.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time

MAX_RETRIES = 3
AS_STRING = "string"
AS_LIST = "list"
RETRY_PAUSE = (
    30.0  # s after the first look, twice as long after the second: programs that end need time to let a GPU go
)
_LOG = logging.getLogger(__name__)


def is_gpu_available() -> bool:
    """Say whether this task or host has a GPU."""
    return bool(spark_addresses()) or bool(_nvidia_smi("--list-gpus", missing=""))


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:  # noqa: A002 - TensorFlowOnSpark's name
    """Return the numbers of `num_gpu` free GPUs, as "0,1" or as a list.

    Workers of one host that pass their index get different ones, in order; with -1 they are drawn at random. Raises RuntimeError where
    there are too few, without Spark's addresses after MAX_RETRIES looks.
    """
    if format not in (AS_STRING, AS_LIST):
        raise ValueError(f"format is {format!r}: use AS_STRING or AS_LIST")
    addresses = spark_addresses()
    if addresses:
        if len(addresses) < num_gpu:
            raise RuntimeError(
                f"Unable to find {num_gpu} free GPU(s): Spark assigned {', '.join(addresses)} to this task; "
                "raise spark.task.resource.gpu.amount"
            )
        gpus = addresses[:num_gpu]
    else:
        gpus = _placed(_free(num_gpu), num_gpu, worker_index)
    return ",".join(gpus) if format == AS_STRING else gpus


def spark_addresses() -> list[str]:
    """Return the addresses of the GPUs that Spark gives to this task. Nothing is imported: in a task, pyspark is loaded."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark.TaskContext.get() if pyspark else None
    gpu = context.resources().get("gpu") if context else None
    return list(gpu.addresses) if gpu else []


def _free(num_gpu: int) -> list[str]:
    """Look for GPUs without a process, several times where there are too few."""
    gpus = {}  # by UUID: "GPU 0: NVIDIA H100 (UUID: GPU-5b1c...)"
    for line in _nvidia_smi("--list-gpus").splitlines():
        number, _, text = line.removeprefix("GPU ").partition(":")
        gpus[text.rpartition("UUID: ")[2].rstrip(") ")] = number
    for look in range(1, MAX_RETRIES + 1):
        busy = set(_nvidia_smi("--query-compute-apps=gpu_uuid", "--format=csv,noheader").split())
        free = [number for uuid, number in gpus.items() if uuid not in busy]
        if len(free) >= num_gpu:
            return free
        _LOG.warning("Unable to find available GPUs: requested=%d, available=%d", num_gpu, len(free))
        if len(gpus) < num_gpu or look == MAX_RETRIES:
            break
        time.sleep(RETRY_PAUSE * look)
    processes = _nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory", "--format=csv")
    raise RuntimeError(f"Unable to find {num_gpu} free GPU(s) of the {len(gpus)} of this host:\n{processes}")


def _placed(free: list[str], num_gpu: int, worker_index: int) -> list[str]:
    if worker_index == -1:
        return random.sample(free, num_gpu)
    start = worker_index % (len(free) // max(num_gpu, 1)) * num_gpu
    return free[start : start + num_gpu]


def _nvidia_smi(*arguments: str, missing: str | None = None) -> str:
    """Return what nvidia-smi prints, or `missing`. Raises RuntimeError where it fails and that is None."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        if missing is not None:
            return missing
        output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or ""
        raise RuntimeError(f"Unable to find GPUs: {error}\n{output}".strip()) from error
