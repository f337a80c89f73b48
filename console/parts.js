// Parts that several pages are made of: headings, badges, facts, notes, forms of filters.
import { data, fill, h } from "./dom.js";
import { toLocal, toUtc } from "./format.js";

const live = () => document.getElementById("live");

/** Read aloud by a screen reader; not shown. */
export function announce(text) {
    fill(live(), text);
}

/** A line at the bottom that goes away by itself. */
export function toast(text, tone = "ok") {
    const element = h("p", { class: `toast ${tone}` }, text);
    document.getElementById("toasts").append(element);
    announce(text);
    setTimeout(() => element.remove(), 8000);
}

/** The heading of a page. Its h1 gets the focus when the page is opened. */
export function heading(title, { lead, back, actions } = {}) {
    return h(
        "header",
        { class: "page-head" },
        back && h("a", { class: "back", href: back.href }, h("span", { "aria-hidden": "true" }, "← "), back.text),
        h(
            "div",
            { class: "page-title" },
            h("h1", { tabindex: "-1" }, title),
            actions && h("div", { class: "actions" }, actions),
        ),
        lead && h("p", { class: "lead" }, lead),
    );
}

export const section = (title, ...children) => {
    const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
    return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
};

/** The address of a page: to(["dictionaries", tenant, dict], {prefix}). */
export function to(parts, params = {}) {
    const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
    return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

/** The name of a database where there may be several; the store is one. */
export const inDatabase = (name) => (name && name !== "store" ? { database: name } : {});

export const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text);

// ---- states ----

const TONES = {
    up: "ok",
    committed: "ok",
    published: "ok",
    requeued: "ok",
    live: "ok",
    upsert: "ok",
    done: "ok",
    yes: "ok",
    ready: "ok",
    down: "bad",
    failed: "bad",
    gone: "bad",
    critical: "bad",
    ended: "bad",
    delete: "bad",
    no: "bad",
    pending: "warn",
    in_flight: "warn",
    warning: "warn",
    open: "warn",
    waiting: "warn",
    unknown: "warn",
    stuck: "warn",
    processing: "warn",
};

/** A state: its colour is a help, its word the meaning. */
export function badge(state) {
    if (state === undefined || state === null || state === "") return h("span", { class: "muted" }, "–");
    const text = String(state);
    return h(
        "span",
        { class: `badge ${TONES[text.toLowerCase()] ?? "plain"}` },
        data(text.replaceAll("_", " "), { max: 40 }),
    );
}

/** Names and values, one below the other. */
export const facts = (rows) =>
    h(
        "dl",
        { class: "facts" },
        rows
            .filter(Boolean)
            .map(([name, value]) =>
                h("div", null, h("dt", null, name), h("dd", null, value instanceof Node ? value : data(value))),
            ),
    );

/** A value with something less important below it. */
export const stack = (first, second) =>
    h("span", { class: "stack" }, first instanceof Node ? first : data(first), h("span", { class: "muted" }, second));

// ---- notes ----

const PLAIN = {
    INSUFFICIENT_SCOPE: "The token does not have the scope for this.",
    TENANT_MISMATCH: "The token belongs to another tenant.",
    NOT_FOUND: "This process does not serve this. Is the role ops running here?",
    RATE_LIMITED: "Too many requests for now. It is tried again.",
};

/** An error in plain words, with what the server said. */
export function failure(error, again) {
    const plain = PLAIN[error.code] ?? (error.status === 0 ? error.message : "The server refused this request.");
    const said =
        error.status === 0 ? null : h("p", { class: "muted" }, data(`${error.code || error.status}: ${error.message}`));
    return h(
        "div",
        { class: "note bad", role: "alert" },
        h("p", null, plain),
        said,
        again && button("Try again", again),
    );
}

/** In place of rows. Where databases did not answer, it is not known whether there are none. */
export const empty = (title, text, away) =>
    away?.length
        ? empty("Not known now", "A database does not answer.")
        : h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), text && h("p", null, text));

export const loading = () => h("p", { class: "loading" }, "Loading…");

/** Databases that did not answer, as the API lists them. */
export function unavailable(list) {
    if (!list?.length) return null;
    return h(
        "div",
        { class: "note warn", role: "status" },
        list.map((each) =>
            h(
                "p",
                null,
                "The database ",
                data(each.database),
                " does not answer: ",
                data(each.error),
                ". Its rows are not shown.",
            ),
        ),
    );
}

/** Asks and shows: draws what came, or the error with a button; load() again keeps what is shown until the answer is there. */
export function loader(target, ask, draw, signal) {
    let round = 0;
    return async function load() {
        const mine = ++round;
        if (!target.hasChildNodes()) fill(target, loading());
        target.setAttribute("aria-busy", "true");
        try {
            const found = await ask();
            if (mine === round && !signal.aborted) fill(target, draw(found));
        } catch (error) {
            if (signal.aborted) return;
            if (!("status" in error)) throw error;
            if (mine === round) fill(target, failure(error, load));
        } finally {
            if (mine === round) target.removeAttribute("aria-busy");
        }
    };
}

// ---- filters ----

let lastId = 0;

/** A labelled input. kind: "text", "search", "time", or a list of choices, each a text or [value, text]. */
export function field(label, kind, value, props = {}) {
    const id = `f${++lastId}`;
    let input;
    if (Array.isArray(kind)) {
        input = h(
            "select",
            { id, ...props },
            kind.map((choice) => {
                const [choiceValue, text] = Array.isArray(choice) ? choice : [choice, choice];
                return h("option", { value: choiceValue, selected: choiceValue === (value ?? "") }, text);
            }),
        );
    } else if (kind === "time") {
        input = h("input", { id, type: "datetime-local", step: "1", value: toLocal(value), ...props });
    } else {
        input = h("input", { id, type: kind, value: value ?? "", autocomplete: "off", spellcheck: "false", ...props });
    }
    return h("div", { class: "field" }, h("label", { for: id }, label), input);
}

/** Filters that stand in the address: rows of {name, label, kind}. */
export function filters(rows, { params, setParams }) {
    const fields = rows.map((row) =>
        field(row.label, row.kind, params[row.name] ?? "", { name: row.name, placeholder: row.hint }),
    );
    const form = h(
        "form",
        {
            class: "filters",
            role: "search",
            onsubmit: (event) => {
                event.preventDefault();
                apply();
            },
        },
        fields,
        h(
            "div",
            { class: "field-buttons" },
            h("button", { type: "submit" }, "Filter"),
            rows.some((row) => params[row.name]) && button("Clear", () => setParams({}), { class: "quiet" }),
        ),
    );
    function apply() {
        const chosen = { ...params }; // one that has no field stays
        for (const row of rows) {
            delete chosen[row.name];
            const value = form.elements[row.name].value.trim();
            if (value) chosen[row.name] = row.kind === "time" ? toUtc(value) : value;
        }
        setParams(chosen);
    }
    for (const each of form.querySelectorAll("select")) each.addEventListener("change", apply);
    return form;
}
