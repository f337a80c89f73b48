// Signing in, every page with real data, the keyboard, accessibility.
import assert from "node:assert/strict";

export const cases = {};

/** Every page: its address, and what it must show. */
export const pages = ({ project, session }) => ({
    overview: ["#/overview", ["Freshness", "Engines", "PostgreSQL", "query"]],
    dictionaries: ["#/dictionaries", ["COUNTRY", "FEATURE", "demo"]],
    dictionary: ["#/dictionaries/demo/COUNTRY", ["DE", "VN", "Live changes"]],
    item: ["#/dictionaries/demo/COUNTRY/DE", ["Germany", "History"]],
    updates: ["#/updates", ["COMMITTED", "PENDING", "FAILED"]],
    outboxes: ["#/outboxes", ["chat.event_outbox", "refdata.outbox_event"]],
    outbox: ["#/outboxes/chat.event_outbox", ["message_created", "nats: no responders", "failed"]],
    letters: ["#/dead-letters", ["refdata.commands.dlq"]],
    source: ["#/dead-letters/refdata.commands.dlq", ["open", "Requeue"]],
    streams: ["#/streams", ["Follow a chat"]],
    chat: [`#/streams/${project}/${session}`, ["Hello", "assistant"]],
    lookups: ["#/hydration", ["Lookups that wait"]],
    absences: ["#/hydration?kind=absences", ["coffee"]],
    copies: ["#/hydration?kind=copies", ["tea"]],
    idempotency: ["#/idempotency", ["first-tea", "POST /api/v1/items"]],
    configuration: ["#/configuration", ["http.listen", "Secrets are never shown"]],
    audit: ["#/audit", ["What operators changed"]],
});

cases["every page shows what is there"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    for (const [name, [address, texts]] of Object.entries(pages(settings))) {
        await tab.open(address);
        for (const text of texts) await tab.shows(text);
        assert.equal(await tab.page.locator("#main .note.bad").count(), 0, `${name}: ${await tab.text()}`);
        assert.equal(await tab.page.locator("#main h1").count(), 1, name);
    }
};

cases["the details of an update, an event and a dead letter are shown"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("updates");
    await tab.page.locator("tr", { hasText: "COMMITTED" }).getByRole("link").first().click();
    await tab.shows("Timeline");
    for (const step of ["accepted", "applied"]) await tab.shows(step);
    await tab.to("outboxes", "chat.event_outbox");
    await tab.page.locator("tbody tr").getByRole("link").first().click();
    await tab.shows("Payload");
    await tab.shows("content");
    await tab.to("dead-letters", "refdata.commands.dlq");
    await tab.page.locator("tbody tr").getByRole("link").first().click();
    await tab.shows("Headers");
};

cases["a token that is not accepted, or lacks the scope, is refused in plain words"] = async ({ open, settings }) => {
    const tab = await open();
    for (const [token, text] of [["nonsense", "This token is not accepted."], [settings.tokens.none, "has not the scope ops:read"], ["не токен", "This is not a token"]]) {
        await tab.signIn(token);
        await tab.shows(text);
        assert.equal(await tab.page.locator("#app").isVisible(), false);
    }
};

cases["the token is kept in memory only: a reload forgets it, and so does signing out"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.settled();
    await tab.keepsNothing();
    const sent = tab.requests.filter(({ headers }) => headers.authorization);
    assert.ok(sent.length > 0 && sent.every(({ url }) => url.startsWith(`${settings.url}/v1/`)));
    await tab.page.reload();
    await tab.page.getByLabel("Token", { exact: true }).waitFor();
    assert.equal(await tab.page.locator("#app").isVisible(), false);
    await tab.enter();
    await tab.to("dictionaries", "demo", "COUNTRY");
    await tab.page.getByRole("button", { name: "Sign out" }).click();
    await tab.page.getByLabel("Token", { exact: true }).waitFor();
    await tab.lacks("COUNTRY");
    const after = tab.requests.length;
    await tab.page.waitForTimeout(2500);
    assert.equal(tab.requests.length, after, "it still asks after signing out");
};

cases["filters stand in the address and survive the way back"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("updates");
    await tab.page.getByLabel("Status").selectOption("FAILED");
    await tab.page.waitForURL(/status=FAILED/);
    await tab.settled();
    await tab.shows("FAILED");
    assert.equal(await tab.page.locator("tbody tr", { hasText: "COMMITTED" }).count(), 0);
    await tab.page.locator("tbody").getByRole("link").first().click();
    await tab.shows("Timeline");
    await tab.page.goBack();
    await tab.settled();
    assert.equal(await tab.page.getByLabel("Status").inputValue(), "FAILED");
};

