"""A small client of Kubernetes' API over h11 and asyncio. A library of its own.

    errors        KubeError and its family
    kinds         the kinds of objects, and the paths at which they lie
    credentials   proofs of who we are: tokens, certificates, plugins
    config        the server's place: kubeconfig files, or the pod that we are in
    wire          HTTP/1.1 connections, by TLS, through proxies
    client        Client: objects, watches, logs, evictions, questions about rights
    forward       bytes to and from a port of a pod
    watching      follow: objects as they change, whatever happens to the server
    blocking      Blocking: the same calls for code without a loop

It imports attrs, h11, the standard library, and where they are needed websockets and PyYAML. Nothing is imported here, so that each user
loads what it needs.
"""
