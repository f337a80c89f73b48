"""Authorities and certificates for tests of TLS: P-256, made anew in a folder."""
import datetime
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(common, organization):
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                      x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def replace(path, content):
    """At once: the program may be watching the file."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


class Authority:
    """Its own certificate is `ca`, a file."""

    def __init__(self, folder, name="root"):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name(name, "Tests")
        self.ca = folder / f"{name}.ca.pem"
        self.ca.write_bytes(_pem(self._sign(self.name, self.key.public_key(), [], True)))

    def _sign(self, subject, public, names, is_authority, days=1):
        now = datetime.datetime.utcnow()
        builder = (x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(public)
                   .serial_number(x509.random_serial_number()).not_valid_before(now - 2 * DAY).not_valid_after(now + days * DAY)
                   .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, file, common, organization="A", uris=(), hosts=(), days=1):
        """(certificate file, key file); existing ones are replaced, the certificate first."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.UniformResourceIdentifier(uri) for uri in uris] + [x509.DNSName(host) for host in hosts]
        certificate = self._sign(_name(common, organization), key.public_key(), names, False, days)
        paths = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        replace(paths[0], _pem(certificate))
        replace(paths[1], key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                            serialization.NoEncryption()))
        return paths

    def server(self, file="server", organization="first", days=1):
        return self.issue(file, "localhost", organization, hosts=["localhost"], days=days)

    def trust(self, client=None, most=None):
        """A context for clients; `client` is what issue() gave."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if client:
            context.load_cert_chain(*map(str, client))
        if most:
            context.maximum_version = most
        return context


def organization(connection):
    """Of the certificate that the server showed on an ssl.SSLSocket."""
    subject = dict(pair[0] for pair in connection.getpeercert()["subject"])
    return subject["organizationName"]
