"""Where a cluster is and who we are: kubeconfig files as people have them, plugins, proxies."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.kube.config import in_cluster, load, proxy_of
from trainmaster.kube.credentials import Presented
from trainmaster.kube.errors import ConfError


def kubeconfig(user: dict[str, Any], cluster: dict[str, Any] | None = None, name: str = "one") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443", **(cluster or {})}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
        "users": [{"name": name, "user": user}],
    }


def written(path: Path, content: dict[str, Any]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def shown(environ: dict[str, str], now: float = 0.0, **said: str) -> Presented:
    return load(environ, **said).credentials.present(now)


def test_a_context_names_server_namespace_and_user(tmp_path: Path) -> None:
    config = load({"KUBECONFIG": written(tmp_path / "c", kubeconfig({"token": "t0ken"}))})
    assert (config.server, config.namespace, config.context, config.user) == (
        "https://one.example:6443",
        "ns-one",
        "one",
        "one",
    )
    assert config.credentials.present(0.0).headers == (("Authorization", "Bearer t0ken"),)
    assert "t0ken" not in repr(config)


def test_of_several_files_the_first_that_names_something_counts(tmp_path: Path) -> None:
    first, second = kubeconfig({"token": "a"}), kubeconfig({"token": "b"}, name="two")
    second["users"].append({"name": "one", "user": {"token": "not this"}})
    environ = {
        "KUBECONFIG": os.pathsep.join(
            [written(tmp_path / "1", first), "/is/not/there", written(tmp_path / "2", second)]
        )
    }
    assert load(environ).context == "one"
    assert shown(environ).headers[0][1] == "Bearer a"
    config = load(environ, context="two", namespace="mine")
    assert (config.server, config.namespace) == ("https://two.example:6443", "mine")


def test_a_file_may_be_yaml_and_lie_at_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:8080'}}]\n"
        "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
    )
    config = load({"HOME": str(tmp_path)})
    assert (config.server, config.namespace, config.user) == ("http://127.0.0.1:8080", "default", "")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    (tmp_path / "ca.pem").write_text("the ca")
    path = written(tmp_path / "c", kubeconfig({"tokenFile": "token"}, {"certificate-authority": "ca.pem"}))
    config = load({}, path=path)
    assert config.ca == "the ca"
    assert config.credentials.present(0.0).headers[0][1] == "Bearer from-a-file"


def test_a_token_in_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    credentials = load({}, path=written(tmp_path / "c", kubeconfig({"tokenFile": "token"}))).credentials
    assert credentials.present(0.0).headers[0][1] == "Bearer old"
    (tmp_path / "token").write_text("new")
    os.utime(tmp_path / "token", (5, 5))
    assert credentials.present(1.0).headers[0][1] == "Bearer new"
    (tmp_path / "token").write_text("newest")
    os.utime(tmp_path / "token", (5, 5))
    assert credentials.refused()
    assert credentials.present(2.0).headers[0][1] == "Bearer newest"


def test_certificates_names_and_who_one_acts_for(tmp_path: Path) -> None:
    data = {key: base64.b64encode(key.encode()).decode() for key in ("cert", "key")}
    user = {
        "client-certificate-data": data["cert"],
        "client-key-data": data["key"],
        "as": "eve",
        "as-groups": ["a", "b"],
    }
    presented = shown({}, path=written(tmp_path / "c", kubeconfig(user)))
    assert presented.certificate == (b"cert", b"key")
    assert presented.headers == (("Impersonate-User", "eve"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    basic = shown({}, path=written(tmp_path / "d", kubeconfig({"username": "u", "password": "p"})))
    assert basic.headers == (("Authorization", "Basic " + base64.b64encode(b"u:p").decode()),)


# -- plugins --

PLUGIN = """#!{python}
import json, os, sys
with open({count!r}, "a") as file:
    file.write("x")
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
given = {{"token": "-".join([sys.argv[1], os.environ["WHO"], asked["spec"]["cluster"]["server"], str(os.path.getsize({count!r}))]),
         "expirationTimestamp": "1970-01-01T00:01:40Z"}}
