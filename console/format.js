// Numbers, sizes, times and spans of time, as people read them.
import { h } from "./dom.js";

const DASH = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value) => (isNumber(value) ? whole.format(value) : DASH);

/** 1234567 → 1.2M; small ones as they are. */
export const compact = (value) => (!isNumber(value) ? DASH : value < 10000 ? whole.format(value) : short.format(value));

/** A rate: 0.4, 12, 1.2K. */
export function rate(value) {
    if (!isNumber(value)) return DASH;
    return value > 0 && value < 10 ? value.toFixed(1) : compact(value);
}

/** {"count","more"}: counted so far. */
export function count(value) {
    if (isNumber(value)) return compact(value);
    if (!value || !isNumber(value.count)) return DASH;
    return value.more ? `${whole.format(value.count)}+` : whole.format(value.count);
}

/** 1 process, 2 processes. */
export const plural = (value, one, many) => `${number(value)} ${value === 1 ? one : many}`;

export const countOf = (value) => (isNumber(value) ? value : (value?.count ?? 0));

export function bytes(value) {
    if (!isNumber(value)) return DASH;
    let unit = 0;
    for (; value >= 1024 && unit < 5; unit++) value /= 1024;
    return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** Milliseconds: 0.4 ms, 12 ms, 3.1 s, 2 min. */
export function millis(value) {
    if (!isNumber(value)) return DASH;
    if (value < 1000) return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
    return seconds(value / 1000);
}

export function seconds(value) {
    if (!isNumber(value)) return DASH;
    if (value < 10) return `${value.toFixed(1)} s`;
    if (value < 120) return `${Math.round(value)} s`;
    if (value < 7200) return `${Math.round(value / 60)} min`;
    if (value < 172800) return `${Math.round(value / 3600)} h`;
    return `${whole.format(Math.round(value / 86400))} days`;
}

const ENGINES = { postgres: "PostgreSQL", kafka: "Kafka", redis: "Redis", nats: "NATS" };
export const engine = (name) => ENGINES[name] ?? String(name);

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", year: "numeric" });

/** A time of the server, in the reader's zone; the title has it exactly. */
export function time(text) {
    if (!text) return h("span", { class: "muted" }, DASH);
    const date = new Date(text);
    if (Number.isNaN(date.getTime())) return h("span", null, String(text));
    const isToday = date.toDateString() === new Date().toDateString();
    return h(
        "time",
        { datetime: text, title: text },
        isToday ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`,
    );
}

export const clockTime = (ms) => clock.format(new Date(ms));

/** The time of an input of type datetime-local as the API takes it; "" stays. */
export function toUtc(local) {
    const date = new Date(local);
    return local && !Number.isNaN(date.getTime()) ? date.toISOString() : "";
}

/** And back. */
export function toLocal(utc) {
    const date = new Date(utc);
    if (!utc || Number.isNaN(date.getTime())) return "";
    return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}
