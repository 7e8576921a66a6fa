"""What a master's seat in a container of YARN is made of."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import MasterSide
from trainmaster.engines.packed import stores_of
from trainmaster.engines.yarn.master.ending import Ending
from trainmaster.engines.yarn.master.engine import YarnMaster
from trainmaster.engines.yarn.settings import settings
from trainmaster.engines.yarn.submit.launching import Resource, context
from trainmaster.engines.yarn.tokens import MasterTokens, fetched, keytab_login, places, submitted
from trainmaster.hadoop.conf import is_secure, load, resource_managers, rpc_protection
from trainmaster.hadoop.security.acls import may_view
from trainmaster.hadoop.security.auth import ByToken, Simple
from trainmaster.hadoop.security.credentials import AM_RM_TOKEN, RM_DELEGATION_TOKEN, Credentials
from trainmaster.hadoop.yarn import ResourceManager, Scheduler, container_id

AGENT = "trainmaster.agent.container:main"


class Parts:
    """What a seat in a container of YARN is made of."""

    port = 0
    begun_again = False

    def __init__(self, told: Mapping[str, Any], credentials: Credentials) -> None:
        self._told, self._credentials = told, credentials
        self._job = job_from(told["job"])
        self._view = settings(self._job.engines.get("yarn") or {}).view
        self._conf = load(os.environ["HADOOP_CONF_DIR"])
        self.tokens = self._held()
        self.address = _our_address(self._conf)
        self.proxies = _proxies(self._conf)
        self.agents: dict[str, Any] = {"configuration": told["configuration"]}

    def engine(self, job: Any, spec: Any, page: Callable[[], str]) -> MasterSide:
        """The master's side of YARN; `page` says the address of the job's page, once it is there."""
        token = self._credentials.of_kind(AM_RM_TOKEN)
        assert token is not None, "YARN gives its masters a token"
        rm_token = self._credentials.of_kind(RM_DELEGATION_TOKEN)
        who = ByToken(rm_token) if is_secure(self._conf) and rm_token is not None else Simple(self._told["user"])
        manager = ResourceManager.of(self._conf, who)
        if (tokens := self.tokens) is not None:

            def log_in() -> None:
                newer = tokens.tokens.credentials.of_kind(RM_DELEGATION_TOKEN)
                if newer is not None:
                    manager.login(ByToken(newer))

            tokens.heed.append(log_in)
        wait = self._conf.integer("yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill", 15000)
        return YarnMaster(
            job,
            spec,
            self._context,
            lambda token: Scheduler.of(self._conf, token),
            token,
            manager,
            rpc_protection(self._conf),
            page,
            wait / 1000,
            Ending(manager, container_id(os.environ["CONTAINER_ID"]).app_attempt_id.application_id),
        )

    def may_view(self, user: str) -> bool:
        """Ask the cluster's rules, as the submitter's configuration has them, whether a reader may see the job's page."""
        return may_view(self._conf, self._told["user"], self._view, user)

    def leave(self) -> None:
        """Nothing is left: what YARN was told of the end removes the rest."""

    def _held(self) -> MasterTokens | None:
        """The tokens that we have, where the cluster is secure."""
        tokens = submitted(self._credentials)
        if tokens is None:
            return None
        private = os.path.abspath(".trainmaster")
        os.makedirs(private, mode=0o700, exist_ok=True)
        said = settings(self._job.engines.get("yarn") or {}).kerberos
        if said is None:
            return MasterTokens(tokens, private)
        wanted, kerberos = places(self._job), keytab_login(self._told["keytab"], said)
        return MasterTokens(tokens, private, lambda: fetched(self._conf, kerberos, wanted))

    def _context(self, spec: Mapping[str, Any]) -> Any:
        role = spec["task"].rpartition(":")[0]
        stores = stores_of(self._told["stores"], self._job, role)
        secret = {"token": spec["token"], "secrets": spec["secrets"], "stores": stores}
        told = {name: value for name, value in spec.items() if name not in secret}
        credentials = self._credentials
        if self.tokens is not None:
            told["tokens"] = self.tokens.tokens.times
            credentials = credentials.merged(self.tokens.tokens.credentials)
        resources = {name: Resource(**fields) for name, fields in self._told["resources"].items()}
        return context(
            AGENT,
            told,
            secret,
            resources,
            credentials.without_kind(AM_RM_TOKEN).without_kind(RM_DELEGATION_TOKEN),
            {**self._told["environment"], **self._told.get("of_roles", {}).get(role, {})},
            self._view,
        )


def _proxies(conf: Any) -> set[str]:
    """The addresses of YARN's web proxies: one of its own, or in each ResourceManager."""
    apart = conf.get("yarn.web-proxy.address")
    hosts = [apart.rpartition(":")[0]] if apart else [host for host, _ in resource_managers(conf)]
    found = set()
    for host in hosts:
        try:
            found |= {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except OSError:  # one that has no address now shows nothing
            continue
    return found


def _our_address(conf: Any) -> str:
    """The address by which this node reaches the ResourceManager, so also the one by which others reach this node."""
    host, port = resource_managers(conf, "scheduler.address")[0]
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
