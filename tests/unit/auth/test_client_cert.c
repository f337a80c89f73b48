/* C5: X-Forwarded-Client-Cert is believed only from configured peers, and only its last element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>

#include "auth/state.h"

static struct auth_client clients[] = {
    {.identity = {"spiffe://mesh/ns/a/sa/app", 25}, .tenant = {"acme", 4}},
    {.identity = {"CN=app,O=\"A, B\"", 15}, .tenant = {"beta", 4}},
};
static struct auth_range peers[2];
static struct auth_rules rules = {.clients = clients, .client_count = 2, .peers = peers, .peer_count = 2};

static struct sockaddr_in6 peer(const char *address)
{
    struct sockaddr_in6 storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;

    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        storage.sin6_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, address, &storage.sin6_addr), 1);
        storage.sin6_family = AF_INET6;
    }
    return storage;
}

static void ranges_hold_the_addresses_they_say(void **state)
{
    (void)state;
    static const struct {
        const char *range, *address;
        bool holds;
    } ROWS[] = {
        {"10.0.0.0/8", "10.255.1.2", true},
        {"10.0.0.0/8", "11.0.0.0", false},
        {"10.0.0.0/8", "::ffff:10.1.1.1", true},
        {"127.0.0.1", "127.0.0.1", true},
        {"127.0.0.1", "127.0.0.2", false},
        {"0.0.0.0/0", "8.8.8.8", true},
        {"0.0.0.0/0", "2001:db8::1", false},
        {"10.1.2.0/23", "10.1.3.255", true},
        {"10.1.2.0/23", "10.1.4.0", false},
        {"2001:db8::/33", "2001:db8:7fff::1", true},
        {"2001:db8::/33", "2001:db8:8000::1", false},
        {"::/0", "1.2.3.4", true},
        {"::1", "::1", true},
        {"::ffff:10.0.0.0/104", "10.9.9.9", true},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct auth_range range;
        struct sockaddr_in6 address = peer(ROWS[i].address);
        assert_true(auth_range_parse(str_from(ROWS[i].range), &range));
        if (auth_range_holds(&range, &address) != ROWS[i].holds)
            fail_msg("%s %s", ROWS[i].range, ROWS[i].address);
    }
}

static void bad_ranges_are_refused(void **state)
{
    (void)state;
    static const char *const ROWS[] = {"",          "/8",         "10.0.0.0/", "10.0.0.0/33",  "10.0.0.0/-1",
                                       "::/129",    "10.0.0",     "localhost", "10.0.0.0/8/8", "10.0.0.0 /8",
                                       "1.2.3.4.5", "10.0.0.0/8x"};
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct auth_range range;
        if (auth_range_parse(str_from(ROWS[i]), &range))
            fail_msg("taken: %s", ROWS[i]);
    }
}

#define URI "URI=spiffe://mesh/ns/a/sa/app"

static void the_last_element_names_the_client(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *tenant; /* NULL = nobody */
    } ROWS[] = {
        {URI, "acme"},
        {"By=spiffe://mesh/x;Hash=00ff;Subject=\"\";" URI, "acme"},
        {"Hash=1;" URI ";DNS=a.example", "acme"},
        {"uri=spiffe://mesh/ns/a/sa/app", "acme"},
        {"URI=\"spiffe://mesh/ns/a/sa/app\"", "acme"},
        {"Subject=\"CN=app,O=\\\"A, B\\\"\"", "beta"},
        {"Hash=1;Subject=\"CN=app,O=\\\"A, B\\\"\";URI=", "beta"},
        {"Cert=\"-----BEGIN%20CERTIFICATE-----%0A\";" URI, "acme"},
        {"URI=spiffe://other;" URI, "acme"}, /* several URI names in one certificate */
        {"URI=spiffe://evil," URI, "acme"},
        {"Hash=1;URI=spiffe://evil, Hash=2;" URI, "acme"},
        {URI ",URI=spiffe://evil", NULL}, /* only the last hop was seen by our sidecar */
        {URI ",Hash=2", NULL},
        {"Subject=\"CN=app,O=\\\"A, B\\\"\";URI=spiffe://evil",
         NULL}, /* a URI, so the subject does not count */
        {"Subject=\"" URI "\"", NULL},
        {"Subject=\"x,URI=spiffe://mesh/ns/a/sa/app\"", NULL}, /* quoted: neither ',' nor '=' part anything */
        {"Subject=\"x;URI=spiffe://mesh/ns/a/sa/app\"", NULL},
        {"Subject=\"x\\\";" URI "\"", NULL},
        {"URI=spiffe://mesh/ns/a/sa/app2", NULL},
        {"URI=spiffe://mesh/ns/a/sa/ap", NULL},
        {"URI=SPIFFE://mesh/ns/a/sa/app", NULL},
        {"", NULL},
        {";", NULL},
        {",", NULL},
        {URI ";", NULL},
        {URI ",", NULL},
        {"=x;" URI, NULL},
        {"URI", NULL},
        {"URI=\"spiffe://mesh/ns/a/sa/app", NULL},
        {"URI=\"spiffe://mesh/ns/a/sa/app\"x", NULL},
        {"URI=\"spiffe://mesh/ns/a/sa/app\\", NULL},
        {"Subject=\"unclosed;" URI, NULL},
    };
    struct sockaddr_in6 sidecar = peer("127.0.0.1");
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        const struct auth_client *client = auth_client_find(&rules, &sidecar, str_from(ROWS[i].header));
        bool as_wanted =
            ROWS[i].tenant ? client && str_eq(client->tenant, str_from(ROWS[i].tenant)) : !client;
        if (!as_wanted)
            fail_msg("%s: %s", ROWS[i].header, client ? client->tenant.ptr : "nobody");
    }
}

