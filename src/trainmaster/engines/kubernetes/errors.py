"""The only place where errors of Kubernetes become ours."""

from __future__ import annotations

from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.kube.config import Config
from trainmaster.kube.errors import ApiError, ConfError, Forbidden, KubeError, Unauthorized, Unreachable
from trainmaster.log.configmaps import ACCOUNT_MEND


def failed(error: KubeError, config: Config | None = None) -> TrainmasterError:
    """Return the error that the user sees."""
    server = config.server if config is not None else "the API server"
    if isinstance(error, ConfError):
        hint = "; or try one here: tm cluster up kubernetes" if "KUBECONFIG" in error.mend else ""
        return BadInput(error.message, mend=error.mend + hint, anchor="kubeconfig")
    if isinstance(error, Unreachable):
        mend = error.mend or "check that it runs, and that it is the one that you mean: kubectl config current-context"
        return EngineFailed(error.message, mend=mend, anchor="kubernetes")
    if isinstance(error, Unauthorized):
        login = f" ({config.user} of {config.source})" if config is not None and config.user else ""
        is_of_pod = config is not None and not config.context
        return BadInput(
            f"{server} does not know who you are{login}: {error.message}",
            mend=ACCOUNT_MEND if is_of_pod else "log in again as the cluster wants it, then: kubectl auth whoami",
            anchor="kubernetes-login",
        )
    if isinstance(error, Forbidden) and error.quota:
        return BadInput(
            f"the namespace's quota is full: {error.message}",
            mend="wait until others' jobs have ended, or ask an administrator for a larger quota: kubectl describe quota",
            anchor="quota",
        )
    if isinstance(error, Forbidden):
        return BadInput(
            f"the cluster refuses: {error.message}",
            mend="ask an administrator for that right: tm cluster grants shows what a master needs",
            anchor="rights",
        )
    if isinstance(error, ApiError):
        return EngineFailed(f"the cluster refuses: {error.message}", anchor="kubernetes")
    return EngineFailed(error.message, mend=error.mend, anchor="kubernetes")
