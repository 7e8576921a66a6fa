"""Kerberos: the login, its ticket, and the SASL mechanism GSSAPI (RFC 4752) by which Hadoop asks for the ticket.

A *login* is credentials that can be used now: those of a ticket cache (the user's own, or one that was named), or those of a keytab. With a
keytab the library itself fetches the first ticket into memory, and fetches a new one when half of its time is over. No variable of the
environment is changed: GSSAPI gets the places as arguments.

The *mechanism* makes one context with one server. Tokens go both ways until the context is complete (`established`). Then the server offers
layers, wrapped, and we answer with the best of them that we accept: 1 nothing further, 2 a sum over each message, 4 encrypted too. Hadoop
wraps whole frames whatever their size, as the JDK does, so neither side keeps to the sizes that both announce. `start` and `step` may ask a
KDC over the network, so call them in a thread. `wrap` and `unwrap` only compute.

libkrb5 reports errors as codes; kerberos_errors.py says what each means to a person, and what to do.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, WeakProtection
from trainmaster.hadoop.security import libgssapi, tickets
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.kerberos_errors import Place, UnknownServer, expired, explained, not_yet_valid
from trainmaster.hadoop.security.libgssapi import Context, GssError, Handle

AUTHENTICATION, INTEGRITY, PRIVACY = 1, 2, 4
LAYERS = {"authentication": AUTHENTICATION, "integrity": INTEGRITY, "privacy": PRIVACY}  # hadoop.rpc.protection

_MOST = 0xFFFFFF  # the largest size that the answer to the offer can name


@attrs.frozen
class Identity:
    """The principal that logs in, until when (seconds since the epoch), and until when the ticket can be renewed (0: it cannot)."""

    principal: str
    expires: float
    renewable_until: float = 0.0

    @property
    def short(self) -> str:
        """Return the name without instance and realm: the user's name, where the cluster has no rules of its own (auth_to_local)."""
        return self.principal.partition("@")[0].partition("/")[0]


def identity(kerberos: Kerberos) -> Identity:
    """Return the identity that a login would have. Blocks: with a keytab a KDC is asked. Raises like a login."""
    return _login(kerberos).identity


@attrs.frozen
class _Login:
    credentials: Handle
    identity: Identity


def _login(kerberos: Kerberos) -> _Login:
    store = _store(kerberos)
    if kerberos.keytab:
        _look_at(kerberos.keytab)
    with _explaining(kerberos):
        credentials = libgssapi.acquire(kerberos.principal, store)
        principal, lifetime = libgssapi.inquire(credentials)
    cache = tickets.read_cache(store.get("ccache", ""))
    if cache.principal != principal:  # another cache of the collection is meant
        cache = tickets.Cache("", principal)
    now, first, place = time.time(), cache.first, Place(principal, cache, bool(kerberos.keytab), "")
    if lifetime == 0 or (first and first.end <= now):
        raise expired(place)
    if first and first.start > now + _SKEW:
        raise not_yet_valid(place)
    return _Login(credentials, Identity(principal, now + lifetime, first.renewable_until if first else 0.0))


_SKEW = 300  # seconds of difference between clocks that Kerberos accepts (krb5.conf, clockskew)


def _store(kerberos: Kerberos) -> dict[str, str]:
    """Return where GSSAPI shall look. A keytab's tickets go into this process's memory, and all its connections use them."""
    if not kerberos.keytab:
        return {"ccache": kerberos.cache} if kerberos.cache else {}
    key = hashlib.sha256(f"{kerberos.principal}\0{os.path.abspath(kerberos.keytab)}".encode()).hexdigest()[:16]
    return {"client_keytab": f"FILE:{kerberos.keytab}", "ccache": kerberos.cache or f"MEMORY:trainmaster-{key}"}


def _look_at(keytab: str) -> None:
    """Raise AuthenticationFailed for a keytab that cannot be read: the library would call it one without keys."""
    try:
        with open(keytab, "rb"):
            pass
    except OSError as error:
        raise AuthenticationFailed(f"the keytab {keytab} cannot be read: {error.strerror}") from error


@contextmanager
def _explaining(kerberos: Kerberos, server: str = "") -> Iterator[None]:
    """Turn failures of the library into ours."""
    try:
        yield
    except GssError as error:
        cache = tickets.read_cache(kerberos.cache) if not kerberos.keytab else tickets.Cache(kerberos.keytab)
        place = Place(kerberos.principal, cache, bool(kerberos.keytab), server)
        raise explained(error, place) from error


def server_principal(configured: str, host: str) -> str:
    """Return a server's principal as the configuration writes it (`yarn/_HOST@REALM`), for the host that we connect to."""
    return configured.replace("_HOST", host.lower())


