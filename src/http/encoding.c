/* Accept-Encoding: whether a client prefers gzip to bytes as they are (RFC 9110, 12.5.3).
 *
 *     Accept-Encoding: br;q=1.0, gzip;q=0.8, *;q=0
 *
 * All lines count as one list. x-gzip is gzip; `*` stands for what is not named. A list that is not valid, or longer than
 * HTTP_ENCODINGS_MAX, is ignored as a whole: every client understands bytes as they are. For the same reason the lowest weight
 * counts where a coding is named twice. */
#include "http/http_inside.h"
#include "http/scan.h"

enum { WEIGHT_MAX = 1000, NOT_NAMED = -1 };

/* The weights of the codings that matter, in thousandths. */
struct wants {
    int gzip, identity, others;
    unsigned count;
};

/* "0", "0.5", "1.000": a digit, a point, at most three digits, at most 1. */
static bool read_weight(struct str text, int *weight)
{
    int unit = WEIGHT_MAX / 10;

    if (text.len == 0 || text.len > 5 || text.ptr[0] < '0' || text.ptr[0] > '1' ||
        (text.len > 1 && text.ptr[1] != '.'))
        return false;
    *weight = (text.ptr[0] - '0') * WEIGHT_MAX;
    for (size_t i = 2; i < text.len; i++, unit /= 10) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return false;
        *weight += (text.ptr[i] - '0') * unit;
    }
    return *weight <= WEIGHT_MAX;
}

static void lower(int *weight, int other)
{
    if (*weight == NOT_NAMED || other < *weight)
        *weight = other;
}

/* One element: a coding, perhaps with `;q=`, and nothing else. */
static bool read_element(struct str element, struct wants *wants)
{
    struct str coding;
    int weight = WEIGHT_MAX;
    bool has_weight = memchr(element.ptr, ';', element.len) != NULL;

    (void)str_split(&element, ';', &coding);
    coding = str_trim(coding);
    element = str_trim(element);
    if (coding.len == 0 ||
        http_scan(coding.ptr, coding.ptr + coding.len, HTTP_BYTE_TOKEN) != coding.ptr + coding.len)
        return false;
    if (has_weight && (element.len < 2 || (element.ptr[0] | 0x20) != 'q' || element.ptr[1] != '=' ||
                       !read_weight(str_skip(element, 2), &weight)))
        return false;
    if (str_eq_nocase(coding, STR("gzip")) || str_eq_nocase(coding, STR("x-gzip")))
        lower(&wants->gzip, weight);
    else if (str_eq_nocase(coding, STR("identity")))
        lower(&wants->identity, weight);
    else if (str_eq(coding, STR("*")))
        lower(&wants->others, weight);
    return true;
}

static bool read_list(struct str list, struct wants *wants)
{
    struct str element;

    while (str_split(&list, ',', &element)) {
        if (++wants->count > HTTP_ENCODINGS_MAX)
            return false;
        element = str_trim(element);
        if (element.len > 0 && !read_element(element, wants)) /* an empty element is allowed */
            return false;
    }
    return true;
}

bool http_encoding_wants_gzip(const struct http_header *headers, size_t header_count)
{
    struct wants wants = {NOT_NAMED, NOT_NAMED, NOT_NAMED, 0};

    for (size_t i = 0; i < header_count; i++)
        if (str_eq_nocase(headers[i].name, STR("accept-encoding")) && !read_list(headers[i].value, &wants))
            return false;
    if (wants.gzip == NOT_NAMED)
        wants.gzip = wants.others;
    return wants.gzip > 0 && wants.gzip >= wants.identity;
}

bool http_request_takes_gzip(const struct http_request *request)
{
    const struct http_exchange *exchange = (const struct http_exchange *)request;

    return request->route->gzip != HTTP_GZIP_NEVER && exchange->home->server->config.gzip &&
           http_encoding_wants_gzip(request->headers, request->header_count);
}
