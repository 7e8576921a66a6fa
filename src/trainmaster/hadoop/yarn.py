"""YARN's three protocols, a method per call, in Hadoop's own messages; and the small rules that go with them.

A client asks the `ResourceManager`, a master speaks to the `Scheduler`, which is the same servers at another port, and `NodeManager` starts
containers. The last two take nothing but a token: the token that the master finds in its container (or, of an unmanaged master, in the
application's report), and the token that `allocate` gives for each node when it grants the first container there.

Rules of the servers, all seen on Hadoop 3.4.2:

* `allocate` carries the `response_id` of the last answer. The same id again gives the same answer again, so a call may be sent twice;
  registering may not, nor may the start of a container. An application submitted twice is submitted once.
* An optional enum that is absent reads as its first value: an absent `a_m_command` as AM_RESYNC. `command` looks properly.
* A master's token is replaced when the ResourceManager rolls its key (daily by default): every answer carries the new `am_rm_token` until a
  connection is made with it. A connection made with the old token goes on; a new connection with the old token is refused as soon as the
  new key is in force, 1.5 expiry times of masters later. So: keep the newest token, and make the next connection with it.
* A ResourceManager that was restarted takes the token that it gave before. It answers `allocate` with
  ApplicationMasterNotRegisteredException: register again, begin at `response_id` 0, ask for everything again. Containers have run on.
* A queue that does not exist fails the application after a submission that succeeds; a master that is too large is refused at once.
  `get_queue_info` of no queue answers without `queueInfo`. In a report a queue is its whole path, `root.default`.
* Nodes with an exclusive label run only what asks for it; an ask for an unknown label throws InvalidLabelResourceRequestException.
* A row for a demanded node must relax its locality; the rows of its rack and of `*`, which must be there too, must not.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from trainmaster.hadoop.conf import (
    Configuration,
    resource_manager_keys,
    resource_managers,
    rpc_protection,
    split_address,
)
from trainmaster.hadoop.errors import Garbled
from trainmaster.hadoop.proto import security_pb2 as s
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.rpc import Client, Retry
from trainmaster.hadoop.security.auth import Auth, ByToken
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.stub import Rpc, Stub

_PACKAGE = "org.apache.hadoop.yarn.api."


class ResourceManager(Stub):
    """ApplicationClientProtocol."""

    get_new_application = Rpc(y.GetNewApplicationRequestProto, y.GetNewApplicationResponseProto)
    submit_application = Rpc(y.SubmitApplicationRequestProto, y.SubmitApplicationResponseProto)
    get_application_report = Rpc(y.GetApplicationReportRequestProto, y.GetApplicationReportResponseProto)
    get_applications = Rpc(y.GetApplicationsRequestProto, y.GetApplicationsResponseProto)
    force_kill_application = Rpc(y.KillApplicationRequestProto, y.KillApplicationResponseProto)
    fail_application_attempt = Rpc(y.FailApplicationAttemptRequestProto, y.FailApplicationAttemptResponseProto)
    get_application_attempt_report = Rpc(
        y.GetApplicationAttemptReportRequestProto, y.GetApplicationAttemptReportResponseProto
    )
    get_application_attempts = Rpc(y.GetApplicationAttemptsRequestProto, y.GetApplicationAttemptsResponseProto)
    get_container_report = Rpc(y.GetContainerReportRequestProto, y.GetContainerReportResponseProto)
    get_containers = Rpc(y.GetContainersRequestProto, y.GetContainersResponseProto)
    signal_to_container = Rpc(y.SignalContainerRequestProto, y.SignalContainerResponseProto)
    update_application_priority = Rpc(y.UpdateApplicationPriorityRequestProto, y.UpdateApplicationPriorityResponseProto)
    move_application_across_queues = Rpc(
        y.MoveApplicationAcrossQueuesRequestProto, y.MoveApplicationAcrossQueuesResponseProto
    )
    get_cluster_metrics = Rpc(y.GetClusterMetricsRequestProto, y.GetClusterMetricsResponseProto)
    get_cluster_nodes = Rpc(y.GetClusterNodesRequestProto, y.GetClusterNodesResponseProto)
    get_queue_info = Rpc(y.GetQueueInfoRequestProto, y.GetQueueInfoResponseProto)
    get_queue_user_acls = Rpc(y.GetQueueUserAclsInfoRequestProto, y.GetQueueUserAclsInfoResponseProto)
    get_resource_type_info = Rpc(y.GetAllResourceTypeInfoRequestProto, y.GetAllResourceTypeInfoResponseProto)
    get_cluster_node_labels = Rpc(y.GetClusterNodeLabelsRequestProto, y.GetClusterNodeLabelsResponseProto)
    get_node_to_labels = Rpc(y.GetNodesToLabelsRequestProto, y.GetNodesToLabelsResponseProto)
    get_labels_to_nodes = Rpc(y.GetLabelsToNodesRequestProto, y.GetLabelsToNodesResponseProto)
    get_delegation_token = Rpc(s.GetDelegationTokenRequestProto, s.GetDelegationTokenResponseProto)
    renew_delegation_token = Rpc(s.RenewDelegationTokenRequestProto, s.RenewDelegationTokenResponseProto)
    cancel_delegation_token = Rpc(s.CancelDelegationTokenRequestProto, s.CancelDelegationTokenResponseProto)

    @classmethod
    def of(cls, conf: Configuration, auth: Auth) -> ResourceManager:
        # Hadoop declares each of these calls idempotent.
        retry = Retry(safe=lambda method: True)
        principal = conf.get("yarn.resourcemanager.principal")
        protocol = _PACKAGE + "ApplicationClientProtocolPB"
        addresses, keys = resource_managers(conf), resource_manager_keys(conf)
        names = [
            f"the ResourceManager at {host}:{port} ({key} of {conf.place(key)})"
            for (host, port), key in zip(addresses, keys, strict=True)
        ]
        protection = rpc_protection(conf)
        return cls(
            Client(
                addresses, protocol, auth, retry=retry, server_principal=principal, names=names, protection=protection
            )
        )


class Scheduler(Stub):
    """ApplicationMasterProtocol, served by the ResourceManagers' scheduler."""

    register_application_master = Rpc(y.RegisterApplicationMasterRequestProto, y.RegisterApplicationMasterResponseProto)
    allocate = Rpc(y.AllocateRequestProto, y.AllocateResponseProto)
    finish_application_master = Rpc(y.FinishApplicationMasterRequestProto, y.FinishApplicationMasterResponseProto)

    @classmethod
    def of(cls, conf: Configuration, token: Token) -> Scheduler:
        retry = Retry(safe=lambda method: method != "registerApplicationMaster")
        addresses = resource_managers(conf, "scheduler.address")
        protocol = _PACKAGE + "ApplicationMasterProtocolPB"
        return cls(Client(addresses, protocol, ByToken(token), retry=retry, protection=rpc_protection(conf)))


