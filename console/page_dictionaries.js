// Dictionaries: the list; one with its keys and its changes as they happen; one item with its history.
import { claims, get, getOps, getText, path } from "./api.js";
import { data, fill, h, id, json, payloadIn, plain } from "./dom.js";
import * as format from "./format.js";
import { follow, onOverview } from "./live.js";
import { badge, button, empty, facts, field, heading, loader, section, to } from "./parts.js";
import { pages, table } from "./table.js";

const CHANGES_MAX = 100; // that are shown
const REPORT_MS = 5000; // how often a process reports the dictionaries that it holds

const hrefOf = (parts, params) => to(["dictionaries", ...parts], params);
const dataOf = (tenant, dict) => path`/v1/tenants/${tenant}/dictionaries/${dict}`;
const opsOf = (tenant, dict) => path`/v1/ops/dictionaries/${tenant}/${dict}`;

export function dictionaries({ main, signal, params, setParams }) {
    const columns = [
        {
            label: "Dictionary",
            cell: (each) => h("a", { href: hrefOf([each.tenant_id, each.dict_code]) }, data(each.dict_code)),
        },
        { label: "Tenant", name: "tenant_id" },
        { label: "Version", class: "number", cell: (each) => format.number(each.version) },
        { label: "Items", class: "number", cell: (each) => format.number(each.items) },
        { label: "Size", class: "number", cell: (each) => format.bytes(each.bytes) },
        { label: "Freshness", class: "number", cell: (each) => format.millis(each.freshness_ms) },
        { label: "Last read", cell: (each) => format.time(each.last_read_at) },
        { label: "Updated", cell: (each) => format.time(each.updated_at) },
        {
            label: "Held by",
            class: "number",
            cell: (each) => format.plural(each.pods?.length ?? 0, "process", "processes"),
        },
        {
            label: "Last error",
            cell: (each) => (each.last_error ? data(each.last_error, { max: 120 }) : "none"),
            class: "wide",
        },
    ];
    const search = field("Dictionary", "search", params.dict, { name: "dict" });
    main.append(
        heading("Dictionaries", { lead: "Every dictionary of every tenant that the token may see." }),
        h(
            "form",
            {
                class: "filters",
                role: "search",
                onsubmit: (event) => {
                    event.preventDefault();
                    setParams({ dict: event.target.elements.dict.value.trim() });
                },
            },
            search,
            h("div", { class: "field-buttons" }, h("button", { type: "submit" }, "Filter")),
        ),
        pages({
            label: "Dictionaries",
            columns,
            signal,
            ask: (cursor, limit) => getOps("/v1/ops/dictionaries", { dict: params.dict, cursor, limit }, signal),
            none: { title: "No dictionary", text: "Nothing has been written yet, or no dictionary has this name." },
        }),
    );
}

// ---- one dictionary ----

function summary(found, isListOpen) {
    if (!found) return empty("Not held yet", "No process holds this dictionary, or it has no version yet.");
    return [
        facts([
            ["Version", format.number(found.version)],
            ["Items", format.number(found.items)],
            ["Size in memory", format.bytes(found.bytes)],
            ["Freshness", format.millis(found.freshness_ms)],
            ["Last read", format.time(found.last_read_at)],
            ["Updated", format.time(found.updated_at)],
            ["Loaded", format.time(found.loaded_at)],
            ["Database", found.database],
            ["Digest", h("code", null, data(found.digest))],
            ["Last event", found.event_id],
            ["Last error", found.last_error || "none"],
        ]),
        found.pods?.length > 0 &&
            h(
                "details",
                { open: isListOpen },
                h("summary", null, `Held by ${format.plural(found.pods.length, "process", "processes")}`),
                table(
                    "Processes with this dictionary",
                    [
                        { label: "Process", name: "pod_id" },
                        { label: "Version", class: "number", cell: (each) => format.number(each.version) },
                        { label: "Loaded", cell: (each) => format.time(each.loaded_at) },
                    ],
                    found.pods,
                ),
            ),
    ];
}

/** Changes as they happen, newest first. */
function changes(tenant, dict, onChange, signal) {
    const state = h("p", { class: "live-state", "aria-live": "polite" }, badge("waiting"), " connecting…");
    const rows = h("ol", {
        class: "changes",
        "aria-live": "polite",
        "aria-relevant": "additions",
        "aria-label": "Changes, newest first",
    });
    const none = empty("No change yet", "A change appears here as soon as this process serves it.");
    let after;

    function show(line, text) {
        after = line.upToDate ?? line.heartbeat ?? after;
        if (line.key === undefined) return;
        none.remove();
        const payload = line.op === "DELETE" ? null : data(payloadIn(text), { max: 160 });
        rows.prepend(
            h(
                "li",
                null,
                badge(line.op.toLowerCase()),
                h("span", { class: "muted" }, `v${line.version}`),
                h("a", { href: hrefOf([tenant, dict, line.key]) }, data(line.key, { max: 80 })),
                payload,
                h("span", { class: "muted" }, format.clockTime(Date.now())),
            ),
        );
        while (rows.childElementCount > CHANGES_MAX) rows.lastElementChild.remove();
        onChange(line);
    }

    function tell(how, error) {
        const text = {
            live: " changes appear by themselves",
            waiting: " the stream is opened again",
            ended: ` ${error?.message ?? "the stream has ended"}`,
        }[how];
        fill(state, badge(how), plain(text));
    }

    follow(
        {
            open: () => ({ where: `${dataOf(tenant, dict)}/watch`, params: { after } }),
            onLine: show,
            onState: tell,
            onRefusal: (error) => {
                const isOld = error.status === 410 || error.status === 409;
                if (isOld) after = undefined;
                return isOld;
            },
        },
        signal,
    );
    return h("div", null, state, rows, none);
}

