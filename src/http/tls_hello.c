/* The length that a ClientHello announces. OpenSSL allocates it when it has read the message's four bytes of header, and takes up to 128
 * KiB: a client that sends nothing else would hold more memory than its handshake is charged with. So the bytes of the handshake are
 * followed before OpenSSL sees them, as far as they are not encrypted; a second hello comes after a retry. Pure. */
#include "http/tls.h"

enum {
    HELLO_BYTES_MAX = 16 * 1024, /* those of real clients have up to 2 KiB */
    RECORD_HEADER_BYTES = 5,
    MESSAGE_HEADER_BYTES = 4,
    CHANGE_CIPHER = 20,
    HANDSHAKE = 22,
    ENCRYPTED = 23,
    CLIENT_HELLO = 1,
};

static void take_record_header(struct http_hello *hello, bool is_1_3)
{
    const unsigned char *header = hello->record;

    hello->record_got = 0;
    hello->record_left = (size_t)header[3] << 8 | header[4];
    /* TLS 1.2 encrypts from here on; 1.3 has a message of this kind for the eyes of others. */
    hello->is_over = header[0] == ENCRYPTED || (header[0] == CHANGE_CIPHER && !is_1_3);
}

/* False: it is too long. */
static bool take_message_header(struct http_hello *hello)
{
    const unsigned char *header = hello->message;

    hello->message_got = 0;
    hello->message_left = (size_t)header[1] << 16 | (size_t)header[2] << 8 | header[3];
    return header[0] != CLIENT_HELLO || hello->message_left <= HELLO_BYTES_MAX;
}

bool http_hello_take(struct http_hello *hello, struct str bytes, bool is_1_3)
{
    while (bytes.len > 0 && !hello->is_over) {
        size_t part = bytes.len < hello->record_left ? bytes.len : hello->record_left;
        if (hello->record_left == 0) {
            part = 1;
            hello->record[hello->record_got++] = (unsigned char)bytes.ptr[0];
            if (hello->record_got == RECORD_HEADER_BYTES)
                take_record_header(hello, is_1_3);
        } else if (hello->record[0] != HANDSHAKE) {
            hello->record_left -= part;
        } else if (hello->message_left == 0) {
            part = 1;
            hello->record_left--;
            hello->message[hello->message_got++] = (unsigned char)bytes.ptr[0];
            if (hello->message_got == MESSAGE_HEADER_BYTES && !take_message_header(hello))
                return false;
        } else {
            part = part < hello->message_left ? part : hello->message_left;
            hello->record_left -= part;
            hello->message_left -= part;
        }
        bytes = str_skip(bytes, part);
    }
    return true;
}
