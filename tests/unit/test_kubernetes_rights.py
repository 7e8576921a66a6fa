"""Rights: a user who may view a namespace and no more is told which one is missing, and a job's own master has few."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.engines.kubernetes.client import KubernetesClient
from trainmaster.engines.kubernetes.submit import objects, rights

NAMESPACE = "/api/v1/namespaces/research"
MASTER = {"metadata": {"name": "t-abc123-master-x"}, "status": {"phase": "Running"}}
ROOT = {
    "metadata": {"name": "t-abc123", "labels": {"trainmaster/part": "job"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "data": {"job.json": "{}", "site.json": "{}", "certificate": ""},
}  # fmt: skip


class Viewed(BaseHTTPRequestHandler):
    """Shows `objects`, by their paths, and forbids everything else."""

    protocol_version = "HTTP/1.1"
    objects: Mapping[str, Any] = {}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix(f"{NAMESPACE}/")
        if path in self.objects:
            self._answer(200, self.objects[path])
            return
        kind, _, rest = path.partition("/")
        resource = "/".join([kind, *rest.split("/")[1:]])
        message = f'{resource} is forbidden: User "view" cannot get resource "{resource}" in API group ""'
        self._answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message})

    def _answer(self, status: int, content: Mapping[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name there
        pass


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[KubernetesClient]:
    """The client of a user who sees ConfigMaps and pods."""
    seen = {"pods": {"metadata": {"resourceVersion": "1"}, "items": [MASTER]}, "configmaps/t-abc123": ROOT}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Seen", (Viewed,), {"objects": seen})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = {"server": f"http://127.0.0.1:{server.server_port}"}
        config = {
            "clusters": [{"name": "c", "cluster": place}], "users": [{"name": "view", "user": {}}], "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "view", "namespace": "research"}}],
        }  # fmt: skip
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        try:
            yield KubernetesClient({"KUBECONFIG": str(path)})
        finally:
            server.shutdown()


def test_a_master_that_may_not_be_asked_is_no_master_that_is_away(viewer: KubernetesClient) -> None:
    with pytest.raises(BadInput, match=r'User "view" cannot get resource "pods/portforward"') as caught:
        viewer.reach("c@research/t-abc123", "10.0.0.1:7077", 5.0)
    assert caught.value.anchor == "rights"


def test_who_may_not_read_a_jobs_secret_is_reported_so(viewer: KubernetesClient) -> None:
    with pytest.raises(BadInput, match=r'may not read its Secret.*User "view" cannot get resource "secrets"') as caught:
        viewer.store().job_access("t-abc123")
    assert caught.value.anchor == "job-rights"


def test_a_master_may_not_touch_secrets() -> None:
    """Nor change roles, or start anything but pods: with its account somebody else's secrets would be had."""
    [_, role, _] = rights.granted("research")
    [(_, _), (_, own), (_, _)] = objects.account("job", objects.owner_of("job", "u"))
    for rules in (role["rules"], own["rules"]):
        assert {resource for rule in rules for resource in rule["resources"]} == {"pods", "configmaps", "events"}
        assert not any("*" in rule["verbs"] for rule in rules)
