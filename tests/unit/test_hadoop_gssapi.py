"""Kerberos against the real thing: a KDC of the test's own, the system's library on both sides, an acceptor as the JDK's is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from ctypes import POINTER, byref, c_int, c_uint32, c_void_p
from pathlib import Path

import pytest
from kdc import Kdc, running_kdc, skew
from waiting import until

from trainmaster.hadoop import errors
from trainmaster.hadoop.errors import AuthenticationFailed, Garbled
from trainmaster.hadoop.security import gssapi, kerberos_errors, libgssapi, tickets
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.gssapi import AUTHENTICATION, INTEGRITY, PRIVACY, Gssapi
from trainmaster.hadoop.security.libgssapi import Handle, _Buffer, empty, given, taken

SERVER = "yarn/localhost"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as kdc:
        kdc.keytab("alice")
        kdc.keytab(SERVER)
        yield kdc


@pytest.fixture
def kdc(realm: Kdc, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    for name, value in realm.settings.items():
        monkeypatch.setenv(name, value)
    return realm


@pytest.fixture
def ticket(kdc: Kdc, tmp_path: Path) -> Kerberos:
    return Kerberos(cache=take(kdc, tmp_path / "cache"))


def take(kdc: Kdc, cache: Path, *options: str) -> str:
    return kdc.ticket("alice", kdc.folder / "alice.keytab", cache, *options)


class Acceptor:
    """A server's side, over the same library: GSSAPI with the key in a keytab, then the offer of layers."""

    def __init__(self, keytab: Path, layers: int) -> None:
        library = libgssapi.library()
        library.gss_accept_sec_context.argtypes = [
            *(POINTER(c_uint32), POINTER(c_void_p), c_void_p, POINTER(_Buffer), c_void_p, POINTER(c_void_p)),
            *(c_void_p, POINTER(_Buffer), c_void_p, c_void_p, c_void_p),
        ]
        self.layers, self.layer, self.peer = layers, 0, ""
        self.credentials = Handle("gss_release_cred")
        elements = (libgssapi._Element * 2)(
            libgssapi._Element(b"keytab", str(keytab).encode()), libgssapi._Element(b"rcache", b"none:")
        )
        arguments = (None, 0, None, 2, byref(libgssapi._Store(2, elements)), byref(self.credentials.value), None, None)
        libgssapi.call("gss_acquire_cred_from", *arguments)
        self.handle = Handle("gss_delete_sec_context")

    def accept(self, token: bytes) -> bytes:
        source, answer, data = Handle("gss_release_name"), empty(), given(token)
        arguments = (self.credentials.value, byref(data), None, byref(source.value), None, byref(answer))
        libgssapi.call("gss_accept_sec_context", byref(self.handle.value), *arguments, None, None, None)
        self.peer = libgssapi.text_of(source)
        return taken(answer)

    def wrap(self, message: bytes, confidential: bool = False) -> bytes:
        data, sealed = given(message), empty()
        libgssapi.call("gss_wrap", self.handle.value, confidential, 0, byref(data), None, byref(sealed))
        return taken(sealed)

    def unwrap(self, token: bytes) -> tuple[bytes, bool]:
        data, message, state = given(token), empty(), c_int()
        libgssapi.call("gss_unwrap", self.handle.value, byref(data), byref(message), byref(state), None)
        return taken(message), bool(state.value)

    def talk(self, mechanism: Gssapi) -> None:
        """The whole exchange, as Hadoop's server makes it."""
        answer = mechanism.step(self.accept(mechanism.start(b"")))
        assert answer == b"", "the context stands, and there is nothing to add"
        assert not mechanism.complete
        chosen, _ = self.unwrap(mechanism.step(self.wrap(bytes([self.layers, 0, 255, 255]))))
        self.layer = chosen[0]
        assert len(chosen) == 4
        assert (chosen[1:] == bytes(3)) == (self.layer == AUTHENTICATION)


def acceptor(kdc: Kdc, layers: int) -> Acceptor:
    return Acceptor(kdc.folder / "yarn_localhost.keytab", layers)


def mechanism(kerberos: Kerberos, **options: object) -> Gssapi:
    return Gssapi(kerberos, "yarn", "localhost", **options)  # type: ignore[arg-type]


# -- contexts --


