"""Prove to a Kubernetes cluster who we are.

A user of a kubeconfig has a token, a file with one, a client certificate, a name with a password, or a *plugin*: a program that prints an
ExecCredential (client.authentication.k8s.io) with a token or a certificate. Credentials that may expire are fetched anew: a token's file is
read when it changes (a pod's is rotated each hour), a plugin is run when its credentials expire, and both once more when the server says
401.

`present()` returns the credentials to show now. They never appear in a repr or a message.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from trainmaster.kube.errors import ConfError

_AGAIN = 60.0  # s until a token's file is read again, whatever its time says: it may be a link into a rotated folder
_EARLY = 10.0  # s before their end from which a plugin's credentials are not used any more
_PLUGIN = 120.0  # s that a plugin may take; it may ask a person
_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))


@attrs.frozen
class Presented:
    """The server is shown these headers, and this client certificate with its key, as PEM."""

    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    certificate: tuple[bytes, bytes] | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Plugin:
    """A program that knows who we are. `cluster`: the facts of the server that it wants; None where it wants none."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    version: str = _VERSIONS[0]
    hint: str = ""
    interactive: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None


@attrs.define(eq=False)
class Credentials:
    """Credentials prove who we are in at most one of the ways; a certificate may come with any. `acting`: headers to act for another."""

    token: str = attrs.field(default="", repr=False)
    token_file: str = ""
    certificate: tuple[bytes, bytes] | None = attrs.field(default=None, repr=False)
    basic: tuple[str, str] | None = attrs.field(default=None, repr=False)
    plugin: Plugin | None = None
    acting: tuple[tuple[str, str], ...] = ()
    _read: tuple[str, float, float] | None = attrs.field(
        default=None, init=False, repr=False
    )  # token, mtime, when read
    _plugin_status: tuple[dict[str, Any], float] | None = attrs.field(
        default=None, init=False, repr=False
    )  # with its expiry
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    @property
    def blocks(self) -> bool:
        """Tell whether `present` may take its time: a plugin is to be run."""
        return self.plugin is not None

    def present(self, now: float) -> Presented:
        """Return the credentials to show at `now` (seconds since 1970). Raises ConfError."""
        certificate, authorization = self.certificate, ""
        if self.plugin is not None:
            with self._lock:
                status = self._status_of_plugin(self.plugin, now)
            authorization = f"Bearer {str(status['token']).strip()}" if status.get("token") else ""
            if pem := status.get("clientCertificateData"):
                certificate = (str(pem).encode(), str(status.get("clientKeyData", "")).encode())
        elif self.token_file:
            authorization = f"Bearer {self._token_of_file(now)}"
        elif self.token:
            authorization = f"Bearer {self.token}"
        elif self.basic is not None:
            authorization = "Basic " + base64.b64encode(":".join(self.basic).encode()).decode()
        headers = (("Authorization", authorization),) if authorization else ()
        return Presented(headers + self.acting, certificate)

    def refused(self) -> bool:
        """Forget what was fetched, for the server said 401; tell whether another try, which fetches it anew, may go better."""
        self._read = self._plugin_status = None
        return bool(self.token_file or self.plugin)

    def _token_of_file(self, now: float) -> str:
        try:
            changed = os.stat(self.token_file).st_mtime
            if self._read is None or self._read[1] != changed or now - self._read[2] > _AGAIN:
                with open(self.token_file, encoding="utf-8") as file:
                    self._read = (file.read().strip(), changed, now)
        except (OSError, ValueError) as error:
            message = f"the token's file {self.token_file} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise ConfError(message, "check the file") from None
        return self._read[0]

    def _status_of_plugin(self, plugin: Plugin, now: float) -> dict[str, Any]:
        if self._plugin_status is None or now > self._plugin_status[1] - _EARLY:
            status = run_plugin(plugin)
            self._plugin_status = (status, _expiry(status))
        return self._plugin_status[0]


def run_plugin(plugin: Plugin) -> dict[str, Any]:
    """Run the plugin and return the `status` of its ExecCredential. Raises ConfError."""
    is_interactive = plugin.interactive != "Never" and sys.stdin is not None and sys.stdin.isatty()
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.cluster is not None:
        spec["cluster"] = dict(plugin.cluster)
    exec_info = {"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)}
    try:
        completed = subprocess.run(  # its words to a person go to that person
            [plugin.command, *plugin.args], env=environ, stdout=subprocess.PIPE, stderr=None if is_interactive else subprocess.PIPE,
            stdin=None if is_interactive else subprocess.DEVNULL, timeout=_PLUGIN, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        mend = plugin.hint.strip() or "install it, or use another user"
        raise ConfError(f"the kubeconfig's plugin {plugin.command} is not installed", mend) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"took longer than {_PLUGIN:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ConfError(f"the kubeconfig's plugin {plugin.command} failed: {why}", "run it by hand") from None
    if completed.returncode:
        error_lines = (completed.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        why = f"exit status {completed.returncode}" + (f": {error_lines[-1][:200]}" if error_lines else "")
        raise ConfError(f"the kubeconfig's plugin {plugin.command} failed: {why}", "log in anew, or run it by hand")
    try:
        status = json.loads(completed.stdout)["status"]
        if status.get("token") or status.get("clientCertificateData"):
            return dict(status)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfError(f"the kubeconfig's plugin {plugin.command} gave no credentials", "log in anew, or run it by hand")


def _expiry(status: Mapping[str, Any]) -> float:
    """Return when a plugin's credentials expire, in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(status["expirationTimestamp"]).replace("Z", "+00:00")).timestamp()
    except (KeyError, ValueError):
        return float("inf")


def plugin_of(settings: Mapping[str, Any], folder: str, cluster: Mapping[str, Any]) -> Plugin:
    """Return the plugin that a kubeconfig's `exec:` names. A command with a "/" is relative to the file's folder. Raises ConfError."""
    command, version = str(settings.get("command") or ""), str(settings.get("apiVersion") or "")
    if not command:
        raise ConfError("a plugin without a command", "name it: users[].user.exec.command")
    if version not in _VERSIONS:
        raise ConfError(f"the plugin {command} speaks {version or 'no version'}", f"use one that speaks {_VERSIONS[0]}")
    if "/" in command:
        command = os.path.join(folder, command)
    env = {str(row["name"]): str(row["value"]) for row in settings.get("env") or ()}
    args = tuple(str(argument) for argument in settings.get("args") or ())
    return Plugin(
        command, args, env, version, str(settings.get("installHint") or ""), str(settings.get("interactiveMode") or "IfAvailable"),
        cluster if settings.get("provideClusterInfo") else None,
    )  # fmt: skip
