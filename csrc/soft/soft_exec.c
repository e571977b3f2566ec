/* Launching graphs. Nodes that come one after another share a lane: the first lane is the stream
 * of the launch, every further one has a stream of its own, so that branches run beside each other
 * as on a GPU. Launches of one executable graph follow each other. */
#include <stdlib.h>
#include <string.h>

#include "soft_graph.h"

enum { MOST_LANES = 32 };

struct lane {
    struct device *device;
    struct stream *stream; /* NULL: the stream of the launch */
    unsigned tip;          /* its last node */
};

struct exec {
    struct object object;
    struct graph *graph;
    unsigned *lane_of;     /* each node's */
    unsigned char *marked; /* nodes that other lanes wait for */
    struct lane lane[MOST_LANES];
    unsigned lanes;
    pthread_mutex_t lock; /* one launch at a time */
    struct mark *last;    /* behind the last launch */
};

static void destroy(struct object *object)
{
    struct exec *exec = (struct exec *)object;
    for (unsigned i = 0; i < exec->lanes; i++)
        if (exec->lane[i].stream) stream_close(exec->lane[i].stream);
    mark_release(exec->last);
    object_release(&exec->graph->object);
    pthread_mutex_destroy(&exec->lock);
    free(exec->lane_of);
    free(exec->marked);
    free(exec);
}

/* ---- instantiating ---- */

/* A lane whose last node the node comes after: directly, or else at all. */
static struct lane *find_lane(struct exec *exec, unsigned n)
{
    const struct node *node = &exec->graph->nodes[n];
    struct lane *before = NULL;
    for (unsigned i = 0; i < exec->lanes; i++) {
        struct lane *lane = &exec->lane[i];
        struct node_set tip = {1, 1, &lane->tip};
        if (lane->device != node->device) continue;
        for (unsigned k = 0; k < node->after.count; k++)
            if (node->after.at[k] == lane->tip) return lane;
        if (!before && graph_is_before(exec->graph, &tip, &node->after)) before = lane;
    }
    return before;
}

/* NULL without memory; where there are too many, branches share the first one of their device. */
static struct lane *add_lane(struct exec *exec, struct device *device)
{
    for (unsigned i = 0; exec->lanes == MOST_LANES && i < MOST_LANES; i++)
        if (exec->lane[i].device == device) return &exec->lane[i];
    if (exec->lanes == MOST_LANES) return NULL;
    struct lane *lane = &exec->lane[exec->lanes];
    int first = !exec->lanes && device == exec->object.device;
    lane->stream = first ? NULL : stream_create(device);
    if (!first && !lane->stream) return NULL;
    lane->device = device;
    exec->lanes++;
    return lane;
}

/* Every node gets a lane; those that another lane's node comes after are marked. */
static CUresult arrange(struct exec *exec)
{
    const struct graph *graph = exec->graph;
    exec->lane_of = calloc(graph->count + 1, sizeof *exec->lane_of);
    exec->marked = calloc(graph->count + 1, 1);
    if (!exec->lane_of || !exec->marked) return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned n = 0; n < graph->count; n++) {
        const struct node *node = &graph->nodes[n];
        struct lane *lane = find_lane(exec, n);
        if (!lane) lane = add_lane(exec, node->device);
        if (!lane) return CUDA_ERROR_OUT_OF_MEMORY;
        exec->lane_of[n] = (unsigned)(lane - exec->lane);
        lane->tip = n;
        for (unsigned k = 0; k < node->after.count; k++)
            if (exec->lane_of[node->after.at[k]] != exec->lane_of[n])
                exec->marked[node->after.at[k]] = 1;
    }
    for (unsigned i = 0; i < exec->lanes; i++)
        if (exec->lane[i].stream) exec->marked[exec->lane[i].tip] = 1;
    return CUDA_SUCCESS;
}

