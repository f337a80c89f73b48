/* Development tokens: an Ed25519 key of our own, its public half for the server, and tokens signed by it.
 * Several may run at once: the key is made under a lock, and files appear whole, by rename. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/digest.h"
#include "auth/jose.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/uuid.h"

#define KEY_BYTES 32
#define SIGNATURE_BYTES 64
#define FILE_BYTES_MAX (256 * 1024)
#define TTL_S_MAX (10 * 366 * 24 * 3600)

/* ---- files ---- */

/* NOT_FOUND when there is none. */
static enum status read_whole(const char *path, struct buf *text, struct error *error)
{
    if (!buf_read_file(text, path, FILE_BYTES_MAX))
        return error_set(error, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s cannot be read: %s", path,
                         strerror(errno));
    if (buf_len(text) > FILE_BYTES_MAX)
        return error_set(error, STATUS_IO, "%s is too large", path);
    return STATUS_OK;
}

static enum status write_whole(const char *path, struct str text, mode_t mode, struct error *error)
{
    struct buf temporary = {0};
    enum status status = STATUS_OK;

    buf_printf(&temporary, "%s.%d.tmp%c", path, (int)getpid(), '\0');
    const char *name = temporary.data;
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    bool written = fd >= 0 && fchmod(fd, mode) == 0;
    while (written && text.len > 0) {
        ssize_t put = write(fd, text.ptr, text.len);
        written = put >= 0 || errno == EINTR;
        text = str_skip(text, put > 0 ? (size_t)put : 0);
    }
    if (!written || fsync(fd) != 0 || rename(name, path) != 0)
        status = error_set(error, STATUS_IO, "%s cannot be written: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (status != STATUS_OK)
        unlink(name);
    buf_deinit(&temporary);
    return status;
}

/* Makes the folders above `path` that are missing. What fails here fails again, with a name, when the file
 * is opened. */
static void make_folders(const char *path)
{
    char *folder = str_dup(str_from(path));

    for (char *slash = *path ? strchr(folder + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)!mkdir(folder, 0777);
        *slash = '/';
    }
    free(folder);
}

/* ---- the key ---- */

struct dev_key {
    EVP_PKEY *pkey;
    struct buf x, kid; /* base64url of the public key; its RFC 7638 thumbprint */
};

static bool derive_names(struct dev_key *key)
{
    unsigned char public_key[KEY_BYTES];
    uint8_t digest[AUTH_SHA256_BYTES];
    size_t len = sizeof(public_key);
    struct buf canonical = {0};

    if (EVP_PKEY_get_raw_public_key(key->pkey, public_key, &len) != 1 || len != KEY_BYTES)
        return false;
    auth_base64url_encode(str_of((const char *)public_key, len), &key->x);
    buf_printf(&canonical, "{\"crv\":\"Ed25519\",\"kty\":\"OKP\",\"x\":\"%.*s\"}", STR_ARG(buf_str(&key->x)));
    auth_sha256(&(struct str){canonical.data, buf_len(&canonical)}, 1, digest);
    auth_base64url_encode(str_of((const char *)digest, sizeof(digest)), &key->kid);
    buf_deinit(&canonical);
    return true;
}

static void put_public_members(const struct dev_key *key, struct buf *out)
{
    json_put_member_str(out, "kty", STR("OKP"));
    json_put_member_str(out, "crv", STR("Ed25519"));
    json_put_member_str(out, "x", buf_str(&key->x));
    json_put_member_str(out, "kid", buf_str(&key->kid));
    json_put_member_str(out, "alg", STR("EdDSA"));
    json_put_member_str(out, "use", STR("sig"));
}

static enum status create_key(const char *path, struct dev_key *key, struct error *error)
{
    unsigned char secret[KEY_BYTES];
    size_t len = sizeof(secret);
    struct buf text = {0}, d = {0};

    key->pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    if (!key->pkey || EVP_PKEY_get_raw_private_key(key->pkey, secret, &len) != 1 || !derive_names(key))
        return error_set(error, STATUS_INTERNAL, "no Ed25519 key can be made");
    auth_base64url_encode(str_of((const char *)secret, len), &d);
    buf_put_char(&text, '{');
    put_public_members(key, &text);
    json_put_member_str(&text, "d", buf_str(&d));
    buf_put(&text, "}\n", 2);
    enum status status = write_whole(path, buf_str(&text), 0600, error);
    OPENSSL_cleanse(secret, sizeof(secret));
    OPENSSL_cleanse(d.data, d.capacity);
    OPENSSL_cleanse(text.data, text.capacity);
    buf_deinit(&d);
    buf_deinit(&text);
    return status;
}

static enum status load_key(const char *path, struct dev_key *key, struct error *error)
{
    struct buf text = {0};
    struct arena arena = ARENA(1024);
    struct json_value root;
    struct str secret;

    enum status status = read_whole(path, &text, error);
    if (status == STATUS_OK && json_parse(buf_str(&text), 4, &root, NULL) == STATUS_OK &&
        str_eq(json_get_text(&root, STR("kty"), &arena), STR("OKP")) &&
        str_eq(json_get_text(&root, STR("crv"), &arena), STR("Ed25519")) &&
        auth_base64url_decode(json_get_text(&root, STR("d"), &arena), &arena, &secret) &&
        secret.len == KEY_BYTES) {
        key->pkey = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, (const unsigned char *)secret.ptr,
                                                 secret.len);
        OPENSSL_cleanse((void *)(uintptr_t)secret.ptr, secret.len);
    }
    if (status == STATUS_OK && (!key->pkey || !derive_names(key)))
        status = error_set(error, STATUS_CONFIG, "%s is not a private Ed25519 JWK", path);
    if (text.data)
        OPENSSL_cleanse(text.data, text.capacity);
    buf_deinit(&text);
    arena_deinit(&arena);
    return status;
}

