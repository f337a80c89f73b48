/* Every module of the program, in the order they start. */
#include "app/commands.h"

#include "modules/chat/chat.h"
#include "modules/entitlement/entitlement.h"
#include "modules/hydration/hydration.h"
#include "modules/intake/intake.h"
#include "modules/notification/notification.h"
#include "modules/refdata/refdata.h"

const struct module *const app_modules[] = {
    &refdata_module,      &intake_module,    &chat_module, &entitlement_module,
    &notification_module, &hydration_module, NULL,
};
