/*
 * feed_args.h: the options that say who calls when, for the tools that feed or simulate calls. A
 * wrong word is argp_error.
 */
#ifndef MT_FEED_ARGS_H
#define MT_FEED_ARGS_H

#include "base/args.h"
#include "wire/feeder.h"

/* --arrivals all|ramp:R|poisson:R, R in sessions a second. */
void mt_arg_arrivals(struct argp_state *st, const char *arg, struct mt_feed_opts *o);
/* --duration fixed:D|exp:D|file. */
void mt_arg_calls_last(struct argp_state *st, const char *arg, struct mt_feed_opts *o);
/* --phase locked|spread|random. */
void mt_arg_phase(struct argp_state *st, const char *arg, struct mt_feed_opts *o);

/* The words back. */
const char *mt_arrivals_name(enum mt_feed_arrivals a);
const char *mt_calls_last_name(enum mt_feed_duration d);
const char *mt_phase_name(enum mt_feed_phase p);

#endif
