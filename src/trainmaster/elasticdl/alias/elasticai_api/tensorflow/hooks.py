"""`trainmaster.elasticdl.estimator_hooks` itself."""

import sys

from trainmaster.elasticdl import estimator_hooks

sys.modules[__name__] = estimator_hooks
