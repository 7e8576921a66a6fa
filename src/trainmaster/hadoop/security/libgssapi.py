"""The system's Kerberos library, called directly: the few functions of GSSAPI (RFC 2743, RFC 2744) that a client needs.

Packages that bind the library need a compiler on Linux; ctypes needs none, and every machine with `kinit` has the library.
It is found by its soname, once, when it is first needed. Every function returns a major status (the kind of failure) and a
minor one (libkrb5's reason): `call` turns a failure into `GssError` with both and with the library's words, whose meaning
to a person is given in gssapi.py. Memory of the library is copied and released at once; names, credentials and contexts
are `Handle`s, released by the garbage collector at the latest.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_int, c_size_t, c_uint32, c_void_p

import attrs

from trainmaster.hadoop.errors import AuthenticationFailed

SONAME = "libgssapi_krb5.so.2"
INSTALL = "install it: apt-get install libgssapi-krb5-2, or dnf install krb5-libs"

INITIATE = 1
CONTINUE_NEEDED = 1  # a bit of the major status: not a failure, the peer has more to say
_ERRORS = 0xFFFF0000
_OUT_OF_ORDER = 0x2 | 0x4 | 0x8 | 0x10  # duplicate, old, unsequenced, gap: RFC 2744, 3.9.1
_INDEFINITE = 0xFFFFFFFF
_MINOR = 2  # GSS_C_MECH_CODE, the kind of code for gss_display_status

MUTUAL, REPLAY, SEQUENCE, CONFIDENTIALITY, INTEGRITY = 2, 4, 8, 16, 32  # flags of a context


class GssError(Exception):
    """A call failed. `minor` is libkrb5's code (as signed 32 bits), `text` the library's words for it."""

    def __init__(self, function: str, major: int, minor: int, text: str) -> None:
        super().__init__(f"{function}: {text}")
        self.major, self.minor, self.text = major, minor, text


class _Buffer(ctypes.Structure):
    _fields_ = [("length", c_size_t), ("value", c_void_p)]
    kept: object = None  # the memory that `value` points to, where it is ours


class _Oid(ctypes.Structure):
    _fields_ = [("length", c_uint32), ("elements", c_void_p)]


class _OidSet(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("elements", POINTER(_Oid))]


class _Element(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class _Store(ctypes.Structure):
    _fields_ = [("count", c_uint32), ("elements", POINTER(_Element))]


def _oid(der: bytes) -> _Oid:
    return _Oid(len(der), ctypes.cast(ctypes.create_string_buffer(der, len(der)), c_void_p))


KRB5 = _oid(bytes.fromhex("2a864886f712010202"))  # 1.2.840.113554.1.2.2, the mechanism
PRINCIPAL = _oid(bytes.fromhex("2a864886f71201020201"))  # a name as Kerberos writes it: yarn/host@REALM
HOST_SERVICE = _oid(bytes.fromhex("2a864886f71201020104"))  # service@host

_STATUS = POINTER(c_uint32)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "gss_import_name": (POINTER(_Buffer), POINTER(_Oid), POINTER(c_void_p)),
    "gss_display_name": (c_void_p, POINTER(_Buffer), POINTER(POINTER(_Oid))),
    "gss_release_name": (POINTER(c_void_p),),
    "gss_acquire_cred_from": (
        *(c_void_p, c_uint32, POINTER(_OidSet), c_int, POINTER(_Store)),
        *(POINTER(c_void_p), c_void_p, POINTER(c_uint32)),
    ),
    "gss_inquire_cred": (c_void_p, POINTER(c_void_p), POINTER(c_uint32), c_void_p, c_void_p),
    "gss_release_cred": (POINTER(c_void_p),),
    "gss_init_sec_context": (
        *(c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Oid), c_uint32, c_uint32, c_void_p, POINTER(_Buffer)),
        *(c_void_p, POINTER(_Buffer), POINTER(c_uint32), POINTER(c_uint32)),
    ),
    "gss_delete_sec_context": (POINTER(c_void_p), c_void_p),
    "gss_wrap": (c_void_p, c_int, c_uint32, POINTER(_Buffer), POINTER(c_int), POINTER(_Buffer)),
    "gss_unwrap": (c_void_p, POINTER(_Buffer), POINTER(_Buffer), POINTER(c_int), c_void_p),
    "gss_display_status": (c_uint32, c_int, POINTER(_Oid), POINTER(c_uint32), POINTER(_Buffer)),
    "gss_release_buffer": (POINTER(_Buffer),),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, with its functions declared."""
    try:
        gssapi = ctypes.CDLL(SONAME)
    except OSError as error:
        raise AuthenticationFailed(f"Kerberos needs the system's {SONAME}, which is not here; {INSTALL}") from error
    for name, parameters in _SIGNATURES.items():
        function = getattr(gssapi, name)
        function.argtypes, function.restype = [_STATUS, *parameters], c_uint32
    return gssapi


def call(name: str, *arguments: object) -> int:
    """Call a function of the library. Return its major status, which is free of errors."""
    minor = c_uint32()
    function: Callable[..., int] = getattr(library(), name)
    major = function(byref(minor), *arguments)
    if major & _ERRORS:
        raise GssError(name, major, _signed(minor.value), _words(major, minor.value))
    return major


