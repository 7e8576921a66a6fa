"""Clusters that run on this machine alone, to try an engine out and to test it: real daemons, private directories, ports of their own.

`hadoop` is a Hadoop: HDFS and YARN. Nothing here is needed to run jobs; the package is a sibling of `client`, which only the command line
and tests use.
"""
