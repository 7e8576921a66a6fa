"""End a connection, whatever state it is in."""

from __future__ import annotations

import contextlib
from typing import Any


def cut(transport: Any) -> None:
    """Abort a transport. In early Pythons (Debian's 3.11.2) a TLS transport that was closed twice raises AttributeError, for it forgot its
    underlying transport. It ends by itself, once the peer has answered or its shutdown has timed out.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()
