"""What a Kubernetes on this machine is made of, apart from its running: settings, files, certificates, images, and what is missing."""

from __future__ import annotations

import hashlib
import json
import ssl
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from trainmaster.cli.options import cluster_options
from trainmaster.cli.tm import run
from trainmaster.clusters import kubernetes as clusters
from trainmaster.clusters import records
from trainmaster.clusters.kubernetes import Settings, api, binaries, boundary, certificates, conf, images, needs
from trainmaster.clusters.kubernetes.cluster import Cluster
from trainmaster.clusters.kubernetes.conf import PLAIN, PORTS, Place
from trainmaster.core.errors import BadInput, EngineFailed, NotFound


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "kubernetes", tmp_path / "binaries", 300, PORTS)


@pytest.fixture
def written(place: Place) -> dict[str, str]:
    """A cluster's files; its tokens."""
    tokens = certificates.make(place.folder / "pki", place.addresses, 2)
    conf.write(place, Settings(memory=2048, cores=5, fast_expiry=True), tokens, 16 << 30)
    return tokens


# -- settings --


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 21}, "--nodes is 21, from 0 to 20 can be had"),
        ({"nodes": 0}, "a cluster needs at least one node"),
        ({"simulated": 5001}, "--simulated is 5001"),
        ({"memory": 1}, "--memory"),
        ({"cores": 0}, "--cores is 0"),
        ({"resources": {"gpu": 1}}, "'gpu' cannot be the name of a resource, nvidia.com/gpu for one"),
        ({"resources": {"a.b/c": -1}}, "--resource a.b/c is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        Settings(**given)  # type: ignore[arg-type]


def test_settings_are_the_same_after_their_record() -> None:
    given = Settings(nodes=3, simulated=4, resources={"nvidia.com/gpu": 2}, fast_expiry=True)
    assert Settings.of({**json.loads(json.dumps(given.plain())), "of a later version": 1}) == given


# -- places and files --


def test_networks_do_not_meet(tmp_path: Path) -> None:
    found = {Place(tmp_path, tmp_path, number, PORTS).machine for number in range(512)}
    assert len(found) == 512
    assert {"198.18.0.1", "198.18.255.1", "198.19.255.1"} <= found


def test_a_plain_cluster_is_on_this_machine_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, PLAIN, PORTS)
    assert (place.machine, place.ip, place.inside) == ("127.0.0.1", "127.0.0.1", tmp_path)
    command = conf.command(place, Settings(nodes=0, simulated=1), "kube-apiserver")
    assert "--bind-address=127.0.0.1" in command


def test_names_of_the_machines_are_the_clusters_own(place: Place) -> None:
    other = Place(place.folder.with_name("other"), place.binaries, place.network, PORTS)
    assert place.group(1) != other.group(1)
    assert len(boundary.link(511)) <= 15  # IFNAMSIZ, with the zero


def test_every_daemon_has_a_command(place: Place) -> None:
    settings = Settings(nodes=2, simulated=1)
    commands = {name: conf.command(place, settings, name) for name in conf.names(settings)}
    assert list(commands)[:2] == ["etcd", "kube-apiserver"]
    assert commands["kube-scheduler"][:5] == ["nice", "-n", "-10", "/run/binaries/hyperkube", "kube-scheduler"]
    assert commands["kubelet-2"][:2] == ["/run/binaries/hyperkube", "kubelet"]
    assert "--hostname-override=node-2" in commands["kubelet-2"]
    assert commands["containerd-1"] == ["containerd", "--config", "/run/cluster/node-1/containerd.toml"]


def test_a_node_offers_what_was_asked_for(place: Place, written: dict[str, str]) -> None:
    kubelet = json.loads((place.folder / "node-2/kubelet.yaml").read_text())
    kept = int(kubelet["systemReserved"]["memory"]) + int(kubelet["evictionHard"]["memory.available"])
    assert (16 << 30) - kept == 2 << 30
    assert kubelet["nodeLeaseDurationSeconds"] == 4
    assert len(list((place.folder / "machine").glob("node*/cpu*"))) == 5
    there = {f"cpu{number}" for number in conf._online()}  # no others can be given to a pod
    assert {path.name for path in (place.folder / "machine").glob("node*/cpu*")} <= there


