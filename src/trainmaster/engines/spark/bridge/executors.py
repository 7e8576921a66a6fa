"""The executors of an application, and the resources that a task of ours takes of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainmaster.engines.spark.bridge.line import CORES, Amounts, Executor


def read(context: Any) -> list[Executor]:
    """Return the executors. The driver is one of them only if it runs tasks itself."""
    jvm, scala_context = context._jvm, context._jsc.sc()
    mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
    summaries = json.loads(mapper.writeValueAsString(scala_context.statusStore().executorList(True)))
    return [executor_of(summary, task_cpus(context)) for summary in summaries if summary["totalCores"]]


def executor_of(summary: Mapping[str, Any], cpus: int) -> Executor:
    """Return an executor, out of what Spark's REST calls its summary. `cpus`: of a task that asks for none."""
    counts = {name: len(resource["addresses"]) for name, resource in summary["resources"].items()}
    address = summary["hostPort"]  # for a moment the host alone, until the executor has said its port
    return Executor(
        str(summary["id"]), address.rpartition(":")[0] or address, {CORES: summary["totalCores"], **counts},
        summary["activeTasks"] * cpus, bool(summary["isExcluded"]),
    )  # fmt: skip


def is_decommissioned(context: Any, executor: str) -> bool:
    """Tell whether Spark is taking the executor away. None of Spark's events says it."""
    return bool(context._jsc.sc().taskScheduler().getExecutorDecommissionState(executor).isDefined())


def is_jvm_dead(context: Any) -> bool:
    """Tell whether the driver's JVM is gone: then no event of Spark's says that the application has ended."""
    try:
        context._jvm.java.lang.System.currentTimeMillis()
    except Exception:  # noqa: BLE001  py4j's, for a call that no JVM answers
        return True
    return False


def task_cpus(context: Any) -> int:
    """Return the cores that a task takes where nothing else is asked for."""
    return int(context.getConf().get("spark.task.cpus", "1"))


def is_local(context: Any) -> bool:
    """Tell whether the driver runs the tasks itself: `local[N]`. Spark knows no resources of tasks there."""
    return str(context.master).partition("[")[0] == "local"


def more_slots(context: Any) -> str:
    """Return how the user gives the application more slots."""
    if is_local(context):
        return f"start Spark with a larger N of local[N] (it is {context.master})"
    return "give the application more cores: spark.executor.cores, spark.cores.max"


def is_true(context: Any, name: str) -> bool:
    """Tell whether a property of Spark's, false by default, is set."""
    return str(context.getConf().get(name, "false")).lower() == "true"


def page(context: Any) -> str:
    """Return the address of the application's own page, "" where it has none."""
    return f"{context.uiWebUrl.rstrip('/')}/jobs/" if context.uiWebUrl else ""


def share(conf: Mapping[str, str], amounts: Amounts) -> dict[str, float]:
    """Return what a task that asks for these amounts takes of its executor: at least what all of Spark's tasks do."""
    cpus = float(conf.get("spark.task.cpus", "1"))
    if amounts[CORES] > cpus or len(amounts) > 1:
        return dict(amounts)
    start, end = "spark.task.resource.", ".amount"
    names = [name for name in conf if name.startswith(start) and name.endswith(end)]
    return {CORES: cpus, **{name.removeprefix(start).removesuffix(end): float(conf[name]) for name in names}}


def single(context: Any, amounts: Amounts, memory: int) -> Any:
    """Return an RDD of one row, whose task takes these amounts of an executor.

    Under dynamic allocation Spark brings executors of their own for a task that asks for more than Spark's tasks do. They are as large as
    the others, or as the task, and leave `memory` bytes beside the heap for each task that fits in.
    """
    row = context.parallelize([0], 1)
    if is_local(context) or (amounts[CORES] <= task_cpus(context) and len(amounts) == 1):
        return row
    from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

    cpus = int(amounts[CORES])
    task = TaskResourceRequests().cpus(cpus)
    for name, count in amounts.items():
        if name != CORES:
            task.resource(name, count)
    profile = ResourceProfileBuilder().require(task)
    if is_true(context, "spark.dynamicAllocation.enabled"):
        conf = context.getConf()
        cores = max(cpus, int(conf.get("spark.executor.cores", "1")))
        overhead = -(-memory // 1024**2) * (cores // cpus)
        executor = ExecutorResourceRequests().cores(cores).memory(conf.get("spark.executor.memory", "1g"))
        executor.memoryOverhead(f"{max(384, overhead)}m")
        for name, count in amounts.items():
            if name != CORES:
                script = conf.get(f"spark.executor.resource.{name}.discoveryScript", "")
                amount = max(int(count), int(conf.get(f"spark.executor.resource.{name}.amount", "0")))
                executor.resource(name, amount, script)
        profile = profile.require(executor)
    return row.withResources(profile.build)
