"""A self-signed P-256 certificate, the same for every server that is measured with TLS."""
import datetime
import os

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make(folder):
    """The files of the certificate and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.utcnow(), datetime.timedelta(days=1)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
                   .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
                   .sign(key, hashes.SHA256()))
    files = os.path.join(folder, "bench.pem"), os.path.join(folder, "bench.key")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    for path, content in zip(files, (certificate.public_bytes(encoding),
                                     key.private_bytes(encoding, form, serialization.NoEncryption()))):
        with open(path, "wb") as out:
            out.write(content)
    return files
