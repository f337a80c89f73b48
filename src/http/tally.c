/* The server's metrics. Requests of one turn with the same labels are added up and counted together, so that a
 * pipeline of the same request costs a comparison each and one read of the clock in all. */
#include "base/memory.h"
#include "http/http_inside.h"

enum { REQUESTS, DURATIONS, CONNECTIONS, PARSE_ERRORS, CUTS, IDLE_CLOSES, HELD_REFUSED, HANDSHAKES };

static struct metric_family families[] = {
    [REQUESTS] = {.name = "http_requests_total",
                  .help = "Requests answered, by method, route and status.",
                  .labels = {"method", "route", "status"}},
    [DURATIONS] = {.name = "http_request_duration_seconds",
                   .help = "Seconds from the complete request head to the answer's head, by route.",
                   .type = METRIC_HISTOGRAM,
                   .labels = {"route"}},
    [CONNECTIONS] = {.name = "http_connections", .help = "Open client connections.", .type = METRIC_GAUGE},
    [PARSE_ERRORS] = {.name = "http_parse_errors_total",
                      .help = "Requests whose head or framing was refused."},
    [CUTS] = {.name = "http_cut_total",
              .help =
                  "Connections cut because their client was slow: slow = below writeRate, full = there was "
                  "no memory for its answers or its request.",
              .labels = {"reason"}},
    [IDLE_CLOSES] = {.name = "http_idle_closed_total",
                     .help = "Idle connections closed because there were too many connections."},
    [HELD_REFUSED] = {.name = "http_held_refused_total",
                      .help = "Requests refused because their tenant held half of the connections."},
    [HANDSHAKES] = {.name = "http_tls_handshakes_total",
                    .help = "TLS handshakes that ended, by result: full, resumed, failed.",
                    .labels = {"result"}},
};

void http_tally_register(struct http_server *server)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        metrics_register(&families[i]);
    server->connections_gauge = metric_series_get(&families[CONNECTIONS], NULL);
    server->parse_errors = metric_series_get(&families[PARSE_ERRORS], NULL);
    server->slow_cuts = metric_series_get(&families[CUTS], &(struct str){"slow", 4});
    server->full_cuts = metric_series_get(&families[CUTS], &(struct str){"full", 4});
    server->idle_closes = metric_series_get(&families[IDLE_CLOSES], NULL);
    server->held_refused = metric_series_get(&families[HELD_REFUSED], NULL);
    for (unsigned i = 0; i < HTTP_HANDSHAKES && server->config.tls; i++) {
        static const char *const results[] = {"full", "resumed", "failed"};
        struct str result = str_from(results[i]);
        server->handshakes[i] = metric_series_get(&families[HANDSHAKES], &result);
    }
    server->unmatched = memory_zalloc(sizeof *server->unmatched);
}

static struct str route_label(const struct http_entry *entry)
{
    return entry->route ? str_from(entry->route->path) : STR("unmatched");
}

static struct metric_series *counter_of(struct http_entry *entry, bool is_head, int status)
{
    _Atomic(struct metric_series *) *slot = &entry->counters[is_head][http_status_slot(status)];
    struct metric_series *series = atomic_load_explicit(slot, memory_order_acquire);

    if (!series) {
        const char *method = is_head        ? "HEAD"
                             : entry->route ? http_method_name(entry->route->method)
                                            : "other";
        char digits[4] = {(char)('0' + status / 100 % 10), (char)('0' + status / 10 % 10),
                          (char)('0' + status % 10)};
        struct str labels[] = {str_from(method), route_label(entry), str_from(digits)};
        series = metric_series_get(&families[REQUESTS], labels);
        atomic_store_explicit(slot, series, memory_order_release);
    }
    return series;
}

static struct metric_series *latency_of(struct http_entry *entry)
{
    struct metric_series *series = atomic_load_explicit(&entry->latency, memory_order_acquire);

    if (!series) {
        struct str label = route_label(entry);
        series = metric_series_get(&families[DURATIONS], &label);
        atomic_store_explicit(&entry->latency, series, memory_order_release);
    }
    return series;
}

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_mono_ns() - start_ns) / 1e9;
}

void http_tally_flush(struct http_home *home)
{
    struct http_tally *tally = &home->tally;

    if (tally->count == 0)
        return;
    home->clock_ns = clock_mono_ns();
    double seconds = (double)(home->clock_ns - loop_now_ns(home->loop)) / 1e9;
    struct metric_series *latency = latency_of(tally->entry);
    metric_add(counter_of(tally->entry, tally->is_head, tally->status), tally->count);
    metric_observe_times(latency, seconds, tally->count);
    *tally = (struct http_tally){0};
}

void http_tally_count(struct http_exchange *exchange, int status)
{
    struct http_tally *tally = &exchange->home->tally;
    struct http_entry *entry = exchange->entry;
    bool is_head = exchange->request.method == HTTP_HEAD;

    if (exchange->observed.is_due)
        http_observe_end(exchange, status);
    if (exchange->is_late) {
        http_budget_leave_waiting(exchange);
        metric_add(counter_of(entry, is_head, status), 1);
        metric_observe(latency_of(entry), seconds_since(exchange->started_ns));
        return;
    }
    if (tally->entry != entry || tally->status != status || tally->is_head != is_head)
        http_tally_flush(exchange->home);
    tally->entry = entry;
    tally->status = status;
    tally->is_head = is_head;
    tally->count++;
}

void http_tally_count_unmatched(struct http_home *home, int status)
{
    metric_add(counter_of(home->server->unmatched, false, status), 1);
}
