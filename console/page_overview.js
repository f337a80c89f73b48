// The overview: how fresh, how much, what is wrong, and which processes there are.
import { get } from "./api.js";
import { data, fill, h } from "./dom.js";
import * as format from "./format.js";
import { last, onOverview, points } from "./live.js";
import { announce, badge, button, empty, failure, heading, loader, loading, section, stack, unavailable } from "./parts.js";
import { sparkline, timePlot } from "./plot.js";
import { table } from "./table.js";

const SLOW_MS = 10000; // how often processes and lag are asked again, with the overview

const tile = ({ label, value, note, href, tone, spark }) =>
    h(
        href ? "a" : "div",
        { class: `tile ${tone ?? ""}`, href },
        h("span", { class: "tile-label" }, label),
        h("span", { class: "tile-value" }, value),
        h("span", { class: "tile-note" }, note ?? "", spark),
    );

function tiles(now) {
    const oldest = (age) => (typeof age === "number" ? `oldest ${format.seconds(age)}` : "none waits");
    const failed = format.countOf(now.updates?.failed_last_hour);
    const letters = format.countOf(now.dead_letters);
    const outbox = now.outboxes ?? {};
    const isPartial = now.unavailable?.length > 0; // then a zero is not known
    const shown = (each) =>
        tile(isPartial && each.value === "0" ? { ...each, value: "–", note: "not known now" } : each);
    return h(
        "div",
        { class: "tiles" },
        shown({ label: "Reads a second", value: format.rate(now.reads_per_second), spark: sparkline(points, "reads") }),
        shown({
            label: "Writes a second",
            value: format.rate(now.writes_per_second),
            spark: sparkline(points, "writes"),
        }),
        shown({ label: "Lag", value: format.compact(now.lag?.max_messages), note: "messages, at most" }),
        shown({
            label: "Updates pending",
            value: format.count(now.updates?.pending),
            note: oldest(now.updates?.oldest_pending_age_seconds),
            href: "#/updates?status=PENDING",
        }),
        shown({
            label: "Updates failed",
            value: format.count(now.updates?.failed_last_hour),
            note: "in the last hour",
            href: "#/updates?status=FAILED",
            tone: failed ? "warn" : "",
        }),
        shown({
            label: "Outboxes",
            value: format.count(outbox.pending),
            note: `${format.count(outbox.failed)} failed, ${format.count(outbox.in_flight)} in flight`,
            href: "#/outboxes",
            tone: format.countOf(outbox.failed) ? "bad" : "",
        }),
        shown({
            label: "Dead letters",
            value: format.count(now.dead_letters),
            note: letters ? "to be looked at" : "none",
            href: "#/dead-letters",
            tone: letters ? "bad" : "",
        }),
        shown({
            label: "Processes",
            value: format.number(now.pods?.up),
            note: now.pods?.gone ? `${now.pods.gone} gone` : "all report",
            tone: now.pods?.gone ? "warn" : "",
        }),
    );
}

function problems(list) {
    if (!list?.length) return empty("Nothing is wrong", "No problem is known to the processes that report.");
    const rank = (each) => (each.severity === "critical" ? 0 : 1);
    return h(
        "ul",
        { class: "problems" },
        [...list]
            .sort((a, b) => rank(a) - rank(b))
            .map((each) =>
                h(
                    "li",
                    { class: each.severity === "critical" ? "bad" : "warn" },
                    badge(each.severity),
                    h(
                        "div",
                        null,
                        h("p", null, data(each.what)),
                        each.help && h("p", { class: "muted" }, data(each.help)),
                    ),
                ),
            ),
    );
}

const engines = (list) =>
    table(
        "Engines",
        [
            {
                label: "Engine",
                cell: (each) =>
                    h(
                        "span",
                        null,
                        data(format.engine(each.name)),
                        each.database && [" ", h("span", { class: "muted" }, data(each.database))],
                    ),
            },
            { label: "State", cell: (each) => badge(each.state) },
            { label: "Carries", cell: (each) => data((each.flows ?? []).join(", ")) },
            { label: "Detail", name: "detail", class: "wide" },
        ],
        list ?? [],
    );

const roles = (list, away) =>
    !list?.length
        ? empty("No process has reported yet", null, away)
        : h(
              "ul",
              { class: "roles" },
              list.map((each) =>
                  h(
                      "li",
                      null,
                      badge(each.up > 0 ? "up" : "down"),
                      data(each.role),
                      h("span", { class: "muted" }, `${format.number(each.up)} of ${format.number(each.pods)}`),
                  ),
              ),
          );

