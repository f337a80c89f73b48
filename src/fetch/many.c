/* Several requests at once by libcurl's multi interface: one thread that starts the next whenever one ends. */
#include <stdlib.h>

#include "base/memory.h"
#include "fetch/fetch_inside.h"

enum { LOOK_MS = 100 }; /* how long nobody notices that the process stops */

struct many {
    CURLM *multi;
    struct fetch_transfer *transfers; /* one for each request */
    enum status *statuses;
    struct error *errors;
    size_t running;
};

static void end(struct many *many, struct fetch_transfer *transfer, CURLcode code)
{
    size_t at = (size_t)(transfer - many->transfers);

    curl_multi_remove_handle(many->multi, transfer->curl);
    many->statuses[at] = fetch_transfer_end(transfer, code, &many->errors[at]);
    transfer->curl = NULL;
    many->running--;
}

static void begin(struct many *many, size_t at, const struct fetch_request *request,
                  struct fetch_answer *answer)
{
    struct fetch_transfer *transfer = &many->transfers[at];

    many->statuses[at] = fetch_transfer_begin(transfer, request, answer, &many->errors[at]);
    if (many->statuses[at] != STATUS_OK)
        return;
    many->running++;
    curl_easy_setopt(transfer->curl, CURLOPT_PRIVATE, transfer);
    if (curl_multi_add_handle(many->multi, transfer->curl) != CURLM_OK)
        end(many, transfer, CURLE_OUT_OF_MEMORY);
}

static void end_all(struct many *many, size_t begun, CURLcode code)
{
    for (size_t i = 0; i < begun; i++)
        if (many->transfers[i].curl)
            end(many, &many->transfers[i], code);
}

/* Moves what can be moved, takes away what has ended, and waits for more to move. */
static void step(struct many *many, size_t begun)
{
    int running = 0, left = 0;
    CURLMsg *message;
    CURLMcode code = curl_multi_perform(many->multi, &running);

    while ((message = curl_multi_info_read(many->multi, &left)) != NULL) {
        char *transfer = NULL;
        CURLcode result = message->data.result; /* the message ends with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
        end(many, (struct fetch_transfer *)(void *)transfer, result);
    }
    if (code == CURLM_OK && many->running > 0)
        code = curl_multi_poll(many->multi, NULL, 0, LOOK_MS, NULL);
    if (code != CURLM_OK)
        end_all(many, begun, CURLE_OUT_OF_MEMORY);
}

void fetch_run_many(const struct fetch_request *requests, size_t count, size_t parallel,
                    struct fetch_answer *answers, enum status *statuses, struct error *errors)
{
    struct many many = {.statuses = statuses, .errors = errors};
    size_t begun = 0;

    fetch_init();
    many.multi = curl_multi_init();
    if (!many.multi)
        abort(); /* as every allocation of ours */
    many.transfers = memory_zalloc(count * sizeof *many.transfers);
    while (!fetch_is_stopping() && (begun < count || many.running > 0)) {
        while (begun < count && many.running < parallel) {
            begin(&many, begun, &requests[begun], &answers[begun]);
            begun++;
        }
        step(&many, begun);
    }
    end_all(&many, begun, CURLE_ABORTED_BY_CALLBACK);
    for (; begun < count; begun++) {
        answers[begun] = (struct fetch_answer){0};
        statuses[begun] = error_set(&errors[begun], STATUS_CANCELLED, "the process is stopping");
    }
    curl_multi_cleanup(many.multi);
    free(many.transfers);
}
