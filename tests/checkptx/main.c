/* checkptx: every kernel of kernels.def, as shipped, against its reference.
 *
 *   checkptx [--seed N] [--kernel NAME] [--ranks N] [--all | --one-in N] [--gpu] [--verbose]
 * [--list] checkptx --schedules N [--seed N] [--kernel NAME] [--ranks N] [--ptx FOLDER]
 *
 * Without --all a sample in which every pair of parameter values occurs for every kernel; the seed
 * decides which, and the data. --all: the full product. --one-in: of that each case with a chance
 * of one in N, so that other seeds go through other cases. --gpu: the real driver instead of the
 * software switch. --verbose prints each case before it runs.
 *
 * --schedules: N schedules in the software switch's checked mode, one a seed from --seed on, up to
 * the first fault. --ptx: with the modules in this folder instead of the embedded ones. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ref/ref.h"
#include "check.h"
#include "norm.h"
#include "scene.h"
#include "text.h"

enum { MOST_FAULTS = 20, SMALL_CASES = 30 };

struct options {
    uint64_t seed;
    const char *kernel;
    int ranks;  /* 0: all */
    int one_in; /* of the full product; 0: the sample instead */
    int gpu, verbose, list;
    long schedules;
    const char *ptx;
};

struct tally {
    size_t cases, skipped;
    int faults, verbose;
};

static void usage(void)
{
    printf(
        "checkptx [--seed N] [--kernel NAME] [--ranks N] [--all | --one-in N] [--gpu] [--verbose] "
        "[--list]\n"
        "checkptx --schedules N [--seed N] [--kernel NAME] [--ranks N] [--ptx FOLDER]\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    struct options options = {.seed = (uint64_t)time(NULL)};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--all") == 0) {
            options.one_in = 1;
        } else if (strcmp(argv[i], "--gpu") == 0) {
            options.gpu = 1;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            options.verbose = 1;
        } else if (strcmp(argv[i], "--list") == 0) {
            options.list = 1;
        } else if (value && strcmp(argv[i], "--seed") == 0) {
            options.seed = strtoull(argv[++i], NULL, 0);
        } else if (value && strcmp(argv[i], "--kernel") == 0) {
            options.kernel = argv[++i];
        } else if (value && strcmp(argv[i], "--ranks") == 0) {
            options.ranks = atoi(argv[++i]);
        } else if (value && strcmp(argv[i], "--one-in") == 0) {
            options.one_in = atoi(argv[++i]);
            if (options.one_in < 1) usage();
        } else if (value && strcmp(argv[i], "--schedules") == 0) {
            options.schedules = atol(argv[++i]);
        } else if (value && strcmp(argv[i], "--ptx") == 0) {
            options.ptx = argv[++i];
        } else {
            usage();
        }
    }
    return options;
}

/* What is being checked, for must. */
static const struct check_case *current;

void must(enum smfar_status status, const char *what)
{
    if (status == SMFAR_OK) return;
    printf("WRONG %s: %s: %s\n", what, smfar_status_name(status), smfar_last_error());
    if (current) case_print(current, stdout);
    printf("\n");
    exit(1);
}

int check_arguments(const struct rig *rig, const struct check_case *c, int i,
                    struct kargs *args_out)
{
    int rank = (int)((c->seed + (uint64_t)i) % (uint64_t)rig->ranks);
    rig_arguments(rig, rank, (int)(c->seed >> 8 & (RIG_CHANNELS - 1)), args_out);
    args_out->count = c->count;
    args_out->timeout_ns = SCENE_TIMEOUT_NS;
    args_out->sequence = c->seed;
    args_out->hash = (uint32_t)c->seed;
    args_out->scale = c->scale;
    return rank;
}

int check_case(struct rig *rig, const struct check_case *c)
{
    current = c;
    int faults = norm_is(c->id)           ? check_rms_norm(rig, c)
                 : case_is_alone(c->id)   ? check_alone(rig, c, END_WELL)
                 : case_is_scatter(c->id) ? check_reduce_scatter(rig, c)
                 : case_is_pull(c->id)    ? check_pull(rig, c)
                                          : check_all_reduce(rig, c);
    current = NULL;
    return faults;
}

/* By entry or by file. */
static int is_chosen(const struct options *options, enum kernel_id id)
{
    const struct kernel_row *row = &kernel_rows[id];
    return options->kernel == NULL || strcmp(options->kernel, row->entry) == 0 ||
           strcmp(options->kernel, row->file) == 0;
}

static uint64_t seed_of(const struct options *options, enum kernel_id id)
{
    uint64_t state = options->seed + (uint64_t)id;
    return random_next(&state);
}

static void run_case(struct rig *rig, enum kernel_id id, const unsigned char row[AXES],
                     uint64_t seed, struct tally *tally)
{
    struct check_case c;
    case_make(id, row, seed, &c);
    if (tally->verbose) {
        case_print(&c, stdout);
        printf("\n");
    }
    int faults = check_case(rig, &c);
    tally->cases++;
    tally->faults += faults;
    /* a kernel that reported an error has left its signals failed for good */
    if (faults > 0) must(rig_reset(rig, 0), "reset");
}

static void run_sample(struct rig *rig, enum kernel_id id, uint64_t seed, struct tally *tally)
{
    unsigned char(*rows)[AXES];
    size_t count = sample_pairs(seed, &rows);
    for (size_t i = 0; i < count && tally->faults < MOST_FAULTS; i++)
        if (rows[i][RANKS] + 1 == rig->ranks) run_case(rig, id, rows[i], seed + i, tally);
    free(rows);
}

/* Steps to the next row of the full product; 0 after the last. The ranks stay. */
static int next_row(unsigned char row[AXES])
{
    for (int a = RANKS + 1; a < AXES; a++) {
        if (++row[a] < axis_levels[a]) return 1;
        row[a] = 0;
    }
    return 0;
}

