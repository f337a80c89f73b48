/* JSON pointers (RFC 6901) of the adapter's settings: parsed once, when the configuration is read, then applied to each message. */
#include "modules/refdata/adapter/adapter.h"

enum status refdata_pointer_compile(struct str text, struct arena *arena, struct refdata_pointer *pointer,
                                    struct error *error)
{
    *pointer = (struct refdata_pointer){.text = arena_str(arena, text)};
    for (size_t i = 0; i < text.len; i++)
        pointer->count += text.ptr[i] == '/';
    if (text.len == 0)
        return STATUS_OK;
    if (text.ptr[0] != '/')
        return error_set(error, STATUS_CONFIG, "a JSON pointer begins with /: try /%.*s", STR_ARG(text));
    if (pointer->count > REFDATA_POINTER_STEPS_MAX)
        return error_set(error, STATUS_CONFIG, "a JSON pointer of more than %d steps",
                         REFDATA_POINTER_STEPS_MAX);
    pointer->steps = arena_alloc(arena, pointer->count * sizeof *pointer->steps);
    size_t at = 1; /* each step goes to the next slash; str_split() would not see an empty one at the end */
    for (size_t i = 0; i < pointer->count; i++, at++) {
        char *step = arena_alloc(arena, text.len);
        size_t len = 0;
        for (; at < text.len && text.ptr[at] != '/'; at++) {
            char c = text.ptr[at];
            if (c == '~') { /* "~1" is a slash, "~0" a tilde, and nothing else may follow one */
                if (++at == text.len || (text.ptr[at] != '0' && text.ptr[at] != '1'))
                    return error_set(error, STATUS_CONFIG,
                                     "in a JSON pointer ~ is written ~0, and / within a name ~1");
                c = text.ptr[at] == '0' ? '~' : '/';
            }
            step[len++] = c;
        }
        pointer->steps[i] = str_of(step, len);
    }
    return STATUS_OK;
}

/* An index of an array is 0, or digits that do not begin with it. */
enum status refdata_pointer_find(const struct refdata_pointer *pointer, const struct json_value *root,
                                 struct json_value *value, struct error *error)
{
    *value = *root;
    for (size_t i = 0; i < pointer->count && value->raw.len; i++) {
        const struct json_value container = *value;
        struct str step = pointer->steps[i], name;
        struct json_value element;
        struct json_iter it;
        uint64_t index = 0;
        bool is_object = container.type == JSON_OBJECT;
        bool is_index =
            container.type == JSON_ARRAY && str_to_u64(step, &index) && (step.len == 1 || step.ptr[0] != '0');
        *value = (struct json_value){0};
        if (!is_object && !is_index)
            break;
        json_iter_init(&it, &container);
        for (uint64_t at = 0; json_iter_next(&it, is_object ? &name : NULL, &element); at++) {
            if (is_object ? !json_str_eq(name, step) : at != index)
                continue;
            if (value->raw.len)
                return error_set_field(error, STATUS_BAD_REQUEST, pointer->text.ptr,
                                       "%s: comes more than once", pointer->text.ptr);
            *value = element;
            if (is_index)
                break;
        }
    }
    return STATUS_OK;
}
