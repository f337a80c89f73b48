"""`freshet doctor` on pods and engines: each thing is made wrong, found with the command that helps, and that command is run (issue 15,
point 3)."""
import re
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lib.certs import Authority
from lib.config import merge
from lib.doctor import Doctor
from lib.refdata import item_path, own_refdata_db, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually, free_port
from lib.writers import delta, status_path, updates_path


def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def pods(serve, refdata_db, tmp_path):  # noqa: F811
    """pods(changes): (a running server, its doctor)."""
    def start(changes=None, **options):
        server = serve(refdata_db, changes or pod("D"), **options)
        return server, Doctor(server, tmp_path, refdata_db, freshet=lambda: server.process.send_signal(signal.SIGCONT))
    return start


def test_a_pod_that_serves_has_nothing_wrong(pods):
    server, patient = pods()
    assert patient.report("--url", url(server)) == (0, [], [])


def test_a_frozen_pod_is_found_in_time_and_a_restart_helps(pods):
    server, patient = pods()
    server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        problem = patient.one("pod_down", "--url", url(server))
        assert time.monotonic() - began < 30 and "no answer in time" in problem["what"]
        assert problem["help"] == "systemctl restart freshet"
        patient.advised(problem)
        eventually(lambda: patient.found("pod_down", "--url", url(server)) == [])
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_pod_that_is_down_is_found_by_the_variable_too(pods):
    _, patient = pods()
    done = patient.run(env={"FRESHET_URL": f"http://127.0.0.1:{free_port()}"})
    assert done.returncode == 3 and done.stdout.startswith("CRITICAL  pod http://127.0.0.1:")


def test_a_dictionary_that_a_pod_does_not_serve_is_found(pods, refdata_db):  # noqa: F811
    server, patient = pods(pod("D", sql_dictionary("T", "t")))
    problem = eventually(lambda: patient.found("dictionary_unavailable", "--url", url(server)))[0]
    assert "the templates of T" in problem["what"]
    refdata_db.query("create table t (tenant_id text, k text, v jsonb)")
    eventually(lambda: patient.found("dictionary_unavailable", "--url", url(server)) == [])


def test_a_role_and_a_component_that_are_down_are_found(own_postgres, own_refdata_db, serve, tmp_path):  # noqa: F811
    server = serve(own_refdata_db, pod("D"))
    patient = Doctor(server, tmp_path, own_refdata_db)
    own_postgres.stop()
    problems = eventually(lambda: [problem for problem in patient.found("role_down", "--url", url(server))
                                   if "role command" in problem["what"] and "role apply" in problem["what"]])
    assert len(patient.found("role_down", "--url", url(server))) == 1  # one database, one finding
    assert "DOWN" in patient.advised(problems[0]).stdout
    assert any("postgres" in problem["what"] for problem in patient.found("component_down", "--url", url(server)))
    own_postgres.start()
    eventually(lambda: patient.report("--url", url(server))[0] == 0)


def test_a_configuration_that_was_refused_is_found(pods):
    server, patient = pods()
    good = server.config_path.read_text()
    broken = server.config_path.with_name("broken.yaml")
    server.write_config(good + "nonsense: 1\n")
    eventually(lambda: server.metrics()["freshet_config_last_reload_successful"] == 0)
    broken.write_text(good)  # the doctor's own must be good, for it to ask the pod
    patient.env["FRESHET_CONFIG"] = str(broken)
    problem = patient.one("reload_refused", "--url", url(server))
    assert problem["help"] == "freshet config"
    patient.env["FRESHET_CONFIG"] = str(server.config_path)
    assert "nonsense" in patient.advised(problem).stderr
    server.write_config(good)
    eventually(lambda: patient.found("reload_refused", "--url", url(server)) == [])