def test_what_is_secret_is_for_its_owner_alone(place: Place, written: dict[str, str]) -> None:
    secret = [*place.folder.glob("pki/*.key"), place.folder / "pki/tokens.csv", *place.folder.glob("conf/*.kubeconfig")]
    assert len(secret) >= 15
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    assert (place.folder / "pki").stat().st_mode & 0o777 == 0o700


def test_a_kubeconfig_leads_there(place: Place, written: dict[str, str]) -> None:
    found = json.loads((place.folder / "conf/edit.kubeconfig").read_text())
    assert found["clusters"][0]["cluster"]["server"] == "https://198.19.44.2:6443"
    assert found["users"][0]["user"] == {"token": written["edit"]}
    assert found["contexts"][0]["context"]["namespace"] == "trainmaster"


def test_certificates_are_of_one_authority_and_for_the_servers_names(place: Place, written: dict[str, str]) -> None:
    pki = place.folder / "pki"
    authority = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((pki / "apiserver.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "kubernetes.default.svc.cluster.local"} <= set(names.get_values_for_type(x509.DNSName))
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "10.96.0.1", "198.19.44.2"}
    ssl.create_default_context(cafile=str(pki / "ca.crt"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(pki / "edit.crt", pki / "edit.key")


def test_etcd_trusts_its_own_authority_alone(place: Place, written: dict[str, str]) -> None:
    """Users have certificates of the cluster's authority."""
    pki, settings = place.folder / "pki", Settings(nodes=0, simulated=1)
    authority = x509.load_pem_x509_certificate((pki / "etcd-ca.crt").read_bytes())
    x509.load_pem_x509_certificate((pki / "etcd.crt").read_bytes()).verify_directly_issued_by(authority)
    for user in ("edit", "kubelet-client", "apiserver"):
        with pytest.raises(ValueError, match="does not match certificate issuer"):
            x509.load_pem_x509_certificate((pki / f"{user}.crt").read_bytes()).verify_directly_issued_by(authority)
    command = conf.command(place, settings, "etcd")
    assert {"--client-cert-auth=true", "--peer-client-cert-auth=true"} <= {*command}
    assert not [flag for flag in (*command, *conf.command(place, settings, "kube-apiserver")) if "http://" in flag]


def test_tokens_say_who_and_of_which_groups(place: Place, written: dict[str, str]) -> None:
    lines = (place.folder / "pki/tokens.csv").read_text().splitlines()
    assert f'{written["admin"]},admin,admin,"system:masters"' in lines
    assert f'{written["node-2"]},system:node:node-2,node-2,"system:nodes"' in lines
    assert len(set(written.values())) == len(lines)


# -- binaries and images --


def test_the_cache_is_named_by_what_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    before = binaries.folder()
    assert binaries.folder() == before
    monkeypatch.setitem(binaries._FLAGS, "pause", [])
    assert binaries.folder() != before


def test_the_version_is_that_of_the_module() -> None:
    assert f"k8s.io/kubernetes v{binaries.VERSION}\n" in (binaries.MODULES / "hyperkube/go.mod").read_text()


def test_without_go_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="Go is missing") as refused:
        binaries.binaries()
    assert refused.value.anchor == "no-kubernetes-parts"
    assert list(tmp_path.glob("trainmaster/kubernetes-*")) == []


def test_a_build_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\n[ "$1" != env ] || { echo go1.26.1; exit; }\necho "no such module" >&2; exit 1\n')
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineFailed, match=r"could not build pause:\n  no such module"):
        binaries.binaries()
    assert [path for path in (tmp_path / "trainmaster").iterdir() if path.is_dir()] == []


def test_an_image_is_what_containerd_imports(tmp_path: Path) -> None:
    images._host(tmp_path, print)
    with tarfile.open(images._pack(images.HOST, tmp_path)) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config_data = tar.extractfile(manifest["Config"]).read()  # type: ignore[union-attr]
        layer = tar.extractfile(manifest["Layers"][0]).read()  # type: ignore[union-attr]
    assert manifest["RepoTags"] == ["localhost/trainmaster/host:1"]
    assert manifest["Config"] == f"{hashlib.sha256(config_data).hexdigest()}.json"
    assert json.loads(config_data)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


# -- what is missing, and the record --


def test_all_that_is_missing_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(needs.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(needs, "_PATH", "/nowhere")
    monkeypatch.setattr(needs, "CNI", tmp_path / "bridge")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput) as refused:
        needs.check(Settings())
    told = str(refused.value)
    for word in ("root", "containerd", "runc", "containernetworking-plugins", "debootstrap", "Go"):
        assert word in told.splitlines()[0]
    assert "apt-get install containerd runc" in told
    assert "--nodes 0 --simulated 10" in told
    with pytest.raises(BadInput) as refused:
        needs.check(Settings(nodes=0, simulated=1))
    assert refused.value.message.endswith("what is not here: Go")


def test_a_record_of_another_kind_is_let_alone(tmp_path: Path) -> None:
    (tmp_path / records.RECORD).write_text('{"kind": "hadoop"}')
    assert Cluster.read(tmp_path) is None
    for call in (lambda: clusters.down(folder=tmp_path), lambda: clusters.up(Settings(), folder=tmp_path)):
        with pytest.raises(BadInput, match="is of kind hadoop, not kubernetes"):
            call()
    assert (tmp_path / records.RECORD).exists()


def test_a_record_is_read_as_it_was_written(place: Place) -> None:
    place.folder.mkdir()
    cluster = Cluster("kubernetes", place, Settings(), tokens={"admin": "a"})
    cluster.save()
    assert (place.folder / records.RECORD).stat().st_mode & 0o777 == 0o600
    assert Cluster.read(place.folder) == cluster
    assert cluster.state == "broken"
    with pytest.raises(NotFound, match="the cluster has no namenode"):
        cluster.daemon("namenode")
    with pytest.raises(NotFound, match="the cluster has no user root"):
        cluster.kubeconfig("root")


# -- the command line --


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "kubernetes", "--queue", "a=100"], "--queue: is not for kubernetes"),
        (["up", "kubernetes", "--ha"], "--ha: is not for kubernetes"),
        (["up", "hadoop", "--simulated", "3"], "--simulated: is not for hadoop"),
        (["up", "kubernetes", "--nodes", "0"], "a cluster needs at least one node"),
        (["down", "kubernetes", "--keep"], "--keep"),
        (["env", "kubernetes"], "there is no cluster kubernetes"),
        (["status", "kubernetes", "--name", "own"], "tm cluster up kubernetes --name own"),
    ],
)
def test_the_command_line_says_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["cluster", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_node_that_is_still_tainted_takes_no_pods_yet() -> None:
    ready: dict[str, Any] = {"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert api.takes_pods(ready)
    assert not api.takes_pods(ready | {"spec": {"taints": [taint]}})
    assert api.takes_pods(ready | {"spec": {"taints": [{"key": "kwok.x-k8s.io/node", "effect": "NoSchedule"}]}})


def test_simulated_nodes_alone_want_no_others() -> None:
    def made(**given: object) -> Settings:
        found: Settings = cluster_options.settings_of("kubernetes", Settings, 2, given)
        return found

    assert made(simulated=5) == Settings(nodes=0, simulated=5, resources={"nvidia.com/gpu": 2})
    assert made(simulated=5, nodes=1).nodes == 1
    assert made().nodes == 2


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("torch:2.4", "docker.io/library/torch:2.4"),
        ("team/torch:2.4", "docker.io/team/torch:2.4"),
        ("localhost/torch", "localhost/torch"),
        ("registry.example.org/torch", "registry.example.org/torch"),
        ("host:5000/torch", "host:5000/torch"),
    ],
)
def test_a_short_name_of_an_image_gets_its_registry(name: str, full: str) -> None:
    assert images.full_name(name) == full
