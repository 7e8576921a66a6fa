"""The meaning of Kerberos' error codes to a person, and what to do.

libkrb5 reports each failure by a code of 32 bits: the protocol's codes (RFC 4120, 7.5.9) from -1765328384 on, its own
codes after them, and a few of its GSSAPI part. One table maps them to named errors; an unknown code keeps the library's
own words.
"""

from __future__ import annotations

import time

import attrs

from trainmaster.hadoop.errors import AuthenticationFailed, KdcUnreachable
from trainmaster.hadoop.security.libgssapi import GssError
from trainmaster.hadoop.security.tickets import Cache


class NoTicket(AuthenticationFailed):
    """There are no credentials at all where we looked."""


class TicketExpired(AuthenticationFailed):
    """There is a ticket, and its time is over."""


class TicketNotYetValid(AuthenticationFailed):
    """There is a ticket, and its time has not begun."""


class ClockSkew(AuthenticationFailed):
    """The clocks of two machines differ by more than Kerberos bears (5 minutes by default)."""


class UnknownServer(AuthenticationFailed):
    """The KDC knows no such server, or the server is not who it should be."""


class UnknownClient(AuthenticationFailed):
    """The KDC knows no such user, or has another key than the keytab."""


class TicketRefused(AuthenticationFailed):
    """The server does not take the ticket, and does not say why."""


@attrs.frozen
class Place:
    """The place of a failure: the principal that was asked for, the content of the cache (or the keytab, by name), the server."""

    principal: str
    cache: Cache
    keytab: bool
    server: str


@attrs.frozen
class _Meaning:
    error: type[AuthenticationFailed]
    text: str  # may say {who}, {server}, {where}, {holder}, {ended}, {begins}, {library}


_NO_TICKET = _Meaning(NoTicket, "no Kerberos ticket in {where}; get one: kinit {who}")
_NO_KEY = _Meaning(NoTicket, "no key of {who} in the keytab {where}: see what it holds by klist -k {where}")
_OTHER = _Meaning(NoTicket, "the tickets in {where} are of {holder}, not of {who}; get one: kinit {who}")
_EXPIRED = _Meaning(TicketExpired, "the Kerberos ticket of {who} expired{ended}; get a new one: kinit {who}")
_EARLY = _Meaning(
    TicketNotYetValid, "the Kerberos ticket of {who} is not yet valid{begins}; get one that is: kinit {who}"
)
_SKEW = _Meaning(
    ClockSkew,
    "the clocks of this machine and of {server} or the KDC differ too much for Kerberos ({library}); set them by NTP",
)
_NO_SERVER = _Meaning(
    UnknownServer,
    "{library}: {server} cannot be asked for; see the *.principal keys of core-site.xml, hdfs-site.xml and yarn-site.xml",
)
_NO_KDC = _Meaning(
    KdcUnreachable, "no Kerberos KDC answers ({library}); see kdc of the realm in krb5.conf, and the network"
)
_NO_REALM = _Meaning(KdcUnreachable, "no KDC is known ({library}); set default_realm and the realm's kdc in krb5.conf")
_NO_CLIENT = _Meaning(UnknownClient, "the KDC knows no such user ({library}); see the principal")
_WRONG_KEY = _Meaning(
    UnknownClient, "the KDC has another key of {who} than the keytab {where} ({library}); get a new keytab"
)
_LOCKED = _Meaning(UnknownClient, "the KDC has locked {who} ({library}); ask who runs it")

_FIRST = -1765328384  # the protocol's error 0

