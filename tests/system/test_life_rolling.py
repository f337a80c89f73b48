"""C7, issue 14: processes are replaced under load, and clients that retry nothing see no failed request."""
from lib.balancer import Balancer
from lib.refdata import pod, refdata_db, write_builtin  # noqa: F401
from lib.requests import CODE, SCOPE, SUBJECT
from lib.rolling import KeepAlive, Load, replace

# Longer than the balancer needs to notice, and than the longest pause of a client.
DELAY_S = 0.5


def test_c7_a_rolling_restart_loses_no_request(serve, refdata_db, token):
    """Two processes with all roles; clients without a pause, and one that uses its connection now and then."""
    write_builtin(refdata_db, CODE, {"a": 1}, version=1)
    settings = pod(CODE, http={"drainDelay": f"{int(DELAY_S * 1000)}ms"}, hydration={"wait_timeout_ms": 20000})
    servers = [serve(refdata_db, settings) for _ in range(2)]
    bearer = token(subject=SUBJECT, scope=SCOPE)
    with Balancer(servers) as balancer:
        clients = [KeepAlive(lambda kind: balancer.port, bearer, pause_s=pause) for pause in (0, 0, 0, DELAY_S / 4)]
        with Load(clients) as load:
            for server in servers:
                replace(server, balancer, load)
        assert not load.failed(), load.failed()[:10]
    # They did leave: a client connects at least once more for each process that was replaced under it.
    assert all(client.connected >= 2 for client in clients)
    assert all(client.answered > 2 * client.connected for client in clients)
