"""The feeds of a cluster, as its driver fills them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainmaster.core.errors import BadInput, EngineFailed, JobFailed

if TYPE_CHECKING:
    from trainmaster.spark.feed import Feed
    from trainmaster.spark.nodes.job import FunctionJob
    from trainmaster.spark.reservation import Client

_ROWS = 256  # of a batch at most: few are left over where nodes read the same number of rows
_END = 30.0  # s for a job to end whose master says that it has failed
_LOG = logging.getLogger(__name__)


class DriverFeeds:
    """The feeds `names` of a role of the cluster's job, which its other roles share. Several threads may call.

    `driver`: by which tasks ask this driver how the job has ended.
    """

    def __init__(self, job: FunctionJob, role: str, names: Sequence[str], driver: Client) -> None:
        self._job, self._role, self._driver = job, role, driver
        self._lock = threading.Lock()
        self._locks = {name: threading.Lock() for name in names}
        self._feeds: dict[str, Feed] = {}
        self._uses: dict[str, str] = {}  # feed -> training or inference
        self._was_fed = False  # or feeding has begun

    def put(self, name: str, data: Any, epochs: int = 1) -> None:
        """Feed an RDD or a DataFrame. Raises JobFailed where a function failed, Spark's own errors, and BadInput for an unknown name."""
        self._check(name, "training")
        with self._locks[name], self._errors_of_functions():
            self._feed(name).put(data, epochs=epochs, rows=_ROWS)

    def map(self, name: str, data: Any) -> Any:
        """Return an RDD of results, as `Feed.map` does. Raises as `put`."""
        self._check(name, "inference")
        with self._errors_of_functions():
            return self._feed(name).map(data, rows=_ROWS, end=self._driver.end)

    def end(self) -> None:
        """Begin to end all feeds. Each ends when functions have read it; what goes wrong meanwhile fails the job."""
        for name in self._locks:
            threading.Thread(target=self._end, args=(name,), daemon=True, name=f"end of feed {name}").start()

    # -- inside --

    def _end(self, name: str) -> None:
        try:
            with self._locks[name]:
                self._feed(name).end()
        except (EngineFailed, JobFailed) as error:  # the job has failed, which `shutdown` tells with its reason
            _LOG.debug("feed %s: %s", name, error)
        except Exception as error:  # noqa: BLE001  functions would wait for the end
            self._job.fail(f"feed {name} could not be ended: {type(error).__name__}: {error}")

    def _feed(self, name: str) -> Feed:
        from trainmaster.spark.feed import Feed

        with self._lock:
            if name not in self._feeds:
                self._feeds[name] = Feed(self._job.context, self._job.run, name, self._role)
            return self._feeds[name]

    def _check(self, name: str, use: str) -> None:
        """Raise BadInput where a feed cannot be used so, and JobFailed where the job has failed."""
        self._job.check()
        if name not in self._locks:
            raise BadInput(
                f"the cluster has no feed {name!r}", place=f"qname: {name}", mend=f"name one of run(queues=...): {', '.join(self._locks)}",
                anchor="no-feed",
            )  # fmt: skip
        if self._uses.setdefault(name, use) != use:
            raise BadInput(
                f"feed {name!r} is for {self._uses[name]}, and cannot be for {use} too", place=f"qname: {name}",
                mend="name another one in run(queues=...), and read it in the function", anchor="no-feed",
            )  # fmt: skip

    @contextmanager
    def _errors_of_functions(self) -> Iterator[None]:
        """Turn the feed's error into that of the function that failed. End a cluster that can never be fed: it would keep its slots."""
        from trainmaster.spark.frames.executors import NoSlots

        cause: BaseException | None = None
        try:
            yield
        except NoSlots as error:
            if not self._was_fed:
                self._job.kill("there was no slot for tasks that feed it")
                self._job.ends_within(_END)
                error.mend = f"{error.mend}; {self._job.id} was ended: it holds no slots any more"
            raise
        except BaseException as error:  # noqa: BLE001  raised below, so that the function's error is not shown with another one
            cause = error
        self._was_fed = True  # at least in part
        if isinstance(cause, EngineFailed | JobFailed) and self._job.ends_within(_END):
            self._job.check()
        if cause is not None:
            raise cause
