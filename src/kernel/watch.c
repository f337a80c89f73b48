/* The main thread's work while the loops serve: signals, and a configuration file that changed.
 *
 * The file is looked at once a second by name, not by an open descriptor: a mounted ConfigMap changes by swapping a
 * symbolic link, which a watch on the file would miss. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "base/log.h"
#include "kernel/kernel_inside.h"

struct file_mark {
    struct timespec modified;
    ino_t inode;
    off_t size;
};

static struct file_mark mark_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return (struct file_mark){0};
    return (struct file_mark){info.st_mtim, info.st_ino, info.st_size};
}

static bool same_mark(const struct file_mark *a, const struct file_mark *b)
{
    return a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec &&
           a->inode == b->inode && a->size == b->size;
}

static void changed_setting(const char *field, void *arg)
{
    (void)arg;
    log_warn("config_needs_restart", LOG_CSTR("field", field));
}

static void log_refusal(const char *path, struct str problems)
{
    struct str line;
    while (str_split(&problems, '\n', &line))
        if (line.len)
            log_error("config_refused", LOG_CSTR("file", path), LOG_STR("error", line),
                      LOG_CSTR("effect", "the configuration in force stays"));
}

void kernel_reload(struct kernel *kernel)
{
    struct buf problems;
    buf_init(&problems);
    struct config *fresh = kernel_config_load(&kernel->options, &problems);
    if (!fresh)
        log_refusal(kernel->options.config_path, buf_str(&problems));
    buf_deinit(&problems);
    if (!fresh)
        return;
    struct error error = {0};
    struct auth_settings auth = kernel_auth_settings(fresh, kernel->options.modules);
    if (auth_reload(kernel->auth, &auth, &error) != STATUS_OK) {
        log_error("config_refused", LOG_CSTR("file", kernel->options.config_path), LOG_ERROR_FIELDS(&error));
        config_free(fresh);
        return;
    }
    config_each_restart(kernel->config, fresh, changed_setting, NULL);
    log_set_level((enum log_level)((const struct kernel_log_settings *)config_section(fresh, "log"))->level);
    for (size_t i = 0; i < kernel->module_count; i++) {
        struct kernel_module *entry = &kernel->modules[i];
        if (entry->started && entry->module->reload)
            entry->module->reload(entry->state, fresh, config_section(fresh, entry->module->section->name));
    }
    if (kernel->config != kernel->first)
        config_free(kernel->config);
    kernel->config = fresh;
    log_info("config_reloaded", LOG_CSTR("file", kernel->options.config_path));
}

void kernel_watch(struct kernel *kernel)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    struct file_mark seen = mark_of(kernel->options.config_path);
    for (;;) {
        int signal = sigtimedwait(&signals, NULL, &(struct timespec){.tv_sec = 1});
        if (signal == SIGTERM || signal == SIGINT)
            return;
        struct file_mark now = mark_of(kernel->options.config_path);
        bool changed = now.inode != 0 && !same_mark(&seen, &now);
        if (signal == SIGHUP || changed) {
            seen = now;
            kernel_reload(kernel);
        }
    }
}
