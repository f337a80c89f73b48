/* `freshet top`: a live screen where standard output is a terminal, else a table for each interval. */
#include "app/top.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "base/clock.h"
#include "base/memory.h"

enum { INTERVAL_MS = 2000, FILE_COLUMNS = 200, END_MS = 300 };

struct top {
    struct top_input input;
    const char *url, *token, *tenant;
    struct fetch_tls tls;
    int64_t interval_ms;
    bool is_once, from_databases;
    struct buf url_text, token_text;
    pthread_mutex_t lock; /* of the next three */
    pthread_cond_t changed;
    struct top_sample *last; /* taken by the screen */
    bool stops, has_ended;
    int wake[2]; /* a pipe: a sample has been taken, or a signal has come */
};

static int signal_pipe = -1;
static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    int saved_errno = errno;
    if (number == SIGINT)
        interrupted = 1;
    (void)!write(signal_pipe, "", 1);
    errno = saved_errno;
}

static void free_sample(struct top_sample *sample)
{
    if (sample)
        arena_deinit(&sample->arena);
    free(sample);
}

/* ---- the sampler ---- */

/* Waits for the end of the interval. True: the next sample is wanted. */
static bool await_interval(struct top *top)
{
    int64_t until_ns = clock_deadline_ms(top->interval_ms);
    pthread_mutex_lock(&top->lock);
    while (!top->stops && clock_cond_wait(&top->changed, &top->lock, until_ns))
        ;
    bool goes_on = !top->stops;
    pthread_mutex_unlock(&top->lock);
    return goes_on;
}

static void *run_sampler(void *context)
{
    struct top *top = context;
    struct top_sample *before = NULL;
    bool goes_on = true;
    while (goes_on) {
        struct top_sample *sample = memory_zalloc(sizeof *sample), *kept = memory_zalloc(sizeof *kept);
        top_input_read(&top->input, before, sample);
        /* What the next one is compared with: names and versions. */
        *kept = (struct top_sample){
            .arena = ARENA(4096), .at_ns = sample->at_ns, .dictionary_count = sample->dictionary_count};
        for (size_t i = 0; i < sample->dictionary_count; i++)
            kept->dictionaries[i] = (struct top_dictionary){
                .name = arena_str(&kept->arena, str_from(sample->dictionaries[i].name)).ptr,
                .database = arena_str(&kept->arena, str_from(sample->dictionaries[i].database)).ptr,
                .version = sample->dictionaries[i].version};
        free_sample(before);
        before = kept;
        pthread_mutex_lock(&top->lock);
        struct top_sample *old = top->last;
        top->last = sample;
        pthread_mutex_unlock(&top->lock);
        free_sample(old);
        (void)!write(top->wake[1], "", 1);
        goes_on = await_interval(top);
    }
    free_sample(before);
    pthread_mutex_lock(&top->lock);
    top->has_ended = true;
    pthread_cond_broadcast(&top->changed);
    pthread_mutex_unlock(&top->lock);
    return NULL;
}

/* A sampler that waits for a server that does not answer is not waited for: the process ends without it. */
static void stop_sampler(struct top *top, pthread_t sampler, int exit_status)
{
    int64_t until_ns = clock_deadline_ms(END_MS);
    pthread_mutex_lock(&top->lock);
    top->stops = true;
    pthread_cond_broadcast(&top->changed);
    while (!top->has_ended && clock_cond_wait(&top->changed, &top->lock, until_ns))
        ;
    bool has_ended = top->has_ended;
    pthread_mutex_unlock(&top->lock);
    if (!has_ended) {
        (void)fflush(stdout);
        _exit(exit_status);
    }
    pthread_join(sampler, NULL);
    free_sample(top->last);
}

/* ---- the screen ---- */

/* False: q, or the end of the keyboard. */
static bool read_keys(void)
{
    char keys[64];
    ssize_t count = read(STDIN_FILENO, keys, sizeof keys);
    if (count <= 0)
        return count < 0 && errno == EINTR;
    return !memchr(keys, 'q', (size_t)count) && !memchr(keys, 'Q', (size_t)count) &&
           !memchr(keys, 3, (size_t)count);
}

static void draw(struct top *top)
{
    struct buf frame = {0};
    int columns, lines;
    screen_size(&columns, &lines);
    pthread_mutex_lock(&top->lock);
    if (top->last)
        top_screen_put(&frame, top->last, columns, lines, "\x1b[K\r\n");
    pthread_mutex_unlock(&top->lock);
    if (!buf_len(&frame))
        buf_put_str(&frame, STR("freshet  the first sample is being taken; q ends\x1b[K\r\n"));
    screen_draw(&frame);
    buf_deinit(&frame);
}

