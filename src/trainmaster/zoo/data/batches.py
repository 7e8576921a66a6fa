"""Batches of what a feed makes of the windows of an input. A window is done once the batch that has the last of it is used.

A batch is used when the next one is asked for. A batch has elements of several windows, but of one epoch; where no further shard is to be
had just now, those that there are make a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import BadModel
from .records import Window, Windows


class Batch(NamedTuple):
    """`features` and `labels` (None without) of `size` examples of an epoch."""

    features: Any
    labels: Any
    size: int
    epoch: int


def batches(windows: Windows, feed: Any, size: int) -> Iterator[Batch]:
    """Yield batches of `size` examples. The last one of an epoch may be smaller."""
    rest: Any = None
    epoch, pending = 0, list[Window]()  # windows that have been read, and are not done

    def used() -> None:
        while pending:
            pending.pop().done()

    while True:
        window = windows.next(wait=rest is None)
        if rest is not None and (window is None or window.epoch != epoch):
            yield _batch(feed, rest, epoch)
            rest = None
            used()
            if window is None:
                continue
        if window is None:
            return
        epoch = window.epoch
        for chunk in feed.chunks(window):
            rest = chunk if rest is None else feed.joined(rest, chunk)
            while rest is not None and (length := feed.length(rest)) >= size:
                whole, rest = (rest, None) if length == size else feed.split(rest, size)
                yield _batch(feed, whole, epoch)
                used()
        pending.append(window)
        if rest is None:
            used()


def window_batches(window: Window, feed: Any) -> Iterator[Batch]:
    """Yield the batches of one window alone. It is not done by that."""
    for chunk in feed.chunks(window):
        yield _batch(feed, chunk, window.epoch)


def _batch(feed: Any, chunk: Any, epoch: int) -> Batch:
    element = feed.stacked(chunk)
    if not isinstance(element, tuple):
        return Batch(element, None, feed.length(chunk), epoch)
    if len(element) != 2:
        raise BadModel(
            f"the feed gives tuples of {len(element)}, and a pair (features, labels) is due",
            mend="give several features as a dictionary",
        )
    return Batch(*element, feed.length(chunk), epoch)
