"""The delegation tokens of a secure cluster as a job uses them: until when they are good, and newer ones in their place.

A job begins with tokens that its submitter's ticket fetched. The ResourceManager renews these, and no others, to their maximum lifetime
(7 days by default). Before that is over somebody with a ticket brings newer ones: the attached client, `tm renew`, or the master itself
by a keytab. They are *fetched* in the name of the job's owner, who renews them once, which tells until when they are good (a day by
default), for nobody else will renew them. So the next ones are due when a quarter of that is left.

They go to the master over its TLS connection, and from it over the agents' channels. Each keeps them in a file of its own, which it names
in HADOOP_TOKEN_FILE_LOCATION before anything has read that: hdfs-native looks into it for each connection that it makes, so nothing
need be opened anew. hdfs-native leaves out what ends within a minute (`user.rs`, get_token); such a token has ended for us, too.

Tokens never go back: of two sets that is taken which is good for longer. A master that follows another one has those of the submission
again; what was brought since the agents hand back.
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
MARGIN = 60.0  # s before its end in which hdfs-native does not use a token any more
DUE = 0.25  # of a set's time: when no more of it is left, newer ones are due
AGAIN_FIRST, AGAIN_LAST = 2.0, 600.0  # s until it is tried again to fetch them; a tenth of the time left, within these

log = logging.getLogger(__name__)


@attrs.frozen
class Tokens:
    """Delegation tokens, and from when until when all of them are good (seconds since the epoch). `owner`: whose they are."""

    credentials: Credentials
    owner: str
    since: float
    until: float

    @property
    def due(self) -> float:
        """When newer ones are to be fetched."""
        return self.until - DUE * (self.until - self.since)

    @property
    def times(self) -> dict[str, Any]:
        """What is no secret of them."""
        return {"owner": self.owner, "since": self.since, "until": self.until}

    def to_json(self) -> dict[str, Any]:
        return {"tokens": base64.b64encode(self.credentials.write()).decode(), **self.times}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Tokens:
        """Raises ValueError for what is none."""
        try:
            credentials = Credentials.read(base64.b64decode(told["tokens"], validate=True))
            return cls(delegated(credentials), str(told["owner"]), float(told["since"]), float(told["until"]))
        except (KeyError, TypeError, binascii.Error, Garbled) as error:
            raise ValueError(f"these are no tokens: {error}") from error


def places(job: Job) -> list[str]:
    """The addresses on HDFS that a job names; "" is the default file system."""
    named = [given.url for given in job.inputs.values()] + [made.url for made in job.outputs.values()]
    named += [*job.cache, *job.archives, job.environment.archive, job.storage]
    named += [job.checkpoint.url] if job.checkpoint is not None else []
    return ["", *(url for url in named if url.startswith("hdfs://"))]


def delegated(credentials: Credentials) -> Credentials:
    """The delegation tokens alone."""
    return Credentials({alias: token for alias, token in credentials.tokens.items() if token.kind in KINDS})


def submitted(credentials: Credentials) -> Tokens | None:
    """Those of a submission, which are renewed as far as they can be; None on a cluster without."""
    return _made(credentials)


async def fetched(conf: Configuration, auth: Kerberos, urls: Sequence[str]) -> Tokens:
    """New ones, for YARN and the HDFS of these addresses. Raises HadoopError."""
    from trainmaster.hadoop.security.delegation import fetch, lasting, withdraw
    from trainmaster.hadoop.security.gssapi import identity

    owner = await asyncio.to_thread(lambda: identity(auth).short)
    credentials = await fetch(conf, auth, urls=urls, renewed_by=owner)
    try:
        tokens = _made(credentials, await lasting(conf, auth, credentials))
    except BaseException:
        await withdraw(conf, auth, credentials)
        raise
    if tokens is None:
        raise Garbled("the cluster gives no tokens")
    return tokens


def _made(credentials: Credentials, until: float | None = None) -> Tokens | None:
    from trainmaster.hadoop.security.delegation import identifier

    tokens = delegated(credentials)
    known = {alias: identifier(token) for alias, token in tokens.tokens.items()}
    if not known:
        return None
    ends = [
        one.ends - (MARGIN if tokens.tokens[alias].kind == HDFS_DELEGATION_TOKEN else 0) for alias, one in known.items()
    ]
    owner = min(one.owner for one in known.values()).partition("@")[0].partition("/")[0]
    return Tokens(
        tokens, owner, min(one.issued for one in known.values()), min([*ends, *([] if until is None else [until])])
    )


class TokenFiles:
    """The present tokens of this process, in its file, and HDFS's alone in one for programs."""

    def __init__(self, tokens: Tokens, folder: str, programs: bool = False) -> None:
        """`folder` is ours alone. The file's name is put into our environment: to be called before there are threads."""
        self.tokens, self.newer = tokens, False  # whether they are others than those that we began with
        self.path = os.path.join(folder, "tokens")
        self.of_programs = os.path.join(folder, "hdfs.tokens") if programs else ""
        self._write(tokens.credentials)
        os.environ["HADOOP_TOKEN_FILE_LOCATION"] = self.path

    def take(self, tokens: Tokens) -> bool:
        """Have these in their place, where they are good for longer; whether they are. Raises ValueError for somebody else's, and OSError
        where they cannot be written: they may come again then."""
        if tokens.owner != self.tokens.owner:
            raise ValueError(f"the tokens are {tokens.owner}'s, and the job is {self.tokens.owner}'s")
        if tokens.until <= self.tokens.until:
            return False
        credentials = self.tokens.credentials.merged(tokens.credentials)  # agents have none of YARN to hand back
        self._write(credentials)
        self.tokens, self.newer = attrs.evolve(tokens, credentials=credentials), True
        return True

    def _write(self, credentials: Credentials) -> None:
        _replaced(self.path, credentials)
        if self.of_programs:
            _replaced(self.of_programs, credentials.without_kind(RM_DELEGATION_TOKEN))


