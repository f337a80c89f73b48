#include "modules/refdata/update.h"

const char *refdata_decision_name(enum refdata_decision decision)
{
    static const char *const names[] = {"PENDING", "COMMITTED", "FAILED"};
    return names[decision];
}