@pytest.mark.parametrize("layer", [AUTHENTICATION, INTEGRITY, PRIVACY])
@pytest.mark.parametrize("principal", ["", "yarn/localhost@TEST"])
def test_a_ticket_makes_a_context_of_each_layer(kdc: Kdc, ticket: Kerberos, layer: int, principal: str) -> None:
    server, client = acceptor(kdc, layer), mechanism(ticket, principal=principal)
    server.talk(client)
    assert (client.complete, client.layer, server.layer) == (True, layer, layer)
    assert (client.user, server.peer) == ("alice@TEST", "alice@TEST")
    assert client.wraps == (layer != AUTHENTICATION)
    if layer == AUTHENTICATION:
        assert client.wrap(b"plain") == client.unwrap(b"plain") == b"plain"
        return
    for message in (b"", b"first", b"second" * 200_000, b"\0third\0"):
        wrapped = client.wrap(message)
        assert server.unwrap(wrapped) == (message, layer == PRIVACY)
        assert (message in wrapped) == (layer == INTEGRITY or not message)
        assert client.unwrap(server.wrap(message, layer == PRIVACY)) == message


def test_the_first_layer_of_ours_that_is_offered_is_taken(kdc: Kdc, ticket: Kerberos) -> None:
    for layers, offered, chosen in (
        ((PRIVACY, INTEGRITY, AUTHENTICATION), 7, PRIVACY),
        ((AUTHENTICATION, PRIVACY), 7, AUTHENTICATION),
        ((PRIVACY, AUTHENTICATION), 3, AUTHENTICATION),
    ):
        client = mechanism(ticket, layers=layers)
        acceptor(kdc, offered).talk(client)
        assert client.layer == chosen


def test_no_layer_in_common_is_reported_with_the_key_to_change(kdc: Kdc, ticket: Kerberos) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        acceptor(kdc, AUTHENTICATION | INTEGRITY).talk(mechanism(ticket, layers=(PRIVACY,)))
    assert caught.value.message == (
        "yarn/localhost offers protection authentication, integrity, we take privacy: see hadoop.rpc.protection"
    )


@pytest.mark.parametrize("layer", [INTEGRITY, PRIVACY])
def test_what_was_changed_repeated_lost_or_bared_on_its_way_is_refused(kdc: Kdc, ticket: Kerberos, layer: int) -> None:
    def connected() -> tuple[Acceptor, Gssapi]:
        server, client = acceptor(kdc, layer), mechanism(ticket)
        server.talk(client)
        return server, client

    def tokens(server: Acceptor) -> list[bytes]:
        return [server.wrap(b"message %d" % i, layer == PRIVACY) for i in range(3)]

    server, client = connected()
    first, second, _ = tokens(server)
    for position in range(len(first)):
        changed = bytearray(first)
        changed[position] ^= 1
        _, other = connected()
        with pytest.raises(Garbled):
            other.unwrap(bytes(changed))
    assert client.unwrap(first) == b"message 0"
    with pytest.raises(Garbled, match="was changed on its way: a message came twice"):
        client.unwrap(first)
    server, client = connected()
    first, second, _ = tokens(server)
    with pytest.raises(Garbled):
        client.unwrap(second)
    if layer == PRIVACY:
        server, client = connected()
        with pytest.raises(Garbled, match="in the clear"):
            client.unwrap(server.wrap(b"bare", confidential=False))


def test_a_server_that_speaks_out_of_turn_or_nonsense_is_refused(kdc: Kdc, ticket: Kerberos) -> None:
    with pytest.raises(AuthenticationFailed, match="nothing asked for"):
        mechanism(ticket).step(b"early")
    for nonsense in (b"", b"x", os.urandom(700), b"\x60\x82\xff\xff"):
        client = mechanism(ticket)
        client.start(b"")
        with pytest.raises(AuthenticationFailed):
            client.step(nonsense)
    server, client = acceptor(kdc, 7), mechanism(ticket)
    client.step(server.accept(client.start(b"")))
    with pytest.raises(AuthenticationFailed, match="its layers in 3 bytes"):
        client.step(server.wrap(b"abc"))


def test_a_server_of_another_name_than_configured_is_not_even_asked(kdc: Kdc, ticket: Kerberos) -> None:
    with pytest.raises(gssapi.UnknownServer) as caught:
        mechanism(ticket, principal="hdfs/localhost@TEST").start(b"")
    assert caught.value.message.startswith(
        "the server calls itself yarn/localhost, but the configuration wants hdfs/localhost@TEST"
    )
    assert gssapi.server_principal("yarn/_HOST@TEST", "Node1.Example") == "yarn/node1.example@TEST"