_BY_CODE = {
    _FIRST + 6: _NO_CLIENT,  # KDC_ERR_C_PRINCIPAL_UNKNOWN
    _FIRST + 7: _NO_SERVER,  # KDC_ERR_S_PRINCIPAL_UNKNOWN
    _FIRST + 18: _LOCKED,  # KDC_ERR_CLIENT_REVOKED
    _FIRST + 23: _LOCKED,  # KDC_ERR_KEY_EXPIRED: the password's time is over
    _FIRST + 24: _WRONG_KEY,  # KDC_ERR_PREAUTH_FAILED
    _FIRST + 31: _WRONG_KEY,  # KRB_AP_ERR_BAD_INTEGRITY
    _FIRST + 32: _EXPIRED,  # KRB_AP_ERR_TKT_EXPIRED
    _FIRST + 33: _EARLY,  # KRB_AP_ERR_TKT_NYV
    _FIRST + 37: _SKEW,  # KRB_AP_ERR_SKEW
    -1765328243: _NO_TICKET,  # KRB5_CC_NOTFOUND
    -1765328189: _NO_TICKET,  # KRB5_FCC_NOFILE
    39756044: _NO_TICKET,  # KG_EMPTY_CCACHE
    39756034: _NO_TICKET,  # KG_TGT_MISSING
    39756032: _OTHER,  # KG_CCACHE_NOMATCH
    39756033: _NO_KEY,  # KG_KEYTAB_NOMATCH
    -1765328203: _NO_KEY,  # KRB5_KT_NOTFOUND
    -1765328228: _NO_KDC,  # KRB5_KDC_UNREACH
    -1765328164: _NO_KDC,  # KRB5_REALM_CANT_RESOLVE
    -1765328230: _NO_REALM,  # KRB5_REALM_UNKNOWN
    -1765328160: _NO_REALM,  # KRB5_CONFIG_NODEFREALM
    -1765328249: _NO_REALM,  # KRB5_CONFIG_CANTOPEN
}
_CREDENTIALS_EXPIRED = 0xB0000  # a major status; it has no code of its own
_UNKNOWN = _Meaning(AuthenticationFailed, "Kerberos: {library} (for {who}, with {where})")


def explained(error: GssError, place: Place) -> AuthenticationFailed:
    """Return a failure of the library as an error of ours."""
    meaning = _EXPIRED if error.major & 0xFF0000 == _CREDENTIALS_EXPIRED else _BY_CODE.get(error.minor, _UNKNOWN)
    if place.keytab and meaning is _NO_TICKET:
        meaning = _NO_KEY
    return _error_of(meaning, error.text, place)


def refused(error: AuthenticationFailed) -> AuthenticationFailed:
    """Return a server's refusal of our login, with the likely reasons: Hadoop's server tells nobody, its own log included."""
    if "GSS initiate failed" not in error.message:
        return error
    return TicketRefused(
        f"{error.message}: it cannot read our ticket, or its clock and ours differ by more than 5 minutes; compare the clocks, "
        "and the number of its key in its keytab (klist -k) with the KDC's (kvno)"
    )


def expired(place: Place) -> AuthenticationFailed:
    """Return the error for a ticket whose time is over, by our own look at it."""
    return _error_of(_EXPIRED, "", place)


def not_yet_valid(place: Place) -> AuthenticationFailed:
    """Return the error for a ticket whose time has not begun, by our own look at it."""
    return _error_of(_EARLY, "", place)


def _error_of(meaning: _Meaning, library: str, place: Place) -> AuthenticationFailed:
    principal = place.principal or place.cache.principal
    first = place.cache.first
    facts = {
        "who": principal or "its owner",
        "where": place.cache.name or "the default cache",
        "holder": place.cache.principal,
        "server": place.server or "the server",
        "library": library,
        "ended": f" at {_moment(first.end)}" if first else "",
        "begins": f", but from {_moment(first.start)} on" if first else "",
    }
    return meaning.error(meaning.text.replace("kinit {who}", f"kinit {principal or 'NAME@REALM'}").format(**facts))


def _moment(moment: float) -> str:
    """Return a moment as a person reads it: when, and how long ago or ahead."""
    away = moment - time.time()
    size, unit = next((row for row in _UNITS if abs(away) >= 2 * row[0]), (1, "s"))
    figure = f"{abs(away) / size:.0f} {unit}"
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    return f"{at} ({figure} ago)" if away <= 0 else f"{at} (in {figure})"


_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))
