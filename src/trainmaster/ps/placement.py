"""Places of parameters on N servers: the same on every machine and in every Python, since checkpoints and workers rely on it."""

from __future__ import annotations

import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


def server_of_parameter(name: str, servers: int) -> int:
    """Return the server, 0 to `servers` - 1, that holds a dense parameter: by a hash of its name (BLAKE2b, 8 bytes, little-endian)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") % servers


def servers_of_rows(ids: NDArray[numpy.int64], servers: int) -> NDArray[numpy.int64]:
    """Return the server of the embedding row of each id, (n,): id modulo `servers`, never negative."""
    return ids % servers
