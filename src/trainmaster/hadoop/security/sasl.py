"""SASL: the mechanism's interface, and DIGEST-MD5 (RFC 2831) as Hadoop uses it with tokens. Pure: no I/O.

User and password are a token's identifier and password in base64. The server sends a challenge. We answer with a response that can only be
computed with the password. The server proves by `rspauth` that it knows the password too, and we verify that. The challenge offers
*qualities of protection*: auth, nothing further; auth-int, a sum over each message; auth-conf, encrypted as well. The only cipher here is
RC4, which every JDK offers and which is fast enough in Python.

Each wrapped message carries a sequence number, one count a direction, so a message that is lost, repeated, changed or
moved is detected.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, WeakProtection
from trainmaster.hadoop.security.auth import PROTECTION
from trainmaster.hadoop.security.credentials import Token


class Mechanism(Protocol):
    """One side of one authentication: `start`, then `step` for every challenge until `complete`.

    `start` and `step` of GSSAPI ask a KDC over the network, so call them in a thread. `step` returns None where there is nothing to answer.
    All raise AuthenticationFailed; `unwrap` raises Garbled.
    """

    @property
    def complete(self) -> bool:
        """Tell whether the server has proven itself."""

    @property
    def wraps(self) -> bool:
        """Tell, once complete, whether everything further is wrapped."""

    @property
    def user(self) -> str:
        """Return, once complete, our name for the connection's context; empty where the server knows it."""

    def start(self, challenge: bytes) -> bytes:
        """Return the first response; `challenge` came with the server's offer, or is empty."""

    def step(self, challenge: bytes) -> bytes | None: ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes: ...


QUALITIES = {"authentication": "auth", "integrity": "auth-int", "privacy": "auth-conf"}

_CIPHER = "rc4"
_ZEROS = ":" + "0" * 32  # in the place of the hash of a body: SASL has no body
_KIND = b"\x00\x01"  # the kind of a wrapped message; there is only this one
_SUM = 10  # bytes of the HMAC that are sent
_SIGN = "Digest session key to {} signing key magic constant"
_SEAL = "Digest H(A1) to {} sealing key magic constant"
_OURS, _THEIRS = "client-to-server", "server-to-client"


