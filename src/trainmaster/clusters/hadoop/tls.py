"""The key of HDFS's web ports: NameNode and DataNode answer there those alone who show it, by TLS.

No setting of Hadoop closes WebHDFS, `fsck` and `imagetransfer` to other users of this machine and to pages of the web. One
certificate, signed by itself, is that of the servers and of their clients, and all that either trusts.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

PASSWORD = "trainmaster"  # Java wants one; the files' modes keep others out


def stores(conf: Path) -> tuple[Path, Path]:
    """Return the paths of certificate and key: for Java, and as PEM."""
    return conf / "web.p12", conf / "web.pem"


def make(conf: Path) -> None:
    """Make certificate and key where there are none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    store, pem = stores(conf)
    if store.exists() and pem.exists():
        return
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    closed = serialization.BestAvailableEncryption(PASSWORD.encode())
    _write(store, pkcs12.serialize_key_and_certificates(b"web", key, certificate, None, closed))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, form, serialization.NoEncryption())
    _write(pem, secret + certificate.public_bytes(encoding))


def properties(conf: Path, side: str) -> dict[str, object]:
    """Return what `ssl-server.xml` or `ssl-client.xml` has."""
    store = stores(conf)[0]
    both = {
        f"{kind}.{name}": value
        for kind in ("keystore", "truststore")
        for name, value in (("location", store), ("password", PASSWORD), ("type", "pkcs12"))
    }
    return {f"ssl.{side}.{name}": value for name, value in {**both, "keystore.keypassword": PASSWORD}.items()}


def context(conf: Path) -> ssl.SSLContext:
    """Return what a client of ours connects by."""
    pem = str(stores(conf)[1])
    client = ssl.create_default_context(cafile=pem)
    client.load_cert_chain(pem)
    return client


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(data)
