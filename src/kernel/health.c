/* Health: gathers the modules' health into one JSON body. */
#include "kernel/health.h"

#include "base/json.h"

void health_init(struct health *health)
{
    *health = (struct health){0};
    buf_init(&health->roles);
    buf_init(&health->components);
    buf_put_char(&health->roles, '{');
    buf_put_char(&health->components, '{');
}

void health_deinit(struct health *health)
{
    buf_deinit(&health->roles);
    buf_deinit(&health->components);
}

static void put_state(struct buf *out, struct str name, bool up, struct str detail)
{
    json_put_key(out, name);
    buf_put_char(out, '{');
    json_put_member_str(out, "status", up ? STR("UP") : STR("DOWN"));
    if (detail.len)
        json_put_member_str(out, "detail", detail);
    buf_put_char(out, '}');
}

void health_role(struct health *health, const char *role, bool up, struct str detail)
{
    put_state(&health->roles, str_from(role), up, detail);
    if (up)
        health->roles_up++;
    else
        health->roles_down++;
}

void health_starting(struct health *health)
{
    health->starting = true;
}

void health_component(struct health *health, const char *kind, struct str name, bool up, struct str detail)
{
    struct buf label;
    buf_init(&label);
    buf_printf(&label, "%s:%.*s", kind, STR_ARG(name));
    put_state(&health->components, buf_str(&label), up, detail);
    buf_deinit(&label);
}

bool health_is_up(const struct health *health)
{
    return health->roles_up > 0 || health->roles_down == 0;
}

void health_print(const struct health *health, struct buf *out)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "status", health_is_up(health) ? STR("UP") : STR("DOWN"));
    json_put_key(out, STR("roles"));
    buf_put_str(out, buf_str(&health->roles));
    buf_put_char(out, '}');
    json_put_key(out, STR("components"));
    buf_put_str(out, buf_str(&health->components));
    buf_put_str(out, STR("}}"));
}
