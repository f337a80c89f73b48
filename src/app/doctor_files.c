/* Checks of this machine: files that the configuration names. */
#include "app/doctor.h"
#include "base/clock.h"

enum { EXPIRES_S = 14 * 24 * 3600 };

static void check_certificate(const struct kernel_certificate *certificate, void *arg)
{
    struct doctor_place *place = arg;
    char until[CLOCK_RFC3339_BYTES];
    int64_t now_s = clock_unix_us() / 1000000;
    if (certificate->not_after_s - now_s > EXPIRES_S)
        return;
    clock_rfc3339(certificate->not_after_s * 1000000, until);
    doctor_found(place,
                 arena_printf(&place->arena, "openssl x509 -noout -subject -enddate -in %s",
                              doctor_word(place, certificate->file))
                     .ptr,
                 "%s: the certificate %.*s %s at %s: replace the file, it is read again by itself",
                 certificate->field, STR_ARG(certificate->file),
                 certificate->not_after_s <= now_s ? "expired" : "expires", until);
}

void doctor_check_certificates(struct doctor_place *place)
{
    kernel_certificates_each(place->doctor->config, check_certificate, place);
}
