/** The client: one method for each route, with repetition where it has no second effect. */
import { Copy, type CopyOptions } from "./copy.js";
import { ApiError, Unavailable, UpdateFailed, UpdatePending } from "./errors.js";
import type { components } from "./schema.js";
import { Chat, type ChatEvent } from "./streams.js";
import { type Answer, type RequestOptions, sleep, type TokenSource, Transport } from "./transport.js";

type Schemas = components["schemas"];

const CHUNK_ITEMS = 5_000; // the server takes 10,000 and 8 MiB
const CHUNK_BYTES = 4 << 20;
const POLL_MIN_MS = 20;
const POLL_MAX_MS = 1_000;

export interface ClientOptions {
  /** `https://freshet.example`, or `""` for the origin of the page. */
  url: string;
  tenant: string;
  /** A bearer token, or a function that returns one: called again before the token expires and when the server refuses it. */
  token?: TokenSource;
  /** For one try of a request. 10 seconds. */
  timeoutMs?: number;
  /** In which a request that may be repeated is repeated. 30 seconds. */
  patienceMs?: number;
  /** Reads demand the version of this client's own last update of the dictionary (X-Min-Version). True. */
  readYourWrites?: boolean;
  headers?: Record<string, string>;
  fetch?: typeof fetch;
}

export interface UpdateResult {
  eventId: string;
  status: "PENDING" | "COMMITTED";
  version: number | undefined;
}

export interface ReadOptions {
  minVersion?: number;
}

export interface KeyOptions {
  /** The Idempotency-Key; a new one unless given. */
  key?: string;
}

function query(values: Record<string, string | number | readonly string[] | undefined>): string {
  const pairs: string[] = [];
  for (const [name, value] of Object.entries(values))
    if (value !== undefined)
      for (const each of Array.isArray(value) ? value : [value]) pairs.push(`${name}=${encodeURIComponent(each)}`);
  return pairs.length ? `?${pairs.join("&")}` : "";
}

/** crypto.randomUUID() is there in secure contexts only, getRandomValues() everywhere. */
function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** At least one, even of nothing: an empty snapshot clears the dictionary. */
function chunksOf(texts: string[]): string[][] {
  const encoder = new TextEncoder();
  const chunks: string[][] = [[]];
  let bytes = 0;
  for (const text of texts) {
    const size = encoder.encode(text).length + 1;
    let last = chunks[chunks.length - 1]!;
    if (last.length > 0 && (last.length === CHUNK_ITEMS || bytes + size > CHUNK_BYTES)) {
      chunks.push((last = []));
      bytes = 0;
    }
    last.push(text);
    bytes += size;
  }
  return chunks;
}

export class Client {
  readonly tenant: string;
  private readonly transport: Transport;
  private readonly patienceMs: number;
  private readonly readYourWrites: boolean;
  private readonly written = new Map<string, number>();

  constructor(options: ClientOptions) {
    this.tenant = options.tenant;
    this.patienceMs = options.patienceMs ?? 30_000;
    this.readYourWrites = options.readYourWrites ?? true;
    this.transport = new Transport({
      url: options.url,
      token: options.token,
      timeoutMs: options.timeoutMs ?? 10_000,
      patienceMs: this.patienceMs,
      fetch: options.fetch ?? globalThis.fetch.bind(globalThis),
      headers: options.headers ?? {},
    });
  }

  /** Any other route. Without `repeat` only GET is repeated. */
  request(method: string, target: string, options: RequestOptions = {}): Promise<Answer> {
    return this.transport.request(method, target, options);
  }

  // ---- reading dictionaries ----

  private path(dictionary: string): string {
    return `/v1/tenants/${encodeURIComponent(this.tenant)}/dictionaries/${encodeURIComponent(dictionary)}`;
  }

  private async read(dictionary: string, rest: string, options: ReadOptions): Promise<unknown> {
    const least = options.minVersion ?? this.minVersion(dictionary);
    const headers: Record<string, string> = least > 0 ? { "X-Min-Version": String(least) } : {};
    return (await this.transport.request("GET", this.path(dictionary) + rest, { headers })).json;
  }

  /** What a read demands by itself: the version of the last own update, or 0. */
  minVersion(dictionary: string): number {
    return (this.readYourWrites && this.written.get(dictionary)) || 0;
  }

  /** The payload, or undefined where there is no such item. */
  async get<Payload = unknown>(dictionary: string, key: string, options: ReadOptions = {}): Promise<Payload | undefined> {
    try {
      const item = await this.read(dictionary, `/items/${encodeURIComponent(key)}`, options);
      return (item as Schemas["Item"]).payload as Payload;
    } catch (error) {
      if (error instanceof ApiError && error.code === "ITEM_NOT_FOUND") return undefined;
      throw error;
    }
  }

