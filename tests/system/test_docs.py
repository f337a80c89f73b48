"""The documentation is true: its examples run, what it names exists, its tables are those of the code."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT
from lib.freshet import binary, run
from lib.pages import Page, matches, pages
from lib.wait import PATIENCE

PAGES = pages(ROOT)
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "src").rglob("*.[ch]")}
ALL_SOURCES = "\n".join(SOURCES.values())


def by_name(page):
    return page.name


# ---- examples ----

# Stands in for ./dev, which tests of its own try: the same two commands, on the test's server and database.
DEV = """#!/bin/sh
command=$1
shift
case $command in
psql) exec psql -X "$FRESHET_PG_URL" "$@" ;;
freshet) exec "$FRESHET_BIN" "$@" ;;
*) echo "an example calls ./dev $command" >&2; exit 2 ;;
esac
"""


@pytest.fixture
def demo(serve, database, tmp_path):
    """`./dev run` with the default configuration, and a folder that looks like the project's to an example."""
    config = (ROOT / "config/freshet.yaml").read_text(encoding="utf-8")
    patient = config.replace("waitCommitTimeoutMs: 300", "waitCommitTimeoutMs: 1000")  # a slow machine decides nothing
    assert patient != config
    server = serve.make(database, config=patient)
    assert run("migrate", "--config", server.config_path, env=server.env).returncode == 0
    database.run_file(ROOT / "config/demo.sql")
    assert run("token", "--tenant", "demo", env=server.env).returncode == 0
    server.start()
    folder = tmp_path / "project"
    (folder / "config").mkdir(parents=True)
    (folder / "config/freshet.yaml").symlink_to(server.config_path)
    shutil.copy(ROOT / "config/demo.sql", folder / "config")
    (folder / "dev").write_text(DEV)
    (folder / "dev").chmod(0o755)
    server.project = folder
    return server


def script_of(examples):
    """All blocks as one script; a line of its own on standard output opens the part of each."""
    parts = (f"printf '\\n@@ %s\\n' {number}\n{block.text}" for number, (block, _) in enumerate(examples))
    return "set -euo pipefail\n" + "\n".join(parts)


@pytest.mark.parametrize("page", [page for page in PAGES if page.examples()], ids=by_name)
def test_examples_run_and_print_what_the_page_says(page, demo):
    examples = page.examples()
    port = f"127.0.0.1:{demo.port}"
    env = {**demo.env, "FRESHET_CONFIG": str(demo.config_path), "FRESHET_BIN": binary(), "FRESHET_PORT": str(demo.port)}
    done = subprocess.run(["bash"], input=script_of(examples).replace("127.0.0.1:8080", port), cwd=demo.project, env=env,
                          text=True, capture_output=True, timeout=2 * PATIENCE, check=False)
    parts = re.split(r"(?:^|\n)@@ \d+\n", done.stdout)[1:]
    for (block, answer), printed in zip(examples, parts):
        where = f"{page.name}:{block.line}"
        assert answer is None or matches(answer.replace("127.0.0.1:8080", port), printed), \
            f"{where} printed\n{printed}\n{done.stderr}"
    assert done.returncode == 0, f"{page.name}:{examples[len(parts) - 1][0].line} failed\n{done.stderr}\n{parts[-1]}"


REST_OF_A_FILE = """
refdata:
  postgres:
    jdbcUrl: postgresql://127.0.0.1/x
"""


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "yaml" for b in page.blocks)], ids=by_name)
def test_every_yaml_block_is_a_configuration_the_program_takes(page, tmp_path):
    for block in page.blocks:
        if block.language != "yaml":
            continue
        file = tmp_path / f"line{block.line}.yaml"
        file.write_text(block.text + ("" if re.search(r"^refdata:", block.text, re.M) else REST_OF_A_FILE))
        secrets = dict.fromkeys(re.findall(r"FromEnv: (\w+)", block.text), "s" * 40)
        done = run("config", "--config", file, env=secrets)
        assert done.returncode == 0, f"{page.name}:{block.line}: {done.stderr}"


# ---- names ----