const pods = ({ items, unavailable: away }) =>
    items.length === 0
        ? empty("No process has reported yet", null, away)
        : table(
              "Processes",
              [
                  {
                      label: "Process",
                      cell: (each) =>
                          h(
                              "span",
                              { class: "stack" },
                              data(each.pod_id, { max: 60 }),
                              h("span", { class: "muted" }, data(each.address), " · ", data(each.version)),
                          ),
                  },
                  { label: "State", cell: (each) => badge(each.state) },
                  { label: "Roles", cell: (each) => data((each.roles ?? []).join(", ")), class: "wide" },
                  { label: "Reads/s", class: "number", cell: (each) => format.rate(each.reads_per_second) },
                  { label: "Writes/s", class: "number", cell: (each) => format.rate(each.writes_per_second) },
                  {
                      label: "Memory",
                      class: "number",
                      cell: (each) =>
                          h(
                              "span",
                              { class: "stack" },
                              format.bytes(each.memory_used_bytes),
                              h("span", { class: "muted" }, `of ${format.bytes(each.memory_limit_bytes)}`),
                          ),
                  },
                  { label: "Connections", class: "number", cell: (each) => format.number(each.connections) },
                  { label: "Streams", class: "number", cell: (each) => format.number(each.streams) },
                  {
                      label: "Last seen",
                      cell: (each) =>
                          stack(format.time(each.seen_at), h("span", null, "started ", format.time(each.started_at))),
                  },
              ],
              items,
          );

/** Partitions of one topic and group as one row: their sum, and the newest error. */
function byGroup(items) {
    const groups = new Map();
    for (const each of items) {
        const name = JSON.stringify([each.database, each.engine, each.topic, each.group]);
        const group = groups.get(name) ?? { ...each, lag: 0, partitions: 0, last_error: null };
        group.lag += each.lag ?? 0;
        group.partitions += 1;
        group.last_error = each.last_error ?? group.last_error;
        groups.set(name, group);
    }
    return [...groups.values()].sort((a, b) => b.lag - a.lag);
}

const lag = ({ items, unavailable: away }) => [
    unavailable(away),
    !items.length
        ? empty("No consumer has reported", "Lag is shown for each topic and group that is read.", away)
        : table(
              "Lag",
              [
                  { label: "Topic", name: "topic" },
                  { label: "Group", name: "group" },
                  {
                      label: "Engine",
                      cell: (each) => data([format.engine(each.engine), each.database].filter(Boolean).join(", ")),
                  },
                  { label: "Partitions", class: "number", cell: (each) => format.number(each.partitions) },
                  { label: "Lag", class: "number", cell: (each) => format.number(each.lag) },
                  { label: "Last error", class: "wide", cell: (each) => data(each.last_error, { empty: "none" }) },
                  { label: "As of", cell: (each) => format.time(each.at) },
              ],
              byGroup(items),
          ),
];

export function overview({ main, signal }) {
    const plot = timePlot({
        label: "Freshness of the last five minutes",
        format: format.millis,
        series: [
            { name: "median", key: "p50", class: "a" },
            { name: "99th percentile", key: "p99", class: "b" },
        ],
    });
    const parts = Object.fromEntries(
        ["tiles", "problems", "engines", "roles", "pods", "lag"].map((name) => [name, h("div", { class: "part" })]),
    );
    const loadPods = loader(parts.pods, () => get("/v1/ops/pods", { limit: 100 }, signal), pods, signal);
    const loadLag = loader(parts.lag, () => get("/v1/ops/lag", { limit: 500 }, signal), lag, signal);
    let slow = 0;
    let spoken = "";

    function draw({ overview: now, error }) {
        if (!now) return fill(parts.tiles, error ? failure(error) : loading());
        fill(parts.tiles, unavailable(now.unavailable), tiles(now));
        fill(parts.problems, problems(now.problems));
        fill(parts.engines, engines(now.engines));
        fill(parts.roles, roles(now.roles, now.unavailable));
        plot.draw(points);
        const said = `${now.problems?.length ?? 0} problems`;
        if (said !== spoken && spoken) announce(said);
        spoken = said;
        if (Date.now() - slow >= SLOW_MS && !error) {
            slow = Date.now();
            loadPods();
            loadLag();
        }
    }

    main.append(
        heading("Overview", { lead: "All processes and databases, every two seconds." }),
        parts.tiles,
        h(
            "div",
            { class: "columns uneven" },
            section("Freshness", h("p", { class: "muted" }, "From the commit of a change until readers see it."), plot),
            section("Problems", parts.problems),
        ),
        h("div", { class: "columns uneven" }, section("Engines", parts.engines), section("Roles", parts.roles)),
        h(
            "div",
            { class: "columns of-tables" },
            section("Processes", parts.pods),
            section("Lag", button("Refresh", loadLag, { class: "quiet section-action" }), parts.lag),
        ),
    );
    onOverview(draw, signal);
    addEventListener("resize", () => plot.draw(points), { signal });
    draw(last);
    plot.draw(points);
}
