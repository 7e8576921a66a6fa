"""The configuration of a Hadoop cluster on this machine: the files that its daemons and clients read in HADOOP_CONF_DIR.

All daemons share one directory. They differ by system properties of their JVMs: `${nm.id}` and `${nm.host}` of a NodeManager, `${rm.id}` of
a ResourceManager where there are two. All times are short, for such a cluster is for trying things out. Each line that is not plain has its
reason next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import attrs

from trainmaster.clusters.hadoop import kerberos, tls
from trainmaster.clusters.hadoop.kerberos import REALM, keytab
from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.clusters.ports import node_address

Properties = dict[str, object]
RM, NM, CAPACITY = "yarn.resourcemanager.", "yarn.nodemanager.", "yarn.scheduler.capacity."
_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
_RECOVERY = "org.apache.hadoop.yarn.server.resourcemanager.recovery."
_LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""
# Pages take the name of their user from the query, so no name may have rights there. A space is an ACL of nobody.
NO_ADMINS = " "
PAGES_CLOSED = "TRAINMASTER_PAGES_CLOSED"  # "false" in the environment of the NameNode: its page says when it is ready, and `tls` closes it
RESOURCE_MANAGERS = {"rm1": "resourcemanager", "rm2": "resourcemanager-2"}  # rm-id -> our name of the daemon


@attrs.frozen
class Place:
    """The place of a cluster: its directory, its ports by name, the jars, and the user who starts it."""

    folder: Path
    ports: Mapping[str, int]
    jars: Path
    user: str

    def local(self, name: str) -> str:
        return f"localhost:{self.ports[name]}"

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def classpath(self) -> str:
        return f"{self.conf}:{self.jars}/*"


def write(place: Place, settings: Settings) -> None:
    """Write the whole directory anew."""
    sites: dict[str, Properties] = {
        "ssl-server.xml": tls.properties(place.conf, "server"),
        "ssl-client.xml": tls.properties(place.conf, "client"),
        "core-site.xml": _core(place, settings),
        "hdfs-site.xml": _hdfs(place, settings),
        "yarn-site.xml": _yarn(place, settings),
        "capacity-scheduler.xml": _capacity(settings),
        "resource-types.xml": {"yarn.resource-types": ",".join(settings.resources)} if settings.resources else {},
        "node-resources.xml": {f"{NM}resource-type.{name}": count for name, count in settings.resources.items()},
    }
    for name, value in settings.properties.items():
        sites[_site(name)][name] = value
    # Pages that the jar lacks; without the directories the daemons end.
    for folder in ("hdfs", "datanode", "secondary"):
        (place.conf / "webapps" / folder).mkdir(parents=True, exist_ok=True)
    tls.make(place.conf)
    (place.conf / "log4j.properties").write_text(_LOG4J)
    for file, properties in sites.items():
        (place.conf / file).write_text(xml(properties))


def xml(properties: Mapping[str, object]) -> str:
    """Return a configuration file as Hadoop reads it."""
    lines = (
        f"  <property><name>{escape(name)}</name><value>{escape(_text(value))}</value></property>\n"
        for name, value in properties.items()
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<configuration>\n{"".join(lines)}</configuration>\n'


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _site(name: str) -> str:
    for beginning, file in (("dfs.", "hdfs"), (CAPACITY, "capacity-scheduler"), ("yarn.", "yarn")):
        if name.startswith(beginning):
            return f"{file}-site.xml" if file in ("hdfs", "yarn") else f"{file}.xml"
    return "core-site.xml"


def _core(place: Place, settings: Settings) -> Properties:
    properties: Properties = {
        "fs.defaultFS": f"hdfs://{place.local('namenode')}",
        "hadoop.tmp.dir": place.folder / "tmp",
        "hadoop.security.authorization": True,  # else every page can change what the daemons log
        "hadoop.security.instrumentation.requires.admin": f"${{env.{PAGES_CLOSED}:-true}}",  # closes /conf, /jmx and /stacks
        "hadoop.ssl.require.client.cert": True,  # see `tls`
    }
    if settings.kerberos:
        properties |= {
            "hadoop.security.authentication": "kerberos",
            "hadoop.rpc.protection": settings.kerberos,
            "ignore.secure.ports.for.testing": True,  # no ports of root
        }
    return properties


def _hdfs(place: Place, settings: Settings) -> Properties:
    properties: Properties = {
        "dfs.replication": 1,
        "dfs.namenode.name.dir": f"file://{place.folder}/namenode",
        "dfs.datanode.data.dir": f"file://{place.folder}/datanode",
        "dfs.cluster.administrators": NO_ADMINS,
        "dfs.http.policy": "HTTPS_ONLY",
        "dfs.client.https.need-auth": True,  # `dfs.webhdfs.enabled: false` closes nothing
        "dfs.namenode.https-address": place.local("namenode.http"),
        "dfs.datanode.address": place.local("datanode"),
        "dfs.datanode.https.address": place.local("datanode.http"),
        "dfs.datanode.ipc.address": place.local("datanode.ipc"),
        "dfs.datanode.hostname": node_address(1),  # for locality, blocks are on node 1
        "dfs.namenode.datanode.registration.ip-hostname-check": False,  # such addresses have no names
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.delegation.token.renew-interval": _ms(settings.token_renewal),
        "dfs.namenode.delegation.token.max-lifetime": _ms(settings.token_life),
    }
    if settings.kerberos:
        properties |= {
            "ignore.secure.ports.for.testing": True,
            "dfs.block.access.token.enable": True,
            "dfs.data.transfer.protection": settings.kerberos,
            "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "dfs.web.authentication.kerberos.keytab": keytab(place.folder, "HTTP"),
        }
        for daemon in ("namenode", "datanode"):
            properties[f"dfs.{daemon}.kerberos.principal"] = f"hdfs/localhost@{REALM}"
            properties[f"dfs.{daemon}.keytab.file"] = keytab(place.folder, "hdfs")
    return properties


def _yarn(place: Place, settings: Settings) -> Properties:
    return {
        **_resource_manager(place, settings),
        **_node_manager(place, settings),
        **_scheduling(place, settings),
        **(_high_availability(place) if settings.high_availability else {}),
        **(_secure_yarn(place, settings) if settings.kerberos else {}),
    }


def _resource_manager(place: Place, settings: Settings) -> Properties:
    return {
        f"{RM}hostname": "localhost",
        **_addresses(place, "resourcemanager", ""),
        f"{RM}scheduler.class": _SCHEDULER,
        "yarn.admin.acl": NO_ADMINS,  # for RPC, the ResourceManager adds its own user
        "yarn.webapp.enable-rest-app-submissions": False,
        f"{RM}webapp.ui-actions.enabled": False,  # its buttons would be refused
        **_read_only(RM),
        f"{RM}nodemanagers.heartbeat-interval-ms": 200,  # 1000 is usual; everything gets faster
        f"{RM}recovery.enabled": True,
        f"{RM}work-preserving-recovery.enabled": True,
        f"{RM}work-preserving-recovery.scheduling-wait-ms": 1000,
        f"{RM}store.class": f"{_RECOVERY}FileSystemRMStateStore",
        f"{RM}fs.state-store.uri": f"file://{place.folder}/resourcemanager",
        f"{RM}delegation.token.renew-interval": _ms(settings.token_renewal),
        f"{RM}delegation.token.max-lifetime": _ms(settings.token_life),
        "yarn.nm.liveness-monitor.expiry-interval-ms": _ms(settings.node_expiry),
        "yarn.am.liveness-monitor.expiry-interval-ms": _ms(settings.master_expiry),
    }


def _read_only(daemon: str) -> Properties:
    """Close a daemon's web port to what a browser changes, also for a page that it takes for ours (DNS rebinding)."""
    return {
        f"{daemon}webapp.rest-csrf.enabled": True,
        f"{daemon}webapp.rest-csrf.custom-header": ":",  # opens it; no request can have such a header
        f"{daemon}webapp.rest-csrf.browser-useragents-regex": ".*",
        f"{daemon}webapp.rest-csrf.methods-to-ignore": "GET,HEAD",
    }


