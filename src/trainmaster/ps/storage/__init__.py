"""Files that a parameter server keeps.

`journal`: all that it was told since a checkpoint. `checkpoints`: shares of one version. `restoring`: out of both, the state.
"""
