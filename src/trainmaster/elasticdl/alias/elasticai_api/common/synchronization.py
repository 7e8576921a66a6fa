"""`trainmaster.elasticdl.synchronization` itself."""

import sys

from trainmaster.elasticdl import synchronization

sys.modules[__name__] = synchronization