def _addresses(place: Place, daemon: str, suffix: str) -> Properties:
    return {
        f"{RM}address{suffix}": place.local(daemon),
        f"{RM}scheduler.address{suffix}": place.local(f"{daemon}.scheduler"),
        f"{RM}resource-tracker.address{suffix}": place.local(f"{daemon}.tracker"),
        f"{RM}admin.address{suffix}": place.local(f"{daemon}.admin"),
        f"{RM}webapp.address{suffix}": place.local(f"{daemon}.http"),
    }


def _high_availability(place: Place) -> Properties:
    properties: Properties = {
        f"{RM}ha.enabled": True,
        f"{RM}ha.id": "${rm.id}",
        f"{RM}ha.rm-ids": ",".join(RESOURCE_MANAGERS),
        f"{RM}cluster-id": place.folder.name,
        f"{RM}store.class": f"{_RECOVERY}ZKRMStateStore",
        "hadoop.zk.address": place.local("zookeeper"),
        "hadoop.zk.timeout-ms": 4000,  # how long a dead ResourceManager stays the active one
        "yarn.client.failover-sleep-base-ms": 100,
        "yarn.client.failover-sleep-max-ms": 1000,
    }
    for name, daemon in RESOURCE_MANAGERS.items():
        properties |= {f"{RM}hostname.{name}": "localhost", **_addresses(place, daemon, f".{name}")}
    return properties


