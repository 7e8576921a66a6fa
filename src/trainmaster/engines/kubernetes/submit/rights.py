"""Check the rights of the user who submits and of the master, whose pod acts as a service account of the namespace.

A user with rights on roles has an account made with each job, with just what a master needs. Others name one that an administrator has made
once (`tm cluster grants` prints it; without a name it is called `trainmaster`), or let the master run beside the client, as themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.kubernetes.names import MANAGED_BY, OUR_NAME
from trainmaster.engines.kubernetes.settings import CLIENT, Settings
from trainmaster.engines.kubernetes.submit import objects
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Forbidden, NotFound
from trainmaster.kube.kinds import (
    CONFIGMAPS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
)
from trainmaster.kube.manifest import as_yaml

ACCOUNT = "trainmaster"  # of masters, where none is named
_GROUP = "rbac.authorization.k8s.io"
Right = tuple[str, Kind]
_SUBMITS: Sequence[Right] = (("create", CONFIGMAPS), ("create", SECRETS), ("create", SERVICES), ("delete", SECRETS))
_BY_A_MASTER: Sequence[Right] = (("create", REPLICA_SETS),)
_AS_A_MASTER: Sequence[Right] = (("create", PODS), ("delete", PODS), ("watch", PODS), ("update", CONFIGMAPS))
_ON_ROLES: Sequence[Right] = (("create", SERVICE_ACCOUNTS), ("create", ROLES), ("create", ROLE_BINDINGS))


async def check(client: Client, settings: Settings, is_namespace_there: bool = True) -> None:
    """Raise BadInput, naming what is not allowed, where the user cannot submit or the master would lack an account.

    `is_namespace_there`: the user has seen the namespace; else it may be that there is none.
    """
    of_master = _AS_A_MASTER if settings.run_master == CLIENT else _BY_A_MASTER
    needed = [*dict.fromkeys((*_SUBMITS, *of_master, ("create", PODS)))]
    if lacking := await _lacking(client, needed):
        missing = ", ".join(f"{verb} {kind.plural}" for verb, kind in lacking)
        doubt = "" if is_namespace_there else f", or there is no namespace {client.namespace}"
        raise BadInput(
            f"{client.config.user or 'you'} may not {missing} in namespace {client.namespace}{doubt}",
            place=f"engines.kubernetes.namespace: {client.namespace}",
            mend="ask an administrator for the role edit there: "
            f"kubectl create rolebinding NAME -n {client.namespace} --clusterrole edit --user USER",
            anchor="rights",
        )  # fmt: skip
    if settings.run_master != CLIENT:
        await account(client, settings)
    if settings.task_service_account and not await _account_exists(client, settings.task_service_account):
        raise BadInput(
            f"there is no service account {settings.task_service_account} in namespace {client.namespace}",
            place=f"engines.kubernetes.task_service_account: {settings.task_service_account}", anchor="rights",
            mend="name one that is there: kubectl get serviceaccounts; or leave the key out, and programs get no token of the cluster",
        )  # fmt: skip


async def account(client: Client, settings: Settings) -> str:
    """Return the service account of the master's pod; "" for one that is made with the job. Raises BadInput where neither can be."""
    if settings.service_account:
        if not await _account_exists(client, settings.service_account):
            raise BadInput(
                f"there is no service account {settings.service_account} in namespace {client.namespace}",
                place=f"engines.kubernetes.service_account: {settings.service_account}",
                mend=_mend(client.namespace, settings.service_account), anchor="rights",
            )  # fmt: skip
        return settings.service_account
    if not await _lacking(client, _ON_ROLES):
        return ""
    if await _account_exists(client, ACCOUNT):
        return ACCOUNT
    raise BadInput(
        f"the master's pod needs a service account, and you may not make one in namespace {client.namespace}",
        place="engines.kubernetes.service_account", mend=_mend(client.namespace, ACCOUNT), anchor="rights",
    )  # fmt: skip


def granted(namespace: str, name: str = ACCOUNT) -> list[dict[str, Any]]:
    """Return the objects that an administrator applies once: an account that masters in `namespace` may have."""
    about = {"name": name, "namespace": namespace, "labels": {MANAGED_BY: OUR_NAME}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about, "automountServiceAccountToken": False},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": about, "rules": [dict(rule) for rule in objects.RULES]},
        {
            "apiVersion": f"{_GROUP}/v1", "kind": "RoleBinding", "metadata": about,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]  # fmt: skip


def _mend(namespace: str, name: str) -> str:
    return (
        "let the master run beside you with --set engines.kubernetes.run_master=client, or have an administrator apply once\n"
        + as_yaml(granted(namespace, name))
    )


async def _account_exists(client: Client, name: str) -> bool:
    try:
        await client.get(SERVICE_ACCOUNTS, name)
    except NotFound:
        return False
    except Forbidden:  # the server checks the account when its pod is made
        return True
    return True


async def _lacking(client: Client, rights: Sequence[Right]) -> list[Right]:
    allowed = await asyncio.gather(*(client.review(verb, kind) for verb, kind in rights))
    return [right for right, is_allowed in zip(rights, allowed, strict=True) if not is_allowed]