@attrs.define(eq=False)
class Gssapi:
    """The sasl.Mechanism of Kerberos, for one connection to the server `protocol`/`server`, as its offer names it.

    `principal` is the name that the server must have: the offer comes from whoever answers at the address, and a KDC knows many servers.
    Empty: any name that the server says. The first of `layers` that the server offers is used.
    """

    kerberos: Kerberos
    protocol: str
    server: str
    principal: str = ""
    layers: Sequence[int] = (PRIVACY, INTEGRITY, AUTHENTICATION)
    layer: int = 0  # the layer that was agreed on
    complete: bool = False
    user: str = ""
    _context: Context | None = None

    name = "GSSAPI"
    blocks = True

    @property
    def wraps(self) -> bool:
        return self.layer > AUTHENTICATION

    def start(self, challenge: bytes) -> bytes:
        """Return the first token; no challenge comes before it. Blocks."""
        offered = f"{self.protocol}/{self.server}"
        if self.principal and self.principal.partition("@")[0] != offered:
            message = f"the server calls itself {offered}, but the configuration wants {self.principal}"
            raise UnknownServer(
                f"{message}; see the *.principal keys of core-site.xml, hdfs-site.xml and yarn-site.xml"
            )
        login = _login(self.kerberos)
        with _explaining(self.kerberos, self._peer):
            if "@" in self.principal:  # its realm is known, so no name service is asked
                target = libgssapi.name_of(self.principal, libgssapi.PRINCIPAL)
            else:
                target = libgssapi.name_of(f"{self.protocol}@{self.server}", libgssapi.HOST_SERVICE)
        self.user = login.identity.principal  # the whole principal: Hadoop takes a short name for somebody else's
        self._context = Context(login.credentials, target)
        return self._advance(b"")

    def step(self, challenge: bytes) -> bytes:
        """Return the answer to a token of the server's; after the last one `complete` is true. Blocks."""
        if self._context is None or self.complete:
            raise AuthenticationFailed(f"{self._peer} sends a token that nothing asked for")
        return self._choose(challenge) if self._context.established else self._advance(challenge)

    def wrap(self, data: bytes) -> bytes:
        """Return a message as the agreed layer has it."""
        if not self.wraps:
            return data
        with _explaining(self.kerberos, self._peer):
            return self._established.wrap(data, confidential=self.layer == PRIVACY)

    def unwrap(self, data: bytes) -> bytes:
        """Return the message that the server wrapped. A message that is changed, repeated, lost or in the clear is Garbled."""
        if not self.wraps:
            return data
        try:
            message, encrypted = self._established.unwrap(data)
        except GssError as error:
            raise Garbled(f"a message of {self._peer} was changed on its way: {error.text}") from error
        if self.layer == PRIVACY and not encrypted:
            raise Garbled(f"{self._peer} sends in the clear what was to be encrypted")
        return message

    @property
    def _peer(self) -> str:
        return self.principal or f"{self.protocol}/{self.server}"

    @property
    def _established(self) -> Context:
        if self._context is None or not self._context.established:
            raise AuthenticationFailed(f"nothing is agreed with {self._peer} yet")
        return self._context

    def _advance(self, token: bytes) -> bytes:
        assert self._context is not None
        with _explaining(self.kerberos, self._peer):
            answer = self._context.step(token)
        if self._context.established and not self._context.flags & libgssapi.MUTUAL:
            raise AuthenticationFailed(f"{self._peer} does not prove who it is")
        return answer

    def _choose(self, challenge: bytes) -> bytes:
        """Answer the offer of layers: one byte of bits, three of a size (RFC 4752, 3.1)."""
        with _explaining(self.kerberos, self._peer):
            offer, _ = self._established.unwrap(challenge)
        if len(offer) != 4:
            raise AuthenticationFailed(f"{self._peer} offers its layers in {len(offer)} bytes, not in 4")
        layer = next((layer for layer in self.layers if layer & offer[0]), 0)
        if not layer:
            offered = ", ".join(word for word, bit in LAYERS.items() if bit & offer[0]) or "nothing"
            accepted = ", ".join(word for word, bit in LAYERS.items() if bit in self.layers)
            message = f"{self._peer} offers protection {offered}, we take {accepted}"
            raise WeakProtection(f"{message}: see hadoop.rpc.protection")
        size = 0 if layer == AUTHENTICATION else _MOST
        with _explaining(self.kerberos, self._peer):
            answer = self._established.wrap(bytes([layer]) + size.to_bytes(3, "big"), confidential=False)
        self.layer, self.complete = layer, True
        return answer
