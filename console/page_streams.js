// Streams: those that are open, and one chat as it goes on.
import { getOps, path } from "./api.js";
import { data, fill, h, plain } from "./dom.js";
import * as format from "./format.js";
import { follow } from "./live.js";
import { badge, button, empty, field, heading, section } from "./parts.js";
import { pages } from "./table.js";

const EVENTS_MAX = 500; // that are shown

export function streams({ main, signal, navigate }) {
    const list = pages({
        label: "Streams",
        signal,
        columns: [
            { label: "Stream", cell: (each) => data(each.name, { max: 120 }), class: "wide" },
            { label: "Kind", name: "kind" },
            { label: "Readers", class: "number", cell: (each) => format.number(each.readers) },
            { label: "Position", class: "number", cell: (each) => data(each.position) },
            { label: "Buffered", class: "number", cell: (each) => format.bytes(each.bytes) },
            { label: "Tenant", name: "tenant_id" },
            { label: "Process", cell: (each) => data(each.pod_id, { max: 60 }) },
        ],
        ask: (cursor, limit) => getOps("/v1/ops/streams", { cursor, limit }, signal),
        none: { title: "No stream is open", text: "A stream is listed while somebody reads it." },
    });
    const form = h(
        "form",
        {
            class: "filters",
            onsubmit: (event) => {
                event.preventDefault();
                const { project, session } = event.target.elements;
                navigate("streams", project.value.trim(), session.value.trim());
            },
        },
        field("Project", "text", "", { name: "project", required: true, placeholder: "UUID" }),
        field("Session", "text", "", { name: "session", required: true, placeholder: "UUID" }),
        h("div", { class: "field-buttons" }, h("button", { type: "submit" }, "Follow")),
    );
    main.append(
        heading("Streams", {
            lead: "Readers of chats and of dictionaries, and what is kept for them.",
            actions: button("Refresh", () => list.load()),
        }),
        section(
            "Follow a chat",
            h("p", { class: "muted" }, "A session belongs to one user: the token must be that user's."),
            form,
        ),
        section("Open streams", list),
    );
}

function entry(event) {
    const payload = event.payload ?? {};
    if (event.event_type === "agent_switched") {
        return h(
            "li",
            { class: "switch" },
            "The agent changed from ",
            data(payload.from, { empty: "none" }),
            " to ",
            data(payload.to),
        );
    }
    const role = ["user", "assistant", "system"].includes(payload.role) ? payload.role : "other";
    return h(
        "li",
        { class: `message ${role}` },
        h(
            "p",
            { class: "message-head" },
            h("b", null, data(payload.role ?? event.event_type)),
            h("span", { class: "muted" }, ` #${event.sequence} `, format.time(event.created_at)),
        ),
        h("div", { class: "message-text" }, data(payload.content ?? JSON.stringify(payload), { max: 1500 })),
    );
}

export function chat({ main, signal, segments: [, project, session] }) {
    const state = h("p", { class: "live-state", "aria-live": "polite" }, badge("waiting"), " connecting…");
    const messages = h("ol");
    const log = h("div", { class: "chat", role: "log", "aria-label": "Messages", tabindex: "0" }, messages);
    const none = empty("No message yet", "Messages appear here as they are published.");
    let after;
    let isStuckToEnd = true; // the reader follows; scrolling up stops it
    log.addEventListener("scroll", () => {
        isStuckToEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    });

    function show(event) {
        if (typeof event.sequence === "number") after = Math.max(after ?? 0, event.sequence);
        if (!event.event_id) return;
        none.remove();
        messages.append(entry(event));
        while (messages.childElementCount > EVENTS_MAX) messages.firstElementChild.remove();
        if (isStuckToEnd) log.scrollTop = log.scrollHeight;
    }

    function tell(how, error) {
        const text = {
            live: " new messages appear by themselves",
            waiting: " the stream is opened again",
            ended: ` ${error?.message ?? "the stream has ended"}`,
        }[how];
        fill(state, badge(how), plain(text));
    }

    main.append(
        heading("Chat", {
            back: { href: "#/streams", text: "Streams" },
            lead: `Session ${plain(session)} of project ${plain(project)}`,
        }),
        state,
        log,
        none,
    );
    follow(
        {
            open: () => ({ where: path`/my/projects/${project}/chat/${session}/stream`, params: { after } }),
            onLine: show,
            onState: tell,
            onRefusal: (error) => {
                const isOld = error.status === 410;
                if (isOld) after = undefined;
                return isOld;
            },
        },
        signal,
    );
}
