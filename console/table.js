// Tables of rows from the API: one page at a time, however many rows there are.
import { data, fill, h } from "./dom.js";
import { announce, button, empty, failure, loading, unavailable } from "./parts.js";

const PAGE = matchMedia("(max-width: 640px)").matches ? 20 : 50;

const cellOf = (column, item) => {
    const value = column.cell ? column.cell(item) : item[column.name];
    return value instanceof Node ? value : data(value);
};

function head(columns, select) {
    return h(
        "thead",
        { role: "rowgroup" },
        h(
            "tr",
            { role: "row" },
            select &&
                h(
                    "th",
                    { role: "columnheader", scope: "col", class: "select" },
                    h("input", {
                        type: "checkbox",
                        "aria-label": "Select all rows of this page",
                        onchange: (event) => select.all(event.target.checked),
                    }),
                ),
            columns.map((column) => h("th", { role: "columnheader", scope: "col", class: column.class }, column.label)),
        ),
    );
}

function row(columns, item, select) {
    return h(
        "tr",
        { role: "row" },
        select &&
            h(
                "td",
                { role: "cell", class: "select" },
                h("input", {
                    type: "checkbox",
                    "aria-label": `Select ${select.nameOf(item)}`,
                    checked: select.has(item),
                    onchange: (event) => select.set(item, event.target.checked),
                }),
            ),
        columns.map((column, at) =>
            h(
                at === 0 ? "th" : "td",
                { role: at === 0 ? "rowheader" : "cell", scope: at === 0 ? "row" : null, class: column.class },
                h("span", { class: "cell-label", "aria-hidden": "true" }, column.label),
                h("span", { class: "cell" }, cellOf(column, item)),
            ),
        ),
    );
}

/** Rows that are there already. columns: {label, name | cell(item), class: "number" | "wide"}. */
export const table = (label, columns, items, select) =>
    scroller(
        label,
        h(
            "table",
            { role: "table", "aria-label": label },
            head(columns, select),
            h(
                "tbody",
                { role: "rowgroup" },
                items.map((item) => row(columns, item, select)),
            ),
        ),
    );

/** A table wider than its place scrolls: then it is a stop of the Tab key, and has a shadow where there is more. */
function scroller(label, content) {
    const element = h("div", { class: "table", onscroll: shade }, content);
    function shade() {
        const hidden = element.scrollWidth - element.clientWidth;
        element.classList.toggle("more-left", element.scrollLeft > 1);
        element.classList.toggle("more-right", element.scrollLeft < hidden - 1);
    }
    new ResizeObserver(() => {
        shade();
        if (element.scrollWidth <= element.clientWidth)
            return ["tabindex", "role", "aria-label"].forEach((name) => element.removeAttribute(name));
        element.setAttribute("tabindex", "0");
        element.setAttribute("role", "region");
        element.setAttribute("aria-label", `${label}, scrolls sideways`);
    }).observe(element);
    return element;
}

/** Which rows are chosen; forgotten when the page changes. */
export function selection(nameOf, onChange) {
    const chosen = new Map();
    let shown = [];
    return {
        nameOf,
        has: (item) => chosen.has(nameOf(item)),
        set(item, on) {
            if (on) chosen.set(nameOf(item), item);
            else chosen.delete(nameOf(item));
            onChange(chosen.size);
        },
        all(on) {
            for (const item of shown)
                if (on) chosen.set(nameOf(item), item);
                else chosen.delete(nameOf(item));
            for (const box of this.element?.querySelectorAll("tbody input[type=checkbox]") ?? []) box.checked = on;
            onChange(chosen.size);
        },
        show(items, element) {
            chosen.clear();
            shown = items;
            this.element = element;
            onChange(0);
        },
        items: () => [...chosen.values()],
    };
}

/** Pages of a list of the API. ask(cursor, limit) → {items, next_cursor, unavailable}. Its element has load(): the same page again. */
export function pages({ label, columns, ask, none, select, signal, limit = PAGE }) {
    const element = h("div", { class: "pages" });
    const cursors = [null]; // of this page and of those before it
    let round = 0;

    function pager(found) {
        const at = cursors.length;
        if (at === 1 && !found.next_cursor) return null;
        return h(
            "nav",
            { class: "pager", "aria-label": `Pages of ${label}` },
            button(
                "Previous",
                () => {
                    cursors.pop();
                    turn();
                },
                { disabled: at === 1 },
            ),
            h("span", null, `Page ${at}`),
            button(
                "Next",
                () => {
                    cursors.push(found.next_cursor);
                    turn();
                },
                { disabled: !found.next_cursor },
            ),
        );
    }

    async function turn() {
        await load();
        announce(`${label}: page ${cursors.length}`);
        element.querySelector(".pager button:not(:disabled)")?.focus({ preventScroll: true });
    }

    function draw(found) {
        const shown = found.items.length ? table(label, columns, found.items, select) : empty(none.title, none.text, found.unavailable);
        fill(element, unavailable(found.unavailable), shown, pager(found));
        select?.show(found.items, element);
    }

    async function load() {
        const mine = ++round;
        if (!element.hasChildNodes()) fill(element, loading());
        element.setAttribute("aria-busy", "true");
        try {
            const found = await ask(cursors.at(-1), limit);
            if (mine === round && !signal.aborted) draw(found);
        } catch (error) {
            if (signal.aborted) return;
            if (!("status" in error)) throw error;
            if (mine === round) fill(element, failure(error, load));
        } finally {
            if (mine === round) element.removeAttribute("aria-busy");
        }
    }
    element.load = load;
    load();
    return element;
}
