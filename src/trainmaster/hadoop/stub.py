"""A protocol of Hadoop as a table: a class with a line for each call.

    class Clock(Stub):
        get_time = Rpc(GetTimeRequestProto, GetTimeResponseProto)

`await clock.get_time(request)` calls `getTime` and returns its answer; an empty request may be left out. Raises HadoopError, as
`rpc.Client.call` does.
"""

from __future__ import annotations

import re
from typing import Generic, Protocol, Self, TypeVar, overload

from google.protobuf.message import Message

from trainmaster.hadoop.rpc import Client
from trainmaster.hadoop.security.auth import Auth

TIMEOUT = 30.0  # seconds for a call, all its tries together

Request = TypeVar("Request", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
Response = TypeVar("Response", bound=Message)
ResponseOut = TypeVar("ResponseOut", bound=Message, covariant=True)


class Call(Protocol[RequestIn, ResponseOut]):
    async def __call__(self, request: RequestIn | None = None, *, timeout: float = TIMEOUT) -> ResponseOut: ...


class Stub:
    """One server, or one of several, as it speaks one protocol."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def close(self) -> None:
        await self._client.close()

    def login(self, auth: Auth) -> None:
        """Log in as `auth` from the next connection on: with a newer token, say."""
        self._client.auth = auth

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Rpc(Generic[Request, Response]):
    """One call of a Stub. Its name is that of Hadoop's method, in our spelling."""

    method = ""

    def __init__(self, request: type[Request], response: type[Response]) -> None:
        self.request, self.response = request, response

    def __set_name__(self, owner: type, name: str) -> None:
        self.method = re.sub(r"_(\w)", lambda match: match[1].upper(), name)

    @overload
    def __get__(self, stub: None, owner: type) -> Self: ...
    @overload
    def __get__(self, stub: Stub, owner: type) -> Call[Request, Response]: ...
    def __get__(self, stub: Stub | None, owner: type) -> Self | Call[Request, Response]:
        if stub is None:
            return self
        client = stub._client

        async def call(request: Request | None = None, *, timeout: float = TIMEOUT) -> Response:
            message = self.request() if request is None else request
            return await client.call(self.method, message, self.response, timeout=timeout)

        return call
