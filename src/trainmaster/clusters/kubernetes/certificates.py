"""A cluster's certificates and users: its own authority, the certificates that it signs, the service accounts' key, and tokens.

etcd has an authority of its own, which signs a single certificate: etcd lets each certificate of its authority do everything, and users
have certificates of the cluster's.

A client with a certificate is the certificate's subject: CN the user, O the groups. Every other client has a token from a list that the API
server reads when it starts, so the tokens of all nodes are made at once. RBAC's bootstrap roles fit these names.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=365)
# The cluster's components, and the people in whose names tests and users act: `edit` and `view` have the stock roles of these names.
GROUPS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "edit": ("edit", "people"),
    "view": ("view", "people"),
    "nobody": ("nobody", "people"),
}


def make(folder: Path, addresses: Iterable[str], nodes: int) -> dict[str, str]:
    """Write certificates, keys and tokens into a directory; return the tokens by user, `node-I` for nodes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name, authority_key = _authority(folder, "trainmaster-authority", "ca")
    names = [
        "localhost",
        *(".".join(["kubernetes", "default", "svc", "cluster", "local"][:length]) for length in (1, 2, 3, 5)),
    ]
    alternatives = x509.SubjectAlternativeName([
        *(x509.DNSName(host) for host in names), *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ])  # fmt: skip
    for file, subject, extension in (
        ("apiserver", _name("kube-apiserver"), alternatives),
        ("kubelet-client", _name("apiserver-to-kubelet", "system:masters"), _CLIENT),
        ("edit", _name("edit", "people"), _CLIENT),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        _save(folder, file, key, _sign(subject, key, name, authority_key, extension))
    _make_etcd(folder)
    _save(folder, "sa", ec.generate_private_key(ec.SECP256R1()), None)
    users = {**GROUPS, **{f"node-{i}": (f"system:node:node-{i}", "system:nodes") for i in range(1, nodes + 1)}}
    tokens = {user: secrets.token_hex(16) for user in users}
    lines = [f'{tokens[user]},{name},{user},"{groups}"\n' for user, (name, groups) in users.items()]
    _write_private(folder / "tokens.csv", "".join(lines).encode())
    return tokens


def _authority(folder: Path, common: str, file: str) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
    """Make an authority; return its name and key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(common)
    _save(folder, file, key, _sign(name, key, name, key, x509.BasicConstraints(ca=True, path_length=None)))
    return name, key


def _make_etcd(folder: Path) -> None:
    """Make the certificate that etcd shows to the API server, and the API server to etcd."""
    name, authority_key = _authority(folder, "trainmaster-etcd-authority", "etcd-ca")
    key = ec.generate_private_key(ec.SECP256R1())
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    _save(folder, "etcd", key, _sign(_name("etcd"), key, name, authority_key, loopback))


_CLIENT = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])


def _name(common: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - datetime.timedelta(hours=1), now + _LIFE
    )
    builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return builder.add_extension(authority, critical=False).sign(issuer_key, hashes.SHA256())


def _save(folder: Path, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate | None) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write_private(folder / f"{file}.key", pem)
    if certificate is not None:
        (folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
