"""Our messages against Hadoop's: every message, field, number, type, label and default is as in the classes of the real jars."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from hadoop_oracle import says

from trainmaster.hadoop import hdfs, proto, yarn
from trainmaster.hadoop.proto import yarn_pb2
from trainmaster.hadoop.stub import Rpc, Stub

_YARN, _HADOOP = "org.apache.hadoop.yarn.proto", "org.apache.hadoop"
CLASSES = (
    f"{_YARN}.ApplicationClientProtocol",
    f"{_YARN}.ApplicationMasterProtocol",
    f"{_YARN}.ContainerManagementProtocol",
    f"{_YARN}.YarnSecurityTokenProtos",
    f"{_HADOOP}.ipc.protobuf.RpcHeaderProtos",
    f"{_HADOOP}.ipc.protobuf.IpcConnectionContextProtos",
    f"{_HADOOP}.ipc.protobuf.ProtobufRpcEngine2Protos",
    f"{_HADOOP}.security.proto.SecurityProtos",
    f"{_HADOOP}.hdfs.protocol.proto.ClientNamenodeProtocolProtos",
    f"{_HADOOP}.hdfs.protocol.proto.ClientDatanodeProtocolProtos",
    f"{_HADOOP}.hdfs.protocol.proto.DataTransferProtos",
)
OURS = {
    name: importlib.import_module(f"{proto.__name__}.{name}")
    for _, name, _ in pkgutil.iter_modules(proto.__path__)
    if name.endswith("_pb2")
}
SERVICES = {
    yarn.ResourceManager: "ApplicationClientProtocolService",
    yarn.Scheduler: "ApplicationMasterProtocolService",
    yarn.NodeManager: "ContainerManagementProtocolService",
    hdfs.Namenode: "ClientNamenodeProtocol",
    hdfs.Datanode: "ClientDatanodeProtocolService",
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorSet:
    out = tmp_path_factory.mktemp("descriptors") / "out"
    says("descriptors", out, *CLASSES)
    return FileDescriptorSet.FromString(out.read_bytes())


def messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """All messages by full name without our prefix, those inside others too."""

    def below(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        name = f"{prefix}.{message.name}"
        yield name, message
        for inner in message.nested_type:
            yield from below(name, inner)

    for message in file.message_type:
        yield from below(package(file), message)


def package(file: FileDescriptorProto) -> str:
    return file.package.removeprefix("trainmaster.")


def enums(file: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for one in file.enum_type:
        yield f"{package(file)}.{one.name}", one
    for name, message in messages(file):
        for one in message.enum_type:
            yield f"{name}.{one.name}", one


def shape(field: FieldDescriptorProto) -> tuple[str, int, str, str, str, bool, str]:
    return (
        field.name,
        field.number,
        FieldDescriptorProto.Label.Name(field.label),
        FieldDescriptorProto.Type.Name(field.type),
        field.type_name.removeprefix(".").removeprefix("trainmaster."),
        field.options.packed,
        field.default_value,
    )


def of(module: str) -> FileDescriptorProto:
    file = FileDescriptorProto()
    OURS[module].DESCRIPTOR.CopyToProto(file)
    return file


@pytest.mark.parametrize("module", sorted(OURS))
def test_every_field_of_ours_is_theirs(module: str, theirs: FileDescriptorSet) -> None:
    known = {name: {shape(field) for field in one.field} for file in theirs.file for name, one in messages(file)}
    ours = {name: {shape(field) for field in one.field} for name, one in messages(of(module))}
    assert ours.keys() - known.keys() == set()
    assert {name: wrong for name, fields in ours.items() if (wrong := fields - known[name])} == {}


@pytest.mark.parametrize("module", sorted(OURS))
def test_every_required_field_of_theirs_is_ours(module: str, theirs: FileDescriptorSet) -> None:
    required = {
        name: {field.name for field in one.field if field.label == FieldDescriptorProto.LABEL_REQUIRED}
        for file in theirs.file
        for name, one in messages(file)
    }
    ours = {name: {field.name for field in one.field} for name, one in messages(of(module))}
    assert {name: gone for name, fields in ours.items() if (gone := required[name] - fields)} == {}


@pytest.mark.parametrize("module", sorted(OURS))
def test_every_enumeration_is_theirs_whole(module: str, theirs: FileDescriptorSet) -> None:
    """Whole, since a value that we did not know would read as absent."""
    known = {name: [(v.name, v.number) for v in one.value] for file in theirs.file for name, one in enums(file)}
    ours = {name: [(v.name, v.number) for v in one.value] for name, one in enums(of(module))}
    assert ours == {name: known[name] for name in ours}


@pytest.mark.parametrize("stub", SERVICES, ids=lambda stub: stub.__name__)
def test_every_call_is_theirs_with_its_messages(stub: type[Stub], theirs: FileDescriptorSet) -> None:
    services = {service.name: service for file in theirs.file for service in file.service}
    known = {one.name: (one.input_type, one.output_type) for one in services[SERVICES[stub]].method}
    ours = [one for one in vars(stub).values() if isinstance(one, Rpc)]
    assert ours
    for one in ours:
        names = [
            f".{message.DESCRIPTOR.full_name.removeprefix('trainmaster.')}" for message in (one.request, one.response)
        ]
        assert known[one.method] == tuple(names), one.method


def test_exit_statuses_are_theirs() -> None:
    said = says("constants", "org.apache.hadoop.yarn.api.records.ContainerExitStatus")
    assert {line.split()[0]: int(line.split()[1]) for line in said.splitlines()} == {
        status.name: status.value for status in yarn.ExitStatus
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (yarn.ApplicationState, yarn_pb2.YarnApplicationStateProto, ""),
        (yarn.FinalStatus, yarn_pb2.FinalApplicationStatusProto, "APP_"),
    ],
)
def test_enumerations_for_people_are_the_messages_own(ours: type, theirs: object, prefix: str) -> None:
    assert {f"{prefix}{one.name}": one.value for one in ours} == dict(theirs.items())


# -- identities and tokens --


@pytest.mark.parametrize(
    ("text", "number", "attempt"),
    [
        ("container_1700000000000_0001_01_000002", 2, 1),
        ("container_e02_1700000000000_0001_02_000010", (2 << 40) + 10, 2),
        ("container_e103_1700000000000_0001_01_1234567", (103 << 40) + 1234567, 1),
    ],
)
def test_a_container_in_text(text: str, number: int, attempt: int) -> None:
    container = yarn.container_id(text)
    assert (container.id, container.app_attempt_id.attemptId) == (number, attempt)
    assert container.app_attempt_id.application_id.cluster_timestamp == 1700000000000
    assert yarn.container_id_text(container) == text


def test_applications_and_attempts_in_text() -> None:
    for text in ("application_1700000000000_0001", "application_1700000000000_12345"):
        assert yarn.application_id_text(yarn.application_id(text)) == text
    text = "appattempt_1700000000000_0001_000002"
    attempt = yarn.attempt_id(text)
    assert (attempt.application_id.id, attempt.attemptId) == (1, 2)
    assert yarn.attempt_id_text(attempt) == text


@pytest.mark.parametrize(
    "text", ["", "application_1", "application_1_2_3", "application_x_1", "xapplication_1_1", "application_١_1"]
)
def test_what_is_no_application_is_reported(text: str) -> None:
    with pytest.raises(yarn.Garbled, match=f"'{text}' is not of the form application_<start"):
        yarn.application_id(text)


def test_a_token_there_and_back() -> None:
    token = yarn.Token(b"\x00id", b"pw", "kind", "1.2.3.4:5")
    assert yarn.token_of(yarn.token_proto(token)) == token


def test_a_message_byte_by_byte() -> None:
    request = yarn_pb2.GetApplicationReportRequestProto(application_id=yarn.application_id("application_5_7"))
    assert request.SerializeToString() == bytes.fromhex("0a0408071005")
