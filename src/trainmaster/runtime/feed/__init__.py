"""The feed: batches of columns in shared memory, from feeders of this host to one program, without a copy for the reader.

    from trainmaster.runtime import feed

    for batch in feed.open("input"):
        loss = step(batch["pixels"], batch["label"])

The owner, an agent (`trainmaster.data.feed`), holds the memory, and says over a Unix socket who may use which part of it. A *feeder* asks
for room for a batch, writes the batch once, and reports it as written. The *reader* learns where the batch lies, and gives the memory back
when nothing refers to it any more. Both need the standard library alone; NumPy and pyarrow are used where the program has them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .reader import Reader

_VARIABLE = "TRAINMASTER_FEED_"


def open(name: str = "input") -> Reader:  # noqa: A001  as `io.open`
    """Return the reader of a feed of this task's role. A feed has one reader at a time. Raises FeedError where there is no such feed."""
    from .channel import FeedError
    from .reader import Reader

    variable = _VARIABLE + "".join(c if c.isalnum() else "_" for c in name).upper()
    if not (path := os.environ.get(variable)):
        known = ", ".join(
            key.removeprefix(_VARIABLE).lower() for key in sorted(os.environ) if key.startswith(_VARIABLE)
        )
        raise FeedError(
            f"this program has no feed {name!r} (it has {known or 'none'}): the job names them: roles.ROLE.feed: {{{name}: }}"
        )
    return Reader(path)
