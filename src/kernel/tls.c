/* `http.tls`: its settings, the files that they name, and what is done when those change.
 *
 * The files are looked at every second. A change is read when it has lasted from one look to the next, since a certificate and its key are
 * often replaced one after the other. What cannot be used is refused with a log line; the certificate in force stays. Connections
 * that are open keep theirs in every case. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"

#define ROW(member) .offset = offsetof(struct kernel_http_settings, tls.member)
#define PLACE(member) .place_offset = 1 + offsetof(struct kernel_http_settings, tls.member)

static const char *const versions[] = {"1.2", "1.3", NULL};
static const char *const client_modes[] = {"optional", "required", NULL};

const struct setting_row kernel_tls_rows[] = {
    {"certFile", SETTING_STRING, ROW(cert_file),
     "Certificate of the server (PEM), followed by those of the authorities between it and a root. Read again when it changes.",
     "", PLACE(cert_place), .reloadable = true},
    {"keyFile", SETTING_STRING, ROW(key_file), "Private key of the certificate (PEM, without a passphrase).",
     "", PLACE(key_place), .reloadable = true},
    {"clientCaFile", SETTING_STRING, ROW(client_ca_file),
     "Authorities (PEM) that certificates of clients must come from; empty = clients are not asked for one. auth.mtls.clients names the clients.",
     "", PLACE(client_ca_place), .reloadable = true},
    {"clientCert", SETTING_ENUM, ROW(client_mode),
     "optional: a client without a certificate may connect and needs a token. required: it may not. Needs clientCaFile.",
     "optional", .choices = client_modes, PLACE(client_mode_place), .reloadable = true},
    {"minVersion", SETTING_ENUM, ROW(min_version), "Lowest version of TLS.", "1.2", .choices = versions,
     .reloadable = true},
    {.name = NULL},
};

static struct metric_family expiry_family = {
    .name = "http_tls_certificate_expiry_timestamp_seconds",
    .help = "When the certificate in force expires, in seconds since 1970.",
    .type = METRIC_GAUGE,
};
static struct metric_family reloads_family = {
    .name = "http_tls_reloads_total",
    .help = "Readings of changed certificate files, by result: changed, refused.",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};

enum { FILES = 3 };

struct kernel_tls {
    struct http_tls *current;
    struct kernel_file_mark seen[FILES]; /* when they were last read */
    struct kernel_file_mark last[FILES]; /* at the last look */
    atomic_llong not_before_s, not_after_s;
    atomic_bool is_refused; /* the files that are there cannot be used */
};

static bool is_on(const struct kernel_tls_settings *settings)
{
    return settings->cert_file.len > 0;
}

static const struct kernel_tls_settings *settings_of(const struct config *config)
{
    return &((const struct kernel_http_settings *)config_section(config, "http"))->tls;
}

static enum status load_files(const struct kernel_tls_settings *settings, struct http_tls **tls,
                              struct error *error)
{
    const struct http_tls_settings wanted = {
        .cert_file = settings->cert_file,
        .key_file = settings->key_file,
        .client_ca_file = settings->client_ca_file,
        .min_version = (enum http_tls_version)settings->min_version,
        .client_required = settings->client_mode == 1,
    };
    return http_tls_load(&wanted, tls, error);
}

/* ---- the configuration ---- */

enum status kernel_tls_check(const struct config *config, struct error *error)
{
    const struct kernel_tls_settings *settings = settings_of(config);
    const struct {
        struct str file;
        struct setting_place place;
        const char *name;
    } files[FILES] = {
        {settings->cert_file, settings->cert_place, "certFile"},
        {settings->key_file, settings->key_place, "keyFile"},
        {settings->client_ca_file, settings->client_ca_place, "clientCaFile"},
    };
    struct error own = {0};
    struct http_tls *tls = NULL;
    char field[64];

    for (size_t i = 1; i < FILES; i++)
        if (files[i].file.len > 0 && !is_on(settings))
            return config_error_at(config, files[i].place, "http.tls.certFile", error,
                                   "is missing: %s is set", files[i].name);
    if (settings->client_mode == 1 && settings->client_ca_file.len == 0)
        return config_error_at(config, settings->client_mode_place, "http.tls.clientCert", error,
                               "needs clientCaFile");
    if (!is_on(settings))
        return STATUS_OK;
    if (settings->key_file.len == 0)
        return config_error_at(config, settings->cert_place, "http.tls.keyFile", error,
                               "is missing: certFile is set");
    if (load_files(settings, &tls, &own) != STATUS_OK)
        for (size_t i = 0; i < FILES; i++)
            if (strcmp(own.field, files[i].name) == 0) {
                snprintf(field, sizeof field, "http.tls.%s", files[i].name);
                return config_error_at(config, files[i].place, field, error, "%s", own.message);
            }
    http_tls_unref(tls);
    return STATUS_OK;
}

bool kernel_tls_asks_clients(const struct config *config)
{
    return settings_of(config)->client_ca_file.len > 0;
}

/* ---- life ---- */

