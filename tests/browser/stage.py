"""A server with something on every page of the console: two tenants, items, updates in every state, events that are stuck, dead
letters, a chat. What another tenant has is marked with SECRET, so that a case can look for it on any page."""
import uuid

from lib.apply import command, publish
from lib.chat import Session
from lib.refdata import make_table, pod, write_builtin
from lib.wait import eventually
from lib.writers import commit, delta, updates_path

OPS = "ops:read ops:write ops:all-tenants"
SECRET = "rival-secret-4711"
LONG = "lorem ipsum " * 87300  # 1 MiB, as much as a payload may have
HOSTILE = {
    "<script>alert('key')</script>": {"html": "<script>alert('payload')</script><img src=x onerror=alert(1)>"},
    "\u202eoverridden": {"direction": "\u202eabc\u202c \u200fdef \u061c"},
    "blank\u200bwithout\u00adwidth": {"blank": "a\u200bb\ufeffc"},
    "{{constructor.constructor('alert(1)')()}}": {"template": "${alert(1)} {{7*7}}"},
    "' onmouseover='alert(1)": {"quote": "\"'`--><!--"},
    "ключ, / 🔑 %2F..%2F": {"unicode": "🔑 \U0001F468‍\U0001F469‍\U0001F467"},
    "long": {"text": LONG},
}
PROJECT = "0a4f5a3e-52a4-4a0e-8d3c-2f0c1d8f7a01"
COUNTRIES = {"DE": "Germany", "FR": "France", "JP": "Japan", "PL": "Poland", "PT": "Portugal", "UA": "Ukraine", "VN": "Viet Nam"}


