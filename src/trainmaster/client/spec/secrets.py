"""Secrets of a job: which of its variables must not be read by others, and their values at submit.

A secret is a name without a value in `env`, an entry of `secrets`, a variable whose name says so, one whose value is a URL with a password,
or one whose value holds that of another. Its value leaves the job before the job is written anywhere, and travels to the programs apart
from it: on this machine from process to process, through memory and pipes alone. What a role's `env` names is that role's alone, an entry
of `secrets` every role's; a role's own value goes before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job, Role, Secret
from trainmaster.core.spec.redaction import ALL_ROLES, SHORTEST, is_secret
from trainmaster.engines.packed import prefixes

Values = dict[str, dict[str, str]]  # role, or ALL_ROLES -> name -> value; roles without any are left out


def separated(job: Job, environ: Mapping[str, str], folder: Path) -> tuple[Job, Values]:
    """The job without secret values, and these. Raises BadInput where one cannot be found.

    `environ` is the submitter's; a secret's file is looked up from `folder`.
    """
    shared = {name: _value(name, secret, environ, folder) for name, secret in job.secrets.items()}
    values, roles = {ALL_ROLES: shared}, {}
    for role in job.roles.values():
        values[role.name] = {
            name: _taken(role, name, value, environ, shared)
            for name, value in role.env.items()
            if value is None or is_secret(name, value)
        }
    covered = [value for found in values.values() for value in found.values() if len(value) >= SHORTEST]
    for role in job.roles.values():
        own = values[role.name]
        own |= {name: value for name, value in role.env.items() if value and any(one in value for one in covered)}
        roles[role.name] = attrs.evolve(
            role, env={name: None if name in own else value for name, value in role.env.items()}
        )
    return attrs.evolve(job, roles=roles), {role: found for role, found in values.items() if found}


def names(values: Values) -> list[str]:
    """The names of all of them, each once."""
    return sorted({name for found in values.values() for name in found})


def of_stores(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """What of the submitter's environment opens the object stores that the job names. On a cluster its master and agents have it, of
    programs those that read an input there themselves, as shards.
    """
    urls = [given.url for given in job.inputs.values()] + [made.url for made in job.outputs.values()]
    urls += [*job.cache, *job.archives, job.storage, job.checkpoint.url if job.checkpoint is not None else ""]
    wanted = tuple(prefixes(urls))
    return {name: value for name, value in environ.items() if name.startswith(wanted)}


def _taken(role: Role, name: str, value: str | None, environ: Mapping[str, str], known: Mapping[str, str]) -> str:
    if value is not None:
        return value
    if name in known:
        return known[name]
    if name not in environ:
        raise _unset(name, name, f"roles.{role.name}.env.{name}")
    return environ[name]


def _value(name: str, secret: Secret, environ: Mapping[str, str], folder: Path) -> str:
    place = f"secrets.{name}"
    if not secret.file:
        wanted = secret.env or name
        if wanted not in environ:
            raise _unset(name, wanted, place)
        return environ[wanted]
    try:
        return (folder / os.path.expanduser(secret.file)).read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"the secret {name} could not be read: {getattr(error, 'strerror', None) or 'it is not text'}",
            place=f"{place}.file: {secret.file}",
            mend="check the path and its permissions",
            anchor="secret",
        ) from error


def _unset(name: str, variable: str, place: str) -> BadInput:
    return BadInput(
        f"the variable {variable} is not set, and {name} takes its value from it",
        place=place,
        mend=f"export {variable}=..., or give {name} a value",
        anchor="unset-variable",
    )
