"""The delegation tokens of a secure cluster as a job uses them: until when they are good, and how newer ones replace them.

A job begins with tokens that its submitter's ticket fetched. The ResourceManager renews these, and no others, to their maximum lifetime
(7 days by default). Before that is over somebody with a ticket brings newer tokens: the attached client, `tm renew`, or the master itself
by a keytab. Newer tokens are fetched in the name of the job's owner, and nobody renews them later. The owner renews them once, and so
learns until when they are good (a day by default). The next ones are due when a quarter of that time is left.

Newer tokens go to the master over its TLS connection, and from the master over the agents' channels. Each process keeps them in a file of
its own, which it names in HADOOP_TOKEN_FILE_LOCATION before anything reads that variable: hdfs-native looks into the file for each
connection that it makes, so nothing need be opened anew. hdfs-native leaves out a token that ends within a minute (`user.rs`, get_token);
such a token counts as ended for us, too.

Tokens never go back: of two sets we take the one that is good for longer. A master that follows another one starts with the tokens of the
submission again; its agents hand back the newer ones.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.spec.job import Job
from trainmaster.engines.yarn.settings import Keytab
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.errors import Garbled, HadoopError
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN, Credentials

KINDS = (HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN)
MARGIN = 60.0  # seconds before a token's end in which hdfs-native no longer uses it
DUE = 0.25  # the part of a set's time; when no more than that is left, newer tokens are due
AGAIN_FIRST, AGAIN_LAST = 2.0, 600.0  # seconds until the next try to fetch: a tenth of the time left, within these

log = logging.getLogger(__name__)


@attrs.frozen
class Tokens:
    """Delegation tokens, their owner, and the time in which all of them are good (seconds since the epoch)."""

    credentials: Credentials
    owner: str
    since: float
    until: float

    @property
    def due(self) -> float:
        """Return when newer tokens are to be fetched."""
        return self.until - DUE * (self.until - self.since)

    @property
    def times(self) -> dict[str, Any]:
        """Return the owner and the times, which are not secret."""
        return {"owner": self.owner, "since": self.since, "until": self.until}

    def to_json(self) -> dict[str, Any]:
        return {"tokens": base64.b64encode(self.credentials.write()).decode(), **self.times}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Tokens:
        """Return the tokens of a JSON object. Raises ValueError for any other object."""
        try:
            credentials = Credentials.read(base64.b64decode(fields["tokens"], validate=True))
            return cls(
                delegation_tokens(credentials), str(fields["owner"]), float(fields["since"]), float(fields["until"])
            )
        except (KeyError, TypeError, binascii.Error, Garbled) as error:
            raise ValueError(f"these are not tokens: {error}") from error


def hdfs_urls(job: Job) -> list[str]:
    """Return the addresses on HDFS that a job names; "" is the default file system."""
    urls = [url for source in job.inputs.values() for url in source.urls] + [
        target.url for target in job.outputs.values()
    ]
    urls += [*job.cache, *job.archives, job.environment.archive, job.storage]
    urls += [job.checkpoint.url] if job.checkpoint is not None else []
    return ["", *(url for url in urls if url.startswith("hdfs://"))]


def delegation_tokens(credentials: Credentials) -> Credentials:
    """Return the delegation tokens alone."""
    return Credentials({alias: token for alias, token in credentials.tokens.items() if token.kind in KINDS})


def submitted_tokens(credentials: Credentials) -> Tokens | None:
    """Return the tokens of a submission, which the ResourceManager renews as far as it can; None on a cluster without tokens."""
    return _tokens_of(credentials)


async def fetch_tokens(conf: Configuration, auth: Kerberos, urls: Sequence[str]) -> Tokens:
    """Fetch new tokens, for YARN and for the HDFS of these addresses. Raises HadoopError."""
    from trainmaster.hadoop.security.delegation import fetch, lasting, withdraw
    from trainmaster.hadoop.security.gssapi import identity

    owner = await asyncio.to_thread(lambda: identity(auth).short)
    credentials = await fetch(conf, auth, urls=urls, renewed_by=owner)
    try:
        tokens = _tokens_of(credentials, await lasting(conf, auth, credentials))
    except BaseException:
        await withdraw(conf, auth, credentials)
        raise
    if tokens is None:
        raise Garbled("the cluster gives no tokens")
    return tokens


def _tokens_of(credentials: Credentials, until: float | None = None) -> Tokens | None:
    from trainmaster.hadoop.security.delegation import identifier

    tokens = delegation_tokens(credentials)
    identifiers = {alias: identifier(token) for alias, token in tokens.tokens.items()}
    if not identifiers:
        return None
    ends = [
        facts.ends - (MARGIN if tokens.tokens[alias].kind == HDFS_DELEGATION_TOKEN else 0)
        for alias, facts in identifiers.items()
    ]
    owner = min(facts.owner for facts in identifiers.values()).partition("@")[0].partition("/")[0]
    return Tokens(
        tokens,
        owner,
        min(facts.issued for facts in identifiers.values()),
        min([*ends, *([] if until is None else [until])]),
    )


class TokenFiles:
    """The file with the present tokens of this process, and a file with HDFS's tokens alone for programs."""

    def __init__(self, tokens: Tokens, folder: str, programs: bool = False) -> None:
        """Write the tokens into `folder`, which is ours alone, and name the file in our environment: call this before there are threads."""
        self.tokens, self.newer = tokens, False  # newer: others than the tokens that we began with
        self.path = os.path.join(folder, "tokens")
        self.of_programs = os.path.join(folder, "hdfs.tokens") if programs else ""
        self._write(tokens.credentials)
        os.environ["HADOOP_TOKEN_FILE_LOCATION"] = self.path

    def take(self, tokens: Tokens) -> bool:
        """Replace our tokens by these if these are good for longer. Return whether they were replaced. Raises ValueError for somebody
        else's tokens, and OSError where the file cannot be written: the same tokens may come again then.
        """
        if tokens.owner != self.tokens.owner:
            raise ValueError(f"the tokens are {tokens.owner}'s, and the job is {self.tokens.owner}'s")
        if tokens.until <= self.tokens.until:
            return False
        # Tokens that agents hand back hold none of YARN.
        credentials = self.tokens.credentials.merged(tokens.credentials)
        self._write(credentials)
        self.tokens, self.newer = attrs.evolve(tokens, credentials=credentials), True
        return True

    def _write(self, credentials: Credentials) -> None:
        _replace_file(self.path, credentials)
        if self.of_programs:
            _replace_file(self.of_programs, credentials.without_kind(RM_DELEGATION_TOKEN))


