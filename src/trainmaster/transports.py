"""The end of a connection, in whatever state it is."""

from __future__ import annotations

import contextlib
from typing import Any


def cut(transport: Any) -> None:
    """Abort it. One under TLS that was closed twice raises in early Pythons (Debian's 3.11.2): it has forgotten what it stands on, and
    ends by itself, once the peer has answered or its shutdown has timed out.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()
