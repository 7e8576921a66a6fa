"""Show the agent which shard this process is in the middle of, even if it dies in the next instant.

A message for each shard would cost more than leasing it. So the number of the shard is in memory that the agent can read when this
process is gone: a file without a name (memfd), which the agent opens as /proc/<pid>/fd/<n> when the process greets it.
"""

from __future__ import annotations

NOTHING, SEVERAL = -1, -2  # the process is in the middle of no shard, or of several


class Mark:
    """Eight bytes of shared memory. `descriptor` is None where the system has no such files: then nothing is shown."""

    def __init__(self) -> None:
        import mmap
        import os

        self.descriptor: int | None = None
        try:
            self.descriptor = os.memfd_create("trainmaster-shard")
            os.ftruncate(self.descriptor, 8)
            self._memory = mmap.mmap(self.descriptor, 8)
        except (AttributeError, OSError):  # not Linux, or no memory or descriptor left
            self.close()
        self.show(NOTHING)

    def show(self, number: int) -> None:
        if self.descriptor is not None:
            self._memory[:] = number.to_bytes(8, "little", signed=True)

    def close(self) -> None:
        import os

        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None
