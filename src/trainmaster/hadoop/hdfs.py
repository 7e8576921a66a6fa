"""The questions to HDFS that no library for HDFS asks: delegation tokens, the blocks of a file, safe mode, the end of an open block.

Reading and writing files is hdfs-native's part. `Namenode` is ClientNamenodeProtocol, and `Datanode` ClientDatanodeProtocol: a method per
call in Hadoop's own messages.

A delegation token proves who its bearer is, for containers that have no Kerberos ticket. It is given only to a Kerberos login, and lives a
day at first; its renewer, a short user name, prolongs it up to seven days (the cluster's administrator sets both). The NameNode leaves the
token's service empty: the keeper of a token writes the address that it is for, and Hadoop's Java and hdfs-native look for two different
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
from trainmaster.hadoop.security.auth import Auth, ByToken
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.stub import Rpc, Stub

PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
DATANODE_PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"


class Namenode(Stub):
    get_file_info = Rpc(h.GetFileInfoRequestProto, h.GetFileInfoResponseProto)
    mkdirs = Rpc(h.MkdirsRequestProto, h.MkdirsResponseProto)
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
        """Return a client of the NameNodes behind an hdfs:// address, by default behind fs.defaultFS. Raises ConfError."""
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
        """Tell whether nothing can be changed, because the NameNode has just started, or because its administrator wants it."""
        request = h.SetSafeModeRequestProto(action=h.SAFEMODE_GET, checked=False)
        return (await self.set_safe_mode(request)).result

    async def blocks(self, path: str, offset: int = 0, length: int = 1 << 62) -> list[Block]:
        """Return the blocks of a file that hold any of those bytes, in order: none for an empty file. RemoteError where there is no such
        file.
        """
        request = h.GetBlockLocationsRequestProto(src=path, offset=offset, length=length)
        answer = await self.get_block_locations(request)
        if not answer.HasField("locations"):
            return []
        return [
            Block(block.offset, block.b.numBytes, tuple(node.id.hostName for node in block.locs))
            for block in answer.locations.blocks
        ]


class Datanode(Stub):
    get_replica_visible_length = Rpc(h.GetReplicaVisibleLengthRequestProto, h.GetReplicaVisibleLengthResponseProto)

    @classmethod
    def of(cls, conf: Configuration, auth: Auth, block: h.LocatedBlockProto, node: h.DatanodeIDProto) -> Datanode:
        """Return a client of a DataNode that has the block, with the block's token where the NameNode gave one, else as `auth`."""
        own = block.blockToken
        if own.identifier:
            auth = ByToken(Token(own.identifier, own.password, own.kind, own.service))
        host = node.hostName if conf.flag("dfs.client.use.datanode.hostname") else node.ipAddr
        names, protection = [f"the DataNode at {host}:{node.ipcPort}"], rpc_protection(conf)
        retry = Retry(tries=1, connect=3.0)  # another one has the block too
        return cls(
            Client([(host, node.ipcPort)], DATANODE_PROTOCOL, auth, retry=retry, names=names, protection=protection)
        )


@attrs.frozen
class Block:
    """A piece of a file, and the names of the nodes that have a copy, nearest first."""

    offset: int
    length: int
    hosts: tuple[str, ...]


def filed(token: Token, conf: Configuration, url: str = "") -> dict[str, Token]:
    """Return a NameNode's token by alias, as a file of tokens should hold it: once for each name by which it is looked for.

    Hadoop's Java looks for the service `ip:port`, hdfs-native for `host:port` as the address is written; where several NameNodes have one
    name, both look for `ha-hdfs:<name>`. Raises ConfError, and Unreachable for an unknown host.
    """
    name = urlsplit(url).netloc or urlsplit(default_fs(conf)).netloc
    if name in name_services(conf):
        services = [f"ha-hdfs:{name}"]
    else:
        [(host, port)] = name_nodes(conf, url)
        services = [f"{_ip_address(host)}:{port}", f"{host}:{port}"]
    return {service: attrs.evolve(token, service=service) for service in services}


def _ip_address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise Unreachable(f"the NameNode's host {host} has no address here: {error.strerror or error}") from error
