"""A cluster's own Kerberos: the system's KDC over a database in the cluster's directory, on a port of its own.

Services and users have keytabs next to the database, whose passwords nobody knows. A user gets a ticket by
`kinit -kt <keytab> <user>` with the cluster's `krb5.conf`, into a cache that the cluster's environment names. Services have long-lived
tickets. `ticket_life` limits the tickets of users, so that an expired one can be tried while the daemons live on.
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
_PATH = "/usr/sbin:/usr/local/sbin:/sbin"  # directories that a user's path often lacks

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
    """Return the path of the keytab of a service (hdfs, yarn, HTTP) or of a user."""
    return place(folder) / f"{name}.keytab"


def principal(name: str) -> str:
    return f"{name}/localhost@{REALM}" if name in SERVICES else f"{name}@{REALM}"


def environ(folder: Path) -> dict[str, str]:
    """Return the variables by which programs use the cluster's Kerberos."""
    own_folder = place(folder)
    return {"KRB5_CONFIG": f"{own_folder}/krb5.conf", "KRB5CCNAME": f"FILE:{own_folder}/tickets"}


def kdc_environ(folder: Path) -> dict[str, str]:
    own_folder = place(folder)
    return {"KRB5_CONFIG": f"{own_folder}/krb5.conf", "KRB5_KDC_PROFILE": f"{own_folder}/kdc.conf"}


def command(folder: Path) -> list[str]:
    """Return the command of the KDC, in the foreground."""
    return [program("krb5kdc"), "-n", "-P", str(place(folder) / "kdc.pid")]


def program(name: str) -> str:
    """Return the path of one of Kerberos' programs. Raises BadInput where it is missing."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PATH}")
    if path is None:
        raise BadInput(
            f"there is no {name}, which a cluster with Kerberos needs",
            mend="get it: apt-get install krb5-kdc krb5-admin-server krb5-user",
            anchor="no-kerberos",
        )
    return path


def check() -> None:
    """Raise BadInput where a program is missing."""
    for name in _PROGRAMS:
        program(name)


def make(folder: Path, settings: Settings, port: int, users: Sequence[str]) -> None:
    """Write the configuration; make the database and the keytabs where there are none."""
    own_folder = place(folder)
    own_folder.mkdir(mode=0o700, exist_ok=True)
    (own_folder / "krb5.conf").write_text(_KRB5_CONF.format(realm=REALM, port=port))
    (own_folder / "kdc.conf").write_text(_KDC_CONF.format(realm=REALM, port=port, folder=own_folder))
    (own_folder / "kadm5.acl").touch()
    if (own_folder / "whole").exists():
        return
    for path in own_folder.glob("principal*"):  # of an interrupted start
        path.unlink()
    _run(folder, [program("kdb5_util"), "create", "-s", "-r", REALM, "-P", os.urandom(16).hex()])
    commands = []
    for name in (*SERVICES, *users):
        life = "7d" if name in SERVICES else f"{settings.ticket_life:.0f}s"
        keytab(folder, name).unlink(missing_ok=True)
        commands.append(f'addprinc -randkey -maxlife "{life}" {principal(name)}')
        commands.append(f"ktadd -k {keytab(folder, name)} {principal(name)}")
    _run(folder, [program("kadmin.local"), "-r", REALM], "\n".join(commands) + "\n")
    if missing := [name for name in (*SERVICES, *users) if not keytab(folder, name).exists()]:
        raise EngineFailed(
            f"Kerberos made no keytab of {', '.join(missing)}", place=str(own_folder), anchor="cluster-failed"
        )
    (own_folder / "whole").touch()


def take_ticket(folder: Path, name: str, cache: str) -> None:
    """Get a ticket for `name`, by its keytab, into a cache."""
    _run(folder, [program("kinit"), "-c", cache, "-k", "-t", str(keytab(folder, name)), principal(name)])


def _run(folder: Path, command: Sequence[str], script: str = "") -> None:
    done = subprocess.run(
        command, env={**os.environ, **kdc_environ(folder)}, input=script, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineFailed(
            f"{Path(command[0]).name} failed: {done.stderr.strip()}", place=str(place(folder)), anchor="cluster-failed"
        )