cases["everything can be reached with the keyboard, and the focus is visible"] = async ({ open }) => {
    const tab = await open();
    const { keyboard } = tab.page;
    await tab.page.getByLabel("Token", { exact: true }).waitFor();
    await keyboard.type(tab.settings.tokens.all);
    await keyboard.press("Enter");
    await tab.page.locator("#app").waitFor();
    assert.equal(await tab.page.evaluate(() => document.activeElement.tagName), "H1");
    for (let step = 0; step < 40 && (await focused(tab)) !== "Skip to the content"; step++) await keyboard.press("Shift+Tab");
    assert.equal(await focused(tab), "Skip to the content");
    await keyboard.press("Enter");
    assert.equal(await tab.page.evaluate(() => document.activeElement.tagName), "H1");
    const seen = await walk(tab, 60);
    for (const text of ["Overview", "Dictionaries", "Dead letters", "Audit", "Sign out"]) assert.ok(seen.has(text), text);
    assert.ok([...seen.values()].every((outline) => outline !== "none"), "an element shows no focus");
};

const focused = (tab) => tab.page.evaluate(() => document.activeElement.textContent);

/** Tabs through the page: texts of the elements, with their outlines. */
async function walk(tab, steps) {
    const seen = new Map();
    for (let step = 0; step < steps; step++) {
        await tab.page.keyboard.press("Tab");
        const [text, outline] = await tab.page.evaluate(() => {
            const { activeElement } = document;
            return [activeElement.textContent.trim() || activeElement.id, activeElement === document.body ? "body" : getComputedStyle(activeElement).outlineStyle];
        });
        seen.set(text, outline);
    }
    return seen;
}

const SOME = ["overview", "dictionary", "source"];

/** Every page in a window like this one; among all tests only some, but for the first window. */
const accessible = (options, isFirst) => async ({ open, settings }) => {
    const tab = await open(options);
    await tab.page.getByLabel("Token", { exact: true }).waitFor();
    await tab.accessible("signing in");
    await tab.enter();
    for (const [name, [address, texts]] of Object.entries(pages(settings))) {
        if (!isFirst && !settings.whole && !SOME.includes(name)) continue;
        await tab.open(address);
        await tab.shows(texts[0]);
        await tab.accessible(name);
    }
};

cases["axe finds nothing serious in light"] = accessible({}, true);
cases["axe finds nothing serious in dark"] = accessible({ colorScheme: "dark" });
cases["axe finds nothing serious at 360 pixels"] = accessible({ viewport: { width: 360, height: 740 } });
cases["axe finds nothing serious at 4K"] = accessible({ viewport: { width: 3840, height: 2160 } });

cases["the overview fills its rows and the width, and what is wider than its card is seen to scroll"] = async ({ open }) => {
    const tab = await (await open()).enter();
    const at = async (width) => {
        await tab.page.setViewportSize({ width, height: 900 });
        await tab.page.waitForTimeout(300);
        return tab.page.evaluate(() => ({
            rows: Object.values(Object.groupBy(document.querySelectorAll(".tile"), (tile) => tile.getBoundingClientRect().top)).map((row) => row.length),
            right: document.querySelector(".tiles").getBoundingClientRect().right / innerWidth,
            cut: [...document.querySelectorAll(".table")].map((table) => table.scrollWidth > table.clientWidth),
            shaded: [...document.querySelectorAll(".table")].map((table) => table.matches(".more-right")),
        }));
    };
    await tab.settled();
    for (const [width, rows] of [[360, [2, 2, 2, 2]], [1280, [4, 4]], [1920, [8]], [3840, [8]]]) {
        const found = await at(width);
        assert.deepEqual(found.rows, rows, `${width}`);
        assert.ok(found.right > 0.95, `${width}: the content ends at ${found.right} of the width`);
        assert.ok(!found.cut.includes(true), `${width}: a table is cut off`);
    }
    const { cut, shaded } = await at(900);
    assert.ok(cut.includes(true));
    assert.deepEqual(shaded, cut);
    const scrolled = tab.page.locator(".table.more-right").first();
    const label = await scrolled.getAttribute("aria-label");
    await scrolled.evaluate((table) => table.scrollTo(table.scrollWidth, 0));
    await tab.page.locator(`.table.more-left:not(.more-right)[aria-label="${label}"]`).waitFor();
};

cases["filters stand in line"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("updates");
    const fields = await tab.page.locator(".filters .field").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().height));
    assert.ok(fields.length > 4 && new Set(fields).size === 1, JSON.stringify(fields));
};

cases["the theme can be switched"] = async ({ open }) => {
    const tab = await (await open()).enter();
    const back = () => tab.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await back();
    await tab.page.getByLabel("Theme").selectOption("dark");
    assert.notEqual(await back(), light);
    await tab.page.getByLabel("Theme").selectOption("light");
    assert.equal(await back(), light);
};
