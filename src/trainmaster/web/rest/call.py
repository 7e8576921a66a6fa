"""One request, read and checked: all that an endpoint gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from starlette.datastructures import Headers

from trainmaster.web.contract import Acts, Facts, Jobs
from trainmaster.web.rest.encoding import Encoded


@attrs.frozen(slots=True, eq=False, repr=False)
class Call:
    """A request. `facts` and `acts` are of the job of its path, where that names one."""

    jobs: Jobs
    headers: Headers
    encoded: Encoded
    path: Mapping[str, str]
    query: Any  # its parameters
    user: str  # "" where it has no name
    facts: Facts = None  # type: ignore[assignment]
    acts: Acts = None  # type: ignore[assignment]
    body: Any = None  # its fields

    @property
    def by(self) -> str:
        """Return who acts, for the event log."""
        return self.user or self.body.by or "a user"

    def accepts(self, media: str) -> bool:
        """Tell whether the reader names this type of content."""
        return media in self.headers.get("accept", "").lower()
