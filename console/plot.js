// Plots over time as SVG, of points that the page has seen. Every plot has its figures as text too.
import { fill, h, svg } from "./dom.js";
import { clockTime } from "./format.js";

const SPAN_MS = 5 * 60 * 1000;
const GAP_MS = 7000; // no line between points further apart: nothing was seen in between
const ROOM = { left: 60, right: 14, top: 12, bottom: 26 };

/** Lines of an axis: 0 and up to four more at round numbers. */
export function ticks(max) {
    if (!(max > 0)) return [0, 1];
    const rough = max / 4;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * unit).find((each) => each >= rough);
    const found = [];
    for (let at = 0; at < max + step; at += step) found.push(Number(at.toPrecision(6)));
    return found;
}

/** A path through points [x, y, at]; it breaks where a value is missing or time has passed unseen. */
function line(points) {
    let path = "";
    let before = null;
    for (const [x, y, at] of points) {
        if (y === null) {
            before = null;
            continue;
        }
        path += `${before !== null && at - before < GAP_MS ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
        before = at;
    }
    return path;
}

/** series: [{name, key, class}], of points {at, …}; format: of a value. The element has draw(points). */
export function timePlot({ label, series, format, height = 220 }) {
    const picture = svg("svg", { role: "img", "aria-label": label, height, class: "plot" });
    const readout = h("p", { class: "plot-read" });
    const legend = h(
        "ul",
        { class: "legend" },
        series.map((each) =>
            h(
                "li",
                null,
                h("span", { class: `swatch ${each.class}`, "aria-hidden": "true" }),
                each.name,
                " ",
                (each.value = h("b", null, "–")),
            ),
        ),
    );
    const element = h("figure", { class: "plot-box" }, h("figcaption", null, legend), picture, readout);
    let shown = [];

    const width = () => Math.max(280, picture.clientWidth || 280);
    const xOf = (at, now) => ROOM.left + (width() - ROOM.left - ROOM.right) * (1 - (now - at) / SPAN_MS);

    function axis(max, yOf, now) {
        const parts = ticks(max).map((value) =>
            svg(
                "g",
                null,
                svg("line", { class: "grid", x1: ROOM.left, x2: width() - ROOM.right, y1: yOf(value), y2: yOf(value) }),
                svg(
                    "text",
                    { class: "tick", x: ROOM.left - 8, y: yOf(value) + 4, "text-anchor": "end" },
                    format(value),
                ),
            ),
        );
        const step = width() > 500 ? 1 : 2;
        for (let minute = 0; minute <= 5; minute += step) {
            parts.push(
                svg(
                    "text",
                    {
                        class: "tick",
                        x: xOf(now - minute * 60000, now),
                        y: height - 6,
                        "text-anchor": minute ? "middle" : "end",
                    },
                    minute ? `${minute} min ago` : "now",
                ),
            );
        }
        return parts;
    }

    function draw(points) {
        const now = points.at(-1)?.at ?? Date.now();
        shown = points.filter((point) => now - point.at <= SPAN_MS);
        const values = shown
            .flatMap((point) => series.map((each) => point[each.key]))
            .filter((value) => value !== null);
        const top = ticks(Math.max(0, ...values)).at(-1);
        const yOf = (value) => ROOM.top + (height - ROOM.top - ROOM.bottom) * (1 - value / top);
        picture.setAttribute("viewBox", `0 0 ${width()} ${height}`);
        fill(
            picture,
            axis(Math.max(0, ...values), yOf, now),
            series.map((each) =>
                svg("path", {
                    class: `line ${each.class}`,
                    d: line(
                        shown.map((point) => [
                            xOf(point.at, now),
                            point[each.key] === null ? null : yOf(point[each.key]),
                            point.at,
                        ]),
                    ),
                }),
            ),
            values.length === 0 &&
                svg(
                    "text",
                    { class: "tick", x: width() / 2, y: height / 2, "text-anchor": "middle" },
                    "Nothing measured yet",
                ),
        );
        for (const each of series) fill(each.value, format(shown.at(-1)?.[each.key] ?? NaN));
        picture.setAttribute(
            "aria-label",
            `${label}: ${series.map((each) => `${each.name} ${each.value.textContent}`).join(", ")}`,
        );
    }

    /** The point below the pointer, as text. */
    function read(event) {
        if (!shown.length) return;
        const box = picture.getBoundingClientRect();
        const now = shown.at(-1).at;
        const x = (event.clientX - box.left) * (width() / box.width);
        const distance = (point) => Math.abs(xOf(point.at, now) - x);
        const point = shown.reduce((best, each) => (distance(each) < distance(best) ? each : best));
        fill(
            readout,
            `${clockTime(point.at)}: ${series.map((each) => `${each.name} ${format(point[each.key] ?? NaN)}`).join(", ")}`,
        );
        picture.querySelector(".cursor")?.remove();
        picture.append(
            svg("line", {
                class: "cursor",
                x1: xOf(point.at, now),
                x2: xOf(point.at, now),
                y1: ROOM.top,
                y2: height - ROOM.bottom,
            }),
        );
    }

    function leave() {
        fill(readout);
        picture.querySelector(".cursor")?.remove();
    }
    picture.addEventListener("pointermove", read);
    picture.addEventListener("pointerleave", leave);
    element.draw = draw;
    return element;
}

/** A small line without axes, beside a number. */
export function sparkline(points, key, width = 120, height = 28) {
    const now = points.at(-1)?.at ?? 0;
    const shown = points.filter((point) => now - point.at <= SPAN_MS && point[key] !== null);
    const max = Math.max(1e-9, ...shown.map((point) => point[key]));
    const path = line(
        shown.map((point) => [
            width * (1 - (now - point.at) / SPAN_MS),
            height - 2 - (height - 4) * (point[key] / max),
            point.at,
        ]),
    );
    return svg(
        "svg",
        { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "line a", d: path }),
    );
}
