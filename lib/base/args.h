/*
 * args.h: the argument of an option, for the argp parsers of the tools. What can't be read ends the
 * call with one line that names the option, the argument and the expectation, in the same words
 * whichever tool was called: that is argp_error's doing, under the tool's own parser state, so
 * nothing else of the library prints or exits. Under ARGP_NO_EXIT they return the lowest value.
 *
 *   name   the option as people write it, "--frame"
 */
#ifndef MT_ARGS_H
#define MT_ARGS_H

#include <argp.h>

#include "base/base.h"

int64_t mt_arg_i64(struct argp_state *st, const char *name, const char *arg, int64_t lo,
                   int64_t hi);
double mt_arg_double(struct argp_state *st, const char *name, const char *arg, double lo,
                     double hi);
/* ns, above 0. */
int64_t mt_arg_duration(struct argp_state *st, const char *name, const char *arg);
/* The same with 0, which stands for "never". */
int64_t mt_arg_duration0(struct argp_state *st, const char *name, const char *arg);
/* Index of arg among n words, n at least 2. */
int mt_arg_word(struct argp_state *st, const char *name, const char *arg, const char *const *words,
                int n);
/*
 * --format json|table: whether it is the table. Tools take isatty(STDOUT_FILENO) where it is not
 * given.
 */
bool mt_arg_table(struct argp_state *st, const char *arg);

#endif
