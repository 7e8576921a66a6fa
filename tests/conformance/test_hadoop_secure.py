"""A real Hadoop with Kerberos: logins with each protection, delegation tokens and what they are good for, and what goes wrong.

The shared secure cluster offers all three protections on its RPC, and which one is used is ours to say.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import attrs
import hdfs_native
import pytest
from hadoop import own_hadoop
from kdc import skew
from unmanaged import killed, report, submitted
from waiting import until_async

from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.clusters.hadoop.kerberos import REALM
from trainmaster.hadoop import conf, errors, yarn
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.errors import AuthenticationFailed, HadoopError, RemoteError, WeakProtection
from trainmaster.hadoop.hdfs import Namenode
from trainmaster.hadoop.proto import hdfs_pb2 as h
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.proto.security_pb2 import GetDelegationTokenRequestProto
from trainmaster.hadoop.security import delegation, gssapi, kerberos_errors
from trainmaster.hadoop.security.auth import PROTECTION, Auth, ByToken, Kerberos, Simple
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN, Credentials, Token

pytestmark = pytest.mark.xdist_group("hadoop")

TESTS = Path(__file__).parent.parent
DAY = 86400.0


@attrs.frozen
class Place:
    """A secure cluster, seen by a user of it."""

    cluster: Cluster
    conf: Configuration
    folder: Path

    def ticket(self, user: str = "alice", *options: str, name: str = "") -> Kerberos:
        """A ticket, taken now."""
        cache = self.folder / (name or user)
        keytab = str(self.cluster.keytab(user))
        subprocess.run(["kinit", "-c", cache, "-k", "-t", keytab, *options, user], check=True, capture_output=True)
        return Kerberos(cache=f"FILE:{cache}")

    def ask_for(self, cache: Path, *servers: str) -> None:
        """Tickets for servers, into the cache."""
        subprocess.run(["kvno", "-q", "-c", cache, *servers], check=True)

    def key(self, user: str) -> Kerberos:
        principal = f"{user}/localhost" if user in ("yarn", "hdfs") else user
        return Kerberos(principal, keytab=str(self.cluster.keytab(user)))

    def kadmin(self, query: str) -> None:
        here = self.cluster.folder / "kerberos"
        environ = {**os.environ, "KRB5_KDC_PROFILE": f"{here}/kdc.conf", "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        subprocess.run(["kadmin.local", "-r", REALM, "-q", query], env=environ, check=True, capture_output=True)


@pytest.fixture
def place(secure_hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return entered(secure_hadoop, tmp_path, monkeypatch)


def entered(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The cluster's configuration and realm, and no ticket."""
    for name, value in {**cluster.environ, "KRB5CCNAME": f"FILE:{folder}/no-ticket"}.items():
        monkeypatch.setenv(name, value)
    return Place(cluster, conf.load(), folder)


async def metrics(here: Configuration, auth: Auth) -> y.YarnClusterMetricsProto:
    async with yarn.ResourceManager.of(here, auth) as manager:
        return (await manager.get_cluster_metrics()).cluster_metrics


async def safe_mode(here: Configuration, auth: Auth) -> bool:
    async with Namenode.of(here, auth) as namenode:
        return await namenode.in_safe_mode()