  /** Up to 1,000 items, all of one version. */
  async getMany(dictionary: string, keys: readonly string[], options: ReadOptions = {}): Promise<Schemas["Items"]> {
    return (await this.read(dictionary, `/items${query({ keys })}`, options)) as Schemas["Items"];
  }

  async version(dictionary: string, options: ReadOptions = {}): Promise<Schemas["Version"]> {
    return (await this.read(dictionary, "/version", options)) as Schemas["Version"];
  }

  /** A local copy, loaded, and kept up to date until it is closed. */
  follow<Value = unknown>(dictionary: string, options: CopyOptions<Value> = {}): Promise<Copy<Value>> {
    return Copy.open(this.transport, this.path(dictionary), this.minVersion(dictionary), this.patienceMs, options);
  }

  // ---- updates ----

  /**
   * Changes items, as one version. Waits until it is committed, unless `wait` is false.
   *
   * It is repeated with the same eventId until it is answered. UpdateFailed: refused, nothing was changed. UpdatePending and
   * Unavailable: not known yet; call again with their `eventId` and the same content.
   */
  update(dictionary: string, change: { upserts?: Readonly<Record<string, unknown>>; deletes?: readonly string[] },
    options: { eventId?: string; sourceRevision?: number; wait?: boolean } = {}): Promise<UpdateResult> {
    const eventId = options.eventId ?? randomId();
    const items: Schemas["DeltaItem"][] = Object.entries(change.upserts ?? {}).map(([key, payload]) => ({ key, op: "UPSERT", payload }));
    for (const key of change.deletes ?? []) items.push({ key, op: "DELETE" });
    const body: Schemas["DeltaUpdate"] = { eventId, dictCode: dictionary, eventType: "DELTA", items };
    if (options.sourceRevision !== undefined) body.sourceRevision = options.sourceRevision;
    return this.postUpdate(dictionary, eventId, JSON.stringify(body), options.wait ?? true);
  }

  /** Makes these all items there are, as one version, in as many requests as are needed. */
  async replace(dictionary: string, items: Iterable<readonly [string, unknown]> | Readonly<Record<string, unknown>>,
    options: { sourceRevision?: number; wait?: boolean } = {}): Promise<UpdateResult> {
    const pairs = Symbol.iterator in items ? (items as Iterable<readonly [string, unknown]>) : Object.entries(items);
    const chunks = chunksOf(Array.from(pairs, ([key, payload]) => JSON.stringify({ key, payload })));
    const eventId = randomId();
    const snapshotId = randomId();
    let result: UpdateResult = { eventId, status: "PENDING", version: undefined };
    for (const [index, chunk] of chunks.entries()) {
      const head: Record<string, unknown> = { eventId, dictCode: dictionary, eventType: "SNAPSHOT" };
      if (options.sourceRevision !== undefined) head["sourceRevision"] = options.sourceRevision;
      if (chunks.length > 1) Object.assign(head, { snapshotId, chunkIndex: index + 1, chunksTotal: chunks.length });
      const body = `${JSON.stringify(head).slice(0, -1)},"items":[${chunk.join(",")}]}`;
      const isLast = index === chunks.length - 1;
      result = await this.postUpdate(dictionary, eventId, body, isLast && (options.wait ?? true));
    }
    return result;
  }

  private async postUpdate(dictionary: string, eventId: string, body: string, wait: boolean): Promise<UpdateResult> {
    const deadline = Date.now() + this.patienceMs;
    const mode = wait ? "?consistencyMode=WAIT_COMMIT&timeoutMs=1000" : "";
    const target = `/v1/tenants/${encodeURIComponent(this.tenant)}/updates${mode}`;
    try {
      const answer = await this.transport.request("POST", target, { body, repeat: true });
      let state = answer.json as Schemas["UpdateCommitted"] | Schemas["UpdatePending"] | Schemas["UpdateState"];
      for (let attempt = 0; wait && state.status === "PENDING"; attempt++) {
        if (Date.now() >= deadline) throw new UpdatePending(eventId);
        await sleep(Math.min(POLL_MAX_MS, POLL_MIN_MS * 2 ** attempt));
        state = await this.updateState(eventId);
      }
      if (state.status === "FAILED") throw new UpdateFailed(422, { code: state.errorCode, message: state.errorMessage, eventId });
      const version = state.status === "COMMITTED" ? state.committedVersion : undefined;
      if (version !== undefined) this.written.set(dictionary, Math.max(version, this.written.get(dictionary) ?? 0));
      return { eventId, status: state.status, version };
    } catch (error) {
      if (error instanceof Unavailable) error.eventId = eventId;
      throw error;
    }
  }

  async updateState(eventId: string): Promise<Schemas["UpdateState"]> {
    const target = `/v1/tenants/${encodeURIComponent(this.tenant)}/updates/${encodeURIComponent(eventId)}`;
    return (await this.transport.request("GET", target)).json as Schemas["UpdateState"];
  }

