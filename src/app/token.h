/* Tokens for the commands that call a pod: what `freshet token` prints, for those that need one at once. */
#ifndef FRESHET_APP_TOKEN_H
#define FRESHET_APP_TOKEN_H

#include "auth/auth.h"

/* Signed with the key in $FRESHET_VAR/keys, which is made when missing. */
enum status app_token_development(const struct auth_token_request *request, struct buf *token,
                                  struct error *error) MUST_CHECK;

#endif
