/*
 * quality.h: what mt-probe quality's ways of measuring share: options, the text, the settings, and
 * how a mean is told.
 */
#ifndef MT_QUALITY_H
#define MT_QUALITY_H

#include "control/bootstrap.h"
#include "engine/panel.h"
#include "tools/probe/probe.h"

enum { QUALITY_LIST = 16, QUALITY_ARMS = 256 };
enum quality_turns { QUALITY_NO_TURNS, QUALITY_FRESH, QUALITY_ONE };

struct quality_list {
    int64_t v[QUALITY_LIST + 2]; /* two that nobody asked for: see quality_arms.c */
    int n;
};

/* A sound to be heard, and what is said in it, if that is known. */
struct quality_clip {
    const char *audio, *transcript;
};

struct quality_options {
    struct probe_model pm;
    const char *text, *system, *state;
    struct quality_clip *clips; /* in place of text */
    int n_clips;
    struct quality_list windows, sinks /* -1: the prompt */, ropes /* 1: absolute */, kv_types;
    struct quality_list moved;
    int64_t tokens; /* of a passage, 0: as the text and the windows have it */
    int passages, resample, block;
    uint64_t seed;
    double bound;
    bool table, each, attention, free, needle;
    unsigned given; /* of the options that not every way of measuring takes: see quality.c */
    struct quality_list distances;
    enum quality_turns turns;
    int64_t prompt_tokens, answer_tokens;
    int seeds, ban;
    double temperature, top_p;
};

/* ---- the text: quality_text.c ---- */

struct quality_text {
    int32_t *ids; /* of the whole text */
    int64_t n_ids;
    int32_t *prompt; /* before every passage */
    int n_prompt;
    int64_t length; /* of a passage, without the prompt */
    int passages;
};
/* Prints the reason and returns an exit status. */
int quality_text_open(struct quality_text *t, const struct quality_options *o);
void quality_text_close(struct quality_text *t);
/* Prompt and passage k, n_prompt + length tokens: malloc'ed, or NULL. */
int32_t *quality_passage(const struct quality_text *t, int k);

/* The model's own first tokens of a call, as a session would feed them: *ids is the caller's. */
int quality_prompt(const struct quality_options *o, enum mt_mode mode, int32_t **ids, int *n,
                   struct mt_err *e);
/* Do these tokens come first? */
bool quality_has_prompt(const struct quality_options *o);

/* ---- settings: quality_arms.c ---- */

/* A row of the result; several may be one arm (without sinks both ropes are the same). */
struct quality_setting {
    struct mt_arm arm;
    int at;   /* in arms */
    int home; /* the setting where it was, itself there */
};
struct quality_arms {
    struct mt_arm arms[QUALITY_ARMS];
    struct quality_setting settings[QUALITY_ARMS];
    int n_arms, n_settings;
    int group; /* settings of one type and move; behind those that were not moved come those by 1 */
};
/* Are positions moved at all? */
bool quality_moves(const struct quality_options *o);
/* The unbounded first. Prints the reason and returns an exit status. */
int quality_arms_make(struct quality_arms *a, const struct quality_options *o, int n_prompt);
/* "window=128,sinks=4" with its members: kv, window, sinks, rope, kv_type, moved. */
json_t *quality_setting_json(const char *type, const struct mt_arm *a);

/* ---- what has been measured: quality_state.c ---- */

/* What an arm expected in a passage, each [n]. */
struct quality_seen {
    float *nll, *kl;
    bool *agree;
    int64_t n;
};
int quality_seen_make(struct quality_seen *s, int64_t n);
void quality_seen_free(struct quality_seen *s);

/* --state FILE: results of earlier runs by what they are of. */
struct quality_state;
/* path NULL: keeps nothing. Prints the reason and returns an exit status. */
int quality_state_open(struct quality_state **out, const char *path);
void quality_state_close(struct quality_state **s);
/* True if it was there, with n values. */
bool quality_state_get(const struct quality_state *s, uint64_t key, struct quality_seen *out);
/* A line, flushed. 0 or a negative errno. */
int quality_state_put(struct quality_state *s, uint64_t key, const struct quality_seen *seen);

/* ---- how much a text repeats itself: quality_repeat.c ---- */

enum { QUALITY_NGRAM = 4 };
/* The share of runs of four tokens that are new; NaN where there is none. */
double quality_distinct(const int32_t *ids, int64_t n);
/* The longest stretch that repeats what stands up to 64 tokens before it, as a share of all. */
double quality_loop(const int32_t *ids, int64_t n);

/* ---- telling: quality_tell.c ---- */

/* "low" and "high" left out where there is no interval. */
void quality_interval_json(json_t *o, const struct mt_interval *i, const char *mean);
/* "+0.123 [0.100, 0.150]" */
void quality_interval_text(char out[48], const struct mt_interval *i);

/* "cache", "absolute"; "-" where all is kept. */
const char *quality_rope_name(const struct mt_arm *a);

/*
 * NULL, or why the figures say nothing about a trained model, whose mean loss with an unbounded
 * cache is nll.
 */
const char *quality_no_meaning(const struct quality_options *o, double nll);
/* "none", "fresh", "one". */
const char *quality_turns_name(const struct quality_options *o);
/* The first line; why as above. t NULL: no text was read. */
json_t *quality_head_json(const struct quality_options *o, const struct quality_text *t,
                          const char *why);

/* ---- ways of measuring ---- */

/*
 * plain: what quality_plain gave, NULL where the weights are as they were released. Exit statuses,
 * like all of them.
 */
int quality_forced(const struct quality_options *o, const struct quality_seen *plain);
/* The first setting alone: *seen [passages] is the caller's, also on failure. */
int quality_plain(const struct quality_options *o, struct quality_seen **seen);
int quality_attention(const struct quality_options *o);
int quality_free(const struct quality_options *o);
int quality_speech(const struct quality_options *o);
int quality_needle(const struct quality_options *o);

#endif
