"""E3: entitlement_audit is partitioned by month, ahead of time, and never fails a grant."""
import datetime
import threading

from lib.entitlement import ROLE, SCOPES, grant
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually


def month(ahead):
    now = datetime.datetime.now(datetime.timezone.utc)
    number = now.year * 12 + now.month - 1 + ahead
    return f"entitlement_audit_{number // 12:04}_{number % 12 + 1:02}"


def partitions(database):
    return {name for name, in database.query(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'entitlement.entitlement_audit'::regclass")}


def test_e3_months_are_made_ahead_at_the_start_and_old_ones_dropped_where_configured(serve, refdata_db):  # noqa: F811
    assert partitions(refdata_db) == {month(0), month(1), "entitlement_audit_default"}  # by the migration
    refdata_db.query("create table entitlement.entitlement_audit_2020_01 partition of entitlement.entitlement_audit"
                     " for values from ('2020-01-01 00:00+00') to ('2020-02-01 00:00+00')")
    server = serve(refdata_db, {"entitlement": {"audit": {"months-ahead": 2}}}, args=ROLE)
    eventually(lambda: partitions(refdata_db) == {month(0), month(1), month(2), "entitlement_audit_default",
                                                  "entitlement_audit_2020_01"})
    assert eventually(lambda: server.logs(event="entitlement_audit_partitions"))[0]["made"] == 1
    serve(refdata_db, {"entitlement": {"audit": {"months-ahead": 4, "keep-months": 12}}}, args=ROLE)
    eventually(lambda: partitions(refdata_db) == {month(ahead) for ahead in range(5)} | {"entitlement_audit_default"})


def test_e3_without_its_month_a_grant_goes_on_and_its_row_moves_when_the_month_is_made(serve, refdata_db, token):  # noqa: F811
    """As after a clock that jumped: grants never fail, whatever happens to partitions meanwhile."""
    server = serve(refdata_db, args=ROLE)
    eventually(lambda: month(3) in partitions(refdata_db))
    refdata_db.query(f"drop table entitlement.{month(0)}")
    stop, wrong, done = threading.Event(), [], []

    def work(number):
        with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
            while not stop.is_set():
                answer = grant(client, f"u_{number}", f"item{len(done)}_{number}")
                (done if answer.status == 200 else wrong).append(answer)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: refdata_db.value("select count(*) from entitlement.entitlement_audit_default") > 20)
    makers = [threading.Thread(target=refdata_db.query, args=("select entitlement.audit_make(4)",)) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    made = len(done)
    eventually(lambda: len(done) > made + 20 or wrong)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0].body
    assert refdata_db.value("select count(*) from entitlement.entitlement_audit_default") == 0
    assert refdata_db.value(f"select count(*) from entitlement.{month(0)}") == len(done)


def test_e3_the_months_of_a_year_follow_one_another(refdata_db):  # noqa: F811
    assert refdata_db.value("select entitlement.audit_make(30)") == 29
    assert refdata_db.value("select entitlement.audit_make(30)") == 0
    assert refdata_db.value("select count(*) from (select pg_get_expr(relpartbound, oid) as bound from pg_class"
                            " where relname ~ '^entitlement_audit_[0-9_]+$') b where bound like '%-01 00:00:00+00'') TO %'") == 31
