"""Jobs on Kubernetes: the client side, the master side, and the pods made of a job."""

from __future__ import annotations

from trainmaster.engines.contract import Capabilities, Engine
from trainmaster.engines.statuses import BY_KERNEL

ENGINE = Engine(
    "kubernetes", client_side="trainmaster.engines.kubernetes.client:KubernetesClient",
    container_side="trainmaster.engines.kubernetes.container.bootstrap",
    capabilities=Capabilities(
        images=True, own_network=True, memory_limit=BY_KERNEL, mounts=True, dry_run_objects=True, own_storage="configmaps://",
        without_storage="there is no storage: of a failed attempt's log the last 256 KiB are kept after the job's end, 16 KiB of others in "
        "small jobs; for full logs set storage to a URL (s3://, hdfs://)",
    ),
    is_configured="trainmaster.kube.config:is_named", checks="trainmaster.engines.kubernetes.doctor:findings",
)  # fmt: skip
