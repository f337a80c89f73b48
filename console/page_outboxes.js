// Outboxes: the tables, the events of one, one event; publishing again, discarding.
import { getOps, path } from "./api.js";
import { actionBar, change } from "./actions.js";
import { data, h, id, json } from "./dom.js";
import * as format from "./format.js";
import {
    badge,
    button,
    empty,
    facts,
    filters,
    heading,
    loader,
    section,
    unavailable,
    to,
    inDatabase,
} from "./parts.js";
import { pages, selection, table } from "./table.js";

const COUNT_MAX = 10000;

const FILTERS = [
    { name: "state", label: "State", kind: [["", "stuck"], "pending", "in_flight", "failed", "published"] },
    { name: "event_type", label: "Event type", kind: "search" },
    { name: "aggregate", label: "Aggregate", kind: "search" },
    { name: "from", label: "From", kind: "time" },
    { name: "to", label: "To", kind: "time" },
];

// `states`: of a filter that the action is for; the server refuses it for others.
const VERBS = [
    {
        verb: "retry",
        text: "Retry",
        states: ["stuck", "failed"],
        title: "Publish these events again?",
        explain: "Failed events become pending and are published again, in their order.",
    },
    {
        verb: "unlock",
        text: "Unlock",
        states: ["stuck", "in_flight"],
        title: "Unlock these events?",
        explain: "The lease of the process that has claimed them ends now, so that another one can publish them.",
    },
    {
        verb: "republish",
        text: "Republish",
        states: ["published"],
        title: "Publish these events once more?",
        explain: "Events that were published are published once more. Consumers recognise them by their id.",
    },
    {
        verb: "discard",
        text: "Discard",
        danger: true,
        states: ["stuck", "failed"],
        title: "Discard these events?",
        explain:
            "They are never published. Consumers will miss them; later events of the same aggregate can then pass.",
    },
];

/** Counted up to a limit; one that reached it has more. */
const counted = (each, name) =>
    format.count({ count: format.countOf(each[name]), more: each.more && each[name] >= COUNT_MAX });

const hrefOf = (parts, params) => to(["outboxes", ...parts], params);

export function outboxes({ main, signal }) {
    const body = h("div");
    const load = loader(
        body,
        () => getOps("/v1/ops/outboxes", {}, signal),
        (found) => [
            unavailable(found.unavailable),
            found.items.length === 0
                ? empty("No outbox", "No module with an outbox runs here.")
                : table(
                      "Outboxes",
                      [
                          {
                              label: "Table",
                              cell: (each) =>
                                  h(
                                      "a",
                                      {
                                          href: hrefOf([each.table], inDatabase(each.database)),
                                      },
                                      data(each.table),
                                  ),
                          },
                          { label: "Database", name: "database" },
                          { label: "Module", name: "module" },
                          { label: "Pending", class: "number", cell: (each) => counted(each, "pending") },
                          { label: "In flight", class: "number", cell: (each) => counted(each, "in_flight") },
                          {
                              label: "Failed",
                              class: "number",
                              cell: (each) =>
                                  h(
                                      "span",
                                      { class: format.countOf(each.failed) ? "bad-text" : null },
                                      counted(each, "failed"),
                                  ),
                          },
                          {
                              label: "Oldest",
                              class: "number",
                              cell: (each) => format.seconds(each.oldest_pending_age_seconds),
                          },
                          {
                              label: "Last error",
                              class: "wide",
                              cell: (each) => data(each.last_error, { max: 160, empty: "none" }),
                          },
                      ],
                      found.items,
                  ),
        ],
        signal,
    );
    main.append(
        heading("Outboxes", {
            lead: "Events that commit with the data and are published after it.",
            actions: button("Refresh", load),
        }),
        body,
    );
    load();
}

