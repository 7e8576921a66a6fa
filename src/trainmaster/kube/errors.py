"""KubeError is the root of a closed family of errors: whoever calls this library catches it.

The server reports an error as a Status object: a code of HTTP, a reason (one word), a message for people and details. The classes follow
the code; `reason` tells errors of one code apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class KubeError(Exception):
    """`message` is one line for a person, `mend` says what to do, where that is known."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.message, self.mend = message, mend


class ConfError(KubeError):
    """The configuration of the cluster or of its user is missing, unreadable or contradicts itself."""


class Unreachable(KubeError):
    """The server gave no answer: there was no connection, or it broke, or is silent. `sent`: the server may have obeyed the request."""

    def __init__(self, message: str, mend: str = "", *, sent: bool = False) -> None:
        super().__init__(message, mend)
        self.sent = sent


class ApiError(KubeError):
    """The server refused a request. `doubtful`: an earlier try of the same call got no answer, and this one may collide with it."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.details = code, reason, details or {}
        self.doubtful = False

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Return the faults of the object: (field, message)."""
        return [(str(c.get("field", "")), str(c.get("message", ""))) for c in self.details.get("causes") or ()]


class Unauthorized(ApiError):
    """The server does not believe who we say we are."""


class Forbidden(ApiError):
    """We may not do that; or a quota, a policy or an admission webhook is against it."""

    @property
    def quota(self) -> bool:
        """Tell whether a quota is full: no right is missing then."""
        return "exceeded quota" in self.message


class NotFound(ApiError):
    """There is no such object, or no such kind of objects."""


class Conflict(ApiError):
    """The object is there already (`exists`), or is not the one that was expected."""

    @property
    def exists(self) -> bool:
        return self.reason == "AlreadyExists"


class Gone(ApiError):
    """The version that was asked for is too old: list anew."""


class Invalid(ApiError):
    """The server finds the object wrong: no such object can be."""


class TooMany(ApiError):
    """The server has too much to do, or a disruption budget is spent."""

    @property
    def after(self) -> float:
        """Return the seconds until one may ask again; 0 where the server does not say."""
        return float(self.details.get("retryAfterSeconds") or 0)


_CLASSES: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooMany,
}


def of_answer(code: int, body: bytes, retry_after: str = "") -> ApiError:
    """Return the error that an answer of 400 and more stands for."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        lines = body.decode("utf-8", "replace").strip().splitlines()
        status = {"message": lines[0][:300] if lines else f"HTTP status {code}"}
    return of_status({**status, "code": code}, retry_after)


def of_status(status: Mapping[str, Any], retry_after: str = "") -> ApiError:
    """Return the error that a Status object describes."""
    code = int(status.get("code") or 500)
    details = dict(status.get("details") or {})
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10:
        details.setdefault("retryAfterSeconds", int(retry_after))
    message = str(status.get("message") or status.get("reason") or f"HTTP status {code}")
    return _CLASSES.get(code, ApiError)(code, str(status.get("reason") or ""), message, details)
