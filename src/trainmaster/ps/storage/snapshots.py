"""Shares of checkpoints, each written by a thread beside the server's own.

Each is of the moment at which it was asked for, and they are written one after another. Neither thread holds Python's lock while it copies,
digests or writes numbers. The threads have the server's priority: one with less of it is slow where the machine has other work, and as
long as it writes, rows that change are put aside. A thread ends with its process, so a server that is killed looks dead at once.
"""

from __future__ import annotations

import os
import threading

from .checkpoints import Share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..shard import Shard
    from .checkpoints import Plain


class Snapshots:
    """The shares that are being written to a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writers: dict[int, _Writer] = {}  # by the descriptor that can be read once it is done
        self._turn = threading.Lock()

    def begin(self, shard: Shard) -> int:
        """Begin to write the state as it is now, and return a descriptor that can be read once that is done."""
        report, its_end = os.pipe2(os.O_CLOEXEC)
        self._writers[report] = _Writer(Share(shard), self._directory, self._turn, its_end)
        self._writers[report].start()
        return report

    def end(self, descriptor: int) -> Plain:
        """Return version, sequence and share, or error, of a writer whose descriptor can be read."""
        os.close(descriptor)
        writer = self._writers.pop(descriptor)
        writer.share.end()
        return {"version": writer.share.version, "sequence": writer.share.sequence, **writer.report}

    def close(self) -> None:
        """End the writers at their next block."""
        for writer in self._writers.values():
            writer.share.interrupt()
        for descriptor, writer in self._writers.items():
            writer.join()
            os.close(descriptor)
        self._writers.clear()


class _Writer(threading.Thread):
    def __init__(self, share: Share, directory: str, turn: threading.Lock, descriptor: int) -> None:
        super().__init__(name="snapshot", daemon=True)
        self.share, self._directory, self._turn, self._descriptor = share, directory, turn, descriptor
        self.report: Plain = {"error": "its writer failed"}

    def run(self) -> None:
        try:
            with self._turn:
                self.report = {"share": self.share.write(self._directory)}
        except (OSError, MemoryError) as error:
            self.report = {"error": str(error) or "there is no memory"}
        finally:
            os.close(self._descriptor)
