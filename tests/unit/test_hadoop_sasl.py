"""DIGEST-MD5 against the JDK's own server, which Hadoop's servers use."""

from __future__ import annotations

import base64
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.clusters.hadoop import jars
from trainmaster.hadoop.errors import AuthenticationFailed, Garbled
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.security.sasl import Digest, Rc4, read_directives

PROGRAM = Path(__file__).parent.parent / "programs/DigestServer.java"
TOKEN = Token(b"\x00who\xff", b"\x01secret\xfe", "YARN_AM_RM_TOKEN", "")
ALL = "auth,auth-int,auth-conf"
MESSAGES = [b"", b"x", b"getClusterMetrics" * 10, bytes(range(256)) * 240, b"end"]


@attrs.frozen
class Jdk:
    """The JDK's server, in a process of its own."""

    process: subprocess.Popen[str]

    def ask(self, *words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def tell(self, *words: str | bytes) -> bytes:
        said = self.ask(*[word.hex() if isinstance(word, bytes) else word for word in words])
        assert said == "ok" or said.startswith("ok "), said
        return bytes.fromhex(said[2:])

    def challenge(self, qop: str, password: bytes = TOKEN.password) -> bytes:
        return self.tell("new", qop, base64.b64encode(password).decode())


@pytest.fixture(scope="module")
def jdk() -> Iterator[Jdk]:
    command = [jars.java(), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Jdk(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def agreed(jdk: Jdk, protection: str) -> Digest:
    digest = Digest(TOKEN, (protection,))
    answer = jdk.tell("respond", digest.start(jdk.challenge(ALL)))
    assert digest.step(answer) is None
    assert digest.complete
    return digest


def test_the_jdk_believes_us_and_we_believe_it(jdk: Jdk) -> None:
    digest = agreed(jdk, "authentication")
    assert not digest.wraps


@pytest.mark.parametrize("protection", ["integrity", "privacy"])
def test_wrapped_messages_are_understood_both_ways(jdk: Jdk, protection: str) -> None:
    digest = agreed(jdk, protection)
    assert digest.wraps
    for message in MESSAGES[1:]:  # the JDK gives an empty token for an empty message
        sealed = digest.wrap(message)
        assert len(message) < 3 or (message in sealed) == (protection == "integrity")
        assert jdk.tell("unwrap", sealed) == message
        assert digest.unwrap(jdk.tell("wrap", message)) == message


@pytest.mark.parametrize("protection", ["integrity", "privacy"])
def test_a_message_changed_repeated_or_left_out_is_found(jdk: Jdk, protection: str) -> None:
    first = b"first"
    for wrong in (
        lambda sealed, _: bytes([sealed[0] ^ 1]) + sealed[1:],
        lambda sealed, _: sealed[:-7] + bytes([sealed[-7] ^ 1]) + sealed[-6:],
        lambda sealed, _: sealed[:-1],
        lambda sealed, _: sealed[:5],
        lambda sealed, _: b"",
        lambda _, following: following,
    ):
        digest = agreed(jdk, protection)
        sealed, following = jdk.tell("wrap", first), jdk.tell("wrap", b"second")
        with pytest.raises(Garbled, match="wrapped message"):
            digest.unwrap(wrong(sealed, following))
    digest = agreed(jdk, protection)
    sealed = jdk.tell("wrap", first)
    assert digest.unwrap(sealed) == first
    with pytest.raises(Garbled, match="is not the one due, number 1"):
        digest.unwrap(sealed)


def test_a_wrong_password_is_refused_by_the_jdk(jdk: Jdk) -> None:
    digest = Digest(TOKEN)
    answer = digest.start(jdk.challenge(ALL, b"another"))
    assert jdk.ask("respond", answer.hex()).startswith("error DIGEST-MD5: digest response format violation")


def test_a_server_that_does_not_know_the_password_is_not_believed(jdk: Jdk) -> None:
    digest = Digest(TOKEN)
    digest.start(jdk.challenge("auth"))
    for proof in (b"", b"rspauth=", b"rspauth=" + b"0" * 32):
        with pytest.raises(AuthenticationFailed, match="does not know the token's password"):
            digest.step(proof)
    assert not digest.complete


def test_the_best_that_both_bear_is_taken(jdk: Jdk) -> None:
    for ours, theirs, taken in [
        (("privacy", "integrity", "authentication"), ALL, b"qop=auth-conf"),
        (("privacy", "integrity", "authentication"), "auth,auth-int", b"qop=auth-int"),
        (("authentication", "privacy"), ALL, b"qop=auth,"),
        (("integrity",), ALL, b"qop=auth-int"),
    ]:
        answer = Digest(TOKEN, ours).start(jdk.challenge(theirs))
        assert taken in answer
        assert jdk.tell("respond", answer).startswith(b"rspauth=")


def test_less_protection_than_asked_for_is_refused() -> None:
    with pytest.raises(
        AuthenticationFailed, match=r"offers protection auth, we take auth-conf .*hadoop.rpc.protection"
    ):
        Digest(TOKEN, ("privacy",)).start(b'realm="default",nonce="abc",qop="auth",algorithm=md5-sess')
    with pytest.raises(AuthenticationFailed, match="auth-conf with 3des, des"):
        Digest(TOKEN, ("privacy",)).start(b'nonce="abc",qop="auth-conf",cipher="3des,des",algorithm=md5-sess')


def test_the_same_nonce_gives_the_same_response() -> None:
    challenge = b'realm="default",nonce="abc",qop="auth",charset=utf-8,algorithm=md5-sess'
    first, second = (Digest(TOKEN, nonce=bytes).start(challenge) for _ in range(2))
    assert first == second != Digest(TOKEN).start(challenge)


def test_rc4_is_that_of_rfc_6229() -> None:
    stream = Rc4(bytes([1, 2, 3, 4, 5]))
    assert stream.crypt(bytes(16)).hex() == "b2396305f03dc027ccc3524a0a1118a8"
    assert stream.crypt(bytes(16)).hex() == "6982944f18fc82d589c403a47a0d0919"


def test_a_challenge_is_read_with_its_quotes() -> None:
    assert read_directives(rb'realm="a \"b\", c",nonce=xyz , qop="auth,auth-int"') == {
        "realm": 'a "b", c',
        "nonce": "xyz",
        "qop": "auth,auth-int",
    }


@given(st.binary() | st.text(alphabet='ab=",\\ ').map(str.encode))
def test_any_challenge_is_read_or_refused(challenge: bytes) -> None:
    with contextlib.suppress(AuthenticationFailed):
        Digest(TOKEN).start(challenge)
