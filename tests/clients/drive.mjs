// The TypeScript client as driver.py tells it. Names of commands and arguments are those of drive.py.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { Client, FreshetError } from "./dist/index.js";

const copies = new Map();
const chats = new Map();
const changes = new Map();
let client;
let tokenCalls = 0;

function described(error) {
  const { name, code, status, eventId, key, oldestSequence, retryAfter } = error;
  return { name, message: String(error.message), code, status, event_id: eventId, key, oldest_sequence: oldestSequence, retry_after: retryAfter };
}

async function all(generator) {
  const rows = [];
  for await (const row of generator) rows.push(row);
  return rows;
}

const result = ({ eventId, status, version }) => ({ event_id: eventId, status, version });
const least = (min_version) => (min_version === undefined ? {} : { minVersion: min_version });

async function listen(chat, heard) {
  try {
    for await (const event of chat) heard.events.push(event);
  } catch (error) {
    if (!(error instanceof FreshetError)) throw error;
    heard.error = described(error);
  }
}

function torn(copy) {
  const labels = new Set([...copy].map(([, item]) => item.label));
  return labels.size > 1 ? 1 : 0;
}

const commands = {
  open({ url, tenant, token, token_file, timeout = 10, patience = 30, read_your_writes = true }) {
    const read = () => (tokenCalls++, readFileSync(token_file, "ascii"));
    client = new Client({
      url, tenant, token: token_file ? read : token, timeoutMs: timeout * 1000, patienceMs: patience * 1000, readYourWrites: read_your_writes,
    });
  },
  get: async ({ dictionary, key, min_version }) => (await client.get(dictionary, key, least(min_version))) ?? null,
  get_many: ({ dictionary, keys, min_version }) => client.getMany(dictionary, keys, least(min_version)),
  version: ({ dictionary, min_version }) => client.version(dictionary, least(min_version)),
  entity: async ({ entity_type, entity_id, fields }) => (await client.entity(entity_type, entity_id, fields ? { fields } : {})) ?? null,
  update: async ({ dictionary, upserts, deletes, event_id, wait = true }) =>
    result(await client.update(dictionary, { upserts: upserts ?? {}, deletes: deletes ?? [] }, { ...(event_id ? { eventId: event_id } : {}), wait })),
  update_state: ({ event_id }) => client.updateState(event_id),
  replace: async ({ dictionary, items }) => result(await client.replace(dictionary, items)),
  numbered: async ({ dictionary, count }) =>
    result(await client.replace(dictionary, Array.from({ length: count }, (_, i) => [`n${i}`, { i, name: `item ${i}` }]))),
  create_item: ({ key, ...item }) => client.createItem(item, key ? { key } : {}),
  read_item: ({ sku }) => client.readItem(sku),
  grant: ({ key, sku, ...change }) => client.grant({ ...change, stock_keeping_unit: sku }, key ? { key } : {}),
  revoke: ({ key, sku, ...change }) => client.revoke({ ...change, stock_keeping_unit: sku }, key ? { key } : {}),
  dictionaries: () => all(client.dictionaries()),
  entitlements: ({ user_id }) => all(client.entitlements(user_id)),
  notifications: ({ user_id }) => all(client.notifications(user_id)),
  messages: ({ project_id, session_id }) => all(client.messages(project_id, session_id)),
  events: ({ project_id, ...query }) => all(client.events(project_id, query)),
  post_message: ({ project_id, session_id, content, key }) => client.postMessage(project_id, session_id, content, key ? { key } : {}),
  request: async ({ method, target, body }) =>
    (await client.request(method, target, body === undefined ? {} : { body: JSON.stringify(body) })).json,
  async follow({ name, dictionary, idle = 45, only, boxed, fails_at }) {
    changes.set(name, []);
    const options = { idleMs: idle * 1000, onChange: (batch) => changes.get(name).push(batch) };
    if (only) options.convert = (payload) => payload[only];
    if (boxed) options.convert = (payload) => new Map(Object.entries(payload));
    if (fails_at) options.convert = (payload) => {
      if (payload.label >= fails_at) throw new Error("too high");
      return payload;
    };
    copies.set(name, await client.follow(dictionary, options));
    return copies.get(name).version;
  },
  copy({ name }) {
    const { version, size, reconnects, reloads, error } = copies.get(name);
    return { version, size, reconnects, reloads, error: error ? described(error) : null };
  },
  copy_all({ name }) {
    const { version, items } = copies.get(name).snapshot();
    return { version, items: Object.fromEntries(items) };
  },
  copy_get: ({ name, key }) => copies.get(name).get(key) ?? null,
  copy_wait: ({ name, version, timeout = 60 }) => copies.get(name).waitFor(version, timeout * 1000),
  copy_close: ({ name }) => copies.get(name).close(),
  changes: ({ name }) => changes.get(name).map(({ version, upserts, deletes }) => [version, [...upserts.keys()].sort(), [...deletes].sort()]),
  async torn({ name, seconds }) {
    const until = Date.now() + seconds * 1000;
    let wrong = 0, seen = 0;
    for (; Date.now() < until; seen++) {
      wrong += torn(copies.get(name));
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    return [wrong, seen];
  },
  listen({ name, project, session, after, skip_lost, idle_timeout }) {
    const chat = client.chat(project, session, {
      ...(after === undefined ? {} : { after }), skipLost: skip_lost ?? false, ...(idle_timeout ? { idleMs: idle_timeout * 1000 } : {}),
    });
    const heard = { chat, events: [], error: null };
    heard.done = listen(chat, heard);
    chats.set(name, heard);
  },
  heard({ name }) {
    const { events, error, chat } = chats.get(name);
    return { events, error, position: chat.position ?? null, reconnects: chat.reconnects };
  },
  token_calls: () => tokenCalls,
  memory() {
    globalThis.gc?.();
    return process.memoryUsage().rss;
  },
  async end() {
    for (const copy of copies.values()) copy.close();
    for (const { chat, done } of chats.values()) {
      chat.close();
      await done;
    }
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: command, args } = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[command](args))
    .then((ok) => ({ id, ok: ok ?? null }), (error) => ({ id, error: described(error) }))
    .then((answer) => process.stdout.write(JSON.stringify(answer) + "\n"));
}
