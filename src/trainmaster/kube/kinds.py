"""Kinds of objects, and the paths at which the API server has them (Kubernetes API concepts, "Resource URIs")."""

from __future__ import annotations

import attrs


@attrs.frozen
class Kind:
    """One kind: `group` ("" is the core's), `version`, `plural` as in paths, `name` as in `kind:`, and whether it is namespaced."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return the text of `apiVersion:`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", sub: str = "") -> str:
        """Return the path of the kind, of one object of it, or of a part of that ("status", "log"). `namespace` "*": all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace != "*":
            parts += ["namespaces", namespace]
        return "/".join(part for part in (*parts, self.plural, name, sub) if part)


PODS = Kind("", "v1", "pods", "Pod")
CONFIGMAPS = Kind("", "v1", "configmaps", "ConfigMap")
SECRETS = Kind("", "v1", "secrets", "Secret")
SERVICES = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Kind("", "v1", "events", "Event")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
REPLICA_SETS = Kind("apps", "v1", "replicasets", "ReplicaSet")
ROLES = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
POD_GROUPS = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
