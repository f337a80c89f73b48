// Dead letters: where they are, those of one source, one letter; requeue and discard.
import { getOps, path } from "./api.js";
import { actionBar, change } from "./actions.js";
import { data, h, id, json } from "./dom.js";
import * as format from "./format.js";
import { payload } from "./page_outboxes.js";
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

const FILTERS = [
    { name: "state", label: "State", kind: [["", "open"], "requeued", "discarded"] },
    { name: "reason", label: "Reason", kind: "search" },
    { name: "from", label: "From", kind: "time" },
    { name: "to", label: "To", kind: "time" },
];

const VERBS = [
    {
        verb: "requeue",
        text: "Requeue",
        title: "Deliver these messages again?",
        explain: "The original message is published to its topic once more. It is delivered as if it were new.",
    },
    {
        verb: "discard",
        text: "Discard",
        danger: true,
        title: "Discard these messages?",
        explain: "They are marked as discarded and are not delivered.",
    },
];

const KINDS = {
    topic: "messages of a topic",
    notification_message: "messages of the inbox",
    notification_delivery: "deliveries to webhooks",
    outbox: "events of an outbox",
};

const hrefOf = (parts, params) => to(["dead-letters", ...parts], params);

export function sources({ main, signal }) {
    const body = h("div");
    const load = loader(
        body,
        () => getOps("/v1/ops/dead-letters", {}, signal),
        (found) => [
            unavailable(found.unavailable),
            found.items.length === 0
                ? empty("No dead letters", "Every message was handled, or is still being tried.")
                : table(
                      "Sources of dead letters",
                      [
                          {
                              label: "Source",
                              cell: (each) =>
                                  h(
                                      "a",
                                      {
                                          href: hrefOf([each.source], inDatabase(each.database)),
                                      },
                                      data(each.source),
                                  ),
                          },
                          { label: "What", cell: (each) => data(KINDS[each.kind] ?? each.kind) },
                          { label: "Engine", name: "engine" },
                          { label: "Database", name: "database" },
                          {
                              label: "Open",
                              class: "number",
                              cell: (each) =>
                                  h(
                                      "span",
                                      { class: format.countOf(each.count) ? "bad-text" : null },
                                      format.count(each.count),
                                  ),
                          },
                          { label: "Oldest", cell: (each) => format.time(each.oldest_at) },
                      ],
                      found.items,
                  ),
        ],
        signal,
    );
    main.append(
        heading("Dead letters", {
            lead: "Messages that were given up, of every topic and table.",
            actions: button("Refresh", load),
        }),
        body,
    );
    load();
}

export function letters({ main, signal, segments: [, source], params, setParams }) {
    const chosen = selection(
        (each) => String(each.id),
        (count) => bar.draw(count),
    );
    const { database, ...named } = params;
    const bar = actionBar({
        noun: "dead letters",
        verbs: VERBS,
        where: (verb) => path`/v1/ops/dead-letters/${source}/${verb}`,
        filter: () => ({ state: "open", ...named }),
        common: () => (database ? { database } : {}),
        chosen: () => chosen.items(),
        onDone: () => list.load(),
    });
    const list = pages({
        label: "Dead letters",
        signal,
        select: chosen,
        columns: [
            {
                label: "Letter",
                cell: (each) =>
                    h(
                        "a",
                        {
                            href: hrefOf([source, each.id], { database }),
                        },
                        id(each.id),
                    ),
            },
            { label: "State", cell: (each) => badge(each.state) },
            { label: "At", cell: (each) => format.time(each.at) },
            { label: "Reason", class: "wide", cell: (each) => data(each.reason, { max: 160 }) },
            { label: "Topic", cell: (each) => data(each.topic) },
            { label: "Partition", class: "number", cell: (each) => format.number(each.partition) },
            { label: "Offset", class: "number", cell: (each) => data(each.offset) },
            { label: "Key", cell: (each) => data(each.key, { max: 60 }) },
            { label: "Tenant", name: "tenant_id" },
            { label: "Size", class: "number", cell: (each) => format.bytes(each.bytes) },
        ],
        ask: (cursor, limit) => getOps(path`/v1/ops/dead-letters/${source}`, { ...params, cursor, limit }, signal),
        none: {
            title: "No dead letter matches",
            text: "Letters that were requeued or discarded have their own states.",
        },
    });
    main.append(
        heading(data(source), {
            back: { href: "#/dead-letters", text: "Dead letters" },
            actions: button("Refresh", () => list.load()),
        }),
        filters(FILTERS, { params, setParams }),
        bar,
        list,
    );
}

export function letter({ main, signal, segments: [, source, message], params }) {
    const body = h("div");
    const where = path`/v1/ops/dead-letters/${source}/${message}`;
    const load = loader(
        body,
        () => getOps(where, { database: params.database }, signal),
        (found) => [
            section(
                "Letter",
                facts([
                    ["State", badge(found.state)],
                    ["Reason", found.reason],
                    ["At", format.time(found.at)],
                    ["Tenant", found.tenant_id],
                    ["Topic", found.topic],
                    ["Partition", format.number(found.partition)],
                    ["Offset", found.offset],
                    ["Key", found.key],
                    ["Event id", found.event_id],
                    ["Size", format.bytes(found.bytes)],
                ]),
            ),
            section("Payload", payload(found)),
            found.headers && section("Headers", json(found.headers)),
        ],
        signal,
    );
    const verbs = VERBS.map((verb) =>
        button(
            verb.text,
            () =>
                change({
                    ...verb,
                    verb: verb.text,
                    noun: "dead letters",
                    where: path`/v1/ops/dead-letters/${source}/${verb.verb}`,
                    body: { ids: [message], ...(params.database ? { database: params.database } : {}) },
                    onDone: load,
                }),
            { class: verb.danger ? "danger-text" : null },
        ),
    );
    main.append(
        heading(data(message, { max: 100 }), { back: { href: hrefOf([source]), text: source }, actions: verbs }),
        body,
    );
    load();
}
