"""What HDFS's NameNode is asked that no library for HDFS asks: delegation tokens, where a file's blocks are, safe mode.

Reading and writing files is hdfs-native's. `Namenode` is ClientNamenodeProtocol, a method per call in Hadoop's own messages.

A delegation token proves who one is to whoever has it, for containers that have no Kerberos ticket. It is given only to a Kerberos
login, and lives a day at first; its renewer, a short user name, prolongs it up to seven (both are the cluster's to say). The NameNode
leaves the token's service empty: who keeps it says for which address it is, and Hadoop's Java and hdfs-native look for two different
spellings.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import attrs

from trainmaster.hadoop.conf import Configuration, default_fs, name_nodes, name_services, rpc_protection
from trainmaster.hadoop.errors import Unreachable
from trainmaster.hadoop.proto import hdfs_pb2 as h
from trainmaster.hadoop.proto import security_pb2 as s
from trainmaster.hadoop.rpc import Client, Retry
from trainmaster.hadoop.security.auth import Auth
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.stub import Rpc, Stub

PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientProtocol"


class Namenode(Stub):
    get_file_info = Rpc(h.GetFileInfoRequestProto, h.GetFileInfoResponseProto)
    get_block_locations = Rpc(h.GetBlockLocationsRequestProto, h.GetBlockLocationsResponseProto)
    get_server_defaults = Rpc(h.GetServerDefaultsRequestProto, h.GetServerDefaultsResponseProto)
    get_data_encryption_key = Rpc(h.GetDataEncryptionKeyRequestProto, h.GetDataEncryptionKeyResponseProto)
    set_safe_mode = Rpc(h.SetSafeModeRequestProto, h.SetSafeModeResponseProto)
    recover_lease = Rpc(h.RecoverLeaseRequestProto, h.RecoverLeaseResponseProto)
    get_delegation_token = Rpc(s.GetDelegationTokenRequestProto, s.GetDelegationTokenResponseProto)
    renew_delegation_token = Rpc(s.RenewDelegationTokenRequestProto, s.RenewDelegationTokenResponseProto)
    cancel_delegation_token = Rpc(s.CancelDelegationTokenRequestProto, s.CancelDelegationTokenResponseProto)

    @classmethod
    def of(cls, conf: Configuration, auth: Auth, url: str = "") -> Namenode:
        """The NameNodes behind an hdfs:// address, by default behind fs.defaultFS. Raises ConfError."""
        retry = Retry(safe=lambda method: True)  # each of these calls is idempotent
        principal = conf.get("dfs.namenode.kerberos.principal")
        addresses = name_nodes(conf, url)
        names = [f"the NameNode at {host}:{port}" for host, port in addresses]
        protection = rpc_protection(conf)
        return cls(
            Client(
                addresses, PROTOCOL, auth, retry=retry, server_principal=principal, names=names, protection=protection
            )
        )

    async def in_safe_mode(self) -> bool:
        """Whether nothing can be changed: at its start, or by its administrator's wish."""
        request = h.SetSafeModeRequestProto(action=h.SAFEMODE_GET, checked=False)
        return (await self.set_safe_mode(request)).result

    async def blocks(self, path: str, offset: int = 0, length: int = 1 << 62) -> list[Block]:
        """The blocks of a file that hold any of those bytes, in order. Empty for an empty file; RemoteError where there is none."""
        request = h.GetBlockLocationsRequestProto(src=path, offset=offset, length=length)
        found = await self.get_block_locations(request)
        if not found.HasField("locations"):
            return []
        return [
            Block(one.offset, one.b.numBytes, tuple(node.id.hostName for node in one.locs))
            for one in found.locations.blocks
        ]


@attrs.frozen
class Block:
    """A piece of a file, and the names of the nodes that have a copy, nearest first."""

    offset: int
    length: int
    hosts: tuple[str, ...]


def filed(token: Token, conf: Configuration, url: str = "") -> dict[str, Token]:
    """A NameNode's token as a file of tokens should hold it, by alias: once for each way in which it is looked for.

    Hadoop's Java looks for the service `ip:port`, hdfs-native for `host:port` as the address is written; where several NameNodes stand
    behind one name, both look for `ha-hdfs:<name>`. Raises ConfError, and Unreachable for a host that nobody knows.
    """
    name = urlsplit(url).netloc or urlsplit(default_fs(conf)).netloc
    if name in name_services(conf):
        services = [f"ha-hdfs:{name}"]
    else:
        [(host, port)] = name_nodes(conf, url)
        services = [f"{_number(host)}:{port}", f"{host}:{port}"]
    return {service: attrs.evolve(token, service=service) for service in services}


def _number(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise Unreachable(f"the NameNode's host {host} has no address here: {error.strerror or error}") from error
