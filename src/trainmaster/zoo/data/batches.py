"""Batches of what a feed makes of the windows of an input. A window is done once the batch that has the last of it is used.

A batch is used when it says so, or when the next one is asked for. A batch has elements of several windows, but of one epoch; where no
further shard is to be had just now, those that there are make a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..errors import BadModel
from .records import Window, Windows


class Batch(NamedTuple):
    """`features` and `labels` (None without) of `size` examples of an epoch. `used` tells that it is used; the next one tells it too."""

    features: Any
    labels: Any
    size: int
    epoch: int
    used: Callable[[], None]


def batches(windows: Windows, feed: Any, size: int) -> Iterator[Batch]:
    """Yield batches of `size` examples. The last one of an epoch may be smaller."""
    rest: Any = None
    epoch, pending = 0, list[Window]()  # windows of which nothing is left but what is in the batch

    def used() -> None:
        while pending:
            pending.pop().done()

    while True:
        window = windows.next(wait=rest is None)
        if rest is not None and (window is None or window.epoch != epoch):
            yield _batch(feed, rest, epoch, used)
            rest = None
            used()
        elif window is None:
            return
        if window is None:
            continue
        epoch = window.epoch
        for chunk, is_last in _with_last(_chunks(feed, window)):
            rest = chunk if rest is None else feed.joined(rest, chunk)
            while rest is not None and (length := feed.length(rest)) >= size:
                whole, rest = (rest, None) if length == size else feed.split(rest, size)
                if rest is None and is_last:
                    pending.append(window)
                yield _batch(feed, whole, epoch, used)
                used()
        pending.append(window)
        if rest is None:
            used()


def _chunks(feed: Any, window: Window) -> Iterator[Any]:
    """Yield the chunks of a window. An error of the model file's feed or reader gets a note that names the record."""
    try:
        yield from feed.chunks(window)
    except Exception as error:
        error.add_note(f"records were read up to {window.place()}")
        raise


def _with_last(chunks: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each chunk, and whether it is the last one."""
    before = next(chunks, None)
    for chunk in chunks:
        yield before, False
        before = chunk
    if before is not None:
        yield before, True


def window_batches(window: Window, feed: Any) -> Iterator[Batch]:
    """Yield the batches of one window alone. It is not done by that."""
    for chunk in _chunks(feed, window):
        yield _batch(feed, chunk, window.epoch, lambda: None)


def _batch(feed: Any, chunk: Any, epoch: int, used: Callable[[], None]) -> Batch:
    element = feed.stacked(chunk)
    if not isinstance(element, tuple):
        return Batch(element, None, feed.length(chunk), epoch, used)
    if len(element) != 2:
        raise BadModel(
            f"the feed gives tuples of {len(element)}, and a pair (features, labels) is due",
            mend="give several features as a dictionary",
        )
    return Batch(*element, feed.length(chunk), epoch, used)
