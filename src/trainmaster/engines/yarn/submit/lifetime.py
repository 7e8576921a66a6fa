"""How long a job can last on a secure cluster: checked before the job is submitted, as far as it is known.

A job's tokens end (see tokens.py). A job that names a keytab lasts, if the keytab is good. A job whose `timeouts.job` is within the tokens'
time needs no keytab. A job that may last longer, with nothing that would bring newer tokens, is refused. If a job has no `timeouts.job`,
only its user knows its length; a warning says when the tokens end.
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
from trainmaster.engines.yarn.tokens import hdfs_urls, submitted_tokens
from trainmaster.hadoop.conf import Configuration, is_secure, rpc_protection
from trainmaster.hadoop.errors import AuthenticationFailed
from trainmaster.hadoop.security.auth import Kerberos


async def check(conf: Configuration, job: Job, options: Settings, user: str) -> None:
    """Raise BadInput where a job outlives its tokens and nothing brings newer ones, or where its keytab is useless. Raises HadoopError."""
    if not is_secure(conf):
        if options.kerberos is not None:
            message = "the cluster is not secure: there is nothing to log in to"
            raise BadInput(message, place=f"{PLACE}.kerberos", mend="leave it out", anchor="tokens")
    elif options.kerberos is not None:
        _check_protection(conf, options.kerberos)
        await asyncio.to_thread(_check_keytab, options.kerberos, user)
    elif job.timeouts.job is not None:
        lifetime = await _lifetime(conf, job)
        if lifetime < job.timeouts.job:
            longest, timeout = format_seconds(max(0, round(lifetime))), format_seconds(job.timeouts.job)
            raise BadInput(
                f"the job may last {timeout}, and would fail after {longest}, when its tokens end", place=f"timeouts.job: {timeout}",
                mend=f"give {PLACE}.kerberos: {{principal, keytab}}, by which its master gets newer ones; or lower it, or leave it out and "
                "bring newer ones by tm attach or tm renew", anchor="tokens",
            )  # fmt: skip


def keytab_of(options: Settings) -> dict[str, str]:
    """Return the keytab's content, a secret that only the master gets; nothing where the job names no keytab."""
    if options.kerberos is None:
        return {}
    return {"keytab": base64.b64encode(Path(options.kerberos.keytab).read_bytes()).decode()}


async def _lifetime(conf: Configuration, job: Job) -> float:
    """Return the seconds for which tokens could be used that are given now. The tokens are fetched, and cancelled again."""
    from trainmaster.hadoop.security.delegation import fetch, withdraw

    credentials = await fetch(conf, Kerberos(), urls=hdfs_urls(job))
    await withdraw(conf, Kerberos(), credentials)
    tokens = submitted_tokens(credentials)
    return math.inf if tokens is None else tokens.until - time.time()


def _check_protection(conf: Configuration, login: Keytab) -> None:
    """Raise BadInput where a keytab could be read on its way: it goes to the ResourceManager, and from there to the master's node."""
    key = "hadoop.rpc.protection"
    if set(rpc_protection(conf)) != {"privacy"}:
        raise BadInput(
            f"the keytab would cross the network unencrypted: {key} is {conf.get(key)} ({conf.place(key)})",
            place=f"{PLACE}.kerberos.keytab: {login.keytab}",
            mend=f"have the cluster's administrator set {key} to privacy, and set it here; or leave {PLACE}.kerberos out and bring newer "
            "tokens by tm attach or tm renew", anchor="rpc-protection",
        )  # fmt: skip


def _check_keytab(login: Keytab, user: str) -> None:
    """Raise BadInput where the keytab gives no login, or somebody else's."""
    from trainmaster.hadoop.security.gssapi import identity

    place = f"{PLACE}.kerberos: {{principal: {login.principal}, keytab: {login.keytab}}}"
    try:
        owner = identity(Kerberos(login.principal, keytab=login.keytab)).short
    except AuthenticationFailed as error:
        mend = f"name one that holds the principal's present key: klist -k {login.keytab}"
        raise BadInput(error.message, place=place, mend=mend, anchor="ticket") from error
    if owner != user:
        mend = f"give one of {user}'s, or submit as {owner}: kinit -kt {login.keytab} {login.principal}"
        raise BadInput(f"the keytab is {owner}'s, and the job is {user}'s", place=place, mend=mend, anchor="ticket")
