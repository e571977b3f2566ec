/* Where a communicator's plan table comes from, and how all ranks come to have the same. The file's
 * form is plan_table_read.c's. */
#include "plan_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/env.h"
#include "../base/log.h"
#include "comm.h"

/* These return how long a path is, of which `file` has as much as there is room for. */
static size_t name_path(char *file, size_t size, const char *folder, const char *rest)
{
    return (size_t)snprintf(file, size, "%s%s", folder, rest);
}

/* In the user's configuration; "" where the environment has none. */
static size_t users_place(char *file, size_t size)
{
    const char *config = env_text(ENV_CONFIG_HOME), *home = env_text(ENV_HOME);
    if (config && *config == '/') /* others are to be ignored, says the specification */
        return name_path(file, size, config, "/smfar/plan_table");
    if (home && *home == '/') return name_path(file, size, home, "/.config/smfar/plan_table");
    return name_path(file, size, "", "");
}

static enum smfar_status refuse_path(size_t length, size_t size)
{
    return FAIL(SMFAR_ERR_ARGUMENT,
                "the plan table's path has %zu characters, and there is room for %zu: name a "
                "shorter one, or 0 for no table",
                length, size - 1);
}

void plan_table_choose(const char *option, struct plan_path *path_out)
{
    const char *asked = option && *option ? option : env_text(ENV_PLAN_TABLE);
    size_t size = sizeof(path_out->file);
    path_out->asked = asked != NULL;
    if (asked)
        path_out->length = name_path(path_out->file, size, env_says_no(asked) ? "" : asked, "");
    else
        path_out->length = users_place(path_out->file, size);
}

enum smfar_status smfar_plan_table_place(char *path, size_t size)
{
    const char *named = env_text(ENV_PLAN_TABLE);
    size_t length =
        named && !env_says_no(named) ? name_path(path, size, named, "") : users_place(path, size);
    return length < size ? SMFAR_OK : refuse_path(length, size);
}

/* NULL where ranks have different devices: no section is for that. */
static const char *device_of_all(const struct smfar_comm *comm)
{
    for (int r = 1; r < comm->ranks; r++)
        if (strcmp(comm->capability[r].device, comm->capability[0].device)) return NULL;
    return comm->capability[0].device;
}

static struct plan_topology topology_of(const struct smfar_comm *comm)
{
    return (struct plan_topology){.ranks = comm->ranks,
                                  .per_device = comm->agreed.ranks_per_device,
                                  .multicast = comm->agreed.multicast,
                                  .resident_blocks = comm->agreed.resident_blocks,
                                  .device = device_of_all(comm)};
}

void plan_table_topology(const struct smfar_comm *comm, char *text, size_t size)
{
    struct plan_topology here = topology_of(comm);
    snprintf(text, size, "ranks=%d ranks_per_gpu=%d multicast=%s device=%s", here.ranks,
             here.per_device, here.multicast ? "on" : "off",
             here.device ? here.device : "(of several kinds)");
}

/* As a sentence has room for it: of a long path the end. */
struct shown {
    char text[256];
};

static struct shown show(const char *path)
{
    struct shown shown;
    size_t length = strlen(path), room = sizeof(shown.text) - sizeof("...");
    int cut = length > room;
    snprintf(shown.text, sizeof(shown.text), "%s%s", cut ? "..." : "",
             cut ? path + length - room : path);
    return shown;
}

/* A regular file: to open or to read anything else may take for ever. */
static FILE *open_file(const char *path, const char **why_out)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int known = fd >= 0 && fstat(fd, &about) == 0, regular = known && S_ISREG(about.st_mode);
    FILE *file = regular ? fdopen(fd, "r") : NULL;
    *why_out = known && !regular ? "it is no regular file" : strerror(errno);
    if (!file && fd >= 0) close(fd);
    return file;
}

/* All of a file's rows, those for `here` in *table_out. */
static enum smfar_status read_file(const char *path, const struct plan_topology *here,
                                   struct plan_table *table_out)
{
    const char *why;
    FILE *file = open_file(path, &why);
    if (!file)
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "the plan table %s cannot be read: %s; python -m smfar tune --out FILE writes "
                    "one, and 0 in place of a name does without",
                    show(path).text, why);
    enum smfar_status status = plan_table_read(file, show(path).text, here, table_out);
    fclose(file);
    return status;
}

enum smfar_status smfar_plan_table_check(const char *path)
{
    static const struct plan_topology nowhere; /* no ranks: whose rows are all others' */
    struct plan_table none;
    if (!path) return FAIL(SMFAR_ERR_ARGUMENT, "the plan table's path is NULL");
    return read_file(path, &nowhere, &none);
}

/* Rank 0's. */
static enum smfar_status load(const struct smfar_comm *comm, struct plan_table *table_out)
{
    const struct plan_path *chosen = &comm->plan_path;
    const char *path = chosen->file;
    struct plan_topology here = topology_of(comm);
    if (chosen->length >= sizeof(chosen->file))
        return refuse_path(chosen->length, sizeof(chosen->file));
    enum smfar_status status = read_file(path, &here, table_out);
    if (status != SMFAR_OK) return status;
    if (table_out->count)
        snprintf(table_out->source, sizeof(table_out->source), "%d row%s of %s", table_out->count,
                 table_out->count > 1 ? "s" : "", show(path).text);
    else
        snprintf(table_out->source, sizeof(table_out->source), "none for this topology in %s",
                 show(path).text);
    return SMFAR_OK;
}

/* Rank 0's, with a fault in a file that nobody has asked for taken as no table. */
static enum smfar_status find(struct smfar_comm *comm)
{
    const struct plan_path *path = &comm->plan_path;
    char *source = comm->plan_table.source;
    snprintf(source, sizeof(comm->plan_table.source), "none");
    if (!path->file[0] || (!path->asked && access(path->file, F_OK))) return SMFAR_OK;
    enum smfar_status status = load(comm, &comm->plan_table);
    if (status == SMFAR_OK || path->asked) return status;
    log_warn("%s; going on without the table", smfar_last_error());
    snprintf(source, sizeof(comm->plan_table.source), "none: %.300s", smfar_last_error());
    return SMFAR_OK;
}

enum smfar_status plan_table_share(struct smfar_comm *comm)
{
    struct plan_table *all = calloc((size_t)comm->ranks, sizeof(*all));
    enum smfar_status status =
        all ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for the plan table");
    if (status == SMFAR_OK && comm->rank == 0) status = find(comm);
    TRY(exchange_agree(comm->exchange, status, "reading the plan table"));
    TRY(exchange_all_gather(comm->exchange, &comm->plan_table, sizeof(*all), all));
    comm->plan_table = all[0];
    log_info("plan table: %s", comm->plan_table.source);
fail:
    free(all);
    return status;
}

const struct plan_row *plan_table_row(const struct plan_table *table, enum collective collective,
                                      uint64_t bytes)
{
    for (int i = 0; table && i < table->count; i++) {
        const struct plan_row *row = &table->row[i];
        if (row->collective == (int)collective && row->from <= bytes && bytes <= row->to)
            return row;
    }
    return NULL;
}
