/* Digests for other folders, which do not use OpenSSL themselves. */
#ifndef FRESHET_AUTH_DIGEST_H
#define FRESHET_AUTH_DIGEST_H

#include <stdint.h>

#include "base/str.h"
#include "base/uuid.h"

#define AUTH_SHA256_BYTES 32

/* Of the parts one after another. */
void auth_sha256(const struct str *parts, size_t count, uint8_t out[AUTH_SHA256_BYTES]);
void auth_hmac_sha256(struct str key, const struct str *parts, size_t count, uint8_t out[AUTH_SHA256_BYTES]);
/* A UUID of version 5: the same name in the same space gives the same one. */
struct uuid auth_uuid_named(const struct uuid *space, struct str name);

#endif
