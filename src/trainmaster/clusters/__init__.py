"""Clusters on this machine alone, to try out and test an engine: real daemons, private directories, ports of their own.

`hadoop` is a Hadoop: HDFS and YARN. Nothing here is needed to run jobs. The package is a sibling of `client`; only the command line and
tests use it.
"""
