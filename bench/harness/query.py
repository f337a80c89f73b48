"""`query`: processor time per read, beside the floor, nginx and Redis; by size; with TLS; by loops."""
import dataclasses
import os
import random

from . import freshet as program
from . import certificate, machine, postgres
from .freshet import Dictionary, item_path, keys_path, request
from .generator import Target, write_requests
from .others import Others
from .report import cpu_table, progress

SMALL = Dictionary("SMALL", "items_small", 1_000)
MIDDLE = Dictionary("MIDDLE", "items_middle", 10_000)
LARGE = Dictionary("LARGE", "items_large", 5_000_000)
KEYS_ASKED = 100
REQUESTS_MAX = 100_000  # more different ones than the processor's caches hold, for the large dictionary
DEPTHS = {1: "one at a time", 16: "16 pipelined"}
LINKS = {"tls": "connections kept open", "full": "a connection and a full handshake for each",
         "resumed": "a connection and a resumed session for each"}

# Stands in for freshet's answer where only the others are measured; about as long as a real one.
PLAIN_HEAD = (b"HTTP/1.1 200 OK\r\nDate: Sun, 01 Nov 2026 00:00:00 GMT\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\nETag: \"0123456789abcdef\"\r\nX-Dict-Version: 1\r\n"
              b"X-Data-Source: memory\r\n\r\n")


def item_requests(dictionary, token):
    """Different keys in an order that repeats no pattern, all requests of one length."""
    chosen = random.Random(1).sample(range(dictionary.rows), min(dictionary.rows, REQUESTS_MAX))
    return [request(item_path(dictionary, postgres.key(number)), token) for number in chosen]


def keys_requests(dictionary, token):
    source = random.Random(2)
    choices = [source.sample(range(dictionary.rows), KEYS_ASKED) for _ in range(500)]
    return [request(keys_path(dictionary, map(postgres.key, chosen)), token) for chosen in choices]


def plain_answer(body_bytes):
    body = b'"' + b"p" * (body_bytes - 2) + b'"'
    return program.Answer(200, PLAIN_HEAD % body_bytes + body, body)


class Query:
    def __init__(self, bench, report):
        self.bench = bench
        self.report = report
        self.others = Others(bench)
        self.server_cpus, self.client_cpus = machine.split_cpus(1)

    def file(self, name, requests):
        return write_requests(os.path.join(self.bench.folder, name + ".requests"), requests)

    def rounds(self, section, title, targets, depth, reference, on_cpus):
        figures = self.measure(title, targets, depth, on_cpus)
        self.report.add(section, cpu_table(title, figures, reference))
        return figures

    def measure(self, title, targets, depth, on_cpus, spin=True):
        progress(title)
        return self.bench.rounds.run(targets, depth, on_cpus, report=progress, spin=spin)

    def single_items(self, token, answer, freshet_target=None):
        """freshet (where there is one), floor, nginx and Redis, one at a time and pipelined."""
        requests = item_requests(MIDDLE, token)
        path = self.file("items", requests)
        targets = [self.others.floor("floor", path, len(requests[0]), answer.raw, on_cpus=self.server_cpus),
                   self.others.nginx(path, answer.body, self.server_cpus),
                   self.others.redis([postgres.key(i) for i in range(MIDDLE.rows)], answer.body,
                                     self.server_cpus)]
        if freshet_target:
            targets.insert(0, freshet_target(path))
        found = {}
        for depth, words in DEPTHS.items():
            title = (f"one of 10,000 items, {words}, {len(requests[0])} bytes asked, "
                     f"{len(answer.raw)} answered")
            found[depth] = self.rounds(f"item_{depth}", title, targets, depth, "floor", self.client_cpus)
        return found

    def many_keys(self, token, answer, freshet_target=None):
        requests = keys_requests(MIDDLE, token)
        path = self.file("keys", requests)
        targets = [self.others.floor("floor", path, len(requests[0]), answer.raw, on_cpus=self.server_cpus)]
        if freshet_target:
            targets.insert(0, freshet_target(path))
        title = f"keys= of 100, {len(requests[0])} bytes asked, {len(answer.raw)} answered"
        return self.rounds("keys_100", title, targets, 1, "floor", self.client_cpus)

    def sizes(self, running, dictionaries, token):
        targets = [Target(f"freshet, {each.rows:,} items", running.port, [running.pid],
                          self.file(each.code, item_requests(each, token))) for each in dictionaries]
        for depth, words in DEPTHS.items():
            self.rounds(f"sizes_{depth}", f"by size of the dictionary, {words}", targets, depth,
                        f"freshet, {MIDDLE.rows:,} items", self.client_cpus)

    def links(self, token, answer, files, start_freshet=None):
        """With TLS: a request on a connection that stays, and with a handshake of its own, beside nginx with the same certificate."""
        requests = item_requests(MIDDLE, token)
        path = self.file("tls", requests)
        targets = [self.others.nginx(path, answer.body, self.server_cpus, files)]
        if start_freshet:
            running = start_freshet(self.server_cpus)
            targets.insert(0, Target("freshet-tls", running.port, [running.pid], path))
        found = {}
        for link, words in LINKS.items():
            linked = [dataclasses.replace(target, link=link) for target in targets]
            found[link] = self.rounds(f"tls_{link}", f"TLS, one at a time, {words}", linked, 1, "nginx-tls", self.client_cpus)
        return found

    def loops(self, token, answer, start_freshet=None):
        """One and two loops under the same conditions; the floor shows what the machine alone adds.

        Where there are only two processors the second loop shares one with the generator, for both.
        """
        server_cpus, client_cpus = machine.split_cpus(2)
        requests = item_requests(MIDDLE, token)
        path = self.file("loops", requests)
        targets = []
        for loops, words in ((1, "1 loop"), (2, "2 loops")):
            targets.append(self.others.floor(f"floor, {words}", path, len(requests[0]), answer.raw, loops,
                                             server_cpus))
            if start_freshet:
                running = start_freshet(loops, server_cpus)
                targets.append(Target(f"freshet, {words}", running.port, [running.pid], path))
        title = "by loops, one at a time"
        figures = self.measure(title, targets, 1, client_cpus, spin=False)  # the second loop needs that processor too
        for name in ("floor", "freshet") if start_freshet else ("floor",):
            rows = cpu_table(f"{title}: {name}", figures.only(name), f"{name}, 1 loop")
            self.report.add(f"loops_{name}", rows)
        return figures


