"""A feed's token: whoever holds it may feed one feed of one role, and do nothing else to its job.

Feeders carry it in the closures that Spark sends to executors. It names the feed, and is signed with the job's token.
"""

from __future__ import annotations

import hmac

_KIND = "feed"


def feed_token(token: str, role: str, feed: str) -> str:
    """Return the token of a feed. `token`: the job's."""
    name = f"{_KIND}:{role}:{feed}"
    return f"{name}:{hmac.new(token.encode(), name.encode(), 'sha256').hexdigest()}"


def named_feed(text: str) -> tuple[str, str] | None:
    """Return the role and the feed that a token names, whether or not it is a good one; None where it is not a feed's."""
    kind, _, rest = text.partition(":")
    role, _, feed = rest.rpartition(":")[0].partition(":")
    return (role, feed) if kind == _KIND and feed else None


def is_of_feed(text: str, token: str) -> bool:
    """Tell whether a text is the token of a feed of the job with this token, in the same time whatever it holds."""
    known = named_feed(text)
    return known is not None and hmac.compare_digest(
        text.encode("utf-8", "replace"), feed_token(token, *known).encode("utf-8", "replace")
    )
