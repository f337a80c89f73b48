"""A database of our own in the PostgreSQL of FRESHET_PG_URL, filled in SQL, dropped at the end. Uses psql."""
import os
import subprocess
import time
import urllib.parse

# Keys and payloads all have one length, so that requests and answers do, as the floor needs them.
CREATE_ITEMS = """
create unlogged table {table} (tenant_id text not null, code text not null, body jsonb not null);
insert into {table}
select '{tenant}', 'item-' || lpad(i::text, 8, '0'),
       jsonb_build_object('id', lpad(i::text, 8, '0'), 'sum', md5(i::text), 'note', md5('note' || i))
from generate_series(0, {rows} - 1) i;
analyze {table};
"""


FILL_BUILTIN = """
insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)
select '{tenant}', '{code}', 'item-' || lpad(i::text, 8, '0'),
       jsonb_build_object('id', lpad(i::text, 8, '0'), 'sum', md5(i::text), 'note', md5('note' || i))
from generate_series(0, {rows} - 1) i;
analyze refdata.dictionary_item;
"""


def key(number):
    return f"item-{number:08d}"


class Database:
    def __init__(self, url, name="main"):
        self.parts = urllib.parse.urlsplit(url)
        self.admin_url = url
        self.name = f"freshet_bench_{os.getpid()}_{name}"
        self.url = urllib.parse.urlunsplit(self.parts._replace(path="/" + self.name))
        self.user = urllib.parse.unquote(self.parts.username or "")
        self.password = urllib.parse.unquote(self.parts.password or "")

    def __enter__(self):
        self._psql(self.admin_url, f"create database {self.name}")
        return self

    def __exit__(self, *_):
        self._psql(self.admin_url, f"drop database if exists {self.name} with (force)")

    @staticmethod
    def _psql(url, sql):
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]
        done = subprocess.run(command, input=sql, text=True, check=True, stdout=subprocess.PIPE)
        return done.stdout.strip()

    def run(self, sql):
        return self._psql(self.url, sql)

    def create_items(self, table, tenant, rows):
        self.run(CREATE_ITEMS.format(table=table, tenant=tenant, rows=rows))

    def fill_builtin(self, tenant, code, rows):
        self.run(FILL_BUILTIN.format(tenant=tenant, code=code, rows=rows))

    def rows(self, sql):
        """Rows of text; no value may hold a tab or a newline."""
        lines = self._psql(self.url, f"\\pset fieldsep '\\t'\n{sql}").splitlines()
        return [line.split("\t") for line in lines]

    def bytes_of(self, table):
        """(bytes of all keys, bytes of all payloads as text)."""
        sums = self.run(f"select sum(octet_length(code)), sum(octet_length(body::text)) from {table}")
        return tuple(int(word) for word in sums.split("|"))

    def copy_seconds(self, query):
        """How long psql takes to copy the query's result to nowhere, its own start included."""
        started = time.monotonic()
        self.run(f"\\copy ({query}) to '/dev/null'")
        return time.monotonic() - started
