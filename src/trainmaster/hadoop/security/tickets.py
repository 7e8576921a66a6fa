"""The content of a ticket cache: its owner, and the tickets with their times.

GSSAPI says how long credentials last, but not when expired ones ended, and nothing about postdated ones. So we ask libkrb5,
which reads every kind of cache (files, directories, the kernel's keyring, sssd's) and comes with libgssapi_krb5. Times are
seconds since the epoch, by this machine's clock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint, c_uint32, c_void_p

import attrs

SONAME = "libkrb5.so.3"


@attrs.frozen
class Ticket:
    """One ticket: its server, and its times; `renewable_until` is 0 where the ticket cannot be renewed."""

    server: str
    start: int
    end: int
    renewable_until: int = 0


@attrs.frozen
class Cache:
    """A ticket cache: its name (`FILE:/tmp/krb5cc_0`), its owner (empty: nobody yet) and its tickets."""

    name: str
    principal: str = ""
    tickets: tuple[Ticket, ...] = ()

    @property
    def first(self) -> Ticket | None:
        """Return the ticket by which all others are got, of the principal's own realm; the newest of them."""
        realm = self.principal.rpartition("@")[2]
        granting = [ticket for ticket in self.tickets if ticket.server == f"krbtgt/{realm}@{realm}"]
        return max(granting, key=lambda ticket: ticket.end, default=None)


class _Credentials(ctypes.Structure):
    """The beginning of krb5_creds (krb5.h); the rest is only room for what the library writes."""

    _fields_ = [
        ("magic", c_int32),
        ("client", c_void_p),
        ("server", c_void_p),
        ("key_magic", c_int32),
        ("key_type", c_int32),
        ("key_length", c_uint),
        ("key", c_void_p),
        ("authentication", c_uint32),
        ("start", c_uint32),  # unsigned: libkrb5 reads them so beyond 2038
        ("end", c_uint32),
        ("renew_till", c_uint32),
        ("rest", c_void_p * 32),
    ]


_P, _PP = c_void_p, POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[tuple[object, ...], object]] = {
    "krb5_init_context": ((_PP,), c_int32),
    "krb5_free_context": ((_P,), None),
    "krb5_cc_default": ((_P, _PP), c_int32),
    "krb5_cc_resolve": ((_P, c_char_p, _PP), c_int32),
    "krb5_cc_close": ((_P, _P), c_int32),
    "krb5_cc_get_full_name": ((_P, _P, POINTER(c_void_p)), c_int32),
    "krb5_cc_get_principal": ((_P, _P, _PP), c_int32),
    "krb5_cc_start_seq_get": ((_P, _P, _PP), c_int32),
    "krb5_cc_next_cred": ((_P, _P, _PP, POINTER(_Credentials)), c_int32),
    "krb5_cc_end_seq_get": ((_P, _P, _PP), c_int32),
    "krb5_unparse_name": ((_P, _P, POINTER(c_void_p)), c_int32),
    "krb5_free_unparsed_name": ((_P, _P), None),
    "krb5_free_string": ((_P, _P), None),
    "krb5_free_principal": ((_P, _P), None),
    "krb5_free_cred_contents": ((_P, POINTER(_Credentials)), None),
}


@functools.cache
def _library() -> ctypes.CDLL:
    krb5 = ctypes.CDLL(SONAME)
    for name, (parameters, result) in _SIGNATURES.items():
        function = getattr(krb5, name)
        function.argtypes, function.restype = parameters, result
    return krb5


def read_cache(name: str = "") -> Cache:
    """Return the content of a cache, by its name; by default the cache that `klist` shows. A cache that does not exist is empty."""
    krb5, context = _library(), c_void_p()
    if krb5.krb5_init_context(byref(context)):
        return Cache(name)  # no usable krb5.conf: the call that needs it says so
    try:
        with _open(context, name) as cache:
            return _content(context, cache) if cache else Cache(name)
    finally:
        krb5.krb5_free_context(context)


@contextmanager
def _open(context: c_void_p, name: str) -> Iterator[c_void_p | None]:
    krb5, cache = _library(), c_void_p()
    resolve = (krb5.krb5_cc_resolve, context, name.encode()) if name else (krb5.krb5_cc_default, context)
    function, *arguments = resolve
    if function(*arguments, byref(cache)):
        yield None
        return
    try:
        yield cache
    finally:
        krb5.krb5_cc_close(context, cache)


def _content(context: c_void_p, cache: c_void_p) -> Cache:
    krb5, text, principal = _library(), c_void_p(), c_void_p()
    krb5.krb5_cc_get_full_name(context, cache, byref(text))
    name = ctypes.string_at(text.value).decode(errors="replace") if text.value else ""
    krb5.krb5_free_string(context, text)
    if krb5.krb5_cc_get_principal(context, cache, byref(principal)):
        return Cache(name)
    try:
        return Cache(name, _name_of(context, principal), tuple(_tickets(context, cache)))
    finally:
        krb5.krb5_free_principal(context, principal)


def _tickets(context: c_void_p, cache: c_void_p) -> Iterator[Ticket]:
    krb5, cursor, credentials = _library(), c_void_p(), _Credentials()
    if krb5.krb5_cc_start_seq_get(context, cache, byref(cursor)):
        return
    while krb5.krb5_cc_next_cred(context, cache, byref(cursor), byref(credentials)) == 0:
        server = _name_of(context, c_void_p(credentials.server))
        if not server.startswith("krb5_ccache_conf_data/"):  # libkrb5's notes to itself, as tickets
            yield Ticket(
                server, credentials.start or credentials.authentication, credentials.end, credentials.renew_till
            )
        krb5.krb5_free_cred_contents(context, byref(credentials))
    krb5.krb5_cc_end_seq_get(context, cache, byref(cursor))


def _name_of(context: c_void_p, principal: c_void_p) -> str:
    krb5, text = _library(), c_void_p()
    if krb5.krb5_unparse_name(context, principal, byref(text)):
        return ""
    name = ctypes.string_at(text.value or 0).decode(errors="replace")
    krb5.krb5_free_unparsed_name(context, text)
    return name
