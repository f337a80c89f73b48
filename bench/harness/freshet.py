"""The measured program: its configuration, its tokens, starting it, asking it.

What a configuration file looks like is known in `configuration()` alone, and what the program's tables and
command line look like in `Freshet.prepare()` and `Freshet.start()`.
"""
import base64
import dataclasses
import json
import os
import socket
import ssl
import subprocess
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from . import machine

TENANT = "bench"
ISSUER = "https://issuer.bench.example"
AUDIENCE = "freshet"
TOKEN_BYTES = 600


@dataclasses.dataclass
class Dictionary:
    code: str
    table: str
    rows: int

    def query(self, tenant):
        """What the program is told to load; `tenant` is an SQL expression or a named parameter."""
        return f"select code as k, body as v from public.{self.table} where tenant_id = {tenant}"

    def definition(self):
        return {"code": self.code, "enabled": True, "loadSql": self.query(":tenantId")}


@dataclasses.dataclass
class Builtin:
    """A dictionary in the program's own table, which updates write."""

    code: str
    rows: int
    reload: str = "AUTO"

    def definition(self):
        return {"code": self.code, "reloadOnEvent": self.reload}


def configuration(database, port, loops, jwks_file, dictionaries, preload):
    """The program's file. JSON is YAML too, and needs no quoting rules."""
    host, db_port = database.parts.hostname, database.parts.port or 5432
    return {
        "http": {"listen": f"127.0.0.1:{port}", "loops": loops},
        "auth": {"jwksFile": jwks_file, "issuer": ISSUER, "audiences": [AUDIENCE]},
        "refdata": {
            "postgres": {
                "jdbcUrl": f"jdbc:postgresql://{host}:{db_port}/{database.name}",
                "username": database.user,
                "passwordFromEnv": "FRESHET_BENCH_PG_PASSWORD",
                "schema": "public",
            },
            "cache": {"preload": [f"{TENANT}/{dictionary.code}" for dictionary in preload]},
            "dictionaries": [dictionary.definition() for dictionary in dictionaries],
        },
    }


def merged(settings, more):
    """Both, the inner blocks as well; `more` wins."""
    both = dict(settings)
    for name, value in more.items():
        is_block = isinstance(value, dict) and isinstance(settings.get(name), dict)
        both[name] = merged(settings[name], value) if is_block else value
    return both


class Keys:
    """A key pair in a JWKS file, and a token as an identity provider would issue it, 600 bytes or so."""

    def __init__(self, folder, name="main"):
        self.private = ed25519.Ed25519PrivateKey.generate()
        public = self.private.public_key().public_bytes(serialization.Encoding.Raw,
                                                        serialization.PublicFormat.Raw)
        self.file = os.path.join(folder, f"{name}.jwks.json")
        key = {"kty": "OKP", "crv": "Ed25519", "kid": "bench-1", "alg": "EdDSA", "use": "sig",
               "x": base64.urlsafe_b64encode(public).rstrip(b"=").decode()}
        with open(self.file, "w", encoding="ascii") as out:
            json.dump({"keys": [key]}, out)

    def token(self, scope="openid profile email", tenant=TENANT):
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "3f0c2a52-6f0e-4d5e-9d0c-1f4f6f1f7a10", "iat": now,
                  "nbf": now - 60, "exp": now + 86400, "tenant_id": tenant, "name": "Bench Reader",
                  "email": "reader@bench.example", "scope": scope, "sid": ""}
        missing = TOKEN_BYTES - len(self._sign(claims))
        claims["sid"] = "s" * max(0, missing * 3 // 4)
        return self._sign(claims)

    def _sign(self, claims):
        return jwt.encode(claims, self.private, algorithm="EdDSA", headers={"kid": "bench-1"})


def request(path, token=None):
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return (f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}"
            f"Accept: application/json\r\nUser-Agent: bench\r\n\r\n").encode()


def post(path, token, body, key=None):
    """A POST of JSON; `body` is what json.dumps takes, `key` an Idempotency-Key."""
    text = json.dumps(body, separators=(",", ":")).encode()
    keyed = f"Idempotency-Key: {key}\r\n" if key else ""
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n{keyed}"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nUser-Agent: bench\r\n\r\n").encode() + text


def updates_path(mode="ASYNC"):
    return f"/v1/tenants/{TENANT}/updates?consistencyMode={mode}"


def item_path(dictionary, key):
    return f"/v1/tenants/{TENANT}/dictionaries/{dictionary.code}/items/{key}"


def keys_path(dictionary, keys):
    return f"/v1/tenants/{TENANT}/dictionaries/{dictionary.code}/items?keys={','.join(keys)}"