static void look_at_files(const struct kernel_tls_settings *settings, struct kernel_file_mark marks[FILES])
{
    const struct str files[FILES] = {settings->cert_file, settings->key_file, settings->client_ca_file};

    for (size_t i = 0; i < FILES; i++)
        marks[i] = files[i].len > 0 ? kernel_file_mark(files[i].ptr) : (struct kernel_file_mark){0};
}

static bool is_changed(const struct kernel_file_mark a[FILES], const struct kernel_file_mark b[FILES])
{
    bool changed = false;

    for (size_t i = 0; i < FILES; i++)
        changed |= kernel_file_changed(&a[i], &b[i]);
    return changed;
}

/* Takes over the reference. */
static void set_current(struct kernel_tls *tls, struct http_tls *fresh, struct str file)
{
    struct http_tls_certificate certificate = http_tls_certificate(fresh);
    char until[CLOCK_RFC3339_BYTES];

    http_tls_unref(tls->current);
    tls->current = fresh;
    atomic_store(&tls->not_before_s, certificate.not_before_s);
    atomic_store(&tls->not_after_s, certificate.not_after_s);
    atomic_store(&tls->is_refused, false);
    metric_set(metric_series_get(&expiry_family, NULL), (double)certificate.not_after_s);
    clock_rfc3339(certificate.not_after_s * 1000000, until);
    log_info("tls_certificate_loaded", LOG_STR("file", file), LOG_STR("subject", certificate.subject),
             LOG_CSTR("notAfter", until));
    if (certificate.not_after_s * 1000000 <= clock_unix_us())
        log_warn("tls_certificate_expired", LOG_STR("file", file), LOG_CSTR("notAfter", until));
}

enum status kernel_tls_create(struct kernel *kernel, struct error *error)
{
    const struct kernel_tls_settings *settings = settings_of(kernel->config);
    struct http_tls *fresh = NULL;

    metrics_register(&expiry_family);
    metrics_register(&reloads_family);
    if (!is_on(settings))
        return STATUS_OK;
    struct kernel_tls *tls = kernel->tls = memory_zalloc(sizeof *tls);
    look_at_files(settings, tls->seen); /* first: what changes while it is read is read again */
    memcpy(tls->last, tls->seen, sizeof tls->last);
    enum status status = load_files(settings, &fresh, error);
    if (status == STATUS_OK)
        set_current(tls, fresh, settings->cert_file);
    return status;
}

struct http_tls *kernel_tls_current(const struct kernel *kernel)
{
    return kernel->tls ? kernel->tls->current : NULL;
}

void kernel_tls_destroy(struct kernel *kernel)
{
    if (!kernel->tls)
        return;
    http_tls_unref(kernel->tls->current);
    free(kernel->tls);
}

/* ---- changes: on the main thread ---- */

static void read_again(struct kernel *kernel, const struct kernel_tls_settings *settings)
{
    struct kernel_tls *tls = kernel->tls;
    struct http_tls *fresh = NULL;
    struct error error = {0};
    bool is_good = load_files(settings, &fresh, &error) == STATUS_OK;
    struct str result = is_good ? STR("changed") : STR("refused");

    metric_add(metric_series_get(&reloads_family, &result), 1);
    if (is_good) {
        set_current(tls, fresh, settings->cert_file);
        http_server_use_tls(kernel->server, fresh);
        return;
    }
    atomic_store(&tls->is_refused, true);
    log_error("tls_certificate_refused", LOG_ERROR_FIELDS(&error),
              LOG_CSTR("effect", "the certificate in force stays"));
}

void kernel_tls_reload(struct kernel *kernel, const struct config *fresh)
{
    const struct kernel_tls_settings *settings = settings_of(fresh);

    if (is_on(settings) != (kernel->tls != NULL)) {
        log_warn("config_needs_restart", LOG_CSTR("field", "http.tls"));
        return;
    }
    if (!kernel->tls)
        return;
    look_at_files(settings, kernel->tls->seen);
    memcpy(kernel->tls->last, kernel->tls->seen, sizeof kernel->tls->last);
    read_again(kernel, settings);
}

void kernel_tls_watch(struct kernel *kernel)
{
    const struct kernel_tls_settings *settings = settings_of(kernel->config);
    struct kernel_tls *tls = kernel->tls;
    struct kernel_file_mark now[FILES];

    if (!tls || !is_on(settings))
        return;
    look_at_files(settings, now);
    bool is_settled = !is_changed(now, tls->last);
    memcpy(tls->last, now, sizeof now);
    if (!is_settled || !is_changed(now, tls->seen))
        return;
    memcpy(tls->seen, now, sizeof now);
    read_again(kernel, settings);
}

/* ---- health: on a loop ---- */

void kernel_tls_health(const struct kernel *kernel, struct health *health)
{
    const struct kernel_tls *tls = kernel->tls;
    struct str problem = STR_NONE;

    if (!tls)
        return;
    int64_t now_s = clock_unix_us() / 1000000;
    if (atomic_load(&tls->not_after_s) <= now_s)
        problem = STR("the certificate has expired");
    else if (atomic_load(&tls->not_before_s) > now_s)
        problem = STR("the certificate is not valid yet");
    else if (atomic_load(&tls->is_refused))
        problem = STR("the changed files cannot be used: the certificate before them stays");
    health_component(health, "tls", STR("certificate"), problem.len == 0, problem);
}
