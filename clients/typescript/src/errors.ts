/** What can go wrong. Everything that this package throws by itself is a FreshetError. */

export class FreshetError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

type Body = Record<string, unknown>;

/** An answer of 400 or more. `code` is for programs and does not change, the message is for people and may. */
export class ApiError extends FreshetError {
  readonly code: string;
  readonly field: string | undefined;
  /** Seconds after which it makes sense to try again, where the server says so. */
  readonly retryAfter: number | undefined;

  constructor(
    readonly status: number,
    readonly body: Body,
    headers?: Headers,
  ) {
    const code = String(body["code"] ?? body["error_code"] ?? "");
    super(`${status} ${code}: ${String(body["message"] ?? body["detail"] ?? "")}`);
    this.code = code;
    this.field = typeof body["field"] === "string" ? body["field"] : undefined;
    const seconds = headers?.get("retry-after");
    this.retryAfter = seconds && /^[0-9]+$/.test(seconds) ? Number(seconds) : undefined;
  }
}

/** The update was accepted, then refused: nothing was changed. `code` says why. It needs a new eventId to be tried again. */
export class UpdateFailed extends ApiError {
  get eventId(): string {
    return String(this.body["eventId"] ?? "");
  }
}

/** The stream's next events are no longer kept: read the history, then follow from `oldestSequence - 1`. */
export class SequenceTooOld extends ApiError {
  get oldestSequence(): number {
    return Number(this.body["oldest_sequence"]);
  }
}

/** No usable answer within the patience. `eventId` (of an update) or `key` repeats the request without a second effect. */
export class Unavailable extends FreshetError {
  eventId: string | undefined;
  key: string | undefined;
}

/** The update is accepted and not lost, but was not decided within the patience: `updateState(eventId)` has its state. */
export class UpdatePending extends FreshetError {
  constructor(readonly eventId: string) {
    super(`update ${eventId} is not decided yet`);
  }
}

/** It did not happen in time. */
export class TimeoutError extends FreshetError {}

/** Your `convert` threw (`cause`) for the item `key`: the copy has ended, since it cannot hold this version. */
export class ConvertFailed extends FreshetError {
  constructor(readonly key: string, cause: unknown) {
    super(`convert failed for the item ${JSON.stringify(key)}: ${String(cause)}`, { cause });
  }
}

/** It was closed meanwhile. */
export class Closed extends FreshetError {}

export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  let body: Body = { message: text.slice(0, 200) };
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) body = value as Body;
  } catch {
    // not ours: a proxy's page, for example
  }
  const kind =
    body["status"] === "FAILED" ? UpdateFailed : body["code"] === "SEQUENCE_TOO_OLD" ? SequenceTooOld : ApiError;
  return new kind(response.status, body, response.headers);
}
