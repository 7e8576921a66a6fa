"""The ASGI application: it reads each request by the table of routes, and turns every error into one answer {"error": words}."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import attrs
from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trainmaster.core.errors import EngineFailed, NotFound
from trainmaster.core.foreign import json_in
from trainmaster.core.input.feed_tokens import is_of_feed
from trainmaster.web.contract import LIVE, Acts, Facts, Jobs, Unknown
from trainmaster.web.rest.call import Call
from trainmaster.web.rest.encoding import JSON, Encoded, json_answer
from trainmaster.web.rest.requests import NAME, TASK
from trainmaster.web.rest.routes import ROUTES, SUPPLY, Route
from trainmaster.web.rest.words import Refusal, from_body, from_query, is_whole_match

_BODY_LIMIT = 64 * 1024  # bytes
UNREADABLE = HTTPStatus.SERVICE_UNAVAILABLE  # the status of an answer that the storage keeps from a reader
_NAMES = {"job": NAME, "task": f"{TASK}|master"}
_NEVER_IN_A_NAME = (b"%2f", b"%5c", b"%00", b"%0a", b"%0d")

Authorize = Callable[[Request], str | None]


def rest(facts: Facts, acts: Acts, token: str) -> Starlette:
    """Return the application of one job; each request carries the job's token, or that of a feed, which may do `supply` alone."""

    def authorize(request: Request) -> str | None:
        header = request.headers.get("authorization", "")
        if is_of_feed(header.removeprefix("Bearer "), token):
            if not request.scope["path"].endswith(SUPPLY):  # not `url.path`: a Host header may be part of that
                raise PermissionError("a feed's token allows to feed it, and nothing else")
            return ""
        return "" if is_authorized(header, token) else None

    return application(_OneJob(facts, acts), authorize)


def application(jobs: Jobs, authorize: Authorize) -> Starlette:
    """Return the application of many jobs.

    `authorize` returns the user of a request: "" where there is no name, None for a stranger. Raises PermissionError with the words for a
    user who may not do this. The routes have whole paths.
    """
    encoded = Encoded()
    routes = [_routed(route, jobs, authorize, encoded) for route in ROUTES]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


def _routed(route: Route, jobs: Jobs, authorize: Authorize, encoded: Encoded) -> routing.Route:
    async def checked(request: Request) -> Response:
        try:
            user = authorize(request)
            if user is None:
                raise Refusal(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})
            return await route.act(await _call(route, request, jobs, encoded, user))
        except Refusal as refusal:
            return _error(refusal.status, refusal.detail, refusal.headers)
        except PermissionError as error:
            return _error(HTTPStatus.FORBIDDEN, str(error))
        except (Unknown, NotFound) as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except EngineFailed as error:  # a storage, say
            return _error(UNREADABLE, str(error))
        except ValueError as error:  # the job is not in a state for this action, or its log is not for us to read
            return _error(UNREADABLE if route.body is None else HTTPStatus.CONFLICT, str(error))

    routed = routing.Route(route.path, checked, methods=[route.method])
    routed.methods = {route.method}  # without HEAD, which would run a whole stream
    return routed


async def _call(route: Route, request: Request, jobs: Jobs, encoded: Encoded, user: str) -> Call:
    """Read a request. Raises Unknown and Refusal."""
    raw: bytes = request.scope.get("raw_path") or b""
    if any(part in raw.lower() for part in _NEVER_IN_A_NAME):
        raise Unknown("no name has a slash, a line break or a NUL in it")
    for kind, name in request.path_params.items():
        if not is_whole_match(_NAMES[kind], name):
            raise Unknown(f"there is no such {kind}: {name[:40]!r}")
    query = from_query(route.query, request.query_params.multi_items())
    call = Call(jobs, request.headers, encoded, request.path_params, query, user)
    if "job" not in call.path:
        return call
    facts, acts = await jobs.find(call.path["job"])
    if route.body is None:
        return attrs.evolve(call, facts=facts)
    if acts is None:
        raise Refusal(HTTPStatus.FORBIDDEN, _why_no_action(facts.shown_status()))
    return attrs.evolve(call, facts=facts, acts=acts, body=await _body(route.body, request))


def _why_no_action(status: Mapping[str, Any]) -> str:
    if status["ended"] is not None:
        return f"the job has ended ({status['state']}), so nothing can be done to it"
    return "this server only shows jobs; act with the tm command, or with `tm ui` of your own"


async def _body(model: type[Any], request: Request) -> Any:
    """Return the fields of a body. Without any bytes, it has no fields."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _BODY_LIMIT:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {_BODY_LIMIT} bytes at most")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON and (data or media):
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a body must be {JSON}; it is {media[:80] or 'of no type'}")
    if not data and model is dict:
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body is missing")
    try:
        value = json_in(data or b"{}")
    except ValueError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
    if not isinstance(value, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
    return value if model is dict else from_body(model, value)


def is_authorized(header: str, token: str) -> bool:
    """Tell whether an Authorization header carries the token, in the same time whatever it holds."""
    return hmac.compare_digest(header.encode("utf-8", "replace"), f"Bearer {token}".encode())


def _error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return json_answer({"error": detail}, status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer for a path or a method that no route has."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.scope['path'][:200]}: {error.detail}", error.headers)


@attrs.frozen
class _OneJob:
    """The jobs of a master: its own."""

    facts: Facts
    acts: Acts

    async def find(self, job: str) -> tuple[Facts, Acts]:
        if job != (own := self.facts.shown_status()["job"]):
            raise Unknown(f"there is no job {job} here: this is the master of {own}")
        return self.facts, self.acts

    async def listing(self, search: str, state: str, user: str, after: str, limit: int) -> Mapping[str, Any]:
        status, known = self.facts.shown_status(), self.facts.description()
        row = {"id": status["job"], "name": status["name"], "state": status["state"], "user": known.get("user", ""),
               "engine": known.get("engine", ""), "reason": (status["reason"] or {}).get("reason", ""),
               "submitted": status["submitted"], "started": None, "ended": status["ended"]}  # fmt: skip
        states = {"", status["state"]} | ({LIVE} if status["ended"] is None else set())
        is_match = search in f"{row['id']}\n{row['name']}" and state in states and user in ("", row["user"])
        rows = [row] if is_match and not after else []
        return {"jobs": rows, "next": None, "total": len(rows)}
