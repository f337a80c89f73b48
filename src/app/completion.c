/* `freshet completion`: scripts that complete commands, options and their values, made of the rows of --help. A script is a table in
 * the shell's own language; both complete "--name value" and "--name=value", and of a list "A,B" the last part. */
#include <stdio.h>
#include <string.h>

#include "app/commands.h"
#include "app/options.h"
#include "base/buf.h"

/* The words that a command begins with, "list|show [ID…]" or "[bash|zsh]": list|show. Empty = any. */
static struct str first_words(const struct option_help *help)
{
    struct str usage = str_from(help->usage), first;
    if (!str_split(&usage, ' ', &first) || !memchr(first.ptr, '|', first.len))
        return STR_NONE;
    return first.ptr[0] == '[' ? str_of(first.ptr + 1, first.len - 2) : first;
}

static bool takes_file(const char *text)
{
    return text && strstr(text, "FILE");
}

static bool is_list(const struct option_row *row)
{
    return strchr(row->value, ',') != NULL;
}

/* list|show: list show */
static void put_words(struct buf *out, struct str words)
{
    for (size_t i = 0; i < words.len; i++)
        buf_put_char(out, words.ptr[i] == '|' ? ' ' : words.ptr[i]);
}

/* ---- bash ---- */

static const char bash_begin[] =
    "# bash completion of freshet, printed by `freshet completion bash`.\n"
    "_freshet() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options='' words='' values=''\n"
    "    COMPREPLY=()\n"
    "    # bash makes three words of --name=value\n"
    "    if [ \"$cur\" = = ]; then\n"
    "        cur=''\n"
    "    elif [ \"$prev\" = = ]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n"
    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$_freshet_commands --help --version\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    case ${COMP_WORDS[1]} in\n";

static const char bash_end[] =
    "    help) [ \"$COMP_CWORD\" -gt 2 ] || words=$_freshet_commands ;;\n"
    "    esac\n"
    "    case $values in\n"
    "    '') ;;\n"
    "    files) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") && compopt -o filenames 2>/dev/null ;;\n"
    "    any) ;;\n"
    "    list:*)\n"
    "        local before=''\n"
    "        [ \"$cur\" = \"${cur%,*}\" ] || before=${cur%,*},\n"
    "        mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"${values#list:}\" -- \"${cur##*,}\")\n"
    "        compopt -o nospace 2>/dev/null\n"
    "        ;;\n"
    "    *) mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$cur\") ;;\n"
    "    esac\n"
    "    [ -z \"$values\" ] || return 0\n"
    "    case $cur in\n"
    "    -*) mapfile -t COMPREPLY < <(compgen -W \"$options --help\" -- \"$cur\") ;;\n"
    "    *)\n"
    "        if [ \"$words\" = files ]; then\n"
    "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") && compopt -o filenames 2>/dev/null\n"
    "        else\n"
    "            mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
    "        fi\n"
    "        ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _freshet freshet\n";

static void put_bash_command(const struct option_help *help, void *context)
{
    struct buf *out = context;
    struct str words = first_words(help);
    buf_printf(out, "    %s)\n        options='", help->command);
    for (const struct option_row *row = help->rows; row->name; row++)
        buf_printf(out, "%s%s", row == help->rows ? "" : " ", row->name);
    buf_put_str(out, STR("'\n"));
    if (words.len) {
        buf_put_str(out, STR("        [ \"$COMP_CWORD\" -gt 2 ] || words='"));
        put_words(out, words);
        buf_put_str(out, STR("'\n"));
    } else if (takes_file(help->usage)) {
        buf_put_str(out, STR("        words=files\n"));
    }
    buf_put_str(out, STR("        case $prev in\n"));
    for (const struct option_row *row = help->rows; row->name; row++)
        if (row->value)
            buf_printf(out, "        %s) values='%s%s' ;;\n", row->name,
                       row->choices && is_list(row) ? "list:" : "",
                       row->choices             ? row->choices
                       : takes_file(row->value) ? "files"
                                                : "any");
    buf_put_str(out, STR("        esac\n        ;;\n"));
}

