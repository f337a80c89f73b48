/* The visible list of modules: nothing registers itself. */
#ifndef FRESHET_APP_MODULES_H
#define FRESHET_APP_MODULES_H

#include "kernel/kernel.h"

extern const struct module *const app_modules[]; /* NULL-terminated */

#endif
