"""A Kerberos of a cluster's own: the system's KDC over a database in the cluster's directory, on a port of its own.

Services and users have keytabs beside the database, whose passwords nobody knows; a user takes a ticket by
`kinit -kt <keytab> <user>` with the cluster's `krb5.conf`, into a cache that the cluster's environment names. Services keep long-lived
tickets; `ticket_life` limits those of users, so that an expired one can be tried while the daemons live on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.core.errors import BadInput, EngineFailed

REALM = "TRAINMASTER.TEST"
SERVICES = ("hdfs", "yarn", "HTTP")
_PROGRAMS = {"krb5kdc": "krb5-kdc", "kdb5_util": "krb5-kdc", "kadmin.local": "krb5-admin-server", "kinit": "krb5-user"}
_PATH = "/usr/sbin:/usr/local/sbin:/sbin"  # which a user's path often lacks

_KRB5_CONF = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = 7d
 renew_lifetime = 30d
 forwardable = true
[realms]
 {realm} = {{
  kdc = localhost:{port}
 }}
[domain_realm]
 localhost = {realm}
"""
_KDC_CONF = """\
[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = localhost:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/kadm5.acl
  max_life = 7d
  max_renewable_life = 30d
  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  default_principal_flags = +renewable,+forwardable,+postdateable
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
 admin_server = FILE:{folder}/kdc.log
"""


def place(folder: Path) -> Path:
    return folder / "kerberos"


def keytab(folder: Path, name: str) -> Path:
    """The keytab of a service (hdfs, yarn, HTTP) or of a user."""
    return place(folder) / f"{name}.keytab"


def principal(name: str) -> str:
    return f"{name}/localhost@{REALM}" if name in SERVICES else f"{name}@{REALM}"


def environ(folder: Path) -> dict[str, str]:
    """What programs that use the cluster have in their environment."""
    at = place(folder)
    return {"KRB5_CONFIG": f"{at}/krb5.conf", "KRB5CCNAME": f"FILE:{at}/tickets"}


def kdc_environ(folder: Path) -> dict[str, str]:
    at = place(folder)
    return {"KRB5_CONFIG": f"{at}/krb5.conf", "KRB5_KDC_PROFILE": f"{at}/kdc.conf"}


def command(folder: Path) -> list[str]:
    """The KDC itself, in the foreground."""
    return [program("krb5kdc"), "-n", "-P", str(place(folder) / "kdc.pid")]


def program(name: str) -> str:
    """The path of one of Kerberos' programs. BadInput where it is missing."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PATH}")
    if found is None:
        raise BadInput(
            f"there is no {name}, which a cluster with Kerberos needs",
            mend="get it: apt-get install krb5-kdc krb5-admin-server krb5-user",
            anchor="no-kerberos",
        )
    return found


def check() -> None:
    """BadInput where a program is missing."""
    for name in _PROGRAMS:
        program(name)


def make(folder: Path, settings: Settings, port: int, users: Sequence[str]) -> None:
    """Write the configuration; make the database and the keytabs where there are none."""
    at = place(folder)
    at.mkdir(mode=0o700, exist_ok=True)
    (at / "krb5.conf").write_text(_KRB5_CONF.format(realm=REALM, port=port))
    (at / "kdc.conf").write_text(_KDC_CONF.format(realm=REALM, port=port, folder=at))
    (at / "kadm5.acl").touch()
    if (at / "whole").exists():
        return
    for left in at.glob("principal*"):  # of a beginning that was broken off
        left.unlink()
    _run(folder, [program("kdb5_util"), "create", "-s", "-r", REALM, "-P", os.urandom(16).hex()])
    asked = []
    for name in (*SERVICES, *users):
        life = "7d" if name in SERVICES else f"{settings.ticket_life:.0f}s"
        keytab(folder, name).unlink(missing_ok=True)
        asked.append(f'addprinc -randkey -maxlife "{life}" {principal(name)}')
        asked.append(f"ktadd -k {keytab(folder, name)} {principal(name)}")
    _run(folder, [program("kadmin.local"), "-r", REALM], "\n".join(asked) + "\n")
    if missing := [name for name in (*SERVICES, *users) if not keytab(folder, name).exists()]:
        raise EngineFailed(f"Kerberos made no keytab of {', '.join(missing)}", place=str(at), anchor="cluster-failed")
    (at / "whole").touch()


def take_ticket(folder: Path, name: str, cache: str) -> None:
    """A ticket of `name` into a cache, by its keytab."""
    _run(folder, [program("kinit"), "-c", cache, "-k", "-t", str(keytab(folder, name)), principal(name)])


def _run(folder: Path, command: Sequence[str], given: str = "") -> None:
    done = subprocess.run(
        command, env={**os.environ, **kdc_environ(folder)}, input=given, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineFailed(
            f"{Path(command[0]).name} failed: {done.stderr.strip()}", place=str(place(folder)), anchor="cluster-failed"
        )