  // ---- POST with an Idempotency-Key ----

  /** Repeated with the same key until it is answered. */
  private async post<Body>(target: string, body: unknown, key = randomId()): Promise<Body> {
    try {
      const options = { body: JSON.stringify(body), headers: { "Idempotency-Key": key }, repeat: true };
      return (await this.transport.request("POST", target, options)).json as Body;
    } catch (error) {
      if (error instanceof Unavailable) error.key = key;
      throw error;
    }
  }

  createItem(item: Schemas["NewItem"], options: KeyOptions = {}): Promise<Schemas["CreatedItem"]> {
    return this.post("/api/v1/items", item, options.key);
  }

  async readItem(sku: string): Promise<Schemas["CreatedItem"]> {
    return (await this.transport.request("GET", `/api/v1/items/${encodeURIComponent(sku)}`)).json as Schemas["CreatedItem"];
  }

  grant(change: Schemas["EntitlementChange"], options: KeyOptions = {}): Promise<Schemas["EntitlementChanged"]> {
    return this.post("/v1/entitlements/grants", change, options.key);
  }

  revoke(change: Schemas["EntitlementChange"], options: KeyOptions = {}): Promise<Schemas["EntitlementChanged"]> {
    return this.post("/v1/entitlements/revokes", change, options.key);
  }

  // ---- lists, page after page ----

  private async *pages<Row>(path: string, member: string, values: Record<string, string | undefined> = {}): AsyncGenerator<Row, void, void> {
    let cursor: string | undefined;
    do {
      const page = (await this.transport.request("GET", path + query({ ...values, cursor }))).json as Record<string, unknown>;
      yield* page[member] as Row[];
      cursor = ((page["next_cursor"] ?? page["nextCursor"]) as string | null | undefined) ?? undefined;
    } while (cursor !== undefined);
  }

  /** Those that the token may read, with their versions. */
  dictionaries(): AsyncGenerator<Schemas["Dictionary"], void, void> {
    return this.pages(`/v1/tenants/${encodeURIComponent(this.tenant)}/dictionaries`, "dictionaries");
  }

  entitlements(userId: string): AsyncGenerator<Schemas["Entitlement"], void, void> {
    return this.pages(`/v1/users/${encodeURIComponent(userId)}/entitlements`, "entitlements");
  }

  /** Newest first. */
  notifications(userId: string): AsyncGenerator<Schemas["Notification"], void, void> {
    return this.pages(`/v1/users/${encodeURIComponent(userId)}/notifications`, "notifications");
  }

  // ---- chats ----

  private session(projectId: string, sessionId: string, rest: string): string {
    return `/my/projects/${encodeURIComponent(projectId)}/chat/${encodeURIComponent(sessionId)}/${rest}`;
  }

  postMessage(projectId: string, sessionId: string, content: string, options: KeyOptions = {}): Promise<Schemas["PostedMessage"]> {
    return this.post(this.session(projectId, sessionId, "message"), { content }, options.key);
  }

  /** The history, oldest first. */
  messages(projectId: string, sessionId: string): AsyncGenerator<Schemas["ChatMessage"], void, void> {
    return this.pages(this.session(projectId, sessionId, "messages"), "messages");
  }

  /** Of the caller's sessions. */
  events(projectId: string, options: { event_type?: string; from?: string; to?: string } = {}): AsyncGenerator<ChatEvent, void, void> {
    return this.pages(`/my/projects/${encodeURIComponent(projectId)}/events`, "events", options);
  }

  /**
   * Every event of a session after `after`, each once, for as long as it is read: `for await (const event of client.chat(…))`.
   * `skipLost` goes on where events are no longer kept, instead of throwing SequenceTooOld.
   */
  chat(projectId: string, sessionId: string, options: { after?: number; skipLost?: boolean; idleMs?: number } = {}): Chat {
    const path = this.session(projectId, sessionId, "stream");
    return new Chat(this.transport, path, options.after, options.idleMs ?? 45_000, options.skipLost ?? false);
  }

  // ---- hydration ----

  /** An entity of any module, or undefined where there is none. With `fields` only these members of its data. */
  async entity(type: string, id: string | readonly [string, string],
    options: { fields?: readonly string[]; failureMode?: "fail-fast" | "degrade" } = {}): Promise<Schemas["Entity"] | undefined> {
    const path = [type, ...(typeof id === "string" ? [id] : id)].map(encodeURIComponent).join("/");
    const values = { mode: options.fields ? "partial" : undefined, fields: options.fields, failure_mode: options.failureMode };
    try {
      return (await this.transport.request("GET", `/v1/hydration/${path}${query(values)}`)).json as Schemas["Entity"];
    } catch (error) {
      if (error instanceof ApiError && error.code === "ENTITY_NOT_FOUND") return undefined;
      throw error;
    }
  }
}
