"""The owner's side of a feed: who may write and read which part of the shared memory, and the socket where they ask."""
