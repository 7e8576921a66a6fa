"""The cluster's configuration, as its administrator wrote it: core-site.xml, hdfs-site.xml and yarn-site.xml of one directory.

A value may name others in `${}`: keys of the configuration, a few of Java's system properties, and `${env.NAME}`; an unknown name stays as
written, as in Hadoop. A later file wins over an earlier one, unless the earlier one says `final`. Hadoop's own defaults are in its jars and
are not read: the few that matter to a client are in `DEFAULTS`. A value is interpreted only when it is asked for, so a wrong value does no
harm until then. Then it raises a ConfError that names file and line.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from trainmaster.hadoop import sitefile
from trainmaster.hadoop.errors import ConfError
from trainmaster.hadoop.security.auth import PROTECTION
from trainmaster.hadoop.sitefile import Property

Address = tuple[str, int]

RM = "yarn.resourcemanager."
FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")

# From core-default.xml, yarn-default.xml, hdfs-default.xml and mapred-default.xml of Hadoop 3.4.2: the values that a client, a master or a
# check before a submission asks for.
DEFAULTS = {
    "fs.defaultFS": "file:///",
    "hadoop.tmp.dir": "/tmp/hadoop-${user.name}",
    "hadoop.rpc.protection": "authentication",
    "hadoop.security.authentication": "simple",
    "dfs.ha.automatic-failover.enabled": "false",
    "yarn.app.mapreduce.am.staging-dir": "/tmp/hadoop-yarn/staging",
    "yarn.acl.enable": "false",
    "yarn.admin.acl": "*",
    "yarn.am.liveness-monitor.expiry-interval-ms": "900000",
    "yarn.http.policy": "HTTP_ONLY",
    "yarn.log-aggregation-enable": "false",
    "yarn.nm.liveness-monitor.expiry-interval-ms": "600000",
    "yarn.node-labels.enabled": "false",
    "yarn.nodemanager.remote-app-log-dir": "/tmp/logs",
    "yarn.nodemanager.remote-app-log-dir-suffix": "logs",
    "yarn.resourcemanager.address": "${yarn.resourcemanager.hostname}:8032",
    "yarn.resourcemanager.am.max-attempts": "2",
    "yarn.resourcemanager.ha.enabled": "false",
    "yarn.resourcemanager.hostname": "0.0.0.0",
    "yarn.resourcemanager.scheduler.address": "${yarn.resourcemanager.hostname}:8030",
    "yarn.resourcemanager.webapp.address": "${yarn.resourcemanager.hostname}:8088",
    "yarn.resourcemanager.webapp.https.address": "${yarn.resourcemanager.hostname}:8090",
}

# Old names that are still in use, and the names that Hadoop reads instead.
DEPRECATED = {
    "fs.default.name": "fs.defaultFS",
    "dfs.federation.nameservices": "dfs.nameservices",
    "yarn.resourcemanager.max-completed-applications.am-max-retries": "yarn.resourcemanager.am.max-attempts",
    "yarn.resourcemanager.am.max-retries": "yarn.resourcemanager.am.max-attempts",
}

NAMENODE_PORT = 8020
MEND = "export HADOOP_CONF_DIR=DIRECTORY"  # what to do where the configuration does not lead to a cluster
_ROUNDS = 20  # of substitution, as in Hadoop, so that a value that names itself comes to an end
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")


@attrs.frozen
class Configuration:
    """The configuration of one directory. `properties` are as written; `get` and the other methods return values with `${}` resolved and
    surrounding space removed.
    """

    folder: Path
    properties: Mapping[str, Property] = attrs.field(factory=dict, repr=False)
    files: tuple[str, ...] = ()  # those of FILES that exist
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def get(self, key: str, default: str = "") -> str:
        """Return the value of a key; where none is set the given default, else the built-in one, else ""."""
        raw = self._raw(key)
        if raw is None:
            raw = default or DEFAULTS.get(key, "")
        return self._resolve(raw).strip()

    def integer(self, key: str, default: int) -> int:
        text = self.get(key, str(default))
        try:
            return int(text, 16) if text.lower().startswith(("0x", "-0x")) else int(text)
        except ValueError:
            raise ConfError(f"{self.place(key)}: {key} is {text!r}, which is not a whole number") from None

    def flag(self, key: str, default: bool = False) -> bool:
        """Return True or False; for any other text the default, as in Hadoop, whose servers read the same file."""
        return {"true": True, "false": False}.get(self.get(key).lower(), default)

    def names(self, key: str, default: str = "") -> list[str]:
        """Return the names of a list that is separated by commas."""
        return [name for part in self.get(key, default).split(",") if (name := part.strip())]

    def address(self, key: str, default: str = "") -> Address:
        """Return host and port of a `host:port`; a missing port is the default's."""
        return _address(self, key, self.get(key, default), default or DEFAULTS.get(key, ""))

    def place(self, key: str) -> str:
        """Return the file and line that set a key, else the directory."""
        entry = self.properties.get(key)
        return entry.place if entry else str(self.folder)

    def resolved(self, *prefixes: str) -> dict[str, str]:
        """Return all properties that the files set under these prefixes, with `${}` resolved."""
        return {key: self.get(key) for key in self.properties if key.startswith(prefixes)}

    def _raw(self, key: str) -> str | None:
        entry = self.properties.get(key)
        return entry.value if entry else None

    def _resolve(self, text: str) -> str:
        """Replace the variables of a text, innermost first. The first unknown variable ends it, and the rest stays as written, as in
        Hadoop.
        """
        seen = {text}
        for _ in range(_ROUNDS):
            match = _VARIABLE.search(text)
            value = self._variable(match[1]) if match else None
            if not match or value is None:
                break
            text = text[: match.start()] + value + text[match.end() :]
            if text in seen:
                break
            seen.add(text)
        return text

    def _variable(self, name: str) -> str | None:
        if name.startswith("env."):
            match = re.fullmatch(r"([^:-]*)(:-|-)?(.*)", name[4:])
            assert match is not None
            variable, sign, default = match.groups()
            value = self.environ.get(variable)
            unset = value is None or (sign == ":-" and not value)
            return default if sign and unset else value
        value = _system_property(name, self.environ)
        if value is None:
            value = self._raw(name)
        return DEFAULTS.get(name) if value is None else value


