"""TLS to a job's master, which has a certificate of its own that nobody else vouches for."""

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
