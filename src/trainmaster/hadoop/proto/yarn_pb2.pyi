from trainmaster.hadoop.proto import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResourceTypesProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COUNTABLE: _ClassVar[ResourceTypesProto]

class ContainerStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    C_NEW: _ClassVar[ContainerStateProto]
    C_RUNNING: _ClassVar[ContainerStateProto]
    C_COMPLETE: _ClassVar[ContainerStateProto]

class ContainerSubStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CSS_SCHEDULED: _ClassVar[ContainerSubStateProto]
    CSS_RUNNING: _ClassVar[ContainerSubStateProto]
    CSS_PAUSED: _ClassVar[ContainerSubStateProto]
    CSS_COMPLETING: _ClassVar[ContainerSubStateProto]
    CSS_DONE: _ClassVar[ContainerSubStateProto]

class YarnApplicationStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW: _ClassVar[YarnApplicationStateProto]
    NEW_SAVING: _ClassVar[YarnApplicationStateProto]
    SUBMITTED: _ClassVar[YarnApplicationStateProto]
    ACCEPTED: _ClassVar[YarnApplicationStateProto]
    RUNNING: _ClassVar[YarnApplicationStateProto]
    FINISHED: _ClassVar[YarnApplicationStateProto]
    FAILED: _ClassVar[YarnApplicationStateProto]
    KILLED: _ClassVar[YarnApplicationStateProto]

class YarnApplicationAttemptStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APP_ATTEMPT_NEW: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_SUBMITTED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_SCHEDULED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_ALLOCATED_SAVING: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_ALLOCATED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_LAUNCHED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_FAILED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_RUNNING: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_FINISHING: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_FINISHED: _ClassVar[YarnApplicationAttemptStateProto]
    APP_ATTEMPT_KILLED: _ClassVar[YarnApplicationAttemptStateProto]

class FinalApplicationStatusProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APP_UNDEFINED: _ClassVar[FinalApplicationStatusProto]
    APP_SUCCEEDED: _ClassVar[FinalApplicationStatusProto]
    APP_FAILED: _ClassVar[FinalApplicationStatusProto]
    APP_KILLED: _ClassVar[FinalApplicationStatusProto]
    APP_ENDED: _ClassVar[FinalApplicationStatusProto]

class LocalResourceVisibilityProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUBLIC: _ClassVar[LocalResourceVisibilityProto]
    PRIVATE: _ClassVar[LocalResourceVisibilityProto]
    APPLICATION: _ClassVar[LocalResourceVisibilityProto]

class LocalResourceTypeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARCHIVE: _ClassVar[LocalResourceTypeProto]
    FILE: _ClassVar[LocalResourceTypeProto]
    PATTERN: _ClassVar[LocalResourceTypeProto]

class LogAggregationStatusProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_DISABLED: _ClassVar[LogAggregationStatusProto]
    LOG_NOT_START: _ClassVar[LogAggregationStatusProto]
    LOG_RUNNING: _ClassVar[LogAggregationStatusProto]
    LOG_SUCCEEDED: _ClassVar[LogAggregationStatusProto]
    LOG_FAILED: _ClassVar[LogAggregationStatusProto]
    LOG_TIME_OUT: _ClassVar[LogAggregationStatusProto]
    LOG_RUNNING_WITH_FAILURE: _ClassVar[LogAggregationStatusProto]

class NodeStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NS_NEW: _ClassVar[NodeStateProto]
    NS_RUNNING: _ClassVar[NodeStateProto]
    NS_UNHEALTHY: _ClassVar[NodeStateProto]
    NS_DECOMMISSIONED: _ClassVar[NodeStateProto]
    NS_LOST: _ClassVar[NodeStateProto]
    NS_REBOOTED: _ClassVar[NodeStateProto]
    NS_DECOMMISSIONING: _ClassVar[NodeStateProto]
    NS_SHUTDOWN: _ClassVar[NodeStateProto]

class NodeUpdateTypeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_USABLE: _ClassVar[NodeUpdateTypeProto]
    NODE_UNUSABLE: _ClassVar[NodeUpdateTypeProto]
    NODE_DECOMMISSIONING: _ClassVar[NodeUpdateTypeProto]

class ExecutionTypeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GUARANTEED: _ClassVar[ExecutionTypeProto]
    OPPORTUNISTIC: _ClassVar[ExecutionTypeProto]

class AMCommandProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AM_RESYNC: _ClassVar[AMCommandProto]
    AM_SHUTDOWN: _ClassVar[AMCommandProto]

class ApplicationTimeoutTypeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APP_TIMEOUT_LIFETIME: _ClassVar[ApplicationTimeoutTypeProto]

class ApplicationAccessTypeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPACCESS_VIEW_APP: _ClassVar[ApplicationAccessTypeProto]
    APPACCESS_MODIFY_APP: _ClassVar[ApplicationAccessTypeProto]

class QueueStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Q_STOPPED: _ClassVar[QueueStateProto]
    Q_RUNNING: _ClassVar[QueueStateProto]
    Q_DRAINING: _ClassVar[QueueStateProto]

class QueueACLProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QACL_SUBMIT_APPLICATIONS: _ClassVar[QueueACLProto]
    QACL_ADMINISTER_QUEUE: _ClassVar[QueueACLProto]

class SignalContainerCommandProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_THREAD_DUMP: _ClassVar[SignalContainerCommandProto]
    GRACEFUL_SHUTDOWN: _ClassVar[SignalContainerCommandProto]
    FORCEFUL_SHUTDOWN: _ClassVar[SignalContainerCommandProto]

class ContainerRetryPolicyProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEVER_RETRY: _ClassVar[ContainerRetryPolicyProto]
    RETRY_ON_ALL_ERRORS: _ClassVar[ContainerRetryPolicyProto]
    RETRY_ON_SPECIFIC_ERROR_CODES: _ClassVar[ContainerRetryPolicyProto]

class SchedulerResourceTypes(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY: _ClassVar[SchedulerResourceTypes]
    CPU: _ClassVar[SchedulerResourceTypes]

class ApplicationsRequestScopeProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALL: _ClassVar[ApplicationsRequestScopeProto]
    VIEWABLE: _ClassVar[ApplicationsRequestScopeProto]
    OWN: _ClassVar[ApplicationsRequestScopeProto]

class LocalizationStateProto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    L_PENDING: _ClassVar[LocalizationStateProto]
    L_COMPLETED: _ClassVar[LocalizationStateProto]
    L_FAILED: _ClassVar[LocalizationStateProto]
COUNTABLE: ResourceTypesProto
C_NEW: ContainerStateProto
C_RUNNING: ContainerStateProto
C_COMPLETE: ContainerStateProto
CSS_SCHEDULED: ContainerSubStateProto
CSS_RUNNING: ContainerSubStateProto
CSS_PAUSED: ContainerSubStateProto
CSS_COMPLETING: ContainerSubStateProto
CSS_DONE: ContainerSubStateProto
NEW: YarnApplicationStateProto
NEW_SAVING: YarnApplicationStateProto
SUBMITTED: YarnApplicationStateProto
ACCEPTED: YarnApplicationStateProto
RUNNING: YarnApplicationStateProto
FINISHED: YarnApplicationStateProto
FAILED: YarnApplicationStateProto
KILLED: YarnApplicationStateProto
APP_ATTEMPT_NEW: YarnApplicationAttemptStateProto
APP_ATTEMPT_SUBMITTED: YarnApplicationAttemptStateProto
APP_ATTEMPT_SCHEDULED: YarnApplicationAttemptStateProto
APP_ATTEMPT_ALLOCATED_SAVING: YarnApplicationAttemptStateProto
APP_ATTEMPT_ALLOCATED: YarnApplicationAttemptStateProto
APP_ATTEMPT_LAUNCHED: YarnApplicationAttemptStateProto
APP_ATTEMPT_FAILED: YarnApplicationAttemptStateProto
APP_ATTEMPT_RUNNING: YarnApplicationAttemptStateProto
APP_ATTEMPT_FINISHING: YarnApplicationAttemptStateProto
APP_ATTEMPT_FINISHED: YarnApplicationAttemptStateProto
APP_ATTEMPT_KILLED: YarnApplicationAttemptStateProto
APP_UNDEFINED: FinalApplicationStatusProto
APP_SUCCEEDED: FinalApplicationStatusProto
APP_FAILED: FinalApplicationStatusProto
APP_KILLED: FinalApplicationStatusProto
APP_ENDED: FinalApplicationStatusProto
PUBLIC: LocalResourceVisibilityProto
PRIVATE: LocalResourceVisibilityProto
APPLICATION: LocalResourceVisibilityProto
ARCHIVE: LocalResourceTypeProto
FILE: LocalResourceTypeProto
PATTERN: LocalResourceTypeProto
LOG_DISABLED: LogAggregationStatusProto
LOG_NOT_START: LogAggregationStatusProto
LOG_RUNNING: LogAggregationStatusProto
LOG_SUCCEEDED: LogAggregationStatusProto
LOG_FAILED: LogAggregationStatusProto
LOG_TIME_OUT: LogAggregationStatusProto
LOG_RUNNING_WITH_FAILURE: LogAggregationStatusProto
NS_NEW: NodeStateProto
NS_RUNNING: NodeStateProto
NS_UNHEALTHY: NodeStateProto
NS_DECOMMISSIONED: NodeStateProto
NS_LOST: NodeStateProto
NS_REBOOTED: NodeStateProto
NS_DECOMMISSIONING: NodeStateProto
NS_SHUTDOWN: NodeStateProto
NODE_USABLE: NodeUpdateTypeProto
NODE_UNUSABLE: NodeUpdateTypeProto
NODE_DECOMMISSIONING: NodeUpdateTypeProto
GUARANTEED: ExecutionTypeProto
OPPORTUNISTIC: ExecutionTypeProto
AM_RESYNC: AMCommandProto
AM_SHUTDOWN: AMCommandProto
APP_TIMEOUT_LIFETIME: ApplicationTimeoutTypeProto
APPACCESS_VIEW_APP: ApplicationAccessTypeProto
APPACCESS_MODIFY_APP: ApplicationAccessTypeProto
Q_STOPPED: QueueStateProto
Q_RUNNING: QueueStateProto
Q_DRAINING: QueueStateProto
QACL_SUBMIT_APPLICATIONS: QueueACLProto
QACL_ADMINISTER_QUEUE: QueueACLProto
OUTPUT_THREAD_DUMP: SignalContainerCommandProto
GRACEFUL_SHUTDOWN: SignalContainerCommandProto
FORCEFUL_SHUTDOWN: SignalContainerCommandProto
NEVER_RETRY: ContainerRetryPolicyProto
RETRY_ON_ALL_ERRORS: ContainerRetryPolicyProto
RETRY_ON_SPECIFIC_ERROR_CODES: ContainerRetryPolicyProto
MEMORY: SchedulerResourceTypes
CPU: SchedulerResourceTypes
ALL: ApplicationsRequestScopeProto
VIEWABLE: ApplicationsRequestScopeProto
OWN: ApplicationsRequestScopeProto
L_PENDING: LocalizationStateProto
L_COMPLETED: LocalizationStateProto
L_FAILED: LocalizationStateProto

class ApplicationIdProto(_message.Message):
    __slots__ = ("id", "cluster_timestamp")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    id: int
    cluster_timestamp: int
    def __init__(self, id: _Optional[int] = ..., cluster_timestamp: _Optional[int] = ...) -> None: ...

class ApplicationAttemptIdProto(_message.Message):
    __slots__ = ("application_id", "attemptId")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTID_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    attemptId: int
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., attemptId: _Optional[int] = ...) -> None: ...