static void put_bash(struct buf *out)
{
    buf_put_str(out, STR("_freshet_commands='"));
    for (const struct command *command = app_commands; command->name; command++)
        buf_printf(out, "%s ", command->name);
    buf_put_str(out, STR("help'\n"));
    buf_put_str(out, str_from(bash_begin));
    app_each_help(put_bash_command, out);
    buf_put_str(out, str_from(bash_end));
}

/* ---- zsh ---- */

/* A text inside of '…', in which : [ ] and \ mean something to _arguments and _describe. */
static void put_zsh_text(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (strchr(":[]\\", *text))
            buf_put_char(out, '\\');
        buf_put_str(out, *text == '\'' ? STR("'\\''") : str_of(text, 1));
    }
}

static void put_zsh_option(struct buf *out, const struct option_row *row)
{
    buf_printf(out, " \\\n            '%s%s%s[", row->list ? "*" : "", row->name, row->value ? "=" : "");
    put_zsh_text(out, row->help);
    buf_put_char(out, ']');
    if (row->value) {
        buf_put_char(out, ':');
        put_zsh_text(out, row->value);
        if (row->choices)
            buf_printf(out, is_list(row) ? ":_values -s , value %s" : ":(%s)", row->choices);
        else
            buf_put_str(out, takes_file(row->value) ? STR(":_files") : STR(": "));
    }
    buf_put_char(out, '\'');
}

static void put_zsh_command(const struct option_help *help, void *context)
{
    struct buf *out = context;
    struct str words = first_words(help);
    buf_printf(out, "    %s)\n        _arguments", help->command);
    for (const struct option_row *row = help->rows; row->name; row++)
        put_zsh_option(out, row);
    buf_put_str(out, STR(" \\\n            '(- *)--help[print the help of this command]'"));
    if (words.len) {
        buf_put_str(out, STR(" \\\n            '1:what:("));
        put_words(out, words);
        buf_put_str(out, STR(")'"));
    }
    if (help->usage) {
        buf_put_str(out, STR(" \\\n            '*:"));
        put_zsh_text(out, help->usage);
        buf_put_str(out, takes_file(help->usage) ? STR(":_files'") : STR(": '"));
    }
    buf_put_str(out, STR("\n        ;;\n"));
}

static void put_zsh(struct buf *out)
{
    buf_put_str(out,
                STR("#compdef freshet\n# zsh completion of freshet, printed by `freshet completion zsh`.\n"
                    "_freshet() {\n    local -a commands\n    commands=(\n"));
    for (const struct command *command = app_commands; command->name; command++) {
        buf_printf(out, "        '%s:", command->name);
        put_zsh_text(out, command->summary);
        buf_put_str(out, STR("'\n"));
    }
    buf_put_str(
        out,
        STR("        'help:print this list, or the help of a command'\n    )\n"
            "    if (( CURRENT == 2 )); then\n"
            "        _describe -o option \"('--help:print the commands' '--version:print the version')\"\n"
            "        _describe command commands\n"
            "        return\n"
            "    fi\n"
            "    shift words\n"
            "    (( CURRENT-- ))\n"
            "    case $words[1] in\n"));
    app_each_help(put_zsh_command, out);
    buf_put_str(out, STR("    help) (( CURRENT > 2 )) || _describe command commands ;;\n    esac\n}\n"
                         "if [ \"$funcstack[1]\" = _freshet ]; then\n    _freshet \"$@\"\n"
                         "else\n    compdef _freshet freshet\nfi\n"));
}

int app_completion(int argc, char **argv)
{
    const struct option_row rows[] = {{.name = NULL}};
    struct option_words words;
    int outcome = options_read_words(
        argc, argv, "bash|zsh",
        "Prints a script that completes commands, options and their values. The package installs both. By hand:\n\n"
        "  freshet completion bash > /etc/bash_completion.d/freshet\n"
        "  source <(freshet completion zsh)",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome;
    struct buf text = {0};
    if (words.count == 1 && strcmp(words.items[0], "bash") == 0)
        put_bash(&text);
    else if (words.count == 1 && strcmp(words.items[0], "zsh") == 0)
        put_zsh(&text);
    else
        return app_misuse("completion", "name one shell, bash or zsh");
    fwrite(text.data + text.start, 1, buf_len(&text), stdout);
    buf_deinit(&text);
    return 0;
}