# -- keytabs --


def test_a_keytab_is_a_login_whose_ticket_is_taken_once(kdc: Kdc) -> None:
    before = dict(os.environ)
    keytab = kdc.keytab("master/localhost")
    kerberos = Kerberos(principal="master/localhost", keytab=str(keytab))
    for _ in range(3):
        server, client = acceptor(kdc, PRIVACY), mechanism(kerberos)
        server.talk(client)
        assert server.peer == client.user == "master/localhost@TEST"
    issued = [line for line in (kdc.folder / "kdc.log").read_text().splitlines() if "ISSUE" in line]
    assert len([line for line in issued if "AS_REQ" in line and "master/localhost@TEST" in line]) == 1
    assert len([line for line in issued if "TGS_REQ" in line and "master/localhost@TEST" in line]) == 1
    assert dict(os.environ) == before
    assert not Path(kdc.folder / "default_cache").exists()


# -- identity --


def test_whose_ticket_it_is_and_how_long_it_lasts(kdc: Kdc, tmp_path: Path) -> None:
    cache = take(kdc, tmp_path / "cache", "-l", "10m", "-r", "1h")
    known = gssapi.identity(Kerberos(cache=cache))
    assert (known.principal, known.short) == ("alice@TEST", "alice")
    assert 500 < known.expires - time.time() <= 601
    assert 3500 < known.renewable_until - time.time() <= 3601
    assert gssapi.identity(Kerberos(principal="alice", cache=cache)).principal == "alice@TEST"
    by_key = gssapi.identity(Kerberos(principal="alice", keytab=str(kdc.folder / "alice.keytab")))
    assert by_key.principal == "alice@TEST"
    assert 86300 < by_key.expires - time.time() <= 86400


def test_the_default_cache_is_the_users(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", take(kdc, tmp_path / "cache"))
    assert gssapi.identity(Kerberos()).principal == "alice@TEST"
    held = tickets.read_cache()
    assert held.name == f"FILE:{tmp_path}/cache"
    assert held.first is not None
    assert held.first.server == "krbtgt/TEST@TEST"


# -- what goes wrong --


def refusal(kerberos: Kerberos, server: str = "localhost") -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as caught:
        Gssapi(kerberos, "yarn", server, f"yarn/{server}@TEST").start(b"")
    return caught.value


def test_no_ticket_at_all(kdc: Kdc, tmp_path: Path) -> None:
    error = refusal(Kerberos())
    assert isinstance(error, kerberos_errors.NoTicket)
    assert error.message == f"no Kerberos ticket in FILE:{kdc.folder}/default_cache; get one: kinit NAME@REALM"
    error = refusal(Kerberos("alice@TEST", cache=str(tmp_path / "none")))
    assert error.message == f"no Kerberos ticket in FILE:{tmp_path}/none; get one: kinit alice@TEST"


def test_a_ticket_of_somebody_else(ticket: Kerberos) -> None:
    error = refusal(Kerberos("bob@TEST", cache=ticket.cache))
    assert isinstance(error, kerberos_errors.NoTicket)
    assert error.message == (
        f"the tickets in {ticket.cache} are of alice@TEST, not of bob@TEST; get one: kinit bob@TEST"
    )


def test_a_ticket_whose_time_is_over_says_since_when(kdc: Kdc, tmp_path: Path) -> None:
    cache = take(kdc, tmp_path / "cache", "-l", "1s")
    first = tickets.read_cache(cache).first
    assert first is not None
    until(lambda: time.time() > first.end, what="the ticket to expire")
    error = refusal(Kerberos(cache=cache))
    assert isinstance(error, kerberos_errors.TicketExpired)
    ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(first.end))
    assert error.message.startswith(f"the Kerberos ticket of alice@TEST expired at {ended} (")
    assert error.message.endswith(" ago); get a new one: kinit alice@TEST")


def test_a_ticket_of_the_future_says_from_when(kdc: Kdc, tmp_path: Path) -> None:
    error = refusal(Kerberos(cache=take(kdc, tmp_path / "cache", "-s", "3h", "-l", "1h")))
    assert isinstance(error, kerberos_errors.TicketNotYetValid)
    assert error.message.endswith(" UTC (in 3 hours) on; get one that is: kinit alice@TEST")


