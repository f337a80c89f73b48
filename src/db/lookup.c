/* Host names to addresses, bounded by the asker's deadline.
 *
 * getaddrinfo() may block for half a minute on a dead resolver and cannot be interrupted. So it runs on a
 * detached thread that owns copies of all it needs and answers with one datagram; whoever stops waiting just
 * closes the socket. Stuck lookups are counted and bounded. */
#include "db/db.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "db/db_inside.h"

#define LOOKUPS_MAX 16

static atomic_uint lookups_running;

struct lookup {
    int fd;
    unsigned host_count;
    char hosts[DB_HOSTS_MAX][256];
};

static bool is_directory(const char *host)
{
    return host[0] == '/' || host[0] == '@';
}

static bool is_numeric(const char *host)
{
    struct in_addr v4;
    return strchr(host, ':') || inet_pton(AF_INET, host, &v4) == 1;
}

static struct db_endpoint *add_endpoint(struct db_endpoints *endpoints, unsigned host)
{
    if (endpoints->count == DB_ENDPOINTS_MAX)
        return NULL;
    struct db_endpoint *endpoint = &endpoints->at[endpoints->count++];
    endpoint->host = host;
    endpoint->address[0] = '\0';
    return endpoint;
}

static void add_plain(struct db_endpoints *endpoints, unsigned host, const char *name)
{
    struct db_endpoint *endpoint = add_endpoint(endpoints, host);

    if (endpoint && !is_directory(name))
        snprintf(endpoint->address, sizeof endpoint->address, "%s", name);
}

static void resolve(struct db_endpoints *endpoints, unsigned host, const char *name)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;

    int rc = getaddrinfo(name, NULL, &hints, &found);
    if (rc != 0) {
        snprintf(endpoints->failure, sizeof endpoints->failure, "host %.64s: %s", name, gai_strerror(rc));
        return;
    }
    for (struct addrinfo *each = found; each; each = each->ai_next) {
        struct db_endpoint *endpoint = add_endpoint(endpoints, host);
        if (endpoint && getnameinfo(each->ai_addr, each->ai_addrlen, endpoint->address,
                                    sizeof endpoint->address, NULL, 0, NI_NUMERICHOST) != 0)
            endpoints->count--;
    }
    freeaddrinfo(found);
}

static void *run_lookup(void *arg)
{
    struct lookup *lookup = arg;
    struct db_endpoints endpoints = {0};

    for (unsigned i = 0; i < lookup->host_count; i++) {
        if (is_directory(lookup->hosts[i]) || is_numeric(lookup->hosts[i]))
            add_plain(&endpoints, i, lookup->hosts[i]);
        else
            resolve(&endpoints, i, lookup->hosts[i]);
    }
    /* Nobody may be listening any more: that is fine. */
    ssize_t sent = send(lookup->fd, &endpoints, sizeof endpoints, MSG_NOSIGNAL);
    (void)sent;
    close(lookup->fd);
    free(lookup);
    atomic_fetch_sub(&lookups_running, 1);
    return NULL;
}

static enum status start_lookup(const struct db_parsed *parsed, int *fd, struct error *error)
{
    int pair[2];

    if (atomic_fetch_add(&lookups_running, 1) >= LOOKUPS_MAX) {
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "%d name lookups are stuck already", LOOKUPS_MAX);
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "no descriptors left for a name lookup");
    }
    struct lookup *lookup = memory_zalloc(sizeof *lookup);
    lookup->fd = pair[1];
    lookup->host_count = parsed->host_count;
    for (unsigned i = 0; i < parsed->host_count; i++)
        snprintf(lookup->hosts[i], sizeof lookup->hosts[i], "%s", parsed->hosts[i].name);
    if (!db_thread_start(run_lookup, lookup)) {
        close(pair[0]);
        close(pair[1]);
        free(lookup);
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "no thread left for a name lookup");
    }
    *fd = pair[0];
    return STATUS_OK;
}

enum status db_lookup_start(const struct db_parsed *parsed, int *fd, struct db_endpoints *endpoints,
                            struct error *error)
{
    *fd = -1;
    *endpoints = (struct db_endpoints){0};
    for (unsigned i = 0; i < parsed->host_count; i++) {
        const char *name = parsed->hosts[i].name;
        if (!is_directory(name) && !is_numeric(name))
            return start_lookup(parsed, fd, error);
        add_plain(endpoints, i, name);
    }
    return STATUS_OK;
}

enum status db_lookup_finish(int fd, struct db_endpoints *endpoints, struct error *error)
{
    ssize_t len = recv(fd, endpoints, sizeof *endpoints, 0);

    close(fd);
    if (len != (ssize_t)sizeof *endpoints)
        return error_set(error, STATUS_DB_DOWN, "the name lookup gave no answer");
    if (endpoints->count == 0)
        return error_set(error, STATUS_DB_DOWN, "%s", endpoints->failure);
    return STATUS_OK;
}