def _words(major: int, minor: int) -> str:
    """Return the library's words for a failure: those of the minor status where there is one, because the major one says little."""
    value, kind = (minor, _MINOR) if minor else (major, 1)
    more, text, ignored = c_uint32(), _Buffer(), c_uint32()
    if library().gss_display_status(byref(ignored), value, kind, byref(KRB5), byref(more), byref(text)) & _ERRORS:
        return f"status {major:#x}, {minor:#x}"
    return taken(text).decode(errors="replace")


def _signed(value: int) -> int:
    return ctypes.c_int32(value).value


def given(data: bytes) -> _Buffer:
    """Return a buffer with a copy of `data`: the library unwraps in place, and bytes must not change."""
    copy = ctypes.create_string_buffer(data, len(data))
    buffer = _Buffer(len(data), ctypes.addressof(copy))
    buffer.kept = copy
    return buffer


def empty() -> _Buffer:
    """Return a buffer for the library to fill."""
    return _Buffer()


def taken(buffer: _Buffer) -> bytes:
    """Return the content of a buffer that the library filled, and release it."""
    data = ctypes.string_at(buffer.value, buffer.length) if buffer.value else b""
    library().gss_release_buffer(byref(c_uint32()), byref(buffer))
    return data


@attrs.define(eq=False)
class Handle:
    """An object of the library that we use: a name, credentials, a context."""

    release: str
    value: c_void_p = attrs.field(factory=c_void_p)

    def __del__(self) -> None:
        if self.value.value:
            rest = (None,) if self.release == "gss_delete_sec_context" else ()
            getattr(library(), self.release)(byref(c_uint32()), byref(self.value), *rest)


def name_of(text: str, kind: _Oid) -> Handle:
    """Return a name as the library knows it."""
    handle = Handle("gss_release_name")
    call("gss_import_name", byref(given(text.encode())), byref(kind), byref(handle.value))
    return handle


def text_of(name: Handle) -> str:
    """Return a name as it is written: alice@REALM."""
    text = empty()
    call("gss_display_name", name.value, byref(text), None)
    return taken(text).decode(errors="replace")


def acquire(principal: str, store: Mapping[str, str]) -> Handle:
    """Return credentials to begin contexts with; `store` says where they are (ccache, client_keytab), {}: the default cache."""
    name = name_of(principal, PRINCIPAL) if principal else Handle("gss_release_name")
    elements = (_Element * len(store))(*(_Element(key.encode(), value.encode()) for key, value in store.items()))
    location = byref(_Store(len(store), elements)) if store else None
    handle = Handle("gss_release_cred")
    mechanisms = byref(_OidSet(1, ctypes.pointer(KRB5)))
    arguments = (name.value, _INDEFINITE, mechanisms, INITIATE, location, byref(handle.value), None, None)
    call("gss_acquire_cred_from", *arguments)
    return handle


def inquire(credentials: Handle) -> tuple[str, int]:
    """Return the principal of credentials, and for how many seconds more they last (0: no more)."""
    name, lifetime = Handle("gss_release_name"), c_uint32()
    call("gss_inquire_cred", credentials.value, byref(name.value), byref(lifetime), None, None)
    return text_of(name), lifetime.value


@attrs.define(eq=False)
class Context:
    """A security context with one server, as its initiator."""

    credentials: Handle
    target: Handle
    flags: int = MUTUAL | REPLAY | SEQUENCE | CONFIDENTIALITY | INTEGRITY
    established: bool = False
    _handle: Handle = attrs.field(factory=lambda: Handle("gss_delete_sec_context"))

    def step(self, token: bytes) -> bytes:
        """Take the server's token (none at first), and return ours. May ask a KDC, so it may take as long as that does."""
        answer, granted, lifetime = empty(), c_uint32(), c_uint32()
        inputs = (self.flags, _INDEFINITE, None, byref(given(token)) if token else None)
        outputs = (None, byref(answer), byref(granted), byref(lifetime))
        try:
            major = call(
                "gss_init_sec_context",
                *(self.credentials.value, byref(self._handle.value), self.target.value, byref(KRB5), *inputs, *outputs),
            )
        except GssError:
            taken(answer)
            raise
        self.established = not major & CONTINUE_NEEDED
        if self.established:
            self.flags = granted.value
        return taken(answer)

    def wrap(self, message: bytes, *, confidential: bool) -> bytes:
        """Return the message with a sum, encrypted if confidential."""
        sealed, state = empty(), c_int()
        data = given(message)
        call("gss_wrap", self._handle.value, confidential, 0, byref(data), byref(state), byref(sealed))
        token = taken(sealed)
        if confidential and not state.value:
            raise AuthenticationFailed("Kerberos cannot encrypt with this server's key type: it has no cipher for it")
        return token

    def unwrap(self, token: bytes) -> tuple[bytes, bool]:
        """Return the message in a token, and whether it was encrypted. A token out of its order is a failure."""
        message, state = empty(), c_int()
        data = given(token)
        major = call("gss_unwrap", self._handle.value, byref(data), byref(message), byref(state), None)
        plain = taken(message)
        if major & _OUT_OF_ORDER:
            raise GssError("gss_unwrap", major, 0, "a message came twice, or out of its order")
        return plain, bool(state.value)
