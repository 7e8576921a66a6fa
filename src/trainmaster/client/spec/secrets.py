"""Secrets of a job: which of its variables must not be read by others, and their values at submit.

A secret is a name without a value in `env`, an entry of `secrets`, or a variable whose name says so. A variable whose value is a URL with a
password, or holds the value of another secret, is one too. The value leaves the job before the job is written anywhere, and travels to the
programs apart from it: on this machine from process to process, through memory and pipes alone. A name in a role's `env` is that role's
alone, an entry of `secrets` is every role's; a role's own value goes before.
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
    """Return the job without secret values, and the secret values. Raises BadInput where one cannot be found.

    `environ` is the submitter's; a secret's file is looked up from `folder`.
    """
    shared = {name: _value(name, secret, environ, folder) for name, secret in job.secrets.items()}
    values, roles = {ALL_ROLES: shared}, {}
    for role in job.roles.values():
        values[role.name] = {
            name: _role_value(role, name, value, environ, shared)
            for name, value in role.env.items()
            if value is None or is_secret(name, value)
        }
    hidden = [value for role_values in values.values() for value in role_values.values() if len(value) >= SHORTEST]
    for role in job.roles.values():
        own = values[role.name]
        own |= {name: value for name, value in role.env.items() if value and any(secret in value for secret in hidden)}
        roles[role.name] = attrs.evolve(
            role, env={name: None if name in own else value for name, value in role.env.items()}
        )
    return attrs.evolve(job, roles=roles), {role: role_values for role, role_values in values.items() if role_values}


def names(values: Values) -> list[str]:
    """Return the names of all secrets, each once."""
    return sorted({name for role_values in values.values() for name in role_values})


def of_stores(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the submitter's variables that open the object stores which the job names. On a cluster the job's master and agents have
    them, and of the programs those that read an input there themselves, as shards.
    """
    urls = [url for source in job.inputs.values() for url in source.urls] + [
        output.url for output in job.outputs.values()
    ]
    urls += [*job.cache, *job.archives, job.storage, job.checkpoint.url if job.checkpoint is not None else ""]
    variables = tuple(prefixes(urls))
    return {name: value for name, value in environ.items() if name.startswith(variables)}


def _role_value(role: Role, name: str, value: str | None, environ: Mapping[str, str], known: Mapping[str, str]) -> str:
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
        variable = secret.env or name
        if variable not in environ:
            raise _unset(name, variable, place)
        return environ[variable]
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