def test_a_pod_that_serves_an_old_version_is_found(pods, refdata_db, token):  # noqa: F811
    """Its loads fail since its dictionary's SQL does."""
    refdata_db.query("create table t (tenant_id text, k text, v jsonb); insert into t values ('demo', 'a', '1')")
    server, patient = pods(pod({"code": "T", "loadSql": "select k, v from t where tenant_id = :tenantId and 1 / v::text::int > -1"}))
    assert server.client(token()).get(item_path("T", "a")).status == 200
    refdata_db.query("update t set v = '0'; select refdata.touch('demo', 'T')")
    problem = eventually(lambda: patient.found("version_behind", "--url", url(server)))[0]
    assert problem["what"].startswith("demo/T is served in an older version")
    assert problem["help"] == f"freshet verify demo/T --url {url(server)}"
    done = patient.advised(problem)
    assert done.returncode == 1 and "division by zero" in done.stdout
    refdata_db.query("update t set v = '2'")
    eventually(lambda: patient.found("version_behind", "--url", url(server)) == [])


class Changed(BaseHTTPRequestHandler):
    """The metrics of a real pod, some of them with another value."""

    def do_GET(self):  # pylint: disable=invalid-name
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@pytest.mark.parametrize("check,pattern,value,told", [
    ("memory_full", r"^(freshet_memory_used_bytes\{account=\"bodies\"\}) .*", r"\1 1e15", "of the memory for clients is used"),
    ("keys_missing", r"^(auth_keys) .*", r"\1 0", "no key to check tokens with is known: "),
    ("kafka_lag", r"\Z", 'kafka_consumer_lag{topic="t",group="g"} 10001\n', "topic t, group g"),
    ("redis_lag", r"\Z", 'redis_stream_lag{topic="t",group="g"} 1001\n', "topic t, group g"),
])
def test_figures_that_a_small_pod_does_not_reach_are_found(pods, check, pattern, value, told):
    """What would take much memory or an engine, by the metrics of a pod with one figure changed."""
    server, patient = pods()
    with server.client() as client:
        text = client.get("/actuator/prometheus").body.decode()
    assert patient.found(check, "--url", url(server)) == []
    with HTTPServer(("127.0.0.1", 0), Changed) as changed:
        changed.text, count = re.subn(pattern, value, text, flags=re.MULTILINE)
        assert count == 1 and changed.text != text
        thread = threading.Thread(target=changed.serve_forever, args=(0.01,))
        thread.start()
        problem = patient.one(check, "--url", f"http://127.0.0.1:{changed.server_port}")
        changed.shutdown()
        thread.join()
    assert told in problem["what"] and problem["help"]


def test_a_certificate_in_force_that_expires_soon_is_found(serve, refdata_db, tmp_path):  # noqa: F811
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server", "localhost", hosts=["localhost"], days=3)
    server = serve.make(refdata_db, merge(pod("D"), {"http": {"tls": {"certFile": str(certificate), "keyFile": str(key)}}}))
    server.spawn()
    patient = Doctor(server, tmp_path, refdata_db)
    address = f"https://localhost:{server.port}"
    problem = eventually(lambda: patient.found("pod_certificate_expires", "--url", address, "--ca", str(authority.ca)))[0]
    assert "expires within two weeks" in problem["what"]


# ---- processes, as they report themselves ----

def test_pods_that_report_themselves_are_asked_without_being_named(pods):
    server, patient = pods()
    eventually(lambda: patient_rows(patient) == [server.port])
    server.process.send_signal(signal.SIGSTOP)
    try:
        problem = patient.one("pod_down")
        assert problem["where"] == f"pod {url(server)}"
    finally:
        server.process.send_signal(signal.SIGCONT)


def patient_rows(patient):
    """Ports of the processes that report themselves."""
    return [int(address.rsplit(":", 1)[1]) for (address,) in
            patient.database.query("select address from platform.pod where stopped_at is null")]


