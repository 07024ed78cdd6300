"""Make the secrets of compose.yaml on its first start, each in a volume of its own; those that exist stay.

SECRET_KEYS, where given, replaces the key for sealing that was made here. TLS_NAMES are the names in the certificate.
"""

import base64
import ipaddress
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = 0
SERVICE = 10001  # the user of the image
DAYS = 825


def keep(path: str, owner: int, make: Callable[[], str], replace: bool = False) -> None:
    """Write a secret that only its owner can read, whole or not at all, if it does not exist yet."""
    file = Path("/secrets", path)
    if file.exists() and not replace:
        return
    beside = file.with_suffix(".new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as out:
        out.write(make())
        out.flush()
        os.fsync(out.fileno())
    os.chown(beside, owner, owner)
    beside.replace(file)
    print(f"made {path}")


def password(name: str) -> str:
    """Return a password, made once."""
    keep(f"database/mongo_{name}_password", ROOT, lambda: secrets.token_hex(24))
    return Path(f"/secrets/database/mongo_{name}_password").read_text()


def url(name: str) -> str:
    return f"mongodb://{name}:{password(name)}@mongo:27017/?replicaSet=rs0&authSource=admin"


def certificate(names: list[str]) -> tuple[str, str]:
    """Return the key and the certificate of a proxy for some names, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text.decode(), signed.public_bytes(pem).decode()


def alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


given = os.environ.get("SECRET_KEYS", "")
made = f"k1:{base64.b64encode(secrets.token_bytes(32)).decode()}"
keep("database/mongo_key", ROOT, lambda: base64.b64encode(secrets.token_bytes(756)).decode())
keep("service/mongo_url", SERVICE, lambda: url("service"))
keep("admin/mongo_url", SERVICE, lambda: url("root"))
keep("service/secret_keys", SERVICE, lambda: given or made, replace=bool(given))
# The whole pair, or none: without one of the two files both are made.
if not (Path("/secrets/proxy/tls_key").exists() and Path("/secrets/proxy/tls_cert").exists()):
    key_text, cert_text = certificate(os.environ["TLS_NAMES"].split(","))
    keep("proxy/tls_key", ROOT, lambda: key_text, replace=True)
    keep("proxy/tls_cert", ROOT, lambda: cert_text, replace=True)
