// What goes on by itself: the poll of the overview, and streams that are opened again when they end.
import { ApiError, getOps, lines } from "./api.js";

const POLL_MS = 2000;
const KEEP = 450; // 15 minutes of points
const SILENCE_MS = 60000; // several heartbeats: the connection is dead
const PAUSE_MS = [250, 500, 1000, 2000, 4000];

/** Waits, but not longer than the signal lets it. */
export const pause = (ms, signal) =>
    new Promise((resolve) => {
        const timer = setTimeout(resolve, ms);
        signal.addEventListener(
            "abort",
            () => {
                clearTimeout(timer);
                resolve();
            },
            { once: true },
        );
    });

// ---- the overview ----

/** {at, overview, error}: the last answer, and the error that came instead of a newer one. */
export const last = { at: 0, overview: null, error: null };
export const points = []; // {at, p50, p99, reads, writes}
const listeners = new Set();

/** Calls fn after each poll, until the signal. */
export function onOverview(fn, signal) {
    listeners.add(fn);
    signal.addEventListener("abort", () => listeners.delete(fn), { once: true });
}

function remember(overview) {
    const number = (value) => (typeof value === "number" ? value : null);
    points.push({
        at: Date.now(),
        p50: number(overview.freshness_ms?.p50),
        p99: number(overview.freshness_ms?.p99),
        reads: number(overview.reads_per_second),
        writes: number(overview.writes_per_second),
    });
    if (points.length > KEEP) points.splice(0, points.length - KEEP);
}

async function pollOnce(signal) {
    try {
        const overview = await getOps("/v1/ops/overview", {}, signal);
        if (signal.aborted) return;
        Object.assign(last, { at: Date.now(), overview, error: null });
        remember(overview);
    } catch (error) {
        if (signal.aborted || !(error instanceof ApiError)) return;
        last.error = error;
    }
    for (const listener of [...listeners]) listener(last);
}

/** Resolves when the tab is shown. */
const shown = (signal) =>
    new Promise((resolve) => {
        if (!document.hidden || signal.aborted) return resolve();
        const inner = new AbortController();
        const wake = () => {
            inner.abort();
            resolve();
        };
        document.addEventListener("visibilitychange", () => document.hidden || wake(), { signal: inner.signal });
        signal.addEventListener("abort", wake, { once: true });
    });

/** Until the signal: one question at a time, none while the tab is hidden. */
export async function poll(signal) {
    points.length = 0;
    Object.assign(last, { at: 0, overview: null, error: null });
    while (!signal.aborted) {
        await pollOnce(signal);
        await pause(POLL_MS, signal);
        await shown(signal);
    }
}

// ---- streams ----

/** Follows a stream until the signal, and opens it again when it ends.
 *  open() gives {where, params} each time; onLine(object, text) is called for each line; onState("live" | "waiting" | "ended", error).
 *  A refusal that asking again cannot change ends it, unless onRefusal(error) returns true: then it is opened again. */
export async function follow({ open, onLine, onState, onRefusal }, signal) {
    for (let failures = 0; !signal.aborted;) {
        const silence = new AbortController();
        let timer = setTimeout(() => silence.abort(), SILENCE_MS);
        try {
            const { where, params } = open();
            const isLive = () => onState("live");
            for await (const [line, text] of lines(where, params, AbortSignal.any([signal, silence.signal]), isLive)) {
                clearTimeout(timer);
                timer = setTimeout(() => silence.abort(), SILENCE_MS);
                failures = 0;
                onLine(line, text);
            }
        } catch (error) {
            if (signal.aborted) return;
            const refused = error instanceof ApiError && !error.isTransient;
            if (refused && !onRefusal?.(error)) return onState("ended", error);
            onState("waiting", error);
        } finally {
            clearTimeout(timer);
        }
        if (signal.aborted) return;
        onState("waiting");
        await pause(PAUSE_MS[Math.min(failures++, PAUSE_MS.length - 1)], signal);
    }
}