class AgentTokens(TokenFiles):
    """The tokens of an agent, which its master sends."""

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take newer tokens from the master."""
        try:
            if self.take(Tokens.from_json(message)):
                log.info("there are newer tokens, good until %s", format_moment(self.tokens.until))
        except (ValueError, OSError) as error:
            log.warning("tokens are not taken: %s", error)

    def unshared(self) -> dict[str, Any] | None:
        """Return the tokens that came since we began, for a master that may not have them."""
        return self.tokens.to_json() if self.newer else None


class MasterTokens(TokenFiles):
    """The tokens of a master, which takes newer ones from clients and agents, or fetches them by a keytab in good time."""

    def __init__(self, tokens: Tokens, folder: str, fetch: Callable[[], Any] | None = None) -> None:
        """`fetch()` gives newer Tokens, or raises HadoopError; None where there is no keytab."""
        super().__init__(tokens, folder)
        self._fetch = fetch
        self.listeners: list[Callable[[], None]] = []  # called when there are newer tokens
        self.trouble = ""  # why there are no newer tokens, though they are due

    def accept(self, newer: Mapping[str, Any]) -> dict[str, Any]:
        """Take these tokens if they are newer. Return the status of the job's tokens now. Raises ValueError."""
        if self.take(Tokens.from_json(newer)):
            self._changed("brought")
        return self.status()

    def unshared(self) -> dict[str, Any] | None:
        """Return the tokens that came since we began, for an agent that connects."""
        return self.tokens.to_json() if self.newer else None

    def status(self) -> dict[str, Any]:
        """Return the state of the tokens for people and clients, without secrets."""
        status = {**self.tokens.times, "due": self.tokens.due, "keytab": self._fetch is not None}
        return status | ({"trouble": self.trouble} if self.trouble else {})

    def begin(self) -> None:
        """Fetch newer tokens at once where they are due: a master that follows another has those of the submission. Call this before there
        is a loop.
        """
        if self._fetch is not None and time.time() > self.tokens.due:
            asyncio.run(self.renew())

    async def keep(self) -> None:
        """Fetch newer tokens whenever they are due, until cancelled."""
        while self._fetch is not None:
            await asyncio.sleep(max(0.0, self.tokens.due - time.time()))
            if not await self.renew():
                await asyncio.sleep(retry_pause(self.tokens.until - time.time()))

    async def renew(self) -> bool:
        """Fetch newer tokens now, by the keytab. Return whether we have any."""
        assert self._fetch is not None
        try:
            newer = self.take(await self._fetch())
        except (HadoopError, ValueError, OSError) as error:
            self.trouble = f"no newer tokens can be had by the keytab: {error}"
            log.warning("%s; those that there are end at %s", self.trouble, format_moment(self.tokens.until))
            return False
        if newer:
            self._changed("fetched by the keytab")
        return newer

    def _changed(self, how: str) -> None:
        self.trouble = ""
        log.info("newer tokens were %s, good until %s", how, format_moment(self.tokens.until))
        for listener in self.listeners:
            listener()


def keytab_login(content: str, kerberos: Keytab) -> Kerberos:
    """Return a login by a keytab's content, in base64. The content is in our memory alone: libkrb5 reads it by our descriptor's name."""
    descriptor = os.memfd_create("keytab", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(base64.b64decode(content))
    return Kerberos(kerberos.principal, keytab=f"/proc/{os.getpid()}/fd/{descriptor}")


def retry_pause(seconds_left: float) -> float:
    """Return the seconds until the next try, when the present tokens have `seconds_left`."""
    return min(AGAIN_LAST, max(AGAIN_FIRST, seconds_left / 10))


def format_moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _replace_file(path: str, credentials: Credentials) -> None:
    """Write the tokens to a file that only its owner reads. Every reader gets either the old set or the new one, whole."""
    draft = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(credentials.write())
    os.replace(draft, path)
