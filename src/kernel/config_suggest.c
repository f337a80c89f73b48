/* "did you mean …?": the nearest known name by edit distance (insert, delete, replace, swap two neighbours), after
 * case, '-' and '_' are taken out of it, so that max_size and MaxSize both find maxSize. */
#include "kernel/config_inside.h"

#define WORD_BYTES_MAX 48

/* The word without what does not count; its length, or 0 when it is too long to guess at. */
static size_t plain_word(struct str word, char plain[WORD_BYTES_MAX])
{
    size_t len = 0;

    if (word.len > WORD_BYTES_MAX)
        return 0;
    for (size_t i = 0; i < word.len; i++) {
        char c = word.ptr[i];
        if (c != '-' && c != '_')
            plain[len++] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    return len;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[3][WORD_BYTES_MAX + 1]; /* two above, above, this one: row i % 3 */

    for (unsigned j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned *above = rows[(i - 1) % 3], *row = rows[i % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            bool same = a[i - 1] == b[j - 1];
            row[j] = least(above[j - 1] + !same, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], rows[(i - 2) % 3][j - 2] + 1);
        }
    }
    return rows[a_len % 3][b_len];
}

const char *config_suggest(struct str word, const char *const *names)
{
    char plain[WORD_BYTES_MAX], candidate[WORD_BYTES_MAX];
    size_t len = plain_word(word, plain);
    const char *nearest = NULL;
    unsigned best =
        least((unsigned)len / 3, 3) + 1; /* a short word must match nearly, a long one may have 3 slips */

    for (; len > 0 && *names; names++) {
        size_t candidate_len = plain_word(str_from(*names), candidate);
        if (candidate_len == 0)
            continue;
        unsigned far = distance(plain, len, candidate, candidate_len);
        if (far < best) {
            best = far;
            nearest = *names;
        }
    }
    return nearest;
}