static void other_peers_are_not_believed(void **state)
{
    (void)state;
    struct sockaddr_in6 sidecar = peer("::ffff:10.2.3.4"), stranger = peer("192.0.2.1"), local = {0};
    local.sin6_family = AF_UNIX;
    assert_non_null(auth_client_find(&rules, &sidecar, STR(URI)));
    assert_null(auth_client_find(&rules, &stranger, STR(URI)));
    assert_null(auth_client_find(&rules, &local, STR(URI)));
    assert_null(auth_client_find(&rules, NULL, STR(URI)));
}

static void a_certificate_of_its_own_names_a_client_unless_a_believed_peer_forwards_one(void **state)
{
    (void)state;
    static const struct {
        const char *peer, *own, *forwarded;
        bool is_forwarded;
        const char *tenant; /* NULL = nobody */
    } ROWS[] = {
        {"192.0.2.1", URI, "", false, "acme"}, /* any peer: it was verified here */
        {"127.0.0.1", URI, "", false, "acme"},
        {"192.0.2.1", "Subject=\"CN=x\";URI=\"spiffe://mesh/ns/a/sa/app\"", "", false, "acme"},
        {"192.0.2.1", "Subject=\"CN=app,O=\\\"A, B\\\"\"", "", false, "beta"},
        {"192.0.2.1", "URI=\"spiffe://other\"", "", false, NULL},
        {"192.0.2.1", "URI=\"spiffe://other\"", URI, true,
         NULL}, /* a stranger's header is not looked at, … */
        {"192.0.2.1", URI, "URI=spiffe://other", true, "acme"},
        {"127.0.0.1", "URI=\"spiffe://other\"", URI, true, "acme"}, /* … a believed peer's decides alone */
        {"127.0.0.1", URI, "URI=spiffe://other", true, NULL},
        {"127.0.0.1", URI, "", true, NULL}, /* it came twice */
        {"127.0.0.1", "", URI, true, "acme"},
        {"192.0.2.1", "", URI, true, NULL},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct sockaddr_in6 from = peer(ROWS[i].peer);
        const struct auth_question question = {.peer = &from,
                                               .client_cert = str_from(ROWS[i].own),
                                               .forwarded_client_cert = str_from(ROWS[i].forwarded),
                                               .is_forwarded = ROWS[i].is_forwarded};
        const struct auth_client *client = auth_client_of(&rules, &question);
        bool as_wanted =
            ROWS[i].tenant ? client && str_eq(client->tenant, str_from(ROWS[i].tenant)) : !client;
        if (!as_wanted)
            fail_msg("row %zu: %s", i, client ? client->tenant.ptr : "nobody");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_hold_the_addresses_they_say),
        cmocka_unit_test(bad_ranges_are_refused),
        cmocka_unit_test(the_last_element_names_the_client),
        cmocka_unit_test(other_peers_are_not_believed),
        cmocka_unit_test(a_certificate_of_its_own_names_a_client_unless_a_believed_peer_forwards_one),
    };
    if (!auth_range_parse(STR("127.0.0.1"), &peers[0]) || !auth_range_parse(STR("10.0.0.0/8"), &peers[1]))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
