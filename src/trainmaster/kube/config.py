"""Find a cluster and who we are to it, by kubeconfig files or by the pod that we are in.

The order is kubectl's: a path that is given, else the files of KUBECONFIG (of clusters, contexts and users of one name the first counts),
else ~/.kube/config, else the service account of the pod. Paths in a file are relative to it. Every mistake is a ConfError that names the
file.

The proxy is the cluster's `proxy-url`, else HTTPS_PROXY unless NO_PROXY excepts the server.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.kube.credentials import Credentials, plugin_of
from trainmaster.kube.errors import ConfError

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # the files of a pod's service account


@attrs.frozen
class Config:
    """A cluster, a namespace in it, and who we are. `ca` as PEM, or None for those that the system trusts; `source` names it for people."""

    server: str
    namespace: str = "default"
    context: str = ""
    user: str = ""
    ca: str | None = attrs.field(default=None, repr=False)
    credentials: Credentials = attrs.field(factory=Credentials)
    insecure: bool = False
    proxy: str = ""
    server_name: str = ""
    source: str = ""


def load(
    environ: Mapping[str, str] = os.environ, path: str = "", context: str = "", namespace: str = "",
) -> Config:  # fmt: skip
    """Read the configuration that the environment names; `path`, `context` and `namespace` override it. Raises ConfError."""
    files = _files(environ, path)
    if not files:
        if not context and environ.get("KUBERNETES_SERVICE_HOST") and os.path.exists(f"{ACCOUNT}/token"):
            return in_cluster(namespace, environ)
        home = environ.get("KUBECONFIG") or "~/.kube/config"
        raise ConfError(f"no cluster is known: there is no {home}", "name a kubeconfig in KUBECONFIG")
    source = ":".join(files)
    merged = _merge(files)
    context_name = context or str(merged["current-context"] or "")
    if not context_name:
        known = ", ".join(sorted(merged["contexts"])) or "none"
        raise ConfError(f"{source} has no current context", f"name one of its contexts: {known}")
    folder, chosen = _entry(merged, "contexts", context_name, source, "context")
    cluster_folder, cluster = _entry(merged, "clusters", str(chosen.get("cluster") or ""), source, "cluster")
    name = str(chosen.get("user") or "")
    user_folder, user = _entry(merged, "users", name, source, "user") if name else (folder, {})
    server = str(cluster.get("server") or "")
    if urlsplit(server).scheme not in ("http", "https") or not urlsplit(server).hostname:
        raise ConfError(f"{source}: the server of context {context_name} is {server!r}", "name it as https://host:port")
    ca = _bytes(cluster, "certificate-authority", cluster_folder, source)
    cluster_proxy = str(cluster.get("proxy-url") or "")
    return Config(
        server.rstrip("/"),
        namespace or str(chosen.get("namespace") or "default"),
        context_name,
        name,
        None if ca is None else ca.decode("utf-8", "replace"),
        _credentials(user, user_folder, source, cluster, ca),
        bool(cluster.get("insecure-skip-tls-verify")),
        cluster_proxy or proxy_of(environ, server),
        str(cluster.get("tls-server-name") or ""),
        source,
    )


def in_cluster(namespace: str = "", environ: Mapping[str, str] = os.environ, folder: str = ACCOUNT) -> Config:
    """Return the cluster of the pod that we are in, with the pod's service account as the user. Raises ConfError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfError("this is not a pod: KUBERNETES_SERVICE_HOST is not set")
    try:
        with open(f"{folder}/ca.crt", encoding="utf-8") as file:
            ca = file.read()
        if not namespace:
            with open(f"{folder}/namespace", encoding="utf-8") as file:
                namespace = file.read().strip()
        os.stat(f"{folder}/token")
    except OSError as error:
        message = f"this pod has no service account: {error.filename}: {error.strerror}"
        raise ConfError(message, "give the pod a service account, and let its token be mounted") from None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Config(
        server, namespace, "", "", ca, Credentials(token_file=f"{folder}/token"),
        proxy=proxy_of(environ, server), source="the pod's service account",
    )  # fmt: skip


# -- files --


