"""How a connection begins: who we are, told in the way that our Auth and the server have in common. No I/O.

    Simple             header, context: nobody answers, calls may follow at once
    ByToken, Kerberos  header, NEGOTIATE >  < what the server takes  INITIATE >  [< CHALLENGE  RESPONSE >]  < SUCCESS  context >

`begin` gives the first bytes, `receive` takes a frame and gives the next ones, until `done`. The table CHOICE says which
of the server's offers goes with which Auth; there is no falling back to a weaker one: who came with a token or a ticket
does not go on as somebody whose name is believed.
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
    """Whom we talk with. `principal` is who it must be by Kerberos, as configuration has it (`yarn/_HOST@REALM`)."""

    host: str
    port: int
    principal: str = ""
    name: str = ""  # in messages

    def __str__(self) -> str:
        return self.name or f"{self.host}:{self.port}"


class Handshake:
    """Of one connection. Raises AuthenticationFailed and Garbled."""

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
        """Whether `receive` may ask others over the network."""
        return isinstance(self._auth, Kerberos)

    def begin(self) -> bytes:
        if isinstance(self._auth, Simple):
            return wire.header(wire.NO_SASL) + self._context(self._auth.user)
        return wire.header(wire.SASL) + wire.sasl(RpcSaslProto(state=RpcSaslProto.NEGOTIATE))

    def receive(self, frame: bytes) -> bytes:
        """What to answer."""
        reply = wire.read_reply(frame, str(self._peer))
        if reply.error is not None:
            raise self._refused(reply.error)
        if reply.call != wire.SASL_CALL:
            raise Garbled(f"answers call {reply.call} before any was made")
        said = wire.read_message(RpcSaslProto, reply.body)
        match said.state:
            case RpcSaslProto.NEGOTIATE if self.mechanism is None:
                return self._initiate(said)
            case RpcSaslProto.CHALLENGE if self.mechanism is not None:
                return self._respond(self.mechanism, said.token)
            case RpcSaslProto.SUCCESS if self.mechanism is not None:
                return self._finish(self.mechanism, said)
            case RpcSaslProto.SUCCESS:
                raise AuthenticationFailed(f"{self._peer} takes {WORDS['SIMPLE']} alone; we come with {self._ours()}")
        raise Garbled(f"sends SASL state {said.state} out of its turn")

    def _initiate(self, said: RpcSaslProto) -> bytes:
        wanted = CHOICE[type(self._auth)]
        offer = next((offer for offer in said.auths if (offer.method, offer.mechanism) == wanted), None)
        if offer is None:
            taken = ", ".join(WORDS.get(offer.method, f"{offer.method} ({offer.mechanism})") for offer in said.auths)
            raise AuthenticationFailed(f"{self._peer} takes {taken or 'nothing'}; we come with {self._ours()}")
        self.mechanism = self._mechanism(offer)
        chosen = Offer()
        chosen.CopyFrom(offer)
        chosen.ClearField("challenge")
        token = self.mechanism.start(offer.challenge)
        return wire.sasl(RpcSaslProto(state=RpcSaslProto.INITIATE, token=token, auths=[chosen]))

    def _respond(self, mechanism: Mechanism, challenge: bytes) -> bytes:
        answer = mechanism.step(challenge)
        return wire.sasl(RpcSaslProto(state=RpcSaslProto.RESPONSE, token=answer or b""))

    def _finish(self, mechanism: Mechanism, said: RpcSaslProto) -> bytes:
        if said.HasField("token") and not mechanism.complete:
            mechanism.step(said.token)
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
                from trainmaster.hadoop.security import gssapi  # loads the system's library

                # a server that has some key of the realm is not yet the one that we want
                named = server if _is_number(self._peer.host) else self._peer.host
                principal = gssapi.server_principal(self._peer.principal, named)
                layers = [gssapi.LAYERS[word] for word in self._auth.protection]
                return gssapi.Gssapi(self._auth, protocol, server, principal, layers)
        raise TypeError(self._auth)

    def _context(self, user: str) -> bytes:
        self.done = True
        return wire.context(self._protocol, user, self._client)

    def _ours(self) -> str:
        return WORDS[CHOICE[type(self._auth)][0]]

    def _refused(self, error: RemoteError | AuthenticationFailed) -> AuthenticationFailed:
        """Whatever the server says before it knows us is a refusal."""
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

_PIECE = 60_000  # bytes; Java's servers take 64 KiB a token, its end included


def wrapped(mechanism: Mechanism, data: bytes) -> bytes:
    """`data`, wrapped; cut into several messages where one would be too large: the server joins what it unwraps."""
    return b"".join(
        wire.sasl(RpcSaslProto(state=RpcSaslProto.WRAP, token=mechanism.wrap(data[at : at + _PIECE])))
        for at in range(0, len(data), _PIECE)
    )


class Inbox:
    """Bytes as they come, replies as they are whole, unwrapped where `mechanism` wraps. Raises Garbled."""

    def __init__(self, peer: Peer) -> None:
        self._peer = str(peer)
        self._outer, self._inner = wire.Splitter(), wire.Splitter()
        self.mechanism: Mechanism | None = None

    def frames(self, data: bytes) -> list[bytes]:
        """Of the handshake."""
        return list(self._outer.feed(data))

    def replies(self, data: bytes) -> list[wire.Reply]:
        """Of calls. Those before a wrong frame are lost with it: they may be wrong too."""
        found = [wire.read_reply(frame, self._peer) for frame in self._outer.feed(data)]
        if self.mechanism is None or not self.mechanism.wraps:
            return found
        opened: list[wire.Reply] = []
        for reply in found:
            opened += [reply] if reply.fatal else self._opened(self.mechanism, reply)
        return opened

    def _opened(self, mechanism: Mechanism, reply: wire.Reply) -> list[wire.Reply]:
        if reply.call != wire.SASL_CALL or reply.error is not None:
            raise Garbled("answers unwrapped what must be wrapped")
        said = wire.read_message(RpcSaslProto, reply.body)
        if said.state != RpcSaslProto.WRAP:
            raise Garbled(f"sends SASL state {said.state} where calls are answered")
        data = mechanism.unwrap(said.token)
        return [wire.read_reply(frame, self._peer) for frame in self._inner.feed(data)]