/* Takes over the reference to the graph. */
static CUresult instantiate(struct graph *graph, struct exec **exec_out)
{
    struct exec *exec = object_create(sizeof *exec, OBJECT_EXEC, graph->object.device, destroy);
    if (!exec) {
        object_release(&graph->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&exec->lock, NULL);
    exec->graph = graph;
    CUresult result = arrange(exec);
    if (result == CUDA_SUCCESS && !object_publish(&exec->object)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *exec_out = exec;
    else
        object_release(&exec->object);
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec_out, CUgraph handle, unsigned long long flags)
{
    enum { AUTO_FREE_ON_LAUNCH = 1 }; /* of memory that nodes allocate, which none does here */
    ENTER(cuGraphInstantiate, NEED_CONTEXT);
    if (!exec_out) return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(unsigned long long)AUTO_FREE_ON_LAUNCH)
        return refuse(CUDA_ERROR_NOT_SUPPORTED, "instantiate: flags 0x%llx", flags);
    struct graph *graph = graph_get(handle);
    if (!graph) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such graph");
    if (atomic_load(&graph->capturing)) {
        object_release(&graph->object);
        return refuse(CUDA_ERROR_INVALID_VALUE, "the graph is being captured");
    }
    struct exec *exec = NULL;
    CUresult result = instantiate(graph, &exec);
    if (result != CUDA_SUCCESS) return result;
    held_add(HELD_GRAPHS, 1);
    *exec_out = (CUgraphExec)exec->object.handle;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    ENTER(cuGraphExecDestroy, NEED_INIT);
    struct exec *exec = object_withdraw((uintptr_t)handle, OBJECT_EXEC);
    if (!exec) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such executable graph");
    held_add(HELD_GRAPHS, -1);
    object_release(&exec->object);
    return CUDA_SUCCESS;
}

/* ---- launching ---- */

/* Keeps the executable graph, and so whatever its graph keeps, until a launch has ended. */
struct hold_op {
    struct op op;
    struct exec *exec;
};

static void run_nothing(struct op *op) { (void)op; }

static void release_exec(struct op *op) { object_release(&((struct hold_op *)op)->exec->object); }

static CUresult hold(struct exec *exec, struct stream *stream)
{
    struct hold_op *op = op_create(sizeof *op, run_nothing);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    object_retain(&exec->object);
    op->exec = exec;
    op->op.cleanup = release_exec;
    return stream_submit(stream, &op->op);
}

static struct stream *stream_of(const struct exec *exec, unsigned lane, struct stream *launch)
{
    return exec->lane[lane].stream ? exec->lane[lane].stream : launch;
}

/* A copy of the node behind those that it comes after. */
static CUresult launch_node(struct exec *exec, unsigned n, struct stream *launch,
                            struct mark **marks)
{
    const struct node *node = &exec->graph->nodes[n];
    struct stream *stream = stream_of(exec, exec->lane_of[n], launch);
    CUresult result = CUDA_SUCCESS;
    for (unsigned k = 0; k < node->after.count && result == CUDA_SUCCESS; k++) {
        unsigned before = node->after.at[k];
        if (exec->lane_of[before] != exec->lane_of[n]) result = mark_await(stream, marks[before]);
    }
    if (result != CUDA_SUCCESS) return result;
    struct op *op = op_copy(node->op);
    result = op ? stream_submit(stream, op) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && exec->marked[n]) result = mark_put(stream, &marks[n]);
    return result;
}

/* The other lanes begin behind what the launch's stream has, and it goes on behind them. */
static CUresult launch_nodes(struct exec *exec, struct stream *launch, struct mark **marks)
{
    struct mark *start = NULL;
    CUresult result = exec->last ? mark_await(launch, exec->last) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) result = mark_put(launch, &start);
    for (unsigned i = 0; i < exec->lanes && result == CUDA_SUCCESS; i++)
        if (exec->lane[i].stream) result = mark_await(exec->lane[i].stream, start);
    for (unsigned n = 0; n < exec->graph->count && result == CUDA_SUCCESS; n++)
        result = launch_node(exec, n, launch, marks);
    for (unsigned i = 0; i < exec->lanes && result == CUDA_SUCCESS; i++)
        if (exec->lane[i].stream) result = mark_await(launch, marks[exec->lane[i].tip]);
    mark_release(start);
    return result;
}

static CUresult launch(struct exec *exec, struct stream *stream)
{
    unsigned count = exec->graph->count;
    struct mark **marks = calloc(count + 1, sizeof *marks), *last = NULL;
    if (!marks) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = launch_nodes(exec, stream, marks);
    if (result == CUDA_SUCCESS) result = hold(exec, stream);
    if (result == CUDA_SUCCESS) result = mark_put(stream, &last);
    if (result == CUDA_SUCCESS) {
        mark_release(exec->last);
        exec->last = last;
    }
    for (unsigned n = 0; n < count; n++)
        mark_release(marks[n]);
    free(marks);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    ENTER(cuGraphLaunch, NEED_CONTEXT);
    struct exec *exec = object_get((uintptr_t)handle, OBJECT_EXEC);
    if (!exec) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such executable graph");
    struct stream *stream = NULL;
    CUresult result = stream_get(stream_handle, &stream);
    if (result == CUDA_SUCCESS && atomic_load(stream_strand(stream)))
        result = refuse(CUDA_ERROR_NOT_SUPPORTED, "a launch of a graph cannot be captured");
    if (result == CUDA_SUCCESS && stream_device(stream) != exec->object.device)
        result = refuse(CUDA_ERROR_NOT_SUPPORTED, "a launch on another device than the capture's");
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&exec->lock);
        result = launch(exec, stream);
        pthread_mutex_unlock(&exec->lock);
    }
    if (stream) object_release((struct object *)stream);
    object_release(&exec->object);
    return result;
}

/* ---- at a context's end ---- */

static void drop(struct device *device, enum object_kind kind)
{
    struct object *object;
    while ((object = object_next(device, kind, 0)) != NULL) {
        struct object *withdrawn = object_withdraw(object->handle, kind);
        object_release(withdrawn);
        object_release(object);
    }
}

void graphs_drop(struct device *device)
{
    drop(device, OBJECT_EXEC);
    drop(device, OBJECT_GRAPH);
}
