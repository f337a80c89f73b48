"""The servers that freshet is measured beside: the floor, nginx with a fixed string, Redis.

nginx runs as it comes. `tcp_nodelay off` would halve its processor time when pipelined, but by waiting:
answers then come after 44 ms. The size of its header buffer made no difference.
"""
import os
import subprocess
import time

from . import machine
from .generator import Target, write_requests

NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    server {{
        listen 127.0.0.1:{port}{tls};
        default_type application/json;
        location / {{ return 200 '{body}'; }}
    }}
}}
"""

# As it comes, but for TLS 1.3, which this version would not offer.
NGINX_TLS = """ ssl;
        ssl_certificate {};
        ssl_certificate_key {};
        ssl_protocols TLSv1.2 TLSv1.3"""


class Others:
    def __init__(self, bench):
        self.bench = bench

    def floor(self, name, requests, request_bytes, response, threads=1, on_cpus=None):
        """`response` is what it answers, `requests` the file of requests, each `request_bytes` long."""
        port = machine.free_port()
        path = os.path.join(self.bench.folder, f"{name.replace(' ', '-')}.response")
        with open(path, "wb") as out:
            out.write(response)
        command = [self.bench.floor_binary, "--listen", f"127.0.0.1:{port}", "--threads", str(threads),
                   "--request-bytes", str(request_bytes), "--response", path]
        process = self.bench.processes.start(name.replace(" ", "-"), command, port, on_cpus)
        return Target(name, port, [process.pid], requests)

    def nginx(self, requests, body, on_cpus=None, certificate=None):
        """A fixed string as long as `body`: letters, since nginx would expand a `$` in it. `certificate`: its file and its key's."""
        port = machine.free_port()
        name = "nginx-tls" if certificate else "nginx"
        folder = os.path.join(self.bench.folder, name)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "nginx.conf")
        tls = NGINX_TLS.format(*certificate) if certificate else ""
        with open(path, "w", encoding="ascii") as out:
            out.write(NGINX.format(folder=folder, port=port, body="n" * len(body), tls=tls))
        command = ["nginx", "-e", os.path.join(folder, "nginx-error.log"), "-c", path]
        process = self.bench.processes.start(name, command, port, on_cpus)
        while not machine.children(process.pid) and process.poll() is None:  # its worker does the work
            time.sleep(0.01)
        return Target(name, port, [process.pid] + machine.children(process.pid), requests)

    def redis(self, keys, value, on_cpus=None):
        port = machine.free_port()
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "",
                   "--appendonly", "no", "--dir", self.bench.folder, "--daemonize", "no"]
        process = self.bench.processes.start("redis", command, port, on_cpus)
        sets = b"".join(resp(b"SET", key.encode(), value) for key in keys)
        subprocess.run(["redis-cli", "-p", str(port), "--pipe"], input=sets, check=True,
                       stdout=subprocess.DEVNULL)
        requests = write_requests(os.path.join(self.bench.folder, "redis.requests"),
                                  [resp(b"GET", key.encode()) for key in keys])
        time.sleep(0.2)
        return Target("redis GET", port, [process.pid], requests, "redis")


def resp(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
