// Hydration, idempotency keys, the configuration in force, and the audit of what operators changed.
import { get, getOps } from "./api.js";
import { change } from "./actions.js";
import { data, fill, h, plain } from "./dom.js";
import * as format from "./format.js";
import { badge, button, empty, facts, field, filters, heading, loader, section, stack } from "./parts.js";
import { pages, table } from "./table.js";

// ---- hydration ----

const KINDS = [
    ["", "lookups in flight"],
    ["absences", "absences"],
    ["copies", "copies"],
];
const LEADS = {
    flights: "Lookups that wait for an answer of the module that owns the entity.",
    absences: "Entities that do not exist, as their modules answered. Each is asked for again when its time is over.",
    copies: "Entities that are kept, and until when.",
};

const COLUMNS = {
    flights: [{ label: "Questions", class: "number", cell: (each) => format.number(each.questions) }],
    absences: [
        { label: "Reason", cell: (each) => data(each.reason?.replaceAll("_", " ")) },
        { label: "Source", cell: (each) => data(each.source_module) },
    ],
    copies: [
        { label: "Content", cell: (each) => data(each.mode) },
        { label: "Size", class: "number", cell: (each) => format.bytes(each.bytes) },
        { label: "Source", cell: (each) => data(each.source_module) },
    ],
};

export function hydration({ main, signal, params, setParams }) {
    const kind = params.kind || "flights";
    const forget = (each) =>
        change({
            title: "Forget this entry?",
            verb: "Forget",
            noun: "entries",
            where: "/v1/ops/hydration/forget",
            tenant: each.tenant_id,
            explain: h(
                "span",
                null,
                "The next request for ",
                data(each.entity_type),
                " ",
                data(each.entity_id, { max: 80 }),
                " asks its module again.",
            ),
            body: { entity_type: each.entity_type, entity_id: each.entity_id },
            onDone: () => list.load(),
        });
    const forgetButton = (each) =>
        button("Forget", () => forget(each), {
            class: "quiet",
            "aria-label": `Forget ${plain(String(each.entity_id))}`,
        });
    const list = pages({
        label: "Hydration",
        signal,
        columns: [
            {
                label: "Entity",
                class: "wide",
                cell: (each) => stack(data(each.entity_id, { max: 100 }), data(each.entity_type)),
            },
            { label: "Tenant", name: "tenant_id" },
            { label: "State", cell: (each) => badge(each.state) },
            ...COLUMNS[kind],
            { label: "Since", cell: (each) => format.time(each.begun_at ?? each.heard_at) },
            { label: "Until", cell: (each) => format.time(each.until) },
            ...(kind === "flights" ? [] : [{ label: "Action", cell: forgetButton }]),
        ],
        ask: (cursor, limit) => getOps("/v1/ops/hydration", { ...params, kind, cursor, limit }, signal),
        none: {
            title: "Nothing here",
            text: kind === "flights" ? "No lookup waits for an answer." : "No entry matches.",
        },
    });
    main.append(
        heading("Hydration", { lead: LEADS[kind], actions: button("Refresh", () => list.load()) }),
        filters(
            [
                { name: "kind", label: "Show", kind: KINDS },
                { name: "entity_type", label: "Entity type", kind: "search" },
                { name: "entity_id", label: "Entity id", kind: "search" },
            ],
            { params, setParams },
        ),
        list,
    );
}

// ---- idempotency keys ----

export function idempotency({ main, signal, params, setParams }) {
    const list = pages({
        label: "Idempotency keys",
        signal,
        columns: [
            { label: "Key", cell: (each) => data(each.key, { max: 100 }), class: "wide" },
            { label: "Status", cell: (each) => badge(each.status) },
            { label: "Route", cell: (each) => data(each.route, { max: 100 }) },
            { label: "User", name: "user_id" },
            { label: "Answer", class: "number", cell: (each) => data(each.response_status) },
            { label: "Created", cell: (each) => format.time(each.created_at) },
            { label: "Expires", cell: (each) => format.time(each.expires_at) },
            { label: "Module", name: "module" },
        ],
        ask: (cursor, limit) => getOps("/v1/ops/idempotency-keys", { ...params, cursor, limit }, signal),
        none: { title: "No key matches", text: "A key is kept from its first request until it expires." },
    });
    main.append(
        heading("Idempotency keys", {
            lead: "Requests that are answered once. The stored answers are not shown.",
            actions: button("Refresh", () => list.load()),
        }),
        filters(
            [
                { name: "key", label: "Key", kind: "search" },
                { name: "route", label: "Route", kind: "search" },
                { name: "user", label: "User", kind: "search" },
            ],
            { params, setParams },
        ),
        list,
    );
}

