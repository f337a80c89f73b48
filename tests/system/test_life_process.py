"""C1, C7, C9: start, stop, crash, logs."""
import http.client
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from lib.freshet import binary, run
from lib.refdata import (generate, item_path, make_table, path, pod, refdata_db, set_version, slow_dictionary,  # noqa: F401
                         sql_dictionary, write_builtin)
from lib.wait import eventually, free_port
from lib.wire import Client, request_bytes


@pytest.mark.tsan
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_cuts_no_answer_and_exits_0(serve, refdata_db, token, sent):
    """C7: what was begun is finished; a connection may be closed between answers only."""
    generate(refdata_db, "t", 2000, "to_jsonb(repeat('x', 500))")
    server = serve(refdata_db, pod(sql_dictionary("T")))
    made = token()
    answered, wrong = [0], []

    def ask(target):
        client = Client(server.port, made)
        while True:
            try:
                answer = client.get(target)
            except http.client.IncompleteRead as error:
                wrong.append(error)
                return
            except (OSError, http.client.HTTPException):
                return  # refused, or closed before anything of an answer came
            if answer.status != 200:
                wrong.append(answer)
                return
            answered[0] += 1

    targets = [item_path("T", "k000001"), path("T", "/all"), path("T", "/all?limit=2000"), path("T", "/version")] * 2
    threads = [threading.Thread(target=ask, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    eventually(lambda: answered[0] > 200)
    server.process.send_signal(sent)
    for thread in threads:
        thread.join()
    assert server.process.wait(60) == 0
    assert not wrong
    assert [line["event"] for line in server.logs()][-1] == "stopped"


def test_requests_in_flight_are_finished_before_the_process_ends(serve, refdata_db, token):
    """C7: one that waits for a load, one whose answer is being read slowly; new ones find nobody."""
    generate(refdata_db, "t", 10000, "to_jsonb(repeat('x', 1000))")
    server = serve(refdata_db, pod(slow_dictionary("S", 1), sql_dictionary("T"), http={"stopTimeout": "60s"}))
    auth = {"Authorization": f"Bearer {token()}"}
    reading = server.raw()
    reading.send(request_bytes("GET", path("T", "/all"), {**auth, "Accept": "application/x-ndjson"}))
    head = reading.read_head()
    waiting = server.raw()
    waiting.send(request_bytes("GET", item_path("S", "k"), auth))
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(1)%%'"
                                        " and state = 'active' and pid <> pg_backend_pid()"))
    idle = server.raw()
    assert idle.exchange(request_bytes("GET", "/actuator/health/liveness")).status == 200
    server.process.send_signal(signal.SIGTERM)
    assert idle.is_closed()
    answer = waiting.read_response()
    assert (answer.status, answer.headers.get("connection")) == (200, "close")
    with pytest.raises(OSError):
        Client(server.port).get("/actuator/health/liveness")
    assert server.process.poll() is None
    body = reading.read_exactly(int(head.headers["content-length"]))
    assert body.count(b"\n") == 10000
    assert server.process.wait(60) == 0


def test_a_stop_does_not_wait_for_ever(serve, refdata_db, token):
    """C7: within the configured time, whatever clients do."""
    generate(refdata_db, "t", 20000, "to_jsonb(repeat('x', 1000))")
    server = serve(refdata_db, pod(slow_dictionary("S", 600), sql_dictionary("T"), cache={"firstReadTimeout": "1h"},
                                   http={"stopTimeout": "300ms"}))
    auth = {"Authorization": f"Bearer {token()}"}
    connections = [server.raw() for _ in range(4)]
    connections[0].send(request_bytes("GET", path("T", "/all"), {**auth, "Accept": "application/x-ndjson"}))
    connections[0].read_head()
    connections[1].send(request_bytes("GET", item_path("S", "k"), auth))
    connections[2].send(b"GET / HTTP/1.1\r\nHost:")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert time.monotonic() - began < 20


def test_readiness_goes_before_the_listener_does(serve, refdata_db, token):
    """C8: a process that stops is not ready."""
    server = serve(refdata_db, pod(slow_dictionary("S", 2), http={"stopTimeout": "60s"}))
    watching = server.raw()
    waiting = server.raw()
    waiting.send(request_bytes("GET", item_path("S", "k"), {"Authorization": f"Bearer {token()}"}))
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(2)%%'"
                                        " and state = 'active' and pid <> pg_backend_pid()"))
    watching.send(b"GET /actuator/health/readiness HTTP/1.1\r\n")  # begun before, finished after
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.logs(event="stopping"))
    try:
        watching.send(b"Host: x\r\n\r\n")
        assert watching.read_response().status == 503
    except (OSError, EOFError):
        pass  # cut: a head that is not whole is not in flight
    assert waiting.read_response().status == 200
    assert server.process.wait(60) == 0


def test_a_second_process_on_the_same_address_is_refused(serve, refdata_db, token):
    """One loop's listener may share its port with the next loop's, never with another process's."""
    first = serve(refdata_db, pod("D"))
    second = serve.make(refdata_db, pod("E"))
    done = run("serve", "--config", second.config_path, "--listen", f"127.0.0.1:{first.port}", env=second.env)
    assert done.returncode == 1 and "in use" in done.stderr
    assert first.client(token()).get(path("D", "/version")).status == 200


def test_two_signals_are_one_stop(serve, refdata_db):
    """C7."""
    server = serve(refdata_db, pod("D"))
    for _ in range(5):
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(60) == 0


