"""Check how `tm ui --listen` is to serve a team: its address, its encryption, and who its readers are."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.host.places import others_can_read

if TYPE_CHECKING:
    from trainmaster.web.access import ProxyHeader, Tokens

SHORTEST = 16  # characters of a token


@attrs.frozen
class Listening:
    """How a team is served. Without a certificate it is plain HTTP."""

    host: str
    port: int
    certificate: str = ""
    key: str = ""
    tokens: Tokens | None = None
    header: ProxyHeader | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}/"


def listening(
    address: str, certificate: str, key: str, tokens: str, user_header: str, proxies: Sequence[str]
) -> Listening:  # fmt: skip
    """Return how a team is served. Raises BadInput where readers would not be known, or could be overheard."""
    from trainmaster.web.access import ProxyHeader, is_loopback

    host, _, number = address.rpartition(":")
    host = host.strip("[]")
    if not host or not number.isdigit() or not 0 < int(number) < 65536:
        raise _refused(f"--listen {address} is not HOST:PORT", "write it like 0.0.0.0:8470")
    if bool(certificate) != bool(key):
        raise _refused("a certificate and its key belong together", "name both: --tls-cert FILE --tls-key FILE")
    if bool(user_header) != bool(proxies):
        raise _refused(
            "a user's name in a header is believed from known proxies alone",
            "name both: --user-header NAME --trust-proxy ADDRESS",
        )
    if user_header and not re.fullmatch(r"[A-Za-z0-9-]+", user_header):
        raise _refused(f"--user-header {user_header} is not the name of a header", "write it like X-Forwarded-User")
    if not tokens and not user_header:
        raise _refused(
            "nobody is known who may read",
            "name readers by --tokens FILE, or by a proxy: --user-header NAME --trust-proxy ADDRESS",
        )
    if not certificate and not is_loopback(host) and (tokens or not proxies):
        raise _refused(
            f"tokens would be sent to {host} unencrypted",
            "name a certificate: --tls-cert FILE --tls-key FILE; or listen at 127.0.0.1",
        )
    if certificate:
        _check_certificate(certificate, key)
        if others_can_read(key):
            raise _refused(f"every user of this machine can read the certificate's key: {key}", f"chmod 600 {key}")
    header = ProxyHeader(user_header.lower(), [_address(proxy) for proxy in proxies]) if user_header else None
    return Listening(host, int(number), certificate, key, read_tokens(tokens) if tokens else None, header)


def read_tokens(path: str) -> Tokens:
    """Return the users of a file of lines `user token`. Raises BadInput."""
    from trainmaster.web.access import Tokens

    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"the tokens cannot be read: {path}: {error}", "see docs: how to serve a team") from error
    if others_can_read(path):
        raise _refused(f"every user of this machine can read the tokens: {path}", f"chmod 600 {path}")
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < SHORTEST:
            raise _refused(
                f"{path} line {number} is not `user token`",
                f"a token has {SHORTEST} characters at least: openssl rand -hex 16",
            )
        users[words[1]] = words[0]
    if not users:
        raise _refused(f"{path} names nobody", "write lines `user token`")
    return Tokens(users)


def _check_certificate(certificate: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ssl.SSLError) as error:
        problem = error.strerror or error
        raise _refused(
            f"the certificate cannot be used: {certificate}, {key}: {problem}", "give both as PEM files"
        ) from error


def _no_password() -> str:
    raise _refused("the key of the certificate is encrypted", "decrypt it: openssl pkey -in FILE -out KEY")


def _address(proxy: str) -> str:
    try:
        return str(ipaddress.ip_address(proxy))
    except ValueError:
        raise _refused(f"--trust-proxy {proxy} is not an address", "write it like 10.0.0.5") from None


def _refused(problem: str, mend: str) -> BadInput:
    return BadInput(problem, mend=mend, anchor="ui-listen")
