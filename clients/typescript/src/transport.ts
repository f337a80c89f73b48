/**
 * HTTP by fetch: tokens that are renewed, requests that are repeated, streams of lines.
 *
 * A request is repeated only where that has no second effect: GET, an update with its eventId, a POST with its Idempotency-Key.
 */
import { ApiError, Closed, errorOf, FreshetError, Unavailable } from "./errors.js";

export type TokenSource = string | (() => string | Promise<string>) | undefined;

const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 5_000;
const RENEW_BEFORE_MS = 30_000;
const REPEATED = new Set([408, 429, 500, 502, 503, 504]);

/** A little before the `exp` of a JWT; of anything else nothing is known. */
function usableUntil(token: string): number {
  try {
    const part = (token.split(".")[1] ?? "").replace(/-/g, "+").replace(/_/g, "/");
    const expires = Number(JSON.parse(atob(part)).exp) * 1000;
    return Number.isFinite(expires) ? expires - Math.min(RENEW_BEFORE_MS, (expires - Date.now()) / 5) : Infinity;
  } catch {
    return Infinity;
  }
}

/** Asks for a token when there is none, when it expires soon, and when the server refused it. Once for all who wait. */
class Tokens {
  private token: Promise<string> | undefined;
  private until = 0;

  constructor(private readonly source: TokenSource) {}

  async get(): Promise<string | undefined> {
    if (typeof this.source !== "function") return this.source;
    if (!this.token || Date.now() >= this.until) {
      const source = this.source;
      this.until = Infinity;
      const asked = (this.token = Promise.resolve().then(source));
      asked.then(
        (token) => {
          if (this.token === asked) this.until = usableUntil(token);
        },
        () => {
          if (this.token === asked) this.token = undefined;
        },
      );
    }
    return this.token;
  }

  /** True when another one may be had. */
  async refused(token: string | undefined): Promise<boolean> {
    if (typeof this.source !== "function") return false;
    const asked = this.token;
    const current = await asked?.catch(() => undefined);
    if (current === token && this.token === asked) this.token = undefined;
    return true;
  }
}

/** Growing, with jitter, so that clients that failed together do not return together; never less than Retry-After. */
export function pauseMs(attempt: number, retryAfter?: number): number {
  if (retryAfter !== undefined) return retryAfter * 1000 * (1 + Math.random() / 4);
  const most = Math.min(PAUSE_MAX_MS, PAUSE_MIN_MS * 2 ** Math.min(attempt, 16));
  return PAUSE_MIN_MS / 4 + Math.random() * (most - PAUSE_MIN_MS / 4);
}

/** Resolves after that time; rejects with Closed when the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new Closed("closed"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Would the same request, sent later, perhaps be answered? For requests that have no second effect. */
export function isRepeatable(error: unknown): boolean {
  if (error instanceof ApiError) return REPEATED.has(error.status) || error.code === "IDEMPOTENCY_KEY_PROCESSING";
  return !(error instanceof FreshetError);
}

export interface RequestOptions {
  body?: string;
  headers?: Record<string, string>;
  /** May it be sent again? By default only GET. */
  repeat?: boolean;
}

export interface Answer {
  headers: Headers;
  json: unknown;
}

export interface TransportOptions {
  url: string;
  token: TokenSource;
  timeoutMs: number;
  patienceMs: number;
  fetch: typeof fetch;
  headers: Record<string, string>;
}

export class Transport {
  private readonly tokens: Tokens;
  private readonly url: string;

  constructor(private readonly options: TransportOptions) {
    this.tokens = new Tokens(options.token);
    this.url = options.url.replace(/\/+$/, "");
  }

  private async fetchOnce(method: string, target: string, headers: Record<string, string>, body: string | undefined,
    signal: AbortSignal, token: string | undefined): Promise<Response> {
    const head: Record<string, string> = { ...this.options.headers, ...headers };
    if (token !== undefined) head["Authorization"] = `Bearer ${token}`;
    const init: RequestInit = { method, headers: head, signal, cache: "no-store" };
    if (body !== undefined) init.body = body;
    const send = this.options.fetch;
    return send(this.url + target, init);
  }

