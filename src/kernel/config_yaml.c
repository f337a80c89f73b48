/* From a file to YAML nodes. Refuses what libyaml would let pass (other encodings, several documents) and turns its
 * complaints into lines of our form, with a hint where the usual cause is known. Knows nothing of settings.
 *
 * The text is parsed twice. libyaml's time grows with the square of the nesting and of the anchors, so a first pass
 * over its events, which ends at the first excess, comes before the nodes are composed. */
#include "kernel/config_inside.h"

#include <stdlib.h>

#define NESTING_MAX 64
#define ANCHORS_MAX 1000
#define NODES_MAX 500000

static bool check_text(struct str source, struct config_report *report)
{
    size_t at = 0, len;
    if (source.len > CONFIG_FILE_BYTES_MAX) {
        config_report_at(report, (struct setting_place){0}, STR_NONE, "is larger than 4 MiB");
        return false;
    }
    while (at < source.len && (len = str_utf8_char(str_of(source.ptr + at, source.len - at))) > 0)
        at += len;
    if (at < source.len)
        config_report_at(report, config_place_at(source, at), STR_NONE,
                         "is not UTF-8 here (byte 0x%02X): save the file as UTF-8",
                         (unsigned char)source.ptr[at]);
    return at >= source.len;
}

static struct setting_place place_of(yaml_mark_t mark)
{
    return (struct setting_place){(unsigned)mark.line + 1, (unsigned)mark.column + 1};
}

static const char *hint_for(const char *problem)
{
    static const struct {
        const char *problem, *hint;
    } hints[] = {
        {"mapping values are not allowed in this context", "; a value that holds ': ' needs quotes"},
        {"found character that cannot start any token", "; a value that begins so needs quotes"},
        {"could not find expected ':'", "; a key needs ': ' after it"},
        {"did not find expected key", "; is the line indented like its neighbours?"},
        {"found undefined alias", "; a value that begins with * needs quotes"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strcmp(problem, hints[i].problem) == 0)
            return hints[i].hint;
    return "";
}

static void report_syntax(const yaml_parser_t *parser, struct str source, struct config_report *report)
{
    const char *problem = parser->problem ? parser->problem : "out of memory";
    struct setting_place place = place_of(parser->problem_mark);
    if (parser->error == YAML_READER_ERROR) {
        place = config_place_at(source, parser->problem_offset);
    } else { /* a tab in the indentation of the line at fault: libyaml's own message names only tokens */
        size_t at = config_place_byte(source, (struct setting_place){place.line, 1});
        while (at < source.len && source.ptr[at] == ' ')
            at++;
        if (at < source.len && source.ptr[at] == '\t') {
            config_report_at(report, config_place_at(source, at), STR_NONE,
                             "is not valid YAML: indent with spaces, not tabs");
            return;
        }
    }
    if (parser->context && parser->context_mark.line != parser->problem_mark.line)
        config_report_at(report, place, STR_NONE, "is not valid YAML: %s%s (%s from line %zu)", problem,
                         hint_for(problem), parser->context, parser->context_mark.line + 1);
    else
        config_report_at(report, place, STR_NONE, "is not valid YAML: %s%s", problem, hint_for(problem));
}

/* ---- the first pass ---- */

struct shape {
    unsigned documents, depth, anchors, nodes;
};

static const char *excess_of(const struct shape *shape)
{
    if (shape->documents > 1)
        return "a second document begins here; a configuration is one document";
    if (shape->depth > NESTING_MAX)
        return "is nested too deeply (over 64 levels)";
    if (shape->anchors > ANCHORS_MAX)
        return "has too many anchors (over 1000)";
    return shape->nodes > NODES_MAX ? "holds too much (over 500000 keys and values)" : NULL;
}

static void count_event(struct shape *shape, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT: shape->documents++; break;
    case YAML_SCALAR_EVENT: shape->anchors += event->data.scalar.anchor != NULL; break;
    case YAML_SEQUENCE_START_EVENT:
        shape->anchors += event->data.sequence_start.anchor != NULL;
        shape->depth++;
        break;
    case YAML_MAPPING_START_EVENT:
        shape->anchors += event->data.mapping_start.anchor != NULL;
        shape->depth++;
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: shape->depth--; break;
    default: break;
    }
    shape->nodes++;
}

static bool check_shape(yaml_parser_t *parser, struct str source, struct config_report *report)
{
    struct shape shape = {0};
    yaml_event_t event;
    for (bool end = false; !end;) {
        if (!yaml_parser_parse(parser, &event)) {
            report_syntax(parser, source, report);
            return false;
        }
        count_event(&shape, &event);
        struct setting_place place = place_of(event.start_mark);
        end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (excess_of(&shape)) {
            config_report_at(report, place, STR_NONE, "%s", excess_of(&shape));
            return false;
        }
    }
    return true;
}

static void open_parser(yaml_parser_t *parser, struct str source)
{
    if (!yaml_parser_initialize(parser))
        abort(); /* out of memory, as in memory.h */
    yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(parser, (const unsigned char *)source.ptr, source.len);
}

bool config_yaml_load(struct str source, yaml_document_t *document, struct config_report *report)
{
    yaml_parser_t parser;
    if (!check_text(source, report))
        return false;
    open_parser(&parser, source);
    bool fine = check_shape(&parser, source, report);
    yaml_parser_delete(&parser);
    if (!fine)
        return false;
    open_parser(&parser, source);
    fine = yaml_parser_load(&parser, document);
    if (!fine)
        report_syntax(&parser, source, report);
    yaml_parser_delete(&parser);
    return fine;
}
