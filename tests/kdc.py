"""A Kerberos of the test's own: the system's krb5kdc over a database in a directory, on a port of its own.

Everything that speaks Kerberos learns of it by `KRB5_CONFIG` (`environ`); principals get their keys in keytabs, tickets are
taken with them by the system's kinit, for as long and from when on as a test wants them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from parts import not_run
from waiting import until

REALM = "TEST"

_KRB5_CONF = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = 1d
 renew_lifetime = 7d
 forwardable = true
 default_ccache_name = FILE:{folder}/default_cache
[realms]
 {realm} = {{
  kdc = localhost:{port}
 }}
[domain_realm]
 localhost = {realm}
"""

_KDC_CONF = """\
[kdcdefaults]
 kdc_ports = {port}
 kdc_tcp_ports = {port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/kadm5.acl
  max_life = 2d
  max_renewable_life = 7d
  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  default_principal_flags = +postdateable,+renewable,+forwardable
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


@attrs.frozen
class Kdc:
    """A running KDC of realm TEST; `folder` holds its database, configuration, keytabs and log."""

    folder: Path
    port: int

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    @property
    def environ(self) -> dict[str, str]:
        """What makes a program use this KDC, over this process's environment."""
        return {**os.environ, **self.settings}

    @property
    def settings(self) -> dict[str, str]:
        """Those variables alone; the empty caches keep a program from tickets of the machine."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.folder}/default_cache",
            "KRB5_CLIENT_KTNAME": str(self.folder / "no.keytab"),
            "KRB5RCACHEDIR": str(self.folder),
        }

    def keytab(self, *principals: str, name: str = "") -> Path:
        """Make these principals, with random keys, in one keytab; a principal that is there gets a new key."""
        path = self.folder / f"{name or principals[0].replace('/', '_')}.keytab"
        for principal in principals:
            self._admin(f"addprinc -randkey +allow_postdated {principal}")
            self._admin(f"ktadd -k {path} {principal}")
        return path

    def alter(self, query: str) -> None:
        """Any other query of kadmin, such as `delprinc -force alice`."""
        self._admin(query)

    def ticket(self, principal: str, keytab: Path, cache: Path, *options: str) -> str:
        """Take a ticket into a cache and give the cache's name; options are kinit's (`-l 60s`, `-s 1h`, `-r 7d`)."""
        name = f"FILE:{cache}"
        self._run("kinit", *options, "-c", name, "-k", "-t", str(keytab), principal)
        return name

    def _admin(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=_path(self.environ), capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """A KDC in `folder`, stopped at the end."""
    for program in ("kdb5_util", "kadmin.local", "krb5kdc", "kinit"):
        if shutil.which(program, path=_path(dict(os.environ))["PATH"]) is None:
            not_run(f"there is no {program}", "apt-get install krb5-kdc krb5-admin-server krb5-user")
    folder.mkdir(parents=True, exist_ok=True)
    kdc = Kdc(folder, _free_port())
    said = {"realm": REALM, "folder": folder, "port": kdc.port}
    kdc.config.write_text(_KRB5_CONF.format(**said))
    (folder / "kdc.conf").write_text(_KDC_CONF.format(**said))
    environ = _path(kdc.environ)
    subprocess.run(
        ["kdb5_util", "-r", REALM, "create", "-s", "-W", "-P", "master"], env=environ, check=True, capture_output=True
    )
    with open(folder / "krb5kdc.out", "wb") as output:
        process = subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=environ, stdout=output, stderr=output)
    try:
        until(lambda: _listens(kdc.port) or process.poll() is not None, what="the KDC to listen")
        assert process.poll() is None, (folder / "krb5kdc.out").read_text()
        yield kdc
    finally:
        process.terminate()
        process.wait()


def skew(cache: Path, seconds: int) -> None:
    """Have libkrb5 believe that the KDC's clock was that far ahead when the ticket was taken (ccache format 4, tag 1)."""
    data = cache.read_bytes()
    rest = data[4 + int.from_bytes(data[2:4], "big") :]
    cache.write_bytes(data[:2] + bytes.fromhex("000c00010008") + seconds.to_bytes(4, "big") + bytes(4) + rest)


def _path(environ: dict[str, str]) -> dict[str, str]:
    """The KDC's programs lie where only root's path leads."""
    return {**environ, "PATH": f"{environ.get('PATH', '')}:/usr/sbin:/sbin"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
