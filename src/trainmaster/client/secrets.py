"""What must not be read by others: which variables of a job are secret, and their values at submit.

A secret is a name without a value in `env`, an entry of `secrets`, or a variable whose name says so. Its value leaves the job
before the job is written anywhere, and travels to the programs apart from it: on this machine from process to process, through memory and
pipes alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.job import Job, Role, Secret
from trainmaster.core.redaction import is_secret


def separated(job: Job, environ: Mapping[str, str], folder: Path) -> tuple[Job, dict[str, str]]:
    """The job without secret values, and these by name. Raises BadInput where one cannot be found.

    `environ` is the submitter's; a secret's file is looked up from `folder`.
    """
    values = {name: _value(name, secret, environ, folder) for name, secret in job.secrets.items()}
    roles = {}
    for role in job.roles.values():
        taken = {
            name: _taken(role, name, value, environ, values)
            for name, value in role.env.items()
            if _travels(name, value)
        }
        _without_contradiction(role, taken, values)
        values |= taken
        roles[role.name] = attrs.evolve(
            role, env={name: None if name in taken else value for name, value in role.env.items()}
        )
    return attrs.evolve(job, roles=roles), values


def _travels(name: str, value: str | None) -> bool:
    return value is None or is_secret(name)


def _taken(role: Role, name: str, value: str | None, environ: Mapping[str, str], known: Mapping[str, str]) -> str:
    if value is not None:
        return value
    if name in known:
        return known[name]
    if name not in environ:
        raise _unset(name, name, f"roles.{role.name}.env.{name}")
    return environ[name]


def _without_contradiction(role: Role, taken: Mapping[str, str], known: Mapping[str, str]) -> None:
    for name, value in taken.items():
        if known.get(name, value) != value:
            raise BadInput(
                f"the secret variable {name} would have two values",
                place=f"roles.{role.name}.env.{name}",
                mend="give it one value for all roles, or another name",
                anchor="secret",
            )


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
