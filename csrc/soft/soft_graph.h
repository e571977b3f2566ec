/* A graph while it is captured, for soft_capture.c. Once captured it does not change any more, and
 * is launched by soft_graph.c. */
#ifndef SMFAR_SOFT_GRAPH_H
#define SMFAR_SOFT_GRAPH_H

#include "soft_internal.h"

/* Numbers of nodes, rising. */
struct node_set {
    unsigned count, capacity;
    unsigned *at;
};
/* These return 0 when out of memory, and then leave the set as it was. */
int node_set_copy(struct node_set *to, const struct node_set *from);
int node_set_add(struct node_set *to, const struct node_set *more);
void node_set_clear(struct node_set *set);

struct node {
    struct op *op; /* never run itself: every launch runs a copy */
    struct device *device;
    struct node_set after; /* the nodes that it comes after; their numbers are smaller */
};

struct kept;

struct graph {
    struct object object;
    struct node *nodes; /* in the order of capture */
    unsigned count, capacity;
    atomic_int capturing;
    pthread_mutex_t lock; /* of the next */
    struct kept *kept;    /* references to user objects */
};

struct graph *graph_create(struct device *device);
/* Retained; NULL when there is no such graph. */
struct graph *graph_get(CUgraph handle);
CUgraph graph_handle(struct graph *graph);
/* From now on it does not change, and the program may instantiate and destroy it. */
void graph_set_captured(struct graph *graph);
/* Ends the handle of a capture that failed. */
void graph_abandon(struct graph *graph);
/* Adds a node behind those of `tips`, which becomes the set of it alone. The operation stays the
 * caller's on failure. */
CUresult graph_add(struct graph *graph, struct op *op, struct device *device,
                   struct node_set *tips);
/* 1 when every node of `tips` comes before one of `end`, or is one. */
int graph_is_before(const struct graph *graph, const struct node_set *tips,
                    const struct node_set *end);

#endif
