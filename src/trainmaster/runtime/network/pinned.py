"""TLS under a job's own certificate, which nobody else vouches for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl


def trusting(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that trusts this one certificate (PEM) and no other, whatever its name."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def serving(certificate: str, key: str) -> ssl.SSLContext:
    """Return a TLS context that shows this certificate (PEM), and has its key (PEM)."""
    import os
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # ssl reads keys out of files alone: ours is on no disk.
    with open(os.memfd_create("key", os.MFD_CLOEXEC), "w") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
