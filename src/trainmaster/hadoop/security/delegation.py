"""Delegation tokens, which an application on a secure cluster has instead of a Kerberos ticket.

A ticket stays with its owner. Before a job is submitted its owner asks the NameNode of each file system, and the ResourceManager, for a
token, names who may renew it, and puts the tokens into the application's credentials. The ResourceManager renews them while the application
runs, and cancels them after it. A token is good for its renewal interval (a day by default) and can be renewed up to its maximum date (7
days). After that only new tokens help, which only somebody with a ticket can fetch.

    credentials = await fetch(conf, Kerberos())
    context.tokens = credentials.merged(ours).write()
    identifier(token).ends        # after this the job cannot go on with it

The ResourceManager renews the tokens that an application was submitted with, and no others: tokens that are brought to
the application later are good for one renewal interval. `lasting` renews such tokens in their owner's name, and so
learns until when they are good.

We name the renewer by the ResourceManager's whole principal: the issuer derives the short name by its own rules. Only
the renewer renews; owner and renewer may cancel. Fetching, renewing and cancelling need a Kerberos login. The issuer
leaves a token's service empty, but programs look for a token by its service. So we set it, as Hadoop's own client does:
`ip:port`, joined by commas for several ResourceManagers, `ha-hdfs:NAME` for a file system of several NameNodes (see
hdfs.filed).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import attrs
from google.protobuf.message import DecodeError

from trainmaster.hadoop.conf import Configuration, default_fs, principal, resource_managers
from trainmaster.hadoop.errors import ConfError, Garbled, HadoopError, Unreachable
from trainmaster.hadoop.hdfs import Namenode, filed
from trainmaster.hadoop.proto import security_pb2 as s
from trainmaster.hadoop.proto.yarn_pb2 import YARNDelegationTokenIdentifierProto
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.credentials import (
    HDFS_DELEGATION_TOKEN,
    RM_DELEGATION_TOKEN,
    Credentials,
    Reader,
    Token,
)
from trainmaster.hadoop.yarn import ResourceManager, token_of, token_proto

T = TypeVar("T")

_RENEWER = "yarn.resourcemanager.principal"
_WITHDRAWN = 10.0  # seconds for an issuer to cancel a token


@attrs.frozen
class Identifier:
    """The public part of a token, which its bearer can read. Times in seconds since the epoch."""

    owner: str  # the principal that asked for it
    renewer: str  # short name of the user who may renew it; empty: nobody
    real_user: str  # the user who asked in the owner's name, if another
    issued: float
    ends: float  # the maximum date, which no renewal passes
    number: int
    key: int  # the number of the issuer's key that signed it


def identifier(token: Token) -> Identifier:
    """Return what a token says of itself. Raises Garbled for a token of another kind, or one that is damaged."""
    if token.kind not in _READERS:
        raise Garbled(f"a token of kind {token.kind or 'none'} does not say when it ends")
    return _READERS[token.kind](token.identifier)


def earliest_end(credentials: Credentials) -> tuple[float, Token] | None:
    """Return when the first of these delegation tokens ends for good, with that token; None where there is none."""
    tokens = [token for token in credentials.tokens.values() if token.kind in _READERS]
    return min(((identifier(token).ends, token) for token in tokens), key=lambda pair: pair[0], default=None)


def renewer(conf: Configuration) -> str:
    """Return the renewer to name: the ResourceManager's principal. Raises ConfError where the configuration does not name it."""
    if not conf.get(_RENEWER):
        raise ConfError(
            f"{conf.place(_RENEWER)} is not set: a secure cluster's tokens are renewed by its ResourceManager"
        )
    return principal(conf, _RENEWER, resource_managers(conf)[0][0])


async def fetch(
    conf: Configuration, auth: Kerberos, *, urls: Sequence[str] = ("",), renewed_by: str | None = None
) -> Credentials:
    """Fetch tokens of the ResourceManager and of the file systems of these hdfs:// addresses (an empty one: of fs.defaultFS). Where one
    issuer gives none, or the caller is cancelled, the tokens of the others are cancelled.

    `renewed_by` is a principal or a short name, by default the ResourceManager's; "" for tokens that nobody renews.
    """
    renewer_name = renewer(conf) if renewed_by is None else renewed_by
    request = s.GetDelegationTokenRequestProto(renewer=renewer_name)
    places = {urlsplit(url).netloc or urlsplit(default_fs(conf)).netloc: url for url in urls}
    questions = [_of_yarn(conf, auth, request), *(_of_hdfs(conf, auth, request, url) for url in places.values())]
    asking = [asyncio.create_task(question) for question in questions]
    try:
        await asyncio.wait(asking)
        return _tokens_of(asking)
    except BaseException:
        await asyncio.wait(asking, timeout=_WITHDRAWN)  # tokens that were asked for may still be issued
        answered = [task for task in asking if task.done() and not task.cancelled() and task.exception() is None]
        for task in asking:
            task.cancel()
        await withdraw(conf, auth, _tokens_of(answered))
        raise


def _tokens_of(answers: Iterable[asyncio.Task[dict[str, Token]]]) -> Credentials:
    """Return the tokens of these answers. Raises the first failure among them."""
    return Credentials({alias: token for answer in answers for alias, token in answer.result().items()})


