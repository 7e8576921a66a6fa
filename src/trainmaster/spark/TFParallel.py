"""TensorFlowOnSpark's TFParallel: run a function on executors, in instances that do not know of each other."""

from __future__ import annotations

from typing import Any

from trainmaster.spark.nodes.job import FunctionJob, pickled

_CHECK = "spark.scheduler.barrier.maxConcurrentTasksCheck"  # Spark's settings of how long a barrier waits for slots


def run(sc: Any, map_fn: Any, tf_args: Any, num_executors: int, use_barrier: bool = True) -> None:
    """Call `map_fn(tf_args, ctx)` in `num_executors` instances, and return when all have returned.

    With `use_barrier` they begin together or not at all, and TimeoutError says what is missing after the time that Spark's own barrier
    waits: `spark.scheduler.barrier.maxConcurrentTasksCheck.interval` times `.maxFailures`, by default 600 s. Else each begins when there
    is room. `ctx` is a node's without a cluster. Raises JobFailed where an instance fails, BadInput for a function that cannot be
    pickled. An instance that loses its executor begins anew.
    """
    job = FunctionJob(
        sc, "tfparallel", pickled(map_fn, tf_args), {"worker": num_executors}, workers=num_executors, release_port=True
    )
    role = job.role(replicas=num_executors, restart={"scope": "task", "limit": 0})
    job.start(gang=use_barrier, roles={"worker": role})
    try:
        if use_barrier:
            job.await_start(_patience(sc), only_slots=True)
        job.await_end()
    except BaseException:
        job.kill()
        raise


def _patience(context: Any) -> float:
    """Return the seconds for which Spark's own barrier waits for slots."""
    conf = context.getConf()
    interval = context._jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec(
        conf.get(f"{_CHECK}.interval", "15s")
    )
    return float(interval) * int(conf.get(f"{_CHECK}.maxFailures", "40"))
