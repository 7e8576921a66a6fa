"""The ways to say who one is. Which mechanism each takes with a server is chosen in `handshake`.

An insecure cluster believes any name (`Simple`), except where it gave a token: the ResourceManager's scheduler port and
every NodeManager want that token shown (`ByToken`). On a secure cluster a person logs in by Kerberos, a container by its
tokens. `protection` is what we bear on the wire, best first, in the words of hadoop.rpc.protection; the server offers,
and the first of ours that it offers is taken. Whoever sits between can strike better words from an offer of DIGEST-MD5,
which nothing protects. So a client also has a floor, of its own configuration (`guarded`).
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from trainmaster.hadoop.security.credentials import Token

PROTECTION = ("privacy", "integrity", "authentication")


@attrs.frozen
class Simple:
    """A name, believed as it is."""

    user: str


@attrs.frozen
class ByToken:
    """A token that the server, or one that shares its secret, gave."""

    token: Token
    protection: tuple[str, ...] = PROTECTION


@attrs.frozen
class Kerberos:
    """A ticket: of `cache`, or got by `keytab` for `principal`; all empty: the ticket that the user has."""

    principal: str = ""
    cache: str = ""
    keytab: str = ""
    protection: tuple[str, ...] = PROTECTION


Auth = Simple | ByToken | Kerberos


def guarded(auth: Auth, allowed: Collection[str]) -> Auth:
    """Return the same without the protections that are not in `allowed`."""
    if isinstance(auth, Simple):
        return auth
    return attrs.evolve(auth, protection=tuple(word for word in auth.protection if word in allowed))
