"""The ways to log in. `handshake` chooses the mechanism that each uses with a server.

An insecure cluster believes any name (`Simple`), except where it gave a token: the ResourceManager's scheduler port and
every NodeManager want that token shown (`ByToken`). On a secure cluster a person logs in by Kerberos, a container by its
tokens. `protection` lists what we accept on the wire, best first, in the words of hadoop.rpc.protection; the first of
them that the server offers is used. An attacker in between can strike better words from an offer of DIGEST-MD5, which
nothing protects. So a client also has a floor, set by its own configuration (`guarded`).
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from trainmaster.hadoop.security.credentials import Token

PROTECTION = ("privacy", "integrity", "authentication")


@attrs.frozen
class Simple:
    """A user name, believed as it is."""

    user: str


@attrs.frozen
class ByToken:
    """A token that was given by the server, or by another server that shares its secret."""

    token: Token
    protection: tuple[str, ...] = PROTECTION


@attrs.frozen
class Kerberos:
    """A ticket: from `cache`, or got by `keytab` for `principal`; all empty: the ticket that the user has."""

    principal: str = ""
    cache: str = ""
    keytab: str = ""
    protection: tuple[str, ...] = PROTECTION


Auth = Simple | ByToken | Kerberos


def guarded(auth: Auth, allowed: Collection[str]) -> Auth:
    """Return the same login without the protections that are not in `allowed`."""
    if isinstance(auth, Simple):
        return auth
    return attrs.evolve(auth, protection=tuple(word for word in auth.protection if word in allowed))