static void run_screen(struct top *top)
{
    bool has_keys = isatty(STDIN_FILENO), goes_on = true;
    while (goes_on && !interrupted) {
        struct pollfd fds[2] = {{.fd = top->wake[0], .events = POLLIN},
                                {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
        char bytes[64];
        draw(top);
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[0].revents)
            (void)!read(top->wake[0], bytes, sizeof bytes);
        if (fds[1].revents)
            goes_on = read_keys();
    }
    screen_close();
}

/* ---- a file ---- */

static int run_file(struct top *top)
{
    struct top_sample *before = NULL;
    int exit_status = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (bool goes_on = true; goes_on && !interrupted;) {
        struct top_sample *sample = memory_zalloc(sizeof *sample);
        struct buf text = {0};
        top_input_read(&top->input, before, sample);
        top_screen_put(&text, sample, FILE_COLUMNS, 0, "\n");
        if (!top->is_once)
            buf_put_char(&text, '\n');
        goes_on = fwrite(buf_str(&text).ptr, 1, buf_len(&text), stdout) == buf_len(&text) && !top->is_once &&
                  fflush(stdout) == 0;
        /* Nothing answered: there is nothing to be seen. */
        exit_status =
            sample->warning_count && sample->pod_count == 0 && sample->dictionary_count == 0 ? 1 : 0;
        buf_deinit(&text);
        free_sample(before);
        before = sample;
        struct pollfd fd = {.fd = top->wake[0], .events = POLLIN};
        if (goes_on && !interrupted)
            (void)poll(&fd, 1, (int)top->interval_ms);
    }
    free_sample(before);
    return exit_status;
}

/* ---- the command ---- */

/* 0, or the exit status. Without a configuration a pod alone is asked. */
static int open_source(struct top *top)
{
    struct top_input *input = &top->input;
    struct error error = {0};
    struct str given;
    struct buf problems = {0};
    bool is_pod_named = top->url || (getenv("FRESHET_URL") && *getenv("FRESHET_URL"));
    struct str url = client_url("top", top->url, &top->url_text);
    if (!url.len || !client_token_given("top", top->token, &given) || !client_tls_given("top", &top->tls))
        return OPTIONS_WRONG;
    input->config = kernel_config_load(
        &(struct kernel_options){.config_path = app_config_path(input->config_path), .modules = app_modules},
        &problems);
    bool is_config_needed = input->config_path || top->from_databases || !is_pod_named;
    if (!input->config && is_config_needed)
        fprintf(stderr, "%.*s", STR_ARG(buf_str(&problems)));
    buf_deinit(&problems);
    if (!input->config && is_config_needed)
        return 1;
    if (input->config)
        app_sites_init(&input->sites, input->config);
    if (top->from_databases)
        return 0;
    const struct auth_settings *auth = input->config ? config_section(input->config, "auth") : NULL;
    if (client_token(given,
                     &(struct auth_token_request){
                         .tenant = str_from(top->tenant),
                         .scopes = STR("ops:read ops:all-tenants"),
                         .issuer = auth ? auth->issuer : STR_NONE,
                         .audience = auth && auth->audiences.count ? auth->audiences.items[0] : STR_NONE,
                     },
                     &top->token_text, &error) != STATUS_OK)
        return app_fail("top", "%s", error.message);
    input->call = (struct pod_call){.url = url,
                                    .token = buf_str(&top->token_text),
                                    .session = fetch_session_open(),
                                    .tls = client_tls(&top->tls)};
    return 0;
}

static int run_top(struct top *top)
{
    pthread_t sampler;
    int exit_status = 0;
    if (pipe(top->wake) != 0)
        return app_fail("top", "no pipe: %s", strerror(errno));
    signal_pipe = top->wake[1];
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGWINCH, on_signal);
    if (!top->is_once && screen_open()) {
        if (pthread_create(&sampler, NULL, run_sampler, top) != 0)
            return app_fail("top", "no thread");
        run_screen(top);
        stop_sampler(top, sampler, exit_status);
    } else {
        exit_status = run_file(top);
    }
    close(top->wake[0]);
    close(top->wake[1]);
    return exit_status;
}

int app_top(int argc, char **argv)
{
    struct top top = {.interval_ms = INTERVAL_MS, .tenant = "operator"};
    const struct option_row rows[] = {
        {"--interval", "2s", "how often it is read (default 2s)", .duration_ms = &top.interval_ms},
        {"--once", NULL, "print one table and end", .flag = &top.is_once},
        {"--databases", NULL, "read the databases, and ask no pod", .flag = &top.from_databases},
        {"--url", "URL", CLIENT_URL_HELP, .into = &top.url},
        {"--token", "TOKEN",
         "bearer token with the scope ops:read (default $FRESHET_TOKEN, else a development token)",
         .into = &top.token},
        CLIENT_TLS_ROWS(top.tls),
        APP_CONFIG_ROW(top.input.config_path),
        {.name = NULL},
    };
    int exit_status = options_read(
        argc, argv,
        "A live screen: pods, reads and writes a second, freshness, lag, outboxes, pending updates, and the dictionaries that\n"
        "change most. It asks a pod, or reads the databases of the configuration while no pod answers. q or Ctrl-C ends it. Where\n"
        "standard output is not a terminal, a table is printed for each interval.\n\n"
        "  freshet top\n"
        "  freshet top --once --databases",
        rows);
    if (exit_status != OPTIONS_RUN)
        return exit_status;
    if (top.interval_ms < 100)
        return app_misuse("top", "--interval must be at least 100ms");
    pthread_mutex_init(&top.lock, NULL);
    pthread_cond_init(&top.changed, NULL);
    exit_status = open_source(&top);
    if (exit_status == 0)
        exit_status = run_top(&top);
    top_input_close(&top.input);
    buf_deinit(&top.url_text);
    buf_deinit(&top.token_text);
    return exit_status;
}
