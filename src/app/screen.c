/* The terminal as a screen: the alternate buffer, keys without Enter, no cursor. What was changed is undone by screen_close(), which also
 * runs at exit and on every signal that ends the process. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "app/top.h"

enum { COLUMNS = 80, LINES = 24, COLUMNS_MIN = 20, LINES_MIN = 3 };
#define ENTER "\x1b[?1049h\x1b[?25l\x1b[2J"
#define LEAVE "\x1b[?25h\x1b[?1049l"

static struct termios before; /* of standard input */
static atomic_bool is_open, has_keys;

static void write_all(const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, len);
        if (written <= 0)
            return;
        bytes += written;
        len -= (size_t)written;
    }
}

/* Only calls that a signal handler may make. */
void screen_close(void)
{
    if (!atomic_exchange(&is_open, false))
        return;
    write_all(LEAVE, sizeof LEAVE - 1);
    if (atomic_load(&has_keys))
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void enter_screen(void)
{
    struct termios raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (atomic_load(&has_keys))
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    write_all(ENTER, sizeof ENTER - 1);
    atomic_store(&is_open, true);
}

/* The process ends by the signal, as it would without this. */
static void on_fatal(int number)
{
    screen_close();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Ctrl-Z: the shell gets its terminal back, and the screen returns with the process. */
static void on_stop(int number)
{
    sigset_t set;
    screen_close();
    (void)signal(SIGTSTP, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL); /* stops here */
    (void)signal(SIGTSTP, on_stop);
    enter_screen();
}

bool screen_open(void)
{
    static const int fatal[] = {SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE};
    if (!isatty(STDOUT_FILENO))
        return false;
    atomic_store(&has_keys, isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        (void)signal(fatal[i], on_fatal);
    (void)signal(SIGTSTP, on_stop);
    (void)atexit(screen_close);
    enter_screen();
    return true;
}

void screen_size(int *columns, int *lines)
{
    struct winsize size = {0};
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    *columns = is_known ? size.ws_col : COLUMNS;
    *lines = is_known ? size.ws_row : LINES;
    *columns = *columns < COLUMNS_MIN ? COLUMNS_MIN : *columns;
    *lines = *lines < LINES_MIN ? LINES_MIN : *lines;
}

void screen_draw(struct buf *frame)
{
    struct buf out = {0};
    struct str text = buf_str(frame);
    /* The last line has no end, which would move everything up. */
    if (str_ends_with(text, STR("\r\n")))
        text.len -= 2;
    buf_put_str(&out, STR("\x1b[H"));
    buf_put_str(&out, text);
    buf_put_str(&out, STR("\x1b[J"));
    if (atomic_load(&is_open))
        write_all(buf_str(&out).ptr, buf_len(&out));
    buf_deinit(&out);
}
