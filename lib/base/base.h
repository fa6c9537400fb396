/*
 * base.h: what every other part of metronome stands on: errors, exit codes, messages, clocks,
 * parsing of sizes and durations, latency histograms, NDJSON output. Depends on libc and jansson.
 */
#ifndef MT_BASE_H
#define MT_BASE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MT_VERSION "0.1.0"

#define MT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define MT_COUNT(a)     (sizeof(a) / sizeof((a)[0]))

/* Exit status of every tool. */
enum mt_exit {
    MT_EXIT_OK = 0,     /* done */
    MT_EXIT_FAILED = 1, /* the work failed */
    MT_EXIT_USAGE = 2,  /* the call was wrong */
};

/*
 * An error for a person: one line, without the program's name: object, place, expectation.
 * Functions of the library return 0 or a negative errno, and fill this where a person must act.
 * A NULL mt_err is allowed everywhere and keeps nothing.
 */
struct mt_err {
    int code;       /* negative errno, 0 while nothing failed */
    char text[400]; /* UTF-8, cut at a whole character */
};

/* Set e unless it already holds an error (the first one wins). Returns code. */
int mt_err_set(struct mt_err *e, int code, const char *fmt, ...) MT_PRINTF(3, 4);

/*
 * Messages for people, on stderr, one line each, "program: text". mt_msg_program() is called once
 * at start with argv[0]; level is set by -q and -v. Thread safe: a line is one write.
 */
enum mt_level { MT_QUIET = 0, MT_ERROR, MT_WARN, MT_INFO, MT_DEBUG };
void mt_msg_program(const char *argv0);
const char *mt_msg_program_name(void);
void mt_msg_level(enum mt_level level);
void mt_msg(enum mt_level level, const char *fmt, ...) MT_PRINTF(2, 3);

/*
 * The running program's folder with a slash behind it, "" where that is not known. A path that
 * doesn't fit is cut.
 */
void mt_program_folder(char *out, size_t cap);

/*
 * Flush and close stdout, so that a full disk is an error and a reader that left is not.
 * Returns status, or MT_EXIT_FAILED after a message when data was lost.
 */
int mt_close_stdout(int status);
/* From now on every exit does that, --help and --version of argp included. Call once. */
void mt_close_stdout_at_exit(void);

/* ---- time ---- */

/*
 * A clock: CLOCK_MONOTONIC; or virtual time that only moves when told; or working time, which
 * passes as the real one does but for sleeps: they are left out. All times are ns since an
 * arbitrary start. sleep_until() on a virtual or working clock sets the time.
 */
struct mt_clock {
    int64_t (*now_ns)(struct mt_clock *c);
    void (*sleep_until_ns)(struct mt_clock *c, int64_t t);
    int64_t virtual_ns; /* the virtual time; of working time, what it is ahead of the real one */
};
struct mt_clock mt_clock_real(void);
struct mt_clock mt_clock_virtual(int64_t start_ns);
struct mt_clock mt_clock_working(int64_t start_ns);

#define MT_NS_PER_S  INT64_C(1000000000)
#define MT_NS_PER_MS INT64_C(1000000)

/* ---- options ---- */

/*
 * Parse the whole string or fail with -EINVAL (rubbish behind the number too) or -ERANGE; *out is
 * then untouched. Sizes: bytes, with K M G T (1000) or KiB MiB GiB TiB (1024). Durations: ns from a
 * number with ns, us, ms, s, min, h; a bare number is seconds. Negative durations and sizes are
 * -ERANGE.
 */
int mt_parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out);
int mt_parse_double(const char *s, double lo, double hi, double *out);
int mt_parse_size(const char *s, int64_t *bytes);
int mt_parse_duration(const char *s, int64_t *ns);

/*
 * Next "key=value" of a comma separated list. *cursor advances; key and value point into buf, which
 * is a writable copy of the text. Returns 1 for a pair (value is NULL without '='), 0 at the end.
 */
int mt_parse_pair(char **cursor, char **key, char **value);

/* ---- histogram ---- */

/*
 * Latencies in ns in log-linear buckets: 64 linear steps in each power of two, so a reported
 * quantile is at most 1/64 = 1.6 % above the sample. Values below 0 count as 0; above 2^47 ns
 * (39 h) in the last bucket. Count, sum, min and max are exact. Fixed size, no allocation.
 */
#define MT_HIST_BUCKETS (64 * 43)
struct mt_hist {
    uint64_t count;
    double sum;
    int64_t min, max;
    uint64_t bucket[MT_HIST_BUCKETS];
};
void mt_hist_clear(struct mt_hist *h);
void mt_hist_add(struct mt_hist *h, int64_t ns);
void mt_hist_merge(struct mt_hist *into, const struct mt_hist *from);
/*
 * Upper edge of the bucket with the nearest-rank quantile q in [0, 1], clipped to max; 0 if empty.
 */
int64_t mt_hist_quantile(const struct mt_hist *h, double q);

/* ---- NDJSON ---- */

/*
 * Write one object as one compact line and flush it. Takes the reference to obj (jansson's
 * "steal"). Returns 0 or a negative errno; -EPIPE when the reader left. Text is UTF-8 as jansson
 * checks it.
 */
int mt_json_line(FILE *out, json_t *obj);
/*
 * End and flush a line that was printed by hand (rows of numbers, where an object a number would
 * cost too much). Returns as above.
 */
int mt_line_end(FILE *out);
/* Write and flush bytes that are no lines. Returns as above. */
int mt_bytes_out(FILE *out, const void *bytes, size_t n);

/*
 * Number rounded to 6 significant digits after the decimal point as records have them; NULL
 * (absent) if not finite.
 */
json_t *mt_json_real(double v);
/* obj[key] = v, left out when v is not finite. */
void mt_json_set_real(json_t *obj, const char *key, double v);

/*
 * Lines from a descriptor or file: reads at most max bytes a line (excluding the newline). A longer
 * line is skipped whole and reported as -E2BIG. Returns the length, 0 with *line NULL at the end,
 * or a negative errno. The line is NUL terminated, without its newline, valid until the next call.
 */
struct mt_lines;
int mt_lines_open(struct mt_lines **out, int fd, size_t max);
int64_t mt_lines_next(struct mt_lines *l, char **line);
void mt_lines_close(struct mt_lines **l);
/*
 * Every line but empty ones to take(), until the end. *broken counts those that take() calls
 * -EBADMSG and those above max; any other negative value of take() ends it and is returned, as is
 * the errno of a failed read.
 */
int mt_lines_each(int fd, size_t max, int (*take)(void *ctx, const char *line, size_t n), void *ctx,
                  int64_t *broken);

/* ---- memory ---- */

/* Products that fit, else SIZE_MAX, which no allocation grants. */
size_t mt_mul(size_t a, size_t b);
/*
 * calloc of n zeroed elements aligned to 64 bytes; NULL when it fails or overflows. Free with
 * free().
 */
void *mt_alloc(size_t n, size_t size);

/* 64-bit FNV-1a: identities of prompts and names. Start with MT_HASH_INIT. */
#define MT_HASH_INIT UINT64_C(0xcbf29ce484222325)
uint64_t mt_hash(uint64_t h, const void *data, size_t n);
/* SplitMix64 of a counter: the generator behind every seeded choice. Same on every machine. */
uint64_t mt_mix64(uint64_t x);
/* Uniform in [0, 1) with 53 bits from a mixed word. */
double mt_unit(uint64_t word);

#endif
