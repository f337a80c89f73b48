/* Every module of the program, in the order they start. */
#include "app/modules.h"

#include "modules/refdata/refdata.h"

const struct module *const app_modules[] = {
    &refdata_module,
    NULL,
};
