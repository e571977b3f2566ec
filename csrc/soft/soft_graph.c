/* Graphs: nodes that were captured, and what keeps other things alive for them. Launching is
 * soft_exec.c's. */
#include <stdlib.h>
#include <string.h>

#include "soft_graph.h"

/* ---- sets of nodes ---- */

void node_set_clear(struct node_set *set)
{
    free(set->at);
    memset(set, 0, sizeof *set);
}

static int make_room(struct node_set *set, unsigned count)
{
    if (count <= set->capacity) return 1;
    unsigned *at = realloc(set->at, count * sizeof *at);
    if (!at) return 0;
    set->at = at;
    set->capacity = count;
    return 1;
}

int node_set_copy(struct node_set *to, const struct node_set *from)
{
    if (!make_room(to, from->count)) return 0;
    if (from->count) memcpy(to->at, from->at, from->count * sizeof *to->at);
    to->count = from->count;
    return 1;
}

int node_set_add(struct node_set *to, const struct node_set *more)
{
    struct node_set sum = {0};
    if (!make_room(&sum, to->count + more->count)) return 0;
    for (unsigned i = 0, j = 0; i < to->count || j < more->count;) {
        int first = j == more->count || (i < to->count && to->at[i] <= more->at[j]);
        unsigned node = first ? to->at[i++] : more->at[j++];
        if (!sum.count || sum.at[sum.count - 1] != node) sum.at[sum.count++] = node;
    }
    node_set_clear(to);
    *to = sum;
    return 1;
}

/* ---- user objects ---- */

/* The program's references are counted apart from those that the switch holds while it works. */
struct user {
    struct object object;
    atomic_uint references;
    CUhostFn function;
    void *pointer;
};

static void free_object(struct object *object) { free(object); }

CUresult cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn function,
                            unsigned int references, unsigned int flags)
{
    ENTER(cuUserObjectCreate, NEED_INIT);
    if (!object || !function || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return refuse(CUDA_ERROR_INVALID_VALUE, "user object: no destructor, references or flag");
    struct user *user = object_create(sizeof *user, OBJECT_USER, NULL, free_object);
    if (!user) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&user->references, references);
    user->function = function;
    user->pointer = pointer;
    uintptr_t handle = object_publish(&user->object);
    if (!handle) {
        object_release(&user->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_GRAPHS, 1);
    *object = (CUuserObject)handle;
    return CUDA_SUCCESS;
}

/* The destructor may call nothing of the driver. 0 when there were not so many references. */
static int give_up(struct user *user, unsigned references)
{
    unsigned before = atomic_load(&user->references);
    do {
        if (before < references) return 0;
    } while (!atomic_compare_exchange_weak(&user->references, &before, before - references));
    if (before > references) return 1;
    int inside = in_host_function;
    in_host_function = 1;
    user->function(user->pointer);
    in_host_function = inside;
    object_release(object_withdraw(user->object.handle, OBJECT_USER));
    held_add(HELD_GRAPHS, -1);
    return 1;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int references)
{
    ENTER(cuUserObjectRelease, NEED_INIT);
    struct user *user = object_get((uintptr_t)handle, OBJECT_USER);
    if (!user) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such user object");
    int done = references && give_up(user, references);
    object_release(&user->object);
    return done ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_VALUE, "user object: no such reference");
}

/* ---- graphs ---- */

/* What a graph keeps of a user object. */
struct kept {
    struct kept *next;
    struct user *user;
    unsigned references;
};

static void destroy(struct object *object)
{
    struct graph *graph = (struct graph *)object;
    for (unsigned i = 0; i < graph->count; i++) {
        op_discard(graph->nodes[i].op);
        node_set_clear(&graph->nodes[i].after);
    }
    while (graph->kept) {
        struct kept *kept = graph->kept;
        graph->kept = kept->next;
        give_up(kept->user, kept->references);
        object_release(&kept->user->object);
        free(kept);
    }
    pthread_mutex_destroy(&graph->lock);
    free(graph->nodes);
    free(graph);
}

struct graph *graph_create(struct device *device)
{
    struct graph *graph = object_create(sizeof *graph, OBJECT_GRAPH, device, destroy);
    if (!graph) return NULL;
    pthread_mutex_init(&graph->lock, NULL);
    graph->capturing = 1;
    if (!object_publish(&graph->object)) {
        object_release(&graph->object);
        return NULL;
    }
    held_add(HELD_GRAPHS, 1);
    return graph;
}

