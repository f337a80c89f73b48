/** Streams that go on: a broken one is opened again where it ended, without a loss and without repetition. */
import { ApiError, Closed, SequenceTooOld } from "./errors.js";
import type { components } from "./schema.js";
import { isRepeatable, type LineStream, pauseMs, sleep, type Transport } from "./transport.js";

export type ChatEvent = components["schemas"]["ChatEvent"];
type ChatLine = components["schemas"]["ChatLine"];
type WatchLine = components["schemas"]["WatchLine"];

const NDJSON = { Accept: "application/x-ndjson" };

/** What leads from one version to another: all of it, or nothing. */
export interface Batch {
  version: number;
  upserts: Map<string, unknown>;
  deletes: string[];
}

/** One stream after another, with growing pauses between those that bring nothing. */
abstract class Reopening {
  private readonly abort = new AbortController();
  private attempt = 0;
  /** Why there is no stream at the moment. */
  error: unknown;
  reconnects = -1;

  constructor(protected readonly transport: Transport, private readonly idleMs: number) {}

  get closed(): boolean {
    return this.abort.signal.aborted;
  }

  get signal(): AbortSignal {
    return this.abort.signal;
  }

  close(): void {
    this.abort.abort();
  }

  protected async open(target: string): Promise<LineStream> {
    const stream = await this.transport.stream(target, NDJSON, this.idleMs, this.abort.signal);
    this.reconnects++;
    this.error = undefined;
    return stream;
  }

  /** Every line, parsed. Returns at the end of the stream, proper or not. */
  protected async *lines<Line>(stream: LineStream): AsyncGenerator<Line, void, void> {
    try {
      for await (const batch of stream.batches()) {
        this.attempt = 0;
        for (const line of batch) yield JSON.parse(line) as Line;
      }
    } catch (error) {
      if (this.closed) throw new Closed("closed");
      this.error = error;
    } finally {
      stream.close();
    }
  }

  /** Before the next try. Throws Closed when close() is called meanwhile. */
  async pause(error?: unknown): Promise<void> {
    this.error = error ?? this.error;
    await sleep(pauseMs(this.attempt++, error instanceof ApiError ? error.retryAfter : undefined), this.abort.signal);
  }
}

/**
 * The changes of one dictionary, as batches that each lead to a version. `onGap` is called when changes are no longer kept, or the
 * database went back, and resolves to the version to go on from.
 */
export class Watch extends Reopening {
  constructor(transport: Transport, private readonly path: string, public version: number, idleMs: number,
    private readonly onGap: (error: ApiError) => Promise<number>) {
    super(transport, idleMs);
  }

  async *batches(): AsyncGenerator<Batch, void, void> {
    try {
      while (!this.closed) {
        const stream = await this.next();
        if (!stream) continue;
        yield* this.changes(this.lines<WatchLine>(stream));
        await this.pause();
      }
    } catch (error) {
      if (!this.closed) throw error;
    }
  }

  private async next(): Promise<LineStream | undefined> {
    try {
      return await this.open(`${this.path}/watch?after=${this.version}`);
    } catch (error) {
      if (this.closed) throw error;
      if (error instanceof ApiError && (error.code === "VERSION_TOO_OLD" || error.code === "VERSION_NOT_COMMITTED"))
        this.version = await this.onGap(error);
      else await this.pause(error); // what is refused now may be allowed later: the copy stays readable meanwhile
      return undefined;
    }
  }

  /** Changes count when their `upToDate` comes; those of a stream that broke before it come again. */
  private async *changes(lines: AsyncGenerator<WatchLine>): AsyncGenerator<Batch, void, void> {
    let upserts = new Map<string, unknown>();
    let deletes = new Set<string>();
    for await (const line of lines) {
      if ("op" in line) {
        upserts.delete(line.key);
        deletes.delete(line.key);
        if (line.op === "UPSERT") upserts.set(line.key, line.payload);
        else deletes.add(line.key);
      } else if ("upToDate" in line) {
        if (line.upToDate > this.version || upserts.size || deletes.size) {
          this.version = line.upToDate;
          yield { version: line.upToDate, upserts, deletes: [...deletes] };
        }
        upserts = new Map();
        deletes = new Set();
      }
    }
  }
}

/** The events of one session, each once, in the order of `sequence`; without an end. `position` is the last one. */
export class Chat extends Reopening implements AsyncIterable<ChatEvent> {
  constructor(transport: Transport, private readonly path: string, public position: number | undefined, idleMs: number,
    private readonly skipLost: boolean) {
    super(transport, idleMs);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ChatEvent, void, void> {
    try {
      while (!this.closed) {
        const stream = await this.next();
        if (!stream) continue;
        yield* this.unseen(this.lines<ChatLine>(stream));
        await this.pause();
      }
    } catch (error) {
      if (!this.closed) throw error;
    }
  }

  private async next(): Promise<LineStream | undefined> {
    try {
      return await this.open(this.position === undefined ? this.path : `${this.path}?after=${this.position}`);
    } catch (error) {
      if (this.closed) throw error;
      if (error instanceof SequenceTooOld && this.skipLost) this.position = error.oldestSequence - 1;
      else if (isRepeatable(error)) await this.pause(error);
      else throw error;
      return undefined;
    }
  }

  private async *unseen(lines: AsyncGenerator<ChatLine>): AsyncGenerator<ChatEvent, void, void> {
    for await (const line of lines) {
      if ("event_id" in line && (this.position === undefined || line.sequence > this.position)) {
        this.position = line.sequence;
        yield line;
      }
    }
  }
}