def _node_manager(place: Place, settings: Settings) -> Properties:
    node, folder = "${nm.host}", f"{place.folder}/node-${{nm.id}}"
    return {
        f"{NM}hostname": node,
        f"{NM}bind-host": node,
        f"{NM}address": f"{node}:{place.ports['node']}",
        f"{NM}localizer.address": f"{node}:{place.ports['node.localizer']}",
        f"{NM}webapp.address": f"{node}:{place.ports['node.http']}",
        **_read_only(NM),
        f"{NM}local-dirs": f"{folder}/local",
        f"{NM}log-dirs": f"{folder}/logs",
        f"{NM}resource.memory-mb": settings.memory,
        f"{NM}resource.cpu-vcores": settings.cores,
        f"{NM}vmem-check-enabled": False,
        f"{NM}resource.memory.enforced": False,  # true leaves enforcing to control groups, which this executor has not
        f"{NM}delete.debug-delay-sec": 600,  # logs and work directories can be looked at
        f"{NM}disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
        f"{NM}remote-app-log-dir": "/tmp/logs",
        "yarn.log-aggregation-enable": True,
    }


def _scheduling(place: Place, settings: Settings) -> Properties:
    preemption = f"{RM}monitor.capacity.preemption."
    return {
        "yarn.scheduler.minimum-allocation-mb": min(64, settings.memory),
        "yarn.scheduler.maximum-allocation-mb": settings.memory,
        "yarn.scheduler.maximum-allocation-vcores": settings.cores,
        f"{RM}scheduler.monitor.enable": len(settings.queues) > 1,
        f"{preemption}monitoring_interval": 1000,
        f"{preemption}max_wait_before_kill": 4000,
        f"{preemption}total_preemption_per_round": 1.0,
        f"{preemption}natural_termination_factor": 1.0,
        "yarn.node-labels.enabled": True,
        "yarn.node-labels.fs-store.root-dir": f"file://{place.folder}/labels",
        "yarn.application.classpath": f"{place.conf},{place.jars}/*",  # for programs in Java alone
    }


def _secure_yarn(place: Place, settings: Settings) -> Properties:
    krb5 = kerberos.environ(place.folder)["KRB5_CONFIG"]  # in containers too, as a machine's own would be
    properties: Properties = {
        "yarn.log-aggregation-enable": False,  # else the NodeManager needs Hadoop's native library
        f"{NM}admin-env": f"KRB5_CONFIG={krb5},JAVA_TOOL_OPTIONS=-Djava.security.krb5.conf={krb5}",
    }
    for daemon in ("resourcemanager", "nodemanager"):
        properties[f"yarn.{daemon}.principal"] = f"yarn/localhost@{REALM}"
        properties[f"yarn.{daemon}.keytab"] = keytab(place.folder, "yarn")
    return properties


def _capacity(settings: Settings) -> Properties:
    properties: Properties = {
        f"{CAPACITY}root.queues": ",".join(settings.queues),
        f"{CAPACITY}maximum-am-resource-percent": 0.5,
        f"{CAPACITY}resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        f"{CAPACITY}root.accessible-node-labels": "*",
    }
    labels = sorted(set(settings.labels.values()))
    for label in labels:
        properties[f"{CAPACITY}root.accessible-node-labels.{label}.capacity"] = 100
    for queue, share in settings.queues.items():
        properties |= {
            f"{CAPACITY}root.{queue}.capacity": share,
            f"{CAPACITY}root.{queue}.maximum-capacity": 100,
            f"{CAPACITY}root.{queue}.user-limit-factor": 10,
            f"{CAPACITY}root.{queue}.accessible-node-labels": "*",
        }
        for label in labels:
            properties[f"{CAPACITY}root.{queue}.accessible-node-labels.{label}.capacity"] = share
    return properties


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
