/* Clocks and calendar. The calendar is computed here: libc's needs locks for the time zone, and its
 * strptime() does not read RFC 3339. Years 0000 to 9999. */
#include "base/clock.h"

#include <time.h>

#define US_PER_S INT64_C(1000000)
#define S_PER_DAY INT64_C(86400)
#define UNIX_S_MIN INT64_C(-62167219200) /* 0000-01-01T00:00:00Z */
#define UNIX_S_END INT64_C(253402300800) /* 10000-01-01T00:00:00Z */

struct date {
    int year;
    unsigned month, day; /* from 1 */
};

int64_t clock_mono_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * CLOCK_NS_PER_S + now.tv_nsec;
}

int64_t clock_unix_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * US_PER_S + now.tv_nsec / 1000;
}

int clock_ms_left(int64_t deadline_ns)
{
    int64_t now = clock_mono_ns();

    if (deadline_ns <= now)
        return 0;
    int64_t left = (deadline_ns - now - 1) / CLOCK_NS_PER_MS + 1;
    return left < INT32_MAX ? (int)left : INT32_MAX;
}

bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};

    return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &until) == 0;
}

/* Counting from 1 March puts the leap day last: then the days before a month are (153 m + 2) / 5, and 400
 * years are always 146,097 days. 719,468 is the day count from 0000-03-01 to 1970-01-01. */
static int64_t days_of(struct date date)
{
    int64_t year = date.year - (date.month <= 2);
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t year_of_era = year - era * 400;
    int64_t month = (date.month + 9) % 12;
    int64_t day_of_year = (153 * month + 2) / 5 + date.day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;

    return era * 146097 + day_of_era - 719468;
}

static struct date date_of(int64_t days)
{
    int64_t shifted = days + 719468;
    int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int64_t day_of_era = shifted - era * 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    struct date date = {
        .day = (unsigned)(day_of_year - (153 * month + 2) / 5 + 1),
        .month = (unsigned)(month < 10 ? month + 3 : month - 9),
    };

    date.year = (int)(year_of_era + era * 400 + (date.month <= 2));
    return date;
}

/* Splits into days since 1970 and seconds of the day, within the years that can be written. */
static int64_t split_days(int64_t unix_s, unsigned *second_of_day)
{
    int64_t days = (unix_s >= 0 ? unix_s : unix_s - (S_PER_DAY - 1)) / S_PER_DAY;

    *second_of_day = (unsigned)(unix_s - days * S_PER_DAY);
    return days;
}

static int64_t clamp(int64_t unix_us)
{
    if (unix_us < UNIX_S_MIN * US_PER_S)
        return UNIX_S_MIN * US_PER_S;
    return unix_us < UNIX_S_END * US_PER_S ? unix_us : UNIX_S_END * US_PER_S - 1;
}

static int64_t floor_seconds(int64_t unix_us)
{
    return (unix_us >= 0 ? unix_us : unix_us - (US_PER_S - 1)) / US_PER_S;
}

static char *put_digits(char *out, unsigned value, unsigned count)
{
    for (unsigned i = count; i-- > 0; value /= 10)
        out[i] = (char)('0' + value % 10);
    return out + count;
}

static char *put_time(char *out, unsigned second_of_day)
{
    out = put_digits(out, second_of_day / 3600, 2);
    *out++ = ':';
    out = put_digits(out, second_of_day / 60 % 60, 2);
    *out++ = ':';
    return put_digits(out, second_of_day % 60, 2);
}

size_t clock_rfc3339(int64_t unix_us, char out[CLOCK_RFC3339_BYTES])
{
    unsigned second_of_day;
    int64_t us = clamp(unix_us), seconds = floor_seconds(us);
    struct date date = date_of(split_days(seconds, &second_of_day));
    unsigned fraction = (unsigned)(us - seconds * US_PER_S);
    char *at = out;

    at = put_digits(at, (unsigned)date.year, 4);
    *at++ = '-';
    at = put_digits(at, date.month, 2);
    *at++ = '-';
    at = put_digits(at, date.day, 2);
    *at++ = 'T';
    at = put_time(at, second_of_day);
    if (fraction) {
        *at++ = '.';
        at = put_digits(at, fraction, 6);
    }
    *at++ = 'Z';
    *at = '\0';
    return (size_t)(at - out);
}

