/* `freshet verify --books`. Returns the exit status of the process. */
#ifndef FRESHET_APP_BOOKS_H
#define FRESHET_APP_BOOKS_H

#include <stdbool.h>
#include <stdint.h>

int app_books(const char *config_path, int64_t patience_ms, bool is_json);

#endif