export function outbox({ main, signal, segments: [, name], params, setParams }) {
    const chosen = selection(
        (each) => String(each.id),
        (count) => bar.draw(count),
    );
    const { database, ...named } = params;
    const bar = actionBar({
        noun: "events",
        verbs: VERBS.filter((verb) => verb.states.includes(named.state ?? "stuck")),
        where: (verb) => path`/v1/ops/outboxes/${name}/${verb}`,
        filter: () => ({ state: "stuck", ...named }),
        common: () => (database ? { database } : {}),
        chosen: () => chosen.items(),
        onDone: () => list.load(),
    });
    const list = pages({
        label: "Events",
        signal,
        select: chosen,
        columns: [
            {
                label: "Event",
                cell: (each) => h("a", { href: hrefOf([name, each.id], inDatabase(each.database)) }, id(each.id)),
            },
            { label: "State", cell: (each) => badge(each.state) },
            { label: "Type", name: "event_type" },
            { label: "Aggregate", cell: (each) => data(each.aggregate, { max: 80 }), class: "wide" },
            { label: "Sequence", class: "number", cell: (each) => format.number(each.sequence) },
            { label: "Attempts", class: "number", cell: (each) => format.number(each.attempts) },
            { label: "Age", class: "number", cell: (each) => format.seconds(each.age_seconds) },
            { label: "Next try", cell: (each) => format.time(each.next_retry_at) },
            { label: "Last error", class: "wide", cell: (each) => data(each.last_error, { max: 120, empty: "none" }) },
        ],
        ask: (cursor, limit) => getOps(path`/v1/ops/outboxes/${name}/events`, { ...params, cursor, limit }, signal),
        none: {
            title: params.state ? "No event matches" : "Nothing is stuck",
            text: "Events that wait for their turn have the state pending.",
        },
    });
    main.append(
        heading(data(name), {
            back: { href: "#/outboxes", text: "Outboxes" },
            actions: button("Refresh", () => list.load()),
        }),
        filters(FILTERS, { params, setParams }),
        bar,
        list,
    );
}

export function outboxEvent({ main, signal, segments: [, name, event], params }) {
    const body = h("div");
    const load = loader(
        body,
        () => getOps(path`/v1/ops/outboxes/${name}/events/${event}`, { database: params.database }, signal),
        (found) => [
            h("div", { class: "actions" }, verbs(found)),
            section(
                "Event",
                facts([
                    ["State", badge(found.state)],
                    ["Type", found.event_type],
                    ["Aggregate", found.aggregate],
                    ["Sequence", format.number(found.sequence)],
                    ["Tenant", found.tenant_id],
                    ["Database", found.database],
                    ["Attempts", format.number(found.attempts)],
                    ["Claims", format.number(found.claims)],
                    ["Age", format.seconds(found.age_seconds)],
                    ["Next try", format.time(found.next_retry_at)],
                    ["Claimed by", found.locked_by],
                    ["Last error", found.last_error || "none"],
                ]),
            ),
            section("Payload", payload(found)),
        ],
        signal,
    );
    const verbs = (found) =>
        VERBS.filter((verb) => verb.states.includes(found.state === "pending" ? "stuck" : found.state)).map((verb) =>
            button(
                verb.text,
                () =>
                    change({
                        ...verb,
                        verb: verb.text,
                        noun: "events",
                        where: path`/v1/ops/outboxes/${name}/${verb.verb}`,
                        body: { ids: [event], ...(params.database ? { database: params.database } : {}) },
                        onDone: load,
                    }),
                { class: verb.danger ? "danger-text" : null },
            ),
        );
    main.append(heading(data(event, { max: 100 }), { back: { href: hrefOf([name]), text: name } }), body);
    load();
}

/** The payload of an event or a dead letter: JSON is indented, bytes stay base64. */
export function payload(found) {
    if (found.payload === undefined || found.payload === null) return h("p", { class: "muted" }, "No payload is kept.");
    const notes = [];
    if (found.payload_encoding === "base64") notes.push("Not a text: shown as base64. ");
    if (found.payload_truncated) notes.push("Only the beginning is shown. ");
    const text = typeof found.payload === "string" ? found.payload : JSON.stringify(found.payload);
    const isJson = !found.payload_encoding && /^\s*[[{]/.test(text);
    return [
        notes.length > 0 && h("p", { class: "muted" }, notes),
        isJson ? json(text) : data(text, { max: 4000, tag: "pre" }),
    ];
}
