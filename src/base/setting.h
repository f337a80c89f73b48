/* Setting rows: the only schema of the configuration. A module lists its rows; the kernel walks the YAML by
 * them, prints `freshet config --describe` and writes docs/CONFIG.md from the same rows, so that they cannot
 * disagree.
 * A table is constant; a mistake in it (a default that its own bounds refuse) ends the program at start. */
#ifndef FRESHET_BASE_SETTING_H
#define FRESHET_BASE_SETTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum setting_type {
    SETTING_STRING,      /* struct str, NUL-terminated after its length, never NULL */
    SETTING_BOOL,        /* bool: true or false, nothing else */
    SETTING_INT,         /* int64_t */
    SETTING_DURATION_MS, /* int64_t milliseconds: 250ms, 1s, 5m, 1h, 30d; a bare number is ms */
    SETTING_DECIMAL,     /* int64_t thousandths: 0.5, 1.25, 2 */
    SETTING_SIZE,        /* int64_t bytes: 64KiB, 8MiB, 1GiB; a bare number is bytes */
    SETTING_ENUM,        /* int: index into `choices` */
    SETTING_STRING_LIST, /* struct setting_strings; a single text is taken as a list of one */
    SETTING_OBJECT,      /* a nested struct: `rows` describe it, `offset` is where it stands */
    SETTING_OBJECT_LIST, /* struct setting_objects: `rows` describe one element of `element_bytes`; a single
                            mapping is taken as a list of one */
};

struct setting_strings {
    struct str *items; /* NUL-terminated after their length */
    size_t count;
};

/* Where a value stood in the file, for errors found later (a template that names an unknown parameter). */
struct setting_place {
    unsigned line, column; /* 1-based, columns in characters; 0 = not in the file */
};

struct setting_objects {
    void *items; /* count elements of element_bytes each, in the configuration's arena */
    struct setting_place *places;
    size_t count;
};

struct setting_row {
    const char *name; /* the YAML key; NULL ends a table */
    enum setting_type type;
    size_t offset;    /* in the struct the table describes */
    const char *help; /* one or two sentences; what to expect of a change */
    /* The default as it would stand in the file ("5s", "[a, b]"), taken literally; "" = may be absent and is then zero or
     * empty; NULL = required. An absent OBJECT is filled from its rows' defaults; with "" its required
     * rows may lack too. */
    const char *fallback;
    /* Inclusive bounds, both 0 = none: the value (INT, DURATION_MS, DECIMAL, SIZE), bytes (STRING), entries
     * (lists). Open ends are INT64_MIN and INT64_MAX. */
    int64_t min, max;
    const char *const *choices;     /* ENUM: NULL-terminated */
    const struct setting_row *rows; /* OBJECT, OBJECT_LIST */
    size_t element_bytes;           /* OBJECT_LIST */
    /* 1 + offset (same struct) of a struct setting_place for the value's place; 0 = none */
    size_t place_offset;
    /* takes effect on SIGHUP or a changed file, else a restart; holds for all inside an object */
    bool reloadable;
    bool secret; /* never printed */
};

#endif
