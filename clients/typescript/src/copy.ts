/**
 * A dictionary in the memory of this program, kept up to date in the background.
 *
 * It is read as one JSON stream and followed from that version on. A reader sees whole versions only: the changes that lead to one
 * are applied together. What a reader gets is the object that is stored: do not change it.
 */
import { ApiError, Closed, ConvertFailed, FreshetError, TimeoutError, Unavailable } from "./errors.js";
import type { components } from "./schema.js";
import { type Batch, Watch } from "./streams.js";
import { isRepeatable, pauseMs, sleep, type Transport } from "./transport.js";

type Item = components["schemas"]["Item"];

export interface CopyOptions<Value> {
  /** What to keep of a payload. If it throws, the copy ends: `error` is then a ConvertFailed. */
  convert?: (payload: unknown) => Value;
  /** Called after each change. When everything had to be read anew, also with objects of `convert` that did not change. */
  onChange?: (batch: Batch) => void;
  /** Without a byte for so long (there are heartbeats) the connection counts as dead. */
  idleMs?: number;
}

interface Waiter {
  version: number;
  resolve: (version: number) => void;
  reject: (error: Error) => void;
}

export class Copy<Value = unknown> implements Iterable<[string, Value]> {
  private items = new Map<string, Value>();
  private current: number;
  private readonly waiters = new Set<Waiter>();
  private readonly watch: Watch;
  private failure: unknown;
  /** Since the first load. */
  reloads = 0;

  private constructor(private readonly transport: Transport, private readonly path: string, minVersion: number,
    private readonly options: CopyOptions<Value>) {
    this.current = minVersion;
    this.watch = new Watch(transport, path, minVersion, this.idleMs, (gap) => this.reload(gap));
  }

  /** Resolves when it is loaded. */
  static async open<Value>(transport: Transport, path: string, minVersion: number, patienceMs: number,
    options: CopyOptions<Value>): Promise<Copy<Value>> {
    const copy = new Copy<Value>(transport, path, minVersion, options);
    await copy.firstLoad(patienceMs);
    copy.watch.version = copy.current;
    void copy.run();
    return copy;
  }

  // ---- reading ----

  get version(): number {
    return this.current;
  }

  get size(): number {
    return this.items.size;
  }

  /** Why the copy is not connected at the moment; undefined while it is. */
  get error(): unknown {
    return this.failure ?? this.watch.error;
  }

  get reconnects(): number {
    return this.watch.reconnects;
  }

  get(key: string): Value | undefined {
    return this.items.get(key);
  }

  has(key: string): boolean {
    return this.items.has(key);
  }

  keys(): IterableIterator<string> {
    return this.items.keys();
  }

  /** Of one version as long as nothing is awaited in the loop. */
  [Symbol.iterator](): IterableIterator<[string, Value]> {
    return this.items.entries();
  }

  /** All items of one version. This copies the map, not the items. */
  snapshot(): { version: number; items: Map<string, Value> } {
    return { version: this.current, items: new Map(this.items) };
  }

  /** Resolves when the copy has this version or a later one. TimeoutError, or Closed. */
  async waitFor(version: number, timeoutMs = 30_000): Promise<number> {
    if (this.current >= version) return this.current;
    if (this.watch.closed) throw this.closing();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const waiter = {} as Waiter;
    try {
      return await new Promise<number>((resolve, reject) => {
        Object.assign(waiter, { version, resolve, reject });
        this.waiters.add(waiter);
        const late = () => reject(new TimeoutError(`version ${version} did not arrive; the copy has ${this.current}`));
        timer = setTimeout(late, timeoutMs);
      });
    } finally {
      clearTimeout(timer);
      this.waiters.delete(waiter);
    }
  }

  // ---- life ----

  close(): void {
    this.watch.close();
    for (const waiter of this.waiters) waiter.reject(this.closing());
  }

  private closing(): Closed {
    return new Closed("the copy is closed", { cause: this.failure });
  }

  private get idleMs(): number {
    return this.options.idleMs ?? 45_000;
  }