def looped(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def inside(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return inside


# -- logins --


@pytest.mark.parametrize("word", PROTECTION)
@looped
async def test_a_ticket_opens_yarn_and_hdfs_with_each_protection(place: Place, word: str) -> None:
    auth = attrs.evolve(place.ticket(), protection=(word,))
    assert (await metrics(place.conf, auth)).num_active_nms == 2
    assert not await safe_mode(place.conf, auth)
    async with yarn.ResourceManager.of(place.conf, auth) as manager:
        answers = await asyncio.gather(*[manager.get_cluster_metrics() for _ in range(100)])
        assert {answer.cluster_metrics.num_active_nms for answer in answers} == {2}
        # a request and an answer of more than a frame of the wrapping holds
        application = await submitted(manager, application_name="long " * 40_000)
        assert (await report(manager, application)).name == "long " * 40_000
        assert (await report(manager, application)).user == "alice"
        await killed(manager, application)


@looped
async def test_a_keytab_opens_them_too(place: Place) -> None:
    assert (await metrics(place.conf, place.key("bob"))).num_active_nms == 2
    assert not await safe_mode(place.conf, place.key("bob"))
    known = await asyncio.to_thread(gssapi.identity, place.key("bob"))
    assert (known.principal, known.short) == (f"bob@{REALM}", "bob")


# -- delegation tokens --


@looped
async def test_tokens_say_whose_they_are_and_when_they_end(place: Place) -> None:
    held = await delegation.fetch(place.conf, place.ticket())
    [(_, port)] = conf.name_nodes(place.conf)
    [(_, manager_port)] = conf.resource_managers(place.conf)
    assert {alias: token.kind for alias, token in held.tokens.items()} == {
        f"127.0.0.1:{manager_port}": RM_DELEGATION_TOKEN,
        f"127.0.0.1:{port}": HDFS_DELEGATION_TOKEN,
        f"localhost:{port}": HDFS_DELEGATION_TOKEN,
    }
    for alias, token in held.tokens.items():
        assert token.service == alias
        told = delegation.identifier(token)
        assert (told.owner, told.renewer, told.real_user) == (f"alice@{REALM}", "yarn", "")
        assert told.ends - told.issued == 7 * DAY
        assert abs(told.issued - time.time()) < 60
        assert told.number > 0
        assert told.key > 0
    assert delegation.earliest_end(held)[0] == min(delegation.identifier(one).ends for one in held.tokens.values())


@pytest.mark.parametrize("word", PROTECTION)
@looped
async def test_a_token_opens_what_gave_it_without_a_ticket(place: Place, word: str) -> None:
    held = await delegation.fetch(place.conf, place.ticket())
    of_hdfs, of_yarn = delegation.token_for(held, place.conf), held.of_kind(RM_DELEGATION_TOKEN)
    assert (await metrics(place.conf, ByToken(of_yarn, (word,)))).num_active_nms == 2
    assert not await safe_mode(place.conf, ByToken(of_hdfs, (word,)))


@looped
async def test_others_read_the_same_file_of_tokens(place: Place) -> None:
    """Hadoop's own shell looks for ip:port, hdfs-native for host:port as the address is written."""
    file = await uploaded(place, b"written with a ticket\n")
    tokens = place.folder / "tokens"
    tokens.write_bytes((await delegation.fetch(place.conf, place.ticket())).write())
    environ = {"HADOOP_TOKEN_FILE_LOCATION": str(tokens)}
    java = await asyncio.to_thread(
        place.cluster.run, "org.apache.hadoop.fs.FsShell", "-cat", file, environ={**environ, "KRB5CCNAME": "FILE:/none"}
    )
    assert java.stdout == "written with a ticket\n", java.stderr
    read = f"import hdfs_native; print(hdfs_native.Client().read({file!r}).read(), end='')"
    native = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", read], env={**os.environ, **environ}, capture_output=True, text=True
    )
    assert native.stdout == str(b"written with a ticket\n"), native.stderr


@pytest.mark.parametrize("kind", [RM_DELEGATION_TOKEN, HDFS_DELEGATION_TOKEN])
@looped
async def test_a_token_is_renewed_by_its_renewer_and_ended_by_its_owner(place: Place, kind: str) -> None:
    alice, bob, renewer = place.ticket(), place.key("bob"), place.key("yarn")
    token = (await delegation.fetch(place.conf, alice)).of_kind(kind)
    assert token is not None
    use = metrics if kind == RM_DELEGATION_TOKEN else safe_mode
    until_when = await delegation.renew(place.conf, renewer, token)
    assert abs(until_when - time.time() - DAY) < 60
    with pytest.raises(RemoteError, match=r"alice tries to renew a token .* with non-matching renewer yarn"):
        await delegation.renew(place.conf, alice, token)
    with pytest.raises(RemoteError, match=r"bob@.* is not authorized to cancel the token"):
        await delegation.cancel(place.conf, bob, token)
    await use(place.conf, ByToken(token))
    await delegation.cancel(place.conf, alice, token)
    with pytest.raises(AuthenticationFailed, match=r"refuses us: .* can't be found in cache"):
        await use(place.conf, ByToken(token))
    with pytest.raises(RemoteError, match="Token not found"):
        await delegation.cancel(place.conf, alice, token)


@looped
async def test_tokens_are_given_only_to_a_login_by_kerberos(place: Place) -> None:
    held = await delegation.fetch(place.conf, place.ticket())
    for kind, stub in ((RM_DELEGATION_TOKEN, yarn.ResourceManager), (HDFS_DELEGATION_TOKEN, Namenode)):
        async with stub.of(place.conf, ByToken(held.of_kind(kind))) as server:
            with pytest.raises(RemoteError, match="Delegation Token can be issued only with kerberos"):
                await server.get_delegation_token(GetDelegationTokenRequestProto(renewer="yarn"))


# -- applications --


async def uploaded(place: Place, data: bytes) -> str:
    """A file in HDFS, written by alice with her ticket."""
    cache = place.ticket(name="upload").cache
    path = f"/user/alice/{place.folder.name}/data.txt"

    def write() -> None:
        client = hdfs_native.Client(kerberos_principal="alice", kerberos_cache=cache)
        client.mkdirs(os.path.dirname(path), 0o755, True)
        with client.create(path) as file:
            file.write(data)

    await asyncio.to_thread(write)
    return path


async def run_master(
    place: Place, auth: Kerberos, tokens: Credentials, file: str, words: Sequence[str] = PROTECTION
) -> y.ApplicationReportProto:
    """An application whose master is secure_master.py, at its end. `words`: the protections that it tries."""
    async with Namenode.of(place.conf, auth) as namenode:
        status = (await namenode.get_file_info(h.GetFileInfoRequestProto(src=file))).fs
    host, port = conf.name_nodes(place.conf)[0]
    resource = y.LocalResourceProto(
        resource=y.URLProto(scheme="hdfs", host=host, port=port, file=file),
        size=status.length, timestamp=status.modification_time, type=2, visibility=3,
    )  # fmt: skip
    script = TESTS / "programs/secure_master.py"
    command = f"{sys.executable} {script} {file} {status.length} {status.modification_time} {' '.join(words)}"
    spec = launched(place, f"{command} 1>'<LOG_DIR>/stdout' 2>'<LOG_DIR>/stderr'", tokens)
    spec.localResources.append(y.StringLocalResourceMapProto(key="data.txt", value=resource))
    async with yarn.ResourceManager.of(place.conf, auth) as manager:
        # one without a master of its own would not do: to a login by Kerberos the report does not give its token
        application = await submitted(manager, unmanaged_am=False, am_container_spec=spec)

        async def ended() -> y.ApplicationReportProto | None:
            found = await report(manager, application)
            return found if yarn.ApplicationState(found.yarn_application_state).ended else None

        found = await until_async(ended, 120.0, what="the application's end")
    assert found is not None
    return found


def launched(place: Place, command: str, tokens: Credentials) -> y.ContainerLaunchContextProto:
    environ = {
        "PYTHONPATH": str(TESTS),
        "HADOOP_CONF_DIR": place.cluster.environ["HADOOP_CONF_DIR"],
        "KRB5CCNAME": "FILE:/no/ticket",
    }
    return y.ContainerLaunchContextProto(
        tokens=tokens.write(),
        environment=[y.StringStringMapProto(key=key, value=value) for key, value in environ.items()],
        command=[command],
    )


async def refused(use: Callable[[Configuration, Auth], Awaitable[object]], here: Configuration, auth: Auth) -> str:
    """What is said to a login that is refused; nothing to one that is not."""
    try:
        await use(here, auth)
    except AuthenticationFailed as error:
        return error.message
    return ""


@looped
async def test_a_master_and_its_containers_live_on_tokens_alone(place: Place) -> None:
    file = await uploaded(place, b"a line out of HDFS\n")
    alice = place.ticket()
    held = await delegation.fetch(place.conf, alice)
    found = await run_master(place, alice, held, file)
    assert found.final_application_status == yarn.FinalStatus.SUCCEEDED, found.diagnostics
    assert json.loads(found.diagnostics) == [
        *(line for word in PROTECTION for line in (f"hdfs {word} 19", f"yarn {word} True")),
        "container 0",
    ]
    assert found.user == "alice"
    for use, kind in ((safe_mode, HDFS_DELEGATION_TOKEN), (metrics, RM_DELEGATION_TOKEN)):  # they end with it
        await until_async(functools.partial(refused, use, place.conf, ByToken(held.of_kind(kind))))


@looped
async def test_without_the_token_of_hdfs_nothing_is_fetched_for_a_container(place: Place) -> None:
    file = await uploaded(place, b"a line out of HDFS\n")
    alice = place.ticket()
    held = (await delegation.fetch(place.conf, alice)).without_kind(HDFS_DELEGATION_TOKEN)
    found = await run_master(place, alice, held, file)
    assert yarn.ApplicationState(found.yarn_application_state) == yarn.ApplicationState.FAILED
    assert "exitCode: -1000" in found.diagnostics
    assert "Client cannot authenticate via:[TOKEN, KERBEROS]" in found.diagnostics


# -- what goes wrong --


async def refusals(place: Place, auth: Auth, kind: type[HadoopError], says: str) -> None:
    """YARN and HDFS, or the way to them, refuse a login in these words."""
    for use in (metrics, safe_mode):
        with pytest.raises(HadoopError) as caught:
            await use(place.conf, auth)
        assert type(caught.value) is kind, caught.value
        assert says in caught.value.message
        assert "\n" not in caught.value.message


@looped
async def test_no_ticket(place: Place) -> None:
    says = f"no Kerberos ticket in FILE:{place.folder}/no-ticket; get one: kinit"
    await refusals(place, Kerberos(), kerberos_errors.NoTicket, says)


@looped
async def test_an_expired_ticket(place: Place) -> None:
    auth = place.ticket("alice", "-l", "2s")
    ends = (await asyncio.to_thread(gssapi.identity, auth)).expires
    await until_async(lambda: time.time() > ends + 1, what="the ticket to expire")
    await refusals(place, auth, kerberos_errors.TicketExpired, f"the Kerberos ticket of alice@{REALM} expired at 20")


@looped
async def test_a_ticket_of_the_future(place: Place) -> None:
    auth = place.ticket("alice", "-s", "3h")
    says = "(in 3 hours) on; get one that is: kinit alice"
    await refusals(place, auth, kerberos_errors.TicketNotYetValid, says)


@looped
async def test_a_clock_that_is_wrong(place: Place) -> None:
    """By what libkrb5 believes of the KDC's clock. Without tickets for the servers the KDC says so, with them the servers."""
    auth = place.ticket()
    cache = Path(auth.cache.removeprefix("FILE:"))
    skew(cache, 7200)
    await refusals(place, auth, kerberos_errors.ClockSkew, "set them by NTP")
    auth = place.ticket()
    place.ask_for(cache, "yarn/localhost", "hdfs/localhost")
    skew(cache, 7200)
    await refusals(place, auth, kerberos_errors.TicketRefused, "its clock and ours differ by more than 5 minutes")


@looped
async def test_a_server_whose_key_is_not_the_one_that_the_kdc_has(place: Place) -> None:
    place.kadmin("cpw -randkey yarn/localhost")
    try:
        with pytest.raises(kerberos_errors.TicketRefused, match="refuses us: GSS initiate failed: it cannot read our"):
            await metrics(place.conf, place.ticket())
    finally:  # its JVM looks at the keytab again when a key does not fit
        place.kadmin(f"ktadd -k {place.cluster.keytab('yarn')} yarn/localhost")
    assert (await metrics(place.conf, place.ticket())).num_active_nms == 2


@looped
async def test_a_server_that_is_not_the_configured_one(place: Place) -> None:
    other = attrs.evolve(place.conf, properties={**place.conf.properties})
    key = "yarn.resourcemanager.principal"
    other.properties[key] = attrs.evolve(place.conf.properties[key], value=f"elsewhere/_HOST@{REALM}")  # type: ignore[index]
    with pytest.raises(kerberos_errors.UnknownServer) as caught:
        await metrics(other, place.ticket())
    assert caught.value.message.startswith(
        f"the server calls itself yarn/localhost, but the configuration wants elsewhere/localhost@{REALM}"
    )


@looped
async def test_who_comes_without_kerberos_or_asks_for_too_little(place: Place) -> None:
    await refusals(place, Simple("alice"), AuthenticationFailed, "SIMPLE authentication is not enabled")
    alien = ByToken(Token(b"\0\5alice\4yarn\0\1\1\1\1", b"x" * 20, HDFS_DELEGATION_TOKEN))
    with pytest.raises(AuthenticationFailed, match="refuses us"):
        await safe_mode(place.conf, alien)


@looped
async def test_a_kdc_that_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = place.ticket()
    was = (place.cluster.folder / "kerberos/krb5.conf").read_text()
    moved = place.folder / "krb5.conf"
    moved.write_text("\n".join("kdc = localhost:1" if "kdc =" in line else line for line in was.splitlines()))
    monkeypatch.setenv("KRB5_CONFIG", str(moved))
    await refusals(place, auth, errors.KdcUnreachable, "no Kerberos KDC answers (Cannot contact any KDC")


# -- clusters that offer one protection, and short lives --


async def offers_alone(place: Place, word: str) -> None:
    """All that an application needs, with the one protection that there is; others are refused."""
    alice = place.ticket()
    assert (await metrics(place.conf, alice)).num_active_nms == 1
    wanted = tuple(other for other in PROTECTION if other != word)
    says = f"offers protection {word}, we take "
    await refusals(place, attrs.evolve(alice, protection=wanted), WeakProtection, says)
    file = await uploaded(place, b"a line out of HDFS\n")
    found = await run_master(place, alice, await delegation.fetch(place.conf, alice), file, [word])
    assert found.final_application_status == yarn.FinalStatus.SUCCEEDED, found.diagnostics
    assert json.loads(found.diagnostics) == [f"hdfs {word} 19", f"yarn {word} True", "container 0"]


@pytest.mark.soak
@pytest.mark.full
@looped
async def test_a_cluster_that_offers_integrity_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_hadoop(Settings(nodes=1, kerberos="integrity")) as cluster:
        await offers_alone(entered(cluster, tmp_path, monkeypatch), "integrity")


@pytest.mark.soak
@pytest.mark.full
@looped
async def test_tokens_are_renewed_while_their_application_runs_and_end_at_their_maximum_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(nodes=1, kerberos="authentication", token_renewal=20.0, token_life=60.0, master_expiry=600.0)
    with own_hadoop(settings) as cluster:
        place = entered(cluster, tmp_path, monkeypatch)
        await offers_alone(place, "authentication")
        alice = place.ticket("alice", "-l", "30s")  # the application outlives it
        held, left = await delegation.fetch(place.conf, alice), await delegation.fetch(place.conf, alice)
        token, other = [ByToken(delegation.token_for(one, place.conf)) for one in (held, left)]
        told = delegation.identifier(token.token)
        assert told.ends - told.issued == 60
        async with yarn.ResourceManager.of(place.conf, alice) as manager:
            spec = launched(place, "exec sleep 600", held)
            application = await submitted(manager, unmanaged_am=False, am_container_spec=spec)
            for login, begin, end in ((other, 18, 45), (token, 58, 90)):
                while not (says := await refused(safe_mode, place.conf, login)):
                    await until_async(functools.partial(later, time.time() + 0.5))
                    assert time.time() < told.issued + end
                assert begin < time.time() - told.issued < end, "renewed by the ResourceManager, as long as it may be"
                assert "has expired" in says or "can't be found" in says
            await killed(manager, application)
        fresh = await delegation.fetch(place.conf, place.ticket())
        assert not await safe_mode(place.conf, ByToken(delegation.token_for(fresh, place.conf)))


def later(moment: float) -> bool:
    return time.time() > moment
