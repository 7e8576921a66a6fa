"""The records of inputs: splits, ranges, shards, and the proof that each was counted once."""