CUgraph graph_handle(struct graph *graph) { return (CUgraph)graph->object.handle; }

void graph_set_captured(struct graph *graph) { atomic_store(&graph->capturing, 0); }

void graph_abandon(struct graph *graph)
{
    object_release(object_withdraw(graph->object.handle, OBJECT_GRAPH));
    held_add(HELD_GRAPHS, -1);
}

CUresult graph_add(struct graph *graph, struct op *op, struct device *device, struct node_set *tips)
{
    struct node_set mine = {0};
    if (graph->count == graph->capacity) {
        unsigned capacity = graph->capacity ? 2 * graph->capacity : 16;
        struct node *nodes = realloc(graph->nodes, capacity * sizeof *nodes);
        if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = nodes;
        graph->capacity = capacity;
    }
    if (!make_room(&mine, 1)) return CUDA_ERROR_OUT_OF_MEMORY;
    mine.at[mine.count++] = graph->count;
    graph->nodes[graph->count++] = (struct node){op, device, *tips};
    *tips = mine;
    return CUDA_SUCCESS;
}

int graph_is_before(const struct graph *graph, const struct node_set *tips,
                    const struct node_set *end)
{
    unsigned char *before = calloc(graph->count + 1, 1);
    if (!before) return 0;
    for (unsigned i = 0; i < end->count; i++)
        before[end->at[i]] = 1;
    for (unsigned n = graph->count; n-- > 0;)
        for (unsigned i = 0; before[n] && i < graph->nodes[n].after.count; i++)
            before[graph->nodes[n].after.at[i]] = 1;
    int all = 1;
    for (unsigned i = 0; i < tips->count; i++)
        all &= before[tips->at[i]];
    free(before);
    return all;
}

struct graph *graph_get(CUgraph handle) { return object_get((uintptr_t)handle, OBJECT_GRAPH); }

/* Takes over one reference to the user object, also on failure. */
static CUresult keep(struct graph *graph, struct user *user, unsigned references)
{
    struct kept *kept = malloc(sizeof *kept);
    if (!kept) {
        object_release(&user->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&graph->lock);
    *kept = (struct kept){graph->kept, user, references};
    graph->kept = kept;
    pthread_mutex_unlock(&graph->lock);
    return CUDA_SUCCESS;
}

/* With CU_GRAPH_USER_OBJECT_MOVE the caller's references become the graph's. */
CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int references,
                                 unsigned int flags)
{
    ENTER(cuGraphRetainUserObject, NEED_INIT);
    if (!references || (flags & ~CU_GRAPH_USER_OBJECT_MOVE)) return CUDA_ERROR_INVALID_VALUE;
    struct graph *graph = graph_get(handle);
    struct user *user = object_get((uintptr_t)object, OBJECT_USER);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (graph && user) {
        if (!flags) atomic_fetch_add(&user->references, references);
        result = keep(graph, user, references);
    } else if (user)
        object_release(&user->object);
    if (graph) object_release(&graph->object);
    return result == CUDA_SUCCESS ? result : refuse(result, "graph or user object is not there");
}

CUresult cuGraphDestroy(CUgraph handle)
{
    ENTER(cuGraphDestroy, NEED_INIT);
    struct graph *graph = graph_get(handle);
    if (!graph) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such graph");
    int capturing = atomic_load(&graph->capturing);
    object_release(&graph->object);
    if (capturing) return refuse(CUDA_ERROR_INVALID_VALUE, "the graph is being captured");
    graph = object_withdraw((uintptr_t)handle, OBJECT_GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    held_add(HELD_GRAPHS, -1);
    object_release(&graph->object);
    return CUDA_SUCCESS;
}

/* How many there are; they have no handles here. */
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    ENTER(cuGraphGetNodes, NEED_INIT);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (nodes) return refuse(CUDA_ERROR_NOT_SUPPORTED, "handles of a graph's nodes");
    struct graph *graph = graph_get(handle);
    if (!graph) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such graph");
    *count = graph->count;
    object_release(&graph->object);
    return CUDA_SUCCESS;
}
