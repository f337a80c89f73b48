#!/usr/bin/env python3
"""Writes the Grafana dashboards of deploy/grafana from the tables below. `--check` only compares; ./dev lint does.

A panel is (title, unit, description, *queries), a query (PromQL, legend). $S stands for the selected processes. A unit that
begins with "stat:" makes a panel with one number for each series instead of a graph. Panels stand two in a row, numbers four.
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "deploy/grafana"
PROCESSES = 'job=~"$job",instance=~"$instance"'


def quantiles(metric, by="", matchers=""):
    """Queries for the median, p95 and p99 of a histogram."""
    labels = "le, " + by if by else "le"
    legend = " {{" + "}} {{".join(by.split(", ")) + "}}" if by else ""
    return [(f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{$S{matchers}}}[$__rate_interval])))",
             f"p{q * 100:g}{legend}") for q in (0.5, 0.95, 0.99)]


def rate(metric, by, matchers=""):
    """A query for the rate of a counter."""
    legend = " ".join("{{" + label + "}}" for label in by.split(", "))
    return (f"sum by ({by}) (rate({metric}{{$S{matchers}}}[$__rate_interval]))", legend)


READS = ',route=~".*/dictionaries/.*/(items.*|all|version)"'
NOT_OURS = ',route!~"/actuator/.*"'

DASHBOARDS = {
    "overview": ("freshet: overview", "Is everything well, and how much is going on?", [
        ("Processes", "stat:short", "Processes that Prometheus reaches.", ("sum by (job) (up{$S})", "{{job}}")),
        ("Roles that are DOWN", "stat:short", "Roles that cannot work, over all processes.",
         ("sum by (role) (1 - freshet_role_up{$S}) > 0 or sum(1 - freshet_role_up{$S})", "{{role}}")),
        ("Components that are DOWN", "stat:short", "Databases and engines that processes cannot use.",
         ("sum by (component) (1 - freshet_component_up{$S}) > 0 or sum(1 - freshet_component_up{$S})", "{{component}}")),
        ("Firing alerts", "stat:short", "Alerts of deploy/prometheus that fire now.",
         ('count(ALERTS{alertname=~"Freshet.*",alertstate="firing"}) or vector(0)', "alerts")),
        ("Requests", "reqps", "Requests answered, without health checks and scrapes.", rate("http_requests_total", "status", NOT_OURS)),
        ("Errors", "percentunit", "Requests answered with 5xx.",
         (f'(sum by (job) (rate(http_requests_total{{$S,status=~"5.."{NOT_OURS}}}[$__rate_interval]))'
          f' or 0 * sum by (job) (rate(http_requests_total{{$S{NOT_OURS}}}[$__rate_interval])))'
          f' / sum by (job) (rate(http_requests_total{{$S{NOT_OURS}}}[$__rate_interval]))', "{{job}}")),
        ("Reads of items", "s", "From the request's head to the answer's head. Objective: p95 10 ms, p99 25 ms.",
         *quantiles("http_request_duration_seconds", matchers=READS)),
        ("Freshness", "s", "From a commit until a pod serves it. Objective: p95 300 ms, p99 1 s.",
         *quantiles("refdata_freshness_seconds")),
        ("Processor", "short", "Cores in use.", ("sum by (instance) (rate(process_cpu_seconds_total{$S}[$__rate_interval]))",
                                                 "{{instance}}")),
        ("Memory", "bytes", "Resident memory of the processes.", ("process_resident_memory_bytes{$S}", "{{instance}}")),
        ("Connections", "short", "Open connections of clients, and to PostgreSQL.",
         ("sum by (instance) (http_connections{$S})", "clients {{instance}}"),
         ("sum by (instance) (db_connections{$S})", "PostgreSQL {{instance}}")),
        ("Versions", "short", "Processes by the version they run.",
         ("count by (version, commit) (freshet_build_info{$S})", "{{version}} {{commit}}")),
        ("TLS handshakes", "ops", "By result: full, resumed, failed.", rate("http_tls_handshakes_total", "result")),
        ("Spans", "ops", "By result: exported, or dropped, failed, rejected. Alert: FreshetSpansLost.",
         rate("freshet_trace_spans_total", "result")),
    ]),
    "freshness": ("freshet: freshness", "How soon do pods serve what was committed?", [
        ("Freshness", "s", "From a commit until a pod serves it. Objective: p95 300 ms, p99 1 s.",
         *quantiles("refdata_freshness_seconds")),
        ("Freshness by dictionary (p99)", "s", "The slowest hundredth of the changes of each dictionary.",
         ("histogram_quantile(0.99, sum by (le, dict_code) (rate(refdata_freshness_seconds_bucket{$S}[$__rate_interval])))",
          "{{dict_code}}")),
        ("Versions behind", "short", "Versions that a pod was behind the database at its last sweep.",
         ("max by (instance, dict_code) (dict_version_lag{$S})", "{{instance}} {{dict_code}}")),
        ("Changes", "ops", "Changes that pods have taken over.",
         ("sum by (dict_code) (rate(refdata_freshness_seconds_count{$S}[$__rate_interval]))", "{{dict_code}}")),
        ("Loads", "ops", "Successful loads, of everything or of changed keys only.",
         ("sum by (dict_code, mode) (rate(cache_reload_duration_count{$S}[$__rate_interval]))", "{{dict_code}} {{mode}}")),
        ("Time of a load", "s", "Time of successful loads.", *quantiles("cache_reload_duration", "mode")),
        ("Failed loads", "ops", "The version from before is served meanwhile.", rate("cache_reload_errors", "dict_code")),
        ("Reads from PostgreSQL", "ops", "Reads whose demanded version was not in memory yet.",
         rate("postgres_fallback_reads", "dict_code")),
        ("Items", "short", "Items in memory.", ("max by (dict_code) (dict_items{$S})", "{{dict_code}}")),
        ("Memory of dictionaries", "bytes", "Memory of the snapshots.",
         ("sum by (instance) (dict_memory_bytes{$S})", "{{instance}}")),
        ("Lost versions and differing content", "short", "Versions that went back, and copies that differed from the database.",
         ("sum by (dict_code) (increase(dict_version_regressions_total{$S}[$__rate_interval]))", "regression {{dict_code}}"),
         ("sum by (dict_code) (increase(dict_digest_mismatches_total{$S}[$__rate_interval]))", "mismatch {{dict_code}}")),
        ("Unavailable dictionaries", "short", "1 while PostgreSQL refuses the SQL of a dictionary.",
         ("max by (dict_code) (dict_unavailable{$S})", "{{dict_code}}")),
    ]),
    "writes": ("freshet: writes", "Are updates accepted and applied?", [
        ("Updates received", "ops", "By result: accepted, replayed, rejected (4xx), unavailable (503).",
         rate("refdata_updates_total", "result")),
        ("Updates applied", "ops", "By result: committed, failed, staged (a chunk), duplicate, unreadable.",
         rate("refdata_apply_total", "result")),
        ("Commands that wait", "short", "Messages that are not handled yet, measured by any process.",
         ("max by (topic, group, database) (bus_lag{$S})", "{{topic}} {{group}} {{database}}")),
        ("Messages handled", "ops", "By verdict; a retried message counts each time.",
         rate("bus_consumed_total", "topic, verdict")),
        ("Time of a commit", "s", "Commits of accepted updates, with retries.", *quantiles("refdata_commit_seconds")),
        ("Time to apply", "s", "From the first statement of a batch to its commit.", *quantiles("refdata_apply_seconds")),
        ("Updates in a commit", "short", "Mean size of a batch.",
         ("sum(rate(refdata_commit_batch_size_sum{$S}[$__rate_interval]))"
          " / sum(rate(refdata_commit_batch_size_count{$S}[$__rate_interval]))", "accepted"),
         ("sum(rate(refdata_apply_batch_size_sum{$S}[$__rate_interval]))"
          " / sum(rate(refdata_apply_batch_size_count{$S}[$__rate_interval]))", "applied")),
        ("Updates without a carrier", "short", "Found by the auditor; anything above 0 was lost by a bus.",
         ("sum by (result) (increase(refdata_audit_total{$S}[$__rate_interval]))", "{{result}}")),
        ("Wait for a connection", "s", "Time to get a connection from a pool.", *quantiles("db_acquire_wait_seconds", "database")),
        ("Database", "ops", "Failed calls by status.", rate("db_errors_total", "database, status")),
        ("Circuit breakers", "short", "1 while a database is not reached.",
         ("max by (instance, database) (db_breaker_open{$S})", "{{instance}} {{database}}")),
        ("Entitlements and items", "ops", "Changes of entitlements, items created.",
         rate("entitlement_changes_total", "change"), rate("intake_items_total", "result")),
    ]),
    "outbox": ("freshet: outbox and dead letters", "Are committed events published, and what was given up?", [
        ("Events that wait", "short", "Committed and not yet published.",
         ("max by (module, event_type) (outbox_pending_count{$S})", "{{module}} {{event_type}}")),
        ("Age of the oldest", "s", "Of the events that wait. Alert: FreshetOutboxOld.",
         ("max by (module, event_type) (outbox_oldest_pending_age_seconds{$S})", "{{module}} {{event_type}}")),
        ("Committed", "ops", "Events that writers have committed.", rate("outbox_enqueued_total", "module, event_type")),
        ("Published", "ops", "Events that were published.", rate("outbox_publish_success_total", "module, event_type")),
        ("Failed attempts", "ops", "Also while the bus is away. Alert: FreshetOutboxFailing.",
         rate("outbox_publish_failed_total", "module, event_type")),
        ("Time to publish", "ms", "From an event's creation until its publication is recorded.",
         *quantiles("outbox_publish_latency_ms", "module")),
        ("Given up", "short", "Events that became FAILED: `freshet outbox list` shows them.",
         ("sum by (module, event_type) (increase(outbox_dead_lettered_total{$S}[$__rate_interval]))", "{{module}} {{event_type}}")),
        ("Dead letters of topics", "short", "Messages that a group could not handle.",
         ("sum by (topic, group) (increase(bus_dead_letters_total{$S}[$__rate_interval]))", "{{topic}} {{group}}")),
        ("Dead letters of notification", "short", "Those that wait for a decision: `freshet dlq list` shows them.",
         ("max by (kind) (notification_dlq{$S})", "{{kind}}")),
        ("Published again", "short", "Events that a bus had lost.",
         ("sum by (outbox) (increase(freshet_events_republished_total{$S}[$__rate_interval]))", "{{outbox}}"),
         ("sum by (result) (increase(notification_audit_total{$S}[$__rate_interval]))", "notification {{result}}")),
        ("Notifications", "ops", "Attempts to deliver, by result.", rate("notification_deliveries_total", "channel, result")),
        ("Time to a notification", "s", "From an event to the commit of its notification.", *quantiles("notification_lag_seconds")),
    ]),
    "idempotency": ("freshet: idempotency", "Do clients repeat requests, and how?", [
        ("New keys", "ops", "Requests whose key was new.", rate("idempotency_miss_total", "route")),
        ("Replayed answers", "ops", "Requests answered with a stored answer.", rate("idempotency_hit_total", "route")),
        ("Conflicts", "ops", "Keys that were used with another body before. Alert: FreshetIdempotencyConflicts.",
         rate("idempotency_conflict_total", "route")),
        ("Collisions", "ops", "Keys whose first request was still being processed.",
         rate("idempotency_processing_collision_total", "route")),
        ("Stored keys", "short", "By PostgreSQL's statistics.", ("max by (table) (idempotency_keys{$S})", "{{table}}")),
        ("Disk space", "bytes", "Of the tables of keys with their indexes.",
         ("max by (table) (idempotency_table_bytes{$S})", "{{table}}")),
        ("Expired keys", "ops", "Keys deleted after their end.", rate("idempotency_cleanup_count_total", "route")),
        ("Replayed share", "percentunit", "Of all requests with a key.",
         ("sum by (route) (rate(idempotency_hit_total{$S}[$__rate_interval])) / (sum by (route)"
          " (rate(idempotency_hit_total{$S}[$__rate_interval])) + sum by (route) (rate(idempotency_miss_total{$S}[$__rate_interval])))",
          "{{route}}")),
    ]),
    "hydration": ("freshet: hydration", "Are entities found, and where?", [
        ("Lookups", "ops", "By consumer and result.", rate("hydration_requests_total", "consumer, result")),
        ("Duration", "s", "Of lookups that were not answered from memory.", *quantiles("hydration_seconds", "consumer")),
        ("Answered without the owner", "ops", "From memory or from PostgreSQL.", rate("hydration_hits_total", "consumer, way")),
        ("Known as absent", "ops", "The same for absent entities.", rate("hydration_negative_hits_total", "consumer, way")),
        ("Questions to owners", "ops", "First ones and retries.", rate("hydration_unknowns_total", "consumer, try")),
        ("Joined", "ops", "Lookups that joined a question under way.", rate("hydration_collapsed_total", "consumer")),
        ("Time-outs", "ops", "Lookups without an answer in time. Alert: FreshetHydrationTimeouts.",
         rate("hydration_timeouts_total", "consumer")),
        ("Events without effect", "ops", "By reason.", rate("hydration_ignored_total", "reason")),
        ("Callers that wait", "short", "Including deferred ones.", ("sum by (instance) (hydration_waiters{$S})", "{{instance}}")),
    ]),
    "streams": ("freshet: streams", "How many clients follow changes, and do they keep up?", [
        ("Watchers", "short", "Open streams of changes.", ("sum by (dict_code) (refdata_watchers{$S})", "{{dict_code}}")),
        ("Chat streams", "short", "Open streams of sessions.", ("sum by (format) (chat_streams{$S})", "{{format}}")),
        ("Lines to watchers", "ops", "Counted once for each watcher.", rate("refdata_watch_lines_total", "dict_code")),
        ("Lines to chat streams", "ops", "Counted once for each stream.", rate("chat_stream_lines_total", "format")),
        ("Streams cut", "ops", "Readers that were too slow. Alert: FreshetStreamsCut.",
         ("sum by (dict_code) (rate(refdata_watch_cuts_total{$S}[$__rate_interval]))", "watch {{dict_code}}"),
         ("sum by (format) (rate(chat_stream_cuts_total{$S}[$__rate_interval]))", "chat {{format}}")),
        ("Connections cut", "ops", "Clients that were slow or held too much memory.", rate("http_cut_total", "reason")),
        ("Memory of clients", "bytes", "What clients make the processes hold, by account.",
         ("sum by (account) (freshet_memory_used_bytes{$S})", "{{account}}")),
        ("Chat messages", "ops", "By result.", rate("chat_messages_total", "result")),
    ]),
    "engines": ("freshet: engines", "Do PostgreSQL, Kafka, Redis and NATS carry what they should?", [
        ("Components", "short", "1 while a process can use it.",
         ("min by (component) (freshet_component_up{$S})", "{{component}}")),
        ("Messages that wait", "short", "For each topic and group, measured by any process.",
         ("max by (topic, group, database) (bus_lag{$S})", "{{topic}} {{group}} {{database}}")),
        ("Messages published", "ops", "By topic.", rate("bus_published_total", "topic")),
        ("Messages handled", "ops", "By topic and group.", rate("bus_consumed_total", "topic, group")),
        ("Time of a handler", "s", "For a batch of messages (p99).",
         ("histogram_quantile(0.99, sum by (le, topic, group) (rate(bus_batch_seconds_bucket{$S}[$__rate_interval])))",
          "{{topic}} {{group}}")),
        ("Connections to PostgreSQL", "short", "By state.", ("sum by (database, state) (db_connections{$S})", "{{database}} {{state}}")),
        ("Kafka: lag", "short", "Of the partitions that each process has, added up.",
         ("sum by (topic, group) (kafka_consumer_lag{$S})", "{{topic}} {{group}}")),
        ("Redis: lag of the stream", "short", "Entries that a pod has not handled.",
         ("max by (instance, topic) (redis_stream_lag{$S})", "{{instance}} {{topic}}")),
        ("Redis: connections and redirects", "ops", "Connections opened, commands that another node had to answer.",
         ("sum(rate(redis_connections_total{$S}[$__rate_interval]))", "connections"),
         ("sum(rate(redis_redirects_total{$S}[$__rate_interval]))", "redirects")),
        ("NATS: reconnections", "short", "Connections that were lost and opened again.",
         ("sum by (instance) (increase(nats_reconnects_total{$S}[$__rate_interval]))", "{{instance}}")),
    ]),
}


def panel(number, x, y, width, height, title, unit, description, queries):
    is_stat = unit.startswith("stat:")
    source = {"type": "prometheus", "uid": "${datasource}"}
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
               "graphMode": "none", "textMode": "auto"} if is_stat else {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number, "title": title, "description": description, "type": "stat" if is_stat else "timeseries",
        "datasource": source, "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit.removeprefix("stat:"), "min": 0, "custom": {} if is_stat else {
            "fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}}, "overrides": []},
        "options": options,
        "targets": [{"refId": chr(ord("A") + at), "datasource": source, "expr": expression.replace("$S", PROCESSES),
                     "legendFormat": legend, "editorMode": "code", "range": True} for at, (expression, legend) in enumerate(queries)],
    }


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "definition": query, "query": {"query": query, "refId": name}, "refresh": 2, "includeAll": True, "multi": True,
            "allValue": ".*" if name == "instance" else "freshet.*", "current": {"text": "All", "value": "$__all"}, "sort": 1}


def dashboard(name, title, description, panels):
    made, x, y = [], 0, 0
    for number, (label, unit, text, *queries) in enumerate(panels, 1):
        width, height = (6, 4) if unit.startswith("stat:") else (12, 8)
        if x + width > 24:
            x, y = 0, y + made[-1]["gridPos"]["h"]
        made.append(panel(number, x, y, width, height, label, unit, text, queries))
        x += width
    others = {"title": "freshet", "type": "dashboards", "tags": ["freshet"], "asDropdown": True, "includeVars": True, "keepTime": True}
    return {
        "uid": f"freshet-{name}", "title": title, "description": description, "tags": ["freshet"], "schemaVersion": 38, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "utc",
        "links": [others], "annotations": {"list": []}, "panels": made,
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
            variable("job", "Job", 'label_values(freshet_build_info, job)'),
            variable("instance", "Process", 'label_values(freshet_build_info{job=~"$job"}, instance)'),
        ]},
    }


def main():
    wrong = []
    for name, (title, description, panels) in DASHBOARDS.items():
        text = json.dumps(dashboard(name, title, description, panels), indent=2) + "\n"
        path = FOLDER / f"{name}.json"
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(path.name)
    if wrong:
        sys.exit(f"deploy/grafana: {', '.join(wrong)}: not as tools/dashboards.py writes them; run it")


if __name__ == "__main__":
    main()
