/* TLS on connections, by chance (C6, C7): requests in records of any length, which arrive in pieces of any length, among
 * changes of keys, to a client that reads when it likes. Every round has a seed of its own, which a failure names. */
#include "tls_rig.h"

#include <errno.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { ROUNDS = 60, REQUESTS_MAX = 12, BODY_BYTES_MAX = 40000, STEPS_MAX = 400000 };

static struct tls_rig rig;
static char bytes[BODY_BYTES_MAX + REQUESTS_MAX];
static uint64_t random_state;

static uint64_t below(uint64_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % bound;
}

/* Often few, sometimes many. */
static size_t some(size_t most)
{
    size_t bound = (size_t)1 << below(18);
    return 1 + (size_t)below(bound < most ? bound : most);
}

static const struct http_route routes[] = {
    {HTTP_POST, "/echo", answer_body, .consumes = HTTP_ANY},
    {.handler = NULL},
};

static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)('a' + i * 7 % 26);
    tls_rig_init(&rig, routes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tls_rig_deinit(&rig);
    return 0;
}

/* ---- one round ---- */

struct round {
    struct tls_client client;
    BIO *in, *out; /* between OpenSSL and the socket */
    size_t body_bytes[REQUESTS_MAX], lengths[REQUESTS_MAX];
    size_t begins[REQUESTS_MAX]; /* how many encrypted bytes are before its first one */
    unsigned count;              /* of requests */
    unsigned current;            /* that is given to OpenSSL now */
    size_t current_left;
    struct buf plain;  /* requests that OpenSSL has not taken */
    size_t sent_bytes; /* to the server, encrypted */
};

static void begin_round(struct round *round, uint64_t seed)
{
    *round = (struct round){0};
    random_state = seed;
    tls_client_prepare(&rig, &round->client);
    if (below(2))
        SSL_set_max_proto_version(round->client.ssl, TLS1_2_VERSION);
    round->in = BIO_new(BIO_s_mem());
    round->out = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(round->in, -1);
    SSL_set_bio(round->client.ssl, round->in, round->out);
    round->count = 1 + (unsigned)below(REQUESTS_MAX);
    bool is_small = below(2);
    for (unsigned i = 0; i < round->count; i++) {
        round->body_bytes[i] = some(is_small ? 100 : BODY_BYTES_MAX);
        size_t before = buf_len(&round->plain);
        buf_printf(&round->plain, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
                   round->body_bytes[i]);
        buf_put(&round->plain, bytes + i, round->body_bytes[i]);
        round->begins[i] = SIZE_MAX;
        round->lengths[i] = buf_len(&round->plain) - before;
    }
}

