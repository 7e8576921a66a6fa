"""Kubernetes' API, a method per thing that one does with it.

Objects are plain dicts, as the API has them. Namespaces: "" is the configuration's, "*" are all. Requests are short, at most
`concurrency` at once, each on a pooled connection; watches, logs that are followed and forwarded ports have connections of their own.

These requests are tried again, for `patience` seconds in all, with growing pauses and jitter:

- one that a server refuses (401, 403) within SETTLING seconds after it could not be reached: a server that has just started knows no
  rights yet;
- a request that found no server, or that the server did not take (429, as it says by Retry-After: for THROTTLED seconds at least);
- one whose connection broke, or that the server could not finish (502, 503, 504, etcd away), where it may be repeated: all but patches of
  the kind "json", evictions, and objects that the server is to name.

So a call may meet its own earlier try. `create` knows by an annotation what that one has made, and returns it; for the others,
`ApiError.doubtful` says that this can be. After a 401 a request is sent once more, with credentials
fetched anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import attrs

from trainmaster.kube.config import Config
from trainmaster.kube.credentials import Presented
from trainmaster.kube.errors import (
    ApiError,
    Conflict,
    Gone,
    KubeError,
    NotFound,
    TooMany,
    Unreachable,
    of_answer,
    of_status,
)
from trainmaster.kube.kinds import ACCESS_REVIEWS, PODS, Kind
from trainmaster.kube.wire import Connection, ConnectionPool

if TYPE_CHECKING:
    from trainmaster.kube.forward import Forwarded

Object = dict[str, Any]
Objects = list[Object]  # `list` is a method here
Headers = list[tuple[str, str]]
WATCHED = 290  # s that a watch lasts; servers end it between 30 and 60 min by themselves
SILENT = 100.0  # s without a byte after which a watch counts as broken; bookmarks come each minute
THROTTLED = 60.0  # s
SETTLING = 15.0  # s
_STARTING = "not yet ready to handle request"  # of an admission plugin
_TRY = "trainmaster/try"  # the annotation by which `create` knows its own objects
_PAUSE, _LONGEST = 0.05, 1.0  # s between tries: the first, and the most
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_JSON = "application/json"
_ABOUT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"  # metadata alone: of a large object little
_ABOUTS = _ABOUT.replace("PartialObjectMetadata", "PartialObjectMetadataList")
_UNFINISHED = (502, 503, 504)


@attrs.frozen
class Request:
    """`repeatable`: it may be sent again where nobody knows whether it was carried out."""

    method: str
    path: str
    query: Mapping[str, Any] = attrs.field(factory=dict)
    body: bytes = b""
    content: str = _JSON
    accept: str = _JSON
    repeatable: bool = True
    throttled: bool = True  # whether a 429 means "later"

    def target(self, prefix: str) -> str:
        query = urlencode({name: value for name, value in self.query.items() if value not in ("", None)})
        return f"{prefix}{self.path}?{query}" if query else prefix + self.path


class Client:
    """`async with Client(load()) as client`. Every method raises KubeError.

    `timeout`: s for one try of a request. `patience`: s after its first failure in which it is tried again.
    """

    def __init__(self, config: Config, *, timeout: float = 30.0, patience: float = 10.0, concurrency: int = 24) -> None:
        self.config, self.namespace = config, config.namespace
        self._timeout, self._patience = timeout, patience
        self._door = ConnectionPool(config)
        self._room = asyncio.Semaphore(concurrency)
        self._open: set[Connection] = set()
        self._settled = 0.0  # when refusals are believed again

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Watches end with Unreachable."""
        self._door.close()
        for connection in list(self._open):
            connection.abort()

    # -- objects --

    async def get(self, kind: Kind, name: str, namespace: str = "", metadata: bool = False) -> Object:
        """Return one object, or its metadata alone."""
        accept = _ABOUT if metadata else _JSON
        return await self._object(Request("GET", self._path(kind, namespace, name), accept=accept))

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = 500,
        metadata: bool = False,
    ) -> tuple[Objects, str]:
        """Return all objects that the selectors fit, read `limit` at a time, without managedFields; and the version from which to watch on.

        `metadata`: the objects' metadata alone.
        """
        accept = _ABOUTS if metadata else _JSON
        path = self._path(kind, namespace)
        query: dict[str, Any] = {"labelSelector": labels, "fieldSelector": fields, "limit": limit}
        objects: Objects = []
        while True:
            try:
                page = await self._object(Request("GET", path, query, accept=accept))
            except Gone:
                if "continue" not in query:
                    raise
                del query["continue"], query["limit"]  # reading took longer than etcd keeps the past: all at once then
                objects = []
                continue
            for row in page.get("items") or ():
                objects.append(_normalized(row, kind))
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return objects, str(about.get("resourceVersion", ""))
            query["continue"] = about["continue"]

    async def create(
        self, kind: Kind, obj: Mapping[str, Any], namespace: str = "", dry_run: bool = False, strict: bool = False, metadata: bool = False,
    ) -> Object:  # fmt: skip
        """Make an object; return it as the server made it, or its metadata alone. Raises Conflict, which `exists`, where it is there.

        `strict`: the server refuses unknown fields (400).
        """
        about, accept = obj.get("metadata") or {}, _ABOUT if metadata else _JSON
        name, namespace = about.get("name", ""), namespace or about.get("namespace", "")
        mark = secrets.token_hex(8)
        if name:
            marked = {**(about.get("annotations") or {}), _TRY: mark}
            obj = {**obj, "metadata": {**about, "annotations": marked}}
        request = Request(
            "POST", self._path(kind, namespace), _query_flags(dry_run, strict), _data(obj), accept=accept,
            repeatable=bool(name) or kind is ACCESS_REVIEWS,
        )  # fmt: skip
        try:
            return await self._object(request)
        except Conflict as error:
            if error.exists and error.doubtful:
                with contextlib.suppress(ApiError):
                    there = await self.get(kind, name, namespace, metadata)
                    if (there["metadata"].get("annotations") or {}).get(_TRY) == mark:
                        return there
            raise

    async def replace(self, kind: Kind, obj: Mapping[str, Any], namespace: str = "", sub: str = "") -> Object:
        """Replace the object of this name; where the new one carries a resourceVersion, only that version, else raise Conflict."""
        about = obj["metadata"]
        path = self._path(kind, namespace or about.get("namespace", ""), about["name"], sub)
        return await self._object(Request("PUT", path, body=_data(obj)))

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        how: str = "merge",
        namespace: str = "",
        sub: str = "",
        dry_run: bool = False,
        metadata: bool = False,
    ) -> Object:
        """Change an object: "merge", "strategic", "json" or "apply" (server-side, forced); return it, or its metadata alone."""
        query: dict[str, Any] = _query_flags(dry_run, False)
        if how == "apply":
            query |= {"fieldManager": "trainmaster", "force": "true"}
        request = Request(
            "PATCH", self._path(kind, namespace, name, sub), query, _data(body), _PATCHES[how],
            accept=_ABOUT if metadata else _JSON, repeatable=how != "json",
        )  # fmt: skip
        return await self._object(request)

    async def delete(
        self, kind: Kind, name: str, namespace: str = "", grace: int | None = None, uid: str = "", propagation: str = ""
    ) -> bool:
        """Delete an object, only the one of `uid` where that is given; return False where there is none."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        try:
            await self._body(Request("DELETE", self._path(kind, namespace, name), body=_data(options)))
        except NotFound:
            return False
        except Conflict:
            if not uid:
                raise
            return False  # another one of that name
        return True

    async def delete_all(self, kind: Kind, labels: str, namespace: str = "", grace: int | None = None) -> None:
        """Delete all objects that the labels fit."""
        if not labels:
            raise ValueError("delete_all wants labels")
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        path = self._path(kind, namespace)
        await self._body(Request("DELETE", path, {"labelSelector": labels}, _data(options)))

    async def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "", since: str = "",
    ) -> AsyncGenerator[tuple[str, Object], None]:  # fmt: skip
        """Yield the changes after the version `since`: ("ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK", object).

        The iterator ends when the server ends the watch. Raises Gone where `since` is too old, Unreachable where the connection breaks.
        """
        async with aclosing(self.watching(kind, namespace, labels, fields, since)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def watching(
        self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "", since: str = "",
    ) -> AsyncGenerator[tuple[str, Object] | None, None]:  # fmt: skip
        """Yield the same as `watch`, and None first, once the server has accepted the watch."""
        query = {
            "watch": "true", "allowWatchBookmarks": "true", "labelSelector": labels, "fieldSelector": fields,
            "resourceVersion": since, "timeoutSeconds": WATCHED,
        }  # fmt: skip
        request = Request("GET", self._path(kind, namespace), query)
        async with aclosing(self._stream(request, SILENT)) as chunks:
            rest = b""
            async for chunk in chunks:
                if chunk is None:
                    yield None
                    continue
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise of_status(event["object"])
                    yield event["type"], _normalized(event["object"], kind)

    # -- pods --

    async def log(self, pod: str, namespace: str = "") -> bytes:
        """Return the output of the pod's container."""
        return await self._body(Request("GET", self._path(PODS, namespace, pod, "log"), accept="*/*"))

    async def evict(self, pod: str, namespace: str = "", grace: int | None = None) -> None:
        """Have a pod evicted. Raises TooMany where a disruption budget is against it."""
        body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        if grace is not None:
            body["deleteOptions"] = {"gracePeriodSeconds": grace}
        path = self._path(PODS, namespace, pod, "eviction")
        await self._body(Request("POST", path, body=_data(body), repeatable=False, throttled=False))

    async def forward(self, pod: str, port: int, namespace: str = "") -> Forwarded:
        """Open a stream to a port of a pod; see `forwarded`."""
        from trainmaster.kube.forward import forwarded

        return await forwarded(self, self._path(PODS, namespace, pod, "portforward"), port)

    async def connect(self, pod: str, port: int, namespace: str = "") -> socket.socket:
        """Return the same stream as a socket: one end of a pair, whose other end this loop serves until either side closes."""
        from trainmaster.kube.forward import piped

        return await piped(await self.forward(pod, port, namespace))

    # -- the server --

    async def review(self, verb: str, kind: Kind, sub: str = "", namespace: str = "", name: str = "") -> bool:
        """Tell whether we may do that (SelfSubjectAccessReview)."""
        attributes: Object = {
            "verb": verb,
            "group": kind.group,
            "resource": kind.plural,
            "subresource": sub,
            "name": name,
        }
        if kind.namespaced and namespace != "*":
            attributes["namespace"] = namespace or self.namespace
        body = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.name,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.create(ACCESS_REVIEWS, body)
        return bool((answer.get("status") or {}).get("allowed"))

    async def version(self) -> str:
        """Return the server's version, like "v1.33.13"."""
        return str((await self._object(Request("GET", "/version")))["gitVersion"])

    # -- inside --

    def _path(self, kind: Kind, namespace: str, name: str = "", sub: str = "") -> str:
        return kind.path(namespace or self.namespace, name, sub)

    async def _object(self, request: Request) -> Object:
        body = await self._body(request)
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(f"{self._door.place} does not speak Kubernetes", "check the server in the kubeconfig")
        return answer

    async def _body(self, request: Request) -> bytes:
        """Return the body of a good answer, after as many tries as it takes."""
        clock = asyncio.get_running_loop().time
        first_failure, pause, doubtful, renewed = 0.0, _PAUSE, False, False
        while True:
            limit, wait = self._patience, 0.0
            failure: KubeError
            try:
                return await self._try_once(request)
            except Unreachable as error:
                if error.sent and not request.repeatable:
                    raise
                doubtful, failure = doubtful or error.sent, error
                self._settled = clock() + SETTLING
            except ApiError as error:
                error.doubtful = doubtful
                if isinstance(error, TooMany) and request.throttled:
                    limit, wait, failure = max(self._patience, THROTTLED), error.after, error
                elif error.code == 401 and not renewed and self.config.credentials.refused():
                    renewed = True
                    continue
                elif (error.code in (401, 403) and clock() < self._settled) or _STARTING in error.message:
                    limit, failure = max(self._patience, SETTLING), error
                elif request.repeatable and (error.code in _UNFINISHED or "etcdserver" in error.message):
                    doubtful, failure = True, error
                else:
                    raise
            wait += pause * (0.5 + random.random() / 2)
            first_failure = first_failure or clock()
            if clock() + wait - first_failure > limit:
                raise failure
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST)

    async def _try_once(self, request: Request) -> bytes:
        presented = await self.presented()
        async with self._room:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._exchange(request, presented)
            except TimeoutError:
                message = f"{self._door.place} does not answer within {self._timeout:g} s"
                raise Unreachable(message, sent=True) from None

    async def _exchange(self, request: Request, presented: Presented) -> bytes:
        connection = await self._door.take(presented)
        self._open.add(connection)
        try:
            head = await connection.ask(*self._request_head(request, presented), request.body)
            body = b"".join([chunk async for chunk in connection.chunks()])
        except BaseException:
            connection.abort()
            raise
        finally:
            self._open.discard(connection)
        self._door.give(connection)
        if head.status >= 400:
            raise of_answer(head.status, body, head.headers.get("retry-after", ""))
        return body

    async def _stream(self, request: Request, silent: float | None) -> AsyncGenerator[bytes | None, None]:
        """Yield None once the server has accepted the request, then the body as it comes. Nothing is tried again.

        `silent`: s without a byte after which the stream counts as broken.
        """
        presented = await self.presented()
        connection = await self._door.open(presented)
        self._open.add(connection)
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    head = await connection.ask(*self._request_head(request, presented), b"")
                    if head.status >= 400:
                        body = b"".join([chunk async for chunk in connection.chunks()])
                        if head.status == 401:
                            self.config.credentials.refused()
                        raise of_answer(head.status, body, head.headers.get("retry-after", ""))
                yield None
                chunks = connection.chunks()
                while True:
                    async with asyncio.timeout(silent):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
            except TimeoutError:
                raise Unreachable(f"{self._door.place} is silent") from None
        finally:
            self._open.discard(connection)
            connection.abort()

    def _request_head(self, request: Request, presented: Presented) -> tuple[str, str, Headers]:
        headers = [("Host", self._door.authority), ("Accept", request.accept), ("User-Agent", "trainmaster")]
        headers += presented.headers
        if request.body:
            headers += [("Content-Type", request.content), ("Content-Length", str(len(request.body)))]
        return request.method, request.target(self._door.prefix), headers

    async def presented(self) -> Presented:
        """Return the credentials to show now."""
        credentials, now = self.config.credentials, time.time()
        return await asyncio.to_thread(credentials.present, now) if credentials.blocks else credentials.present(now)

    @property
    def door(self) -> ConnectionPool:
        return self._door


def _normalized(row: Object, kind: Kind) -> Object:
    """Return an object of a list or a watch without its managedFields (half of it, read by nobody) and with the kind, which lists omit."""
    (row.get("metadata") or {}).pop("managedFields", None)
    row.setdefault("kind", kind.name)
    row.setdefault("apiVersion", kind.api_version)
    return row


def _data(obj: Any) -> bytes:
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()


def _query_flags(dry_run: bool, strict: bool) -> dict[str, Any]:
    return {"dryRun": "All" if dry_run else None, "fieldValidation": "Strict" if strict else None}
