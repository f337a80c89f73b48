// Calls the server by openapi-fetch with the types that openapi-typescript generated. Compiled and run by test_generators.py.
// A line that must not compile has `@ts-expect-error` before it; those are in `forbidden`, which is never called.
import createClient from "openapi-fetch";

import type { paths } from "./schema.js";

declare const process: { env: Record<string, string> };

const client = createClient<paths>({
  baseUrl: process.env["FRESHET_URL"]!,
  headers: { Authorization: `Bearer ${process.env["FRESHET_TOKEN"]}` },
});

function check(condition: boolean, what: unknown): void {
  if (!condition) throw new Error(`wrong: ${JSON.stringify(what)}`);
}

const id = () => crypto.randomUUID();
const country = { tenantId: "demo", dictCode: "COUNTRY" };

async function dictionaries(): Promise<void> {
  const item = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}", { params: { path: { ...country, key: "a,b" } } });
  check(item.data?.key === "a,b" && item.data.payload === 1, item);
  const none = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}", { params: { path: { ...country, key: "none" } } });
  check(none.error?.code === "ITEM_NOT_FOUND", none.error);
  const many = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/items", {
    params: { path: country, query: { keys: ["JP", "a,b", "none"] } },
  });
  check(many.data?.items.length === 2 && many.data.missing[0] === "none", many);
  const page = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/all", { params: { path: country, query: { limit: 2 } } });
  if (!page.data || !("items" in page.data)) throw new Error("not a page"); // NDJSON has another type
  const cursor: string | null = page.data.nextCursor;
  check(page.data.items.length === 2 && cursor !== null, page);
  const version = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/version", {
    params: { path: country, header: { "X-Min-Version": 4 } },
  });
  check(version.data?.itemCount === 3, version);
  const stop = new AbortController();
  const watch = await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/watch", {
    params: { path: country, query: { after: 4 } }, parseAs: "stream", signal: stop.signal,
  });
  const piece = await watch.data!.getReader().read();
  check(new TextDecoder().decode(piece.value).includes("upToDate"), piece);
  stop.abort();
}

async function updates(): Promise<void> {
  const eventId = id();
  for (;;) {
    const done = await client.POST("/v1/tenants/{tenantId}/updates", {
      params: { path: { tenantId: "demo" }, query: { consistencyMode: "WAIT_COMMIT", timeoutMs: 1000 } },
      body: { eventId, dictCode: "FEATURE", eventType: "DELTA", items: [{ key: "t", op: "UPSERT", payload: 1 }, { key: "u", op: "DELETE" }] },
    });
    check(done.data !== undefined, done);
    if (done.data!.status === "COMMITTED") break;
  }
  const state = await client.GET("/v1/tenants/{tenantId}/updates/{eventId}", { params: { path: { tenantId: "demo", eventId } } });
  check(state.data?.status === "COMMITTED" && state.data.committedVersion > 0, state);
  const chunk = await client.POST("/v1/tenants/{tenantId}/updates", {
    params: { path: { tenantId: "demo" } },
    body: { dictCode: "FEATURE", eventType: "SNAPSHOT", snapshotId: id(), chunkIndex: 1, chunksTotal: 2, items: [{ key: "a", payload: null }] },
  });
  check(chunk.data?.status === "PENDING", chunk);
}

async function others(): Promise<void> {
  const sku = id();
  const made = await client.POST("/api/v1/items", { params: { header: { "Idempotency-Key": sku } }, body: { sku, title: "Tea", price: 4.5 } });
  check(made.data?.sku === sku && made.data["price"] === 4.5, made);
  const taken = await client.POST("/api/v1/items", { body: { sku, title: "Tea" } });
  check(taken.error !== undefined && "error_code" in taken.error && taken.error.error_code === "SKU_TAKEN", taken.error);
  const entity = await client.GET("/v1/hydration/{entity_type}/{entity_id}", {
    params: { path: { entity_type: "item", entity_id: sku }, query: { mode: "partial", fields: ["title", "price"] } },
  });
  check(entity.data !== undefined && "data" in entity.data && entity.data.data["title"] === "Tea", entity);
  const body = { user_id: sku, stock_keeping_unit: sku, reason: "r", purchase_id: "p" };
  const granted = await client.POST("/v1/entitlements/grants", { params: { header: { "Idempotency-Key": sku } }, body });
  check(granted.data?.status === "ACTIVE", granted);
  const chat = { project_id: id(), session_id: id() };
  const message = await client.POST("/my/projects/{project_id}/chat/{session_id}/message", { params: { path: chat }, body: { content: "hi" } });
  check(message.data?.reply === "hi", message);
  const history = await client.GET("/my/projects/{project_id}/chat/{session_id}/messages", { params: { path: chat } });
  check(history.data?.messages.map((row) => row.role).join() === "user,assistant", history);
  const health = await client.GET("/actuator/health");
  check(health.data?.status === "UP", health);
}

export async function forbidden(): Promise<void> {
  const params = { path: { tenantId: "demo" } };
  await client.POST("/v1/tenants/{tenantId}/updates", {
    params,
    // @ts-expect-error op is required in a DELTA
    body: { dictCode: "FEATURE", eventType: "DELTA", items: [{ key: "t", payload: 1 }] },
  });
  await client.POST("/v1/tenants/{tenantId}/updates", {
    params,
    // @ts-expect-error a snapshot deletes nothing by name
    body: { dictCode: "FEATURE", eventType: "SNAPSHOT", items: [{ key: "t", op: "DELETE", payload: 1 }] },
  });
  await client.POST("/v1/tenants/{tenantId}/updates", {
    params,
    // @ts-expect-error dictCode is required
    body: { eventType: "DELTA", items: [] },
  });
  await client.POST("/v1/tenants/{tenantId}/updates", {
    params,
    // @ts-expect-error there is no such eventType
    body: { dictCode: "FEATURE", eventType: "MERGE", items: [] },
  });
  // @ts-expect-error keys are required
  await client.GET("/v1/tenants/{tenantId}/dictionaries/{dictCode}/items", { params: { path: country, query: {} } });
  const body = { user_id: "u", stock_keeping_unit: "s", reason: "r", purchase_id: "p" };
  // @ts-expect-error a grant needs a key
  await client.POST("/v1/entitlements/grants", { body });
  // @ts-expect-error there is no such path
  await client.GET("/v1/none");
}

await dictionaries();
await updates();
await others();
console.log("everything was called");
