// A tab with the console, as a user has it. Whatever a case does, check() holds at its end: no request left the server, no script
// failed, the policy of the page refused nothing, no dialog of the browser opened, and nothing was stored.
import assert from "node:assert/strict";
import { axe } from "./modules.mjs";

const PATIENCE_MS = 30000;

export class Console {
    static async open(browser, settings, options) {
        const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", ...options });
        context.setDefaultTimeout(PATIENCE_MS);
        const made = new Console(context, await context.newPage(), settings);
        await made.page.goto(`${settings.url}/console`);
        return made;
    }

    constructor(context, page, settings) {
        Object.assign(this, { context, page, settings, requests: [], wrong: [] });
        page.on("request", (request) => this.requests.push({ url: request.url(), method: request.method(), headers: request.headers() }));
        page.on("pageerror", (error) => this.wrong.push(`a script failed: ${error.message}`));
        page.on("dialog", (dialog) => { this.wrong.push(`a dialog of the browser: ${dialog.message()}`); dialog.dismiss(); });
        page.on("console", (message) => {
            if (/Content.Security.Policy|Refused to|TrustedType/i.test(message.text())) this.wrong.push(message.text());
        });
    }

    // ---- what a user does ----

    async signIn(token = this.settings.tokens.all) {
        await this.page.getByLabel("Token", { exact: true }).fill(token);
        await this.page.getByRole("button", { name: "Sign in" }).click();
        return this;
    }

    async enter(token) {
        await this.signIn(token);
        await this.page.locator("#app").waitFor();
        return this;
    }

    /** Opens an address of the console: to("dictionaries", "demo", "COUNTRY"). */
    to = (...parts) => this.open(`#/${parts.map(encodeURIComponent).join("/")}`);

    /** The same by the address itself, which may have filters. The browser reports a new address later than it takes it. */
    async open(address) {
        await this.page.evaluate((hash) => new Promise((resolve) => {
            if (location.hash === hash) return resolve();
            addEventListener("hashchange", resolve, { once: true });
            location.hash = hash;
        }), address);
        return this.settled();
    }

    /** Until everything that was asked for is there. */
    async settled() {
        await this.page.locator("#main h1").waitFor();
        await this.page.waitForFunction(() => !document.querySelector("#main .loading, #main [aria-busy=true]"));
        return this;
    }

    text = async () => (await this.page.locator("body").innerText()).replaceAll("\u00a0", " ");

    /** Until the page shows this text. */
    async shows(text) {
        await this.page.waitForFunction((wanted) => document.body.innerText.includes(wanted), text);
        return this;
    }

    async lacks(text) {
        assert.ok(!(await this.text()).includes(text), `the page shows ${JSON.stringify(text)}`);
        return this;
    }

    // ---- what must hold ----

    async check() {
        const origin = new URL(this.settings.url).origin;
        const left = this.requests.map(({ url }) => url).filter((url) => !url.startsWith("data:") && new URL(url).origin !== origin);
        assert.deepEqual(left, [], "requests left the server");
        assert.deepEqual(this.wrong, []);
        await this.keepsNothing();
    }

    /** Neither storage nor cookie nor address holds anything, least of all the token. */
    async keepsNothing() {
        const kept = await this.page.evaluate(async () => ({
            local: { ...localStorage }, session: { ...sessionStorage }, cookie: document.cookie,
            databases: (await indexedDB.databases()).length, caches: (await caches.keys()).length,
        }));
        assert.deepEqual(kept, { local: {}, session: {}, cookie: "", databases: 0, caches: 0 });
        assert.deepEqual(await this.context.cookies(), []);
        for (const { url } of this.requests) assert.doesNotMatch(url, /eyJ[\w-]{10}/, "a token in an address");
    }

    /** No serious fault of accessibility, and nothing that needs scrolling sideways. */
    async accessible(where) {
        await this.page.evaluate(axe);
        const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
        const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical")
            .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join("\n    ")}`);
        assert.deepEqual(serious, [], where);
        const over = await this.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(over <= 0, `${where}: ${over} pixels too wide`);
    }

    describe = async () => `---- ${this.page.url()}\n${(await this.text().catch(() => "")).slice(0, 3000)}`;
    close = () => this.context.close();
}
