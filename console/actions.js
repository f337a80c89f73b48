// Changes: a dialog that shows what would change, asks for the reason, and only then changes it.
import { chosenTenant, postOps } from "./api.js";
import { fill, h } from "./dom.js";
import { number } from "./format.js";
import { button, failure, toast, inDatabase } from "./parts.js";

const REASON_MAX = 500;

/** A modal dialog; the browser keeps the focus inside and gives it back. content(close) → nodes. */
export function dialog(title, content) {
    const element = h("dialog", { "aria-labelledby": "dialog-title" });
    const close = () => element.close();
    element.append(h("h2", { id: "dialog-title" }, title), h("div", { class: "dialog-body" }, content(close)));
    element.addEventListener("close", () => element.remove());
    document.body.append(element);
    element.showModal();
    return element;
}

/** What a dry run found, in words. */
function forecast(found, noun) {
    if (!found.matched) return h("p", { class: "note warn" }, `Nothing matches now: no ${noun} would be changed.`);
    return h(
        "p",
        { class: "note" },
        found.more && "At least ",
        h("b", null, number(found.matched)),
        ` ${noun} match and would be changed.`,
    );
}

/** What was done, in words. */
function outcomeOf(done, verb, noun) {
    if (done.changed === undefined) return `${verb}: done.`;
    const more = done.more ? " More of them match: repeat it for the rest." : "";
    return `${verb}: ${number(done.changed)} of ${number(done.matched)} ${noun} changed.${more}`;
}

/** Asks before {title, verb, noun, explain, where, body, tenant, onDone}: dry run, reason, change. `body` has ids or a filter. */
export function change({ title, verb, noun, explain, danger, where, body, onDone, tenant }) {
    dialog(title, (close) => {
        const preview = h("div", { "aria-live": "polite" }, h("p", { class: "loading" }, "Looking what would change…"));
        const reason = h("textarea", {
            id: "reason",
            rows: "2",
            maxlength: REASON_MAX,
            required: true,
            "aria-describedby": "reason-help",
        });
        const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: true }, verb);
        const outcome = h("div", { "aria-live": "assertive" });

        async function tryOut() {
            try {
                const found = await postOps(where, { ...body, dry_run: true, reason: "dry run" }, tenant);
                fill(preview, forecast(found, noun));
                go.disabled = !found.matched;
            } catch (error) {
                if (!("status" in error)) throw error;
                fill(preview, failure(error, tryOut));
            }
        }

        async function submit(event) {
            event.preventDefault();
            const text = reason.value.trim();
            if (!text) {
                fill(outcome, h("p", { class: "note bad" }, "Please write down why: the reason is kept in the audit."));
                reason.focus();
                return;
            }
            go.disabled = true;
            fill(outcome, h("p", { class: "loading" }, "Working…"));
            try {
                const done = await postOps(where, { ...body, dry_run: false, reason: text }, tenant);
                close();
                toast(outcomeOf(done, verb, noun));
                onDone?.(done);
            } catch (error) {
                if (!("status" in error)) throw error;
                go.disabled = false;
                fill(outcome, failure(error));
            }
        }

        tryOut();
        return h(
            "form",
            { onsubmit: submit, novalidate: true },
            h("p", null, explain),
            chosenTenant() === "*" && h("p", { class: "muted" }, "Tenants: all."),
            preview,
            h(
                "div",
                { class: "field" },
                h("label", { for: "reason" }, "Reason"),
                reason,
                h("p", { id: "reason-help", class: "muted" }, "Kept in the audit, with your name and the time."),
            ),
            outcome,
            h("div", { class: "dialog-buttons" }, button("Cancel", close), go),
        );
    });
}

/** Rows that were chosen as the body of a request. Ids are those of one database. */
function bodyOf(items) {
    const databases = new Set(items.map((item) => item.database).filter(Boolean));
    if (databases.size > 1) return null;
    return { ids: items.map((item) => item.id), ...inDatabase([...databases][0]) };
}

/** The bar above a table whose rows can be chosen. verbs: [{verb, text, danger, explain, title}]; filter() and chosen() are what is
 *  changed, common() what is sent with both. Its element has draw(count). */
export function actionBar({ noun, verbs, filter, common, chosen, where, onDone }) {
    const bar = h("div", { class: "action-bar", role: "group", "aria-label": `Actions on ${noun}` });
    function start(verb, isChosen) {
        const body = isChosen ? bodyOf(chosen()) : { filter: filter() };
        if (!body) return toast("Please select rows of one database only.", "bad");
        change({ ...verb, verb: verb.text, noun, where: where(verb.verb), body: { ...common(), ...body }, onDone });
    }
    bar.hidden = verbs.length === 0;
    bar.draw = (count) =>
        fill(
            bar,
            h("span", { class: "muted" }, count ? `${number(count)} selected:` : "All that match the filter:"),
            verbs.map((verb) =>
                button(verb.text, () => start(verb, count > 0), {
                    class: verb.danger ? "danger-text" : null,
                    "aria-label": `${verb.text} ${count ? "the selected" : "all matching"} ${noun}`,
                }),
            ),
        );
    bar.draw(0);
    return bar;
}
