/* Lines on stderr. Errors are reported by status; only what would otherwise stay unseen is logged:
 * warnings always, one line per set-up step and plan decision with SMFAR_DEBUG=INFO, which says how
 * many milliseconds after the first it came. */
#ifndef SMFAR_BASE_LOG_H
#define SMFAR_BASE_LOG_H

void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Tells the two apart in a run of many ranks; set once a thread knows which rank it serves. */
void log_set_rank(int rank);

#endif
