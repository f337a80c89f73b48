/* The console: pages for operators, built into the program from the files of console/. They hold no data: a browser reads it from the
 * operator's API with the token that its user enters. */
#ifndef FRESHET_MODULES_OPS_CONSOLE_H
#define FRESHET_MODULES_OPS_CONSOLE_H

#include "base/str.h"
#include "http/http.h"

struct ops_console_file {
    struct str name; /* one without bytes ends the table */
    struct http_fixed fixed;
};

/* Made by tools/embed_console.py. */
extern const struct ops_console_file ops_console_files[];

extern const struct http_route ops_console_routes[]; /* context: struct ops */

#endif
