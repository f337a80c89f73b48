/* The commands that checks advise, so that a shell takes them as they are printed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/doctor.h"

const char *doctor_word(struct doctor_place *place, struct str text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,";
    struct buf out = {0};
    size_t safe = 0;
    while (safe < text.len && memchr(plain, text.ptr[safe], sizeof plain - 1))
        safe++;
    if (safe == text.len && text.len)
        return arena_str(&place->arena, text).ptr;
    buf_put_char(&out, '\'');
    for (size_t i = 0; i < text.len; i++)
        buf_put_str(&out, text.ptr[i] == '\'' ? STR("'\\''") : str_of(&text.ptr[i], 1));
    buf_put_char(&out, '\'');
    const char *word = arena_str(&place->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
    return word;
}

const char *doctor_command(struct doctor_place *place, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *config = place->doctor->config_path;
    return arena_printf(&place->arena, "freshet %s%s%s", text, config ? " --config " : "",
                        config ? doctor_word(place, str_from(config)) : "")
        .ptr;
}

/* "HOST:PORT/DATABASE" of a single host; of several, psql takes them from the environment. */
const char *doctor_psql(struct doctor_place *place, const char *sql)
{
    struct buf out = {0};
    struct str address = str_from(db_pool_address(place->pool)), username = place->site->target.username;
    const char *slash = memrchr(address.ptr, '/', address.len);
    const char *colon = slash ? memrchr(address.ptr, ':', (size_t)(slash - address.ptr)) : NULL;
    buf_put_str(&out, STR("psql"));
    if (colon && !memchr(address.ptr, ',', address.len))
        buf_printf(&out, " -h %s -p %.*s -d %s",
                   doctor_word(place, str_of(address.ptr, (size_t)(colon - address.ptr))),
                   (int)(slash - colon - 1), colon + 1, doctor_word(place, str_from(slash + 1)));
    if (username.len)
        buf_printf(&out, " -U %s", doctor_word(place, username));
    buf_printf(&out, " -c %s", doctor_word(place, str_from(sql)));
    const char *command = arena_str(&place->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
    return command;
}

bool doctor_is_here(struct str host)
{
    const char *named = getenv("HOSTNAME");
    char own[256] = "";
    (void)!gethostname(own, sizeof own - 1);
    return str_eq(host, str_from(own)) || (named && str_eq(host, str_from(named))) ||
           str_starts_with(host, STR("127.")) || str_eq(host, STR("localhost")) || str_eq(host, STR("::1"));
}

const char *doctor_restart(struct doctor_place *place, const char *service, struct str host)
{
    if (doctor_is_here(host))
        return arena_printf(&place->arena, "systemctl restart %s", service).ptr;
    return arena_printf(&place->arena, "ssh %s systemctl restart %s", doctor_word(place, host), service).ptr;
}
