"""One client does not starve or exhaust the others: scrapes, bodies, answers nobody reads, descriptors (issue 11.12, 11.13)."""
import select

from lib.refdata import TENANT, module_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes

UPDATE = f"/v1/tenants/{TENANT}/updates/00000000-0000-4000-8000-000000000000"
HEALTH = request_bytes("GET", "/actuator/health/liveness")
SCRAPE = request_bytes("GET", "/actuator/prometheus")


def has_answer(connection):
    return bool(select.select([connection.socket], [], [], 0)[0])


def test_scrapes_share_a_rendering_and_leave_the_workers_to_others(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod("COUNTRY", http={"workers": 1}), args=["--roles", "command"],
                   env={"FRESHET_FAILPOINTS": "actuator.before_print=sleep-2500#1"})
    first = server.raw()
    first.send(SCRAPE)
    eventually(lambda: server.logs(failpoint="actuator.before_print"))
    others = [server.raw() for _ in range(40)]
    for connection in others:
        connection.send(SCRAPE)
    # A route that needs the only worker is answered while all of them wait.
    status = server.client(token()).get(UPDATE).status
    assert status == 404
    assert not has_answer(first)
    answers = [connection.read_response() for connection in others]
    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) == 8 and all(answer.headers["retry-after"] for answer in refused)
    shared = {answer.body for answer in answers if answer.status == 200}
    assert len(shared) == 1 and b"http_connections 4" in shared.pop()
    assert first.read_response().status == 200
    assert first.exchange(SCRAPE).status == 200


def test_openapi_is_whole_however_it_is_asked_for(serve, module_refdata_db):
    server = serve(module_refdata_db, pod("COUNTRY"))
    with server.raw() as connection:
        request = request_bytes("GET", "/openapi.yaml")
        whole = connection.exchange(request)
        assert whole.status == 200 and int(whole.headers["content-length"]) == len(whole.body) > 65536
        connection.send(request * 3)
        assert [connection.read_response().body for _ in range(3)] == [whole.body] * 3
        head = connection.exchange(request_bytes("HEAD", "/openapi.yaml"), "HEAD")
        assert head.headers["content-length"] == whole.headers["content-length"]
        etag = whole.headers["etag"]
        assert connection.exchange(request_bytes("GET", "/openapi.yaml", {"If-None-Match": etag})).status == 304


def test_clients_leave_descriptors_to_the_database(serve, refdata_db, token):
    server = serve.make(refdata_db, pod("COUNTRY", http={"loops": 1, "limits": {"reservedDescriptors": 128}}),
                        args=["--roles", "command"])
    server.wrapper = ["prlimit", "--nofile=256"]
    server.start()
    client = server.client(token())
    assert client.get(UPDATE).status == 404
    crowd = [server.raw() for _ in range(300)]
    # All were accepted, told so or closed when the last one was: there is one loop.
    refused = 0
    for connection in crowd:
        try:
            refused += connection.exchange(HEALTH).status == 503
        except (EOFError, OSError):
            refused += 1
    assert 172 <= refused < 250
    refdata_db.query("select count(pg_terminate_backend(pid)) from pg_stat_activity"
                     " where datname = current_database() and pid <> pg_backend_pid()")
    eventually(lambda: client.get(UPDATE).status == 404)
    for connection in crowd:
        connection.close()
    eventually(lambda: server.metrics()["http_connections"] < 10)
