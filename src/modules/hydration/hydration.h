/* The module hydration: entities of any owner for HTTP clients, GET /v1/hydration/… (H6). The engine is src/hydration, and
 * stands beside the store for every module; this one has its settings, its tables and its topics. */
#ifndef FRESHET_MODULES_HYDRATION_HYDRATION_H
#define FRESHET_MODULES_HYDRATION_HYDRATION_H

#include "hydration/hydration.h"
#include "kernel/kernel.h"

struct hydration_module {
    struct kernel *kernel;
    const struct hydration_settings *settings;
    struct hydration_policy policy; /* the route's */
};

extern const struct module hydration_module;
extern const struct config_section hydration_section;

/* ---- entity.c: context is struct hydration_module ---- */
extern const struct http_route hydration_routes[];

#endif
