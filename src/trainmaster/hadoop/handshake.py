"""The beginning of a connection: we say who we are, in the way that our Auth and the server have in common. No I/O.

    Simple             header, context: nobody answers, calls may follow at once
    ByToken, Kerberos  header, NEGOTIATE >  < what the server takes  INITIATE >  [< CHALLENGE  RESPONSE >]  < SUCCESS  context >

`begin` returns the first bytes; `receive` takes a frame and returns the next bytes, until `done`. The table CHOICE says which of the
server's offers goes with which Auth. Nothing falls back to a weaker one: a client that came with a token or a ticket never goes on as
somebody whose name is believed.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable

import attrs

from trainmaster.hadoop import wire
from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, RemoteError
from trainmaster.hadoop.proto.rpc_pb2 import RpcSaslProto
from trainmaster.hadoop.security.auth import Auth, ByToken, Kerberos, Simple
from trainmaster.hadoop.security.sasl import Digest, Mechanism

Offer = RpcSaslProto.SaslAuth

CHOICE = {ByToken: ("TOKEN", "DIGEST-MD5"), Kerberos: ("KERBEROS", "GSSAPI")}
WORDS = {"TOKEN": "a token", "KERBEROS": "a Kerberos ticket", "SIMPLE": "a user's name"}


@attrs.frozen
class Peer:
    """The server that we talk with. `principal` is the name that it must have by Kerberos, as the configuration writes it
    (`yarn/_HOST@REALM`).
    """

    host: str
    port: int
    principal: str = ""
    name: str = ""  # for messages

    def __str__(self) -> str:
        return self.name or f"{self.host}:{self.port}"


class Handshake:
    """The handshake of one connection. Raises AuthenticationFailed and Garbled."""

    def __init__(
        self,
        peer: Peer,
        protocol: str,
        auth: Auth,
        *,
        client: bytes,
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._peer = peer
        self._protocol = protocol
        self._auth = auth
        self._client = client
        self._nonce = nonce
        self.mechanism: Mechanism | None = None
        self.done = False

    @property
    def blocks(self) -> bool:
        """Tell whether `receive` may ask others over the network."""
        return isinstance(self._auth, Kerberos)

    def begin(self) -> bytes:
        if isinstance(self._auth, Simple):
            return wire.header(wire.NO_SASL) + self._context(self._auth.user)
        return wire.header(wire.SASL) + wire.sasl(RpcSaslProto(state=RpcSaslProto.NEGOTIATE))

    def receive(self, frame: bytes) -> bytes:
        """Take a frame, and return our answer to it."""
        reply = wire.read_reply(frame, str(self._peer))
        if reply.error is not None:
            raise self._refusal(reply.error)
        if reply.call != wire.SASL_CALL:
            raise Garbled(f"answers call {reply.call} before any was made")
        message = wire.read_message(RpcSaslProto, reply.body)
        match message.state:
            case RpcSaslProto.NEGOTIATE if self.mechanism is None:
                return self._initiate(message)
            case RpcSaslProto.CHALLENGE if self.mechanism is not None:
                return self._respond(self.mechanism, message.token)
            case RpcSaslProto.SUCCESS if self.mechanism is not None:
                return self._finish(self.mechanism, message)
            case RpcSaslProto.SUCCESS:
                raise AuthenticationFailed(
                    f"{self._peer} takes {WORDS['SIMPLE']} alone; we come with {self._our_login()}"
                )
        raise Garbled(f"sends SASL state {message.state} out of its turn")

    def _initiate(self, message: RpcSaslProto) -> bytes:
        choice = CHOICE[type(self._auth)]
        offer = next((offer for offer in message.auths if (offer.method, offer.mechanism) == choice), None)
        if offer is None:
            offers = ", ".join(
                WORDS.get(offer.method, f"{offer.method} ({offer.mechanism})") for offer in message.auths
            )
            raise AuthenticationFailed(f"{self._peer} takes {offers or 'nothing'}; we come with {self._our_login()}")
        self.mechanism = self._mechanism(offer)
        chosen = Offer()
        chosen.CopyFrom(offer)
        chosen.ClearField("challenge")
        token = self.mechanism.start(offer.challenge)
        return wire.sasl(RpcSaslProto(state=RpcSaslProto.INITIATE, token=token, auths=[chosen]))

    def _respond(self, mechanism: Mechanism, challenge: bytes) -> bytes:
        answer = mechanism.step(challenge)
        return wire.sasl(RpcSaslProto(state=RpcSaslProto.RESPONSE, token=answer or b""))

    def _finish(self, mechanism: Mechanism, message: RpcSaslProto) -> bytes:
        if message.HasField("token") and not mechanism.complete:
            mechanism.step(message.token)
        if not mechanism.complete:
            raise AuthenticationFailed(f"{self._peer} says that all is well and has not proven who it is")
        context = self._context(mechanism.user)
        return wrapped(mechanism, context) if mechanism.wraps else context

    def _mechanism(self, offer: Offer) -> Mechanism:
        protocol, server = wire.text(offer.protocol), wire.text(offer.serverId)
        match self._auth:
            case ByToken(token, protection):
                return Digest(token, protection, protocol=protocol, server=server, nonce=self._nonce)
            case Kerberos():
                if not self._peer.principal:
                    raise AuthenticationFailed(
                        f"{self._peer} may be anybody: the configuration names no Kerberos principal of it; see "
                        "dfs.namenode.kerberos.principal of hdfs-site.xml and yarn.resourcemanager.principal of yarn-site.xml"
                    )
                from trainmaster.hadoop.security import gssapi  # this loads the system's library

                # a server that has some key of the realm is not yet the server that we want
                host = server if _is_number(self._peer.host) else self._peer.host
                principal = gssapi.server_principal(self._peer.principal, host)
                layers = [gssapi.LAYERS[word] for word in self._auth.protection]
                return gssapi.Gssapi(self._auth, protocol, server, principal, layers)
        raise TypeError(self._auth)

    def _context(self, user: str) -> bytes:
        self.done = True
        return wire.context(self._protocol, user, self._client)

    def _our_login(self) -> str:
        return WORDS[CHOICE[type(self._auth)][0]]

    def _refusal(self, error: RemoteError | AuthenticationFailed) -> AuthenticationFailed:
        """Return the refusal of an error: all that a server says before it knows us is a refusal."""
        if not isinstance(error, AuthenticationFailed):
            error = AuthenticationFailed(f"{self._peer} refuses us: {error}")
        if isinstance(self._auth, Kerberos):
            from trainmaster.hadoop.security.kerberos_errors import refused

            return refused(error)
        return error


def _is_number(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


# -- frames inside frames --

_PIECE = 60_000  # bytes; Java's servers take 64 KiB a token, its trailer included


def wrapped(mechanism: Mechanism, data: bytes) -> bytes:
    """Return `data` wrapped, cut into several messages where one would be too large: the server joins what it unwraps."""
    return b"".join(
        wire.sasl(RpcSaslProto(state=RpcSaslProto.WRAP, token=mechanism.wrap(data[at : at + _PIECE])))
        for at in range(0, len(data), _PIECE)
    )


class Inbox:
    """The receiving side: takes bytes as they come, and returns whole replies, unwrapped where `mechanism` wraps. Raises Garbled."""

    def __init__(self, peer: Peer) -> None:
        self._peer = str(peer)
        self._outer, self._inner = wire.Splitter(), wire.Splitter()
        self.mechanism: Mechanism | None = None

    def frames(self, data: bytes) -> list[bytes]:
        """Return the frames of the handshake that are whole now."""
        return list(self._outer.feed(data))

    def replies(self, data: bytes) -> list[wire.Reply]:
        """Return the replies to calls that are whole now. Those before a wrong frame are lost with it: they may be wrong too."""
        replies = [wire.read_reply(frame, self._peer) for frame in self._outer.feed(data)]
        if self.mechanism is None or not self.mechanism.wraps:
            return replies
        opened: list[wire.Reply] = []
        for reply in replies:
            opened += [reply] if reply.fatal else self._unwrap(self.mechanism, reply)
        return opened

    def _unwrap(self, mechanism: Mechanism, reply: wire.Reply) -> list[wire.Reply]:
        if reply.call != wire.SASL_CALL or reply.error is not None:
            raise Garbled("answers unwrapped what must be wrapped")
        message = wire.read_message(RpcSaslProto, reply.body)
        if message.state != RpcSaslProto.WRAP:
            raise Garbled(f"sends SASL state {message.state} where calls are answered")
        data = mechanism.unwrap(message.token)
        return [wire.read_reply(frame, self._peer) for frame in self._inner.feed(data)]