def test_a_server_that_the_kdc_does_not_know(ticket: Kerberos) -> None:
    error = refusal(ticket, "elsewhere")
    assert isinstance(error, kerberos_errors.UnknownServer)
    assert error.message.startswith("Server yarn/elsewhere@TEST not found in Kerberos database: ")
    assert "yarn-site.xml" in error.message


def test_no_kdc_answers(kdc: Kdc, ticket: Kerberos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "krb5.conf"
    moved.write_text(kdc.config.read_text().replace(f"kdc = localhost:{kdc.port}", "kdc = localhost:1"))
    monkeypatch.setenv("KRB5_CONFIG", str(moved))
    error = refusal(ticket)
    assert isinstance(error, errors.KdcUnreachable)
    assert error.message.startswith("no Kerberos KDC answers (Cannot contact any KDC for realm 'TEST'); see kdc of")


def test_no_realm_is_configured(kdc: Kdc, ticket: Kerberos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "none"))
    for kerberos in (ticket, Kerberos("alice", keytab=str(kdc.folder / "alice.keytab"))):
        error = refusal(kerberos)
        assert isinstance(error, errors.KdcUnreachable)
        assert error.message.startswith("no KDC is known (")
        assert error.message.endswith("set default_realm and the realm's kdc in krb5.conf")


def test_clocks_that_differ_too_much(kdc: Kdc, ticket: Kerberos) -> None:
    skew(Path(ticket.cache.removeprefix("FILE:")), 7200)
    error = refusal(ticket)
    assert isinstance(error, kerberos_errors.ClockSkew)
    assert error.message.startswith("the clocks of this machine and of yarn/localhost@TEST or the KDC differ too much")


def test_keytabs_that_do_not_fit(kdc: Kdc, tmp_path: Path) -> None:
    keytab = kdc.keytab("bob")
    error = refusal(Kerberos("carol", keytab=str(keytab)))
    assert isinstance(error, kerberos_errors.NoTicket)
    assert error.message == f"no key of carol in the keytab {keytab}: see what it holds by klist -k {keytab}"
    error = refusal(Kerberos("bob", keytab=str(tmp_path / "none.keytab")))
    assert error.message == f"the keytab {tmp_path}/none.keytab cannot be read: No such file or directory"
    kdc.alter("modprinc -allow_tix bob")
    assert "the KDC has locked bob" in refusal(Kerberos("bob", keytab=str(keytab))).message
    kdc.alter("modprinc +allow_tix bob")
    kdc.alter("cpw -randkey bob")
    error = refusal(Kerberos("bob", keytab=str(keytab)))
    assert isinstance(error, kerberos_errors.UnknownClient)
    assert f"the KDC has another key of bob than the keytab {keytab}" in error.message
    kdc.alter("delprinc -force bob")
    assert (
        "the KDC knows no such user (Client 'bob@TEST' not found"
        in refusal(Kerberos("bob", keytab=str(keytab))).message
    )


def test_a_cache_that_is_none(kdc: Kdc, tmp_path: Path) -> None:
    for name, content in (("text", b"hello"), ("cut", b"\x05\x04\x00\x0c\x00"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        error = refusal(Kerberos(cache=str(tmp_path / name)))
        assert f"{tmp_path}/{name}" in error.message


def test_damaged_caches_end_in_an_error_of_ours_or_work(kdc: Kdc, ticket: Kerberos, tmp_path: Path) -> None:
    whole = Path(ticket.cache.removeprefix("FILE:")).read_bytes()
    for length in range(0, len(whole), 37):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:length])
        with pytest.raises(AuthenticationFailed):
            mechanism(Kerberos(cache=str(cut))).start(b"")


def test_a_machine_without_the_library_is_reported_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libgssapi, "SONAME", "libgssapi_krb5.so.none")
    libgssapi.library.cache_clear()
    try:
        error = refusal(Kerberos())
    finally:
        libgssapi.library.cache_clear()
    assert "libgssapi_krb5.so.none, which is not here; install it: apt-get install libgssapi-krb5-2" in error.message


def test_many_contexts_leave_no_memory_behind(kdc: Kdc, ticket: Kerberos) -> None:
    def round_(count: int) -> int:
        for _ in range(count):
            acceptor(kdc, PRIVACY).talk(mechanism(ticket))
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = round_(50)
    assert round_(300) - before < 2 << 20, "300 contexts, each with its credentials and names"