class ContainerIdProto(_message.Message):
    __slots__ = ("app_attempt_id", "id")
    APP_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    app_attempt_id: ApplicationAttemptIdProto
    id: int
    def __init__(self, app_attempt_id: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ..., id: _Optional[int] = ...) -> None: ...

class NodeIdProto(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class ResourceInformationProto(_message.Message):
    __slots__ = ("key", "value", "units", "type")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: int
    units: str
    type: ResourceTypesProto
    def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ..., units: _Optional[str] = ..., type: _Optional[_Union[ResourceTypesProto, str]] = ...) -> None: ...

class ResourceTypeInfoProto(_message.Message):
    __slots__ = ("name", "units", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    units: str
    type: ResourceTypesProto
    def __init__(self, name: _Optional[str] = ..., units: _Optional[str] = ..., type: _Optional[_Union[ResourceTypesProto, str]] = ...) -> None: ...

class ResourceProto(_message.Message):
    __slots__ = ("memory", "virtual_cores", "resource_value_map")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_CORES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VALUE_MAP_FIELD_NUMBER: _ClassVar[int]
    memory: int
    virtual_cores: int
    resource_value_map: _containers.RepeatedCompositeFieldContainer[ResourceInformationProto]
    def __init__(self, memory: _Optional[int] = ..., virtual_cores: _Optional[int] = ..., resource_value_map: _Optional[_Iterable[_Union[ResourceInformationProto, _Mapping[str, object]]]] = ...) -> None: ...

class PriorityProto(_message.Message):
    __slots__ = ("priority",)
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    priority: int
    def __init__(self, priority: _Optional[int] = ...) -> None: ...

class ResourceUtilizationProto(_message.Message):
    __slots__ = ("pmem", "vmem", "cpu")
    PMEM_FIELD_NUMBER: _ClassVar[int]
    VMEM_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    pmem: int
    vmem: int
    cpu: float
    def __init__(self, pmem: _Optional[int] = ..., vmem: _Optional[int] = ..., cpu: _Optional[float] = ...) -> None: ...

class URLProto(_message.Message):
    __slots__ = ("scheme", "host", "port", "file", "userInfo")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    USERINFO_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    host: str
    port: int
    file: str
    userInfo: str
    def __init__(self, scheme: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., file: _Optional[str] = ..., userInfo: _Optional[str] = ...) -> None: ...

class LocalResourceProto(_message.Message):
    __slots__ = ("resource", "size", "timestamp", "type", "visibility", "pattern")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    resource: URLProto
    size: int
    timestamp: int
    type: LocalResourceTypeProto
    visibility: LocalResourceVisibilityProto
    pattern: str
    def __init__(self, resource: _Optional[_Union[URLProto, _Mapping[str, object]]] = ..., size: _Optional[int] = ..., timestamp: _Optional[int] = ..., type: _Optional[_Union[LocalResourceTypeProto, str]] = ..., visibility: _Optional[_Union[LocalResourceVisibilityProto, str]] = ..., pattern: _Optional[str] = ...) -> None: ...

class StringLocalResourceMapProto(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: LocalResourceProto
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LocalResourceProto, _Mapping[str, object]]] = ...) -> None: ...

