/* See parts.h. */
#include "parts.h"

#include <string.h>

/* The sizes of one call and those of the next have places of their own, in turn: whoever tells the
 * next but one has met the others in the next, and by then all had read those of this one. */
static struct page_part *part_of(const struct smfar_comm *comm, int from, int to)
{
    struct page_pair *pair = &comm->page.host->pairs[to * comm->ranks + from];
    return &pair->part[comm->uneven % 2];
}

void parts_tell(struct smfar_comm *comm, const size_t *sends, const size_t *receives)
{
    for (int r = 0; r < comm->ranks; r++) {
        part_of(comm, comm->rank, r)->sent = sends[r];
        part_of(comm, r, comm->rank)->expected = receives[r];
    }
}

enum smfar_status parts_read(struct smfar_comm *comm, struct parts *parts_out)
{
    enum smfar_status status = SMFAR_OK;
    memset(parts_out, 0, sizeof(*parts_out));
    for (int to = 0; to < comm->ranks; to++) {
        for (int from = 0; from < comm->ranks; from++) {
            const struct page_part *part = part_of(comm, from, to);
            if (part->sent != part->expected && status == SMFAR_OK)
                status = FAIL(SMFAR_ERR_MISMATCH,
                              "rank %d sends rank %d %llu bytes, and that expects %llu", from, to,
                              (unsigned long long)part->sent, (unsigned long long)part->expected);
            if (part->sent > parts_out->largest) parts_out->largest = part->sent;
            if (from != to && part->sent) parts_out->receives[to] = 1;
            if (from < comm->rank) parts_out->offset[to] += part->sent;
        }
    }
    comm->uneven++;
    return status;
}
