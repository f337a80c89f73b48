"""The checklist (P3): each line has a command; all of them succeed on an installation that is ready to go live, and those that it would
be wrong to pass fail on one that is not."""
import re
import subprocess

import pytest

from lib import tokens
from lib.fixtures import ROOT
from lib.freshet import run
from lib.operator import MARK, Operator
from lib.pages import Page
from lib.wait import free_port

pytestmark = [pytest.mark.whole, pytest.mark.embedded]
PAGE = Page(ROOT, ROOT / "docs/SRE_CHECKLIST.md")
LINE = re.compile(r"^- \[ \] (.*)\n\n<!-- runs as an operator -->$", re.M)
PODS = 3
# Hold as well where nothing was prepared: the program takes care of them.
ALWAYS = {"The file is valid, as the program reads it.", "All processes together leave a third of the connections free.",
          "Autovacuum runs.", "No migration of this program is missing.", "The audit has a partition for the next month.",
          "Its clock and this machine's agree.", "Without a token nothing is served.", "A tenant reads nothing of another one.",
          "In each, every role and component is UP.", "Each has metrics for Prometheus.",
          "A write is read at every pod, at its version.",
          "Everything accepted is decided or on its way, and pods have what the database has.", "Retention keeps up."}

CONFIG = """
auth:
  jwksFile: "{keys}/jwks.json"
  issuer: "{issuer}"
  audiences: [{audience}]
limits:
  memory: 256MiB
bus: {{migrate: always}}
refdata:
  postgres:
    jdbcUrl: "{url}"
    username: app
    passwordFromEnv: FRESHET_TEST_PG_PASSWORD
    schema: public
  dictionaries:
    - code: FEATURE
    - code: COUNTRY
"""


def checks(operator):
    """{line: exit status} of every one, each in a shell of its own."""
    lines, blocks = LINE.findall(PAGE.text), [block for block, _ in PAGE.examples(MARK)]
    assert len(lines) == len(blocks) == PAGE.text.count("- [ ]") > 20
    return {line: subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], env=operator.env, cwd=operator.folder, text=True,
                                 capture_output=True, timeout=60, check=False) for line, block in zip(lines, blocks)}


@pytest.fixture
def database(make_pair):
    """Of a role of its own, on a durable primary with a synchronous standby."""
    pair = make_pair("jdbc hosts")
    for name, value in {"fsync": "on", "full_page_writes": "on"}.items():
        pair.execute(f"alter system set {name} = {value}")
    pair.execute(f"create role app login password '{pair.password}' in role pg_monitor")
    pair.synchronise()
    made = pair.create_database()
    pair.execute(f'alter database "{made.name}" owner to app')
    return made


def test_every_check_succeeds_where_it_should_and_fails_where_it_should_not(serve, database, tmp_path):
    key, keys = tokens.Key("EdDSA"), tmp_path / "keys"
    keys.mkdir()
    tokens.write_jwks(keys / "jwks.json", [key])
    config = CONFIG.format(keys=keys, issuer=tokens.ISSUER, audience=tokens.AUDIENCE, url=database.jdbc_url)
    servers = [serve.make(database, config=config) for _ in range(PODS)]
    assert run("migrate", "--config", servers[0].config_path, env=servers[0].env).returncode == 0
    for server in servers:
        server.own_port = free_port()
        server.start()
    urls = [f"http://127.0.0.1:{server.port}" for server in servers]
    bearer = tokens.mint(key, scope="entitlement:write")
    operator = Operator(tmp_path / "operator", database, {"freshet": servers[0]}, urls[0], FRESHET_TOKEN=bearer, PGUSER="app",
                        PODS=" ".join(urls), KEYS=keys, BACKUP=tmp_path)
    subprocess.run(["pg_dump", "--format=custom", f"--file={tmp_path}/freshet.dump"], env=operator.env, check=True)
    try:
        wrong = {line: done.stdout + done.stderr for line, done in checks(operator).items() if done.returncode}
        assert wrong == {}
        passed = {line for line, done in checks(unprepared(operator, database, tmp_path, servers[0])).items() if not done.returncode}
        assert passed == ALWAYS
    finally:
        operator.close()


def unprepared(operator, database, folder, server):
    """The same installation, as if nobody had prepared it."""
    pair = database.server
    pair.execute("alter system reset synchronous_standby_names")
    pair.execute("alter system set fsync = off")
    pair.execute("select pg_reload_conf()")
    pair.standby.stop("immediate")
    (folder / "keys/jwks.json").chmod(0o644)
    server.stop()
    server.write_config(f"auth: {{jwksFile: '{folder}/keys/jwks.json'}}\ndebug: {{enabled: true}}\nrefdata:\n"
                        f"  postgres: {{jdbcUrl: '{pair.primary.url(database.name)}'}}\n"
                        "  dictionaries: [{code: FEATURE}, {code: COUNTRY}]\n")
    server.start()
    database.query("insert into refdata.outbox_event (tenant_id, dict_code, version, event_id, failed_at, last_error, payload)"
                   " values ('demo', 'FEATURE', 1000, gen_random_uuid(), now(), 'no', '{}')")
    operator.env.update(PODS=operator.env["FRESHET_URL"], BACKUP="/nonexistent", PGUSER="freshet")
    return operator