def test_a_process_killed_hard_starts_again_on_its_port_with_all_data(serve, refdata_db, token):
    """C7: nothing of it was only in memory."""
    write_builtin(refdata_db, "D", {"a": 1}, version=7)
    server = serve(refdata_db, pod("D"))
    for _ in range(3):
        client = Client(server.port, token())
        before = client.get(path("D", "/version")).json()
        port = server.port
        server.kill()
        server.process = subprocess.Popen(
            [binary(), "serve", "--config", str(server.config_path), "--listen", f"127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=open(server.log_path, "ab"), stderr=subprocess.STDOUT, env=server.env)
        eventually(server.is_ready)
        after = Client(server.port, token()).get(path("D", "/version")).json()
        assert {**before, "loadedAt": None} == {**after, "loadedAt": None}


def test_a_stop_right_after_the_start_is_clean(serve, refdata_db):
    """C7: at any moment of the start."""
    write_builtin(refdata_db, "D", {"a": 1}, version=7)
    for pause in [0, 0.02, 0.05, 0.1, 0.2, 0.4]:
        server = serve.make(refdata_db, pod("D", slow_dictionary("S", 5), cache={"preload": ["demo/D", "demo/S"]}))
        server.spawn()
        time.sleep(pause)
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(60)
        # Before it takes signals itself, the signal's own effect is all there is.
        assert status in (0, -signal.SIGTERM)
        server.check_sanitizers()


def test_several_processes_share_one_database(serve, refdata_db, token):
    """C1: any number side by side; a change reaches each."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    servers = [serve(refdata_db, pod("D")) for _ in range(3)]
    clients = [server.client(token()) for server in servers]
    assert [client.get(item_path("D", "a")).json()["payload"] for client in clients] == [1, 1, 1]
    write_builtin(refdata_db, "D", {"a": 2}, version=2)
    for client in clients:
        eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == 2)


def test_processes_that_start_at_once_on_an_empty_database_migrate_it_once(serve, database, root):
    """C10: serve on the embedded default, every module's tables."""
    servers = [serve.make(database, pod("D")) for _ in range(4)]
    for server in servers:
        server.spawn()
    for server in servers:
        eventually(lambda: server.is_ready() and server.logs(event="store_ready"))  # pylint: disable=cell-var-from-loop
    migrated = sorted(line["module"] for server in servers for line in server.logs(event="schema_migrated"))
    assert migrated == sorted(folder.name for folder in (root / "sql").iterdir())


def test_a_role_can_be_asked_for(serve, refdata_db, token):
    """C1: --roles."""
    server = serve(refdata_db, pod("D"), args=["--roles", "query"])
    assert server.client(token()).get(path("D", "/version")).status == 200


def test_every_line_of_the_log_is_a_json_object_and_none_tells_a_secret(serve, refdata_db, token):
    """C9: no token, no payload, no password, whatever goes wrong."""
    make_table(refdata_db, "t", {"PAYLOADSECRETKEY": '"PAYLOADSECRET"'})
    refdata_db.query("create table bad (tenant_id text, k text, v jsonb);"
                     "insert into bad values ('demo', null, '\"PAYLOADSECRET\"')")
    server = serve(refdata_db, {**pod(sql_dictionary("T"), sql_dictionary("BAD"), sql_dictionary("NOWHERE")),
                                "log": {"level": "debug"}})
    made = token()
    client = server.client(made)
    assert client.get(item_path("T", "PAYLOADSECRETKEY")).status == 200
    client.get(item_path("BAD", "x"))
    for wrong in ["Bearer " + made[:-3] + "abc", "Bearer TOKENSECRET", "Basic TOKENSECRET", made]:
        assert server.client().request("GET", path("T", "/all"), headers={"Authorization": wrong}).status == 401
    server.client().get("/x?access_token=TOKENSECRET")
    server.raw().send(b"GET /TOKENSECRET HTTP/1.1\r\nAuthorization: TOKENSECRET\r\nbad\x00header\r\n\r\n")
    refdata_db.query("alter table t rename to gone")
    set_version(refdata_db, "T", 2)
    eventually(lambda: server.logs(event="dictionary_load_failed", dictCode="T"))
    server.sighup()
    eventually(lambda: server.logs(event="config_reloaded"))
    server.stop()
    lines = server.log().splitlines()
    assert len(lines) > 5
    for line in lines:
        entry = json.loads(line)
        assert isinstance(entry, dict) and {"ts", "level", "event"} <= set(entry)
    for secret in [refdata_db.password, "TOKENSECRET", "PAYLOADSECRET", made, made.split(".")[2]]:
        assert secret not in server.log()


def test_logs_name_the_dictionary_and_the_version(serve, refdata_db, token):
    """C9: dictCode and version wherever they exist."""
    write_builtin(refdata_db, "D", {"a": 1}, version=3)
    server = serve(refdata_db, pod("D"))
    server.client(token()).get(item_path("D", "a"))
    (line,) = server.logs(event="dictionary_loaded")
    assert (line["tenantId"], line["dictCode"], line["version"], line["items"]) == ("demo", "D", 3, 1)


def test_a_log_that_nobody_reads_stops_nobody(serve, refdata_db, token, tmp_path):
    """C9: a full or closed pipe on standard error is no reason to hang or die."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = serve.make(refdata_db, pod("D"))
    read_end, write_end = os.pipe()
    server.port = free_port()
    server.process = subprocess.Popen(
        [binary(), "serve", "--config", str(server.config_path), "--listen", f"127.0.0.1:{server.port}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=write_end, env=server.env)
    os.close(write_end)
    server.log_path.touch()
    eventually(server.is_ready)
    os.close(read_end)
    client = server.client(token())
    for version in range(2, 5):
        write_builtin(refdata_db, "D", {"a": version}, version=version)
        eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == version)
    server.close_clients()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