static void run_product(struct rig *rig, enum kernel_id id, int one_in, uint64_t seed,
                        struct tally *tally)
{
    unsigned char row[AXES] = {(unsigned char)(rig->ranks - 1)};
    uint64_t chance = seed + (uint64_t)rig->ranks;
    do {
        if (random_below(&chance, (unsigned)one_in) == 0)
            run_case(rig, id, row, random_next(&seed), tally);
    } while (next_row(row) && tally->faults < MOST_FAULTS);
}

static void run_kernel(const struct options *options, struct rig *rig, enum kernel_id id,
                       struct tally *tally)
{
    uint64_t seed = seed_of(options, id);
    int needs_float8 = kernel_modules[id] == MODULE_MC_F8;
    if ((kernel_rows[id].multicast && !rig->multicast) || (needs_float8 && !rig->float8)) {
        tally->skipped++;
        return;
    }
    if (rig->ranks > 1) {
        tally->faults += check_failures(rig, id, seed);
        tally->cases++;
    }
    for (int i = 0; case_is_alone(id) && i < SMALL_CASES; i++, tally->cases++)
        tally->faults += check_alone_seed(rig, id, seed + (uint64_t)i);
    if (case_is_dataless(id)) return;
    if (options->one_in)
        run_product(rig, id, options->one_in, seed, tally);
    else
        run_sample(rig, id, seed, tally);
}

static void run_ranks(const struct options *options, struct driver *driver, int ranks,
                      struct tally *tally)
{
    struct rig *rig;
    struct timespec begin, end;
    struct tally before = *tally;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    must(rig_create(driver, ranks, &rig), "rig");
    for (int id = 0; id < KERNELS && tally->faults < MOST_FAULTS; id++)
        if (is_chosen(options, (enum kernel_id)id))
            run_kernel(options, rig, (enum kernel_id)id, tally);
    rig_destroy(rig);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("ranks %d: %zu cases, %d faults, %.1f s\n", ranks, tally->cases - before.cases,
           tally->faults - before.faults,
           (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
}

/* ---- schedules ---- */

/* Most schedules have few ranks, which is where most can go wrong in a given time. */
enum { FEWEST_RANKS = 2, USUAL_RANKS = 4, EACH_LARGE = 8 };

/* A seed decides everything: also the number of ranks, so that one rig serves for long. */
static int ranks_of(const struct options *options, uint64_t seed)
{
    if (options->ranks) return options->ranks;
    if (seed % EACH_LARGE == 0)
        return USUAL_RANKS + 1 + (int)(seed / EACH_LARGE % (RIG_MAX_RANKS - USUAL_RANKS));
    return FEWEST_RANKS + (int)(seed % (USUAL_RANKS - FEWEST_RANKS + 1));
}

static enum kernel_id draw_kernel(const struct options *options, uint64_t seed)
{
    enum kernel_id chosen[KERNELS];
    unsigned count = 0;
    for (int id = 0; id < KERNELS; id++)
        if (is_chosen(options, (enum kernel_id)id) && id != KERNEL_finish_peer)
            chosen[count++] = (enum kernel_id)id;
    if (count == 0) usage();
    return chosen[random_below(&seed, count)];
}

static int run_schedules(const struct options *options, struct driver *driver)
{
    struct rig *rigs[RIG_MAX_RANKS + 1] = {NULL};
    int faults = 0;
    long done = 0;
    uint64_t seed = options->seed;
    for (; done < options->schedules && !faults; seed++) {
        int ranks = ranks_of(options, seed);
        if (ranks > RIG_MAX_RANKS || ranks < 1) usage();
        if (!rigs[ranks]) must(rig_create(driver, ranks, &rigs[ranks]), "rig");
        enum kernel_id id = draw_kernel(options, seed);
        faults = case_is_alone(id) ? check_alone_seed(rigs[ranks], id, seed)
                                   : check_schedule(rigs[ranks], id, seed);
        done++;
    }
    for (int ranks = 0; ranks <= RIG_MAX_RANKS; ranks++)
        rig_destroy(rigs[ranks]);
    printf("seeds %llu to %llu: %ld schedules, %d faults\n", (unsigned long long)options->seed,
           (unsigned long long)seed - 1, done, faults);
    return faults > 0 || done == 0;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct tally tally = {.faults = ref_number_faults(), .verbose = options.verbose};
    struct driver *driver;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int id = 0; options.list && id < KERNELS; id++)
        if (is_chosen(&options, (enum kernel_id)id)) printf("%s\n", kernel_rows[id].entry);
    if (options.list) return 0;
    if (tally.faults) printf("the references' own conversions are wrong\n");
    printf("seed %llu\n", (unsigned long long)options.seed);
    if (options.schedules) setenv("SMFAR_SOFT_CHECKED", "1", 1);
    setenv("SMFAR_SOFT_CC", "100", 1); /* a GPU that has every kernel */
    must(driver_open(options.gpu ? SMFAR_DRIVER_CUDA : SMFAR_DRIVER_SOFT, &driver), "driver");
    if (options.ptx) text_replace(driver, options.ptx);
    if (options.schedules) return run_schedules(&options, driver);
    for (int ranks = 1; ranks <= RIG_MAX_RANKS; ranks++)
        if (options.ranks == 0 || options.ranks == ranks)
            run_ranks(&options, driver, ranks, &tally);
    driver_close(driver);
    printf("seed %llu: %zu cases, %d faults", (unsigned long long)options.seed, tally.cases,
           tally.faults);
    if (tally.skipped) printf(", %zu skipped: no switch that can", tally.skipped);
    printf("\n");
    return tally.faults > 0 || tally.cases == 0;
}