  private async run(): Promise<void> {
    try {
      for await (const batch of this.watch.batches()) this.apply(batch);
    } catch (error) {
      this.failure = error; // ConvertFailed: the next versions cannot be held either
      this.close();
    }
  }

  private apply(batch: Batch): void {
    const converted = new Map<string, Value>();
    for (const [key, payload] of batch.upserts) converted.set(key, this.convert(key, payload));
    for (const [key, value] of converted) this.items.set(key, value);
    for (const key of batch.deletes) this.items.delete(key);
    this.arrived(batch.version);
    this.tell({ ...batch, upserts: converted });
  }

  private convert(key: string, payload: unknown): Value {
    if (!this.options.convert) return payload as Value;
    try {
      return this.options.convert(payload);
    } catch (error) {
      throw new ConvertFailed(key, error);
    }
  }

  private arrived(version: number): void {
    this.current = version;
    for (const waiter of this.waiters) if (version >= waiter.version) waiter.resolve(version);
  }

  private tell(batch: Batch): void {
    try {
      this.options.onChange?.(batch);
    } catch (error) {
      console.error("freshet: onChange failed", error);
    }
  }

  // ---- loading ----

  private async firstLoad(patienceMs: number): Promise<void> {
    const deadline = Date.now() + patienceMs;
    for (let attempt = 0; ; attempt++) {
      try {
        return this.takeOver(...(await this.load(this.current)));
      } catch (error) {
        const pause = pauseMs(attempt, error instanceof ApiError ? error.retryAfter : undefined);
        if (isRepeatable(error) && Date.now() + pause < deadline) await sleep(pause);
        else if (error instanceof FreshetError) throw error;
        else throw new Unavailable(`not loaded: ${String(error)}`, { cause: error });
      }
    }
  }

  private async load(minVersion: number): Promise<[number, Map<string, Value>]> {
    const headers: Record<string, string> = { Accept: "application/x-ndjson" };
    if (minVersion > 0) headers["X-Min-Version"] = String(minVersion);
    const stream = await this.transport.stream(`${this.path}/all`, headers, this.idleMs, this.watch.signal);
    const items = new Map<string, Value>();
    for await (const batch of stream.batches())
      for (const line of batch) {
        const item = JSON.parse(line) as Item;
        items.set(item.key, this.convert(item.key, item.payload));
      }
    const version = stream.headers.get("x-dict-version");
    if (version === null) throw new FreshetError("X-Dict-Version can't be read: CORS must expose it");
    return [Number(version), items];
  }

  private takeOver(version: number, items: Map<string, Value>): void {
    this.items = items;
    this.arrived(version);
  }

  /**
   * The changes since our version can't be had: everything is read anew. Never a lower version, unless the database itself went
   * back. Tries until it succeeds, the copy is closed, or `convert` fails.
   */
  private async reload(gap: ApiError): Promise<number> {
    let minVersion = gap.code === "VERSION_NOT_COMMITTED" ? 0 : this.current;
    const before = this.items;
    for (;;) {
      try {
        this.takeOver(...(await this.load(minVersion)));
        break;
      } catch (error) {
        if (this.watch.closed || error instanceof ConvertFailed) throw error;
        if (error instanceof ApiError && error.code === "VERSION_NOT_COMMITTED") minVersion = 0;
        await this.watch.pause(error);
      }
    }
    this.reloads++;
    if (this.options.onChange) this.tell(this.difference(before));
    return this.current;
  }

  /** What `convert` makes need not be JSON: its objects count as changed. */
  private difference(before: Map<string, Value>): Batch {
    const after = this.items;
    const isSame = (a: unknown, b: unknown) => a === b || (!this.options.convert && JSON.stringify(a) === JSON.stringify(b));
    const batch: Batch = { version: this.current, upserts: new Map(), deletes: [...before.keys()].filter((key) => !after.has(key)) };
    for (const [key, value] of after) if (!before.has(key) || !isSame(before.get(key), value)) batch.upserts.set(key, value);
    return batch;
  }
}
