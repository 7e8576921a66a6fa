"""How long a job can last on a secure cluster: said before it is submitted, as far as it is known.

Its tokens end (see tokens.py). A job that names a keytab lasts, if the keytab is good; one whose `timeouts.job` is within the tokens'
time does not need to. One that may last longer, with nothing that would bring newer tokens, is refused. Of one that says nothing of its
length only its user knows; that user is told when the tokens end.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.quantities import format_seconds
from trainmaster.engines.yarn.settings import PLACE, Keytab, Settings
from trainmaster.engines.yarn.tokens import places, submitted
from trainmaster.hadoop.conf import Configuration, is_secure, rpc_protection
from trainmaster.hadoop.errors import AuthenticationFailed
from trainmaster.hadoop.security.auth import Kerberos


async def check(conf: Configuration, job: Job, said: Settings, user: str) -> None:
    """BadInput where a job outlives its tokens and nothing brings newer ones, or where its keytab is of no use. Raises HadoopError."""
    if not is_secure(conf):
        if said.kerberos is not None:
            told = "the cluster is not secure: there is nothing to log in to"
            raise BadInput(told, place=f"{PLACE}.kerberos", mend="leave it out", anchor="tokens")
    elif said.kerberos is not None:
        _check_protection(conf, said.kerberos)
        await asyncio.to_thread(_check_keytab, said.kerberos, user)
    elif job.timeouts.job is not None:
        left = await _lifetime(conf, job)
        if left < job.timeouts.job:
            longest, asked = format_seconds(max(0, round(left))), format_seconds(job.timeouts.job)
            raise BadInput(
                f"the job may last {asked}, and would fail after {longest}, when its tokens end", place=f"timeouts.job: {asked}",
                mend=f"give {PLACE}.kerberos: {{principal, keytab}}, by which its master gets newer ones; or lower it, or leave it out and "
                "bring newer ones by tm attach or tm renew", anchor="tokens",
            )  # fmt: skip


def keytab_of(said: Settings) -> dict[str, str]:
    """The keytab's content, for the master alone: it is a secret."""
    if said.kerberos is None:
        return {}
    return {"keytab": base64.b64encode(Path(said.kerberos.keytab).read_bytes()).decode()}


async def _lifetime(conf: Configuration, job: Job) -> float:
    """Seconds that tokens given now could be used. They are asked for, and given back."""
    from trainmaster.hadoop.security.delegation import fetch, withdraw

    credentials = await fetch(conf, Kerberos(), urls=places(job))
    await withdraw(conf, Kerberos(), credentials)
    held = submitted(credentials)
    return math.inf if held is None else held.until - time.time()


def _check_protection(conf: Configuration, login: Keytab) -> None:
    """BadInput where a keytab could be read on its way: it goes to the ResourceManager, and from there to the master's node."""
    key = "hadoop.rpc.protection"
    if set(rpc_protection(conf)) != {"privacy"}:
        raise BadInput(
            f"the keytab would cross the network unencrypted: {key} is {conf.get(key)} ({conf.place(key)})",
            place=f"{PLACE}.kerberos.keytab: {login.keytab}",
            mend=f"have the cluster's administrator set {key} to privacy, and set it here; or leave {PLACE}.kerberos out and bring newer "
            "tokens by tm attach or tm renew", anchor="rpc-protection",
        )  # fmt: skip


def _check_keytab(given: Keytab, user: str) -> None:
    """BadInput where no login is to be had by a keytab, or somebody else's."""
    from trainmaster.hadoop.security.gssapi import identity

    place = f"{PLACE}.kerberos: {{principal: {given.principal}, keytab: {given.keytab}}}"
    try:
        whose = identity(Kerberos(given.principal, keytab=given.keytab)).short
    except AuthenticationFailed as error:
        mend = f"name one that holds the principal's present key: klist -k {given.keytab}"
        raise BadInput(error.message, place=place, mend=mend, anchor="ticket") from error
    if whose != user:
        mend = f"give one of {user}'s, or submit as {whose}: kinit -kt {given.keytab} {given.principal}"
        raise BadInput(f"the keytab is {whose}'s, and the job is {user}'s", place=place, mend=mend, anchor="ticket")