static void write_plain(struct round *round)
{
    SSL *ssl = round->client.ssl;
    if (below(8) == 0 && SSL_version(ssl) == TLS1_3_VERSION &&
        SSL_key_update(ssl, below(2) ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
        (void)SSL_do_handshake(ssl); /* its record is not part of a request */
    if (round->current == round->count)
        return;
    if (round->begins[round->current] == SIZE_MAX) {
        round->begins[round->current] = round->sent_bytes + BIO_ctrl_pending(round->out);
        round->current_left = round->lengths[round->current];
    }
    int wrote = SSL_write(ssl, round->plain.data + round->plain.start, (int)some(round->current_left));
    if (wrote <= 0)
        return;
    buf_consume(&round->plain, (size_t)wrote);
    round->current_left -= (size_t)wrote;
    round->current += round->current_left == 0;
}

/* Requests of which the server could have seen a byte. */
static unsigned arrived(const struct round *round)
{
    unsigned count = 0;
    while (count < round->count && round->begins[count] < round->sent_bytes)
        count++;
    return count;
}

static void send_some(struct round *round)
{
    char *at;
    size_t waiting = (size_t)BIO_get_mem_data(round->out, &at);
    if (waiting == 0)
        return;
    ssize_t sent = send(round->client.raw.fd, at, some(waiting), MSG_DONTWAIT | MSG_NOSIGNAL);
    char dropped[1 << 18];
    if (sent > 0)
        assert_int_equal(BIO_read(round->out, dropped, (int)sent), sent);
    round->sent_bytes += sent > 0 ? (size_t)sent : 0;
}

static void receive_some(struct round *round)
{
    static char part[1 << 18];
    struct tls_client *client = &round->client;
    ssize_t got = recv(client->raw.fd, part, some(sizeof part), MSG_DONTWAIT);
    if (got > 0)
        assert_int_equal(BIO_write(round->in, part, (int)got), got);
    ERR_clear_error();
    if (!client->is_open)
        (void)tls_client_step(client);
    else
        tls_client_take_some(client);
    assert_int_equal(client->failure, 0);
    if (got == 0)
        client->raw.at_end = true;
}

static void take_step(struct round *round)
{
    switch (below(5)) {
    case 0:
        if (round->client.is_open)
            write_plain(round);
        break;
    case 1: send_some(round); break;
    case 2: receive_some(round); break;
    default: harness_turn(&rig.harness, 1);
    }
}

/* The next answer is that of request `i`. False: there is none. */
static bool check_answer(struct round *round, unsigned i, bool *closes)
{
    if (buf_len(&round->client.raw.in) == 0)
        return false;
    struct answer answer = client_take(&round->client.raw);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.len, round->body_bytes[i]);
    assert_memory_equal(answer.body.ptr, bytes + i, answer.body.len);
    *closes = answer_has(&answer, "Connection: close");
    return true;
}

static size_t answers_bytes(const struct round *round)
{
    size_t sum = 0;
    for (unsigned i = 0; i < round->count; i++)
        sum += round->body_bytes[i];
    return sum;
}

static void end_round(struct round *round)
{
    buf_deinit(&round->plain);
    tls_client_close(&round->client);
    harness_turn(&rig.harness, 5);
}

static void every_request_is_answered_in_its_order(void **state)
{
    (void)state;
    tls_rig_start(&rig, NULL);
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        struct round round;
        unsigned answered = 0;
        bool closes = false;
        begin_round(&round, seed);
        for (int i = 0; i < STEPS_MAX && buf_len(&round.client.raw.in) <= answers_bytes(&round); i++)
            take_step(&round);
        for (int i = 0; i < 2000; i++)
            take_step(&round);
        while (answered < round.count && check_answer(&round, answered, &closes))
            answered++;
        if (answered != round.count || round.client.raw.at_end)
            fail_msg("seed %llu: %u of %u answers", (unsigned long long)seed, answered, round.count);
        end_round(&round);
    }
}

/* What has arrived is answered, or the last answer says that nothing after it is. */
static void a_stop_at_any_moment_loses_no_request_that_has_arrived(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        struct round round;
        unsigned answered = 0, due = 0;
        bool closes = false;
        if (seed > 1) {
            tls_rig_deinit(&rig);
            tls_rig_init(&rig, routes);
        }
        tls_rig_start(&rig, NULL);
        begin_round(&round, seed);
        unsigned after =
            (unsigned)below(round.count + 1); /* so many requests have arrived, at least in part */
        bool is_stopped = false;
        for (int i = 0; i < STEPS_MAX && !round.client.raw.at_end; i++) {
            if (!is_stopped && arrived(&round) >= after && below(3) == 0) {
                is_stopped = true;
                due = arrived(&round);
                http_server_drain(rig.harness.server, CLOCK_NEVER, NULL, NULL);
            }
            take_step(&round);
        }
        while (answered < round.count && check_answer(&round, answered, &closes))
            answered++;
        if (!round.client.raw.at_end || (round.client.is_open && !round.client.saw_notify) ||
            (answered < due && !closes))
            fail_msg("seed %llu: %u answers for %u requests, ended %d, close_notify %d",
                     (unsigned long long)seed, answered, due, round.client.raw.at_end,
                     round.client.saw_notify);
        end_round(&round);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_request_is_answered_in_its_order),
        TEST(a_stop_at_any_moment_loses_no_request_that_has_arrived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
