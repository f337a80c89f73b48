/* What a stream asks of Redis. Where several commands must see one state they are a script, which Redis runs as one; all of
 * a script's keys are in the stream's slot. Texts come as arguments, never as part of a script. */
#include "bus/redis/inside.h"

#include "base/clock.h"

#define INFO_FUNCTION                                                     \
    "local function look(stream)\n"                                       \
    "  local info, fields = redis.pcall('XINFO', 'STREAM', stream), {}\n" \
    "  for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end\n"        \
    "  return fields\n"                                                   \
    "end\n"

/* Makes the group where it is not there. KEYS: stream, alive (or the stream again). ARGV: group; the id it begins behind;
 * "new" = instead of an old one of that name, "lost" = it was there, "" = else; how long we count as alive, 0 = that is
 * nobody's business. A stream that ends before where a lost group stood is another one: all of it is new. */
static const char group_script[] =
    INFO_FUNCTION "local stream, group, from = KEYS[1], ARGV[1], ARGV[2]\n"
                  "local function parts(id)\n"
                  "  local ms, seq = string.match(id or '0-0', '(%d+)-(%d+)')\n"
                  "  return tonumber(ms), tonumber(seq)\n"
                  "end\n"
                  "if ARGV[3] == 'new' then redis.pcall('XGROUP', 'DESTROY', stream, group) end\n"
                  "if ARGV[3] == 'lost' then\n"
                  "  local ms, seq = parts(from)\n"
                  "  local last_ms, last_seq = parts(look(stream)['last-generated-id'])\n"
                  "  if last_ms < ms or (last_ms == ms and last_seq < seq) then from = '0' end\n"
                  "end\n"
                  "local made = redis.pcall('XGROUP', 'CREATE', stream, group, from, 'MKSTREAM')\n"
                  "if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end\n"
                  "if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[4]) end\n"
                  "local fields = look(stream)\n"
                  "return {fields['entries-added'] or -1, fields['length'], fields['last-generated-id']}\n";

/* First what is pending, then what is new. KEYS: stream, lease (or the stream again). ARGV: group, consumer, count, our
 * token ('' = no lease needed), its time. Answers nil when another one holds the lease, else [entries ever added, there,
 * last id, entries]. */
static const char check_script[] = INFO_FUNCTION
    "local stream, token = KEYS[1], ARGV[4]\n"
    "local holder = token ~= '' and redis.call('GET', KEYS[2])\n"
    "if holder and holder ~= token then return false end\n"
    "local function read(from)\n"
    "  local got = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', stream, from)\n"
    "  if not got then return {} end\n"
    "  if got.err then return got end\n"
    "  return got[1][2]\n"
    "end\n"
    "local entries = read('0')\n"
    "if not entries.err and #entries == 0 then entries = read('>') end\n"
    "if token ~= '' and not entries.err and #entries > 0 then\n"
    "  redis.call('SET', KEYS[2], token, 'PX', ARGV[5])\n"
    "elseif holder then\n"
    "  redis.call('DEL', KEYS[2])\n"
    "end\n"
    "if entries.err then return entries end\n"
    "local fields = look(stream)\n"
    "return {fields['entries-added'] or -1, fields['length'], fields['last-generated-id'], entries}\n";

/* KEYS: lease. ARGV: token, time. */
static const char renew_script[] = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end\n"
                                   "return redis.call('PEXPIRE', KEYS[1], ARGV[2])\n";

static const char release_script[] = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end\n"
                                     "return redis.call('DEL', KEYS[1])\n";

/* The groups of other pods that seem to be dead, and how far behind ours is. KEYS: stream, our alive key. ARGV: our group,
 * what other pods' groups begin with ('' = none are looked for), what their alive keys begin with, how long is dead. Answers
 * [lag, group …]. */
static const char look_script[] =
    "local groups, own, prefix = redis.call('XINFO', 'GROUPS', KEYS[1]), ARGV[1], ARGV[2]\n"
    "if prefix ~= '' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[4]) end\n"
    "local found = {-1}\n"
    "for _, group in ipairs(groups) do\n"
    "  local fields = {}\n"
    "  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end\n"
    "  local name = fields['name']\n"
    "  if name == own then\n"
    "    found[1] = (fields['lag'] or -1)\n"
    "    if found[1] >= 0 then found[1] = found[1] + fields['pending'] end\n"
    "  elseif prefix ~= '' and string.sub(name, 1, #prefix) == prefix and #found < 64\n"
    "      and redis.call('EXISTS', ARGV[3] .. string.sub(name, #prefix + 1)) == 0 then\n"
    "    local idle = true\n"
    "    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], name)) do\n"
    "      for i = 1, #consumer, 2 do\n"
    "        if consumer[i] == 'idle' and consumer[i + 1] < tonumber(ARGV[4]) then idle = false end\n"
    "      end\n"
    "    end\n"
    "    if idle then found[#found + 1] = name end\n"
    "  end\n"
    "end\n"
    "return found\n";

#define SHARED_CONSUMER \
    STR("shared") /* one name for whoever holds the lease: what it left pending is the next one's */

