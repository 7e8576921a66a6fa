"""The storage of a parameter server: embedding tables and the optimizers that train them.

Pure: no files, sockets, threads or clock here; a caller hands in what the time is. It needs the standard library and NumPy, and imports
nothing else of ours, so that it can lie beside `trainmaster.runtime` on the path of a user's Python.

    table = Table("user", 16, Uniform(-0.05, 0.05), Adam(), seed=7)
    values = table.pull(ids, now=now)           # (n, 16); rows are made on first touch
    table.push(ids, gradients, step=1, now=now)

`table` puts together `index` (an id's row number), `arena` (rows in blocks), `initializers` and `optimizers`; `placement` says which of N
servers holds what.
"""