/* Takes exactly `count` digits off *s. */
static bool take_digits(struct str *s, unsigned count, unsigned *value)
{
    unsigned sum = 0;

    if (s->len < count)
        return false;
    for (unsigned i = 0; i < count; i++) {
        unsigned digit = (unsigned)(unsigned char)s->ptr[i] - '0';
        if (digit > 9)
            return false;
        sum = sum * 10 + digit;
    }
    *value = sum;
    *s = str_skip(*s, count);
    return true;
}

/* Takes one byte that must be `c`, or its lower case when it is a letter (RFC 3339 section 5.6). */
static bool take(struct str *s, char c)
{
    if (s->len == 0 || (s->ptr[0] != c && !(c >= 'A' && c <= 'Z' && s->ptr[0] == (c | 0x20))))
        return false;
    *s = str_skip(*s, 1);
    return true;
}

bool clock_rfc3339_parse(struct str s, int64_t *unix_us)
{
    static const uint8_t month_days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    unsigned year, hour, minute, second, us = 0, digit, hours = 0, minutes = 0, rest;
    struct date date;

    if (!take_digits(&s, 4, &year) || !take(&s, '-') || !take_digits(&s, 2, &date.month) || !take(&s, '-') ||
        !take_digits(&s, 2, &date.day) || !take(&s, 'T') || !take_digits(&s, 2, &hour) || !take(&s, ':') ||
        !take_digits(&s, 2, &minute) || !take(&s, ':') || !take_digits(&s, 2, &second))
        return false;
    date.year = (int)year;
    bool is_leap_year = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (date.month < 1 || date.month > 12 || date.day < 1 || date.day > month_days[date.month - 1] ||
        (date.month == 2 && date.day == 29 && !is_leap_year) || hour > 23 || minute > 59 || second > 60)
        return false;
    if (take(&s, '.')) { /* digits past the microsecond are read and forgotten */
        if (!take_digits(&s, 1, &digit))
            return false;
        unsigned scale = 100000;
        do {
            us += digit * scale;
            scale /= 10;
        } while (take_digits(&s, 1, &digit));
    }
    bool is_utc = take(&s, 'Z'), is_west = !is_utc && take(&s, '-');
    if (!is_utc && ((!is_west && !take(&s, '+')) || !take_digits(&s, 2, &hours) || !take(&s, ':') ||
                    !take_digits(&s, 2, &minutes) || hours > 23 || minutes > 59))
        return false;
    if (s.len > 0)
        return false;

    int64_t offset = (int64_t)hours * 3600 + minutes * 60;
    int64_t seconds =
        days_of(date) * S_PER_DAY + hour * 3600 + minute * 60 + second + (is_west ? offset : -offset);
    /* A leap second stands only at the end of a month in UTC; it is the second that follows it. */
    if (second == 60 && (date_of(split_days(seconds, &rest)).day != 1 || rest != 0))
        return false;
    if (seconds < UNIX_S_MIN || seconds >= UNIX_S_END)
        return false;
    *unix_us = seconds * US_PER_S + us;
    return true;
}

void clock_http_date(int64_t unix_us, char out[CLOCK_HTTP_DATE_BYTES])
{
    static const char names[] = "ThuFriSatSunMonTueWed"; /* 1970-01-01 was a Thursday */
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    unsigned second_of_day;
    int64_t days = split_days(floor_seconds(clamp(unix_us)), &second_of_day);
    struct date date = date_of(days);
    char *at = out;

    memcpy(at, names + 3 * (((days % 7) + 7) % 7), 3);
    memcpy(at + 3, ", ", 2);
    at = put_digits(at + 5, date.day, 2);
    *at++ = ' ';
    memcpy(at, months + (size_t)3 * (date.month - 1), 3);
    at[3] = ' ';
    at = put_digits(at + 4, (unsigned)date.year, 4);
    *at++ = ' ';
    at = put_time(at, second_of_day);
    memcpy(at, " GMT", 5);
}