print(json.dumps({{"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": given}}))
"""


def plugin(folder: Path, text: str, **more: Any) -> str:
    path = folder / "plug-in"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    said = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plug-in", "interactiveMode": "Never", **more}
    return written(folder / "config", kubeconfig({"exec": said}))


def test_a_plugin_is_run_when_what_it_gave_has_ended_or_was_refused(tmp_path: Path) -> None:
    text = PLUGIN.format(python=sys.executable, count=str(tmp_path / "count"))
    path = plugin(tmp_path, text, args=["get"], env=[{"name": "WHO", "value": "me"}], provideClusterInfo=True)
    credentials = load({}, path=path).credentials
    told = "Bearer get-me-https://one.example:6443-"
    assert [credentials.present(now).headers[0][1] for now in (0.0, 80.0)] == [told + "1"] * 2
    assert credentials.present(95.0).headers[0][1] == told + "2"  # it ends at 100
    credentials.refused()
    assert credentials.present(0.0).headers[0][1] == told + "3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho not logged in >&2; exit 3", "exit status 3: not logged in"),
        ("#!/bin/sh\necho '{}'", "gave no credentials"),
        ("no program", "failed"),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path: Path, text: str, words: str) -> None:
    credentials = load({}, path=plugin(tmp_path, text)).credentials
    with pytest.raises(ConfError, match=words) as told:
        credentials.present(0.0)
    assert told.value.mend


def test_a_plugin_that_is_missing_brings_its_hint(tmp_path: Path) -> None:
    path = plugin(tmp_path, "", command="./gone", installHint="install gone from there")
    with pytest.raises(ConfError, match="is not installed") as told:
        load({}, path=path).credentials.present(0.0)
    assert told.value.mend == "install gone from there"


# -- what is wrong --


def wrong(change: str) -> dict[str, Any]:
    content = kubeconfig({"token": "t"})
    exec(change, {"c": content})
    return content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("c['current-context'] = ''", "no current context"),
        ("c['current-context'] = 'two'", "no context 'two'"),
        ("c['clusters'] = []", "no cluster 'one'"),
        ("c['users'] = []", "no user 'one'"),
        ("c['users'] = ['x']", "users are malformed"),
        ("c['clusters'][0]['cluster']['server'] = 'six'", "the server of context one is 'six'"),
        (
            "c['clusters'][0]['cluster']['certificate-authority'] = 'gone'",
            "certificate-authority .*gone cannot be read",
        ),
        ("c['clusters'][0]['cluster']['certificate-authority-data'] = '%'", "is not base64"),
        ("c['users'][0]['user'] = {'client-key-data': 'eA=='}", "one is missing"),
        ("c['users'][0]['user'] = {'auth-provider': {'name': 'gcp'}}", "'gcp' is not supported"),
        ("c['users'][0]['user'] = {'exec': {'apiVersion': 'v7', 'command': 'x'}}", "speaks v7"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(ConfError, match=words) as told:
        load({}, path=written(tmp_path / "c", wrong(change)))
    assert told.value.mend


@pytest.mark.parametrize("text", ["{", "[1]", "a: b: c"])
def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_text(text)
    with pytest.raises(ConfError, match="is not a kubeconfig"):
        load({}, path=str(tmp_path / "c"))


def test_without_any_file_it_is_reported_where_one_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match=r"there is no ~/\.kube/config"):
        load({"HOME": str(tmp_path)})
    with pytest.raises(ConfError, match="there is no /gone"):
        load({"KUBECONFIG": "/gone", "HOME": str(tmp_path)})


def test_in_a_pod(tmp_path: Path) -> None:
    for name, content in (("ca.crt", "ca"), ("namespace", "there\n"), ("token", "first")):
        (tmp_path / name).write_text(content)
    config = in_cluster("", {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, str(tmp_path))
    assert (config.server, config.namespace, config.ca) == ("https://[fd00::1]:443", "there", "ca")
    assert config.credentials.present(0.0).headers[0][1] == "Bearer first"
    (tmp_path / "token").unlink()
    with pytest.raises(ConfError, match="no service account"):
        in_cluster("", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, str(tmp_path))
    with pytest.raises(ConfError, match="not a pod"):
        in_cluster("", {})


@pytest.mark.parametrize(
    ("server", "excepted", "used"),
    [
        ("https://k8s.corp.example:6443", "", True),
        ("https://k8s.corp.example:6443", "corp.example", False),
        ("https://k8s.corp.example:6443", ".example", False),
        ("https://k8s.corp.example:6443", "other.example, orp.example", True),
        ("https://k8s.corp.example:6443", "k8s.corp.example:443", True),
        ("https://k8s.corp.example:6443", "k8s.corp.example:6443", False),
        ("https://k8s.corp.example:6443", "*", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://10.1.2.3", "10.1.2.30,11.0.0.0/8", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
        ("http://k8s.corp.example", "", False),
    ],
)
def test_a_proxy_of_the_environment(server: str, excepted: str, used: bool) -> None:
    environ = {"HTTPS_PROXY": "proxy.example:3128", "NO_PROXY": excepted}
    assert proxy_of(environ, server) == ("http://proxy.example:3128" if used else "")


def test_a_proxy_of_the_cluster_goes_first(tmp_path: Path) -> None:
    path = written(tmp_path / "c", kubeconfig({}, {"proxy-url": "http://its-own:1"}))
    assert load({"HTTPS_PROXY": "http://other:2"}, path=path).proxy == "http://its-own:1"
