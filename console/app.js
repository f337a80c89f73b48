// The frame of the console: signing in, the menu, the address, the banner. Pages stand in page_*.js.
import * as api from "./api.js";
import { data, fill, h, plain } from "./dom.js";
import { engine, seconds } from "./format.js";
import { last, onOverview, poll } from "./live.js";
import { dictionaries, dictionary, item } from "./page_dictionaries.js";
import { letter, letters, sources } from "./page_letters.js";
import { audit, configuration, hydration, idempotency } from "./page_other.js";
import { outbox, outboxes, outboxEvent } from "./page_outboxes.js";
import { overview } from "./page_overview.js";
import { chat, streams } from "./page_streams.js";
import { update, updates } from "./page_updates.js";
import { announce, button, empty, field, heading } from "./parts.js";

// The first part of an address, its name in the menu, and its pages by the number of parts.
const PAGES = {
    overview: { text: "Overview", 1: overview },
    dictionaries: { text: "Dictionaries", 1: dictionaries, 3: dictionary, 4: item },
    updates: { text: "Updates", 1: updates, 3: update },
    outboxes: { text: "Outboxes", 1: outboxes, 2: outbox, 3: outboxEvent },
    "dead-letters": { text: "Dead letters", 1: sources, 2: letters, 3: letter },
    streams: { text: "Streams", 1: streams, 3: chat },
    hydration: { text: "Hydration", 1: hydration },
    idempotency: { text: "Idempotency", 1: idempotency },
    configuration: { text: "Configuration", 1: configuration },
    audit: { text: "Audit", 1: audit },
};

const byId = (id) => document.getElementById(id);
let session = null; // of a sign-in: aborts all it started
let page = null; // of a page: the same

// ---- addresses: #/name/part?filter=value ----

