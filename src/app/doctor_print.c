/* What `freshet doctor` prints: findings, most serious first, and a last line that counts them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/doctor.h"
#include "base/json.h"

enum { EXIT_WRONG = 3 };

static int by_severity(const void *a, const void *b)
{
    const struct doctor_finding *x = a, *y = b;
    long long order = (long long)x->is_unchecked - y->is_unchecked;
    if (!order)
        order = (long long)x->check->severity - (long long)y->check->severity;
    if (!order && x->check != y->check) /* the table's order */
        order = x->check < y->check ? -1 : 1;
    if (!order)
        order = strcmp(x->place, y->place);
    if (!order)
        order = x->order < y->order ? -1 : 1;
    return order < 0 ? -1 : 1;
}

static void print_json(const struct doctor *doctor)
{
    static const char *const severities[] = {"critical", "warning"};
    struct buf text = {0};
    bool is_unchecked = false;
    buf_put_str(&text, STR("{\"problems\":["));
    for (size_t i = 0; i < doctor->finding_count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        bool is_first = i == 0;
        if (finding->is_unchecked && !is_unchecked) {
            buf_put_str(&text, STR("],\"unchecked\":["));
            is_unchecked = is_first = true;
        }
        buf_put_str(&text, is_first ? STR("{") : STR(",{"));
        if (!finding->is_unchecked)
            json_put_member_str(&text, "severity", str_from(severities[finding->check->severity]));
        json_put_member_str(&text, "check", str_from(finding->check->name));
        json_put_member_str(&text, "where", str_from(finding->place));
        json_put_member_str(&text, "what", str_from(finding->what));
        if (finding->help)
            json_put_member_str(&text, "help", str_from(finding->help));
        buf_put_char(&text, '}');
    }
    if (!is_unchecked)
        buf_put_str(&text, STR("],\"unchecked\":["));
    buf_printf(&text, "],\"checks\":%zu}", doctor->run_count);
    printf("%.*s\n", STR_ARG(buf_str(&text)));
    buf_deinit(&text);
}

int doctor_print(struct doctor *doctor, bool is_json)
{
    static const char *const words[] = {"CRITICAL", "WARNING"};
    size_t counts[DOCTOR_SEVERITIES] = {0}, unchecked = 0;
    if (doctor->finding_count)
        qsort(doctor->findings, doctor->finding_count, sizeof *doctor->findings, by_severity);
    for (size_t i = 0; i < doctor->finding_count; i++)
        ++*(doctor->findings[i].is_unchecked ? &unchecked : &counts[doctor->findings[i].check->severity]);
    size_t wrong = counts[DOCTOR_CRITICAL] + counts[DOCTOR_WARNING];
    if (is_json) {
        print_json(doctor);
    } else {
        for (size_t i = 0; i < doctor->finding_count; i++) {
            const struct doctor_finding *finding = &doctor->findings[i];
            printf("%-9s %s: %s\n", finding->is_unchecked ? "UNCHECKED" : words[finding->check->severity],
                   finding->place, finding->what);
            if (finding->help)
                printf("          %s\n", finding->help);
        }
        printf("%s%zu checks",
               wrong       ? ""
               : unchecked ? "nothing wrong was found: "
                           : "nothing is wrong: ",
               doctor->run_count);
        if (wrong)
            printf(": %zu critical, %zu warning%s", counts[DOCTOR_CRITICAL], counts[DOCTOR_WARNING],
                   counts[DOCTOR_WARNING] == 1 ? "" : "s");
        printf(unchecked ? "; %zu could not be made\n" : "\n", unchecked);
    }
    return wrong ? EXIT_WRONG : unchecked ? 1 : 0;
}
