/* Keys of session tickets. A ticket holds the session, encrypted, so that the server keeps nothing for a client that may come back.
 * A new key is made every ROTATE_S; tickets of the two before are accepted. So a key that was stolen opens the tickets of a few hours,
 * and a client resumes a session for at least the lifetime of its ticket. Keys belong to one set of files: after a reload
 * sessions that other authorities vouched for are not resumed. They are not shared between processes. */
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "http/tls.h"

enum { ROTATE_S = 3600, LIFETIME_S = 2 * ROTATE_S, KEYS = 3, NAME_BYTES = 16, KEY_BYTES = 32 };

struct ticket_key {
    unsigned char name[NAME_BYTES], cipher[KEY_BYTES], digest[KEY_BYTES];
};

struct http_tickets {
    pthread_mutex_t mutex;
    struct ticket_key keys[KEYS]; /* the first one is used for new tickets */
    int64_t made_ns;
};

static bool make_key(struct ticket_key *key)
{
    return RAND_bytes((unsigned char *)key, sizeof *key) == 1;
}

struct http_tickets *http_tickets_create(void)
{
    struct http_tickets *tickets = memory_zalloc(sizeof *tickets);

    pthread_mutex_init(&tickets->mutex, NULL);
    tickets->made_ns = clock_mono_ns();
    for (unsigned i = 0; i < KEYS; i++)
        if (!make_key(&tickets->keys[i])) {
            http_tickets_destroy(tickets);
            return NULL;
        }
    return tickets;
}

void http_tickets_destroy(struct http_tickets *tickets)
{
    if (!tickets)
        return;
    explicit_bzero(tickets->keys, sizeof tickets->keys);
    pthread_mutex_destroy(&tickets->mutex);
    free(tickets);
}

/* The key for a new ticket. */
static bool current_key(struct http_tickets *tickets, struct ticket_key *key)
{
    struct ticket_key fresh;
    bool is_made = true;

    pthread_mutex_lock(&tickets->mutex);
    int64_t now_ns = clock_mono_ns();
    if (now_ns - tickets->made_ns >= ROTATE_S * CLOCK_NS_PER_S && (is_made = make_key(&fresh))) {
        memmove(&tickets->keys[1], &tickets->keys[0], (KEYS - 1) * sizeof *tickets->keys);
        tickets->keys[0] = fresh;
        tickets->made_ns = now_ns;
        explicit_bzero(&fresh, sizeof fresh);
    }
    *key = tickets->keys[0];
    pthread_mutex_unlock(&tickets->mutex);
    return is_made;
}

/* The key with that name. *is_old: the client should get a new ticket. */
static bool named_key(struct http_tickets *tickets, const unsigned char *name, struct ticket_key *key,
                      bool *is_old)
{
    bool is_found = false;

    pthread_mutex_lock(&tickets->mutex);
    for (unsigned i = 0; i < KEYS && !is_found; i++) {
        is_found = memcmp(tickets->keys[i].name, name, NAME_BYTES) == 0;
        *is_old = i > 0;
        if (is_found)
            *key = tickets->keys[i];
    }
    pthread_mutex_unlock(&tickets->mutex);
    return is_found;
}

/* As OpenSSL defines it: 1 = use the key, 2 = and send a new ticket, 0 = a full handshake, -1 = an error. */
static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                     EVP_MAC_CTX *digest, int is_new)
{
    struct http_tickets *tickets = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    struct ticket_key key;
    bool is_old = false;

    if (is_new ? !current_key(tickets, &key) || RAND_bytes(iv, EVP_MAX_IV_LENGTH) != 1
               : !named_key(tickets, name, &key, &is_old))
        return is_new ? -1 : 0;
    char digest_name[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, key.digest, KEY_BYTES),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest_name, 0),
        OSSL_PARAM_construct_end(),
    };
    memcpy(name, key.name, NAME_BYTES);
    bool is_ready = EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, key.cipher, iv, is_new) == 1 &&
                    EVP_MAC_CTX_set_params(digest, params) == 1;
    explicit_bzero(&key, sizeof key);
    /* With TLS 1.3 a client uses a ticket once, and gets another one. */
    bool renews = !is_new && (is_old || SSL_version(ssl) == TLS1_3_VERSION);
    return !is_ready ? -1 : renews ? 2 : 1;
}

void http_tickets_use(struct http_tickets *tickets, SSL_CTX *context)
{
    SSL_CTX_set_app_data(context, tickets);
    SSL_CTX_set_timeout(context, LIFETIME_S);
    SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket);
}
