"""The way to HDFS without one: who is meant by a URL, what errors say, that no wait is without end, that garbage is told as such.

What a real one does is in tests/conformance/test_hdfs.py.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.hadoop import datanode
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto.datatransfer_pb2 import SUCCESS, BlockOpResponseProto, PacketHeaderProto
from trainmaster.hadoop.proto.hdfs_pb2 import LocatedBlockProto
from trainmaster.log.dfs import at_work, open_dfs, translated, within
from trainmaster.log.storage import storage_failed, storage_for


def rpc(java: str, told: str) -> RuntimeError:
    return RuntimeError(f'RPCError("{java}", "{told}\\n\\tat org.apache.Somewhere.java")')


@pytest.mark.parametrize(
    ("error", "words", "mend"),
    [
        (
            rpc("org.apache.hadoop.security.AccessControlException", 'Permission denied: user=bob, inode=\\"/x\\"'),
            'could not read: Permission denied: user=bob, inode="/x"',
            "ask for the permission",
        ),
        (
            rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create file /x"),
            "could not read: the NameNode nn:8020 is in safe mode, and takes no changes",
            "dfsadmin -safemode get",
        ),
        (
            rpc("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /x is exceeded"),
            "a quota of HDFS is spent: The DiskSpace quota of /x is exceeded",
            "ask for more",
        ),
        (
            rpc("org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /x"),
            "no DataNode has confirmed the file's blocks yet",
            "dfsadmin -report",
        ),
        (OSError("Connection refused (os error 111)"), "nn:8020 cannot be reached: connection refused", "HADOOP_CONF"),
        (RuntimeError("NoSASLMechanism"), "nn:8020 takes no login that we have", "kinit"),
        (RuntimeError('InternalError("odd")'), 'nn:8020: InternalError("odd")', "the NameNode's log"),
    ],
)
def test_errors_name_cause_and_mend(error: Exception, words: str, mend: str) -> None:
    failure = storage_failed("read", "hdfs://nn/x", translated(error, "nn:8020"))
    assert words in failure.message
    assert mend in failure.mend
    assert "org.apache" not in str(failure)


def test_what_is_not_there_and_what_is_there_keep_their_kind() -> None:
    assert translated(FileNotFoundError("File does not exist: /x\n\tat x"), "nn").args == (
        errno.ENOENT,
        "File does not exist: /x",
    )
    assert isinstance(translated(FileExistsError("/x"), "nn"), FileExistsError)


def test_a_wait_ends_at_its_limit() -> None:
    gate = threading.Event()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        within(gate.wait, 0.05)
    assert time.monotonic() - began < 20
    assert at_work()
    gate.set()
    until(lambda: not at_work(), what="its end")
    assert within(lambda: 7, 20) == 7
    with pytest.raises(KeyError):
        within(lambda: {}["x"], 20)


def test_a_command_ends_beside_a_call_that_does_not(tmp_path: Path) -> None:
    """It is in foreign code, where Python's own end would have its thread crash."""
    script = tmp_path / "left.py"
    script.write_text(
        "import contextlib, threading\n"
        "from trainmaster.cli.main import _leave\n"
        "from trainmaster.log import dfs\n"
        "with contextlib.suppress(TimeoutError):\n"
        "    dfs.within(threading.Event().wait, 0.01)\n"
        "import atexit\n"
        "atexit.register(print, 'Python ended')\n"
        "print('told')\n"
        "_leave(130)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (130, "told\n")


def configured(folder: Path, **properties: str) -> str:
    rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    (folder / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    return str(folder)


def test_a_url_means_who_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "fs.defaultFS": "hdfs://${env.CLUSTER}:9000",
        "dfs.nameservices": "ns1",
        "dfs.ha.namenodes.ns1": "a,b",
        "dfs.namenode.rpc-address.ns1.a": "localhost:1",
        "dfs.namenode.rpc-address.ns1.b": "localhost:2",
        "fs.permissions.umask-mode": "027",
    }
    monkeypatch.setenv("CLUSTER", "nn.example")
    monkeypatch.setenv("HADOOP_CONF_DIR", configured(tmp_path, **told))
    assert (open_dfs("hdfs:///a/b/")[0].where, open_dfs("hdfs:///a/b/")[1]) == ("nn.example:9000", "/a/b")
    assert open_dfs("hdfs://ns1/a")[0].where == "ns1"
    assert open_dfs("hdfs://localhost/a")[0].where == "localhost:8020"
    assert open_dfs("hdfs://ns1/a")[0].umask == 0o027
    with pytest.raises(
        BadInput, match=f"ns2 is neither a host that can be found nor a nameservice: {tmp_path} does not"
    ):
        open_dfs("hdfs://ns2/a")


def test_a_configuration_that_is_none_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", f"{tmp_path}/none")
    with pytest.raises(BadInput, match="HADOOP_CONF_DIR, cannot be read"):
        storage_for("hdfs:///x")


def test_a_secure_configuration_that_does_not_say_who_the_namenode_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"fs.defaultFS": "hdfs://localhost:1", "hadoop.security.authentication": "kerberos"}
    monkeypatch.setenv("HADOOP_CONF_DIR", configured(tmp_path, **rows))
    with pytest.raises(
        BadInput, match=r"the NameNode may be anybody: dfs\.namenode\.kerberos\.principal is not set in"
    ):
        open_dfs("hdfs:///x")
    configured(tmp_path, **rows, **{"dfs.namenode.kerberos.principal": "hdfs/_HOST@TEST"})
    assert open_dfs("hdfs:///x")[0].where == "localhost:1"


def test_an_unreachable_namenode_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(StorageFailed, match="localhost:1 cannot be reached: connection refused"):
        storage_for("hdfs://localhost:1/x").read("y")


# -- a DataNode that sends anything --


@contextmanager
def answering(content: bytes) -> Iterator[LocatedBlockProto]:
    """A block whose DataNode sends `content`, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        block = LocatedBlockProto(offset=0, corrupt=False)
        block.b.poolId, block.b.blockId, block.b.generationStamp = "pool", 1, 1
        for name in ("identifier", "password"):
            setattr(block.blockToken, name, b"")
        block.blockToken.kind = block.blockToken.service = ""
        node = block.locs.add().id
        node.ipAddr, node.hostName, node.datanodeUuid = "127.0.0.1", "localhost", "u"
        node.xferPort, node.infoPort, node.ipcPort = server.getsockname()[1], 0, 0
        try:
            yield block
        finally:
            thread.join()


def packet(offset: int, data: bytes) -> bytes:
    header = PacketHeaderProto(offsetInBlock=offset, seqno=0, lastPacketInBlock=not data, dataLen=len(data))
    raw = header.SerializeToString()
    return (4 + len(data)).to_bytes(4, "big") + len(raw).to_bytes(2, "big") + raw + data


STATUS = BlockOpResponseProto(status=SUCCESS).SerializeToString()
GOOD = bytes([len(STATUS)]) + STATUS + packet(0, b"0123456789") + packet(10, b"abcdefghij") + packet(20, b"")


def test_a_range_is_cut_out_of_packets() -> None:
    with answering(GOOD) as block:
        assert datanode.read_block(block, 3, 12) == b"3456789abcde"


@given(st.data())
def test_whatever_a_datanode_sends_is_data_or_a_named_error(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with answering(bytes(content)) as block, contextlib.suppress(HadoopError):
        assert len(datanode.read_block(block, 3, 12, timeout=20)) == 12
