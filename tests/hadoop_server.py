"""Hadoop's own RPC servers, in one JVM, with a method that does as it is told: see programs/RpcServer.java.

The messages are those of Hadoop's GenericRefreshProtocol, which nothing of ours uses.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message import Message

from trainmaster.clusters.hadoop.jars import jars, java
from trainmaster.hadoop.security.credentials import Token

PROGRAM = Path(__file__).parent / "programs/RpcServer.java"
PROTOCOL = "org.apache.hadoop.ipc.GenericRefreshProtocol"
FLAGS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]

_FIELDS = {
    "Request": [("identifier", 1, Field.TYPE_STRING, False), ("args", 2, Field.TYPE_STRING, True)],
    "Response": [("userMessage", 2, Field.TYPE_STRING, False), ("senderName", 3, Field.TYPE_STRING, False)],
    "Responses": [("responses", 1, Field.TYPE_MESSAGE, True)],
}


def _messages() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="refresh.proto", package="refresh")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            of = ".refresh.Response" if kind == Field.TYPE_MESSAGE else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"refresh.{name}")) for name in _FIELDS}


_MESSAGES = _messages()
Responses = _MESSAGES["Responses"]


def asked(verb: str, *words: str) -> Message:
    return _MESSAGES["Request"](identifier=verb, args=words)


@attrs.frozen
class Servers:
    """The JVM; `start` gives a server's port."""

    process: subprocess.Popen[str]

    def start(
        self, name: str, authentication: str = "simple", protection: str = "authentication", port: int = 0
    ) -> int:
        return int(self._ask(f"start {name} {port} {authentication} {protection}"))

    def stop(self, name: str) -> None:
        assert self._ask(f"stop {name}") == "stopped"

    def token(self, user: str) -> Token:
        identifier, password = self._ask(f"token {user}").split()
        return Token(bytes.fromhex(identifier), bytes.fromhex(password), "TEST", "")

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def hadoop_servers(log: Path) -> Iterator[Servers]:
    command = [java(), *FLAGS, "-cp", f"{jars()}/*", str(PROGRAM)]
    with (
        log.open("w") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        try:
            yield Servers(process)
        finally:
            process.kill()