class StringStringMapProto(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class StringBytesMapProto(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ApplicationACLMapProto(_message.Message):
    __slots__ = ("accessType", "acl")
    ACCESSTYPE_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    accessType: ApplicationAccessTypeProto
    acl: str
    def __init__(self, accessType: _Optional[_Union[ApplicationAccessTypeProto, str]] = ..., acl: _Optional[str] = ...) -> None: ...

class ContainerRetryContextProto(_message.Message):
    __slots__ = ("retry_policy", "error_codes", "max_retries", "retry_interval", "failures_validity_interval")
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODES_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    FAILURES_VALIDITY_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    retry_policy: ContainerRetryPolicyProto
    error_codes: _containers.RepeatedScalarFieldContainer[int]
    max_retries: int
    retry_interval: int
    failures_validity_interval: int
    def __init__(self, retry_policy: _Optional[_Union[ContainerRetryPolicyProto, str]] = ..., error_codes: _Optional[_Iterable[int]] = ..., max_retries: _Optional[int] = ..., retry_interval: _Optional[int] = ..., failures_validity_interval: _Optional[int] = ...) -> None: ...

class ContainerLaunchContextProto(_message.Message):
    __slots__ = ("localResources", "tokens", "environment", "command", "application_ACLs", "container_retry_context", "tokens_conf")
    LOCALRESOURCES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ACLS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_RETRY_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_CONF_FIELD_NUMBER: _ClassVar[int]
    localResources: _containers.RepeatedCompositeFieldContainer[StringLocalResourceMapProto]
    tokens: bytes
    environment: _containers.RepeatedCompositeFieldContainer[StringStringMapProto]
    command: _containers.RepeatedScalarFieldContainer[str]
    application_ACLs: _containers.RepeatedCompositeFieldContainer[ApplicationACLMapProto]
    container_retry_context: ContainerRetryContextProto
    tokens_conf: bytes
    def __init__(self, localResources: _Optional[_Iterable[_Union[StringLocalResourceMapProto, _Mapping[str, object]]]] = ..., tokens: _Optional[bytes] = ..., environment: _Optional[_Iterable[_Union[StringStringMapProto, _Mapping[str, object]]]] = ..., command: _Optional[_Iterable[str]] = ..., application_ACLs: _Optional[_Iterable[_Union[ApplicationACLMapProto, _Mapping[str, object]]]] = ..., container_retry_context: _Optional[_Union[ContainerRetryContextProto, _Mapping[str, object]]] = ..., tokens_conf: _Optional[bytes] = ...) -> None: ...

class LogAggregationContextProto(_message.Message):
    __slots__ = ("include_pattern", "exclude_pattern", "rolled_logs_include_pattern", "rolled_logs_exclude_pattern", "log_aggregation_policy_class_name", "log_aggregation_policy_parameters")
    INCLUDE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ROLLED_LOGS_INCLUDE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ROLLED_LOGS_EXCLUDE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    LOG_AGGREGATION_POLICY_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    LOG_AGGREGATION_POLICY_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    include_pattern: str
    exclude_pattern: str
    rolled_logs_include_pattern: str
    rolled_logs_exclude_pattern: str
    log_aggregation_policy_class_name: str
    log_aggregation_policy_parameters: str
    def __init__(self, include_pattern: _Optional[str] = ..., exclude_pattern: _Optional[str] = ..., rolled_logs_include_pattern: _Optional[str] = ..., rolled_logs_exclude_pattern: _Optional[str] = ..., log_aggregation_policy_class_name: _Optional[str] = ..., log_aggregation_policy_parameters: _Optional[str] = ...) -> None: ...

class ApplicationTimeoutMapProto(_message.Message):
    __slots__ = ("application_timeout_type", "timeout")
    APPLICATION_TIMEOUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    application_timeout_type: ApplicationTimeoutTypeProto
    timeout: int
    def __init__(self, application_timeout_type: _Optional[_Union[ApplicationTimeoutTypeProto, str]] = ..., timeout: _Optional[int] = ...) -> None: ...

class ExecutionTypeRequestProto(_message.Message):
    __slots__ = ("execution_type", "enforce_execution_type")
    EXECUTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_EXECUTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    execution_type: ExecutionTypeProto
    enforce_execution_type: bool
    def __init__(self, execution_type: _Optional[_Union[ExecutionTypeProto, str]] = ..., enforce_execution_type: _Optional[bool] = ...) -> None: ...

class ResourceRequestProto(_message.Message):
    __slots__ = ("priority", "resource_name", "capability", "num_containers", "relax_locality", "node_label_expression", "execution_type_request", "allocation_request_id")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    RELAX_LOCALITY_FIELD_NUMBER: _ClassVar[int]
    NODE_LABEL_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TYPE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    priority: PriorityProto
    resource_name: str
    capability: ResourceProto
    num_containers: int
    relax_locality: bool
    node_label_expression: str
    execution_type_request: ExecutionTypeRequestProto
    allocation_request_id: int
    def __init__(self, priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., resource_name: _Optional[str] = ..., capability: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., num_containers: _Optional[int] = ..., relax_locality: _Optional[bool] = ..., node_label_expression: _Optional[str] = ..., execution_type_request: _Optional[_Union[ExecutionTypeRequestProto, _Mapping[str, object]]] = ..., allocation_request_id: _Optional[int] = ...) -> None: ...

class ApplicationSubmissionContextProto(_message.Message):
    __slots__ = ("application_id", "application_name", "queue", "priority", "am_container_spec", "cancel_tokens_when_complete", "unmanaged_am", "maxAppAttempts", "resource", "applicationType", "keep_containers_across_application_attempts", "applicationTags", "attempt_failures_validity_interval", "log_aggregation_context", "node_label_expression", "am_container_resource_request", "application_timeouts", "application_scheduling_properties")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AM_CONTAINER_SPEC_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TOKENS_WHEN_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    UNMANAGED_AM_FIELD_NUMBER: _ClassVar[int]
    MAXAPPATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONTYPE_FIELD_NUMBER: _ClassVar[int]
    KEEP_CONTAINERS_ACROSS_APPLICATION_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONTAGS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FAILURES_VALIDITY_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LOG_AGGREGATION_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    NODE_LABEL_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    AM_CONTAINER_RESOURCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_SCHEDULING_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    application_name: str
    queue: str
    priority: PriorityProto
    am_container_spec: ContainerLaunchContextProto
    cancel_tokens_when_complete: bool
    unmanaged_am: bool
    maxAppAttempts: int
    resource: ResourceProto
    applicationType: str
    keep_containers_across_application_attempts: bool
    applicationTags: _containers.RepeatedScalarFieldContainer[str]
    attempt_failures_validity_interval: int
    log_aggregation_context: LogAggregationContextProto
    node_label_expression: str
    am_container_resource_request: _containers.RepeatedCompositeFieldContainer[ResourceRequestProto]
    application_timeouts: _containers.RepeatedCompositeFieldContainer[ApplicationTimeoutMapProto]
    application_scheduling_properties: _containers.RepeatedCompositeFieldContainer[StringStringMapProto]
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., application_name: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., am_container_spec: _Optional[_Union[ContainerLaunchContextProto, _Mapping[str, object]]] = ..., cancel_tokens_when_complete: _Optional[bool] = ..., unmanaged_am: _Optional[bool] = ..., maxAppAttempts: _Optional[int] = ..., resource: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., applicationType: _Optional[str] = ..., keep_containers_across_application_attempts: _Optional[bool] = ..., applicationTags: _Optional[_Iterable[str]] = ..., attempt_failures_validity_interval: _Optional[int] = ..., log_aggregation_context: _Optional[_Union[LogAggregationContextProto, _Mapping[str, object]]] = ..., node_label_expression: _Optional[str] = ..., am_container_resource_request: _Optional[_Iterable[_Union[ResourceRequestProto, _Mapping[str, object]]]] = ..., application_timeouts: _Optional[_Iterable[_Union[ApplicationTimeoutMapProto, _Mapping[str, object]]]] = ..., application_scheduling_properties: _Optional[_Iterable[_Union[StringStringMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class StringLongMapProto(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class ApplicationResourceUsageReportProto(_message.Message):
    __slots__ = ("num_used_containers", "num_reserved_containers", "used_resources", "reserved_resources", "needed_resources", "memory_seconds", "vcore_seconds", "queue_usage_percentage", "cluster_usage_percentage", "preempted_memory_seconds", "preempted_vcore_seconds", "application_resource_usage_map", "application_preempted_resource_usage_map")
    NUM_USED_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVED_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    USED_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    NEEDED_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VCORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_USAGE_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_USAGE_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_MEMORY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_VCORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_RESOURCE_USAGE_MAP_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_PREEMPTED_RESOURCE_USAGE_MAP_FIELD_NUMBER: _ClassVar[int]
    num_used_containers: int
    num_reserved_containers: int
    used_resources: ResourceProto
    reserved_resources: ResourceProto
    needed_resources: ResourceProto
    memory_seconds: int
    vcore_seconds: int
    queue_usage_percentage: float
    cluster_usage_percentage: float
    preempted_memory_seconds: int
    preempted_vcore_seconds: int
    application_resource_usage_map: _containers.RepeatedCompositeFieldContainer[StringLongMapProto]
    application_preempted_resource_usage_map: _containers.RepeatedCompositeFieldContainer[StringLongMapProto]
    def __init__(self, num_used_containers: _Optional[int] = ..., num_reserved_containers: _Optional[int] = ..., used_resources: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., reserved_resources: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., needed_resources: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., memory_seconds: _Optional[int] = ..., vcore_seconds: _Optional[int] = ..., queue_usage_percentage: _Optional[float] = ..., cluster_usage_percentage: _Optional[float] = ..., preempted_memory_seconds: _Optional[int] = ..., preempted_vcore_seconds: _Optional[int] = ..., application_resource_usage_map: _Optional[_Iterable[_Union[StringLongMapProto, _Mapping[str, object]]]] = ..., application_preempted_resource_usage_map: _Optional[_Iterable[_Union[StringLongMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class ApplicationTimeoutProto(_message.Message):
    __slots__ = ("application_timeout_type", "expire_time", "remaining_time")
    APPLICATION_TIMEOUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    REMAINING_TIME_FIELD_NUMBER: _ClassVar[int]
    application_timeout_type: ApplicationTimeoutTypeProto
    expire_time: str
    remaining_time: int
    def __init__(self, application_timeout_type: _Optional[_Union[ApplicationTimeoutTypeProto, str]] = ..., expire_time: _Optional[str] = ..., remaining_time: _Optional[int] = ...) -> None: ...

class AppTimeoutsMapProto(_message.Message):
    __slots__ = ("application_timeout_type", "application_timeout")
    APPLICATION_TIMEOUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    application_timeout_type: ApplicationTimeoutTypeProto
    application_timeout: ApplicationTimeoutProto
    def __init__(self, application_timeout_type: _Optional[_Union[ApplicationTimeoutTypeProto, str]] = ..., application_timeout: _Optional[_Union[ApplicationTimeoutProto, _Mapping[str, object]]] = ...) -> None: ...

class ApplicationReportProto(_message.Message):
    __slots__ = ("applicationId", "user", "queue", "name", "host", "rpc_port", "client_to_am_token", "yarn_application_state", "trackingUrl", "diagnostics", "startTime", "finishTime", "final_application_status", "app_resource_Usage", "originalTrackingUrl", "currentApplicationAttemptId", "progress", "applicationType", "am_rm_token", "applicationTags", "log_aggregation_status", "unmanaged_application", "priority", "appNodeLabelExpression", "amNodeLabelExpression", "appTimeouts", "launchTime", "submitTime")
    APPLICATIONID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RPC_PORT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TO_AM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    YARN_APPLICATION_STATE_FIELD_NUMBER: _ClassVar[int]
    TRACKINGURL_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    STARTTIME_FIELD_NUMBER: _ClassVar[int]
    FINISHTIME_FIELD_NUMBER: _ClassVar[int]
    FINAL_APPLICATION_STATUS_FIELD_NUMBER: _ClassVar[int]
    APP_RESOURCE_USAGE_FIELD_NUMBER: _ClassVar[int]
    ORIGINALTRACKINGURL_FIELD_NUMBER: _ClassVar[int]
    CURRENTAPPLICATIONATTEMPTID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONTYPE_FIELD_NUMBER: _ClassVar[int]
    AM_RM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONTAGS_FIELD_NUMBER: _ClassVar[int]
    LOG_AGGREGATION_STATUS_FIELD_NUMBER: _ClassVar[int]
    UNMANAGED_APPLICATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    APPNODELABELEXPRESSION_FIELD_NUMBER: _ClassVar[int]
    AMNODELABELEXPRESSION_FIELD_NUMBER: _ClassVar[int]
    APPTIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHTIME_FIELD_NUMBER: _ClassVar[int]
    SUBMITTIME_FIELD_NUMBER: _ClassVar[int]
    applicationId: ApplicationIdProto
    user: str
    queue: str
    name: str
    host: str
    rpc_port: int
    client_to_am_token: _security_pb2.TokenProto
    yarn_application_state: YarnApplicationStateProto
    trackingUrl: str
    diagnostics: str
    startTime: int
    finishTime: int
    final_application_status: FinalApplicationStatusProto
    app_resource_Usage: ApplicationResourceUsageReportProto
    originalTrackingUrl: str
    currentApplicationAttemptId: ApplicationAttemptIdProto
    progress: float
    applicationType: str
    am_rm_token: _security_pb2.TokenProto
    applicationTags: _containers.RepeatedScalarFieldContainer[str]
    log_aggregation_status: LogAggregationStatusProto
    unmanaged_application: bool
    priority: PriorityProto
    appNodeLabelExpression: str
    amNodeLabelExpression: str
    appTimeouts: _containers.RepeatedCompositeFieldContainer[AppTimeoutsMapProto]
    launchTime: int
    submitTime: int
    def __init__(self, applicationId: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., user: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., host: _Optional[str] = ..., rpc_port: _Optional[int] = ..., client_to_am_token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ..., yarn_application_state: _Optional[_Union[YarnApplicationStateProto, str]] = ..., trackingUrl: _Optional[str] = ..., diagnostics: _Optional[str] = ..., startTime: _Optional[int] = ..., finishTime: _Optional[int] = ..., final_application_status: _Optional[_Union[FinalApplicationStatusProto, str]] = ..., app_resource_Usage: _Optional[_Union[ApplicationResourceUsageReportProto, _Mapping[str, object]]] = ..., originalTrackingUrl: _Optional[str] = ..., currentApplicationAttemptId: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ..., progress: _Optional[float] = ..., applicationType: _Optional[str] = ..., am_rm_token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ..., applicationTags: _Optional[_Iterable[str]] = ..., log_aggregation_status: _Optional[_Union[LogAggregationStatusProto, str]] = ..., unmanaged_application: _Optional[bool] = ..., priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., appNodeLabelExpression: _Optional[str] = ..., amNodeLabelExpression: _Optional[str] = ..., appTimeouts: _Optional[_Iterable[_Union[AppTimeoutsMapProto, _Mapping[str, object]]]] = ..., launchTime: _Optional[int] = ..., submitTime: _Optional[int] = ...) -> None: ...

class ApplicationAttemptReportProto(_message.Message):
    __slots__ = ("application_attempt_id", "host", "rpc_port", "tracking_url", "diagnostics", "yarn_application_attempt_state", "am_container_id", "original_tracking_url", "startTime", "finishTime")
    APPLICATION_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RPC_PORT_FIELD_NUMBER: _ClassVar[int]
    TRACKING_URL_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    YARN_APPLICATION_ATTEMPT_STATE_FIELD_NUMBER: _ClassVar[int]
    AM_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_TRACKING_URL_FIELD_NUMBER: _ClassVar[int]
    STARTTIME_FIELD_NUMBER: _ClassVar[int]
    FINISHTIME_FIELD_NUMBER: _ClassVar[int]
    application_attempt_id: ApplicationAttemptIdProto
    host: str
    rpc_port: int
    tracking_url: str
    diagnostics: str
    yarn_application_attempt_state: YarnApplicationAttemptStateProto
    am_container_id: ContainerIdProto
    original_tracking_url: str
    startTime: int
    finishTime: int
    def __init__(self, application_attempt_id: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ..., host: _Optional[str] = ..., rpc_port: _Optional[int] = ..., tracking_url: _Optional[str] = ..., diagnostics: _Optional[str] = ..., yarn_application_attempt_state: _Optional[_Union[YarnApplicationAttemptStateProto, str]] = ..., am_container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., original_tracking_url: _Optional[str] = ..., startTime: _Optional[int] = ..., finishTime: _Optional[int] = ...) -> None: ...

class ContainerProto(_message.Message):
    __slots__ = ("id", "nodeId", "node_http_address", "resource", "priority", "container_token", "execution_type", "allocation_request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    NODEID_FIELD_NUMBER: _ClassVar[int]
    NODE_HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: ContainerIdProto
    nodeId: NodeIdProto
    node_http_address: str
    resource: ResourceProto
    priority: PriorityProto
    container_token: _security_pb2.TokenProto
    execution_type: ExecutionTypeProto
    allocation_request_id: int
    def __init__(self, id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., nodeId: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., node_http_address: _Optional[str] = ..., resource: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., container_token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ..., execution_type: _Optional[_Union[ExecutionTypeProto, str]] = ..., allocation_request_id: _Optional[int] = ...) -> None: ...

class ContainerReportProto(_message.Message):
    __slots__ = ("container_id", "resource", "node_id", "priority", "creation_time", "finish_time", "diagnostics_info", "log_url", "container_exit_status", "container_state", "node_http_address", "executionType")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATION_TIME_FIELD_NUMBER: _ClassVar[int]
    FINISH_TIME_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_INFO_FIELD_NUMBER: _ClassVar[int]
    LOG_URL_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_STATE_FIELD_NUMBER: _ClassVar[int]
    NODE_HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONTYPE_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    resource: ResourceProto
    node_id: NodeIdProto
    priority: PriorityProto
    creation_time: int
    finish_time: int
    diagnostics_info: str
    log_url: str
    container_exit_status: int
    container_state: ContainerStateProto
    node_http_address: str
    executionType: ExecutionTypeProto
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., resource: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., node_id: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., creation_time: _Optional[int] = ..., finish_time: _Optional[int] = ..., diagnostics_info: _Optional[str] = ..., log_url: _Optional[str] = ..., container_exit_status: _Optional[int] = ..., container_state: _Optional[_Union[ContainerStateProto, str]] = ..., node_http_address: _Optional[str] = ..., executionType: _Optional[_Union[ExecutionTypeProto, str]] = ...) -> None: ...

class ContainerStatusProto(_message.Message):
    __slots__ = ("container_id", "state", "diagnostics", "exit_status", "capability", "executionType", "container_sub_state")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONTYPE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_SUB_STATE_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    state: ContainerStateProto
    diagnostics: str
    exit_status: int
    capability: ResourceProto
    executionType: ExecutionTypeProto
    container_sub_state: ContainerSubStateProto
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., state: _Optional[_Union[ContainerStateProto, str]] = ..., diagnostics: _Optional[str] = ..., exit_status: _Optional[int] = ..., capability: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., executionType: _Optional[_Union[ExecutionTypeProto, str]] = ..., container_sub_state: _Optional[_Union[ContainerSubStateProto, str]] = ...) -> None: ...

class SerializedExceptionProto(_message.Message):
    __slots__ = ("message", "trace", "class_name", "cause")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    message: str
    trace: str
    class_name: str
    cause: SerializedExceptionProto
    def __init__(self, message: _Optional[str] = ..., trace: _Optional[str] = ..., class_name: _Optional[str] = ..., cause: _Optional[_Union[SerializedExceptionProto, _Mapping[str, object]]] = ...) -> None: ...

class ContainerExceptionMapProto(_message.Message):
    __slots__ = ("container_id", "exception")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    exception: SerializedExceptionProto
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., exception: _Optional[_Union[SerializedExceptionProto, _Mapping[str, object]]] = ...) -> None: ...

class NodeReportProto(_message.Message):
    __slots__ = ("nodeId", "httpAddress", "rackName", "used", "capability", "numContainers", "node_state", "health_report", "last_health_report_time", "node_labels", "containers_utilization", "node_utilization", "node_update_type")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    HTTPADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACKNAME_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    NUMCONTAINERS_FIELD_NUMBER: _ClassVar[int]
    NODE_STATE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REPORT_FIELD_NUMBER: _ClassVar[int]
    LAST_HEALTH_REPORT_TIME_FIELD_NUMBER: _ClassVar[int]
    NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    NODE_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    NODE_UPDATE_TYPE_FIELD_NUMBER: _ClassVar[int]
    nodeId: NodeIdProto
    httpAddress: str
    rackName: str
    used: ResourceProto
    capability: ResourceProto
    numContainers: int
    node_state: NodeStateProto
    health_report: str
    last_health_report_time: int
    node_labels: _containers.RepeatedScalarFieldContainer[str]
    containers_utilization: ResourceUtilizationProto
    node_utilization: ResourceUtilizationProto
    node_update_type: NodeUpdateTypeProto
    def __init__(self, nodeId: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., httpAddress: _Optional[str] = ..., rackName: _Optional[str] = ..., used: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., capability: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., numContainers: _Optional[int] = ..., node_state: _Optional[_Union[NodeStateProto, str]] = ..., health_report: _Optional[str] = ..., last_health_report_time: _Optional[int] = ..., node_labels: _Optional[_Iterable[str]] = ..., containers_utilization: _Optional[_Union[ResourceUtilizationProto, _Mapping[str, object]]] = ..., node_utilization: _Optional[_Union[ResourceUtilizationProto, _Mapping[str, object]]] = ..., node_update_type: _Optional[_Union[NodeUpdateTypeProto, str]] = ...) -> None: ...

class NodeIdToLabelsProto(_message.Message):
    __slots__ = ("nodeId", "nodeLabels")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    NODELABELS_FIELD_NUMBER: _ClassVar[int]
    nodeId: NodeIdProto
    nodeLabels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodeId: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., nodeLabels: _Optional[_Iterable[str]] = ...) -> None: ...

class LabelsToNodeIdsProto(_message.Message):
    __slots__ = ("nodeLabels", "nodeId")
    NODELABELS_FIELD_NUMBER: _ClassVar[int]
    NODEID_FIELD_NUMBER: _ClassVar[int]
    nodeLabels: str
    nodeId: _containers.RepeatedCompositeFieldContainer[NodeIdProto]
    def __init__(self, nodeLabels: _Optional[str] = ..., nodeId: _Optional[_Iterable[_Union[NodeIdProto, _Mapping[str, object]]]] = ...) -> None: ...

class NodeLabelProto(_message.Message):
    __slots__ = ("name", "isExclusive")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ISEXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    isExclusive: bool
    def __init__(self, name: _Optional[str] = ..., isExclusive: _Optional[bool] = ...) -> None: ...

class YarnClusterMetricsProto(_message.Message):
    __slots__ = ("num_node_managers", "num_decommissioned_nms", "num_active_nms", "num_lost_nms", "num_unhealthy_nms", "num_rebooted_nms", "num_decommissioning_nms", "num_shutdown_nms")
    NUM_NODE_MANAGERS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECOMMISSIONED_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACTIVE_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNHEALTHY_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_REBOOTED_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECOMMISSIONING_NMS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHUTDOWN_NMS_FIELD_NUMBER: _ClassVar[int]
    num_node_managers: int
    num_decommissioned_nms: int
    num_active_nms: int
    num_lost_nms: int
    num_unhealthy_nms: int
    num_rebooted_nms: int
    num_decommissioning_nms: int
    num_shutdown_nms: int
    def __init__(self, num_node_managers: _Optional[int] = ..., num_decommissioned_nms: _Optional[int] = ..., num_active_nms: _Optional[int] = ..., num_lost_nms: _Optional[int] = ..., num_unhealthy_nms: _Optional[int] = ..., num_rebooted_nms: _Optional[int] = ..., num_decommissioning_nms: _Optional[int] = ..., num_shutdown_nms: _Optional[int] = ...) -> None: ...

class QueueStatisticsProto(_message.Message):
    __slots__ = ("numAppsSubmitted", "numAppsRunning", "numAppsPending", "numAppsCompleted", "numAppsKilled", "numAppsFailed", "numActiveUsers", "availableMemoryMB", "allocatedMemoryMB", "pendingMemoryMB", "reservedMemoryMB", "availableVCores", "allocatedVCores", "pendingVCores", "reservedVCores", "allocatedContainers", "pendingContainers", "reservedContainers")
    NUMAPPSSUBMITTED_FIELD_NUMBER: _ClassVar[int]
    NUMAPPSRUNNING_FIELD_NUMBER: _ClassVar[int]
    NUMAPPSPENDING_FIELD_NUMBER: _ClassVar[int]
    NUMAPPSCOMPLETED_FIELD_NUMBER: _ClassVar[int]
    NUMAPPSKILLED_FIELD_NUMBER: _ClassVar[int]
    NUMAPPSFAILED_FIELD_NUMBER: _ClassVar[int]
    NUMACTIVEUSERS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLEMEMORYMB_FIELD_NUMBER: _ClassVar[int]
    ALLOCATEDMEMORYMB_FIELD_NUMBER: _ClassVar[int]
    PENDINGMEMORYMB_FIELD_NUMBER: _ClassVar[int]
    RESERVEDMEMORYMB_FIELD_NUMBER: _ClassVar[int]
    AVAILABLEVCORES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATEDVCORES_FIELD_NUMBER: _ClassVar[int]
    PENDINGVCORES_FIELD_NUMBER: _ClassVar[int]
    RESERVEDVCORES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATEDCONTAINERS_FIELD_NUMBER: _ClassVar[int]
    PENDINGCONTAINERS_FIELD_NUMBER: _ClassVar[int]
    RESERVEDCONTAINERS_FIELD_NUMBER: _ClassVar[int]
    numAppsSubmitted: int
    numAppsRunning: int
    numAppsPending: int
    numAppsCompleted: int
    numAppsKilled: int
    numAppsFailed: int
    numActiveUsers: int
    availableMemoryMB: int
    allocatedMemoryMB: int
    pendingMemoryMB: int
    reservedMemoryMB: int
    availableVCores: int
    allocatedVCores: int
    pendingVCores: int
    reservedVCores: int
    allocatedContainers: int
    pendingContainers: int
    reservedContainers: int
    def __init__(self, numAppsSubmitted: _Optional[int] = ..., numAppsRunning: _Optional[int] = ..., numAppsPending: _Optional[int] = ..., numAppsCompleted: _Optional[int] = ..., numAppsKilled: _Optional[int] = ..., numAppsFailed: _Optional[int] = ..., numActiveUsers: _Optional[int] = ..., availableMemoryMB: _Optional[int] = ..., allocatedMemoryMB: _Optional[int] = ..., pendingMemoryMB: _Optional[int] = ..., reservedMemoryMB: _Optional[int] = ..., availableVCores: _Optional[int] = ..., allocatedVCores: _Optional[int] = ..., pendingVCores: _Optional[int] = ..., reservedVCores: _Optional[int] = ..., allocatedContainers: _Optional[int] = ..., pendingContainers: _Optional[int] = ..., reservedContainers: _Optional[int] = ...) -> None: ...

class QueueConfigurationsProto(_message.Message):
    __slots__ = ("capacity", "absoluteCapacity", "maxCapacity", "absoluteMaxCapacity", "maxAMPercentage", "effectiveMinCapacity", "effectiveMaxCapacity", "configuredMinCapacity", "configuredMaxCapacity")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTECAPACITY_FIELD_NUMBER: _ClassVar[int]
    MAXCAPACITY_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTEMAXCAPACITY_FIELD_NUMBER: _ClassVar[int]
    MAXAMPERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVEMINCAPACITY_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVEMAXCAPACITY_FIELD_NUMBER: _ClassVar[int]
    CONFIGUREDMINCAPACITY_FIELD_NUMBER: _ClassVar[int]
    CONFIGUREDMAXCAPACITY_FIELD_NUMBER: _ClassVar[int]
    capacity: float
    absoluteCapacity: float
    maxCapacity: float
    absoluteMaxCapacity: float
    maxAMPercentage: float
    effectiveMinCapacity: ResourceProto
    effectiveMaxCapacity: ResourceProto
    configuredMinCapacity: ResourceProto
    configuredMaxCapacity: ResourceProto
    def __init__(self, capacity: _Optional[float] = ..., absoluteCapacity: _Optional[float] = ..., maxCapacity: _Optional[float] = ..., absoluteMaxCapacity: _Optional[float] = ..., maxAMPercentage: _Optional[float] = ..., effectiveMinCapacity: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., effectiveMaxCapacity: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., configuredMinCapacity: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., configuredMaxCapacity: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ...) -> None: ...

class QueueConfigurationsMapProto(_message.Message):
    __slots__ = ("partitionName", "queueConfigurations")
    PARTITIONNAME_FIELD_NUMBER: _ClassVar[int]
    QUEUECONFIGURATIONS_FIELD_NUMBER: _ClassVar[int]
    partitionName: str
    queueConfigurations: QueueConfigurationsProto
    def __init__(self, partitionName: _Optional[str] = ..., queueConfigurations: _Optional[_Union[QueueConfigurationsProto, _Mapping[str, object]]] = ...) -> None: ...

class QueueInfoProto(_message.Message):
    __slots__ = ("queueName", "capacity", "maximumCapacity", "currentCapacity", "state", "childQueues", "applications", "accessibleNodeLabels", "defaultNodeLabelExpression", "queueStatistics", "preemptionDisabled", "queueConfigurationsMap", "weight", "queuePath", "maxParallelApps", "schedulerType", "maxRunningApp")
    QUEUENAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MAXIMUMCAPACITY_FIELD_NUMBER: _ClassVar[int]
    CURRENTCAPACITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHILDQUEUES_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    ACCESSIBLENODELABELS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTNODELABELEXPRESSION_FIELD_NUMBER: _ClassVar[int]
    QUEUESTATISTICS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONDISABLED_FIELD_NUMBER: _ClassVar[int]
    QUEUECONFIGURATIONSMAP_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUEPATH_FIELD_NUMBER: _ClassVar[int]
    MAXPARALLELAPPS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULERTYPE_FIELD_NUMBER: _ClassVar[int]
    MAXRUNNINGAPP_FIELD_NUMBER: _ClassVar[int]
    queueName: str
    capacity: float
    maximumCapacity: float
    currentCapacity: float
    state: QueueStateProto
    childQueues: _containers.RepeatedCompositeFieldContainer[QueueInfoProto]
    applications: _containers.RepeatedCompositeFieldContainer[ApplicationReportProto]
    accessibleNodeLabels: _containers.RepeatedScalarFieldContainer[str]
    defaultNodeLabelExpression: str
    queueStatistics: QueueStatisticsProto
    preemptionDisabled: bool
    queueConfigurationsMap: _containers.RepeatedCompositeFieldContainer[QueueConfigurationsMapProto]
    weight: float
    queuePath: str
    maxParallelApps: int
    schedulerType: str
    maxRunningApp: int
    def __init__(self, queueName: _Optional[str] = ..., capacity: _Optional[float] = ..., maximumCapacity: _Optional[float] = ..., currentCapacity: _Optional[float] = ..., state: _Optional[_Union[QueueStateProto, str]] = ..., childQueues: _Optional[_Iterable[_Union[QueueInfoProto, _Mapping[str, object]]]] = ..., applications: _Optional[_Iterable[_Union[ApplicationReportProto, _Mapping[str, object]]]] = ..., accessibleNodeLabels: _Optional[_Iterable[str]] = ..., defaultNodeLabelExpression: _Optional[str] = ..., queueStatistics: _Optional[_Union[QueueStatisticsProto, _Mapping[str, object]]] = ..., preemptionDisabled: _Optional[bool] = ..., queueConfigurationsMap: _Optional[_Iterable[_Union[QueueConfigurationsMapProto, _Mapping[str, object]]]] = ..., weight: _Optional[float] = ..., queuePath: _Optional[str] = ..., maxParallelApps: _Optional[int] = ..., schedulerType: _Optional[str] = ..., maxRunningApp: _Optional[int] = ...) -> None: ...

class QueueUserACLInfoProto(_message.Message):
    __slots__ = ("queueName", "userAcls")
    QUEUENAME_FIELD_NUMBER: _ClassVar[int]
    USERACLS_FIELD_NUMBER: _ClassVar[int]
    queueName: str
    userAcls: _containers.RepeatedScalarFieldContainer[QueueACLProto]
    def __init__(self, queueName: _Optional[str] = ..., userAcls: _Optional[_Iterable[_Union[QueueACLProto, str]]] = ...) -> None: ...

class GetNewApplicationRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNewApplicationResponseProto(_message.Message):
    __slots__ = ("application_id", "maximumCapability")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    MAXIMUMCAPABILITY_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    maximumCapability: ResourceProto
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., maximumCapability: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ...) -> None: ...

class SubmitApplicationRequestProto(_message.Message):
    __slots__ = ("application_submission_context",)
    APPLICATION_SUBMISSION_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    application_submission_context: ApplicationSubmissionContextProto
    def __init__(self, application_submission_context: _Optional[_Union[ApplicationSubmissionContextProto, _Mapping[str, object]]] = ...) -> None: ...

class SubmitApplicationResponseProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetApplicationReportRequestProto(_message.Message):
    __slots__ = ("application_id",)
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ...) -> None: ...

class GetApplicationReportResponseProto(_message.Message):
    __slots__ = ("application_report",)
    APPLICATION_REPORT_FIELD_NUMBER: _ClassVar[int]
    application_report: ApplicationReportProto
    def __init__(self, application_report: _Optional[_Union[ApplicationReportProto, _Mapping[str, object]]] = ...) -> None: ...

class GetApplicationsRequestProto(_message.Message):
    __slots__ = ("application_types", "application_states", "users", "queues", "limit", "start_begin", "start_end", "finish_begin", "finish_end", "applicationTags", "scope", "name")
    APPLICATION_TYPES_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_STATES_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    START_BEGIN_FIELD_NUMBER: _ClassVar[int]
    START_END_FIELD_NUMBER: _ClassVar[int]
    FINISH_BEGIN_FIELD_NUMBER: _ClassVar[int]
    FINISH_END_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONTAGS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    application_types: _containers.RepeatedScalarFieldContainer[str]
    application_states: _containers.RepeatedScalarFieldContainer[YarnApplicationStateProto]
    users: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    start_begin: int
    start_end: int
    finish_begin: int
    finish_end: int
    applicationTags: _containers.RepeatedScalarFieldContainer[str]
    scope: ApplicationsRequestScopeProto
    name: str
    def __init__(self, application_types: _Optional[_Iterable[str]] = ..., application_states: _Optional[_Iterable[_Union[YarnApplicationStateProto, str]]] = ..., users: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., start_begin: _Optional[int] = ..., start_end: _Optional[int] = ..., finish_begin: _Optional[int] = ..., finish_end: _Optional[int] = ..., applicationTags: _Optional[_Iterable[str]] = ..., scope: _Optional[_Union[ApplicationsRequestScopeProto, str]] = ..., name: _Optional[str] = ...) -> None: ...

class GetApplicationsResponseProto(_message.Message):
    __slots__ = ("applications",)
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    applications: _containers.RepeatedCompositeFieldContainer[ApplicationReportProto]
    def __init__(self, applications: _Optional[_Iterable[_Union[ApplicationReportProto, _Mapping[str, object]]]] = ...) -> None: ...

class KillApplicationRequestProto(_message.Message):
    __slots__ = ("application_id", "diagnostics")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    diagnostics: str
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., diagnostics: _Optional[str] = ...) -> None: ...

class KillApplicationResponseProto(_message.Message):
    __slots__ = ("is_kill_completed",)
    IS_KILL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    is_kill_completed: bool
    def __init__(self, is_kill_completed: _Optional[bool] = ...) -> None: ...

class GetClusterMetricsRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterMetricsResponseProto(_message.Message):
    __slots__ = ("cluster_metrics",)
    CLUSTER_METRICS_FIELD_NUMBER: _ClassVar[int]
    cluster_metrics: YarnClusterMetricsProto
    def __init__(self, cluster_metrics: _Optional[_Union[YarnClusterMetricsProto, _Mapping[str, object]]] = ...) -> None: ...

class GetClusterNodesRequestProto(_message.Message):
    __slots__ = ("nodeStates",)
    NODESTATES_FIELD_NUMBER: _ClassVar[int]
    nodeStates: _containers.RepeatedScalarFieldContainer[NodeStateProto]
    def __init__(self, nodeStates: _Optional[_Iterable[_Union[NodeStateProto, str]]] = ...) -> None: ...

class GetClusterNodesResponseProto(_message.Message):
    __slots__ = ("nodeReports",)
    NODEREPORTS_FIELD_NUMBER: _ClassVar[int]
    nodeReports: _containers.RepeatedCompositeFieldContainer[NodeReportProto]
    def __init__(self, nodeReports: _Optional[_Iterable[_Union[NodeReportProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetQueueInfoRequestProto(_message.Message):
    __slots__ = ("queueName", "includeApplications", "includeChildQueues", "recursive")
    QUEUENAME_FIELD_NUMBER: _ClassVar[int]
    INCLUDEAPPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDECHILDQUEUES_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    queueName: str
    includeApplications: bool
    includeChildQueues: bool
    recursive: bool
    def __init__(self, queueName: _Optional[str] = ..., includeApplications: _Optional[bool] = ..., includeChildQueues: _Optional[bool] = ..., recursive: _Optional[bool] = ...) -> None: ...

class GetQueueInfoResponseProto(_message.Message):
    __slots__ = ("queueInfo",)
    QUEUEINFO_FIELD_NUMBER: _ClassVar[int]
    queueInfo: QueueInfoProto
    def __init__(self, queueInfo: _Optional[_Union[QueueInfoProto, _Mapping[str, object]]] = ...) -> None: ...

class GetQueueUserAclsInfoRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetQueueUserAclsInfoResponseProto(_message.Message):
    __slots__ = ("queueUserAcls",)
    QUEUEUSERACLS_FIELD_NUMBER: _ClassVar[int]
    queueUserAcls: _containers.RepeatedCompositeFieldContainer[QueueUserACLInfoProto]
    def __init__(self, queueUserAcls: _Optional[_Iterable[_Union[QueueUserACLInfoProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetAllResourceTypeInfoRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAllResourceTypeInfoResponseProto(_message.Message):
    __slots__ = ("resource_type_info",)
    RESOURCE_TYPE_INFO_FIELD_NUMBER: _ClassVar[int]
    resource_type_info: _containers.RepeatedCompositeFieldContainer[ResourceTypeInfoProto]
    def __init__(self, resource_type_info: _Optional[_Iterable[_Union[ResourceTypeInfoProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetApplicationAttemptReportRequestProto(_message.Message):
    __slots__ = ("application_attempt_id",)
    APPLICATION_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    application_attempt_id: ApplicationAttemptIdProto
    def __init__(self, application_attempt_id: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ...) -> None: ...

class GetApplicationAttemptReportResponseProto(_message.Message):
    __slots__ = ("application_attempt_report",)
    APPLICATION_ATTEMPT_REPORT_FIELD_NUMBER: _ClassVar[int]
    application_attempt_report: ApplicationAttemptReportProto
    def __init__(self, application_attempt_report: _Optional[_Union[ApplicationAttemptReportProto, _Mapping[str, object]]] = ...) -> None: ...

class GetApplicationAttemptsRequestProto(_message.Message):
    __slots__ = ("application_id",)
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ...) -> None: ...

class GetApplicationAttemptsResponseProto(_message.Message):
    __slots__ = ("application_attempts",)
    APPLICATION_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    application_attempts: _containers.RepeatedCompositeFieldContainer[ApplicationAttemptReportProto]
    def __init__(self, application_attempts: _Optional[_Iterable[_Union[ApplicationAttemptReportProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetContainerReportRequestProto(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ...) -> None: ...

class GetContainerReportResponseProto(_message.Message):
    __slots__ = ("container_report",)
    CONTAINER_REPORT_FIELD_NUMBER: _ClassVar[int]
    container_report: ContainerReportProto
    def __init__(self, container_report: _Optional[_Union[ContainerReportProto, _Mapping[str, object]]] = ...) -> None: ...

class GetContainersRequestProto(_message.Message):
    __slots__ = ("application_attempt_id",)
    APPLICATION_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    application_attempt_id: ApplicationAttemptIdProto
    def __init__(self, application_attempt_id: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ...) -> None: ...

class GetContainersResponseProto(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerReportProto]
    def __init__(self, containers: _Optional[_Iterable[_Union[ContainerReportProto, _Mapping[str, object]]]] = ...) -> None: ...

class SignalContainerRequestProto(_message.Message):
    __slots__ = ("container_id", "command")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    command: SignalContainerCommandProto
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., command: _Optional[_Union[SignalContainerCommandProto, str]] = ...) -> None: ...

class SignalContainerResponseProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateApplicationPriorityRequestProto(_message.Message):
    __slots__ = ("applicationId", "applicationPriority")
    APPLICATIONID_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONPRIORITY_FIELD_NUMBER: _ClassVar[int]
    applicationId: ApplicationIdProto
    applicationPriority: PriorityProto
    def __init__(self, applicationId: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., applicationPriority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ...) -> None: ...

class UpdateApplicationPriorityResponseProto(_message.Message):
    __slots__ = ("applicationPriority",)
    APPLICATIONPRIORITY_FIELD_NUMBER: _ClassVar[int]
    applicationPriority: PriorityProto
    def __init__(self, applicationPriority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ...) -> None: ...

class MoveApplicationAcrossQueuesRequestProto(_message.Message):
    __slots__ = ("application_id", "target_queue")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_QUEUE_FIELD_NUMBER: _ClassVar[int]
    application_id: ApplicationIdProto
    target_queue: str
    def __init__(self, application_id: _Optional[_Union[ApplicationIdProto, _Mapping[str, object]]] = ..., target_queue: _Optional[str] = ...) -> None: ...

class MoveApplicationAcrossQueuesResponseProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailApplicationAttemptRequestProto(_message.Message):
    __slots__ = ("application_attempt_id",)
    APPLICATION_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    application_attempt_id: ApplicationAttemptIdProto
    def __init__(self, application_attempt_id: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ...) -> None: ...

class FailApplicationAttemptResponseProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterNodeLabelsRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterNodeLabelsResponseProto(_message.Message):
    __slots__ = ("deprecatedNodeLabels", "nodeLabels")
    DEPRECATEDNODELABELS_FIELD_NUMBER: _ClassVar[int]
    NODELABELS_FIELD_NUMBER: _ClassVar[int]
    deprecatedNodeLabels: _containers.RepeatedScalarFieldContainer[str]
    nodeLabels: _containers.RepeatedCompositeFieldContainer[NodeLabelProto]
    def __init__(self, deprecatedNodeLabels: _Optional[_Iterable[str]] = ..., nodeLabels: _Optional[_Iterable[_Union[NodeLabelProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetNodesToLabelsRequestProto(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNodesToLabelsResponseProto(_message.Message):
    __slots__ = ("nodeToLabels",)
    NODETOLABELS_FIELD_NUMBER: _ClassVar[int]
    nodeToLabels: _containers.RepeatedCompositeFieldContainer[NodeIdToLabelsProto]
    def __init__(self, nodeToLabels: _Optional[_Iterable[_Union[NodeIdToLabelsProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetLabelsToNodesRequestProto(_message.Message):
    __slots__ = ("nodeLabels",)
    NODELABELS_FIELD_NUMBER: _ClassVar[int]
    nodeLabels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodeLabels: _Optional[_Iterable[str]] = ...) -> None: ...

class GetLabelsToNodesResponseProto(_message.Message):
    __slots__ = ("labelsToNodes",)
    LABELSTONODES_FIELD_NUMBER: _ClassVar[int]
    labelsToNodes: _containers.RepeatedCompositeFieldContainer[LabelsToNodeIdsProto]
    def __init__(self, labelsToNodes: _Optional[_Iterable[_Union[LabelsToNodeIdsProto, _Mapping[str, object]]]] = ...) -> None: ...

class NMTokenProto(_message.Message):
    __slots__ = ("nodeId", "token")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodeId: NodeIdProto
    token: _security_pb2.TokenProto
    def __init__(self, nodeId: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ...) -> None: ...

class PreemptionContainerProto(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ContainerIdProto
    def __init__(self, id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ...) -> None: ...

class PreemptionResourceRequestProto(_message.Message):
    __slots__ = ("resource",)
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    resource: ResourceRequestProto
    def __init__(self, resource: _Optional[_Union[ResourceRequestProto, _Mapping[str, object]]] = ...) -> None: ...

class PreemptionContractProto(_message.Message):
    __slots__ = ("resource", "container")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    resource: _containers.RepeatedCompositeFieldContainer[PreemptionResourceRequestProto]
    container: _containers.RepeatedCompositeFieldContainer[PreemptionContainerProto]
    def __init__(self, resource: _Optional[_Iterable[_Union[PreemptionResourceRequestProto, _Mapping[str, object]]]] = ..., container: _Optional[_Iterable[_Union[PreemptionContainerProto, _Mapping[str, object]]]] = ...) -> None: ...

class StrictPreemptionContractProto(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: _containers.RepeatedCompositeFieldContainer[PreemptionContainerProto]
    def __init__(self, container: _Optional[_Iterable[_Union[PreemptionContainerProto, _Mapping[str, object]]]] = ...) -> None: ...

class PreemptionMessageProto(_message.Message):
    __slots__ = ("strictContract", "contract")
    STRICTCONTRACT_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    strictContract: StrictPreemptionContractProto
    contract: PreemptionContractProto
    def __init__(self, strictContract: _Optional[_Union[StrictPreemptionContractProto, _Mapping[str, object]]] = ..., contract: _Optional[_Union[PreemptionContractProto, _Mapping[str, object]]] = ...) -> None: ...

class ResourceBlacklistRequestProto(_message.Message):
    __slots__ = ("blacklist_additions", "blacklist_removals")
    BLACKLIST_ADDITIONS_FIELD_NUMBER: _ClassVar[int]
    BLACKLIST_REMOVALS_FIELD_NUMBER: _ClassVar[int]
    blacklist_additions: _containers.RepeatedScalarFieldContainer[str]
    blacklist_removals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, blacklist_additions: _Optional[_Iterable[str]] = ..., blacklist_removals: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterApplicationMasterRequestProto(_message.Message):
    __slots__ = ("host", "rpc_port", "tracking_url")
    HOST_FIELD_NUMBER: _ClassVar[int]
    RPC_PORT_FIELD_NUMBER: _ClassVar[int]
    TRACKING_URL_FIELD_NUMBER: _ClassVar[int]
    host: str
    rpc_port: int
    tracking_url: str
    def __init__(self, host: _Optional[str] = ..., rpc_port: _Optional[int] = ..., tracking_url: _Optional[str] = ...) -> None: ...

class RegisterApplicationMasterResponseProto(_message.Message):
    __slots__ = ("maximumCapability", "client_to_am_token_master_key", "application_ACLs", "containers_from_previous_attempts", "queue", "nm_tokens_from_previous_attempts", "scheduler_resource_types", "resource_types")
    MAXIMUMCAPABILITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TO_AM_TOKEN_MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ACLS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FROM_PREVIOUS_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NM_TOKENS_FROM_PREVIOUS_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_RESOURCE_TYPES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPES_FIELD_NUMBER: _ClassVar[int]
    maximumCapability: ResourceProto
    client_to_am_token_master_key: bytes
    application_ACLs: _containers.RepeatedCompositeFieldContainer[ApplicationACLMapProto]
    containers_from_previous_attempts: _containers.RepeatedCompositeFieldContainer[ContainerProto]
    queue: str
    nm_tokens_from_previous_attempts: _containers.RepeatedCompositeFieldContainer[NMTokenProto]
    scheduler_resource_types: _containers.RepeatedScalarFieldContainer[SchedulerResourceTypes]
    resource_types: _containers.RepeatedCompositeFieldContainer[ResourceTypeInfoProto]
    def __init__(self, maximumCapability: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., client_to_am_token_master_key: _Optional[bytes] = ..., application_ACLs: _Optional[_Iterable[_Union[ApplicationACLMapProto, _Mapping[str, object]]]] = ..., containers_from_previous_attempts: _Optional[_Iterable[_Union[ContainerProto, _Mapping[str, object]]]] = ..., queue: _Optional[str] = ..., nm_tokens_from_previous_attempts: _Optional[_Iterable[_Union[NMTokenProto, _Mapping[str, object]]]] = ..., scheduler_resource_types: _Optional[_Iterable[_Union[SchedulerResourceTypes, str]]] = ..., resource_types: _Optional[_Iterable[_Union[ResourceTypeInfoProto, _Mapping[str, object]]]] = ...) -> None: ...

class AllocateRequestProto(_message.Message):
    __slots__ = ("ask", "release", "blacklist_request", "response_id", "progress", "tracking_url")
    ASK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BLACKLIST_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TRACKING_URL_FIELD_NUMBER: _ClassVar[int]
    ask: _containers.RepeatedCompositeFieldContainer[ResourceRequestProto]
    release: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    blacklist_request: ResourceBlacklistRequestProto
    response_id: int
    progress: float
    tracking_url: str
    def __init__(self, ask: _Optional[_Iterable[_Union[ResourceRequestProto, _Mapping[str, object]]]] = ..., release: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ..., blacklist_request: _Optional[_Union[ResourceBlacklistRequestProto, _Mapping[str, object]]] = ..., response_id: _Optional[int] = ..., progress: _Optional[float] = ..., tracking_url: _Optional[str] = ...) -> None: ...

class AllocateResponseProto(_message.Message):
    __slots__ = ("a_m_command", "response_id", "allocated_containers", "completed_container_statuses", "limit", "updated_nodes", "num_cluster_nodes", "preempt", "nm_tokens", "am_rm_token", "application_priority", "containers_from_previous_attempts")
    A_M_COMMAND_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_CONTAINER_STATUSES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_CLUSTER_NODES_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_FIELD_NUMBER: _ClassVar[int]
    NM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AM_RM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FROM_PREVIOUS_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    a_m_command: AMCommandProto
    response_id: int
    allocated_containers: _containers.RepeatedCompositeFieldContainer[ContainerProto]
    completed_container_statuses: _containers.RepeatedCompositeFieldContainer[ContainerStatusProto]
    limit: ResourceProto
    updated_nodes: _containers.RepeatedCompositeFieldContainer[NodeReportProto]
    num_cluster_nodes: int
    preempt: PreemptionMessageProto
    nm_tokens: _containers.RepeatedCompositeFieldContainer[NMTokenProto]
    am_rm_token: _security_pb2.TokenProto
    application_priority: PriorityProto
    containers_from_previous_attempts: _containers.RepeatedCompositeFieldContainer[ContainerProto]
    def __init__(self, a_m_command: _Optional[_Union[AMCommandProto, str]] = ..., response_id: _Optional[int] = ..., allocated_containers: _Optional[_Iterable[_Union[ContainerProto, _Mapping[str, object]]]] = ..., completed_container_statuses: _Optional[_Iterable[_Union[ContainerStatusProto, _Mapping[str, object]]]] = ..., limit: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., updated_nodes: _Optional[_Iterable[_Union[NodeReportProto, _Mapping[str, object]]]] = ..., num_cluster_nodes: _Optional[int] = ..., preempt: _Optional[_Union[PreemptionMessageProto, _Mapping[str, object]]] = ..., nm_tokens: _Optional[_Iterable[_Union[NMTokenProto, _Mapping[str, object]]]] = ..., am_rm_token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ..., application_priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., containers_from_previous_attempts: _Optional[_Iterable[_Union[ContainerProto, _Mapping[str, object]]]] = ...) -> None: ...

class FinishApplicationMasterRequestProto(_message.Message):
    __slots__ = ("diagnostics", "tracking_url", "final_application_status")
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    TRACKING_URL_FIELD_NUMBER: _ClassVar[int]
    FINAL_APPLICATION_STATUS_FIELD_NUMBER: _ClassVar[int]
    diagnostics: str
    tracking_url: str
    final_application_status: FinalApplicationStatusProto
    def __init__(self, diagnostics: _Optional[str] = ..., tracking_url: _Optional[str] = ..., final_application_status: _Optional[_Union[FinalApplicationStatusProto, str]] = ...) -> None: ...

class FinishApplicationMasterResponseProto(_message.Message):
    __slots__ = ("isUnregistered",)
    ISUNREGISTERED_FIELD_NUMBER: _ClassVar[int]
    isUnregistered: bool
    def __init__(self, isUnregistered: _Optional[bool] = ...) -> None: ...

class StartContainerRequestProto(_message.Message):
    __slots__ = ("container_launch_context", "container_token")
    CONTAINER_LAUNCH_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    container_launch_context: ContainerLaunchContextProto
    container_token: _security_pb2.TokenProto
    def __init__(self, container_launch_context: _Optional[_Union[ContainerLaunchContextProto, _Mapping[str, object]]] = ..., container_token: _Optional[_Union[_security_pb2.TokenProto, _Mapping[str, object]]] = ...) -> None: ...

class StartContainersRequestProto(_message.Message):
    __slots__ = ("start_container_request",)
    START_CONTAINER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    start_container_request: _containers.RepeatedCompositeFieldContainer[StartContainerRequestProto]
    def __init__(self, start_container_request: _Optional[_Iterable[_Union[StartContainerRequestProto, _Mapping[str, object]]]] = ...) -> None: ...

class StartContainersResponseProto(_message.Message):
    __slots__ = ("services_meta_data", "succeeded_requests", "failed_requests")
    SERVICES_META_DATA_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    services_meta_data: _containers.RepeatedCompositeFieldContainer[StringBytesMapProto]
    succeeded_requests: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    failed_requests: _containers.RepeatedCompositeFieldContainer[ContainerExceptionMapProto]
    def __init__(self, services_meta_data: _Optional[_Iterable[_Union[StringBytesMapProto, _Mapping[str, object]]]] = ..., succeeded_requests: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ..., failed_requests: _Optional[_Iterable[_Union[ContainerExceptionMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class StopContainersRequestProto(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    def __init__(self, container_id: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ...) -> None: ...

class StopContainersResponseProto(_message.Message):
    __slots__ = ("succeeded_requests", "failed_requests")
    SUCCEEDED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    succeeded_requests: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    failed_requests: _containers.RepeatedCompositeFieldContainer[ContainerExceptionMapProto]
    def __init__(self, succeeded_requests: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ..., failed_requests: _Optional[_Iterable[_Union[ContainerExceptionMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetContainerStatusesRequestProto(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    def __init__(self, container_id: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetContainerStatusesResponseProto(_message.Message):
    __slots__ = ("status", "failed_requests")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    status: _containers.RepeatedCompositeFieldContainer[ContainerStatusProto]
    failed_requests: _containers.RepeatedCompositeFieldContainer[ContainerExceptionMapProto]
    def __init__(self, status: _Optional[_Iterable[_Union[ContainerStatusProto, _Mapping[str, object]]]] = ..., failed_requests: _Optional[_Iterable[_Union[ContainerExceptionMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class LocalizationStatusProto(_message.Message):
    __slots__ = ("resource_key", "localization_state", "diagnostics")
    RESOURCE_KEY_FIELD_NUMBER: _ClassVar[int]
    LOCALIZATION_STATE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    resource_key: str
    localization_state: LocalizationStateProto
    diagnostics: str
    def __init__(self, resource_key: _Optional[str] = ..., localization_state: _Optional[_Union[LocalizationStateProto, str]] = ..., diagnostics: _Optional[str] = ...) -> None: ...

class ContainerLocalizationStatusesProto(_message.Message):
    __slots__ = ("container_id", "localization_statuses")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCALIZATION_STATUSES_FIELD_NUMBER: _ClassVar[int]
    container_id: ContainerIdProto
    localization_statuses: _containers.RepeatedCompositeFieldContainer[LocalizationStatusProto]
    def __init__(self, container_id: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., localization_statuses: _Optional[_Iterable[_Union[LocalizationStatusProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetLocalizationStatusesRequestProto(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: _containers.RepeatedCompositeFieldContainer[ContainerIdProto]
    def __init__(self, container_id: _Optional[_Iterable[_Union[ContainerIdProto, _Mapping[str, object]]]] = ...) -> None: ...

class GetLocalizationStatusesResponseProto(_message.Message):
    __slots__ = ("cntn_localization_statuses", "failed_requests")
    CNTN_LOCALIZATION_STATUSES_FIELD_NUMBER: _ClassVar[int]
    FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    cntn_localization_statuses: _containers.RepeatedCompositeFieldContainer[ContainerLocalizationStatusesProto]
    failed_requests: _containers.RepeatedCompositeFieldContainer[ContainerExceptionMapProto]
    def __init__(self, cntn_localization_statuses: _Optional[_Iterable[_Union[ContainerLocalizationStatusesProto, _Mapping[str, object]]]] = ..., failed_requests: _Optional[_Iterable[_Union[ContainerExceptionMapProto, _Mapping[str, object]]]] = ...) -> None: ...

class ContainerTokenIdentifierProto(_message.Message):
    __slots__ = ("containerId", "nmHostAddr", "appSubmitter", "resource", "expiryTimeStamp", "masterKeyId", "rmIdentifier", "priority", "creationTime", "nodeLabelExpression", "executionType", "version", "allocation_request_id")
    CONTAINERID_FIELD_NUMBER: _ClassVar[int]
    NMHOSTADDR_FIELD_NUMBER: _ClassVar[int]
    APPSUBMITTER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRYTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MASTERKEYID_FIELD_NUMBER: _ClassVar[int]
    RMIDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATIONTIME_FIELD_NUMBER: _ClassVar[int]
    NODELABELEXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONTYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    containerId: ContainerIdProto
    nmHostAddr: str
    appSubmitter: str
    resource: ResourceProto
    expiryTimeStamp: int
    masterKeyId: int
    rmIdentifier: int
    priority: PriorityProto
    creationTime: int
    nodeLabelExpression: str
    executionType: ExecutionTypeProto
    version: int
    allocation_request_id: int
    def __init__(self, containerId: _Optional[_Union[ContainerIdProto, _Mapping[str, object]]] = ..., nmHostAddr: _Optional[str] = ..., appSubmitter: _Optional[str] = ..., resource: _Optional[_Union[ResourceProto, _Mapping[str, object]]] = ..., expiryTimeStamp: _Optional[int] = ..., masterKeyId: _Optional[int] = ..., rmIdentifier: _Optional[int] = ..., priority: _Optional[_Union[PriorityProto, _Mapping[str, object]]] = ..., creationTime: _Optional[int] = ..., nodeLabelExpression: _Optional[str] = ..., executionType: _Optional[_Union[ExecutionTypeProto, str]] = ..., version: _Optional[int] = ..., allocation_request_id: _Optional[int] = ...) -> None: ...

class AMRMTokenIdentifierProto(_message.Message):
    __slots__ = ("appAttemptId", "keyId")
    APPATTEMPTID_FIELD_NUMBER: _ClassVar[int]
    KEYID_FIELD_NUMBER: _ClassVar[int]
    appAttemptId: ApplicationAttemptIdProto
    keyId: int
    def __init__(self, appAttemptId: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ..., keyId: _Optional[int] = ...) -> None: ...

class NMTokenIdentifierProto(_message.Message):
    __slots__ = ("appAttemptId", "nodeId", "appSubmitter", "keyId")
    APPATTEMPTID_FIELD_NUMBER: _ClassVar[int]
    NODEID_FIELD_NUMBER: _ClassVar[int]
    APPSUBMITTER_FIELD_NUMBER: _ClassVar[int]
    KEYID_FIELD_NUMBER: _ClassVar[int]
    appAttemptId: ApplicationAttemptIdProto
    nodeId: NodeIdProto
    appSubmitter: str
    keyId: int
    def __init__(self, appAttemptId: _Optional[_Union[ApplicationAttemptIdProto, _Mapping[str, object]]] = ..., nodeId: _Optional[_Union[NodeIdProto, _Mapping[str, object]]] = ..., appSubmitter: _Optional[str] = ..., keyId: _Optional[int] = ...) -> None: ...

class YARNDelegationTokenIdentifierProto(_message.Message):
    __slots__ = ("owner", "renewer", "realUser", "issueDate", "maxDate", "sequenceNumber", "masterKeyId")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RENEWER_FIELD_NUMBER: _ClassVar[int]
    REALUSER_FIELD_NUMBER: _ClassVar[int]
    ISSUEDATE_FIELD_NUMBER: _ClassVar[int]
    MAXDATE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCENUMBER_FIELD_NUMBER: _ClassVar[int]
    MASTERKEYID_FIELD_NUMBER: _ClassVar[int]
    owner: str
    renewer: str
    realUser: str
    issueDate: int
    maxDate: int
    sequenceNumber: int
    masterKeyId: int
    def __init__(self, owner: _Optional[str] = ..., renewer: _Optional[str] = ..., realUser: _Optional[str] = ..., issueDate: _Optional[int] = ..., maxDate: _Optional[int] = ..., sequenceNumber: _Optional[int] = ..., masterKeyId: _Optional[int] = ...) -> None: ...