def run_others(bench, report):
    """Without freshet: whether the machine and the tools give the figures they should."""
    query = Query(bench, report)
    token = program.Keys(bench.folder).token()
    query.single_items(token, plain_answer(154))
    query.many_keys(token, plain_answer(15_500))
    query.links(token, plain_answer(154), certificate.make(bench.folder))
    query.loops(token, plain_answer(154))


def run(bench, report):
    dictionaries = [SMALL, MIDDLE] if bench.quick else [SMALL, MIDDLE, LARGE]
    with bench.database() as database:
        for each in dictionaries:
            progress(f"making {each.rows:,} rows")
            database.create_items(each.table, program.TENANT, each.rows)
        freshet = bench.freshet(database, dictionaries)
        freshet.prepare()
        query = Query(bench, report)
        progress("starting freshet with every dictionary in memory")
        running = freshet.start("freshet", 1, dictionaries, query.server_cpus)
        for each in dictionaries:
            running.load(each, postgres.key(0))
        try:
            _measure(query, freshet, running, dictionaries)
            _measure_tls(query, bench, database)
        finally:
            bench.processes.close()


def _measure(query, freshet, running, dictionaries):
    report = query.report
    token = freshet.token

    def as_target(path):
        return Target("freshet", running.port, [running.pid], path)

    item = running.ask(item_path(MIDDLE, postgres.key(1)))
    found = query.single_items(token, item, as_target)
    report.verdict("item, one at a time, × floor", found[1].ratio("freshet", "floor"), 1.25)
    report.verdict("item, one at a time, × nginx", found[1].ratio("freshet", "nginx"), 1.0, below=True)
    report.verdict("item, 16 pipelined, × floor", found[16].ratio("freshet", "floor"), 2.5)
    keys = running.ask(keys_path(MIDDLE, map(postgres.key, range(KEYS_ASKED))))
    found = query.many_keys(token, keys, as_target)
    report.verdict("keys= of 100, × floor", found.ratio("freshet", "floor"), 2.0)
    query.sizes(running, dictionaries, token)
    running.stop()

    def start(loops, on_cpus):
        return freshet.start(f"freshet-{loops}", loops, [MIDDLE], on_cpus)

    found = query.loops(token, item, start)
    report.verdict("2 loops, × 1 loop", found.ratio("freshet, 2 loops", "freshet, 1 loop"), 1.1)


def _measure_tls(query, bench, database):
    cert_file, key_file = certificate.make(bench.folder)
    secure = bench.freshet(database, [MIDDLE], {"http": {"tls": {"certFile": cert_file, "keyFile": key_file}}})

    def start(on_cpus):
        running = secure.start("freshet-tls", 1, [MIDDLE], on_cpus)
        running.load(MIDDLE, postgres.key(0))
        return running

    found = query.links(secure.token, plain_answer(154), (cert_file, key_file), start)
    for link, limit in (("tls", 1.0), ("full", 1.1), ("resumed", 1.3)):
        query.report.verdict(f"TLS, {LINKS[link]}, × nginx", found[link].ratio("freshet-tls", "nginx-tls"), limit)
