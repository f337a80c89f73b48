/* The module hydration: entities of any owner for HTTP clients, GET /v1/hydration/… (H6). */
#ifndef FRESHET_MODULES_HYDRATION_HYDRATION_H
#define FRESHET_MODULES_HYDRATION_HYDRATION_H

#include "kernel/kernel.h"

extern const struct module hydration_module;

#endif
