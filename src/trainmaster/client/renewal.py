"""Newer tokens for a job on a secure cluster: fetched here, by the user's ticket, and given to the job's master.

By hand that is `tm renew`. Whoever watches a job does it beside that, whenever the job's tokens are due (see engines/yarn/tokens.py), and
tries again while there is no ticket, for that may come.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from trainmaster.client.connect import Facts
from trainmaster.client.places import JOB_FILE, client_of, engine_of, job_storage
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.quantities import format_seconds

AGAIN = 10.0  # s until a failure is followed by another try, at least; else a tenth of what is left
SOON = 600.0  # s, at most


def renew(job: str) -> Facts:
    """Bring a job newer tokens; what it has now: `since`, `until`, and `brought`, whether they are those. Raises BadInput."""
    from trainmaster.client.actions import ask
    from trainmaster.core.reading import job_from

    engine = engine_of(job)
    if engine == "local":
        raise BadInput(
            f"{job} runs on this machine, and has no tokens", mend="only jobs of a secure cluster do", anchor="tokens"
        )
    described = job_from(json.loads((job_storage(job) / JOB_FILE).read_bytes()))
    newer = client_of(engine).newer_tokens(described)
    ended, answer = ask(job, "renew", **newer)
    if ended is not None:
        raise BadInput(f"{job} has ended: {ended['state']}", mend="it needs no tokens any more", anchor="job-ended")
    return {**answer, "brought": answer["until"] == newer["until"]}


def words(tokens: Facts, now: float) -> str:
    """Until when a job's tokens are good, and what keeps newer ones away."""
    left, at = tokens["until"] - now, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(tokens["until"]))
    told = f"good until {at}, in {format_seconds(round(left))}" if left > 0 else f"they ended at {at}"
    return told + (f"; {tokens['trouble']}" if tokens.get("trouble") else "")


def renewing(job: str, items: Iterable[Facts]) -> Iterator[Facts]:
    """The items of a job that is watched; beside that its tokens are renewed. What is to be said of it comes as {"told": text}."""
    beside = _Beside(job)
    for item in items:
        yield item
        tokens = (item.get("status") or {}).get("tokens")
        if tokens:
            beside.look(tokens)
        for text in beside.said():
            yield {"told": text}


class _Beside:
    """Renews in a thread: fetching may take as long as a KDC does not answer, and whoever watches reads on."""

    def __init__(self, job: str) -> None:
        self._job, self._next = job, 0.0
        self._working: threading.Thread | None = None
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failed = ""

    def look(self, tokens: Facts) -> None:
        now = time.time()
        served = tokens.get("keytab") and not tokens.get("trouble")
        if served or now < max(tokens["due"], self._next) or (self._working is not None and self._working.is_alive()):
            return
        self._next = now + min(SOON, max(AGAIN, (tokens["until"] - now) / 10))
        self._working = threading.Thread(target=self._renew, args=(tokens,), daemon=True, name="tokens")
        self._working.start()

    def _renew(self, tokens: Facts) -> None:
        try:
            now_has = renew(self._job)
        except TrainmasterError as error:
            if error.anchor != "job-ended" and error.message != self._failed:
                self._failed = error.message
                self._words.put(f"its tokens need to be renewed, {words(tokens, time.time())}; {error.message}")
        else:
            self._failed = ""
            if now_has["brought"]:
                self._words.put(f"its tokens were renewed: {words(now_has, time.time())}")

    def said(self) -> Iterator[str]:
        while not self._words.empty():
            yield self._words.get()


def warning(job: str, tokens: dict[str, Any]) -> str:
    """What its user is told of a job that was submitted with tokens, and with nothing that renews them."""
    return f"{job}: its tokens are {words(tokens, time.time())}; for longer watch it (tm attach), or tm renew {job}"
