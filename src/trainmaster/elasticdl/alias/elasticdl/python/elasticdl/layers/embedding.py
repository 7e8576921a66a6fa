"""`trainmaster.zoo.embeddings.keras_layer` itself."""

import sys

from trainmaster.zoo.embeddings import keras_layer

sys.modules[__name__] = keras_layer
