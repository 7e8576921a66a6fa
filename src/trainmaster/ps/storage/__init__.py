"""Files that a parameter server keeps.

`journal`: all that it received since a checkpoint. `checkpoints`: shares of one version. `restoring`: the state, made from both.
"""
