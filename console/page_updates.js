// Updates: those that match a filter, and the way of one from POST to the readers.
import { get, getOps, path } from "./api.js";
import { data, h, id, json, svg } from "./dom.js";
import * as format from "./format.js";
import { badge, button, empty, facts, filters, heading, loader, section, stack, to } from "./parts.js";
import { pages } from "./table.js";

const FILTERS = [
    { name: "status", label: "Status", kind: [["", "any"], "PENDING", "COMMITTED", "FAILED"] },
    { name: "dict", label: "Dictionary", kind: "search" },
    { name: "error_code", label: "Error code", kind: "search" },
    { name: "event_id", label: "Event id", kind: "search" },
    { name: "from", label: "From", kind: "time" },
    { name: "to", label: "To", kind: "time" },
];

const hrefOf = (each) => to(["updates", each.tenant_id, each.event_id]);

export function updates({ main, signal, params, setParams }) {
    const list = pages({
        label: "Updates",
        signal,
        columns: [
            { label: "Update", cell: (each) => h("a", { href: hrefOf(each) }, id(each.event_id)) },
            { label: "Status", cell: (each) => badge(each.status) },
            { label: "Dictionary", cell: (each) => stack(each.dict_code, data(each.tenant_id)) },
            { label: "Type", cell: (each) => data(each.event_type) },
            { label: "Version", class: "number", cell: (each) => format.number(each.committed_version) },
            {
                label: "Created",
                cell: (each) => stack(format.time(each.created_at), `${format.seconds(each.age_seconds)} ago`),
            },
            { label: "Requested by", name: "requested_by" },
            {
                label: "Error",
                class: "wide",
                cell: (each) =>
                    data(each.error_code ? `${each.error_code}: ${each.error_message ?? ""}` : null, {
                        max: 160,
                        empty: "none",
                    }),
            },
        ],
        ask: (cursor, limit) => getOps("/v1/ops/updates", { ...params, cursor, limit }, signal),
        none: { title: "No update matches", text: "Change the filter, or wait for the next update." },
    });
    main.append(
        heading("Updates", { lead: "Newest first.", actions: button("Refresh", () => list.load()) }),
        filters(FILTERS, { params, setParams }),
        list,
    );
}

const STEPS = {
    accepted: "Accepted and stored with its message",
    queued: "Queued for the process that applies it",
    applied: "Applied: your SQL, the version and the outbox row, in one transaction",
    published: "Published to the readers' processes",
    loaded: "Loaded: readers of this process see it",
};

function timeline(steps) {
    if (!steps?.length) return empty("No step is known", "The steps of this update are no longer kept.");
    const longest = Math.max(1, ...steps.map((step) => step.after_ms ?? 0));
    return h(
        "ol",
        { class: "timeline" },
        steps.map((step) =>
            h(
                "li",
                null,
                h(
                    "div",
                    { class: "timeline-head" },
                    h("b", null, data(step.step)),
                    h("span", { class: "timeline-ms" }, `+${format.millis(step.after_ms ?? 0)}`),
                ),
                svg(
                    "svg",
                    { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
                    svg("rect", { width: (100 * (step.after_ms ?? 0)) / longest, height: 1 }),
                ),
                h(
                    "p",
                    { class: "muted" },
                    STEPS[step.step] ?? "",
                    step.pod_id && [" · ", data(step.pod_id)],
                    " · ",
                    format.time(step.at),
                ),
            ),
        ),
    );
}

function carrier(update) {
    if (update.carrier)
        return [
            update.carrier.apply_is_run === false &&
                h("p", { class: "note bad" }, "No process runs the role apply: the update waits until one does."),
            json(update.carrier),
        ];
    return update.status === "PENDING"
        ? h(
              "p",
              { class: "note bad" },
              "Nothing will decide this update: no message and no row carries it. freshet verify --books names the command that helps.",
          )
        : h("p", { class: "muted" }, "It is decided: nothing carries it any more.");
}

export function update({ main, signal, segments: [, tenant, event] }) {
    const body = h("div");
    const load = loader(
        body,
        () => get(path`/v1/ops/updates/${tenant}/${event}`, {}, signal),
        (found) => [
            section(
                "Update",
                facts([
                    ["Status", badge(found.status)],
                    ["Tenant", found.tenant_id],
                    [
                        "Dictionary",
                        h(
                            "a",
                            {
                                href: to(["dictionaries", found.tenant_id, found.dict_code]),
                            },
                            data(found.dict_code),
                        ),
                    ],
                    ["Type", found.event_type],
                    ["Version", format.number(found.committed_version)],
                    ["Requested by", found.requested_by],
                    ["Source", found.source],
                    ["Created", format.time(found.created_at)],
                    ["Last change", format.time(found.updated_at)],
                    ["Age", format.seconds(found.age_seconds)],
                    found.error_code && ["Error", `${found.error_code}: ${found.error_message ?? ""}`],
                ]),
            ),
            section("Timeline", timeline(found.timeline)),
            section("Carried by", carrier(found)),
        ],
        signal,
    );
    main.append(
        heading(data(event, { max: 100 }), {
            back: { href: "#/updates", text: "Updates" },
            actions: button("Refresh", load),
        }),
        body,
    );
    load();
}