class NodeManager(Stub):
    """ContainerManagementProtocol."""

    start_containers = Rpc(y.StartContainersRequestProto, y.StartContainersResponseProto)
    stop_containers = Rpc(y.StopContainersRequestProto, y.StopContainersResponseProto)
    get_container_statuses = Rpc(y.GetContainerStatusesRequestProto, y.GetContainerStatusesResponseProto)
    get_localization_statuses = Rpc(y.GetLocalizationStatusesRequestProto, y.GetLocalizationStatusesResponseProto)
    signal_to_container = Rpc(y.SignalContainerRequestProto, y.SignalContainerResponseProto)

    @classmethod
    def of(cls, address: str, token: Token, protection: Sequence[str]) -> NodeManager:
        """Return a client of one node. `address` is host:port, as in a NodeIdProto. `protection`: as `conf.rpc_protection` gives it."""
        host, port = split_address(address)
        retry = Retry(safe=lambda method: method != "startContainers")
        protocol = _PACKAGE + "ContainerManagementProtocolPB"
        return cls(Client([(host, int(port))], protocol, ByToken(token), retry=retry, protection=protection))


# -- tokens --


def token_of(token: s.TokenProto) -> Token:
    return Token(token.identifier, token.password, token.kind, token.service)


def token_proto(token: Token) -> s.TokenProto:
    return s.TokenProto(identifier=token.identifier, password=token.password, kind=token.kind, service=token.service)


# -- states and ends --


class ApplicationState(enum.IntEnum):
    NEW = 1
    NEW_SAVING = 2
    SUBMITTED = 3
    ACCEPTED = 4
    RUNNING = 5
    FINISHED = 6
    FAILED = 7
    KILLED = 8

    @property
    def ended(self) -> bool:
        return self >= ApplicationState.FINISHED


