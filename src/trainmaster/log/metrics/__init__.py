"""Keep the metrics of a job in its storage, bounded, so that a job whose master was killed still has them.

    metrics/<epoch>-<n>.series      a snapshot of all series, compressed
    metrics/<epoch>-<n>.samples     the samples that came after it, one a line, appended each second

Where files can grow, samples go to the second kind. Once it is larger than `TAIL`, or than the snapshot before it, a new snapshot takes its
place, and whatever is older is removed. An object store gets snapshots alone, the larger the more seldom; so does a storage that is small
by nature (ConfigMaps), and there they have at most `TINY` bytes: series of the whole job first.

Each line is a JSON object of its own; a line that cannot be read is passed over, and so is a file of another major version. Snapshots and
samples are of one epoch's master: the next one reads them all, and goes on in files of its own.

A thread of its own writes, so nobody waits for a slow storage. Failures are logged, and a snapshot is tried again after `AGAIN`.
"""
