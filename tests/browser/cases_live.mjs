// What appears by itself, and what the console says when something is away.
import assert from "node:assert/strict";

export const cases = {};

const SOON_MS = 1000;

cases["a change of a dictionary appears without a reload, within a second of its commit"] = async ({ open, ask }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "FEATURE");
    await tab.page.locator(".live-state", { hasText: "live" }).waitFor();
    await ask("write", "FEATURE", { warm: 1 }); // the first one may have to load
    await tab.page.locator(".changes li", { hasText: "warm" }).waitFor();
    const before = tab.requests.length;
    let after = Infinity;
    for (let round = 0; round < 5 && after >= SOON_MS; round++) { // a busy machine may delay some of them
        const version = await ask("write", "FEATURE", { [`beta-${round}`]: { share: 0.25 } });
        const committed = Date.now();
        await tab.page.locator(".changes li", { hasText: `beta-${round}` }).first().waitFor();
        after = Date.now() - committed;
        assert.ok((await tab.text()).includes(`v${version}`) && (await tab.text()).includes("0.25"));
    }
    assert.ok(!tab.requests.slice(before).some(({ url }) => /\/watch|\/console/.test(url)), "the stream was opened again, or the page reloaded");
    assert.ok(after < SOON_MS, `it took ${after} ms`);
};

cases["a message of a chat appears while it is followed"] = async ({ open, ask, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("streams", settings.project, settings.session);
    await tab.page.locator(".live-state", { hasText: "live" }).waitFor();
    const text = `said ${Date.now()}`;
    await ask("say", text);
    await tab.page.locator(".chat .message.user", { hasText: text }).waitFor();
    await tab.page.locator(".chat .message.assistant", { hasText: text }).waitFor();
};

cases["the overview is asked for every two seconds, and not while the tab is hidden"] = async ({ open }) => {
    const tab = await (await open()).enter();
    const asked = () => tab.requests.filter(({ url }) => url.includes("/v1/ops/overview")).length;
    const hide = (hidden) => tab.page.evaluate((value) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
        document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    while (asked() < 3) await tab.page.waitForRequest((request) => request.url().includes("/v1/ops/overview"));
    await hide(true);
    await tab.page.waitForTimeout(3000); // one may have been under way
    const before = asked();
    await tab.page.waitForTimeout(5000);
    assert.equal(asked(), before);
    await hide(false);
    await tab.page.waitForRequest((request) => request.url().includes("/v1/ops/overview"));
};

cases["PostgreSQL away: the console says so, keeps what it shows, and recovers by itself"] = async ({ open, ask }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "COUNTRY", "DE");
    await tab.shows("Germany"); // now it is in memory
    await tab.to("overview");
    await tab.shows("Reads a second");
    await ask("postgres", "stop");
    try {
        await tab.page.locator("#banner", { hasText: "PostgreSQL" }).waitFor();
        await tab.shows("Reads a second");
        await tab.shows("not known now"); // instead of zeros
        for (const title of ["Roles", "Processes", "Lag"])
            await tab.page.getByRole("region", { name: title, exact: true }).getByText("Not known now").waitFor();
        await tab.lacks("No process has reported yet");
        await tab.to("dictionaries", "demo", "COUNTRY", "DE"); // from memory
        await tab.shows("Germany");
        await tab.to("updates");
        await tab.page.waitForFunction(() => /does not answer|UNAVAILABLE|Try again/.test(document.querySelector("#main").innerText));
    } finally {
        await ask("postgres", "start");
    }
    await tab.page.locator("#banner").waitFor({ state: "hidden" });
    await tab.to("updates");
    await tab.shows("COMMITTED");
};

cases["the server away: the console says so, and goes on when it is back"] = async ({ open, ask }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "FEATURE");
    await tab.page.locator(".live-state", { hasText: "live" }).waitFor();
    await ask("server", "stop");
    try {
        await tab.page.locator("#banner", { hasText: "does not answer" }).waitFor();
        await tab.shows("FEATURE");
    } finally {
        await ask("server", "start");
    }
    await tab.page.locator("#banner").waitFor({ state: "hidden" });
    const key = `back-${Date.now()}`;
    await ask("write", "FEATURE", { [key]: 1 });
    await tab.page.locator(".changes li", { hasText: key }).waitFor();
};
