"""An installation for the pictures of the docs: a process with all roles and two pods, readers and writers at work, one update that
failed and commands for a dictionary that nobody has configured."""
import itertools
import random

from lib.apply import command, publish
from lib.refdata import item_path, make_table, path, pod
from lib.wait import eventually
from lib.writers import Threads, commit, delta, updates_path

OPS = "ops:read ops:write ops:all-tenants"
COUNTRIES = {"AT": "Austria", "BR": "Brazil", "CH": "Switzerland", "DE": "Germany", "ES": "Spain", "FR": "France", "GB": "United Kingdom",
             "IN": "India", "IT": "Italy", "JP": "Japan", "KE": "Kenya", "MX": "Mexico", "NL": "Netherlands", "PL": "Poland"}
CURRENCIES = {"CHF": "Swiss franc", "EUR": "Euro", "GBP": "Pound sterling", "JPY": "Yen", "USD": "US dollar"}


class Scene:
    def __init__(self, database, servers, token):
        self.database, self.servers, self.token, self.threads = database, servers, token, Threads()
        self.writer, self.pods = None, []

    def settings(self, **more):
        return {"url": f"http://127.0.0.1:{self.writer.port}", "tokens": {"all": self.token(scope=OPS)}, **more}

    def begin(self):
        make_table(self.database, "limits")
        limits = {"code": "LIMIT", "loadSql": "select k, v from limits where tenant_id = :tenantId",
                  "apply": {"upsertSql": "insert into limits select :tenantId, :key, to_jsonb((:payload #>> '{}')::int)"}}
        config = pod("COUNTRY", "CURRENCY", "FEATURE", "PRICE", limits)
        self.writer = self.servers(self.database, config)
        self.pods = [self.servers(self.database, config, args=("--roles", "query")) for _ in range(2)]
        self.fill()
        self.threads.add(self.write)
        for server in (self.writer, *self.pods):
            self.threads.add(self.read, server)
        return self

    def fill(self):
        with self.writer.client(self.token()) as client:
            for code, items in (("COUNTRY", {key: {"name": name} for key, name in COUNTRIES.items()}),
                                ("CURRENCY", {key: {"name": name} for key, name in CURRENCIES.items()}),
                                ("FEATURE", {"dark-mode": {"enabled": True}, "new-checkout": {"enabled": False}}),
                                ("PRICE", {f"sku-{number:04}": {"cents": 100 + number} for number in range(1, 2001)})):
                eventually(lambda c=code, i=items: commit(client, delta(c, i)).status == 200)
            assert client.post(updates_path("WAIT_COMMIT"), delta("LIMIT", {"daily": "a lot"})).status in (202, 422)
        publish(self.database, [command("TARIFF", {f"t{number}": number}) for number in range(4)])

    def write(self, stopping):
        chance = random.Random(15)
        with self.writer.client(self.token()) as client:
            for number in itertools.count(1):
                if stopping.wait(chance.uniform(0.05, 0.4)):
                    return
                code = chance.choice(("PRICE", "PRICE", "FEATURE"))
                key = f"sku-{chance.randint(1, 2000):04}" if code == "PRICE" else "new-checkout"
                commit(client, delta(code, {key: {"cents": number} if code == "PRICE" else {"enabled": number % 2 == 0}}))

    def read(self, stopping, server):
        chance = random.Random(server.port)
        with server.client(self.token()) as client:
            while not stopping.wait(chance.uniform(0.0, 0.02)):
                assert client.get(item_path("COUNTRY", chance.choice(list(COUNTRIES)))).status == 200
                assert client.get(path("PRICE", "/version")).status == 200

    def end(self):
        self.threads.stop()
