"""The feed: batches of columns in shared memory, from feeders of this host to one program, without a copy for the reader.

    from trainmaster.runtime import feed

    for batch in feed.open("input"):
        loss = step(batch["pixels"], batch["label"])

    for batch in feed.batches("input", 128): ...                             # of a size of the program's own
    loader = DataLoader(feed.torch("input", 128), batch_size=None)           # PyTorch
    model.fit(feed.tf("input", 128, columns=("pixels", "label")))            # TensorFlow, Keras
    for pixels, label in feed.jax("input", 128, ("pixels", "label")): ...    # JAX

The owner, an agent (`trainmaster.data.feed`), holds the memory, and says over a Unix socket who may use which part of it. A *feeder* asks
for room for a batch, writes the batch once, and reports it as written. The *reader* learns where the batch lies, and gives the memory back
when nothing refers to it any more. Both need the standard library alone; NumPy and pyarrow are used where the program has them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .reader import Batch, Reader
    from .readers.batches import Columns

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


def batches(name: str = "input", batch: int = 0, drop_last: bool = False) -> Iterator[Batch]:
    """Return the batches of a feed, of `batch` rows each (0: as they come), the last one shorter, or left out with `drop_last`.

    Each column is an array of NumPy (`batch["x"]`), each batch one of Arrow too (`batch.arrow()`). A batch that lies across two of the
    ring's is a copy. Raises FeedError as `open`.
    """
    from .readers.batches import batches as of_size

    return of_size(open(name), batch, drop_last)


def torch(name: str = "input", batch: int = 0, columns: Columns = None, drop_last: bool = False) -> Any:
    """Return a feed as an `IterableDataset` of PyTorch, whose elements are batches: `DataLoader(feed.torch(...), batch_size=None)`.

    An element is a dictionary of tensors; with `columns`, a tuple of their tensors; with one column, its tensor. Texts, and lists of any
    length, are lists. Without workers tensors are the ring's memory. With a DataLoader's workers the first one reads all, and a batch
    counts as read when that worker has copied it.
    """
    from functools import partial

    from .readers.for_torch import FeedDataset

    return FeedDataset(partial(batches, name, batch, drop_last), columns)


def tf(name: str = "input", batch: int = 0, columns: Columns = None, drop_last: bool = False) -> Any:
    """Return a feed as a `tf.data.Dataset` of batches: `model.fit(feed.tf("input", 128, ("pixels", "label")))`.

    An element is a dictionary of tensors; with `columns`, a tuple of their tensors; with one column, its tensor. Lists of any length are
    RaggedTensors. Waits for the first batch, which shows the types. The dataset can be iterated once: epochs are those of the feed.
    """
    from .readers.for_tf import dataset

    return dataset(iter(open(name)), batch, drop_last, columns)


def jax(
    name: str = "input", batch: int = 0, columns: Columns = None, drop_last: bool = False, device: Any = None
) -> Iterator[Any]:
    """Return an iterator over batches as arrays of JAX on `device`, in the form that `torch` has.

    Texts and what has any length stay as `batches` has them; so do dates and times unless JAX has 64 bits.
    """
    from .readers.for_jax import arrays

    return arrays(batches(name, batch, drop_last), columns, device)
