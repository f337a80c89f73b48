/* `freshet config --connect`: tries the SQL of the configuration at its databases, and changes nothing there. */
#ifndef FRESHET_APP_CONFIG_CONNECT_H
#define FRESHET_APP_CONFIG_CONNECT_H

#include <stdint.h>

struct config;

/* The file has been checked. A database has `timeout_ms` to answer, and again for each template. The exit status: 0, or 1 with the mistakes printed. */
int app_config_connect(struct config *config, int64_t timeout_ms);

#endif
