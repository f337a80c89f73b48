// Keys, payloads and messages that try to be more than text; and data of others.
import assert from "node:assert/strict";

export const cases = {};

const noMarkup = async (tab) => assert.equal(await tab.page.locator("#main :is(script, img, iframe, object, embed)").count(), 0);

cases["hostile keys and payloads of a dictionary are text"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "HOSTILE");
    await tab.shows("<script>alert('key')</script>");
    await tab.shows("U+202E");
    await tab.shows("' onmouseover='alert(1)");
    await noMarkup(tab);
    const raw = await tab.page.locator("#main").evaluate((main) => main.textContent);
    assert.doesNotMatch(raw, /[\u202a-\u202e\u2066-\u2069\u200b\u0000-\u0008]/, "a mark that is not visible");
    for (const key of settings.hostile) {
        await tab.to("dictionaries", "demo", "HOSTILE", key);
        await tab.page.locator("#main pre").first().waitFor();
        await noMarkup(tab);
    }
    await tab.to("dictionaries", "demo", "HOSTILE", settings.hostile[0]);
    await tab.shows("<img src=x onerror=alert(1)>");
    await tab.to("dictionaries", "demo", "HOSTILE", settings.hostile[1]);
    await tab.shows("U+061C");
};

cases["escapes of NUL and of other control characters are visible"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "RAW", "nul");
    await tab.page.locator("#main pre").first().waitFor();
    assert.match(await tab.text(), /\\u0000|U\+0000/);
    assert.match(await tab.text(), /\\u0007|U\+0007/);
};

cases["a text of 1 MiB is cut, can be shown whole, and does not freeze the page"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "HOSTILE", "long");
    const more = tab.page.getByRole("button", { name: /show all/ });
    await more.waitFor();
    assert.ok((await tab.page.locator("#main pre").first().innerText()).length < 5000);
    const worst = await slowest(tab, () => more.click());
    await tab.page.locator(".piece").nth(100).waitFor({ state: "attached" });
    assert.ok((await tab.page.locator("#main pre").first().evaluate((pre) => pre.textContent.length)) > 1000000);
    assert.ok(worst < 5000, `the page did not answer for ${worst} ms`);
    await tab.page.getByRole("link", { name: "Audit" }).click();
    await tab.shows("What operators changed");
};

/** The longest time that the page's own timer had to wait while something was done. */
async function slowest(tab, action) {
    await tab.page.evaluate(() => {
        globalThis.worst = 0;
        let before = performance.now();
        globalThis.watch = setInterval(() => { const now = performance.now(); globalThis.worst = Math.max(globalThis.worst, now - before); before = now; }, 20);
    });
    await action();
    await tab.page.waitForTimeout(500);
    return tab.page.evaluate(() => { clearInterval(globalThis.watch); return globalThis.worst; });
}

cases["hostile messages of a chat are text"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("streams", settings.project, settings.session);
    await tab.page.locator(".message", { hasText: "<script>alert('chat')</script>" }).first().waitFor();
    await tab.shows("U+202E");
    await tab.shows("U+0007");
    await tab.page.getByRole("button", { name: /show all/ }).first().waitFor();
    await noMarkup(tab);
};

cases["hostile dead letters are text, and bytes are base64"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("dead-letters", "refdata.commands.dlq");
    const links = await tab.page.locator("tbody tr th a").evaluateAll((found) => found.map((each) => each.getAttribute("href")));
    assert.ok(links.length >= 6);
    let all = "";
    for (const href of links.slice(0, 12)) {
        await tab.open(href);
        await noMarkup(tab);
        all += await tab.text();
    }
    assert.ok(all.includes("<script>alert('letter')</script>") && all.includes("U+202E"), "the hostile text was not found");
    assert.ok(all.includes(btoa("\u0000\u00ff<script>al")), "the hostile bytes were not found");
};

cases["a token of one tenant sees nothing of another one, on any page"] = async ({ open, settings }) => {
    const { pages } = await import("./cases_pages.mjs");
    const tab = await (await open()).enter(settings.tokens.own);
    assert.equal(await tab.page.getByLabel("Tenant", { exact: true }).count(), 0);
    for (const [address] of Object.values(pages(settings))) {
        await tab.open(address);
        await tab.lacks(settings.secret);
    }
    await tab.to("dictionaries", "rival", "COUNTRY");
    await tab.shows("another tenant");
    await tab.lacks(settings.secret);
    await tab.to("dictionaries");
    assert.equal(await tab.page.locator("tbody tr", { hasText: "rival" }).count(), 0);
};

cases["a token for all tenants chooses one, and then sees only that one"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries");
    await tab.shows("rival");
    await tab.page.getByLabel("Tenant", { exact: true }).fill("demo");
    await tab.page.getByRole("button", { name: "Show" }).click();
    await tab.settled();
    await tab.page.waitForFunction(() => !document.querySelector("#main").innerText.includes("rival"));
    assert.ok(tab.requests.at(-1).url.includes("tenant=demo"));
    await tab.page.getByLabel("Tenant", { exact: true }).fill("");
    await tab.page.getByRole("button", { name: "Show" }).click();
    await tab.shows("rival");
    await tab.to("dictionaries", "rival", "COUNTRY", settings.secret);
    await tab.shows("own tenant"); // payloads are served to tokens of the tenant only
};
