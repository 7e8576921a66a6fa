"""`trainmaster.elasticdl.recordio_reader` itself."""

import sys

from trainmaster.elasticdl import recordio_reader

sys.modules[__name__] = recordio_reader
