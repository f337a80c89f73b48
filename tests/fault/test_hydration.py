"""Hydration while its processes are killed and frozen, and PostgreSQL with them (H2–H4): who waits elsewhere is answered, a fresh
request succeeds, and nobody is left waiting."""
import itertools
import os
import random
import signal
import time

import pytest

from lib import items
from lib.hydration import Asking, fresh, is_empty, path
from lib.postgres import PostgresServer
from lib.wait import eventually
from lib.writers import Threads

ASKER, OWNER = ("--roles", "hydration"), ("--roles", "intake")
# A dead asker's claim is another's to take up behind the window; a caller has all the time there is.
SETTINGS = {"hydration": {"wait_timeout_ms": 60000, "in_flight_window_ms": 500, "negative_cache_ttl_ms": 500}}
KILLS = 60


class Trio:
    """Two that ask and the owner of items, on a PostgreSQL of their own."""

    def __init__(self, serve, postgres, token):
        self.postgres, self.database = postgres, postgres.create_database()
        self.asker, self.other, self.owner = (serve.make(self.database, SETTINGS, args=args) for args in (ASKER, ASKER, OWNER))
        self.bearer = token("demo", subject="ann", ttl=3600)
        for server in (self.asker, self.other, self.owner):
            server.start()
        self.made = [items.fresh("SKU") for _ in range(100)]
        self.skus = itertools.cycle(self.made)  # each is asked for once: nothing is known of it yet
        with self.owner.client(self.bearer) as client:
            for sku in self.made:
                assert items.post(client, items.item(sku)).status == 201

    def ask(self, server, sku=None):
        return Asking(server, self.bearer, path("item", sku or next(self.skus)))

    def restart(self, server, failpoint="", ready=True):
        server.kill()
        server.env["FRESHET_FAILPOINTS"] = failpoint
        server.start(ready)

    def provoke(self, server, place, act):
        """Lets it come to that place and do so. What was asked at the first asker meanwhile, and the same at the second one."""
        asked = []
        while not asked:  # it may come there before it is ready, by an event that the one before it left
            seen = len(server.log())

            def is_there():
                return f'"failpoint":"hydration.{place}"' in server.log()[seen:]  # pylint: disable=cell-var-from-loop

            self.restart(server, f"hydration.{place}={act}#1", ready=False)
            eventually(lambda: is_there() or server.is_ready(patience=2))
            while not is_there():  # whoever settles may be the other one
                asked.append(self.ask(self.asker))
                eventually(lambda: is_there() or asked[-1].is_answered())
        return asked, [self.ask(self.other, one.target.rsplit("/", 1)[1]) for one in asked]

    def is_well(self):
        """Everybody finds what is there and what is not, and then nobody waits."""
        for server in (self.asker, self.other):
            there, gone = self.ask(server).answer(), self.ask(server, fresh()).answer()
            assert (there.status, gone.status) == (200, 404), (there, gone)
        return is_empty(self.asker, self.other)


@pytest.fixture(scope="module")
def trio(module_serve, token):
    postgres = PostgresServer().start()
    try:
        yield Trio(module_serve, postgres, token)
        module_serve.stop()
    finally:
        postgres.destroy()


def are_found(requests):
    return all(one.answer().status == 200 for one in requests)


@pytest.mark.parametrize("place", ["before_answer", "after_answer"])
def test_an_owner_that_dies_answers_when_it_is_back(trio, place):
    asked, others = trio.provoke(trio.owner, place, "kill")
    eventually(lambda: trio.owner.process.poll() == -signal.SIGKILL)
    trio.restart(trio.owner)
    assert are_found(asked) and are_found(others)
    assert trio.is_well()


@pytest.mark.parametrize("place", ["before_find", "after_find", "before_store"])
def test_an_asker_that_dies_holds_nobody_up(trio, place):
    _, others = trio.provoke(trio.asker, place, "kill")
    eventually(lambda: trio.asker.process.poll() == -signal.SIGKILL)
    assert are_found(others)  # it claimed, and never asked: behind its window somebody else does
    trio.restart(trio.asker)
    assert trio.is_well()


@pytest.mark.parametrize("place", ["after_find", "before_store"])
def test_an_asker_that_freezes_holds_nobody_up(trio, place):
    asked, others = trio.provoke(trio.asker, place, "stop")
    try:
        assert are_found(others)
    finally:
        os.kill(trio.asker.process.pid, signal.SIGCONT)
    assert are_found(asked)
    assert trio.is_well()


def test_an_owner_that_freezes_answers_when_it_goes_on(trio):
    asked, others = trio.provoke(trio.owner, "before_answer", "stop")
    time.sleep(0.6)  # a window passes, and it is asked again
    os.kill(trio.owner.process.pid, signal.SIGCONT)
    assert are_found(asked) and are_found(others)
    assert trio.is_well()


@pytest.mark.parametrize("name, place", [("asker", "after_find"), ("owner", "after_answer"), ("asker", "before_store")])
def test_postgres_crashes_between_two_steps(trio, name, place):
    asked, others = trio.provoke(getattr(trio, name), place, "sleep-300")
    trio.postgres.restart("immediate")
    assert all(one.answer().status in (200, 503) for one in asked + others)
    eventually(trio.is_well)


def test_kills_under_load_leave_nobody_waiting(trio, whole):
    if not whole:
        pytest.skip("in whole runs")

    def load(stopping, server, seed):
        chance = random.Random(seed)
        while not stopping.is_set():
            sku = chance.choice(trio.made) if chance.random() < 0.5 else fresh()
            try:
                status = trio.ask(server, sku).answer().status
            except (OSError, EOFError):
                continue
            assert status in (503, 200 if sku in trio.made else 404), (sku, status)

    chance = random.Random(1)
    with Threads() as threads:
        for seed in range(6):
            threads.add(load, (trio.asker, trio.other)[seed % 2], seed)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0, 0.5))
            trio.restart(chance.choice([trio.asker, trio.other, trio.owner]))
        assert not threads.errors
        for server in (trio.asker, trio.other):
            server.close_clients()
    eventually(trio.is_well)