@dataclasses.dataclass
class Answer:
    status: int
    raw: bytes
    body: bytes


def connect(port, seconds, tls=None):
    plain = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    return tls.wrap_socket(plain) if tls else plain


def unverified_tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ask(port, raw_request, seconds=600, tls=None):
    """One exchange on a connection of its own; the answer is framed by Content-Length."""
    with connect(port, seconds, tls) as connection:
        connection.sendall(raw_request)
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += _receive(connection)
        head, _, body = raw.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        while len(body) < length:
            body += _receive(connection)
    return Answer(int(head.split()[1]), head + b"\r\n\r\n" + body, body)


def _receive(connection):
    data = connection.recv(1 << 20)
    if not data:
        raise ConnectionError("the server closed the connection in the middle of an answer")
    return data


class Freshet:
    """Starts the program as often as a benchmark needs it. `settings` are added to its configuration."""

    def __init__(self, binary, folder, processes, database, dictionaries, settings=None):
        self.binary = binary
        self.folder = folder
        self.processes = processes
        self.database = database
        self.dictionaries = dictionaries
        self.settings = settings or {}
        self.tls = unverified_tls() if "tls" in self.settings.get("http", {}) else None
        self.keys = Keys(folder, database.name)
        self.token = self.keys.token()
        self.env = dict(os.environ, FRESHET_BENCH_PG_PASSWORD=database.password)

    def prepare(self):
        """Creates the program's own tables and gives every dictionary its first version."""
        path = self._write("migrate", machine.free_port(), 1, [])
        with open(os.path.join(self.folder, "migrate.log"), "wb") as log:
            subprocess.run([self.binary, "migrate", "--config", path], check=True, env=self.env, stdout=log, stderr=log)
        for dictionary in self.dictionaries:
            if isinstance(dictionary, Builtin):
                self.database.fill_builtin(TENANT, dictionary.code, dictionary.rows)
            self.database.run("insert into refdata.dictionary_meta "
                              "(tenant_id, dict_code, version, updated_at) "
                              f"values ('{TENANT}', '{dictionary.code}', 1, now()) on conflict do nothing")

    def start(self, name, loops=1, preload=(), on_cpus=None, roles=None):
        port = machine.free_port()
        path = self._write(name, port, loops, preload)
        command = [self.binary, "serve", "--config", path]
        if roles:
            command += ["--roles", roles]
        process = self.processes.start(name, command, port, on_cpus, self.env)
        self._wait_ready(name, port, process, self.tls)
        return Running(self, name, process, port)

    def _write(self, name, port, loops, preload):
        path = os.path.join(self.folder, name + ".yaml")
        settings = configuration(self.database, port, loops, self.keys.file, self.dictionaries, preload)
        with open(path, "w", encoding="utf-8") as out:
            json.dump(merged(settings, self.settings), out, indent=2)
        return path

    @staticmethod
    def _wait_ready(name, port, process, tls, seconds=600):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            if ask(port, request("/actuator/health/readiness"), tls=tls).status == 200:
                return
            time.sleep(0.05)
        raise RuntimeError(f"{name} did not become ready; see its log")


@dataclasses.dataclass
class Running:
    freshet: Freshet
    name: str
    process: subprocess.Popen
    port: int

    @property
    def pid(self):
        return self.process.pid

    def ask(self, path):
        return ask(self.port, request(path, self.freshet.token), tls=self.freshet.tls)

    def metrics(self):
        """Prometheus samples by their text up to the value."""
        text = ask(self.port, request("/actuator/prometheus"), tls=self.freshet.tls).body.decode()
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def load(self, dictionary, key, seconds=600):
        """Asks for an item of a dictionary that is not in memory until it is there; returns the seconds."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            answer = self.ask(item_path(dictionary, key))
            if answer.status == 200:
                return time.monotonic() - started
            if answer.status != 503:
                raise RuntimeError(f"{self.name}: {answer.status} {answer.body.decode(errors='replace')}")
            time.sleep(0.002)
        raise RuntimeError(f"{self.name}: {dictionary.code} did not load in {seconds} s")

    def logged(self, event, code):
        """The last log line of that event about that dictionary, or None."""
        found = None
        with open(os.path.join(self.freshet.folder, self.name + ".log"), encoding="utf-8") as log:
            for line in log:
                if event in line:
                    entry = json.loads(line)
                    if event in entry.values() and entry.get("dictCode") == code:
                        found = entry
        return found

    def stop(self):
        self.freshet.processes.stop(self.process)