class Stage:
    def __init__(self, postgres, database, servers, token):
        self.postgres, self.database, self.servers, self.token = postgres, database, servers, token
        self.server = self.chat = None
        self.codes = ["COUNTRY", "FEATURE", "HOSTILE", "LARGE"]

    def config(self):
        raw = {"code": "RAW", "loadSql": "select k, v from raw where tenant_id = :tenantId"}
        strict = {"code": "STRICT", "loadSql": "select k, v from strict where tenant_id = :tenantId",
                  "apply": {"upsertSql": "insert into strict select :tenantId, :key, to_jsonb((:payload #>> '{}')::int)"}}
        settings = pod(*self.codes, raw, strict)
        return {**settings, "bus": {"postgres": {"partitions": 4, "pollInterval": "50ms"}}, "chat": {"content-max": "128KiB"}}

    def settings(self, **more):
        """What a case knows."""
        return {
            "url": f"http://127.0.0.1:{self.server.port}", "secret": SECRET, "project": PROJECT, "session": self.chat.session,
            "hostile": list(HOSTILE), "countries": COUNTRIES,
            "tokens": {"all": self.token(scope=OPS), "own": self.token(scope="ops:read ops:write"), "read": self.token(scope="ops:read"),
                       "none": self.token(scope="other"), "rival": self.token("rival", scope="ops:read")},
            **more,
        }

    # ---- what is there ----

    def fill(self):
        make_table(self.database, "strict")
        make_table(self.database, "raw", {"nul": r'{"nul": "a\u0000b\u0007c", "lone": "\ud800"}'}, json_type="json")
        for code in ("RAW", "STRICT"):
            self.database.query("insert into refdata.dictionary_meta (tenant_id, dict_code, version, updated_at)"
                                " values ('demo', %s, 1, now())", (code,))
        self.server = self.servers(self.database, self.config())
        self.write_items()
        self.make_updates()
        self.make_chat()
        self.make_letters()
        self.stick_events()
        self.make_entities()
        return self

    def write_items(self):
        with self.server.client(self.token()) as own, self.server.client(self.token("rival")) as rival:
            for code, items in (("COUNTRY", {key: {"name": name} for key, name in COUNTRIES.items()}), ("FEATURE", {"dark-mode": True}),
                                ("HOSTILE", HOSTILE)):
                answer = commit(own, delta(code, items))
                assert answer.status == 200, answer.body[:300]
            assert commit(rival, delta("COUNTRY", {SECRET: {"name": SECRET}}), tenant="rival").status == 200
            assert own.get("/v1/tenants/demo/dictionaries/RAW/items/nul").status == 200

    def make_updates(self):
        """One that failed, and one that stays pending for ever: nothing carries it."""
        with self.server.client(self.token()) as client:
            assert client.post(updates_path("WAIT_COMMIT"), delta("STRICT", {"n": "not a number"})).status in (202, 422)
        self.database.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, created_at)"
                            " values ('demo', %s, 'COUNTRY', 'PENDING', '', now() - interval '20 seconds')", (str(uuid.uuid4()),))

    def make_chat(self):
        self.chat = Session(self.server, self.token(), PROJECT)
        self.chat.say("Hello")
        for content in ("<script>alert('chat')</script>", "\u202egnp.exe \u0007", "word " * 20000):
            self.chat.say(content)

    def make_letters(self):
        """Commands for a dictionary that is not configured yet, and messages that are not commands: a text and bytes."""
        waiting = [command("LATER", {f"k{number}": number}) for number in range(3)]
        hostile = b"<script>alert('letter')</script>\xe2\x80\xae"
        publish(self.database, [*waiting, hostile, b"\x00\xff" + hostile, b'{"text": "' + b"x" * 1048576 + b'"'])
        publish(self.database, [command("LATER", {"k": SECRET}, tenant="rival")])
        eventually(lambda: self.database.value("select count(*) from platform.bus_message where topic = 'refdata.commands.dlq'") >= 7)

    def stick_events(self):
        """Two events of the chat that could not be published."""
        eventually(lambda: self.database.value("select count(*) from chat.event_outbox where status <> 'published'") == 0)
        self.database.query("update chat.event_outbox set status = 'failed', retry_count = 9, last_error = 'nats: no responders'"
                            " where sequence <= 2")

    def make_entities(self):
        """An item that was created once with a key, a copy of it, and an absence."""
        with self.server.client(self.token()) as client:
            made = client.request("POST", "/api/v1/items", {"sku": "tea", "title": "Green tea", "price": 4.5}, {"Idempotency-Key": "first-tea"})
            assert made.status in (200, 201), made.body
            assert client.get("/v1/hydration/item/tea").status == 200
            assert client.get("/v1/hydration/item/coffee").status == 404

    # ---- what a case asks for ----

    def answer(self, what, *args):
        return getattr(self, f"do_{what}")(*args)

    def do_postgres(self, action):
        getattr(self.postgres, action)()

    def do_server(self, action):
        if action == "stop":
            self.server.stop()
        else:
            self.server.own_port = self.server.port
            self.server.start()

    def do_write(self, code, items, tenant="demo"):
        with self.server.client(self.token(tenant)) as client:
            answer = commit(client, delta(code, items), tenant=tenant)
            assert answer.status == 200, answer.body
            return answer.json()["committedVersion"]

    def do_say(self, content):
        return Session(self.server, self.token(), PROJECT, self.chat.session).say(content)["sequence"]

    def do_configure(self, code):
        """One dictionary more, by a reload; returns when it is known."""
        self.codes.append(code)
        self.server.write_config(self.server_config())
        with self.server.client(self.token()) as client:
            eventually(lambda: client.get(f"/v1/tenants/demo/dictionaries/{code}/version").status != 404)

    def server_config(self):
        from lib.config import base_config, merge  # pylint: disable=import-outside-toplevel
        return merge(base_config(self.database, self.servers.jwks_path), self.config())

    def do_query(self, sql):
        return self.database.value(sql)

    # ---- much of it ----

    def enlarge(self, items, letters):
        write_builtin(self.database, "LARGE", {}, 1)
        self.database.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                            " select 'demo', 'LARGE', 'key-' || lpad(i::text, 7, '0'), to_jsonb(i) from generate_series(1, %s) i", (items,))
        self.database.query("update refdata.dictionary_meta set version = 2, updated_at = now() where dict_code = 'LARGE'")
        self.database.query(
            "with p as (update platform.bus_partition set next_offset = next_offset + %s where topic = 'refdata.commands.dlq' and partition = 3"
            " returning next_offset - %s as first) insert into platform.bus_message (topic, partition, message_offset, key, headers, payload)"
            " select 'refdata.commands.dlq', 3, first + i, 'demo:MANY'::bytea, array['dlq-reason', 'one of many', 'dlq-topic',"
            " 'refdata.commands', 'dlq-partition', '3', 'dlq-offset', i::text, 'dlq-group', 'refdata.apply'], '{}'::bytea"
            " from p, generate_series(0, %s - 1) i", (letters, letters, letters))