function parse() {
    const [place, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
    let segments;
    try {
        segments = place.split("/").filter(Boolean).map(decodeURIComponent);
    } catch {
        segments = ["not", "an", "address"];
    }
    return {
        segments: segments.length ? segments : ["overview"],
        params: Object.fromEntries(new URLSearchParams(query)),
    };
}

const navigate = (...parts) => {
    location.hash = `#/${parts.map(encodeURIComponent).join("/")}`;
};

function setParams(params) {
    const kept = Object.fromEntries(Object.entries(params).filter(([, value]) => value));
    const query = new URLSearchParams(kept).toString();
    const next = location.hash.split("?")[0] + (query ? `?${query}` : "");
    if (next === location.hash) open(false);
    else location.hash = next;
}

function open(focus = true) {
    page?.abort();
    if (!session) return;
    page = new AbortController();
    const { segments, params } = parse();
    const entry = PAGES[segments[0]];
    const draw = entry?.[segments.length];
    const main = byId("main");
    fill(main);
    if (draw) draw({ main, signal: page.signal, segments, params, navigate, setParams });
    else main.append(heading("Not found"), empty("There is no such page", "The menu has all pages."));
    for (const link of byId("menu").querySelectorAll("a")) {
        if (link.dataset.page === segments[0]) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
    }
    document.title = `${entry?.text ?? "Not found"} · freshet`;
    closeMenu();
    if (focus) {
        main.querySelector("h1")?.focus({ preventScroll: true });
        scrollTo(0, 0);
    }
}

// ---- the frame ----

function closeMenu() {
    byId("menu").classList.remove("open");
    byId("menu-button").setAttribute("aria-expanded", "false");
}

function toggleMenu() {
    const isOpen = byId("menu").classList.toggle("open");
    byId("menu-button").setAttribute("aria-expanded", String(isOpen));
}

function setTheme(name) {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
}

/** Which tenant's rows are shown; only a token for all tenants may choose. */
function tenantChoice(own) {
    const form = h(
        "form",
        {
            class: "tenant-form",
            onsubmit: (event) => {
                event.preventDefault();
                choose(event.target.elements.tenant.value.trim());
            },
        },
        h("label", { for: "tenant" }, "Tenant"),
        h("input", {
            id: "tenant",
            name: "tenant",
            list: "tenants",
            placeholder: "all",
            value: "",
            autocomplete: "off",
            spellcheck: "false",
            maxlength: "64",
        }),
        h("datalist", { id: "tenants" }, own && h("option", { value: own })),
        h("button", { type: "submit", class: "quiet" }, "Show"),
    );
    function choose(name) {
        api.chooseTenant(name || "*");
        announce(name ? `Only the tenant ${name}` : "All tenants");
        restartPoll();
        open(false);
    }
    return form;
}

let polling = null;
function restartPoll() {
    polling?.abort();
    polling = new AbortController();
    poll(AbortSignal.any([polling.signal, session.signal]));
}

function frame(who) {
    byId("app").hidden = false;
    byId("sign-in").hidden = true;
    fill(
        byId("menu-list"),
        Object.entries(PAGES).map(([name, { text }]) =>
            h("li", null, h("a", { href: `#/${name}`, "data-page": name }, text)),
        ),
    );
    fill(
        byId("who"),
        who.user && h("span", { class: "who-name" }, data(who.user, { max: 40 })),
        who.canChoose
            ? tenantChoice(who.tenant)
            : who.tenant && h("span", { class: "who-tenant" }, "Tenant ", data(who.tenant)),
        button("Sign out", () => leave(""), { class: "quiet" }),
    );
}

// ---- the banner: what is wrong with the connection or the databases ----

function trouble({ overview: now, error }) {
    if (error) {
        const since = last.at ? ` Shown is what was true ${seconds((Date.now() - last.at) / 1000)} ago.` : "";
        if (error.status === 0) return `${error.message} It is asked again every two seconds.${since}`;
        if (error.code === "NOT_FOUND") return "This process has no operators' API: it does not run the role ops.";
        return `The overview cannot be read (${error.code || error.status}): ${error.message}.${since}`;
    }
    const down = (now?.engines ?? []).filter((each) => each.state === "down");
    const silent = (now?.unavailable ?? []).map((each) => each.database);
    if (!down.length && !silent.length) return "";
    const nameOf = (name, database) => engine(name) + (database ? ` (${database})` : "");
    const names = [
        ...new Set([
            ...down.map((each) => nameOf(each.name, each.database)),
            ...silent.map((each) => nameOf("postgres", each)),
        ]),
    ];
    const [verb, object] = names.length > 1 ? ["do", "them"] : ["does", "it"];
    return (
        `${names.join(", ")} ${verb} not answer. Reads from memory continue; what needs ${object} waits. ` +
        "This page recovers by itself."
    );
}

function drawBanner(state) {
    if (state.error?.status === 401) return leave(`Signed out: ${state.error.message}.`);
    const banner = byId("banner");
    const text = trouble(state);
    if (!text && !banner.hidden) {
        announce("Everything answers again.");
        if (byId("main").querySelector(".note.bad")) open(false); // what could not be loaded is loaded now
    }
    banner.hidden = !text;
    if (text && banner.textContent !== text) fill(banner, plain(text));
}

// ---- signing in ----

async function enter(token, report) {
    api.signIn(token);
    const known = api.claims();
    try {
        const all = !token || known.scopes.includes("ops:all-tenants");
        if (all) api.chooseTenant("*");
        try {
            await api.getOps("/v1/ops/overview", {});
        } catch (error) {
            if (!all || error.code !== "TENANT_MISMATCH") throw error;
            api.chooseTenant("");
            await api.getOps("/v1/ops/overview", {});
        }
        session = new AbortController();
        frame({ ...known, canChoose: api.chosenTenant() === "*" });
        onOverview(drawBanner, session.signal);
        restartPoll();
        open();
    } catch (error) {
        if (!(error instanceof api.ApiError)) throw error;
        api.signOut();
        report(error);
    }
}

function leave(text) {
    session?.abort();
    page?.abort();
    session = null;
    api.signOut();
    byId("app").hidden = true;
    fill(byId("main"));
    fill(byId("who"));
    byId("banner").hidden = true;
    askToken(text);
}

const REFUSALS = {
    401: "This token is not accepted.",
    403: "This token is valid, but it has not the scope ops:read.",
    404: "This process has no operators' API: it does not run the role ops.",
};

function askToken(text) {
    const report = h("div", { "aria-live": "assertive" }, text && h("p", { class: "note warn" }, plain(text)));
    const input = field("Token", "password", "", {
        name: "token",
        autocomplete: "one-time-code",
        "aria-describedby": "token-help",
    });
    const failed = (error) =>
        fill(
            report,
            h(
                "div",
                { class: "note bad" },
                h("p", null, REFUSALS[error.status] ?? "Signing in did not work."),
                h("p", { class: "muted" }, data(error.message)),
            ),
        );
    const form = h(
        "form",
        {
            onsubmit: async (event) => {
                event.preventDefault();
                const token = event.target.elements.token.value.trim().replace(/^Bearer\s+/i, "");
                const go = event.target.querySelector("button");
                if (/[^\x21-\x7e]/.test(token))
                    return fill(
                        report,
                        h("p", { class: "note bad" }, "This is not a token: it has characters that no token has."),
                    );
                go.disabled = true;
                await enter(token, failed);
                go.disabled = false;
            },
        },
        input,
        h(
            "p",
            { id: "token-help", class: "muted" },
            "With the scope ops:read, and ops:write to change something. It is kept in the memory of this page only. " +
                "Leave it empty where a client certificate signs you in, or where no token is needed.",
        ),
        report,
        h("button", { type: "submit", class: "primary" }, "Sign in"),
        h(
            "details",
            null,
            h("summary", null, "How do I get a token?"),
            h("p", null, "From your issuer. For a server of your own, on the command line:"),
            h(
                "pre",
                { tabindex: "0" },
                'freshet token --tenant demo \\\n  --scope "ops:read ops:write ops:all-tenants"',
            ),
        ),
    );
    const place = byId("sign-in");
    fill(byId("sign-in-form"), form);
    place.hidden = false;
    form.elements.token.focus();
    document.title = "Sign in · freshet";
}

byId("menu-button").addEventListener("click", toggleMenu);
byId("theme").addEventListener("change", (event) => setTheme(event.target.value));
byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    (byId("main").querySelector("h1") ?? byId("sign-in-form").querySelector("input"))?.focus();
});
addEventListener("hashchange", () => open());
addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeMenu();
});
askToken("");