def test_links_lead_somewhere():
    assert [broken for page in PAGES for broken in page.broken_links()] == []


def test_every_setting_that_is_named_exists():
    known = set(re.findall(r"^\| `([^`]+)` \|", run("config", "--markdown").stdout, re.M))
    sections = {name.split(".")[0] for name in known}
    assert "http.listen" in known
    named = {(page.name, name) for page in PAGES for name in page.names()
             if re.fullmatch(r"[a-z]+(\.[A-Za-z0-9\[\]]+)+", name) and name.split(".")[0] in sections
             and not name.endswith((".c", ".h"))}
    topics = set(re.findall(r'^#define \w+ "([a-z]+\.[a-z]+)"$', ALL_SOURCES, re.M))
    assert "refdata.commands" in topics
    topics |= {f"{topic}.dlq" for topic in topics}
    tables = {name for file in (ROOT / "sql").rglob("*.sql")
              for name in re.findall(r"^create (?:unlogged )?table (\w+\.\w+)", file.read_text(encoding="utf-8"), re.M)}
    named = {(page, name) for page, name in named if name not in topics | tables}
    # A reader writes `refdata.postgres.schema`; the table says that there may be several.
    plain = {name.replace("[]", "") for name in known}
    assert {(page, name) for page, name in named if name.replace("[]", "") not in plain} == set()
    assert len(named) > 30


def test_every_file_that_is_named_exists():
    folders = ("src/", "tests/", "tools/", "docs/", "config/", "sql/", "bench/", ".ci/")
    missing = []
    for page in PAGES:
        for name in page.names():
            if not name.startswith(folders) or re.search(r"[<>{}\s…]|\bX\b|NAME|NNN|greeting", name):
                continue
            if not list(ROOT.glob(name.rstrip("/"))):
                missing.append(f"{page.name}: {name}")
    assert missing == []


def test_every_function_that_is_named_exists():
    """name() in the text, and in the drawings of blocks without a language."""
    missing, defined = [], set()
    for line in re.findall(r"^[^\s/][^;\n]*", ALL_SOURCES, re.M):
        defined.update(re.findall(r"(\w+)\(", line))
    for page in PAGES:
        drawings = "".join(block.text for block in page.blocks if not block.language)
        for name in re.findall(r"\b([a-z_][a-z0-9_]*)\(\)", "\n".join(page.names()) + drawings):
            if name not in defined:
                missing.append(f"{page.name}: {name}()")
    assert missing == []


def test_the_module_of_contributing_compiles(tmp_path):
    page = Page(ROOT, ROOT / "CONTRIBUTING.md")
    (code,) = (block.text for block in page.blocks if block.language == "c")
    folder = tmp_path / "modules/greeting"
    folder.mkdir(parents=True)
    (folder / "greeting.c").write_text(code)
    done = subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Wconversion",
                           "-Wmissing-prototypes", "-Werror", "-fsyntax-only", f"-I{ROOT / 'src'}", f"-I{tmp_path}",
                           folder / "greeting.c"], text=True, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def value_of(text):
    """"256", "16 KiB", "16 * 1024" or "(size_t)64 * 1024" as a number."""
    text = re.sub(r"\((?:\w+_t|unsigned|int)\)", "", text)
    text = text.replace(",", "").replace("KiB", "* 1024").replace("MiB", "* 1048576")
    assert re.fullmatch(r"[\d\s*/+()-]+", text), text
    return eval(text, {"__builtins__": {}})  # digits and operators only


def test_every_bound_is_the_one_in_the_code():
    """`NAME` (256), as the pages write it, against `NAME = 256` or `#define NAME 256`."""
    checked = 0
    for page in PAGES:
        for name, number in re.findall(r"`([A-Z][A-Z0-9_]+)` \((\d[\d,]*(?: [KM]iB)?)\)", page.prose):
            found = re.findall(rf"^\s*(?:#define {name}|{name} =) ([^,\n/]+?)\s*(?:,|/\*|$)", ALL_SOURCES, re.M)
            assert found, f"{page.name}: there is no {name}"
            assert value_of(number) in map(value_of, found), f"{page.name}: {name} is {found}"
            checked += 1
    assert checked >= 10


