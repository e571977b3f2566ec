/* Parsed modules, one for each text in this process: a rank's communicators load the same text
 * again and again, and ranks may be threads. Nothing writes to a module once it is parsed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

/* Kept for the next load though nobody uses them. */
enum { MOST_IDLE = 4 };

struct parsed {
    struct ptx_module *module;
    char *text;
    int users;
    struct parsed *next;
};

/* The last loaded first. The lock is held while a text is parsed, so that who loads it at the same
 * time waits for the result. */
static struct parsed *list;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void free_parsed(struct parsed *parsed)
{
    ptx_module_free(parsed->module);
    free(parsed->text);
    free(parsed);
}

/* Out of the list, with what comes after it closing up. */
static struct parsed *unlink_at(struct parsed **at)
{
    struct parsed *found = *at;
    *at = found->next;
    return found;
}

static struct parsed *take_text(const char *text)
{
    for (struct parsed **at = &list; *at; at = &(*at)->next)
        if (strcmp((*at)->text, text) == 0) return unlink_at(at);
    return NULL;
}

static struct parsed *parse(const char *text, char *error, size_t error_size)
{
    struct parsed *created = calloc(1, sizeof *created);
    if (created) created->text = strdup(text);
    if (!created || !created->text) {
        snprintf(error, error_size, "line 0: out of memory");
    } else if (ptx_module_parse(text, &created->module, error, error_size) == 0) {
        return created;
    }
    if (created) free_parsed(created);
    return NULL;
}

static void drop_idle(void)
{
    int idle = 0;
    for (struct parsed **at = &list; *at;)
        if ((*at)->users == 0 && ++idle > MOST_IDLE)
            free_parsed(unlink_at(at));
        else
            at = &(*at)->next;
}

struct ptx_module *parsed_get(const char *text, char *error, size_t error_size)
{
    pthread_mutex_lock(&lock);
    struct parsed *found = take_text(text);
    if (!found) found = parse(text, error, error_size);
    if (found) {
        found->users++;
        found->next = list;
        list = found;
    }
    pthread_mutex_unlock(&lock);
    return found ? found->module : NULL;
}

void parsed_release(struct ptx_module *module)
{
    pthread_mutex_lock(&lock);
    for (struct parsed *one = list; one; one = one->next)
        if (one->module == module) one->users--;
    drop_idle();
    pthread_mutex_unlock(&lock);
}
