from trainmaster.hadoop.proto import hdfs_pb2 as _hdfs_pb2
from trainmaster.hadoop.proto import security_pb2 as _security_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[Status]
    ERROR: _ClassVar[Status]
    ERROR_CHECKSUM: _ClassVar[Status]
    ERROR_INVALID: _ClassVar[Status]
    ERROR_EXISTS: _ClassVar[Status]
    ERROR_ACCESS_TOKEN: _ClassVar[Status]
    CHECKSUM_OK: _ClassVar[Status]
    ERROR_UNSUPPORTED: _ClassVar[Status]
    OOB_RESTART: _ClassVar[Status]
    OOB_RESERVED1: _ClassVar[Status]
    OOB_RESERVED2: _ClassVar[Status]
    OOB_RESERVED3: _ClassVar[Status]
    IN_PROGRESS: _ClassVar[Status]
    ERROR_BLOCK_PINNED: _ClassVar[Status]
SUCCESS: Status
ERROR: Status
ERROR_CHECKSUM: Status
ERROR_INVALID: Status
ERROR_EXISTS: Status
ERROR_ACCESS_TOKEN: Status
CHECKSUM_OK: Status
ERROR_UNSUPPORTED: Status
OOB_RESTART: Status
OOB_RESERVED1: Status
OOB_RESERVED2: Status
OOB_RESERVED3: Status
IN_PROGRESS: Status
ERROR_BLOCK_PINNED: Status

class DataTransferEncryptorMessageProto(_message.Message):
    __slots__ = ("status", "payload", "message")
    class DataTransferEncryptorStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[DataTransferEncryptorMessageProto.DataTransferEncryptorStatus]
        ERROR_UNKNOWN_KEY: _ClassVar[DataTransferEncryptorMessageProto.DataTransferEncryptorStatus]
        ERROR: _ClassVar[DataTransferEncryptorMessageProto.DataTransferEncryptorStatus]
    SUCCESS: DataTransferEncryptorMessageProto.DataTransferEncryptorStatus
    ERROR_UNKNOWN_KEY: DataTransferEncryptorMessageProto.DataTransferEncryptorStatus
    ERROR: DataTransferEncryptorMessageProto.DataTransferEncryptorStatus
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: DataTransferEncryptorMessageProto.DataTransferEncryptorStatus
    payload: bytes
    message: str
    def __init__(self, status: _Optional[_Union[DataTransferEncryptorMessageProto.DataTransferEncryptorStatus, str]] = ..., payload: _Optional[bytes] = ..., message: _Optional[str] = ...) -> None: ...

class BaseHeaderProto(_message.Message):
    __slots__ = ("block", "token")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    block: _hdfs_pb2.ExtendedBlockProto
    token: _security_pb2.TokenProto
    def __init__(self, block: _Optional[_Union[_hdfs_pb2.ExtendedBlockProto, _Mapping[str, object]]] = ..., token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ...) -> None: ...

class ClientOperationHeaderProto(_message.Message):
    __slots__ = ("baseHeader", "clientName")
    BASEHEADER_FIELD_NUMBER: _ClassVar[int]
    CLIENTNAME_FIELD_NUMBER: _ClassVar[int]
    baseHeader: BaseHeaderProto
    clientName: str
    def __init__(self, baseHeader: _Optional[_Union[BaseHeaderProto, _Mapping[str, object]]] = ..., clientName: _Optional[str] = ...) -> None: ...

class OpReadBlockProto(_message.Message):
    __slots__ = ("header", "offset", "len", "sendChecksums")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEN_FIELD_NUMBER: _ClassVar[int]
    SENDCHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    header: ClientOperationHeaderProto
    offset: int
    len: int
    sendChecksums: bool
    def __init__(self, header: _Optional[_Union[ClientOperationHeaderProto, _Mapping[str, object]]] = ..., offset: _Optional[int] = ..., len: _Optional[int] = ..., sendChecksums: _Optional[bool] = ...) -> None: ...

class BlockOpResponseProto(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ...) -> None: ...

class PacketHeaderProto(_message.Message):
    __slots__ = ("offsetInBlock", "seqno", "lastPacketInBlock", "dataLen", "syncBlock")
    OFFSETINBLOCK_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    LASTPACKETINBLOCK_FIELD_NUMBER: _ClassVar[int]
    DATALEN_FIELD_NUMBER: _ClassVar[int]
    SYNCBLOCK_FIELD_NUMBER: _ClassVar[int]
    offsetInBlock: int
    seqno: int
    lastPacketInBlock: bool
    dataLen: int
    syncBlock: bool
    def __init__(self, offsetInBlock: _Optional[int] = ..., seqno: _Optional[int] = ..., lastPacketInBlock: _Optional[bool] = ..., dataLen: _Optional[int] = ..., syncBlock: _Optional[bool] = ...) -> None: ...

class ClientReadStatusProto(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, str]] = ...) -> None: ...
