/* Reads a plan table: docs/plan.md has the form. The first line names the version; then come
 * topologies, each with its rows; fields are key=value, in any order. Everything is checked, also
 * what is for other topologies, so that a file is right or wrong as a whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "plan_table.h"

#define VERSION_LINE "smfar plan table 1"

enum { MOST_BLOCKS = 1 << 16, MOST_LINE = 4096, LEAST_CHUNK = 4096, FIELDS = 6 };

struct reader {
    const char *path;
    int line;
    const struct plan_topology *here;
    struct plan_topology section; /* of the lines that are read, without the device's name; ranks 0:
                                   * before the first */
    int is_here, was_here;        /* this section is for here; one has been */
    struct plan_table *table;     /* its rows */
    struct plan_table other;      /* those of this section, where it is not for here */
};

/* A fault of this line. */
#define FAULT(it, text, ...)                                                                       \
    FAIL(SMFAR_ERR_ARGUMENT, "%s:%d: " text, (it)->path, (it)->line, ##__VA_ARGS__)

/* "key=value key=value …" into values_out, in the order of `keys`; "device" takes the whole rest.
 */
static enum smfar_status split_fields(const struct reader *it, char *text, const char *const *keys,
                                      const char *known, char **values_out)
{
    while (*(text += strspn(text, " \t"))) {
        int k = 0, length = (int)strcspn(text, " \t=");
        while (keys[k] &&
               ((int)strlen(keys[k]) != length || strncmp(keys[k], text, (size_t)length)))
            k++;
        if (!keys[k] || text[length] != '=')
            return FAULT(it, "\"%.*s\" is no field of this line, which has %s, each as name=value",
                         length, text, known);
        if (values_out[k]) return FAULT(it, "%s= comes twice", keys[k]);
        char *value = text + length + 1;
        text = value + (strcmp(keys[k], "device") ? strcspn(value, " \t") : strlen(value));
        if (*text) *text++ = 0;
        values_out[k] = value;
    }
    return SMFAR_OK;
}

/* Leaves *out as it is where there is no such field. */
static enum smfar_status number(const struct reader *it, const char *key, const char *value,
                                int64_t lowest, int64_t highest, int64_t *out)
{
    char *end;
    if (!value) return SMFAR_OK;
    errno = 0;
    long long found = strtoll(value, &end, 10);
    if (errno || end == value || *end || found < lowest || found > highest)
        return FAULT(it, "%s=%s: a whole number from %lld to %lld is needed", key, value,
                     (long long)lowest, (long long)highest);
    *out = found;
    return SMFAR_OK;
}

/* ---- topologies ---- */

static int is_topology(const struct plan_topology *a, const struct plan_topology *b)
{
    return a->ranks == b->ranks && a->per_device == b->per_device && a->multicast == b->multicast &&
           b->device && strcmp(a->device, b->device) == 0;
}

static enum smfar_status read_topology(struct reader *it, char *text)
{
    static const char *const keys[] = {"ranks", "ranks_per_gpu", "multicast", "device", NULL};
    enum smfar_status status;
    char *value[FIELDS] = {NULL};
    int64_t ranks = 0, per_device = 0;
    TRY(split_fields(it, text, keys, "ranks, ranks_per_gpu, multicast and, last, device", value));
    for (int k = 0; keys[k]; k++)
        if (!value[k]) return FAULT(it, "a topology needs %s=", keys[k]);
    TRY(number(it, keys[0], value[0], 1, SMFAR_MAX_RANKS, &ranks));
    TRY(number(it, keys[1], value[1], 1, ranks, &per_device));
    int on = strcmp(value[2], "on") == 0;
    if (!on && strcmp(value[2], "off"))
        return FAULT(it, "multicast=%s: on or off is needed", value[2]);
    it->section = (struct plan_topology){(int)ranks, (int)per_device, on, 0, value[3]};
    it->is_here = is_topology(&it->section, it->here);
    it->section.device = NULL;
    it->other.count = 0;
    if (it->is_here && it->was_here++)
        return FAULT(it, "this topology has come before: put its rows under one line");
    if (it->is_here) it->section.resident_blocks = it->here->resident_blocks;
fail:
    return status;
}

/* ---- rows ---- */

enum { FROM, TO, ALGORITHM, BLOCKS, THREADS, CHUNK };

static int serves(const struct plan_topology *where, enum collective collective, int algorithm)
{
    const struct algorithm_row *facts = &algorithm_rows[algorithm];
    /* over peers the root of many ranks would read all their tensors alone */
    int too_many =
        algorithm == ALGORITHM_PULL_PEER && collective == COLLECTIVE_REDUCE && where->ranks > 2;
    return (facts->serves & 1u << collective) && (!facts->multicast || where->multicast) &&
           !too_many;
}

static enum smfar_status find_algorithm(const struct reader *it, const char *name,
                                        struct plan_row *row)
{
    char known[160] = "";
    row->algorithm = (int32_t)algorithm_named(name);
    if (row->algorithm != ALGORITHMS &&
        serves(&it->section, (enum collective)row->collective, row->algorithm))
        return SMFAR_OK;
    for (int i = 0, n = 0; i < ALGORITHMS; i++)
        if (serves(&it->section, (enum collective)row->collective, i))
            n += snprintf(known + n, sizeof(known) - (size_t)n, "%s%s", n ? ", " : "",
                          algorithm_rows[i].name);
    return FAULT(it, "algorithm=%s: %s of %d ranks with multicast=%s is done by %s", name,
                 name_collective(row->collective), it->section.ranks,
                 it->section.multicast ? "on" : "off", known);
}

/* What the algorithm cannot do of that. */
static enum smfar_status check_row(const struct reader *it, const struct plan_row *row)
{
    const struct algorithm_row *facts = &algorithm_rows[row->algorithm];
    int resident = it->section.resident_blocks, most = facts->threads;
    int is_push = row->algorithm == ALGORITHM_PUSH_PEER || row->algorithm == ALGORITHM_PUSH_MC;
    int fewest = is_push ? 64 : 32; /* a warp of it moves no data */
    if (row->from > row->to)
        return FAULT(it, "from=%llu is more than to=%llu", (unsigned long long)row->from,
                     (unsigned long long)row->to);
    if (facts->whole && row->to > SMFAR_WHOLE_BYTES / (uint64_t)it->section.ranks)
        return FAULT(it, "%s takes at most %d bytes of each of %d ranks: to=%d, or less",
                     facts->name, SMFAR_WHOLE_BYTES / it->section.ranks, it->section.ranks,
                     SMFAR_WHOLE_BYTES / it->section.ranks);
    if (facts->whole && row->chunk)
        return FAULT(it, "chunk=%llu: %s has one step; leave it out",
                     (unsigned long long)row->chunk, facts->name);
    if (resident && row->blocks > resident)
        return FAULT(it, "blocks=%d: a rank has room for %d at a time here", row->blocks, resident);
    if (row->threads && (row->threads % 32 || row->threads < fewest || row->threads > most))
        return FAULT(it, "threads=%d: %s takes a multiple of 32 from %d to %d", row->threads,
                     facts->name, fewest, most);
    return SMFAR_OK;
}

static enum smfar_status add_row(struct reader *it, const struct plan_row *row)
{
    struct plan_table *table = it->is_here ? it->table : &it->other;
    for (int i = 0; i < table->count; i++) {
        const struct plan_row *other = &table->row[i];
        if (other->collective == row->collective && other->from <= row->to &&
            row->from <= other->to)
            return FAULT(it,
                         "sizes from %llu on are those of line %d, too: ranges must not overlap",
                         (unsigned long long)(row->from > other->from ? row->from : other->from),
                         other->line);
    }
    if (table->count == PLAN_ROWS)
        return FAULT(it, "more than %d rows for this topology", PLAN_ROWS);
    table->row[table->count++] = *row;
    return SMFAR_OK;
}

static enum smfar_status read_row(struct reader *it, enum collective collective, char *text)
{
    static const char *const keys[] = {"from",    "to",    "algorithm", "blocks",
                                       "threads", "chunk", NULL};
    enum smfar_status status;
    char *value[FIELDS] = {NULL};
    int64_t n[FIELDS] = {0};
    if (!it->section.ranks) return FAULT(it, "a topology must come before the first row");
    TRY(split_fields(it, text, keys, "from, to, algorithm, blocks, threads and chunk", value));
    for (int k = FROM; k <= ALGORITHM; k++)
        if (!value[k]) return FAULT(it, "a row needs %s=", keys[k]);
    TRY(number(it, keys[FROM], value[FROM], 0, INT64_MAX, &n[FROM]));
    n[TO] = INT64_MAX;
    if (strcmp(value[TO], "end")) TRY(number(it, keys[TO], value[TO], 0, INT64_MAX, &n[TO]));
    TRY(number(it, keys[BLOCKS], value[BLOCKS], 1, MOST_BLOCKS, &n[BLOCKS]));
    TRY(number(it, keys[THREADS], value[THREADS], 32, 1024, &n[THREADS]));
    TRY(number(it, keys[CHUNK], value[CHUNK], LEAST_CHUNK, INT64_MAX, &n[CHUNK]));
    struct plan_row row = {.collective = (int32_t)collective,
                           .blocks = (int32_t)n[BLOCKS],
                           .threads = (int32_t)n[THREADS],
                           .line = it->line,
                           .from = (uint64_t)n[FROM],
                           .to = (uint64_t)n[TO],
                           .chunk = (uint64_t)n[CHUNK]};
    TRY(find_algorithm(it, value[ALGORITHM], &row));
    TRY(check_row(it, &row));
    TRY(add_row(it, &row));
fail:
    return status;
}

/* ---- the file ---- */

static enum smfar_status read_line(struct reader *it, char *line)
{
    static const enum collective tabled[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,
                                             COLLECTIVE_REDUCE_SCATTER};
    char *word = line + strspn(line, " \t"), *rest = word + strcspn(word, " \t");
    if (*word == '#' || !*word) return SMFAR_OK;
    if (*rest) *rest++ = 0;
    if (strcmp(word, "topology") == 0) return read_topology(it, rest);
    for (int i = 0; i < 3; i++)
        if (strcmp(word, name_collective(tabled[i])) == 0) return read_row(it, tabled[i], rest);
    return FAULT(it, "\"%.40s\" begins no line: topology, all_reduce, reduce and reduce_scatter do",
                 word);
}

enum smfar_status plan_table_read(FILE *file, const char *path, const struct plan_topology *here,
                                  struct plan_table *table_out)
{
    char line[MOST_LINE];
    struct plan_table table = {.count = 0};
    struct reader it = {.path = path, .here = here, .table = &table};
    enum smfar_status status = SMFAR_OK;
    while (status == SMFAR_OK && fgets(line, sizeof(line), file)) {
        it.line++;
        size_t length = strcspn(line, "\r\n");
        if (length == sizeof(line) - 1) return FAULT(&it, "more than %d characters", MOST_LINE - 2);
        line[length] = 0;
        if (it.line == 1 && strcmp(line, VERSION_LINE))
            return FAULT(&it,
                         "\"%.40s\" is not \"" VERSION_LINE "\", with which a table begins: "
                         "python -m smfar tune writes one anew",
                         line);
        if (it.line > 1) status = read_line(&it, line);
    }
    if (status == SMFAR_OK && ferror(file))
        return FAULT(&it,
                     "what follows cannot be read: %s; python -m smfar tune --out FILE writes "
                     "a table",
                     strerror(errno));
    if (status == SMFAR_OK && it.line == 0)
        return FAULT(&it, "it is empty: python -m smfar tune writes a table anew");
    if (status == SMFAR_OK) *table_out = table;
    return status;
}