static struct str consumer_of(const struct redis_stream *stream)
{
    return redis_stream_is_shared(stream) ? SHARED_CONSUMER : str_from(stream->reader->redis->pod);
}

static struct str stream_of(const struct redis_stream *stream)
{
    return str_from(stream->names->stream);
}

/* Where a group begins that was not there yet, and after ours was lost: behind what we have settled. */
static struct str first_id(const struct redis_stream *stream, char text[REDIS_ID_BYTES])
{
    const struct bus_subscription *spec = &stream->reader->consumer.spec;

    if (stream->regroup)
        return redis_id_put(stream->done, text);
    if (spec->from == BUS_FROM_START)
        return STR("0");
    return STR("$");
}

void redis_script_group(struct redis_stream *stream, struct redis_request *request)
{
    const struct bus_redis_config *config = &stream->reader->redis->config;
    bool every = !redis_stream_is_shared(stream);
    char id[REDIS_ID_BYTES];
    struct redis_number alive_ms;

    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("EVAL"), STR(group_script), STR("2"), stream_of(stream),
                  every ? str_from(stream->alive) : stream_of(stream), str_from(stream->group),
                  first_id(stream, id),
                  stream->regroup ? STR("lost")
                  : every         ? STR("new")
                                  : STR(""),
                  redis_number_str(&alive_ms, every ? config->pod_dead_ms : 0));
}

void redis_script_read(struct redis_stream *stream, struct redis_request *request)
{
    struct redis_number count;

    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("XREADGROUP"), STR("GROUP"), str_from(stream->group),
                  consumer_of(stream), STR("COUNT"), redis_number_str(&count, stream->count_max),
                  STR("STREAMS"), stream_of(stream), STR(">"));
}

void redis_script_check(struct redis_stream *stream, struct redis_request *request)
{
    const struct redis *redis = stream->reader->redis;
    bool shared = redis_stream_is_shared(stream);
    struct redis_number count, lease_ms;

    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("EVAL"), STR(check_script), STR("2"), stream_of(stream),
                  shared ? str_from(stream->lease) : stream_of(stream), str_from(stream->group),
                  consumer_of(stream), redis_number_str(&count, stream->count_max),
                  shared ? str_from(redis->instance) : STR(""),
                  redis_number_str(&lease_ms, redis->config.lease_ms));
}

void redis_script_ack(struct redis_stream *stream, struct redis_request *request)
{
    struct arena arena;
    size_t count = 3 + stream->ack_count;

    arena_init(&arena, 16384);
    struct str *arguments = arena_alloc(&arena, count * sizeof arguments[0]);
    arguments[0] = STR("XACK");
    arguments[1] = stream_of(stream);
    arguments[2] = str_from(stream->group);
    for (size_t i = 0; i < stream->ack_count; i++)
        arguments[3 + i] = redis_id_put(stream->acks[i], arena_alloc(&arena, REDIS_ID_BYTES));
    redis_request_begin(request, stream->names->slot, 1);
    redis_command_put(&request->commands, arguments, count);
    arena_deinit(&arena);
}

void redis_script_renew(struct redis_stream *stream, struct redis_request *request)
{
    const struct redis *redis = stream->reader->redis;
    struct redis_number lease_ms;

    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("EVAL"), STR(renew_script), STR("1"), str_from(stream->lease),
                  str_from(redis->instance), redis_number_str(&lease_ms, redis->config.lease_ms));
}

void redis_script_release(struct redis_stream *stream, struct redis_request *request)
{
    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("EVAL"), STR(release_script), STR("1"), str_from(stream->lease),
                  str_from(stream->reader->redis->instance));
}

void redis_script_leave(struct redis_stream *stream, struct redis_request *request)
{
    redis_request_begin(request, stream->names->slot, 2);
    REDIS_COMMAND(&request->commands, STR("XGROUP"), STR("DESTROY"), stream_of(stream),
                  str_from(stream->group));
    REDIS_COMMAND(&request->commands, STR("DEL"), str_from(stream->alive));
}

void redis_script_look(struct redis_stream *stream, struct redis_request *request)
{
    const struct redis_reader *reader = stream->reader;
    struct redis_number dead_ms;
    struct buf prefix, alive;

    buf_init(&prefix);
    buf_init(&alive);
    if (!redis_stream_is_shared(stream)) { /* both end in the same */
        buf_printf(&prefix, "%s:", reader->consumer.spec.group);
        size_t tail_len = strlen(stream->group) - buf_len(&prefix);
        buf_put(&alive, stream->alive, strlen(stream->alive) - tail_len);
    }
    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("EVAL"), STR(look_script), STR("2"), stream_of(stream),
                  stream->alive ? str_from(stream->alive) : stream_of(stream), str_from(stream->group),
                  buf_str(&prefix), buf_str(&alive),
                  redis_number_str(&dead_ms, reader->redis->config.pod_dead_ms));
    buf_deinit(&prefix);
    buf_deinit(&alive);
}

void redis_script_bury(struct redis_stream *stream, struct redis_request *request, struct str group)
{
    redis_request_begin(request, stream->names->slot, 1);
    REDIS_COMMAND(&request->commands, STR("XGROUP"), STR("DESTROY"), stream_of(stream), group);
}
