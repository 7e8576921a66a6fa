"""The feeds of a node, as its function reads them: `ctx.mgr`."""

from __future__ import annotations

from trainmaster.spark.TFNode import Source


class Readers:
    """The node's feeds by name."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}

    def source(self, name: str, results: str = "") -> Source:
        """Return the one reader of a feed; it sends results by itself. Raises FeedError where the node has no such feed."""
        from trainmaster.runtime import feed
        from trainmaster.runtime.feed.channel import FeedError

        if name not in self._sources:
            try:
                self._sources[name] = feed.open(name)
            except FeedError as error:
                raise FeedError(
                    f"this node has no feed {name!r}: master, chief and workers have those of TFCluster.run(queues=...), "
                    "with input_mode=InputMode.SPARK"
                ) from error
        return self._sources[name]