// ---- configuration ----

const SETTINGS_SHOWN = 100;
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const settingsTable = (rows) =>
    table(
        "Settings",
        [
            { label: "Setting", cell: (each) => h("code", null, data(each.name)) },
            { label: "Value", class: "wide", cell: (each) => data(textOf(each.value), { max: 200, empty: "empty" }) },
            {
                label: "Default",
                cell: (each) =>
                    each.is_default
                        ? h("span", { class: "muted" }, "the default")
                        : data(textOf(each.default), { max: 100, empty: "none" }),
            },
            { label: "Line", class: "number", cell: (each) => data(each.line) },
            { label: "Takes effect", cell: (each) => (each.reloadable ? "on a reload" : "at the next start") },
        ],
        rows,
    );

function settings(found) {
    const shown = h("div");
    const search = field("Name or value contains", "search", "");
    const changed = h("input", { type: "checkbox", id: "changed-only" });
    const input = search.querySelector("input");
    const matches = (each, text) =>
        (!changed.checked || !each.is_default) && `${each.name} ${textOf(each.value)}`.toLowerCase().includes(text);
    function draw(most = SETTINGS_SHOWN) {
        const rows = found.settings.filter((each) => matches(each, input.value.trim().toLowerCase()));
        fill(
            shown,
            h("p", { class: "muted", role: "status" }, `${rows.length} of ${found.settings.length} settings`),
            rows.length === 0 ? empty("No setting matches") : settingsTable(rows.slice(0, most)),
            rows.length > most && button(`Show all ${rows.length}`, () => draw(Infinity)),
        );
    }
    input.addEventListener("input", () => draw());
    changed.addEventListener("change", () => draw());
    draw();
    return [
        h(
            "div",
            { class: "filters" },
            search,
            h(
                "div",
                { class: "check" },
                changed,
                h("label", { for: "changed-only" }, "Only what differs from the default"),
            ),
        ),
        shown,
    ];
}

export function configuration({ main, signal }) {
    const body = h("div");
    const load = loader(
        body,
        () => get("/v1/ops/config", {}, signal),
        (found) => [
            found.refused &&
                h(
                    "div",
                    { class: "note bad", role: "alert" },
                    h("p", null, "The last reload was refused; the settings below are still in force."),
                    h(
                        "p",
                        null,
                        data(
                            typeof found.refused === "string"
                                ? found.refused
                                : (found.refused.message ?? JSON.stringify(found.refused)),
                        ),
                    ),
                ),
            section(
                "File",
                facts([
                    ["File", found.file],
                    ["Loaded", format.time(found.loaded_at)],
                ]),
            ),
            section("Settings", settings(found)),
        ],
        signal,
    );
    main.append(
        heading("Configuration", {
            lead: "As it is in force in the process that answers. Secrets are never shown.",
            actions: button("Refresh", load),
        }),
        body,
    );
    load();
}

// ---- audit ----

export function audit({ main, signal }) {
    const list = pages({
        label: "Audit",
        signal,
        columns: [
            { label: "At", cell: (each) => format.time(each.at) },
            { label: "Who", name: "who" },
            { label: "Action", cell: (each) => data(each.action) },
            { label: "Target", cell: (each) => data(each.target, { max: 120 }), class: "wide" },
            { label: "Reason", cell: (each) => data(each.reason, { max: 200 }), class: "wide" },
            {
                label: "Changed",
                class: "number",
                cell: (each) => `${format.number(each.changed)} of ${format.number(each.matched)}`,
            },
            {
                label: "Which",
                cell: (each) =>
                    data(each.ids ? JSON.stringify(each.ids) : each.filter ? JSON.stringify(each.filter) : null, {
                        max: 80,
                    }),
            },
            { label: "Tenant", name: "tenant_id" },
        ],
        ask: (cursor, limit) => getOps("/v1/ops/audit", { cursor, limit }, signal),
        none: { title: "No change yet", text: "Everything that an operator changes is listed here, with the reason." },
    });
    main.append(
        heading("Audit", {
            lead: "What operators changed, when and why. Newest first.",
            actions: button("Refresh", () => list.load()),
        }),
        list,
    );
}
