/* Every module of the program, in the order they start. */
#include "app/commands.h"

extern const struct module refdata_module, intake_module, chat_module, entitlement_module,
    notification_module, hydration_module, ops_module;

const struct module *const app_modules[] = {
    &refdata_module,      &intake_module,    &chat_module, &entitlement_module,
    &notification_module, &hydration_module, &ops_module,  NULL,
};
