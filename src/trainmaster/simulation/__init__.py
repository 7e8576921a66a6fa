"""A seeded world drives the core through every order of faults, and asserts on what really happened in it.

`world` has the clock, the storage and the truth; `engine`, `network`, `agent` and `master` are the parts that fail, by rules that cite the
real behaviour they imitate; `faults` make them fail; `play` plays one job under one seed, and `checks` hold its end against the truth;
`plants` are faults of ours that they must find. A failing seed is a bug report: `python -m trainmaster.simulation --seed N` plays it again.
"""
