"""The executors of an application, and what a task of ours takes of them."""

from __future__ import annotations

from typing import Any


def of(context: Any) -> list[dict[str, Any]]:
    """Return the executors: id, host, cores, free cores. The driver is none of them, unless it runs tasks itself."""
    executors = context._jsc.sc().statusStore().executorList(True)
    rows = []
    for number in range(executors.size()):
        executor = executors.apply(number)
        cores = int(executor.totalCores())
        if cores:
            busy = int(executor.activeTasks()) * task_cpus(context)
            host = str(executor.hostPort()).rpartition(":")[0]
            rows.append({"id": str(executor.id()), "host": host, "cores": cores, "free": max(0, cores - busy)})
    return rows


def task_cpus(context: Any) -> int:
    """Return the cores that a task takes where nothing else is asked for."""
    return int(context.getConf().get("spark.task.cpus", "1"))


def single(context: Any, cpus: int, gpus: int) -> Any:
    """Return an RDD of one row, whose task takes so many cores and GPUs."""
    row = context.parallelize([0], 1)
    if cpus <= task_cpus(context) and not gpus:
        return row
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cpus)
    if gpus:
        requests.resource("gpu", gpus)
    return row.withResources(ResourceProfileBuilder().require(requests).build)
