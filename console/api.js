// The client of the API. The token lives in this module's memory and nowhere else: not in storage, not in a URL, not in a cookie.

const ROOT = new URL("..", import.meta.url); // also where a proxy serves everything below another path
const ANSWER_MS = 10000;
const LINE_CHARS_MAX = 16 * 1024 * 1024;

let token = null; // "": none is needed, by the configuration or by a client certificate
let tenant = ""; // "" = the token's own, "*" = all

export class ApiError extends Error {
    constructor(status, code, message, field) {
        super(message);
        this.name = "ApiError";
        Object.assign(this, { status, code, field });
    }

    /** The server could not be reached, or could not do its work for now: asking again may help. */
    get isTransient() {
        return this.status === 0 || this.status === 429 || this.status >= 500;
    }
}

export const isSignedIn = () => token !== null;
export const signIn = (text) => {
    token = text;
};
export const signOut = () => {
    token = null;
    tenant = "";
};
export const chosenTenant = () => tenant;
export const chooseTenant = (name) => {
    tenant = name;
};

/** The claims of the token, as it says itself: for what is shown first, never for what is allowed. */
export function claims() {
    try {
        const middle = token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
        const bytes = Uint8Array.from(atob(middle), (character) => character.charCodeAt(0));
        const found = JSON.parse(new TextDecoder().decode(bytes));
        const scopes = [found.scope, found.scp].flat().filter((each) => typeof each === "string");
        return { tenant: found.tenant_id, user: found.sub, expires: found.exp, scopes: scopes.join(" ").split(/\s+/) };
    } catch {
        return { scopes: [] };
    }
}

/** A path of the API of which every part is encoded: path`/v1/ops/updates/${tenant}/${id}`. */
export const path = (texts, ...values) =>
    texts.reduce((done, text, at) => done + text + (at < values.length ? encodeURIComponent(values[at]) : ""), "");

function address(where, params) {
    const url = new URL(ROOT.pathname.replace(/\/$/, "") + where, ROOT.origin);
    for (const [name, value] of Object.entries(params ?? {})) {
        if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
    }
    return url;
}

async function send(where, { params, method = "GET", body, accept = "application/json", signal }) {
    const headers = { Accept: accept };
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    try {
        return await fetch(address(where, params), {
            method,
            headers,
            signal,
            body: body === undefined ? undefined : JSON.stringify(body),
            credentials: "omit",
            cache: "no-store",
            redirect: "error",
            referrerPolicy: "no-referrer",
        });
    } catch (error) {
        throw unreachable(error, signal);
    }
}

/** What a failed fetch means. An abort of the caller's own stays what it is. */
function unreachable(error, signal) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") return error;
    const late = signal?.aborted;
    return new ApiError(
        0,
        late ? "TIMEOUT" : "UNREACHABLE",
        late ? "The server did not answer in time." : "The server does not answer.",
    );
}

async function refusal(answer) {
    let said = {};
    try {
        said = await answer.json();
    } catch {
        /* not from freshet: a proxy's page */
    }
    const text =
        typeof said.message === "string" ? said.message : (said.detail ?? `The server answered ${answer.status}.`);
    return new ApiError(answer.status, said.code ?? said.error_code ?? "", text, said.field);
}

/** An answer as JSON. Throws ApiError; an AbortError where the caller's signal was raised. */
async function ask(where, options, read = (answer) => answer.json()) {
    const signal = AbortSignal.any([AbortSignal.timeout(ANSWER_MS), ...(options.signal ? [options.signal] : [])]);
    const answer = await send(where, { ...options, signal });
    if (!answer.ok) throw await refusal(answer);
    try {
        return await read(answer);
    } catch (error) {
        throw error instanceof SyntaxError
            ? new ApiError(0, "NOT_JSON", "The answer is not JSON.")
            : unreachable(error, signal);
    }
}

export const get = (where, params, signal) => ask(where, { params, signal });
export const getText = (where, params, signal) => ask(where, { params, signal }, (answer) => answer.text());
export const post = (where, body, params, signal) => ask(where, { method: "POST", body, params, signal });

/** The same for routes that know ?tenant=. */
export const getOps = (where, params, signal) => get(where, { tenant, ...params }, signal);
export const postOps = (where, body, of = tenant) => post(where, body, { tenant: of });

/** The lines of a stream of JSON objects, [object, text], until it ends; onOpen() when it begins. Throws as ask() does;
 *  a broken connection is an ApiError. */
export async function* lines(where, params, signal, onOpen) {
    const answer = await send(where, { params, accept: "application/x-ndjson", signal });
    if (!answer.ok) throw await refusal(answer);
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            const parts = (rest + value).split("\n");
            rest = parts.pop();
            if (rest.length > LINE_CHARS_MAX)
                throw new ApiError(0, "LINE_TOO_LONG", "A line of the stream is too long.");
            for (const part of parts) if (part) yield [JSON.parse(part), part];
        }
    } catch (error) {
        throw error instanceof ApiError ? error : unreachable(error, signal);
    } finally {
        reader.cancel().catch(() => {});
    }
}
