/* Bytes from and to a connection's client, with TLS or without. */
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "http/tls.h"

ssize_t http_socket_receive(struct http_connection *connection, char *bytes, size_t room)
{
    return connection->tls ? http_tls_read(connection->tls, bytes, room)
                           : recv(connection->io.fd, bytes, room, 0);
}

ssize_t http_socket_send(struct http_connection *connection, const char *bytes, size_t len)
{
    if (connection->tls)
        return http_tls_write(connection->tls, bytes, len);
    ssize_t sent = send(connection->io.fd, bytes, len, MSG_NOSIGNAL);
    if (sent > 0)
        connection->sent_bytes += (uint64_t)sent;
    return sent;
}

/* The socket's buffer may hold megabytes more. */
uint64_t http_socket_taken(const struct http_connection *connection)
{
    int waiting = 0;

    if (ioctl(connection->io.fd, SIOCOUTQ, &waiting) != 0 || (uint64_t)waiting > connection->sent_bytes)
        waiting = 0;
    return connection->sent_bytes - (uint64_t)waiting;
}