def test_a_process_that_was_killed_is_found_until_another_does_its_work(pods, serve, refdata_db):  # noqa: F811
    server, patient = pods()
    eventually(lambda: patient_rows(patient) == [server.port])
    server.kill()
    refdata_db.query("update platform.pod set seen_at = seen_at - interval '1 minute', started_at = started_at - interval '1 minute'")
    problem = patient.one("process_gone")
    assert "has not reported for" in problem["what"] and "query" in problem["what"]
    patient.services["freshet"] = server.start
    patient.advised(problem)
    eventually(lambda: patient.found("process_gone") == [])


def test_a_process_that_ended_in_order_is_not_missed(pods):
    server, patient = pods()
    eventually(lambda: patient_rows(patient) == [server.port])
    server.stop()
    assert patient.found("process_gone") == [] and patient.report()[0] == 0


def test_a_role_that_no_process_runs_while_work_waits_is_found_and_run(pods, refdata_db, token):  # noqa: F811
    server, patient = pods(pod("D", http={"listen": ["127.0.0.1:0"]}), args=["--roles", "command"])
    eventually(lambda: patient_rows(patient) == [server.port])
    assert patient.found("role_missing") == []
    body = delta("D", {"k": 1})
    assert server.client(token()).post(updates_path("ASYNC"), body).status == 202
    problem = patient.one("role_missing")
    assert "no process reports the role apply, for which 1 message waits" in problem["what"]
    assert problem["help"] == "freshet serve --roles apply"
    with subprocess.Popen(["bash", "-c", "exec " + problem["help"]], env=patient.env, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: server.client(token()).get(status_path(body["eventId"])).json()["status"] == "COMMITTED")
            eventually(lambda: "apply" not in str(patient.found("role_missing")))
        finally:
            process.terminate()
            process.wait()


# ---- engines ----

class Engine:
    """Accepts connections and answers with these bytes; None: never."""

    def __init__(self, answer):
        self.answer, self.socket = answer, socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.held = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.held.append(connection)
            if self.answer is not None:
                connection.sendall(self.answer)

    def close(self):
        self.socket.close()
        for connection in self.held:
            connection.close()


@pytest.fixture
def engine():
    made = []

    def make(answer):
        made.append(Engine(answer))
        return made[-1]
    yield make
    for one in made:
        one.close()


def on(flow, name, ports):
    setting = {"kafka": "brokers", "redis": "nodes", "nats": "servers"}[name]
    nodes = [f"nats://127.0.0.1:{port}" if name == "nats" else f"127.0.0.1:{port}" for port in ports]
    return merge(pod("D"), {"bus": {flow: name}, name: {setting: nodes}, "entitlement": {"nats": {"subject": "e", "stream": "e"}}})


@pytest.mark.parametrize("flow,name,answer", [("commands", "kafka", b"\0\0\0\4\0\0\0\1"), ("invalidations", "redis", b"+PONG\r\n"),
                                              ("events", "nats", b'INFO {"server_id":"x"}\r\n')])
def test_an_engine_that_is_down_or_frozen_is_found(serve, refdata_db, tmp_path, engine, flow, name, answer):  # noqa: F811
    """One of two servers is down, then frozen: it accepts connections and is silent."""
    alive, port = engine(answer), free_port()
    server = serve.make(refdata_db, on(flow, name, [alive.port, port]))
    patient = Doctor(server, tmp_path, refdata_db, kafka=lambda: None, redis_server=lambda: None, nats_server=lambda: None)
    problem = patient.one("engine_down")
    assert f"127.0.0.1:{port} does not answer (Connection refused); others do" in problem["what"]
    assert problem["help"].startswith("systemctl restart ") and patient.advised(problem).returncode == 0
    silent = engine(None)
    server.write_config(merge_config(serve, refdata_db, on(flow, name, [silent.port])))
    began = time.monotonic()
    assert "it accepts connections, but does not answer" in patient.one("engine_down")["what"]
    assert time.monotonic() - began < 30
    server.write_config(merge_config(serve, refdata_db, on(flow, name, [alive.port])))
    assert patient.found("engine_down") == []


def merge_config(serve, database, changes):
    """The text of a configuration with these changes."""
    return serve.make(database, changes).config_path.read_text()
