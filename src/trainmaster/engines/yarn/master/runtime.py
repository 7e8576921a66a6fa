"""The host of a master in a container of YARN."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import MasterContainer, MasterSide
from trainmaster.engines.packed import stores_of
from trainmaster.engines.yarn.master.ending import Ending
from trainmaster.engines.yarn.master.engine import YarnMaster
from trainmaster.engines.yarn.settings import settings
from trainmaster.engines.yarn.submit.launching import Resource, context
from trainmaster.engines.yarn.tokens import MasterTokens, fetch_tokens, hdfs_urls, keytab_login, submitted_tokens
from trainmaster.hadoop.conf import is_secure, load, resource_managers, rpc_protection
from trainmaster.hadoop.security.acls import may_view
from trainmaster.hadoop.security.auth import ByToken, Simple
from trainmaster.hadoop.security.credentials import AM_RM_TOKEN, RM_DELEGATION_TOKEN, Credentials
from trainmaster.hadoop.yarn import ResourceManager, Scheduler, container_id

AGENT = "trainmaster.agent.container:main"


class ContainerRuntime(MasterContainer):
    """The parts of a master's seat in a container of YARN."""

    tokens: MasterTokens | None

    def __init__(self, payload: Mapping[str, Any], credentials: Credentials) -> None:
        self._payload, self._credentials = payload, credentials
        self._job = job_from(payload["job"])
        self._view = settings(self._job.engines.get("yarn") or {}).view
        self._conf = load(os.environ["HADOOP_CONF_DIR"])
        self.tokens = self._own_tokens()
        self.address = _our_address(self._conf)
        self.proxies = _proxies(self._conf)
        self.agents: dict[str, Any] = {"configuration": payload["configuration"]}

    def engine(self, job: Any, spec: Any, page: Callable[[bool], str]) -> MasterSide:
        """Return the master's side of YARN; `page(ended)`: as in the contract."""
        token = self._credentials.of_kind(AM_RM_TOKEN)
        assert token is not None, "YARN gives its masters a token"
        rm_token = self._credentials.of_kind(RM_DELEGATION_TOKEN)
        auth = ByToken(rm_token) if is_secure(self._conf) and rm_token is not None else Simple(self._payload["user"])
        manager = ResourceManager.of(self._conf, auth)
        if (tokens := self.tokens) is not None:

            def log_in() -> None:
                newer = tokens.tokens.credentials.of_kind(RM_DELEGATION_TOKEN)
                if newer is not None:
                    manager.login(ByToken(newer))

            tokens.listeners.append(log_in)
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
        """Tell whether the cluster's rules, as the submitter's configuration has them, let a reader see the job's page."""
        return may_view(self._conf, self._payload["user"], self._view, user)

    def _own_tokens(self) -> MasterTokens | None:
        """Return our tokens, where the cluster is secure."""
        tokens = submitted_tokens(self._credentials)
        if tokens is None:
            return None
        private = os.path.abspath(".trainmaster")
        os.makedirs(private, mode=0o700, exist_ok=True)
        login = settings(self._job.engines.get("yarn") or {}).kerberos
        if login is None:
            return MasterTokens(tokens, private)
        urls, kerberos = hdfs_urls(self._job), keytab_login(self._payload["keytab"], login)
        return MasterTokens(tokens, private, lambda: fetch_tokens(self._conf, kerberos, urls))

    def _context(self, spec: Mapping[str, Any]) -> Any:
        role = spec["task"].rpartition(":")[0]
        stores = stores_of(self._payload["stores"], self._job, role)
        secret = {"token": spec["token"], "secrets": spec["secrets"], "stores": stores}
        payload = {name: value for name, value in spec.items() if name not in secret}
        credentials = self._credentials
        if self.tokens is not None:
            payload["tokens"] = self.tokens.tokens.times
            credentials = credentials.merged(self.tokens.tokens.credentials)
        resources = {name: Resource(**fields) for name, fields in self._payload["resources"].items()}
        return context(
            AGENT,
            payload,
            secret,
            resources,
            credentials.without_kind(AM_RM_TOKEN).without_kind(RM_DELEGATION_TOKEN),
            {**self._payload["environment"], **self._payload.get("of_roles", {}).get(role, {})},
            self._view,
        )


def _proxies(conf: Any) -> set[str]:
    """Return the addresses of YARN's web proxies: one of its own, or in each ResourceManager."""
    proxy = conf.get("yarn.web-proxy.address")
    hosts = [proxy.rpartition(":")[0]] if proxy else [host for host, _ in resource_managers(conf)]
    addresses = set()
    for host in hosts:
        try:
            addresses |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except OSError:  # a proxy that has no address now shows no page
            continue
    return addresses


def _our_address(conf: Any) -> str:
    """Return the address by which this node reaches the ResourceManager, and by which others reach this node."""
    host, port = resource_managers(conf, "scheduler.address")[0]
    family, _, _, _, destination = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(destination)
        return str(probe.getsockname()[0])