class FinalStatus(enum.IntEnum):
    """The end of an application as its master reported it, or as the ResourceManager did where the master reported nothing."""

    UNDEFINED = 0
    SUCCEEDED = 1
    FAILED = 2
    KILLED = 3
    ENDED = 4


class ExitStatus(enum.IntEnum):
    """The exit statuses of org.apache.hadoop.yarn.api.records.ContainerExitStatus that no command gave."""

    SUCCESS = 0
    INVALID = -1000  # not known yet; also the end of a container whose files could not be fetched
    ABORTED = -100  # released, or its node was lost
    DISKS_FAILED = -101
    PREEMPTED = -102
    KILLED_EXCEEDED_VMEM = -103
    KILLED_EXCEEDED_PMEM = -104
    KILLED_BY_APPMASTER = -105
    KILLED_BY_RESOURCEMANAGER = -106
    KILLED_AFTER_APP_COMPLETION = -107
    KILLED_BY_CONTAINER_SCHEDULER = -108
    KILLED_FOR_EXCESS_LOGS = -109


def why(exception: y.SerializedExceptionProto) -> str:
    """Return a node's message about one of several requests, in a line: the cause is often on the second of its lines."""
    return " ".join(exception.message.split()) or exception.class_name


# -- identifiers, as people and logs write them --

_NUMBER_BITS = 40  # of a container's id; above it stands the ResourceManager's epoch, one more after each restart
_APPLICATION = re.compile(r"application_(\d+)_(\d+)")
_ATTEMPT = re.compile(r"appattempt_(\d+)_(\d+)_(\d+)")
_CONTAINER = re.compile(r"container_(?:e(\d+)_)?(\d+)_(\d+)_(\d+)_(\d+)")


def application_id_text(application: y.ApplicationIdProto) -> str:
    return f"application_{application.cluster_timestamp}_{application.id:04d}"


def application_id(text: str) -> y.ApplicationIdProto:
    """Parse an application's id. Raises Garbled for any other text."""
    stamp, number = _numbers(_APPLICATION, text, "application_<start of the ResourceManager>_<number>")
    return y.ApplicationIdProto(cluster_timestamp=stamp, id=number)


def attempt_id_text(attempt: y.ApplicationAttemptIdProto) -> str:
    application = attempt.application_id
    return f"appattempt_{application.cluster_timestamp}_{application.id:04d}_{attempt.attemptId:06d}"


def attempt_id(text: str) -> y.ApplicationAttemptIdProto:
    stamp, number, attempt = _numbers(_ATTEMPT, text, "appattempt_<start of the ResourceManager>_<number>_<attempt>")
    return _attempt(stamp, number, attempt)


def container_id_text(container: y.ContainerIdProto) -> str:
    attempt, epoch = container.app_attempt_id, container.id >> _NUMBER_BITS
    application = attempt.application_id
    number = container.id & ((1 << _NUMBER_BITS) - 1)
    return (
        f"container_{f'e{epoch:02d}_' if epoch else ''}{application.cluster_timestamp}_{application.id:04d}"
        f"_{attempt.attemptId:02d}_{number:06d}"
    )


def container_id(text: str) -> y.ContainerIdProto:
    shape = "container_[e<epoch>_]<start of the ResourceManager>_<application>_<attempt>_<number>"
    epoch, stamp, application, attempt, number = _numbers(_CONTAINER, text, shape)
    return y.ContainerIdProto(app_attempt_id=_attempt(stamp, application, attempt), id=epoch << _NUMBER_BITS | number)


def node_text(node: y.NodeIdProto) -> str:
    return f"{node.host}:{node.port}"


def _attempt(stamp: int, application: int, attempt: int) -> y.ApplicationAttemptIdProto:
    whole = y.ApplicationIdProto(cluster_timestamp=stamp, id=application)
    return y.ApplicationAttemptIdProto(application_id=whole, attemptId=attempt)


def _numbers(pattern: re.Pattern[str], text: str, shape: str) -> Sequence[int]:
    match = pattern.fullmatch(text)
    if not match or not text.isascii():
        raise Garbled(f"{text!r} is not of the form {shape}")
    return [int(number or 0) for number in match.groups()]