class Digest:
    """DIGEST-MD5 with a token, or as the user `name` with the token's password alone. `nonce(n)` returns n random bytes."""

    user = ""

    def __init__(
        self,
        token: Token,
        protection: Sequence[str] = PROTECTION,
        *,
        protocol: str = "",
        server: str = "default",
        name: str = "",
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._user = name or base64.b64encode(token.identifier).decode()
        self._password = base64.b64encode(token.password).decode()
        self._protection = protection
        self._uri = f"{protocol}/{server}"
        self._nonce = nonce
        self._expected = b""
        self._layer: _Integrity | None = None
        self.complete = False

    @property
    def wraps(self) -> bool:
        return self._layer is not None

    def start(self, challenge: bytes) -> bytes:
        directives = read_directives(challenge)
        if "nonce" not in directives or directives.get("algorithm", "md5-sess") != "md5-sess":
            raise AuthenticationFailed(f"the server's challenge is not one of DIGEST-MD5: {challenge[:80]!r}")
        quality = self._quality(directives)
        realm, nonce = directives.get("realm", ""), directives["nonce"]
        cnonce = base64.b64encode(self._nonce(24)).decode()
        first = _md5(f"{self._user}:{realm}:{self._password}".encode()) + f":{nonce}:{cnonce}".encode()
        session = _md5(first)

        def proof(method: str) -> str:
            second = f"{method}:{self._uri}{'' if quality == 'auth' else _ZEROS}"
            text = f"{session.hex()}:{nonce}:00000001:{cnonce}:{quality}:{_md5(second.encode()).hex()}"
            return _md5(text.encode()).hex()

        self._expected = f"rspauth={proof('')}".encode()
        self._layer = _layer(quality, session)
        answer = {"username": self._user, "realm": realm, "nonce": nonce, "cnonce": cnonce, "digest-uri": self._uri}
        parts = ["charset=utf-8"] + [f'{key}="{_quote(value)}"' for key, value in answer.items()]
        parts += ["nc=00000001", f"qop={quality}", f"response={proof('AUTHENTICATE')}"]
        parts += [f'cipher="{_CIPHER}"'] if quality == "auth-conf" else []
        return ",".join(parts).encode()

    def step(self, challenge: bytes) -> bytes | None:
        """Verify the server's proof."""
        if not self._expected or not hmac.compare_digest(challenge.strip(), self._expected):
            raise AuthenticationFailed("the server does not know the token's password: it is not the one that gave it")
        self.complete = True
        return None

    def wrap(self, data: bytes) -> bytes:
        return self._layer.wrap(data) if self._layer else data

    def unwrap(self, data: bytes) -> bytes:
        return self._layer.unwrap(data) if self._layer else data

    def _quality(self, directives: dict[str, str]) -> str:
        offered = [word.strip() for word in directives.get("qop", "auth").split(",")]
        ciphers = [word.strip() for word in directives.get("cipher", "").split(",")]
        for word in self._protection:
            quality = QUALITIES[word]
            if quality in offered and (quality != "auth-conf" or _CIPHER in ciphers):
                return quality
        with_ciphers = f" with {', '.join(ciphers)}" if "auth-conf" in offered else ""
        raise WeakProtection(
            f"the server offers protection {', '.join(offered)}{with_ciphers}, "
            f"we take {', '.join(QUALITIES[word] for word in self._protection)} (with {_CIPHER}): see hadoop.rpc.protection"
        )


_DIRECTIVE = re.compile(r'\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]*))\s*(?:,|$)')


def read_directives(challenge: bytes) -> dict[str, str]:
    """Parse `key=value` and `key="value"`, separated by commas. Raises AuthenticationFailed."""
    directives: dict[str, str] = {}
    text, at = challenge.decode("utf-8", "replace"), 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None:
            raise AuthenticationFailed(f"the server's challenge is not one of DIGEST-MD5: {challenge[:80]!r}")
        key, quoted_value, plain_value = match.groups()
        directives[key] = re.sub(r"\\(.)", r"\1", quoted_value) if quoted_value is not None else plain_value
        at = match.end()
    return directives


def _quote(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value)


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()  # the protocol's choice


# -- what comes after --


def _layer(quality: str, session: bytes) -> _Integrity | None:
    if quality == "auth":
        return None
    ours, theirs = (_md5(session + _SIGN.format(way).encode()) for way in (_OURS, _THEIRS))
    if quality == "auth-int":
        return _Integrity(ours, theirs)
    sealing, opening = (Rc4(_md5(session + _SEAL.format(way).encode())) for way in (_OURS, _THEIRS))
    return _Privacy(ours, theirs, sealing, opening)


class _Integrity:
    """The layer auth-int. A wrapped message is: message, HMAC over number and message, kind, number (RFC 2831, 2.3)."""

    def __init__(self, ours: bytes, theirs: bytes) -> None:
        self._ours, self._theirs = ours, theirs
        self._sent = self._received = 0

    def wrap(self, data: bytes) -> bytes:
        number = self._sent.to_bytes(4, "big")
        self._sent = (self._sent + 1) & 0xFFFFFFFF
        return self.seal(data + _sum(self._ours, number, data)) + _KIND + number

    def unwrap(self, data: bytes) -> bytes:
        number = self._received.to_bytes(4, "big")
        if len(data) < _SUM + 6 or data[-6:] != _KIND + number:
            raise Garbled(f"sends a wrapped message that is not the one due, number {self._received}")
        opened = self.open(data[:-6])
        message, digest = opened[:-_SUM], opened[-_SUM:]
        if not hmac.compare_digest(digest, _sum(self._theirs, number, message)):
            raise Garbled("sends a wrapped message that was changed on its way")
        self._received = (self._received + 1) & 0xFFFFFFFF
        return message

    def seal(self, data: bytes) -> bytes:
        return data

    def open(self, data: bytes) -> bytes:
        return data


class _Privacy(_Integrity):
    """The layer auth-conf: the same, with message and HMAC encrypted by one stream for each direction."""

    def __init__(self, ours: bytes, theirs: bytes, sealing: Rc4, opening: Rc4) -> None:
        super().__init__(ours, theirs)
        self.seal, self.open = sealing.crypt, opening.crypt  # type: ignore[method-assign]


def _sum(key: bytes, number: bytes, message: bytes) -> bytes:
    return hmac.digest(key, number + message, "md5")[:_SUM]


class Rc4:
    """One stream of RC4: each `crypt` continues where the last one ended."""

    def __init__(self, key: bytes) -> None:
        state = list(range(256))
        j = 0
        for i in range(256):
            j = (j + state[i] + key[i % len(key)]) & 255
            state[i], state[j] = state[j], state[i]
        self._state, self._i, self._j = state, 0, 0

    def crypt(self, data: bytes) -> bytes:
        state, i, j = self._state, self._i, self._j
        out = bytearray(len(data))
        for at, byte in enumerate(data):
            i = (i + 1) & 255
            x = state[i]
            j = (j + x) & 255
            y = state[i] = state[j]
            state[j] = x
            out[at] = byte ^ state[(x + y) & 255]
        self._i, self._j = i, j
        return bytes(out)
