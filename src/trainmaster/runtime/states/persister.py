"""The process that stores states behind training, and the other end of its pipe.

It reads from shared memory, so the program only tells it which slot: `{"slot", "header", "at", "keep"}` a line, answered by `{"stored":
number}` or `{"error": text}`. It has idle priority, in which it runs where the program leaves a core; where that takes too long, or time
presses (a warning, the program's end), it is replaced by one of the program's own priority, which begins the set anew. It ends with the
program; in a session of its own it gets no signal that is meant for the program.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

_IDLE = 3 << 13  # ioprio_set(2): the class idle
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the number of that call
_START = "import sys; sys.path[:0] = [sys.argv[1]]; from importlib import import_module; import_module(sys.argv[2]).main(sys.argv[3])"


class Persister:
    """A running process that stores states. `is_urgent`: at the program's own priority."""

    def __init__(self, is_urgent: bool, at: str, slots: Sequence[int]) -> None:
        import subprocess

        package = __package__ or ""
        root = os.path.abspath(__file__)
        for _ in range(package.count(".") + 2):
            root = os.path.dirname(root)
        isolated = [] if "://" in at else ["-I", "-S"]  # fsspec is in the program's own Python
        self.is_urgent = is_urgent
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, *isolated, "-c", _START, root, f"{package}.persister", "urgent" if is_urgent else "idle"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=slots, start_new_session=True,
        )  # fmt: skip

    def store(self, order: dict[str, Any], give_up: Callable[[], bool]) -> dict[str, Any] | None:
        """Have a state stored, and return the answer; None where `give_up()` became true before. Raises OSError where the process died."""
        import select

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        poll = select.poll()  # select.select() takes no descriptor above 1,023
        poll.register(self._process.stdout, select.POLLIN)
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        while not poll.poll(100):
            if give_up():
                return None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the process that stores states has died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def main(priority: str) -> None:
    """Be the process."""
    from .memory_slots import Slot
    from .stored_states import place_at, store

    if priority == "idle":
        _become_idle()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            pieces = _pieces(Slot(order["slot"]), order["header"]["buffers"])
            store(place_at(order["at"]), order["header"], pieces, order["keep"])
            answer = {"stored": order["header"]["number"]}
        except Exception as error:  # noqa: BLE001  reported to the program, which tells its user
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _pieces(slot: Any, buffers: list[list[int]]) -> Callable[[int], Iterator[memoryview]]:
    from .stored_states import PIECE

    room = memoryview(bytearray(PIECE))

    def pieces(index: int) -> Iterator[memoryview]:
        offset, size = buffers[index]
        for begin in range(0, size, PIECE):
            piece = room[: min(PIECE, size - begin)]
            slot.read(offset + begin, piece)
            yield piece

    return pieces


def _become_idle() -> None:
    """Take the lowest priority for processor and disk, as far as this system has one."""
    import contextlib
    import ctypes

    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError, KeyError, AttributeError):
        ctypes.CDLL(None).syscall(_IOPRIO_SET[os.uname().machine], 1, 0, _IDLE)