async def renew(conf: Configuration, auth: Kerberos, token: Token) -> float:
    """Renew a token as its renewer. Return until when it is good now. RemoteError where the issuer refuses."""
    async with _issuer(conf, auth, token) as issuer:
        answer = await issuer.renew_delegation_token(s.RenewDelegationTokenRequestProto(token=token_proto(token)))
    return answer.newExpiryTime / 1000


async def lasting(conf: Configuration, auth: Kerberos, credentials: Credentials) -> float:
    """Renew tokens whose renewer we are. Return until when all of them are good if nobody renews them again."""
    once = {token.identifier: token for token in credentials.tokens.values() if token.kind in _READERS}
    ends = await asyncio.gather(*(renew(conf, auth, token) for token in once.values()))
    return min(ends, default=0.0)


async def cancel(conf: Configuration, auth: Kerberos, token: Token) -> None:
    """End a token now, as its owner or renewer."""
    async with _issuer(conf, auth, token) as issuer:
        await issuer.cancel_delegation_token(s.CancelDelegationTokenRequestProto(token=token_proto(token)))


async def withdraw(conf: Configuration, auth: Kerberos, credentials: Credentials) -> None:
    """Cancel delegation tokens that nobody will use. A token that its issuer does not cancel now ends by itself."""

    async def end(token: Token) -> None:
        with contextlib.suppress(HadoopError, TimeoutError):
            async with asyncio.timeout(_WITHDRAWN):
                await cancel(conf, auth, token)

    once = {token.identifier: token for token in credentials.tokens.values() if token.kind in _READERS}
    await asyncio.gather(*(end(token) for token in once.values()))


def token_for(credentials: Credentials, conf: Configuration, url: str = "") -> Token | None:
    """Return the token for the file system of an hdfs:// address; its issuer is known by the service. Asks the name service."""
    blank = Token(b"", b"", HDFS_DELEGATION_TOKEN)
    services = set(filed(blank, conf, url))
    tokens = [token for token in credentials.tokens.values() if token.kind == HDFS_DELEGATION_TOKEN]
    return next((token for token in tokens if token.service in services), None)


async def _of_yarn(conf: Configuration, auth: Kerberos, request: s.GetDelegationTokenRequestProto) -> dict[str, Token]:
    async with ResourceManager.of(conf, auth) as resource_manager:
        answer = await resource_manager.get_delegation_token(request)
    service = await _resolve(lambda: _yarn_address(conf))
    return {service: attrs.evolve(token_of(answer.token), service=service)}


async def _of_hdfs(
    conf: Configuration, auth: Kerberos, request: s.GetDelegationTokenRequestProto, url: str
) -> dict[str, Token]:
    async with Namenode.of(conf, auth, url) as namenode:
        answer = await namenode.get_delegation_token(request)
    if not answer.HasField("token"):  # an insecure NameNode gives no token, and needs none
        return {}
    return await _resolve(lambda: filed(token_of(answer.token), conf, url))


def _yarn_address(conf: Configuration) -> str:
    """Return the ResourceManagers' service as Hadoop's clients spell it: by IP address, unless the cluster wants names."""
    by_address = conf.flag("hadoop.security.token.service.use_ip", True)
    hosts = [
        (socket.gethostbyname(host) if by_address else host.lower(), port) for host, port in resource_managers(conf)
    ]
    return ",".join(f"{host}:{port}" for host, port in hosts)


async def _resolve(function: Callable[[], T]) -> T:
    """Run a function that asks the name service, off the loop."""
    try:
        return await asyncio.to_thread(function)
    except OSError as error:
        raise Unreachable(f"an address of the cluster's configuration is not known here: {error}") from error


def _issuer(conf: Configuration, auth: Kerberos, token: Token) -> ResourceManager | Namenode:
    if token.kind == RM_DELEGATION_TOKEN:
        return ResourceManager.of(conf, auth)
    if token.kind == HDFS_DELEGATION_TOKEN:
        return Namenode.of(conf, auth, f"hdfs://{token.service.removeprefix('ha-hdfs:')}")
    raise Garbled(f"a token of kind {token.kind or 'none'} is neither HDFS's nor the ResourceManager's")


# -- identifiers --


def _of_writable(data: bytes) -> Identifier:
    """Read the bytes of AbstractDelegationTokenIdentifier.write: a version byte, three texts, four numbers."""
    reader = Reader(data)
    if (version := reader.take(1)[0]) != 0:
        raise Garbled(f"a token's identifier is of version {version}; known is 0")
    owner, renewer_name, real_user = reader.text(), reader.text(), reader.text()
    issued, ends, number, key = (reader.vint() for _ in range(4))
    return Identifier(owner, renewer_name, real_user, issued / 1000, ends / 1000, number, key)


def _of_proto(data: bytes) -> Identifier:
    """Read a YARNDelegationTokenIdentifierProto."""
    try:
        message = YARNDelegationTokenIdentifierProto.FromString(data)
    except DecodeError as error:
        raise Garbled(f"a token's identifier cannot be read: {error}") from error
    issued, ends = message.issueDate / 1000, message.maxDate / 1000
    return Identifier(
        message.owner, message.renewer, message.realUser, issued, ends, message.sequenceNumber, message.masterKeyId
    )


_READERS: dict[str, Callable[[bytes], Identifier]] = {
    HDFS_DELEGATION_TOKEN: _of_writable,
    RM_DELEGATION_TOKEN: _of_proto,
}