  /** One answer, with a new token where the server refuses the one it was given. */
  private async fetch(method: string, target: string, headers: Record<string, string>, body: string | undefined,
    signal: AbortSignal): Promise<Response> {
    const token = await this.tokens.get();
    const response = await this.fetchOnce(method, target, headers, body, signal, token);
    if (response.status !== 401 || !(await this.tokens.refused(token))) return response;
    await response.text();
    return this.fetchOnce(method, target, headers, body, signal, await this.tokens.get());
  }

  private async tryOnce(method: string, target: string, options: RequestOptions): Promise<Answer> {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), this.options.timeoutMs);
    const headers = { ...options.headers };
    if (options.body !== undefined) headers["Content-Type"] = "application/json";
    try {
      const response = await this.fetch(method, target, headers, options.body, abort.signal);
      if (!response.ok) throw await errorOf(response);
      const text = await response.text();
      const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
      return { headers: response.headers, json: isJson ? JSON.parse(text) : text };
    } finally {
      clearTimeout(timer);
    }
  }

  /** An answer below 400. ApiError is the server's refusal, Unavailable no usable answer within the patience. */
  async request(method: string, target: string, options: RequestOptions = {}): Promise<Answer> {
    const repeat = options.repeat ?? (method === "GET" || method === "HEAD");
    const deadline = Date.now() + this.options.patienceMs;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.tryOnce(method, target, options);
      } catch (error) {
        const isLimited = error instanceof ApiError && error.status === 429; // nothing was done
        const pause = pauseMs(attempt, error instanceof ApiError ? error.retryAfter : undefined);
        if (isRepeatable(error) && (repeat || isLimited) && Date.now() + pause < deadline) await sleep(pause);
        else if (error instanceof FreshetError) throw error;
        else throw new Unavailable(`no answer: ${String(error)}`, { cause: error });
      }
    }
  }

  /** One try: what is to be done when it fails, or ends, is the caller's to decide. */
  async stream(target: string, headers: Record<string, string>, idleMs: number, signal: AbortSignal): Promise<LineStream> {
    const watchdog = new Watchdog(idleMs, signal);
    try {
      const response = await this.fetch("GET", target, headers, undefined, watchdog.signal);
      if (response.status !== 200) throw await errorOf(response);
      return new LineStream(response, watchdog);
    } catch (error) {
      watchdog.stop();
      throw error;
    }
  }
}

/** Aborts when nothing was heard for too long, or when the outer signal is aborted. */
class Watchdog {
  private readonly abort = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly onOuter = () => this.abort.abort();

  constructor(private readonly idleMs: number, private readonly outer: AbortSignal) {
    if (outer.aborted) this.abort.abort();
    outer.addEventListener("abort", this.onOuter);
    this.heard();
  }

  get signal(): AbortSignal {
    return this.abort.signal;
  }

  heard(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.abort.abort(), this.idleMs);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.outer.removeEventListener("abort", this.onOuter);
    this.abort.abort();
  }
}

/** The lines of an answer as they come. A line that was cut off is not one. */
export class LineStream {
  readonly headers: Headers;

  constructor(private readonly response: Response, private readonly watchdog: Watchdog) {
    this.headers = response.headers;
  }

  /** The whole lines of each piece that arrives, until the proper end. Throws when it was cut off. */
  async *batches(): AsyncGenerator<string[], void, void> {
    const reader = this.response.body!.getReader();
    const decoder = new TextDecoder();
    let tail = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        this.watchdog.heard();
        const lines = (tail + decoder.decode(value, { stream: true })).split("\n");
        tail = lines.pop()!;
        if (lines.length > 0) yield lines;
      }
      if (tail) throw new Error("the stream was cut off");
    } finally {
      this.close();
    }
  }

  close(): void {
    this.watchdog.stop();
  }
}
