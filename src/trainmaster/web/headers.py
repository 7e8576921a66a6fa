"""The headers of every answer with a page: what a browser may do with it. The outermost application adds them: `web.access`, `web.proxied`.

Under the Referrer-Policy `no-referrer`, browsers send our own forms with `Origin: null` (Fetch standard, "append a request Origin header"),
which `web.access` takes for another site; hence `same-origin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "DENY", "Cache-Control": "no-store",
}  # fmt: skip


def sending(send: Send, headers: Mapping[str, str] = HEADERS) -> Send:
    """Return an ASGI `send` that adds headers to the answer, except those that it has."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            message["headers"] = [*message.get("headers", ()), *(row for row in added if row[0] not in present)]
        await send(message)

    return send_with_headers
