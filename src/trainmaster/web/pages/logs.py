"""The pages of a job's logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from trainmaster.web.contract import Facts, Reader


def log_routes(
    facts: Facts, reader_of: Callable[[Request], Reader], values: Callable[[Request, str], dict[str, Any]]
) -> list[Route]:
    """Return the routes below `logs`. `values(request, "logs")`: what each page of the job needs."""
    return []
