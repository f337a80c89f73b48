"""Keys and tokens: mints JWTs of every algorithm of C5 and writes the JWKS file the server reads.

`mint` always makes what a good issuer would; a test that needs a bad token builds it from `encode`.
"""
import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://issuer.test"
AUDIENCE = "freshet"


def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def b64url_int(number, size=None):
    return b64url(number.to_bytes(size or (number.bit_length() + 7) // 8, "big"))


class Key:
    """One signing key with its public JWK."""

    def __init__(self, alg, kid=None, bits=2048):
        self.alg = alg
        self.kid = kid or f"{alg.lower()}-{os.urandom(4).hex()}"
        self.private, public = {
            "EdDSA": self._ed25519,
            "RS256": lambda: self._rsa(bits),
            "ES256": self._p256,
            "HS256": self._secret,
        }[alg]()
        self.jwk = {"kid": self.kid, "alg": alg, "use": "sig", **public}

    @staticmethod
    def _ed25519():
        private = ed25519.Ed25519PrivateKey.generate()
        x = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return private, {"kty": "OKP", "crv": "Ed25519", "x": b64url(x)}

    @staticmethod
    def _rsa(bits):
        private = rsa.generate_private_key(65537, bits)
        public = private.public_key().public_numbers()
        return private, {"kty": "RSA", "n": b64url_int(public.n), "e": b64url_int(public.e)}

    def use_primes(self, p, q, e=65537):
        """Makes it the RSA key of these primes."""
        d = pow(e, -1, (p - 1) * (q - 1))
        public = rsa.RSAPublicNumbers(e, p * q)
        self.private = rsa.RSAPrivateNumbers(p, q, d, rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q),
                                             rsa.rsa_crt_iqmp(p, q), public).private_key()
        self.jwk.update(n=b64url_int(public.n), e=b64url_int(public.e))

    @staticmethod
    def _p256():
        private = ec.generate_private_key(ec.SECP256R1())
        point = private.public_key().public_numbers()
        return private, {"kty": "EC", "crv": "P-256", "x": b64url_int(point.x, 32), "y": b64url_int(point.y, 32)}

    @staticmethod
    def _secret():
        secret = os.urandom(32)
        return secret, {"kty": "oct", "k": b64url(secret)}

    def sign(self, payload, headers=None):
        return jwt.encode(payload, self.private, algorithm=self.alg, headers={"kid": self.kid, **(headers or {})})


def claims(tenant="demo", subject="alice", scope=None, ttl=3600, **changes):
    """Good claims; a change of None leaves that claim out."""
    now = int(time.time())
    payload = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "tenant_id": tenant,
        "scope": scope,
        "iat": now,
        "nbf": now - 5,
        "exp": now + ttl,
        **changes,
    }
    return {name: value for name, value in payload.items() if value is not None}


def mint(key, tenant="demo", **options):
    return key.sign(claims(tenant, **options))


def encode(header, payload, signature=b""):
    """A compact token of any parts: dicts become JSON, bytes stay, the signature is raw bytes."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return ".".join(b64url(part) for part in [*parts, signature])


def hs256(header, payload, secret):
    """A token signed with HMAC whatever its header says: for confusing one kind of key with another."""
    unsigned = encode(header, payload).rsplit(".", 1)[0]
    return f"{unsigned}.{b64url(hmac.new(secret, unsigned.encode(), hashlib.sha256).digest())}"


def write_jwks(path, keys):
    """Replaces the file at once, as a careful operator would."""
    path = Path(path)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"keys": [key.jwk for key in keys]}))
    fresh.chmod(0o600)
    fresh.replace(path)
    return path
