"""Issue 15, point 2: the console in a real browser, on a live server with real data. The cases are in cases_*.mjs.

At the end of each case: no request has left the server, no script has failed, the content security policy has refused nothing,
and the browser keeps neither storage nor cookie.
"""
import pytest

from driver import cases_of

pytestmark = pytest.mark.driver


def named(file):
    return pytest.mark.parametrize("case", cases_of(file))


@named("cases_pages.mjs")
def test_pages(browser, stage, whole, case):
    browser.run("cases_pages.mjs", case, stage.settings(whole=whole), stage.answer)


@named("cases_live.mjs")
def test_live(browser, stage, case):
    browser.run("cases_live.mjs", case, stage.settings(), stage.answer)


@named("cases_hostile.mjs")
def test_hostile(browser, stage, case):
    browser.run("cases_hostile.mjs", case, stage.settings(), stage.answer)


@named("cases_changes.mjs")
def test_changes(browser, stage, case):
    browser.run("cases_changes.mjs", case, stage.settings(), stage.answer)


@pytest.fixture(scope="session")
def much(stage, whole):
    """Items and dead letters."""
    size = (1_000_000, 100_000) if whole else (5_000, 500)
    stage.enlarge(*size)
    return {"items": size[0], "letters": size[1]}


@named("cases_large.mjs")
def test_large(browser, stage, much, case):
    browser.run("cases_large.mjs", case, stage.settings(**much), stage.answer)
