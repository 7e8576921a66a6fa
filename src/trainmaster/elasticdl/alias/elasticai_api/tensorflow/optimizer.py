"""`trainmaster.elasticdl.keras_controller` itself."""

import sys

from trainmaster.elasticdl import keras_controller

sys.modules[__name__] = keras_controller