class AgentTokens(TokenFiles):
    """Those of an agent, as it hears of them."""

    def heard(self, told: Mapping[str, Any]) -> None:
        """Newer ones, of the master."""
        try:
            if self.take(Tokens.from_json(told)):
                log.info("there are newer tokens, good until %s", moment(self.tokens.until))
        except (ValueError, OSError) as error:
            log.warning("tokens are not taken: %s", error)

    def told(self) -> dict[str, Any] | None:
        """For a master that may not have them: what was brought since we began."""
        return self.tokens.to_json() if self.newer else None


class MasterTokens(TokenFiles):
    """Those of a master, which takes what is brought to it, or fetches newer ones by a keytab in good time."""

    def __init__(self, tokens: Tokens, folder: str, fetch: Callable[[], Any] | None = None) -> None:
        """`fetch()` gives newer Tokens, or raises HadoopError; None where there is no keytab."""
        super().__init__(tokens, folder)
        self._fetch = fetch
        self.heed: list[Callable[[], None]] = []  # called when there are newer ones
        self.trouble = ""  # why there are none, though they are due

    def bring(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Take these; what the job has now. Raises ValueError."""
        if self.take(Tokens.from_json(told)):
            self._changed("brought")
        return self.status()

    def told(self) -> dict[str, Any] | None:
        """For an agent that comes: what was brought since we began."""
        return self.tokens.to_json() if self.newer else None

    def status(self) -> dict[str, Any]:
        """For people and clients."""
        told = {**self.tokens.times, "due": self.tokens.due, "keytab": self._fetch is not None}
        return told | ({"trouble": self.trouble} if self.trouble else {})

    def begin(self) -> None:
        """Have newer ones at once where they are due: a master that follows another has those of the submission. Before any loop."""
        if self._fetch is not None and time.time() > self.tokens.due:
            asyncio.run(self.renew())

    async def keep(self) -> None:
        """Fetch newer ones whenever they are due, until cancelled."""
        while self._fetch is not None:
            await asyncio.sleep(max(0.0, self.tokens.due - time.time()))
            if not await self.renew():
                await asyncio.sleep(again(self.tokens.until - time.time()))

    async def renew(self) -> bool:
        """Fetch newer ones now, where there is a keytab; whether we have any."""
        assert self._fetch is not None
        try:
            newer = self.take(await self._fetch())
        except (HadoopError, ValueError, OSError) as error:
            self.trouble = f"no newer tokens can be had by the keytab: {error}"
            log.warning("%s; those that there are end at %s", self.trouble, moment(self.tokens.until))
            return False
        if newer:
            self._changed("fetched by the keytab")
        return newer

    def _changed(self, how: str) -> None:
        self.trouble = ""
        log.info("newer tokens were %s, good until %s", how, moment(self.tokens.until))
        for heed in self.heed:
            heed()


def keytab_login(content: str, kerberos: Keytab) -> Kerberos:
    """A login by a keytab's content, in base64. It is in our memory alone: libkrb5 reads it by our descriptor's name."""
    descriptor = os.memfd_create("keytab", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(base64.b64decode(content))
    return Kerberos(kerberos.principal, keytab=f"/proc/{os.getpid()}/fd/{descriptor}")


def again(left: float) -> float:
    """Seconds until it is tried again, of those that are left."""
    return min(AGAIN_LAST, max(AGAIN_FIRST, left / 10))


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _replaced(path: str, credentials: Credentials) -> None:
    """The file is the owner's alone, and whoever reads it reads one set or the other."""
    draft = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(credentials.write())
    os.replace(draft, path)
