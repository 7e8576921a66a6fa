"""Join rounds, and hear when they are over.

A process joins over one connection to its agent, which it keeps: its end tells the master that this process is in its round no more. A
thread reads that connection, so `broken` and `wanted` are heard whatever the program does. Each word names the round that it is about.
"""

from __future__ import annotations

import os
import threading
from time import monotonic

from ..link import Link, credentials
from ..reports import phase
from .rounds import Member, Round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BROKEN, WANTED = "broken", "wanted"
LOOPBACK = "127.0.0.1"
_AGENT_LIMIT = 30.0  # s until an agent that is away is given up
_PAYLOAD = 1024  # bytes
_AGAIN = 1.0  # s until a join is sent again to an agent that is away


class Rendezvous:
    """A place at which the processes of a role meet, by its name.

    `heard(word, number)` is called by a thread of its own as soon as a round is BROKEN, or somebody is WANTED in it. Without a master each
    round has this process alone, and nothing is heard.
    """

    def __init__(self, name: str = "elastic", heard: Callable[[str, int], None] | None = None) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= 256:
            raise ValueError(f"the name of a rendezvous is a text of 1 to 256 characters, not {name!r}")
        self.name, self.round = name, 0  # the number of the round that this process is in, 0: none
        self._call_back = heard
        self._words: set[str] = set()  # that were heard of this round
        self._news = threading.Condition()  # of everything here; nothing is sent, and nobody called, under it
        self._joins = self._connections = 0
        self._answers: list[dict[str, Any]] = []  # of the newest join
        self._link: Link | None = None
        self._process = 0  # whose thread listens

    @property
    def is_broken(self) -> bool:
        """Tell whether the round is over."""
        return BROKEN in self._words

    @property
    def is_wanted(self) -> bool:
        """Tell whether somebody waits to come in."""
        return WANTED in self._words

    @property
    def is_alone(self) -> bool:
        """Tell whether there is no master: each round has this process alone."""
        return not os.environ.get("TRAINMASTER_SOCKET")

    def key_and_address(self) -> tuple[str, str]:
        """Return the key by which the members know each other, and the address at which the others reach this task. Raises RuntimeError."""
        if self.is_alone:
            return "", LOOPBACK
        if (answer := credentials(_AGENT_LIMIT)) is None:
            raise RuntimeError(f"the agent did not tell the key of the members within {_AGENT_LIMIT:g} s")
        return answer["ring"], answer["address"]

    def join(self, payload: str = "", step: int = 0, *, agreed: bool = False, timeout: float | None = None) -> Round:
        """Leave the round that this process is in, if any, and return the next one once it has formed.

        `payload`: up to 1 KiB that the other members get, as the port at which this one listens. `step`: the last step that this process
        has completed. `agreed`: all members leave the round just now, so this breaks it for nobody. Raises TimeoutError after `timeout`
        seconds (None: it waits for ever), RuntimeError where another process has joined in the place of this one.
        """
        if not isinstance(payload, str) or len(payload.encode()) > _PAYLOAD:
            raise ValueError(f"the payload is a text of at most {_PAYLOAD} bytes")
        if type(step) is not int or step < 0:
            raise ValueError(f"a step is a whole number of at least 0, not {step!r}")
        copy = int(os.environ.get("TRAINMASTER_COPY") or 0)
        if self.is_alone:
            self.round += 1
            return Round(self.round, 0, [Member("worker:0", copy, "", payload, step, self.round == 1)])
        frame = {"op": "join", "name": self.name, "copy": copy, "payload": payload, "step": step, "agreed": agreed}
        try:
            with phase("waiting for the other members"):
                answer = self._ask(os.environ["TRAINMASTER_SOCKET"], frame, timeout)
        except BaseException:
            self.leave()
            raise
        if "error" in answer:
            raise RuntimeError(f"the rendezvous {self.name}: {answer['error']}")
        members = [Member(*row) for row in answer["members"]]
        return Round(int(answer["round"]), int(answer["rank"]), members, int(answer["finished"]))

    def begin_state(self, number: int, step: int, *, lost: bool, restored: bool) -> None:
        """Say that a round of a training begins with the state of this process, of that `step`.

        `lost`: nobody has the state of the round before, and what its members made of their shards is lost with it. `restored`: this state
        is from a checkpoint. The master has given back the shards that are not in the state when this returns.
        """
        if not self.is_alone:
            link = Link(os.environ["TRAINMASTER_SOCKET"])
            state = {"training": self.name, "round": number, "step": step}
            link.ask({"op": "state", **state, "lost": lost, "restored": restored})
            link.end()

    def leave(self) -> None:
        """Leave the round, or give up waiting for one. It is broken for the others then."""
        link, self._link, self._process = self._link, None, 0
        with self._news:
            self.round = 0
            self._answers.clear()
            self._words.clear()
            self._joins += 1
            self._news.notify_all()
        if link is not None:
            link.end()

    # -- below --

    def _ask(self, path: str, frame: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        with self._news:
            self.round = 0
            self._answers.clear()
            self._words.clear()
            self._joins += 1
            request = self._joins
        link = self._link
        if link is None or self._process != os.getpid():
            self._process, link = os.getpid(), Link(path, self._greeting, self._heard)
            self._link = link
            threading.Thread(target=link.listen, name="trainmaster-rendezvous", daemon=True).start()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            connection = self._connections  # a join that is sent twice over one counts once
            is_sent = link.post({**frame, "id": request})
            with self._news:
                while not self._answers and connection == self._connections and request == self._joins:
                    left = None if deadline is None else deadline - monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"rendezvous {self.name}: no round formed within {timeout:g} s")
                    if not self._news.wait(left if is_sent else min(_AGAIN, left or _AGAIN)) and not is_sent:
                        break
                if request != self._joins:
                    raise RuntimeError(f"the rendezvous {self.name}: another thread has left it, or joined anew")
                if self._answers:
                    return self._answers[0]

    def _greeting(self) -> dict[str, Any]:
        """Note a new connection: what the one before had joined is over, and a join is to be sent again."""
        with self._news:
            self._connections += 1
            number = self.round
            self._news.notify_all()
        if number:
            self._take(BROKEN, number)
        return {}

    def _heard(self, frame: dict[str, Any]) -> None:
        if frame.get("op") in (BROKEN, WANTED):
            self._take(frame["op"], int(frame["round"]))
        elif frame.get("id") is not None:
            with self._news:
                if frame["id"] == self._joins:
                    self.round = int(frame.get("round", 0))
                    self._answers.append(frame)
                    self._news.notify_all()

    def _take(self, word: str, number: int) -> None:
        with self._news:
            if number != self.round or word in self._words:
                return
            self._words.add(word)
        if self._call_back is not None:
            self._call_back(word, number)
