"""`trainmaster.elasticdl.feature_columns` itself."""

import sys

from trainmaster.elasticdl import feature_columns

sys.modules[__name__] = feature_columns
