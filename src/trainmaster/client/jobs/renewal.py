"""Newer tokens for a job on a secure cluster: fetched here, by the user's ticket, and given to the job's master.

`tm renew` does that by hand. A command that watches a job does it too, whenever the job's tokens are due (see `engines.yarn.tokens`), and
tries again while there is no ticket, for one may come.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import Facts, described
from trainmaster.client.jobs.places import client_side, engine_of
from trainmaster.client.jobs.tokens import words
from trainmaster.core.errors import BadInput, TrainmasterError

AGAIN = 10.0  # s until a failure is followed by another try, at least; else a tenth of what is left
SOON = 600.0  # s, at most


def renew(job: str) -> Facts:
    """Bring a job newer tokens; returns what it has now: `since`, `until`, and `brought`, true for the newer ones. Raises BadInput."""
    from trainmaster.client.jobs.actions import ask

    if backend_of(job).on_this_machine:
        raise BadInput(
            f"{job} runs on this machine, and has no tokens", mend="only jobs of a secure cluster do", anchor="tokens"
        )
    newer = client_side(engine_of(job)).newer_tokens(described(job))
    ended, answer = ask(job, "renew", **newer)
    if ended is not None:
        raise BadInput(f"{job} has ended: {ended['state']}", mend="it needs no tokens any more", anchor="job-ended")
    return {**answer, "brought": answer["until"] == newer["until"]}


def renewing(job: str, items: Iterable[Facts]) -> Iterator[Facts]:
    """Yield the items of a job that is watched, and renew its tokens meanwhile. Messages about that come as {"told": text}."""
    renewal = _Renewal(job)
    for item in items:
        yield item
        tokens = (item.get("status") or {}).get("tokens")
        if tokens:
            renewal.look(tokens)
        for text in renewal.messages():
            yield {"told": text}


class _Renewal:
    """Renews tokens in a thread: fetching them may take as long as a KDC does not answer, and the watcher reads on."""

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

    def messages(self) -> Iterator[str]:
        while not self._words.empty():
            yield self._words.get()
