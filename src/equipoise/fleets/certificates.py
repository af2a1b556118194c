"""A certificate for a link, for first steps and for those who have no authority of their own."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from equipoise.fleets.keys import write_private

YEARS = 5


class Tls(NamedTuple):
    """The three files of a link: `ca` is for every silo, `key` is for nobody else."""

    ca: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path, host: str) -> Tls:
    """Make a certificate for `host`, a name or an address, and the authority that signs it. The
    authority's own key is forgotten at once, so it vouches for nothing else, ever."""
    authority, server = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    begin = datetime.now(UTC) - timedelta(minutes=10)  # clocks differ
    end = begin + timedelta(days=365 * YEARS)
    issuer, subject = _name("Equipoise link: authority"), _name("Equipoise link")
    blank = x509.CertificateBuilder().issuer_name(issuer).not_valid_before(begin)
    blank = blank.not_valid_after(end)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        blank.subject_name(issuer)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA256())
    )
    certificate = (
        blank.subject_name(subject)
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    files = Tls(folder / "ca.pem", folder / "link.pem", folder / "link.key")
    pem = serialization.Encoding.PEM
    private = server.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(files.key, private)
    files.certificate.write_bytes(certificate.public_bytes(pem))
    files.ca.write_bytes(ca.public_bytes(pem))
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
