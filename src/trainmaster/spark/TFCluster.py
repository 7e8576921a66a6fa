"""TensorFlowOnSpark's TFCluster: run a function on executors, as the nodes of one TensorFlow cluster.

    cluster = TFCluster.run(sc, main_fun, args, num_executors, num_ps, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(rdd, num_epochs=3)
    cluster.shutdown()

In InputMode.SPARK the driver feeds the functions: `train`, `inference`. Master, chief and workers share a feed. Without parameter
servers all of them read the same number of rows, as synchronous training needs; beside these it is first come, first served.

The cluster is a job of the application (`trainmaster.spark`), one task a node, so several nodes may be on one executor, and a node that
loses its executor gets another one. Every call raises the error of a function that failed, with its last lines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.spark.nodes import streams
from trainmaster.spark.nodes.driver_feeds import DriverFeeds
from trainmaster.spark.nodes.driver_servers import DriverServers
from trainmaster.spark.nodes.end_server import EndServer
from trainmaster.spark.nodes.job import FunctionJob, pickled

_LOG = logging.getLogger(__name__)
_BOARD = "TensorBoard"
_SERVING = ("ps", "evaluator")  # they are not waited for
_ALONE = ("evaluator",)  # nobody restarts for it: it is not in TF_CONFIG's cluster, whose addresses all others have
QUEUES = ("input", "output", "error")
_NO_FEEDS = ("output", "error")  # of the queues: results go back where their rows came from, and errors by themselves
_EPOCHS = 10  # where none are named
FEED_MEMORY = "64MiB"  # of each feed of a node


class InputMode:
    """The source of the data: TENSORFLOW, the function reads them; SPARK, the driver feeds them."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A cluster. `nodes`: how many of each role, in the order of executor ids; the others are options of `run`."""

    def __init__(
        self,
        sc: Any,
        nodes: Mapping[str, int],
        input_mode: int,
        tensorboard: bool,
        log_dir: str | None = None,
        driver_ps_nodes: bool = False,
        reservation_timeout: float = 600,
        release_port: bool = True,
        queues: Sequence[str] = QUEUES,
        feed_memory: str = FEED_MEMORY,
    ) -> None:
        self.queues = list(queues)
        self._feed_names = [name for name in queues if name not in _NO_FEEDS] if input_mode == InputMode.SPARK else []
        if input_mode == InputMode.SPARK and (driver_ps_nodes or nodes["evaluator"]):
            raise BadInput(
                f"{'driver_ps_nodes' if driver_ps_nodes else 'eval_node'} needs functions that read their data",
                place="input_mode: InputMode.SPARK", mend="use InputMode.TENSORFLOW, or feed a validation set beside the training "
                "(queues=['input', 'validation'])", anchor="spark-function",
            )  # fmt: skip
        self._feed_memory = feed_memory
        self._feeds: DriverFeeds | None = None
        self._server: EndServer | None = None
        self.sc, self.input_mode, self.num_executors = sc, input_mode, sum(nodes.values())
        self._nodes, self._timeout = dict(nodes), reservation_timeout
        self._has_board, self._servers_here = tensorboard, driver_ps_nodes and nodes["ps"]
        self._facts = {
            "workers": self.num_executors - nodes["ps"] - nodes["evaluator"], "release_port": release_port, "log_dir": log_dir,
            "tensorboard": nodes["ps"] if tensorboard else None,  # the executor id of the master, else of the first worker
        }  # fmt: skip
        self._started_job: FunctionJob | None = None

    def start(self, map_fun: Any, tf_args: Any) -> None:
        """Call `map_fun(tf_args, ctx)` on each node, and return when all run: see `run`."""
        function = pickled(map_fun, tf_args)
        servers = (
            DriverServers(self._servers_here, self.sc.getConf().get("spark.driver.host"))
            if self._servers_here
            else None
        )
        addresses = servers.addresses if servers is not None else []
        self._started_job = job = FunctionJob(
            self.sc, "tfcluster", function, self._nodes, servers=addresses, **self._facts
        )
        if servers is not None:
            job.on_formed = lambda: servers.restart(job)
            job.on_end.append(servers.stop)
        roles = {
            name: job.role(replicas=count, restart={"scope": "task" if name in _ALONE else "group", "limit": 0})
            for name, count in job.tasks.items()
        }
        first = next(name for name in roles if name not in _SERVING)
        if self._has_board:
            roles[first]["ports"] = ["board"]
        if self._feed_names:
            for role in roles.keys() - set(_SERVING):
                setting = {"memory": self._feed_memory, "agreed": not self._nodes["ps"]}
                shared = {} if role == first else {"share": first}
                roles[role]["feed"] = {name: {**setting, **shared} for name in self._feed_names}
            self._server = server = EndServer(self.sc, job.words_of_end, sum(job.tasks.values()))
            job.on_end.append(lambda: server.end(job.has_failed))
            self._feeds = DriverFeeds(job, first, self._feed_names, self._server.client)
        links = {_BOARD: f"{first}:0:board/"} if self._has_board else {}
        try:
            job.start(
                framework="tensorflow",
                gang=True,
                roles=roles,
                links=links,
                timeouts={"stall": "none", "finish": "none"},
            )
            job.await_start(self._timeout)
        except BaseException as error:
            job.kill(str(error) or f"{type(error).__name__} in the driver")
            for act in job.on_end:
                act()
            raise
        if url := self.tensorboard_url():
            _LOG.info("TensorBoard running at: %s", url)

    @property
    def cluster_id(self) -> str:
        """The id of the job, which `tm status` knows."""
        return self._job.id

    @property
    def server(self) -> Any:
        """The reservation server by which another process stops a stream; None in InputMode.TENSORFLOW."""
        return None if self._server is None else self._server.server

    @property
    def cluster_meta(self) -> dict[str, Any]:
        """Facts of the cluster: `id`, `num_executors`, and `server_addr`, the address of `server`."""
        address = None if self._server is None else self._server.address
        return {"id": self.cluster_id, "num_executors": self.num_executors, "server_addr": address}

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """The nodes, but an evaluator: `executor_id`, `host`, `job_name`, `task_index` and `port` of each, in the order of executor ids."""
        return self._job.present_nodes()

    @property
    def _fed(self) -> DriverFeeds:
        self._job.check()
        if self._feeds is None:
            raise BadInput(
                "the functions of this cluster read their data", place="input_mode: InputMode.TENSORFLOW", mend="use InputMode.SPARK",
                anchor="spark-function",
            )  # fmt: skip
        return self._feeds

    @property
    def _job(self) -> FunctionJob:
        if self._started_job is None:
            raise RuntimeError("the cluster has not begun: call start(map_fun, tf_args)")
        return self._started_job

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed an RDD or DataFrame to the functions, `num_epochs` times (0: 10); return once it is in their memory or is not wanted.

        A DStream is fed as it comes, from the start of its StreamingContext on. Nobody waits for `feed_timeout`: a function that fails is
        an error at once, and a slow one is not an error. Raises JobFailed, BadInput, and Spark's own errors.
        """
        feeds = self._fed
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: feeds.put(qname, rdd))
        else:
            feeds.put(qname, dataRDD, num_epochs or _EPOCHS)

    def train_batch(self, data: Any, batch_id: int = 0, qname: str = "input") -> None:
        """Feed one batch of Structured Streaming: `stream.writeStream.foreachBatch(cluster.train_batch).start()`; then `shutdown(query)`.

        A query that is started anew from its checkpoint gives its last batch again, whatever was read of it.
        """
        self._fed.put(qname, data)

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Return an RDD of the functions' results, one a row, in the partitions and the order of the data. It is lazy.

        Its actions must come before `shutdown`; where a function fails, they raise Spark's error with the reason. `feed_timeout` as of
        `train`. A feed is either for training or for inference.
        """
        return self._fed.map(qname, dataRDD)

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the feeds, and wait until the functions of master, chief and workers have returned; parameter servers and evaluator are
        stopped then.

        Raises JobFailed where one failed, TimeoutError after `timeout` seconds (-1: never), and the errors of a stream. `ssc`: the
        StreamingContext, or the query of Structured Streaming, that feeds, waited for first; it is stopped where the functions have ended,
        and where another process asks for it: `reservation.Client(cluster.cluster_meta["server_addr"]).request_stop()`. `grace_secs` is
        not needed: the end of a function is its own.
        """
        self._job.check()
        if ssc is not None:
            self._await_stream(ssc)
        if self._feeds is not None:
            self._feeds.end()
        self._job.await_end(timeout if timeout > 0 else threading.TIMEOUT_MAX)

    def _await_stream(self, stream: Any) -> None:
        server = self.server
        try:
            streams.await_end(stream, lambda: self._job.has_ended, lambda: server is not None and server.done)
        except Exception:
            self._job.check()  # where a function has failed, that is the reason
            raise

    def tensorboard_url(self) -> str | None:
        """Return the address of TensorBoard, None without one."""
        self._job.check()
        return self._job.link(_BOARD) if self._has_board else None


def run(
    sc: Any,
    map_fun: Any,
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = QUEUES,
    eval_node: bool = False,
    release_port: bool = True,
    feed_memory: str = FEED_MEMORY,
) -> TFCluster:
    """Call `map_fun(tf_args, ctx)` on `num_executors` nodes, and return when all run.

    Executor ids are given to `num_ps` parameter servers, then the `master_node` ("chief" or "master"), the evaluator (`eval_node`) and the
    workers. `queues`: the feeds of a node in InputMode.SPARK, except "output" and "error". Each has `feed_memory` of shared memory, and a
    row may take a third of that. Raises BadInput for numbers that do not fit and a function that cannot be pickled, TimeoutError where
    there are too few slots for `reservation_timeout` seconds, JobFailed where a function fails meanwhile.
    """
    nodes = nodes_of(num_executors, num_ps, master_node, eval_node)
    cluster = TFCluster(
        sc,
        nodes,
        input_mode,
        tensorboard,
        log_dir,
        driver_ps_nodes,
        reservation_timeout,
        release_port,
        queues,
        feed_memory,
    )
    cluster.start(map_fun, tf_args)
    return cluster


def reserve(
    sc: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    queues: Sequence[str] = QUEUES,
) -> TFCluster:
    """Return a cluster that begins with `start(map_fun, tf_args)`: the form of 2017."""
    return TFCluster(sc, nodes_of(num_executors, num_ps, None, False), input_mode, tensorboard, queues=queues)


def nodes_of(num_executors: int, num_ps: int, master_node: str | None, eval_node: bool) -> dict[str, int]:
    """Return the number of nodes of each role, in the order of executor ids. Raises BadInput where they are not `num_executors`."""
    workers = num_executors - num_ps - bool(master_node) - bool(eval_node)
    if workers < 0 or num_ps < 0 or workers + bool(master_node) < 1:
        others = f"{num_ps} ps, {int(bool(master_node))} {master_node or 'master'}, {int(bool(eval_node))} evaluator"
        raise BadInput(
            f"cluster size {num_executors} leaves {workers} workers beside {others}; at least one worker or master is needed",
            place=f"num_executors: {num_executors}", mend="raise num_executors, or lower num_ps", anchor="spark-function",
        )  # fmt: skip
    return {
        "ps": num_ps,
        master_node or "master": int(bool(master_node)),
        "evaluator": int(eval_node),
        "worker": workers,
    }
