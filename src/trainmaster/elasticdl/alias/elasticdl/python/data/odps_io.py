"""Tables of MaxCompute: a model file may ask whether they are configured, and cannot use them."""

import os
from typing import Any

from trainmaster.elasticdl.readers import no_maxcompute

from ..common.constants import MaxComputeConfig


def is_odps_configured() -> bool:
    """Tell whether the variables of a MaxCompute account are set."""
    return all(
        name in os.environ
        for name in (MaxComputeConfig.PROJECT_NAME, MaxComputeConfig.ACCESS_ID, MaxComputeConfig.ACCESS_KEY)
    )


class ODPSReader:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise no_maxcompute("ODPSReader")


class ODPSWriter:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise no_maxcompute("ODPSWriter")