/* ---- the public key set ---- */

static enum status ensure_key_set(const char *path, const struct dev_key *key, struct error *error)
{
    struct buf text = {0};
    enum status status = read_whole(path, &text, error);

    if (status == STATUS_OK) {
        struct auth_keyset *set = auth_keyset_create();
        status = auth_keyset_add_jwks(set, buf_str(&text), path, error);
        if (status == STATUS_OK && !auth_keyset_has_kid(set, buf_str(&key->kid)))
            status = error_set(
                error, STATUS_CONFIG,
                "%s does not hold the development key, so no server would take its tokens; move that file "
                "away and a new one is made",
                path);
        auth_keyset_unref(set);
    } else if (status == STATUS_NOT_FOUND) {
        buf_put_str(&text, STR("{\"keys\":[{"));
        put_public_members(key, &text);
        buf_put_str(&text, STR("}]}\n"));
        status = write_whole(path, buf_str(&text), 0644, error);
    }
    buf_deinit(&text);
    return status;
}

static enum status ensure_files(const char *key_path, const char *jwks_path, struct dev_key *key,
                                struct error *error)
{
    struct buf lock_name = {0};

    make_folders(key_path);
    make_folders(jwks_path);
    buf_printf(&lock_name, "%s.lock%c", key_path, '\0');
    int lock = open(lock_name.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    buf_deinit(&lock_name);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) {
        int lock_errno = errno;
        if (lock >= 0)
            close(lock);
        return error_set(error, STATUS_IO, "%s.lock cannot be locked: %s", key_path, strerror(lock_errno));
    }
    enum status status = load_key(key_path, key, error);
    if (status == STATUS_NOT_FOUND)
        status = create_key(key_path, key, error);
    if (status == STATUS_OK && jwks_path[0])
        status = ensure_key_set(jwks_path, key, error);
    close(lock); /* and unlocks */
    return status;
}

/* ---- the token ---- */

static enum status write_token(const struct dev_key *key, const struct auth_token_request *request,
                               struct buf *token, struct error *error)
{
    int64_t now_s = clock_unix_us() / 1000000;
    struct str claim = request->tenant_claim.len > 0 ? request->tenant_claim : STR("tenant_id");
    const struct str texts[][2] = {{STR("iss"), request->issuer},
                                   {STR("sub"), request->subject},
                                   {STR("aud"), request->audience},
                                   {claim, request->tenant},
                                   {STR("scope"), request->scopes}};
    unsigned char signature[SIGNATURE_BYTES];
    size_t len = sizeof(signature);
    struct uuid uuid = uuid_random();
    char id[UUID_TEXT_BYTES];
    struct buf json = {0};

    buf_put_char(&json, '{');
    json_put_member_str(&json, "alg", STR("EdDSA"));
    json_put_member_str(&json, "typ", STR("JWT"));
    json_put_member_str(&json, "kid", buf_str(&key->kid));
    buf_put_char(&json, '}');
    buf_clear(token);
    auth_base64url_encode(buf_str(&json), token);
    buf_put_char(token, '.');
    buf_clear(&json);
    buf_put_char(&json, '{');
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i][1].len == 0)
            continue;
        json_put_key(&json, texts[i][0]);
        json_put_string(&json, texts[i][1]);
    }
    json_put_member_i64(&json, "iat", now_s);
    json_put_member_i64(&json, "exp", now_s + request->ttl_s);
    uuid_format(&uuid, id);
    json_put_member_str(&json, "jti", str_from(id));
    buf_put_char(&json, '}');
    auth_base64url_encode(buf_str(&json), token);
    buf_deinit(&json);

    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool is_signed = context && EVP_DigestSignInit(context, NULL, NULL, NULL, key->pkey) == 1 &&
                     EVP_DigestSign(context, signature, &len, (const unsigned char *)buf_str(token).ptr,
                                    buf_len(token)) == 1;
    EVP_MD_CTX_free(context);
    if (!is_signed)
        return error_set(error, STATUS_INTERNAL, "the token cannot be signed");
    buf_put_char(token, '.');
    auth_base64url_encode(str_of((const char *)signature, len), token);
    return STATUS_OK;
}

enum status auth_token_issue(struct str key_file, struct str jwks_file,
                             const struct auth_token_request *request, struct buf *token, struct error *error)
{
    struct dev_key key = {0};

    if (request->tenant.len > 0 && !str_is_name(request->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant", "a tenant is [A-Za-z0-9._-]{1,64}");
    if (request->subject.len > AUTH_SUBJECT_BYTES_MAX || !str_is_utf8(request->subject))
        return error_set_field(error, STATUS_BAD_REQUEST, "subject", "a subject is at most %d bytes of UTF-8",
                               AUTH_SUBJECT_BYTES_MAX);
    if (request->ttl_s < 1 || request->ttl_s > TTL_S_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "ttl", "a token lives from a second to ten years");
    if (key_file.len == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "key", "the key's file has no name");
    char *key_path = str_dup(key_file), *jwks_path = str_dup(jwks_file);
    enum status status = ensure_files(key_path, jwks_path, &key, error);
    if (status == STATUS_OK)
        status = write_token(&key, request, token, error);
    EVP_PKEY_free(key.pkey);
    buf_deinit(&key.x);
    buf_deinit(&key.kid);
    free(key_path);
    free(jwks_path);
    return status;
}