const ownTenantOnly = (tenant) =>
    empty(
        "Only for the token's own tenant",
        `Payloads and live changes come from the tenant's own routes: sign in with a token of “${plain(tenant)}”.`,
    );

export function dictionary({ main, signal, segments: [, tenant, dict], params, setParams }) {
    const own = claims().tenant;
    const isOwn = !own || own === tenant;
    const about = h("div");
    const ask = () => getOps("/v1/ops/dictionaries", { dict, tenant, limit: 500 }, signal);
    const load = loader(
        about,
        async () => (await ask()).items.find((each) => each.tenant_id === tenant && each.dict_code === dict),
        (found) => summary(found, about.querySelector("details")?.open),
        signal,
    );
    let loadedAt = Date.now();
    onOverview(() => {
        if (Date.now() - loadedAt < REPORT_MS) return;
        loadedAt = Date.now();
        load();
    }, signal);
    const keys = pages({
        label: "Keys",
        signal,
        columns: [
            {
                label: "Key",
                cell: (each) => h("a", { href: hrefOf([tenant, dict, each.key]) }, data(each.key, { max: 120 })),
                class: "wide",
            },
            { label: "Payload", class: "number", cell: (each) => format.bytes(each.payload_bytes ?? each.bytes) },
        ],
        ask: (cursor, limit) => get(`${opsOf(tenant, dict)}/keys`, { prefix: params.prefix, cursor, limit }, signal),
        none: { title: "No key", text: params.prefix ? "No key begins with this text." : "This dictionary is empty." },
    });
    const jump = field("Keys that begin with", "search", params.prefix, { name: "prefix" });
    let pending = false;
    function changed() {
        // several changes of one version are one refresh
        if (pending) return;
        pending = true;
        setTimeout(() => {
            pending = false;
            if (!signal.aborted) load();
        }, 1000);
    }
    main.append(
        heading([data(dict), " ", h("span", { class: "muted" }, data(tenant))], {
            back: { href: "#/dictionaries", text: "Dictionaries" },
        }),
        section("Now", about),
        h(
            "div",
            { class: "columns" },
            section(
                "Keys",
                h(
                    "form",
                    {
                        class: "filters",
                        role: "search",
                        onsubmit: (event) => {
                            event.preventDefault();
                            setParams({ prefix: event.target.elements.prefix.value });
                        },
                    },
                    jump,
                    h("div", { class: "field-buttons" }, h("button", { type: "submit" }, "Search")),
                ),
                keys,
            ),
            section("Live changes", isOwn ? changes(tenant, dict, changed, signal) : ownTenantOnly(tenant)),
        ),
    );
    load();
}

// ---- one item ----

export function item({ main, signal, segments: [, tenant, dict, key] }) {
    const own = claims().tenant;
    const payload = h("div");
    const load = loader(
        payload,
        () => getText(dataOf(tenant, dict) + path`/items/${key}`, {}, signal),
        (text) => {
            const found = payloadIn(text) ?? text;
            return [json(found), h("p", { class: "muted" }, format.bytes(new Blob([found]).size))];
        },
        signal,
    );
    const history = pages({
        label: "History",
        signal,
        columns: [
            { label: "Version", class: "number", cell: (each) => format.number(each.version) },
            { label: "Change", cell: (each) => badge(each.op?.toLowerCase()) },
            { label: "At", cell: (each) => format.time(each.at) },
            {
                label: "Update",
                cell: (each) =>
                    each.event_id
                        ? h("a", { href: to(["updates", tenant, each.event_id]) }, id(each.event_id))
                        : data(null),
            },
        ],
        ask: (cursor, limit) => get(opsOf(tenant, dict) + path`/items/${key}/history`, { cursor, limit }, signal),
        none: { title: "No history", text: "Changes of this key are no longer kept, or happened before changes were kept." },
    });
    const isOwn = !own || own === tenant;
    main.append(
        heading(data(key, { max: 200 }), {
            back: { href: hrefOf([tenant, dict]), text: `${plain(dict)} (${plain(tenant)})` },
            actions:
                isOwn &&
                button("Refresh", () => {
                    load();
                    history.load();
                }),
        }),
        section("Payload", isOwn ? payload : ownTenantOnly(tenant)),
        section("History", history),
    );
    if (isOwn) load();
}
