"""Check whether jobs can run on the Kubernetes that this machine is configured for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator

from trainmaster.core.errors import BadInput
from trainmaster.engines.findings import GOOD, WARNING, Finding, Outcome, finding
from trainmaster.engines.kubernetes.client import KubernetesClient, exists
from trainmaster.engines.kubernetes.pods.pods import IMAGE
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.kubernetes.submit import rights
from trainmaster.kube.config import is_named


def findings() -> Iterator[Finding]:
    """Look at the cluster that the kubeconfig leads to and, where it answers, at what its user may do there."""
    if not is_named():
        message = "neither KUBECONFIG nor ~/.kube/config is there; one is needed for --engine kubernetes alone"
        yield Finding("kubernetes", GOOD, message)
        return
    client = KubernetesClient()
    server = finding("kubernetes", functools.partial(_server, client))
    yield server
    if server.state == GOOD:
        for name, check in CHECKS.items():
            yield finding(name, functools.partial(check, client))


def _server(client: KubernetesClient) -> Outcome:
    config = client.config()
    version = client.call(config, lambda api: api.version())
    return (
        GOOD,
        f"{version} at {config.server}, {config.user or 'its pod'} of {config.source}, namespace {config.namespace}",
        "",
    )


def _rights(client: KubernetesClient) -> Outcome:
    """Check the user's rights to submit, and the account that the job's master will have."""
    config = client.config()
    client_settings = settings({"run_master": "client"})
    is_there = client.call(config, exists)
    client.call(config, lambda api: rights.check(api, client_settings, is_there))
    try:
        account = client.call(config, lambda api: rights.account(api, settings({})))
    except BadInput as error:
        apply_command = f"tm cluster grants --namespace {config.namespace} | kubectl apply -f -"
        mend = f"an administrator applies once: {apply_command}; until then: --set engines.kubernetes.run_master=client"
        return WARNING, error.message, mend
    return (
        GOOD,
        f"jobs may run in {config.namespace}; their masters are {account or 'given an account with each job'}",
        "",
    )


def _images(client: KubernetesClient) -> Outcome:
    if image := os.environ.get(IMAGE, ""):
        return GOOD, f"{image}, for jobs that name none", ""
    return GOOD, f"{IMAGE} is not set: each job names its own, by environment.image", ""


CHECKS: dict[str, Callable[[KubernetesClient], Outcome]] = {"rights on kubernetes": _rights, "image": _images}
