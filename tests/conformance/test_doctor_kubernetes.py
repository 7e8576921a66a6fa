"""What `tm doctor` says of a real Kubernetes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from kubernetes import Cluster
from waiting import until

from trainmaster.client.jobs import doctor
from trainmaster.engines.kubernetes.submit import rights

pytestmark = pytest.mark.xdist_group("kubernetes")


def examined() -> dict[str, doctor.Finding]:
    return {found.check: found for found in doctor.examined()}


def test_doctor_sees_the_cluster_and_what_its_user_may(
    on_kubernetes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {"apiVersion": "v1", "kind": "List", "items": rights.granted(on_kubernetes.namespace)}
    on_kubernetes.kubectl("apply", "-f", "-", input=json.dumps(account))
    found = examined()
    assert (found["kubernetes"].state, found["rights on kubernetes"].state) == (doctor.GOOD, doctor.GOOD)
    assert f" at {on_kubernetes.server}, edit of " in found["kubernetes"].text
    assert found["kubernetes"].text.startswith("v1.")
    assert found["rights on kubernetes"].text == "jobs may run in trainmaster; their masters are trainmaster"
    assert found["image"].text.startswith(on_kubernetes.environ["TRAINMASTER_KUBERNETES_IMAGE"])

    def user(name: str, namespace: str) -> dict[str, doctor.Finding]:
        told = json.loads(on_kubernetes.kubeconfig(name).read_text())
        told["contexts"][0]["context"]["namespace"] = namespace
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(told))
        monkeypatch.setenv("KUBECONFIG", str(path))
        return examined()

    namespace = f"tests-{uuid.uuid4().hex[:12]}"
    on_kubernetes.kubectl("create", "namespace", namespace)
    try:
        on_kubernetes.kubectl("-n", namespace, "create", "rolebinding", "edit", "--clusterrole=edit", "--user=edit")
        until(lambda: "may not make one" in user("edit", namespace)["rights on kubernetes"].text)  # roles take a moment
        told = user("edit", namespace)["rights on kubernetes"]
    finally:
        on_kubernetes.kubectl("delete", "namespace", namespace, "--wait=false")
    assert told.state == doctor.WARNING
    assert f"tm cluster grants --namespace {namespace}" in told.mend
    told = user("nobody", "trainmaster")["rights on kubernetes"]
    assert (told.state, told.place) == (doctor.WARNING, "engines.kubernetes.namespace: trainmaster")
    assert "nobody may not create configmaps" in told.text
    assert user("admin", "nowhere")["rights on kubernetes"].text == "there is no namespace nowhere"
    assert "given an account with each job" in user("admin", "trainmaster-host")["rights on kubernetes"].text
    monkeypatch.delenv("TRAINMASTER_KUBERNETES_IMAGE")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    found = examined()
    assert found["kubernetes"].state == doctor.GOOD  # jobs on this machine need none
    assert "rights on kubernetes" not in found
