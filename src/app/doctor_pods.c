/* Checks of a pod by its metrics, which it gives to everyone. */
#include <stdlib.h>
#include <string.h>

#include "app/client.h"
#include "app/doctor.h"
#include "base/clock.h"

enum { METRICS_BYTES_MAX = 64 << 20, MEMORY_MAX_PERCENT = 90, FOUND_MAX = 10 };

void doctor_check_pod(struct doctor_place *place)
{
    struct error error = {0};
    struct fetch_answer answer;
    const char *url = arena_printf(&place->arena, "%.*s/actuator/prometheus", STR_ARG(place->url)).ptr;
    int64_t limit_ms = clock_ms_left(place->deadline_ns);
    enum status status = fetch_run(&(struct fetch_request){.url = str_from(url),
                                                           .connect_timeout_ms = limit_ms,
                                                           .timeout_ms = limit_ms,
                                                           .answer_bytes_max = METRICS_BYTES_MAX,
                                                           .tls = client_tls(&place->doctor->tls)},
                                   &answer, &error);
    if (status == STATUS_OK && answer.status != 200)
        status = error_set(&error, STATUS_BAD_REQUEST, "it answers %d: is it a pod?", answer.status);
    place->metrics = answer.body;
    place->is_lost = status != STATUS_OK;
    if (place->is_lost && place->is_given)
        doctor_found(place, doctor_restart(place, "freshet", STR("localhost")), "%s", error.message);
    else if (place->is_lost)
        doctor_unchecked(place, "it reports itself in the database, but cannot be reached from here: %s",
                         error.message);
}

/* ---- samples: NAME{LABEL="VALUE",…} NUMBER ---- */

struct sample {
    struct str labels; /* between the braces; empty = none */
    double value;
};

/* The next sample of that metric after *at. */
static bool next_sample(const struct doctor_place *place, const char *metric, size_t *at,
                        struct sample *sample)
{
    struct str all = buf_str(&place->metrics), name = str_from(metric);
    while (*at < all.len) {
        const char *end = memchr(all.ptr + *at, '\n', all.len - *at);
        struct str line = str_of(all.ptr + *at, end ? (size_t)(end - all.ptr) - *at : all.len - *at);
        *at += line.len + 1;
        if (!str_starts_with(line, name) || line.len == name.len ||
            (line.ptr[name.len] != '{' && line.ptr[name.len] != ' '))
            continue;
        const char *space = memrchr(line.ptr, ' ', line.len);
        char number[64];
        if (!space)
            continue; /* cut off */
        str_copy(number, sizeof number, str_of(space + 1, (size_t)(line.ptr + line.len - space - 1)));
        sample->value = strtod(number, NULL);
        bool has_labels = line.ptr[name.len] == '{' && space - line.ptr >= (ptrdiff_t)name.len + 2;
        sample->labels = has_labels
                             ? str_of(line.ptr + name.len + 1, (size_t)(space - line.ptr) - name.len - 2)
                             : STR_NONE;
        return true;
    }
    return false;
}

/* The value of a label, without its quotes; empty = there is none. Names of tenants and dictionaries have no escapes. */
static struct str label_of(struct str labels, const char *name)
{
    size_t len = strlen(name);
    if (labels.len == 0)
        return STR_NONE;
    for (const char *at = labels.ptr, *end = labels.ptr + labels.len;
         (at = memmem(at, (size_t)(end - at), name, len)) != NULL; at += len) {
        bool is_whole =
            (at == labels.ptr || at[-1] == ',') && end - at > (ptrdiff_t)len + 2 && at[len] == '=';
        const char *quote = is_whole ? memchr(at + len + 2, '"', (size_t)(end - at) - len - 2) : NULL;
        if (quote)
            return str_of(at + len + 2, (size_t)(quote - at) - len - 2);
    }
    return STR_NONE;
}

/* "role apply", "demo/COUNTRY", for a sentence. */
static const char *describe(struct doctor_place *place, struct str labels)
{
    struct str tenant = label_of(labels, "tenant"), dict = label_of(labels, "dict_code");
    struct buf out = {0};
    if (dict.len) {
        buf_printf(&out, "%.*s%s%.*s", STR_ARG(tenant), tenant.len ? "/" : "", STR_ARG(dict));
    } else {
        for (size_t i = 0; i < labels.len; i++)
            if (labels.ptr[i] != '"')
                buf_put_str(&out, labels.ptr[i] == '='   ? STR(" ")
                                  : labels.ptr[i] == ',' ? STR(", ")
                                                         : str_of(&labels.ptr[i], 1));
    }
    const char *text = arena_str(&place->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
    return text;
}

/* The row's command with the pod's URL and the sample's pair in it. */
static const char *fill_help(struct doctor_place *place, const char *help, const char *pair)
{
    struct buf out = {0};
    bool is_whole = *help == '!';
    for (help += is_whole; *help; help++) {
        bool is_url = strncmp(help, "%URL%", 5) == 0, is_pair = strncmp(help, "%PAIR%", 6) == 0;
        if (is_url || is_pair) {
            buf_put_str(&out, str_from(doctor_word(place, is_url ? place->url : str_from(pair))));
            help += is_url ? 4 : 5;
        } else {
            buf_put_char(&out, *help);
        }
    }
    const char *command = is_whole ? arena_str(&place->arena, buf_str(&out)).ptr
                                   : doctor_command(place, "%.*s", STR_ARG(buf_str(&out)));
    buf_deinit(&out);
    return command;
}

static void report_samples(struct doctor_place *place, const char *labels)
{
    const struct doctor_metric *wanted = place->check->argument;
    const char *cut = strstr(wanted->what, "%s");
    doctor_found(place, fill_help(place, wanted->help, labels), "%.*s%s%s", (int)(cut - wanted->what),
                 wanted->what, labels, cut + 2);
}

void doctor_check_metric(struct doctor_place *place)
{
    const struct doctor_metric *wanted = place->check->argument;
    double now_s = (double)clock_unix_us() / 1e6;
    double limit = wanted->less_now_days > 0 ? now_s + wanted->less_now_days * 86400 : wanted->limit;
    struct buf joined = {0};
    struct sample sample;
    size_t at = 0, count = 0;
    while (next_sample(place, wanted->name, &at, &sample)) {
        if (wanted->is_below ? sample.value >= limit : sample.value <= limit)
            continue;
        if (count++ == FOUND_MAX)
            break;
        const char *labels = describe(place, sample.labels);
        if (wanted->is_joined)
            buf_printf(&joined, "%s%s", count > 1 ? ", " : "", labels);
        else
            report_samples(place, labels);
    }
    if (buf_str(&joined).len)
        report_samples(place, arena_str(&place->arena, buf_str(&joined)).ptr);
    buf_deinit(&joined);
}

void doctor_check_memory(struct doctor_place *place)
{
    struct sample sample;
    size_t at = 0;
    double used = 0, limit = 0;
    while (next_sample(place, "freshet_memory_used_bytes", &at, &sample))
        used += sample.value;
    at = 0;
    if (next_sample(place, "freshet_memory_limit_bytes", &at, &sample))
        limit = sample.value;
    if (limit > 0 && used * 100 > limit * MEMORY_MAX_PERCENT)
        doctor_found(
            place, "systemctl show freshet -p MemoryCurrent",
            "%.0f %% of the memory for clients is used (%.0f of %.0f MiB): raise limits.memory, or add pods",
            used * 100 / limit, used / 1048576, limit / 1048576);
}
