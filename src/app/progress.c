/* One line that is drawn anew a few times a second, and stays when all is done. */
#include "app/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR_WIDTH = 30 };
#define DRAW_EVERY_NS (200 * CLOCK_NS_PER_MS)

static void start(struct progress *progress, bool shown, uint64_t items_total)
{
    int64_t now_ns = clock_mono_ns();
    *progress = (struct progress){
        .shown = shown,
        .items_total = items_total,
        .began_ns = now_ns,
        .drawn_ns = now_ns,
    };
}

void progress_start(struct progress *progress, bool wanted)
{
    start(progress, wanted && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO), 0);
}

void progress_start_of(struct progress *progress, uint64_t items_total)
{
    start(progress, items_total && isatty(STDERR_FILENO), items_total);
}

static void draw_bar(const struct progress *progress)
{
    double part = (double)progress->items / (double)progress->items_total;
    int filled = (int)(part * BAR_WIDTH);
    fprintf(stderr, "[%.*s%*s] %3.0f %% ", filled, "##############################", BAR_WIDTH - filled, "",
            part * 100);
}

static void draw(const struct progress *progress, int64_t now_ns)
{
    double seconds = (double)(now_ns - progress->began_ns) / (double)CLOCK_NS_PER_S;
    double megabytes = (double)progress->bytes / 1e6;
    fputc('\r', stderr);
    if (progress->items_total)
        draw_bar(progress);
    fprintf(stderr, "%llu items, %.1f MB, %.1f MB/s ", (unsigned long long)progress->items, megabytes,
            megabytes / (seconds > 0.001 ? seconds : 0.001));
}

void progress_count(struct progress *progress, uint64_t items, uint64_t bytes)
{
    if (!progress->shown)
        return;
    progress->items += items;
    progress->bytes += bytes;
    int64_t now_ns = clock_mono_ns();
    if (now_ns - progress->drawn_ns < DRAW_EVERY_NS)
        return;
    progress->drawn_ns = now_ns;
    draw(progress, now_ns);
}

void progress_add(struct progress *progress, struct str bytes)
{
    if (!progress->shown)
        return;
    uint64_t lines = 0;
    const char *at = bytes.ptr, *end = bytes.ptr + bytes.len;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        lines++;
        at++;
    }
    progress_count(progress, lines, bytes.len);
}

void progress_end(struct progress *progress)
{
    if (!progress->shown)
        return;
    draw(progress, clock_mono_ns());
    fputc('\n', stderr);
}
