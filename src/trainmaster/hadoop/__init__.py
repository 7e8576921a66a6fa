"""Hadoop without a JVM: RPC over asyncio, SASL, tokens, and the protocols of YARN and HDFS. A library of its own.

    errors        HadoopError and its family
    auth          the ways to log in: Simple, ByToken, Kerberos
    conf          core-site.xml, hdfs-site.xml, yarn-site.xml
    credentials   tokens and the files of them
    wire, sasl, gssapi, handshake      the bytes of a connection, without I/O
    rpc           Connection and Client
    yarn, hdfs    the protocols, a method per call

It imports attrs, protobuf and the standard library. Nothing is imported here, so that each user loads what it needs.
"""
