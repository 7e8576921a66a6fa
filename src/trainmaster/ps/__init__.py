"""Parameter servers: embedding tables and dense parameters that several workers train, in processes of their own.

    python -m trainmaster.ps                        # a server; see `__main__`
    client = trainmaster.ps.job.from_job()          # a worker's side; see `client`

*Storage*, pure: `table` puts together `index` (an id's row number), `arena` (rows in blocks), `initializers` and `optimizers`; `placement`
says which of N servers holds what. `specification`: what is defined. `shard`: the share of one server, to which `order` says what comes
next.

*Around it*: `server`, its files in `storage` and `snapshots`, messages in `wire`, and the places of a job's processes in `job`.

The package needs the standard library and NumPy, and of our packages `trainmaster.runtime` alone: a user's Python has both on its path.
"""
