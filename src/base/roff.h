/* Text for manual pages: what stands between the macros of man(7), escaped. The result is ASCII. */
#ifndef FRESHET_BASE_ROFF_H
#define FRESHET_BASE_ROFF_H

#include "base/buf.h"

/* One line without its end. `Backquoted` words are bold. */
void roff_put_line(struct buf *out, struct str text);
/* The same, and all of it bold. */
void roff_put_bold(struct buf *out, struct str text);
/* Paragraphs, each ended by an empty line; lines that begin with two spaces are examples and stay as they are. */
void roff_put_text(struct buf *out, struct str text);

#endif
