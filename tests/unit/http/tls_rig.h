/* TLS for the tests of connections: authorities, certificates and keys made anew in a folder of their own, and a client of OpenSSL
 * on the harness's socketpairs. */
#ifndef FRESHET_TESTS_HTTP_TLS_RIG_H
#define FRESHET_TESTS_HTTP_TLS_RIG_H

#include <openssl/ssl.h>

#include "harness.h"

/* Files, made by tls_rig_init(): the server's, two authorities, and a client of each. */
struct tls_rig {
    struct harness harness;
    struct http_tls *tls; /* the server's */
    char folder[64];
    char cert[96], key[96], other_cert[96], other_key[96]; /* two certificates for "localhost" */
    char ca[96], client_cert[96], client_key[96];
    char wrong_cert[96], wrong_key[96]; /* of a client, by an authority that the server does not know */
    char old_cert[96], old_key[96];     /* of a client, expired */
};

#define TLS_RIG_URI "spiffe://mesh/ns/a/sa/app"
#define TLS_RIG_SUBJECT "CN=app,O=A\\, B"

void tls_rig_init(struct tls_rig *rig, const struct http_route *routes);
struct http_tls_settings tls_rig_settings(const struct tls_rig *rig);
void tls_rig_start(struct tls_rig *rig, const struct http_tls_settings *settings);
void tls_rig_deinit(struct tls_rig *rig);

struct tls_client {
    struct client raw; /* its `in`: what was decrypted; at_end: the server closed or the link failed */
    SSL *ssl;
    SSL_CTX *context;
    bool is_open;        /* the handshake is complete */
    bool saw_notify;     /* the server sent close_notify */
    int failure;         /* the reason of OpenSSL, 0 = none */
    SSL_SESSION *ticket; /* the last one that the server sent */
};

void tls_client_prepare(struct tls_rig *rig,
                        struct tls_client *client); /* then `context` and `ssl` may be changed */
void tls_client_begin(struct tls_rig *rig,
                      struct tls_client *client); /* the same on `raw`, which is connected */
void tls_client_connect(struct tls_rig *rig, struct tls_client *client); /* prepares one, and shakes hands */
void tls_client_use(struct tls_client *client, const char *cert, const char *key); /* before the handshake */
void tls_client_shake(struct tls_client *client); /* turns the loop until it is done, or has failed */
int tls_client_step(struct tls_client *client);   /* one step, without the loop; as SSL_do_handshake() */
void tls_client_send(struct tls_client *client, struct str bytes);
void tls_client_receive(struct tls_client *client);   /* until nothing more comes */
void tls_client_take_some(struct tls_client *client); /* without turning the loop */
struct answer tls_client_ask(struct tls_client *client, struct str request);
void tls_client_close(struct tls_client *client);

#endif
