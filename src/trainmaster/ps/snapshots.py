"""Shares of checkpoints, each written by a forked copy of the server.

The copy has the server's memory as it was at the fork, and writes one file; nothing else of it runs. It first closes whatever it has of the
server's sockets and files, as a server that is killed must look dead to everybody at once; and it ends where the server has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import warnings

from .storage.checkpoints import write_share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shard import Shard
    from .storage.checkpoints import Plain

_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


class Snapshots:
    """The copies that write to a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writers: dict[int, tuple[int, Plain]] = {}  # descriptor of the report -> process, and what it writes

    def begin(self, shard: Shard) -> int:
        """Begin to write the state as it is now, and return a descriptor that can be read once that is done."""
        report, its_end = os.pipe2(os.O_CLOEXEC)
        facts = {"version": shard.version, "sequence": shard.sequence}
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of a fork beside threads: the copy needs none of their locks
            server = os.getpid()
            process = os.fork()
        if not process:
            self._write(shard, its_end, server)
        os.close(its_end)
        self._writers[report] = process, facts
        return report

    def end(self, descriptor: int) -> Plain:
        """Return version, sequence and share, or error, of a copy whose descriptor can be read."""
        process, facts = self._writers.pop(descriptor)
        with open(descriptor, "rb") as file:
            content = file.read()
        os.waitpid(process, 0)
        return {**facts, **(json.loads(content) if content else {"error": "the process that wrote it was killed"})}

    def close(self) -> None:
        """End the copies that still write."""
        for descriptor, (process, _) in self._writers.items():
            os.close(descriptor)
            os.kill(process, 9)
            os.waitpid(process, 0)
        self._writers.clear()

    def _write(self, shard: Shard, descriptor: int, server: int) -> None:
        """Write the share, report, and end this process."""
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                return
            for other in map(int, os.listdir("/proc/self/fd")):
                if other > 2 and other != descriptor:
                    try:
                        os.close(other)
                    except OSError:  # the descriptor of the listing itself
                        continue
            os.nice(_NICENESS)
            try:
                report: Plain = {"share": write_share(self._directory, shard)}
            except OSError as error:
                report = {"error": str(error)}
            os.write(descriptor, json.dumps(report).encode())
        finally:
            os._exit(0)