# ---- tables ----

def test_every_status_in_a_table_is_the_codes_own():
    text = re.sub(r"\s*\\\n\s*", " ", SOURCES["src/base/status.h"])  # rows of several lines
    table = dict(re.findall(r'X\(\w+, "(\w+)", "[^"]*"(?: "[^"]*")*, (\d+),', text))
    rows = [(page.name, status, code) for page in PAGES
            for status, code in re.findall(r"^\| (\d{3}) \| `([A-Z_]+)` \|", page.prose, re.M)]
    assert [row for row in rows if table.get(row[2]) != row[1]] == []
    assert len(rows) > 15


METRIC_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", re.M)


def test_every_metric_is_documented_and_every_documented_one_exists(demo):
    """Those of the engines are compared by the next test: here none is turned on."""
    with demo.client() as client:
        text = client.get("/actuator/prometheus").body.decode()
    printed = set(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    documented = {row for page in PAGES for row in METRIC_ROW.findall(page.prose)
                  if not row[0].startswith(("kafka_", "redis_", "nats_"))}
    assert documented == printed


def test_every_metric_of_an_engine_is_documented_and_every_documented_one_exists():
    defined = re.findall(r'\.name = "((?:kafka|redis|nats)_\w+)",\s*\.help = [^;]*?\.type = METRIC_(\w+)', ALL_SOURCES)
    documented = METRIC_ROW.findall(Page(ROOT, ROOT / "docs/ENGINES.md").prose)
    assert len(documented) >= 5
    assert sorted(documented) == sorted((name, kind.lower()) for name, kind in defined)


def test_every_route_of_the_program_is_in_a_page():
    routes = {line.split()[1] for line in run("routes").stdout.splitlines()}
    named = "\n".join(page.text for page in PAGES).replace("{t}", "{tenantId}").replace("{d}", "{dictCode}")
    prefix = "/v1/tenants/{tenantId}/dictionaries/{dictCode}"
    assert [route for route in routes if route not in named and f"…{route.removeprefix(prefix)}" not in named] == []


def test_the_table_of_routes_is_that_of_the_program():
    """HTTP.md: method, path, and what each route needs."""
    rows = re.findall(r"^\| `(\w+) (/\S+)` \| \w+ \| `?([\w:]+)`? \|", Page(ROOT, ROOT / "docs/HTTP.md").prose, re.M)
    assert sorted(rows) == sorted(tuple(line.split()) for line in run("routes").stdout.splitlines())


# ---- the walk through the code ----

def body_of(source, signature):
    start = source.index(signature)
    return source[start:source.index("\n}\n", start)]


def test_the_loops_phases_are_listed_in_the_order_they_run():
    body = body_of(SOURCES["src/loop/loop.c"], "void loop_run_once(")
    calls = re.findall(r"^    (\w+)\(loop", body, re.M)
    listed = re.findall(r"^\d+\. \*\*[^*]+\*\*, `(\w+)\(\)`", Page(ROOT, ROOT / "docs/LOOP.md").prose, re.M)
    assert len(calls) > 3 and listed == calls


TOUR_ROW = re.compile(r"^\| `(\w+)\(\)` \| `([^`]+)` \| \S", re.M)


def test_the_tour_visits_every_folder_and_finds_every_function_where_it_says():
    tour = Page(ROOT, ROOT / "docs/TOUR.md")
    sections = re.findall(r"^### `src/([^`]+)/`\n(.*?)(?=^##|\Z)", tour.prose, re.M | re.S)
    folders = {os.path.dirname(name).removeprefix("src/") for name in SOURCES}
    assert {folder for folder, _ in sections} == folders
    for folder, text in sections:
        rows = TOUR_ROW.findall(text)
        assert 3 <= len(rows) <= 5, f"{folder}: {len(rows)} functions"
        for function, file in rows:
            defined = rf"^(?!\s|/| \*)[^;\n]*\b{function}\([^;]*?\)\s*\{{"
            assert re.search(defined, SOURCES.get(f"src/{folder}/{file}", ""), re.M), f"{function}() is not in {folder}/{file}"
