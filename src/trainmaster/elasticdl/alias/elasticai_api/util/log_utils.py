"""`trainmaster.elasticdl.logger` itself."""

import sys

from trainmaster.elasticdl import logger

sys.modules[__name__] = logger
