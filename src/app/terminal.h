/* Text of others on a terminal: it must not move the cursor, change colours or answer for the user. */
#ifndef FRESHET_APP_TERMINAL_H
#define FRESHET_APP_TERMINAL_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

/* Tabs and ends of lines become spaces; other control characters (C0, DEL, C1), bytes that are not UTF-8, and characters that change the
 * direction of what follows become `?`. */
void terminal_put(struct buf *out, struct str text);
/* The same, but tabs stay, and `line_break` stands for the end of a line. */
void terminal_put_lines(struct buf *out, struct str text, struct str line_break);
/* The same in the arena, ended by NUL. */
const char *terminal_text(struct str text, struct arena *arena);

#endif
