/* `freshet --version`: what was built, from what, how, and the schemas it needs. */
#include <stdio.h>

#include "app/commands.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

void app_version_print(void)
{
    struct buf schemas = {0};
    kernel_schema_version(app_modules, &schemas);
    printf("freshet %s\ncommit: %s (%s)\nbuild: %s, %s\nschema: %.*s\n", FRESHET_VERSION, app_commit,
           app_commit_date, FRESHET_FLAVOUR, COMPILER, STR_ARG(buf_str(&schemas)));
    buf_deinit(&schemas);
}