def is_named(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a cluster is at hand: one of a kubeconfig, or the one that we are in."""
    return bool(_files(environ, "")) or os.path.exists(f"{ACCOUNT}/token")


def _files(environ: Mapping[str, str], path: str) -> list[str]:
    """Return the kubeconfig files that exist; `path` alone where it is given, whether it exists or not."""
    if path:
        return [os.path.expanduser(path)]
    if variable := environ.get("KUBECONFIG", ""):
        files = [os.path.expanduser(file) for file in variable.split(os.pathsep) if file]
        return [file for file in files if os.path.exists(file)]
    home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".kube", "config")
    return [home] if os.path.exists(home) else []


def _merge(files: list[str]) -> dict[str, Any]:
    """Merge the files: each section is name -> (folder of the file, entry). The first file that has a name counts."""
    merged: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}, "current-context": ""}
    for path in files:
        content = _read(path)
        merged["current-context"] = merged["current-context"] or content.get("current-context")
        for section in ("clusters", "contexts", "users"):
            for row in content.get(section) or ():
                try:
                    entry = (os.path.dirname(os.path.abspath(path)), dict(row[section[:-1]] or {}))
                    merged[section].setdefault(str(row["name"]), entry)
                except (KeyError, TypeError, ValueError):
                    raise ConfError(f"{path} is not a kubeconfig: its {section} are malformed", "correct it") from None
    return merged


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfError(f"the kubeconfig {path} cannot be read: {why}", "check KUBECONFIG") from None
    try:
        content = json.loads(text)
    except ValueError:
        content = _yaml(path, text)
    if not isinstance(content, dict):
        raise ConfError(f"{path} is not a kubeconfig", "correct it, or name another one in KUBECONFIG")
    return content


def _yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfError(f"{path} is YAML, and PyYAML is not installed", "pip install PyYAML") from None
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        line = str(error).splitlines()[0]
        raise ConfError(
            f"{path} is not a kubeconfig: {line}", "correct it, or name another one in KUBECONFIG"
        ) from None


def _entry(merged: dict[str, Any], section: str, name: str, source: str, word: str) -> tuple[str, dict[str, Any]]:
    entry: tuple[str, dict[str, Any]] | None = merged[section].get(name)
    if entry is None:
        known = ", ".join(sorted(merged[section])) or "none"
        raise ConfError(f"{source} has no {word} {name!r}", f"there are: {known}")
    return entry


def _bytes(entry: Mapping[str, Any], key: str, folder: str, source: str) -> bytes | None:
    """Return the content of `<key>-data`, or of the file that `<key>` names."""
    if data := entry.get(f"{key}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except ValueError:
            raise ConfError(f"{source}: {key}-data is not base64", "correct it") from None
    if not (path := entry.get(key)):
        return None
    full = os.path.join(folder, os.path.expanduser(str(path)))
    try:
        with open(full, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfError(f"{source}: {key} {full} cannot be read: {error.strerror}", "correct the path") from None


def _credentials(
    user: Mapping[str, Any], folder: str, source: str, cluster: Mapping[str, Any], ca: bytes | None
) -> Credentials:
    if provider := user.get("auth-provider"):
        message = f"{source}: auth-provider {provider.get('name', '')!r} is not supported, by kubectl neither"
        raise ConfError(message, "log in anew with a newer tool, which writes exec:")
    certificate = _bytes(user, "client-certificate", folder, source)
    key = _bytes(user, "client-key", folder, source)
    if (certificate is None) != (key is None):
        raise ConfError(f"{source}: of client-certificate and client-key one is missing", "name both")
    acting = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    acting += [("Impersonate-Uid", str(user["as-uid"]))] if user.get("as-uid") else []
    acting += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    plugin = None
    if plugin_entry := user.get("exec"):
        cluster_facts = {
            name: cluster[name] for name in ("server", "tls-server-name", "proxy-url") if cluster.get(name)
        }
        if ca is not None:
            cluster_facts["certificate-authority-data"] = base64.b64encode(ca).decode()
        plugin = plugin_of(plugin_entry, folder, cluster_facts)
    token_file = str(user.get("tokenFile") or "")
    return Credentials(
        token=str(user.get("token") or "").strip(),
        token_file=os.path.join(folder, token_file) if token_file else "",
        certificate=None if certificate is None or key is None else (certificate, key),
        basic=(str(user["username"]), str(user.get("password") or "")) if user.get("username") else None,
        plugin=plugin,
        acting=tuple(acting),
    )


# -- proxies --


def proxy_of(environ: Mapping[str, str], server: str) -> str:
    """Return the environment's proxy for a server's URL, "" for none. As in Go's net/http, this machine itself needs no proxy."""
    url = urlsplit(server)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or host == "localhost" or (_address(host) or ipaddress.IPv4Address(0)).is_loopback:
        return ""
    if any(_excepts(rule, host, port) for rule in _rules(environ)):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _rules(environ: Mapping[str, str]) -> Iterator[str]:
    for rule in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(","):
        if rule.strip():
            yield rule.strip().lower()


def _excepts(rule: str, host: str, port: int) -> bool:
    """Tell whether a rule of NO_PROXY means the host: "*", an address, a network, a domain with all below it; each perhaps with a port."""
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if rule.count(":") == 1:
        rule, _, rule_port = rule.partition(":")
        if rule_port != str(port):
            return False
    if address is not None:
        return _address(rule.strip("[]")) == address
    domain = rule.removeprefix("*").removeprefix(".")
    return (host == domain and not rule.startswith((".", "*"))) or host.endswith(f".{domain}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
