/* `freshet manual`: freshet(1) and freshet.yaml(5) in roff. The commands, their options and the settings come from the rows that
 * --help and docs/CONFIG.md are made of; only what surrounds them is written here. */
#include <stdio.h>
#include <string.h>

#include "app/commands.h"
#include "app/options.h"
#include "base/arena.h"
#include "base/roff.h"

static const char intro[] =
    ".SH NAME\nfreshet \\- reference data and events from PostgreSQL, fresh in every process\n"
    ".SH SYNOPSIS\n.B freshet\n.I COMMAND\n.RI [ OPTIONS ]\n"
    ".SH DESCRIPTION\n"
    "freshet serves tables of PostgreSQL from memory over HTTP, and updates every copy within milliseconds after a\n"
    "commit. PostgreSQL is the only server that it needs; Kafka, Redis Cluster and NATS JetStream can be added by\n"
    "configuration. The same program is server, migration tool and client.\n"
    ".SH COMMANDS\n";

static const char outro[] =
    ".SH EXIT STATUS\n"
    ".TP\n0\nThe command succeeded.\n"
    ".TP\n1\nThe command failed; the reason is on standard error.\n"
    ".TP\n2\nThe command was called wrongly; standard error names the mistake, and nothing was done.\n"
    ".TP\n3\nA result of its own, which the command describes above.\n"
    ".SH SIGNALS\n"
    ".TP\nSIGTERM, SIGINT\n.B freshet serve\nreports that it is not ready, waits for http.drainDelay, finishes running requests and\n"
    "ends. A second signal ends the delay.\n"
    ".TP\nSIGHUP\n.B freshet serve\nreads the configuration again. A mistake in it is logged, and the old one stays.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B FRESHET_CONFIG\nthe configuration file, where \\-\\-config is not given\n"
    ".TP\n.B FRESHET_URL\nthe address of the server for client commands, where \\-\\-url is not given\n"
    ".TP\n.B FRESHET_TOKEN\nthe bearer token for client commands, where \\-\\-token is not given\n"
    ".TP\n.B FRESHET_CA, FRESHET_CERT, FRESHET_KEY\nfiles for an https address, where \\-\\-ca, \\-\\-cert and \\-\\-key are not given\n"
    ".TP\n.B FRESHET_LOG\nlog lines of commands on standard error: debug, info, warn, error or off (the default); not of\n.B freshet serve\n"
    ".TP\n.B FRESHET_VAR\nthe folder with the keys of \\fBfreshet token\\fR, var by default\n"
    ".PP\nThe configuration file can name others: \\fB${NAME}\\fR and \\fB${NAME:default}\\fR.\n"
    ".SH FILES\n.TP\n.I /etc/freshet/freshet.yaml\nthe configuration, see\n.BR freshet.yaml (5)\n"
    ".SH SEE ALSO\n.BR freshet.yaml (5),\n.BR systemd (1),\n.BR psql (1)\n";

static const char yaml_intro[] =
    ".SH NAME\nfreshet.yaml \\- configuration of freshet\n"
    ".SH SYNOPSIS\n.I /etc/freshet/freshet.yaml\n"
    ".SH DESCRIPTION\n"
    "One YAML file. Unknown names, wrong types and values out of bounds are refused with line and column:\n"
    ".B freshet config\nchecks the file without starting anything.\n"
    ".PP\n\\fB${NAME}\\fR and \\fB${NAME:default}\\fR in a value come from the environment; \\fB$${NAME}\\fR is the\n"
    "text ${NAME}. Durations are 250ms, 1s, 5m, 1h, 30d (a bare number is milliseconds), sizes 64KiB, 8MiB, 1GiB (a\n"
    "bare number is bytes). A list of one may stand without its dash.\n"
    ".PP\nSettings that are reloadable change on SIGHUP or when the file changes, the others need a restart.\n"
    ".SH SETTINGS\n";

static const char yaml_outro[] = ".SH EXAMPLES\nThe least that a server needs:\n.PP\n.RS 4\n.nf\n"
                                 "auth:\n  jwksFile: /etc/freshet/jwks.json\npostgres:\n"
                                 "  jdbcUrl: postgresql://freshet@/freshet?host=/var/run/postgresql\n"
                                 "refdata:\n  dictionaries:\n    \\- code: FEATURE\n.fi\n.RE\n"
                                 ".SH SEE ALSO\n.BR freshet (1)\n";

static void put_title(struct buf *out, const char *name, unsigned section)
{
    buf_printf(out,
               ".\\\" Printed by `freshet manual` from the tables of the program.\n"
               ".TH %s %u \"%s\" \"freshet %s\" \"freshet manual\"\n",
               name, section, app_commit_date, FRESHET_VERSION);
}

static void put_command(const struct option_help *help, void *context)
{
    struct buf *out = context;
    buf_printf(out, ".SS freshet %s", help->command);
    if (help->usage) {
        buf_put_char(out, ' ');
        roff_put_line(out, str_from(help->usage));
    }
    buf_put_char(out, '\n');
    roff_put_text(out, str_from(help->summary));
    for (const struct option_row *row = help->rows; row->name; row++) {
        buf_put_str(out, STR(".TP\n"));
        roff_put_bold(out, str_from(row->name));
        if (row->value) {
            buf_put_str(out, STR(" \\fI"));
            roff_put_line(out, str_from(row->value));
            buf_put_str(out, STR("\\fR"));
        }
        buf_put_char(out, '\n');
        roff_put_text(out, str_from(row->help));
    }
}

int app_manual(int argc, char **argv)
{
    const struct option_row rows[] = {{.name = NULL}};
    struct option_words words;
    int outcome = options_read_words(
        argc, argv, "[freshet|freshet.yaml]",
        "Prints a manual page in roff: freshet(1), which is the default, or freshet.yaml(5), the configuration.\n\n"
        "  freshet manual freshet.yaml | man -l -",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome;
    const char *page = words.count ? words.items[0] : "freshet";
    struct buf text = {0};
    if (words.count > 1 || (strcmp(page, "freshet") != 0 && strcmp(page, "freshet.yaml") != 0))
        return app_misuse("manual", "name one page, freshet or freshet.yaml");
    if (strcmp(page, "freshet") == 0) {
        put_title(&text, "FRESHET", 1);
        buf_put_str(&text, str_from(intro));
        app_each_help(put_command, &text);
        buf_put_str(&text, str_from(outro));
    } else {
        struct arena arena = ARENA(4096);
        put_title(&text, "FRESHET.YAML", 5);
        buf_put_str(&text, str_from(yaml_intro));
        config_print_roff(kernel_sections(app_modules, &arena), &text);
        buf_put_str(&text, str_from(yaml_outro));
        arena_deinit(&arena);
    }
    fwrite(text.data + text.start, 1, buf_len(&text), stdout);
    buf_deinit(&text);
    return 0;
}
