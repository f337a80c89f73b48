/* One line that is drawn anew a few times a second, and stays when all is done. */
#include "app/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define DRAW_EVERY_NS (200 * CLOCK_NS_PER_MS)

void progress_start(struct progress *progress, bool wanted)
{
    int64_t now_ns = clock_mono_ns();
    *progress = (struct progress){
        .shown = wanted && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO),
        .began_ns = now_ns,
        .drawn_ns = now_ns,
    };
}

static void draw(const struct progress *progress, int64_t now_ns)
{
    double seconds = (double)(now_ns - progress->began_ns) / (double)CLOCK_NS_PER_S;
    double megabytes = (double)progress->bytes / 1e6;
    fprintf(stderr, "\r%llu items, %.1f MB, %.1f MB/s ", (unsigned long long)progress->items, megabytes,
            megabytes / (seconds > 0.001 ? seconds : 0.001));
}

void progress_add(struct progress *progress, struct str bytes)
{
    if (!progress->shown)
        return;
    const char *at = bytes.ptr, *end = bytes.ptr + bytes.len;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        progress->items++;
        at++;
    }
    progress->bytes += bytes.len;
    int64_t now_ns = clock_mono_ns();
    if (now_ns - progress->drawn_ns < DRAW_EVERY_NS)
        return;
    progress->drawn_ns = now_ns;
    draw(progress, now_ns);
}

void progress_end(struct progress *progress)
{
    if (!progress->shown)
        return;
    draw(progress, clock_mono_ns());
    fputc('\n', stderr);
}