def is_named(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the environment names a directory for `load` to read."""
    return any(environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"))


def load(folder: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ) -> Configuration:
    """Return the configuration in `folder`, else where HADOOP_CONF_DIR says, else in HADOOP_HOME's etc/hadoop. Raises ConfError."""
    path, source = _folder(folder, environ)
    try:
        names = {file.name for file in path.iterdir()}
    except OSError as error:
        raise ConfError(
            f"the Hadoop configuration directory {path}, from {source}, cannot be read: {error.strerror}", MEND
        ) from error
    files = tuple(name for name in FILES if name in names)
    if not files:
        raise ConfError(
            f"the Hadoop configuration directory {path}, from {source}, holds none of {', '.join(FILES)}", MEND
        )
    properties: dict[str, Property] = {}
    for name in files:
        for entry in sitefile.read(path / name):
            key = DEPRECATED.get(entry.name, entry.name)
            if key not in properties or not properties[key].final:
                properties[key] = attrs.evolve(entry, name=key)
    return Configuration(path, properties, files, environ)


def resource_managers(conf: Configuration, which: str = "address") -> list[Address]:
    """Return the addresses of the ResourceManagers, in the order of rm-ids. `which` is `address` for clients, `scheduler.address` for
    masters.

    Hadoop's default is this machine, which a user with half a configuration does not mean: it is refused.
    """
    key, host = f"{RM}{which}", f"{RM}hostname"  # Hadoop derives a default address from the host
    keys = resource_manager_keys(conf, which)
    return [_address(conf, name, conf.get(key if name == host else name), DEFAULTS[key]) for name in keys]


def resource_manager_keys(conf: Configuration, which: str = "address") -> list[str]:
    """Return the keys that set these addresses, in the same order. Raises ConfError where no key does."""
    key, host = f"{RM}{which}", f"{RM}hostname"
    if ids := conf.names(f"{RM}ha.rm-ids") if conf.flag(f"{RM}ha.enabled") else []:
        return [_key_of_rm(conf, key, rm) for rm in ids]
    if not {key, f"{RM}address", host} & conf.properties.keys():
        missing = f"{host} is set nowhere in {', '.join(conf.files)}, nor {RM}address"
        raise ConfError(
            f"no ResourceManager is named in {conf.folder}: {missing}", f"set {host} in its yarn-site.xml, or {MEND}"
        )
    return [host if key not in conf.properties and host in conf.properties else key]


def name_services(conf: Configuration) -> dict[str, list[Address]]:
    """Return the logical names of HDFS, each with the addresses of its NameNodes."""
    services = {}
    for name in conf.names("dfs.nameservices"):
        key = f"dfs.namenode.rpc-address.{name}"
        ids = conf.names(f"dfs.ha.namenodes.{name}")
        keys = [f"{key}.{namenode}" for namenode in ids] if ids else [key]
        services[name] = [
            conf.address(address_key, f":{NAMENODE_PORT}") for address_key in keys if address_key in conf.properties
        ]
    return services


def name_nodes(conf: Configuration, url: str = "") -> list[Address]:
    """Return the NameNodes behind an hdfs:// address, by default those of the default file system."""
    address = url if urlsplit(url).netloc else default_fs(conf)
    parts = urlsplit(address)
    if parts.scheme != "hdfs" or not parts.netloc:
        raise ConfError(
            f"{conf.place('fs.defaultFS')}: {address} is not on HDFS: set fs.defaultFS, or name the host in the address"
        )
    if addresses := name_services(conf).get(parts.netloc):
        return addresses
    return [_address(conf, "fs.defaultFS", parts.netloc, f":{NAMENODE_PORT}")]


def mounts(conf: Configuration, name: str) -> dict[str, str]:
    """Return the table of viewfs://`name`, which each client keeps for itself: folder -> URL. "" stands for all other folders, where they
    have a place.
    """
    table = f"fs.viewfs.mounttable.{name}."
    links = conf.resolved(f"{table}link")
    folders = {
        key.removeprefix(f"{table}link.").rstrip("/"): url
        for key, url in links.items()
        if key.startswith(f"{table}link./")
    }
    fallback = links.get(f"{table}linkFallback")
    return {**({"": fallback} if fallback else {}), **folders}


def mounted(table: Mapping[str, str], path: str) -> str | None:
    """Return the URL of a path of viewfs; None where nothing is mounted there."""
    folders = [folder for folder in table if path == folder or path.startswith(f"{folder}/")]
    if not folders:
        return None
    folder = max(folders, key=len)
    return table[folder].rstrip("/") + path.removeprefix(folder)


def default_fs(conf: Configuration) -> str:
    """Return the file system of addresses that name none, as `hdfs://host:port` or `hdfs://name`."""
    text = conf.get("fs.defaultFS")
    return text.rstrip("/") if ":/" in text else f"hdfs://{text}"  # a bare host:port is an old way to name a NameNode


def is_secure(conf: Configuration) -> bool:
    return conf.get("hadoop.security.authentication").lower() == "kerberos"


def rpc_protection(conf: Configuration) -> tuple[str, ...]:
    """Return the protections of RPC that we take, best first: none below the weakest that hadoop.rpc.protection names. Raises ConfError."""
    key = "hadoop.rpc.protection"
    words = [word.lower() for word in conf.names(key)]
    if not words or not set(words) <= set(PROTECTION):
        raise ConfError(f"{conf.place(key)}: {key} is {conf.get(key)!r}, which is not among {', '.join(PROTECTION)}")
    return PROTECTION[: 1 + max(PROTECTION.index(word) for word in words)]


def principal(conf: Configuration, key: str, host: str) -> str:
    """Return a server's Kerberos name, with the host that we connect to in the place of _HOST."""
    return conf.get(key).replace("_HOST", host.lower())


def hdfs_native_settings(conf: Configuration) -> dict[str, str]:
    """Return the `config` for hdfs-native's client. By itself the client reads core-site.xml and hdfs-site.xml of HADOOP_CONF_DIR, without
    `${}`, XInclude and `final`; with these settings it agrees with us.
    """
    return {**conf.resolved("fs.", "dfs.", "hadoop."), "fs.defaultFS": default_fs(conf)}


def split_address(text: str) -> tuple[str, str]:
    """Return host and port as text, each of which may be empty: `host:port`, `host`, `:port`, `[::1]:port`, also after `scheme://`."""
    text = text.strip().rpartition("://")[2].rstrip("/")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = text.rpartition(":")
    return (host, port) if host or text.startswith(":") else (port, "")


def _address(conf: Configuration, key: str, text: str, default: str) -> Address:
    host, port = split_address(text)
    port = port or split_address(default)[1]
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfError(f"{conf.place(key)}: {key} is {text!r}, which is not host:port")
    # A server that listens on every address is on the client's own machine, and is reached by the loopback address.
    return ("localhost" if host in ("0.0.0.0", "::") else host), int(port)


def _key_of_rm(conf: Configuration, key: str, rm: str) -> str:
    own, host = f"{key}.{rm}", f"{RM}hostname.{rm}"
    if name := next((candidate for candidate in (own, host) if candidate in conf.properties), ""):
        return name
    raise ConfError(f"{conf.place(f'{RM}ha.rm-ids')}: rm-ids names {rm}, but neither {own} nor {host} is set")


def _folder(folder: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    if folder:
        return Path(folder), "the caller"
    if named := environ.get("HADOOP_CONF_DIR"):
        return Path(named), "HADOOP_CONF_DIR"
    if home := environ.get("HADOOP_HOME"):
        return Path(home, "etc/hadoop"), "HADOOP_HOME"
    raise ConfError(
        "HADOOP_CONF_DIR is not set: it names the directory with the cluster's core-site.xml and yarn-site.xml; "
        "its administrator has them",
        MEND,
    )


def _system_property(name: str, environ: Mapping[str, str]) -> str | None:
    """Return one of the Java properties that configurations use; a client's JVM would have set it."""
    if name == "user.name":
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return environ.get("USER")
    if name == "user.home":
        return os.path.expanduser("~")
    return {"java.io.tmpdir": "/tmp", "file.separator": "/", "path.separator": ":"}.get(name)
