export { Client, type ClientOptions, type UpdateResult } from "./client.js";
export { Copy, type CopyOptions } from "./copy.js";
export {
  ApiError, Closed, ConvertFailed, FreshetError, SequenceTooOld, TimeoutError, Unavailable, UpdateFailed, UpdatePending,
} from "./errors.js";
export type { components, operations, paths } from "./schema.js";
export { type Batch, Chat, type ChatEvent } from "./streams.js";
export type { TokenSource } from "./transport.js";
