"""C1, C7, issue 14: every role is replaced under load, each in processes of its own, and clients that retry nothing see no failed
request. tests/system/test_life_rolling.py is the short form: two processes with all roles."""
from contextlib import ExitStack

import pytest

from lib.balancer import Balancer
from lib.refdata import pod, refdata_db, write_builtin  # noqa: F401
from lib.requests import CODE, SCOPE, SUBJECT
from lib.rolling import KeepAlive, Load, replace

ROLES = ["query", "command", "apply", "relay", "adapter", "intake", "chat", "entitlement", "notification", "hydration"]
# A kind of request goes to the role of its name, or to this one.
ROLE_OF = {"query_all": "query", "chat_history": "chat"}
# Of each client: it uses each of its connections again well within the delay.
KINDS = [{"query", "query_all"}, {"command"}, {"intake", "hydration"}, {"chat", "chat_history"}, {"entitlement", "notification"}]
DELAY_MS = 1000


@pytest.mark.whole
def test_c7_a_rolling_restart_of_every_role_loses_no_request(serve, refdata_db, token):
    write_builtin(refdata_db, CODE, {"a": 1}, version=1)
    settings = pod(CODE, http={"drainDelay": f"{DELAY_MS}ms", "loops": 1}, hydration={"wait_timeout_ms": 20000})
    bearer = token(subject=SUBJECT, scope=SCOPE)
    fleet = {role: [serve(refdata_db, settings, args=["--roles", role]) for _ in range(2)] for role in ROLES}
    with ExitStack() as stack:
        balancers = {role: stack.enter_context(Balancer(servers)) for role, servers in fleet.items()}
        clients = [KeepAlive(lambda kind: balancers[ROLE_OF.get(kind, kind)].port, bearer, kinds) for kinds in KINDS]
        with Load(clients) as load:
            for role in ROLES:
                for server in fleet[role]:
                    replace(server, balancers[role], load)
        assert not load.failed(), load.failed()[:10]
